"""Servers that give trouble, in one process: `/slow` answers a call after two seconds, `/dead` accepts and never
answers anything, `/flood` sends notifications without end during a call, as fast as they are read, and beside calls
from `POST /loud` to `POST /quiet`; `/huge` answers with a megabyte, `/shape/N/SIZE/NAME` with so many bytes of a shape.
In the legacy era only.

    python tests/bench/trouble_server.py PORT
"""

import asyncio
import sys
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import uvloop
from fast_server import HEAD, NOT_ALLOWED, UNKNOWN, Peer, initialized, rest
from many_server import STREAM, TOLD, event, tool
from pydantic_core import from_json, to_json
from shapes import SHAPES

SLOW = 2.0
BURST = 100
NOISE = event("notifications/message", {"level": "info", "logger": "flood", "data": "The quick brown fox. " * 10})
CALLED: dict[str, Any] = {"content": [{"type": "text", "text": "late"}], "isError": False}
HUGE = {"content": [{"type": "text", "text": "x" * 1_000_000}], "isError": False}
CAPABILITIES = {"tools": {"listChanged": True}, "logging": {}}


@lru_cache
def shaped(url: bytes) -> bytes:
    """What follows the id in a response whose result has such a value; it need not be JSON."""
    size, _, name = url.decode().removeprefix("/shape/").partition("/")[2].partition("/")
    value = SHAPES[unquote(name)](int(size))
    return f',"result":{{"content":[],"structuredContent":{{"value":{value}}}}}}}'.encode()


class Trouble(Peer):
    loud = asyncio.Event()

    def on_url(self, url: bytes) -> None:
        self.url = url

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._flood: asyncio.Task[None] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        self._may_write.set()
        if self._flood is not None:
            self._flood.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def on_message_complete(self) -> None:
        method = self.parser.get_method()
        if self.url == b"/dead":
            return
        if self.url in (b"/loud", b"/quiet"):
            (self.loud.set if self.url == b"/loud" else self.loud.clear)()
            self.transport.write(TOLD)
        elif method == b"GET" and self.url == b"/flood":
            self._stream_noise(self.loud)
        elif method == b"GET":
            self.transport.write(NOT_ALLOWED)
        elif method == b"POST":
            self._answer(from_json(self.body))
        else:
            self.transport.write(TOLD)

    def _answer(self, message: dict[str, Any]) -> None:
        if "id" not in message or "method" not in message:
            return self.transport.write(TOLD)
        if message["method"] != "tools/call":
            return self._reply(message, self._told(message["method"], message.get("params", {})))
        if self.url == b"/flood":
            always = asyncio.Event()
            always.set()
            self._stream_noise(always)
        elif self.url == b"/slow":
            asyncio.get_running_loop().call_later(SLOW, self._reply, message, CALLED)
        elif self.url.startswith(b"/shape/"):
            self._send(message, shaped(self.url))
        else:
            self._reply(message, HUGE)

    def _told(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "initialize":
            return {**initialized(params), "capabilities": CAPABILITIES}
        return {"tools": [tool(0, 1)]} if method == "tools/list" else {} if method == "ping" else None

    def _reply(self, message: dict[str, Any], result: dict[str, Any] | None) -> None:
        self._send(message, UNKNOWN if result is None else rest(result))

    def _send(self, message: dict[str, Any], tail: bytes) -> None:
        content = b'{"jsonrpc":"2.0","id":' + to_json(message["id"]) + tail
        self.transport.write(HEAD % (len(content), b"", content))

    def _stream_noise(self, may: asyncio.Event) -> None:
        self.transport.write(STREAM)
        self._flood = asyncio.get_running_loop().create_task(self._make_noise(may))

    async def _make_noise(self, may: asyncio.Event) -> None:
        """As fast as whoever listens reads it."""
        while not self.transport.is_closing():
            await may.wait()
            await self._may_write.wait()
            self.transport.write(NOISE * BURST)
            await asyncio.sleep(0)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Trouble, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
