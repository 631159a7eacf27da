"""A fast MCP server to measure against: fixed answers, the same in every run, as little work as Python allows.

Speaks both eras (legacy with sessions, 2026-07-28 stateless), one tool `echo`, no streams. Not a model of how
to write a server: it trusts its peer.

    python tests/bench/fast_server.py PORT [--stdlib-loop]
"""

import asyncio
import secrets
import sys
from typing import Any, cast

import httptools
import uvloop
from pydantic_core import from_json, to_json

VERSION = "io.modelcontextprotocol/protocolVersion"
INFO = {"name": "fast", "version": "1"}
TOOL = {
    "name": "echo",
    "description": "Says the same thing again.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}
CALLED = {"content": [{"type": "text", "text": "The quick brown fox jumps over the lazy dog. " * 4}], "isError": False}
MODERN = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
CACHED = {**MODERN, "ttlMs": 60_000, "cacheScope": "private"}

ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST, DELETE\r\ncontent-length: 0\r\n\r\n"
DELETED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"


def rest(result: dict[str, Any]) -> bytes:
    """What follows the id in a response."""
    return b',"result":' + to_json(result) + b"}"


def initialized(params: dict[str, Any]) -> dict[str, Any]:
    capabilities = {"tools": {"listChanged": True}}
    return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": INFO}


LEGACY_ANSWERS = {"tools/list": rest({"tools": [TOOL]}), "tools/call": rest(CALLED), "ping": rest({})}
MODERN_ANSWERS = {
    "server/discover": rest({**CACHED, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
    "tools/list": rest({**CACHED, "tools": [TOOL]}),
    "tools/call": rest({**MODERN, **CALLED}),
}
UNKNOWN = b',"error":{"code":-32601,"message":"Method not found"}}'


def answer(body: bytes) -> bytes:
    message = from_json(body)
    if "id" not in message or "method" not in message:
        return ACCEPTED
    method, params = message["method"], message.get("params", {})
    extra = b""
    if method == "initialize":
        tail = rest(initialized(params))
        extra = b"mcp-session-id: %b\r\n" % secrets.token_hex(16).encode()
    else:
        answers = MODERN_ANSWERS if VERSION in params.get("_meta", ()) else LEGACY_ANSWERS
        tail = answers.get(method, UNKNOWN)
    content = b'{"jsonrpc":"2.0","id":' + to_json(message["id"]) + tail
    return HEAD % (len(content), extra, content)


class Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        method = self.parser.get_method()
        if method == b"POST":
            self.transport.write(answer(self.body))
        else:
            self.transport.write(DELETED if method == b"DELETE" else NOT_ALLOWED)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    run = asyncio.run if "--stdlib-loop" in sys.argv else uvloop.run
    run(serve(int(sys.argv[1])))
