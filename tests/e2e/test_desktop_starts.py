"""How often a desktop client's servers are started: once at each start, whatever the client can be asked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.desktop_clients import Desktop
from e2e.sluice_process import stdio_command

CHILD = str(Path(__file__).resolve().parents[1] / "downstream" / "scripted_child.py")
META = "io.modelcontextprotocol/"
DECLARED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "forms": {"elicitation": {}},
    "all that desktops have": {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}},
    "roots that never change": {"roots": {}},
}


KINDS = {"legacy": [], "exits": ["exit-at-probe"], "modern": ["modern"]}


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
def test_a_server_is_started_once_whatever_its_client_declares(declared: dict[str, Any], tmp_path: Path) -> None:
    servers = {
        kind: {"command": sys.executable, "args": [CHILD, *modes], "env": {"STARTS_FILE": str(tmp_path / kind)}}
        for kind, modes in KINDS.items()
    }
    for first in (True, False):
        for kind in KINDS:
            (tmp_path / kind).write_text("")
        client = Desktop(stdio_command({"servers": servers}, tmp_path), "one")
        try:
            about = {"name": "one", "version": "1"}
            client.ask("initialize", protocolVersion="2025-11-25", capabilities=declared, clientInfo=about)
            client.send(method="notifications/initialized")
            client.ask("tools/list")
            for kind in KINDS:
                assert "error" not in client.ask("tools/call", name=f"{kind}__echo", arguments={"x": 1})
            assert client.leave() == 0
        finally:
            client.close()
        started = {kind: (tmp_path / kind).read_text().count("started") for kind in KINDS}
        assert started == {"legacy": 1, "exits": 2 if first else 1, "modern": 1}


def test_a_modern_client_has_one_start_too(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    server = {"command": sys.executable, "args": [CHILD], "env": {"STARTS_FILE": str(starts)}}
    meta = {f"{META}protocolVersion": "2026-07-28", f"{META}clientInfo": {"name": "m", "version": "1"},
            f"{META}clientCapabilities": {"elicitation": {"form": {}}}}  # fmt: skip
    client = Desktop(stdio_command({"servers": {"counted": server}}, tmp_path), "one")
    try:
        client.ask("server/discover", _meta=meta)
        client.ask("tools/list", _meta=meta)
        client.ask("tools/call", name="counted__echo", arguments={}, _meta=meta)
        assert client.leave() == 0
    finally:
        client.close()
    assert starts.read_text().count("started") == 1


@pytest.mark.parametrize("said", [b"", b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'], ids=["nothing", "a ping"])
@pytest.mark.parametrize("source", ["pipe", "file", "device"])
def test_input_that_ends_at_once_is_an_orderly_end(source: str, said: bytes, tmp_path: Path) -> None:
    (file := tmp_path / "in").write_bytes(said)
    command = stdio_command({"servers": {"a": {"command": sys.executable, "args": [CHILD]}}}, tmp_path)
    with file.open("rb") as opened:
        given: dict[str, Any] = {
            "pipe": {"input": said}, "file": {"stdin": opened}, "device": {"stdin": subprocess.DEVNULL}
        }[source]  # fmt: skip
        done = subprocess.run(command, capture_output=True, timeout=60, **given)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["id"] for one in answers] == ([1] if said and source != "device" else [])
