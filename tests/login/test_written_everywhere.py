"""No secret of a login stands where others read: logs, audit, metrics, spans, store, pages, arguments, environments.

A gateway writes all that it can: its log in full, and spans to a collector. Behind it are a server that wants a login,
and one that it starts itself.
"""

import base64
import subprocess
import sys
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from command_line import run
from e2e.sluice_process import clean_environment
from e2e.test_logins import ROWS, command, said
from metrics.test_traces import collecting
from peers.login.browser import Browser
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import Bed, bed, client_keys, recorder
from waiting import until_so

from sluicegate.store.keys import KeyRing

CLIENT_SECRET = "secret-of-the-client-that-was-registered-before"
CALLBACK = "http://127.0.0.1:7412/callback"
LIFE = 2


@pytest.fixture
def site() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


def descendants(pid: int) -> list[int]:
    """The process, its children, and theirs."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def facts(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def log_in(folder: Path) -> tuple[str, bytes]:
    """What the person sees of it: the page, and what the command says in the end; and the arguments of the command and
    of the browser that it opens, with the command's environment. The browser's file has the link, for this person."""
    opened, opener = folder / "opened", folder / "opener.py"
    opener.write_text("import sys; open(sys.argv[1], 'w').write(sys.argv[2])")
    environment = clean_environment() | {"BROWSER": f"{sys.executable} {opener} {opened} %s"}
    asked = command(folder, "login", "mail", "--as", "ann")
    with (folder / "shown").open("w") as shown, subprocess.Popen(
        asked, stdout=subprocess.PIPE, stderr=shown, text=True, env=environment
    ) as process:
        until_so(lambda: opened.is_file() and opened.read_text())
        known = facts(process.pid, "cmdline") + facts(process.pid, "environ") + opened.read_bytes()
        page = Path(unquote(urlsplit(opened.read_text()).path))
        with Browser("ann") as browser:
            answer = browser.login(unescape(page.read_text().partition("url=")[2].partition('"')[0]))
        assert "Logged in" in answer.text and process.stdout is not None
        told = answer.text + str(answer.url) + process.stdout.read()
    for link in (folder / "shown", page):
        link.unlink()
    assert process.returncode == 0, told
    return told, known


def spellings(key: bytes) -> list[bytes]:
    texts = base64.b64encode(key), base64.urlsafe_b64encode(key), key.hex().encode()
    return [key, *(text.rstrip(b"=") for text in texts)]


def shown(there: Bed) -> str:
    """What Sluice tells operators."""
    told = [run(there.folder, *words, "--json") for words in (("logins",), ("servers",))]
    pages = (there.process.get(path)[1] for path in ("/metrics", "/readyz", "/livez"))
    assert [one.returncode for one in told] == [0, 0]
    return "".join([one.stdout + one.stderr for one in told] + [*pages])


def test_no_secret_of_a_login_stands_where_others_read(
    tmp_path: Path, site: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("MAIL_SECRET", CLIENT_SECRET)
    site.authority.add_client("prepared", CLIENT_SECRET, (CALLBACK,))
    site.switches.access_life, site.switches.token = 60, {"expires_in": LIFE}
    login = {"client_id": "prepared", "client_secret": "${env:MAIL_SECRET}"}
    servers = {"mail": {"url": site.mcp, "required": False, "login": login}}
    servers["notes"] = recorder(tmp_path, "notes", tools=["read"])
    rows = ROWS + ROWS.replace("mail", "notes") + "p, local, sluice, admin:*, *, allow\n"
    with collecting() as collector:
        with bed(tmp_path, rows, servers, clients={"keys": client_keys(ann=[])}, telemetry={"otlp": collector.url},
                 log={"format": "json", "level": "debug"}, login={"key": "file"}) as there:  # fmt: skip
            told, of_the_command = log_in(tmp_path)
            there.until(lambda: "mail__echo" in there.names("ann"))
            renewed = len(site.of("token", grant_type="refresh_token"))
            time.sleep(LIFE)
            assert said(there.call("ann", "mail__echo", text="hello")) == '{"text": "hello"}'
            assert len(site.of("token", grant_type="refresh_token")) > renewed
            assert said(there.call("ann", "notes__read")) == "ran read"
            told += shown(there)
            collector.wait_for(4)
            sluice, *children = descendants(there.process.process.pid)
            started = [pid for pid in children if b"recording_server" in facts(pid, "cmdline")]
            arguments = b"\n".join(facts(pid, "cmdline") for pid in (sluice, *children))
            environments = b"\n".join(facts(pid, "environ") for pid in children)
            own = facts(sluice, "environ") + of_the_command
        spans = b"\n".join(collector.bodies)
    keys = sorted((tmp_path / "state" / "keys").iterdir())
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file not in keys]
    assert (tmp_path / "state" / "keys" / "login") in keys
    assert started and b"mail__echo" in spans and b"PATH=" in environments
    assert (tmp_path / "sluice.log") in written and (tmp_path / "state" / "sluice.db") in written
    assert b'"debug"' in (tmp_path / "sluice.log").read_bytes()
    secrets = {secret.encode() for secret in site.secrets()}
    assert CLIENT_SECRET.encode() in secrets
    for key in KeyRing.load(tmp_path / "state" / "keys", "login").keys.values():
        secrets |= set(spellings(key))
    places = {"told": told.encode(), "spans": spans, "arguments": arguments, "environments": environments}
    places |= {file.name: file.read_bytes() for file in written}
    assert [(name, secret) for name, text in places.items() for secret in secrets if secret in text] == []
    assert [secret for secret in secrets - {CLIENT_SECRET.encode()} if secret in own] == []
