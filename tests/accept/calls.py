"""Calls of one tool over HTTP, as fast as they are answered or at a rate. Prints one line of JSON with the latency.

    python tests/accept/calls.py URL KEY TOOL --connections 16 --seconds 8 [--rate 200]

At a rate, latency is counted from when a call was due: a pause of Sluice is paid by all calls that it holds up.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "accept", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Connection(asyncio.Protocol):
    """One call at a time. `answered` is awaited for the status of the next answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        status, self.parser = self.parser.get_status_code(), httptools.HttpResponseParser(self)
        if not self.answered.done():
            self.answered.set_result(status)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_result(0)

    async def call(self, request: bytes) -> int:
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.answered


def request(url: str, key: str, tool: str) -> bytes:
    params: dict[str, Any] = {"name": tool, "arguments": {"text": "hello"}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    at = urlsplit(url)
    head = (
        f"POST {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def main(told: argparse.Namespace) -> None:
    at, wanted = urlsplit(told.url), request(told.url, told.key, told.tool)
    loop, taken, bad = asyncio.get_running_loop(), list[float](), 0
    began = time.perf_counter()
    until, due = began + told.seconds, iter(range(sys.maxsize))

    async def one() -> None:
        nonlocal bad
        _, connection = await loop.create_connection(Connection, at.hostname, at.port)
        while True:
            start = time.perf_counter()
            if told.rate:
                start = began + next(due) / told.rate
                await asyncio.sleep(start - time.perf_counter())
            if start >= until:
                break
            status = await connection.call(wanted)
            bad += status != 200
            taken.append(time.perf_counter() - start)
            if connection.transport.is_closing():
                _, connection = await loop.create_connection(Connection, at.hostname, at.port)
        connection.transport.close()

    await asyncio.gather(*(one() for _ in range(told.connections)))
    taken.sort()
    figures = {name: taken[min(len(taken) - 1, int(len(taken) * part))] * 1e3 for name, part in PARTS.items()}
    print(json.dumps({"calls": len(taken), "bad": bad, "seconds": time.perf_counter() - began, **figures}))


PARTS = {"p50": 0.5, "p99": 0.99}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "key", "tool"):
        parser.add_argument(name)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument(
        "--rate", type=float, default=0, help="calls a second of all connections; 0: as they are answered"
    )
    asyncio.run(main(parser.parse_args()))
