"""Where the key of logins is kept: in a real keyring (GNOME's, on a message bus of its own) or in a file."""

import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import run
from config.test_os_keyring import Desktop
from config.test_os_keyring import desktop as desktop
from peers.fleet import peers as peers
from policy_bed import bed, recorder

from sluicegate.app import login_service
from sluicegate.app.login_service import NAMED, RING, load_key, opener
from sluicegate.cli.output import Code
from sluicegate.config import os_keyring
from sluicegate.config.os_keyring import NoKeyring
from sluicegate.store.keys import KeyRing, KeyUnavailable

TOLD = """
import json, sys
from pathlib import Path
from sluicegate.app.login_service import load_key
from sluicegate.store.keys import KeyUnavailable
try:
    ring = load_key(Path(sys.argv[1]), sys.argv[2])
    print(json.dumps({"key": ring.newest.hex(), "files": sorted(one.name for one in Path(sys.argv[1]).iterdir())}))
except KeyUnavailable as error:
    print(json.dumps({"error": str(error)}))
"""


def told(desktop: Desktop, place: str, **more: str) -> dict[str, str]:
    """What another process finds: its key and the files beside it."""
    folder = desktop.home / "keys"
    command = [sys.executable, "-c", TOLD, str(folder), place]
    done = subprocess.run(command, env=desktop.env | more, capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout))


def test_a_key_is_in_the_keyring_from_the_start_and_moves_on_request(desktop: Desktop) -> None:
    first = told(desktop, "auto")
    assert first["files"] == [NAMED] and told(desktop, "auto") == first == told(desktop, "keyring")
    assert bytes.fromhex(first["key"]) not in (desktop.home / "keys" / NAMED).read_bytes()
    moved = told(desktop, "file")
    assert (moved["key"], moved["files"]) == (first["key"], [RING]) and told(desktop, "auto") == moved
    assert stat.S_IMODE((desktop.home / "keys" / RING).stat().st_mode) == 0o600
    assert told(desktop, "keyring") == first


def test_without_its_keyring_nothing_else_is_taken_for_the_key(desktop: Desktop) -> None:
    told(desktop, "auto")
    gone = told(desktop, "auto", DBUS_SESSION_BUS_ADDRESS="unix:path=/nowhere")
    assert "the key of logins is in the keyring, as sluice/login-" in gone["error"]
    assert [one.name for one in (desktop.home / "keys").iterdir()] == [NAMED], "no key in a file instead"


def test_where_there_is_no_keyring_the_key_is_in_a_file_and_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_keyring, "why_none", lambda within: "none here")
    ring = load_key(tmp_path / "keys", "auto")
    monkeypatch.setattr(os_keyring, "why_none", lambda within: "")
    assert load_key(tmp_path / "keys", "auto").newest == ring.newest
    assert not (tmp_path / "keys" / NAMED).exists()


def test_an_entry_that_is_gone_or_damaged_is_said(desktop: Desktop) -> None:
    told(desktop, "keyring")
    name = (desktop.home / "keys" / NAMED).read_text().strip()
    gone = f"delete keys/{NAMED} in state.dir"
    for act, said in ((f"put('{name}', 'AAAA')", "is damaged"), (f"delete('{name}')", gone)):
        command = [sys.executable, "-c", f"from sluicegate.config import os_keyring as o; o.{act}"]
        subprocess.run(command, env=desktop.env, check=True, timeout=60)
        assert said in told(desktop, "keyring")["error"]


def test_processes_that_start_at_once_have_one_key(desktop: Desktop) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: told(desktop, "auto"), range(4)))
    assert len({one["key"] for one in found}) == 1 and found[0]["files"] == [NAMED]


def test_sluice_starts_without_its_keyring_and_says_what_is_wrong(peers: None, tmp_path: Path) -> None:
    mail = {"url": "https://mail.invalid/mcp", "login": {"per": "gateway"}, "required": False}
    servers = {"desk": recorder(tmp_path, "desk", tools=["look"]), "mail": mail}
    place = tmp_path / "state" / "keys"
    place.mkdir(mode=0o700, parents=True)
    place.parent.chmod(0o700)
    (place / NAMED).write_text("login-0123456789abcdef\n")
    (place / NAMED).chmod(0o600)
    with bed(tmp_path, "p, role:everyone, *, *, *, allow\n", servers) as town:
        assert town.names("") == ["desk__look"] and not town.call("", "desk__look").json()["result"].get("isError")
        assert "the key of logins is in the keyring" in town.process.log()
        shown = run(tmp_path, "logins", "-c", "sluice.yaml")
        assert shown.returncode == Code.CONFIG and "the key of logins is in the keyring" in shown.stderr
        asked = run(tmp_path, "login", "mail", "--no-open", "-c", "sluice.yaml")
        assert asked.returncode != 0 and "Traceback" not in asked.stderr


@pytest.mark.anyio
async def test_a_keyring_that_fails_is_not_asked_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, now = [0], [0.0]

    def locked(name: str, secret: str) -> None:
        asked[0] += 1
        raise NoKeyring("is it locked?")

    monkeypatch.setattr(os_keyring, "put", locked)
    opened = opener(tmp_path / "keys", "keyring", lambda: now[0])
    for _ in range(3):
        with pytest.raises(KeyUnavailable, match="is it locked"):
            await opened()
    assert asked == [1]
    now[0] = login_service.AGAIN
    monkeypatch.setattr(os_keyring, "put", lambda name, secret: None)
    monkeypatch.setattr(os_keyring, "get", lambda name: "A" * 43 + "=")
    assert await opened() is await opened()


def test_a_move_that_ended_half_way_leaves_no_key_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries: dict[str, str] = {}
    monkeypatch.setattr(os_keyring, "put", entries.__setitem__)
    monkeypatch.setattr(os_keyring, "get", entries.get)
    ring = load_key(tmp_path / "keys", "file")
    text = (tmp_path / "keys" / RING).read_bytes()
    assert load_key(tmp_path / "keys", "keyring").newest == ring.newest
    (tmp_path / "keys" / RING).write_bytes(text)
    (tmp_path / "keys" / RING).chmod(0o600)
    assert load_key(tmp_path / "keys", "auto").newest == ring.newest
    assert not (tmp_path / "keys" / RING).exists()
    assert KeyRing.parse(next(iter(entries.values()))).newest == ring.newest
