"""Servers that are slow, dead, not there, or talk and answer without measure, beside a healthy one: whoever calls that
one notices nothing, and what the others say is never heaped up."""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import ROOT, Sluice, sluice
from e2e.wire import Client
from peers.fleet import free_port, running, wait_for_port

BENCH = ROOT / "tests" / "bench"
CALLS = 200
ROOM = 64  # MiB that Sluice may grow by while gigabytes are on offer


@contextmanager
def bench_server(folder: Path, script: str, *arguments: str) -> Iterator[str]:
    port = free_port()
    command, log = [sys.executable, str(BENCH / script), str(port), *arguments], folder / f"{script}.log"
    with running(command, log, cwd=ROOT) as process:
        wait_for_port(port, process, log)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def trouble_going_on(process: Sluice, bad: str) -> Iterator[None]:
    """Clients that call each of the bad servers over and over; one of them never reads what it is told unasked."""
    over = threading.Event()

    def call(name: str) -> None:
        with ExitStack() as stack:
            client = stack.enter_context(httpx.Client(timeout=20))
            headers = session(client, process.url)
            if name == "flood":
                stack.enter_context(client.stream("GET", process.url, headers=headers))
            while not over.wait(0.01):
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": f"{name}__do_0"}}
                try:
                    with client.stream("POST", process.url, headers=headers, json=body) as answer:
                        for _ in answer.iter_bytes():
                            if over.is_set():
                                break
                except httpx.TransportError:
                    pass  # one that does not read is hung up on

    threads = [threading.Thread(target=call, args=(name,)) for name in ("slow", "dead", "gone", "flood", "huge")]
    httpx.post(f"{bad}/loud", timeout=60).raise_for_status()
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        httpx.post(f"{bad}/quiet", timeout=60).raise_for_status()
        for thread in threads:
            thread.join(30)


def session(client: httpx.Client, url: str) -> dict[str, str]:
    headers = {"Accept": "application/json, text/event-stream"}
    hello: dict[str, Any] = {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "patient", "version": "1"},
    }  # fmt: skip
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    answer = client.post(url, headers=headers, json=message).raise_for_status()
    headers |= {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
    client.post(url, headers=headers, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    return headers


def resident(process: Sluice) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_a_healthy_server_is_called_as_if_the_others_were(tmp_path: Path) -> None:
    with (
        bench_server(tmp_path, "many_server.py", "1", "0") as good,
        bench_server(tmp_path, "trouble_server.py") as bad,
    ):
        troubled = {name: {"url": f"{bad}/{name}", "required": False, "timeout": "3s", "max_time": "6s"}
                    for name in ("slow", "dead", "flood", "huge")}  # fmt: skip
        gone = {"url": f"http://127.0.0.1:{free_port()}/mcp", "required": False}
        servers = {"good": {"url": f"{good}/good/mcp"}, "gone": gone, **troubled}
        with sluice({"servers": servers}, tmp_path) as process:
            async with Client(process.url, modern=True, connections=1) as client:
                before = resident(process)
                with trouble_going_on(process, bad):
                    for number in range(CALLS):
                        answer = await client.call("good__do_0", {"text": f"call {number}"})
                        assert "quick brown fox" in answer.result()["content"][0]["text"]
                    assert resident(process) - before < ROOM
                assert process.get("/readyz")[0] == 200
