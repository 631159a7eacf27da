"""A fast MCP server to measure against: fixed answers, the same in every run, as little work as Python allows.

Speaks both eras (legacy with sessions, 2026-07-28 stateless), over HTTP or on stdin and stdout. Its tools differ in
how large their result is; `echo_sse` answers with an event stream over HTTP. Not a model of how to write a server: it
trusts its peer.

    python tests/bench/fast_server.py PORT|--stdio [--stdlib-loop]
"""

import asyncio
import os
import secrets
import sys
from typing import Any, cast

import httptools
import uvloop
from pydantic_core import from_json, to_json

VERSION = "io.modelcontextprotocol/protocolVersion"
INFO = {"name": "fast", "version": "1"}
FOX = "The quick brown fox jumps over the lazy dog. "
LINE = 'The quick brown fox jumps over the "lazy" dog.\n'  # what is large is text with lines and quotes


def lines(size: int) -> str:
    return (LINE * (size // len(LINE) + 1))[:size]


STREAMED = "echo_sse"
TEXTS = {"echo": FOX * 4, STREAMED: FOX * 4, **{f"echo_{kib}k": lines(kib * 1024) for kib in (1, 28, 1024)}}
"""What each tool says, whatever it is told."""


def tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    about = {"description": "Says the same thing again.", "annotations": {"readOnlyHint": True}}
    return {"name": name, **about, "inputSchema": schema}


def said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False}


TOOLS = [tool(name) for name in TEXTS]
CALLED = said(TEXTS["echo"])
MODERN = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
CACHED = {**MODERN, "ttlMs": 60_000, "cacheScope": "private"}

ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST, DELETE\r\ncontent-length: 0\r\n\r\n"
DELETED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"


def rest(result: dict[str, Any]) -> bytes:
    """What follows the id in a response."""
    return b',"result":' + to_json(result) + b"}"


def initialized(params: dict[str, Any]) -> dict[str, Any]:
    capabilities = {"tools": {"listChanged": True}}
    return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": INFO}


# By method, and by name where a tool is called.
LEGACY_ANSWERS = {
    "tools/list": rest({"tools": TOOLS}),
    "ping": rest({}),
    **{name: rest(said(text)) for name, text in TEXTS.items()},
}
MODERN_ANSWERS = {
    "server/discover": rest({**CACHED, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
    "tools/list": rest({**CACHED, "tools": TOOLS}),
    **{name: rest({**MODERN, **said(text)}) for name, text in TEXTS.items()},
}
UNKNOWN = b',"error":{"code":-32601,"message":"Method not found"}}'


def respond(message: dict[str, Any]) -> bytes | None:
    """The response to a message; None to one that has none."""
    if "id" not in message or "method" not in message:
        return None
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        tail = rest(initialized(params))
    else:
        answers = MODERN_ANSWERS if VERSION in params.get("_meta", ()) else LEGACY_ANSWERS
        tail = answers.get(params["name"] if method == "tools/call" else method, UNKNOWN)
    return b'{"jsonrpc":"2.0","id":' + to_json(message["id"]) + tail


def answer(body: bytes) -> list[bytes]:
    """The HTTP answer to a message, in the pieces that are sent one after the other."""
    message = from_json(body)
    content = respond(message)
    if content is None:
        return [ACCEPTED]
    if message["method"] == "tools/call" and message["params"]["name"] == STREAMED:
        # As servers on the official SDKs send it: the head, the event and the end of the stream arrive apart.
        event = b"event: message\r\ndata: %b\r\n\r\n" % content
        return [STREAM, b"%x\r\n%b\r\n" % (len(event), event), b"0\r\n\r\n"]
    extra = b"mcp-session-id: %b\r\n" % secrets.token_hex(16).encode() if message["method"] == "initialize" else b""
    return [HEAD % (len(content), extra, content)]


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
            self.send(answer(self.body))
        else:
            self.transport.write(DELETED if method == b"DELETE" else NOT_ALLOWED)

    def send(self, pieces: list[bytes]) -> None:
        """One piece in each turn of the loop, so that each is a packet of its own."""
        self.transport.write(pieces[0])
        if len(pieces) > 1:
            asyncio.get_running_loop().call_soon(self.send, pieces[1:])


def serve_stdio() -> None:
    unread = b""
    while data := os.read(0, 65536):
        *bodies, unread = (unread + data).split(b"\n")
        found = [content for body in bodies if (content := respond(from_json(body))) is not None]
        output = b"".join(content + b"\n" for content in found)
        while output:
            output = output[os.write(1, output) :]


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    run = asyncio.run if "--stdlib-loop" in sys.argv else uvloop.run
    if "--stdio" in sys.argv:
        serve_stdio()
    else:
        run(serve(int(sys.argv[1])))
