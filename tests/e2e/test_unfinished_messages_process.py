"""A server that leaves an unfinished message on each of many streams, behind a real Sluice: memory stays bounded."""

import json
import sys
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e.sluice_process import ROOT, Sluice, sluice
from e2e.wire import Client
from peers.fleet import free_port, running, wait_for_port
from waiting import until

SESSIONS, SIZE = 32, 2_000_000
MOST = 8  # of these messages that may wait, as `limits.max_result` is 2 MiB
ROOM = 55  # MiB; without a bound it is 75


def resident(process: Sluice) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_what_a_server_leaves_unfinished_on_its_streams_is_bounded_together(
    tmp_path: Path, transport: str
) -> None:
    port, log = free_port(), tmp_path / "server.log"
    base = f"http://127.0.0.1:{port}"

    def closed() -> int:
        with urllib.request.urlopen(f"{base}/state", timeout=20) as answer:
            state: dict[str, Any] = json.load(answer)
        return int(state["opened"] - state["open"])

    server = {"url": f"{base}/{'sse' if transport == 'sse' else 'mcp'}", "transport": transport, "era": "legacy"}
    config = {"servers": {"s": server}, "limits": {"max_result": "2MiB"}}
    with running([sys.executable, "tests/unfinished_server.py", str(port)], log, cwd=ROOT) as hostile:
        wait_for_port(port, hostile, log)
        with sluice(config, tmp_path) as process:
            async with AsyncExitStack() as stack:
                clients = [Client(process.url, modern=False, connections=1) for _ in range(SESSIONS)]
                for client in clients:
                    await stack.enter_async_context(client)
                    assert "said" in str((await client.call("s__say", {})).result())
                before, were_closed = resident(process), closed()
                for client in clients:
                    assert "said" in str((await client.call("s__leave", {"size": SIZE, "where": "get"})).result())
                await until(lambda: closed() - were_closed >= SESSIONS - MOST)
                assert resident(process) - before < ROOM
                assert "more than it may leave unfinished on all its streams together" in process.log()
                for client in clients[:3] if transport == "http" else ():  # after so many ends the others wait a while
                    assert "said" in str((await client.call("s__say", {})).result())
