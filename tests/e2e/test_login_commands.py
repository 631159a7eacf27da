"""`sluice login` without a browser here, and without waiting; and what `sluice logins` says."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_line
from e2e.sluice_process import ROOT, clean_environment
from e2e.test_logins import command, log_in, said, served, site
from peers.login.browser import Browser
from peers.login.misbehaving import Misbehaving
from policy_bed import client_keys, key_of, reason

Json = dict[str, Any]
__all__ = ["site"]
STAYS_OPEN = """
import os, re, sys, time
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit
from peers.login.browser import Browser
page = Path(unquote(urlsplit(sys.argv[1]).path))
Path(__file__).with_name("window").write_text(str(os.getpid()))
with Browser("ann") as browser:
    browser.login(unescape(re.search('url=([^"]+)', page.read_text())[1]))
os.closerange(0, 3)
time.sleep(600)
"""


def run(folder: Path, *words: str, key: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {"NO_COLOR": "1"} | ({"SLUICE_KEY": key_of(key)} if key else {})
    return command_line.run(ROOT, *words, "-c", str(folder / "sluice.yaml"), env=environment)


def test_who_does_not_wait_has_the_running_sluice_finish_the_login(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        there.write((tmp_path / "policy.csv").read_text() + "p, local, sluice, admin:*, *, allow\n")
        there.until(lambda: run(tmp_path, "servers").returncode == 0)
        done = run(tmp_path, "login", "mail", "--as", "ann", "--no-wait")
        assert done.returncode == 10, done.stderr
        assert done.stdout.startswith(f"{site.url}/authorize?") and "runs finishes the login" in done.stderr
        again = run(tmp_path, "login", "mail", "--as", "ann", "--no-wait", "--json")
        assert again.returncode == 10 and json.loads(again.stdout)["url"] == done.stdout.strip()
        with Browser("ann") as browser:
            assert "Logged in" in browser.login(done.stdout.strip()).text
        there.until(lambda: "mail__whoami" in there.names("ann"))
        assert json.loads(said(there.call("ann", "mail__whoami")))["subject"] == "ann"

        refused = run(tmp_path, "login", "mail", "--no-wait", key="bob")
        assert refused.returncode == 5 and "admin:logins, write" in refused.stderr
        site.switches.prm["authorization_servers"] = [f"{site.issuer}/"]
        failed = run(tmp_path, "login", "mail", "--as", "bob", "--no-wait")
        assert failed.returncode == 1 and "names another issuer" in failed.stderr


def test_a_browser_whose_window_stays_open_holds_up_no_login(tmp_path: Path, site: Misbehaving) -> None:
    """$BROWSER names a program that runs as long as its window is open."""
    with served(tmp_path, site):
        pass
    program = tmp_path / "browser.py"
    program.write_text(STAYS_OPEN)
    browser = f"{sys.executable} {program} %s"
    environment = {**clean_environment(), "BROWSER": browser, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = command(tmp_path, "login", "mail", "--as", "ann")
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)
    window = int((tmp_path / "window").read_text())
    os.kill(window, signal.SIGKILL)  # it was open until now
    assert done.returncode == 0 and done.stdout.startswith("key:ann is logged in to mail"), done.stderr


def test_without_a_running_sluice_nobody_finishes_it(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site):
        pass
    done = run(tmp_path, "login", "mail", "--no-wait")
    assert (done.returncode, done.stdout) == (4, "") and not site.of("register")


def test_a_person_agrees_on_another_device(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        done = run(tmp_path, "login", "mail", "--as", "ann", "--device")
        assert done.returncode == 0, done.stderr
        assert f"type WDJB-MJHT:\n{site.url}/device\n" in done.stderr
        assert done.stdout.startswith(f"key:ann is logged in to mail by {site.issuer}.")
        there.until(lambda: "mail__echo" in there.names("ann"))
        assert reason(there.call("ann", "mail__echo", text="x")) == ""
        told = run(tmp_path, "login", "mail", "--as", "bob", "--device", "--json").stdout.splitlines()
        assert json.loads(told[0]) == {
            "url": f"{site.url}/device", "user_code": "WDJB-MJHT",
            "url_complete": f"{site.url}/device?user_code=WDJB-MJHT",
        }  # fmt: skip
        assert json.loads(told[1])["whose"] == "key:bob"
        written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".py"]
        for secret in site.secrets():
            assert secret not in done.stdout + done.stderr + "".join(told)
            assert not any(secret.encode() in text for text in written)


def test_where_the_device_flow_is_not_offered_that_is_said(tmp_path: Path, site: Misbehaving) -> None:
    site.switches.metadata["device_authorization_endpoint"] = None
    with served(tmp_path, site):
        done = run(tmp_path, "login", "mail", "--device")
        assert done.returncode == 1 and "has no device flow: see --paste" in done.stderr
        for words in (("--device", "--paste"), ("--no-wait", "--device"), ("--no-wait", "--paste")):
            assert run(tmp_path, "login", "mail", *words).returncode == 2


def test_logins_are_rows_without_tokens(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site):
        assert json.loads(run(tmp_path, "logins", "--json").stdout) == {"logins": []}
        assert f"`sluice login SERVER -c {tmp_path / 'sluice.yaml'}`" in run(tmp_path, "logins").stderr
        info = log_in(tmp_path, "--as", "ann")
        told = run(tmp_path, "logins", "--json").stdout
        (row,) = json.loads(told)["logins"]
        assert row == info and (row["whose"], row["state"], row["last_error"]) == ("key:ann", "ok", "")
        assert row["renewed_at"] < row["expires_at"]
        assert not [secret for secret in site.secrets() if secret in told]
        assert key_of("ann") not in told and client_keys(ann=[])["ann"]["hash"].removeprefix("sha256:") not in told
