"""The process's own stdin and stdout: whatever they are, stdout carries MCP and the end is orderly."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluicegate.protocol.jsonrpc import Json

PEER = Path(__file__).parent / "stdio_peer.py"
ROOT = Path(__file__).parents[2]
PING: Json = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HELLO: Json = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}},
}  # fmt: skip


def call(id: int, name: str, **arguments: Any) -> Json:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def lines(*messages: Json) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def start(loop: str = "asyncio", grace: float = 5, **streams: Any) -> "subprocess.Popen[bytes]":
    given: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    env = {**os.environ, "PYTHONPATH": str(ROOT / "proxy"), "LOOP": loop}
    return subprocess.Popen([sys.executable, str(PEER), str(grace)], env=env, **given)


def answers(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def logged(data: bytes) -> list[str]:
    return [json.loads(line)["event"] for line in data.splitlines() if line.startswith(b"{")]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return str(request.param)


def test_what_was_asked_before_the_end_of_input_is_answered(loop: str) -> None:
    with start(loop) as child:
        out, err = child.communicate(lines(HELLO, PING, call(2, "big", size=3_000_000)), timeout=30)
    assert sorted(answer["id"] for answer in answers(out)) == [0, 1, 2]
    assert child.returncode == 0 and logged(err)[-2:] == ["session ended", "returned"]


def test_open_calls_are_cancelled_when_the_grace_after_the_end_is_over(loop: str) -> None:
    with start(loop, grace=0.05) as child:
        out, err = child.communicate(lines(HELLO, call(2, "hold")), timeout=30)
    assert [answer["id"] for answer in answers(out)] == [0]
    assert logged(err) == ["cancelled", "session ended", "returned"]


def test_stdout_carries_no_line_that_is_not_mcp(loop: str) -> None:
    """Neither what our own process prints, nor what a child that inherited stdout does; and it reads no stdin."""
    with start(loop) as child:
        out, err = child.communicate(lines(HELLO, call(2, "print")), timeout=30)
    assert sorted(answer["id"] for answer in answers(out)) == [0, 2]
    assert b"this is no MCP message" in err and b"nor is this" in err and b"EOFError" in err


def test_a_client_that_stops_reading_and_dies_leaves_nothing_behind(loop: str) -> None:
    with start(loop, grace=60) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(lines(HELLO, call(1, "hold"), call(2, "big", size=10_000_000)))
        child.stdin.flush()
        assert child.stdout.readline()
        child.stdout.close()
        assert child.stderr is not None
        events = logged(child.stderr.read())
        assert child.wait(timeout=30) == 0
    assert events[-2:] == ["session ended", "returned"] and "cancelled" in events


def test_sockets_serve_as_well(loop: str) -> None:
    """One for each direction, as Node makes them, and one for both."""
    for shared in (False, True):
        ours, theirs = socket.socketpair()
        back, outgoing = (ours, theirs) if shared else socket.socketpair()
        with start(loop, stdin=theirs, stdout=outgoing) as child:
            theirs.close()
            outgoing.close()
            ours.sendall(lines(HELLO, PING, call(2, "echo")))
            with back.makefile("rb") as read:
                assert sorted(json.loads(read.readline())["id"] for _ in range(3)) == [0, 1, 2]
                ours.shutdown(socket.SHUT_WR)
                assert read.read() == b""
            ours.close()
            back.close()
            assert child.wait(timeout=30) == 0
            assert child.stderr is not None and logged(child.stderr.read())[-1] == "returned"


def test_files_serve_as_well(loop: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(lines(HELLO, PING, call(2, "big", size=1_000_000)))
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        with start(loop, stdin=source, stdout=sink) as child:
            child.communicate(timeout=30)
    found = answers((tmp_path / "out").read_bytes())
    assert {answer["id"] for answer in found} == {0, 1, 2} and child.returncode == 0


def test_no_input_at_all_is_an_orderly_end(loop: str) -> None:
    with start(loop, stdin=subprocess.DEVNULL) as child:
        out, err = child.communicate(timeout=30)
    assert (out, logged(err), child.returncode) == (b"", ["returned"], 0)


def test_five_million_bytes_of_nothing_do_not_stop_the_next_line(loop: str) -> None:
    with start(loop) as child:
        out, _ = child.communicate(b"x" * 5_000_000 + b"\n" + lines(PING), timeout=30)
    assert [answer.get("id") for answer in answers(out)] == [None, 1]
