"""Threats to logins that need a whole Sluice: open calls at a logout, and a legacy stream that names another place."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from e2e.sluice_process import clean_environment
from e2e.test_logins import command, log_in, served, site
from peers.login.faults import silent
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import bed, client_keys, reason, recorder

Json = dict[str, Any]
__all__ = ["site"]


def last_reason(answer: httpx.Response) -> str:
    """Of an answer that may have become a stream, because it was long in coming."""
    lines = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith(("data:", "{"))]
    return str(json.loads(lines[-1])["result"]["_meta"]["dev.sluice/reason"])


def test_open_calls_end_with_their_login_and_it_is_revoked(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there, ThreadPoolExecutor(8) as pool:
        for who in ("ann", "bob"):
            log_in(tmp_path, "--as", who)
            there.until(lambda who=who: "mail__echo" in there.names(who))  # type: ignore[misc]
        site.faults["mcp.tools/call"] = silent()
        calls = [pool.submit(there.call, "ann", "mail__echo", text="x") for _ in range(8)]
        there.until(lambda: len(site.calls()) == 8)
        subprocess.run(command(tmp_path, "logout", "mail", "--as", "ann"), check=True, capture_output=True,
                       env=clean_environment())  # fmt: skip
        assert {last_reason(call.result()) for call in calls} == {"outcome_unknown"}
        assert site.of("revoke")
        del site.faults["mcp.tools/call"]
        assert reason(there.call("ann", "mail__echo", text="x")) == "login_required"
        assert reason(there.call("bob", "mail__echo", text="x")) == ""


def test_a_legacy_stream_that_names_another_origin_gets_no_token_there(tmp_path: Path, site: Misbehaving) -> None:
    site.switches.eras, site.switches.prm_at, site.switches.prm = ("legacy",), "root", {"resource": site.url}
    server: Json = {"url": f"{site.url}/sse", "transport": "sse", "required": False}
    with misbehaving() as other:
        rows = "p, role:everyone, mail, *, *, allow\n"
        with bed(tmp_path, rows, {"mail": server}, clients={"keys": client_keys(ann=[])}) as there:
            log_in(tmp_path, "--as", "ann")
            there.until(lambda: "mail__echo" in there.names("ann"))  # at its own origin it works
            subprocess.run(command(tmp_path, "logout", "mail", "--as", "ann"), check=True, capture_output=True,
                           env=clean_environment())  # fmt: skip
            site.switches.sse_endpoint = f"{other.url}/messages"
            log_in(tmp_path, "--as", "ann")
            there.until(lambda: len([seen for seen in site.of("sse") if seen.bearer]) > 1)
            there.call("ann", "mail__echo", text="x")
            assert not [seen for seen in other.seen if seen.bearer] and other.seen == []


def test_a_key_file_that_is_no_pem_ends_no_reload_half_way(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("# Clé\n", encoding="utf-8")
    servers = {"fs": recorder(tmp_path, "fs", tools=["read"])}
    rows = "p, role:everyone, fs, *, *, allow\n"
    with bed(tmp_path, rows, servers, clients={"keys": client_keys(ann=[], bob=[])}) as there:
        config: Json = json.loads(there.process.config.read_text())
        login = {"client_id": "sluice", "client_key": "key.pem"}
        config["servers"]["mail"] = {"url": "https://mail.example.test/mcp", "required": False, "login": login}
        del config["clients"]["keys"]["bob"]
        there.process.config.write_text(json.dumps(config))
        there.until(lambda: there.ask("bob", "tools/list").status_code == 401)
        assert there.names("ann") == ["fs__read"]
        assert not [note for note in there.notes() if "reload" in note]
