"""What one HTTP exchange costs its client, in CPU microseconds: a bare asyncio + httptools client (the floor),
`HttpClient` as the hot path calls it, and plain httpx.

    python tests/bench/client_cost.py [CALLS]
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import httptools
import httpx
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2] / "proxy"))

from sluicegate.http.client.pool import HttpClient

PORT = 18_421
URL = httpx.URL(f"http://127.0.0.1:{PORT}/mcp")
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-session-id", b"0123456789abcdef0123456789abcdef"),
    (b"mcp-protocol-version", b"2025-11-25"),
    (b"authorization", b"Bearer 0123456789abcdef"),
]
HEADERS = httpx.Headers(_HEADERS)
BODY = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}'


class Bare(asyncio.Protocol):
    """The least that can be done: one connection, no framing decisions, no errors."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        head = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n" % len(BODY)
        self.request = head + b"".join(b"%b: %b\r\n" % header for header in HEADERS.raw) + b"\r\n" + BODY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body = body

    def on_message_complete(self) -> None:
        self.waiter.set_result(self.body)

    async def call(self) -> bytes:
        self.waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport.write(self.request)
        return await self.waiter


async def cost(name: str, call: Callable[[int], Awaitable[bytes | None]], calls: int) -> None:
    figures = []
    for concurrency in (1, 16):

        async def worker(number: int, share: int = calls // concurrency) -> None:
            for _ in range(share):
                content = await call(number)
                assert content is not None and b"quick brown fox" in content

        best = float("inf")
        for _ in range(4):  # the first round warms up
            start = time.process_time()
            async with asyncio.TaskGroup() as group:
                for number in range(concurrency):
                    group.create_task(worker(number))
            best = min(best, (time.process_time() - start) / calls)
        figures.append(best * 1e6)
    print(f"{name:44s} {figures[0]:10.1f} {figures[1]:10.1f}")


async def main(calls: int) -> None:
    print(f"{'CPU us per exchange, concurrency':44s} {1:10d} {16:10d}")
    loop = asyncio.get_running_loop()
    bare = [(await loop.create_connection(Bare, "127.0.0.1", PORT))[1] for _ in range(16)]
    await cost("asyncio + httptools, bare", lambda number: bare[number].call(), calls)

    client = HttpClient()

    async def exchange(_: int) -> bytes | None:
        reply = await client.exchange(URL, _HEADERS, BODY)
        assert reply.status == 200 and b"content-type" in reply.headers
        return reply.content

    await cost("HttpClient.exchange", exchange, calls)
    async with httpx.AsyncClient() as plain:

        async def httpx_plain(_: int) -> bytes:
            return (await plain.post(URL, headers=HEADERS, content=BODY)).content

        await cost("httpx.AsyncClient", httpx_plain, max(calls // 20, 1))


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {1})
        server = subprocess.Popen([sys.executable, str(Path(__file__).with_name("fast_server.py")), str(PORT)])
        os.sched_setaffinity(0, {0})
    else:
        server = subprocess.Popen([sys.executable, str(Path(__file__).with_name("fast_server.py")), str(PORT)])
    try:
        time.sleep(0.7)
        uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
    finally:
        server.terminate()
        server.wait()
