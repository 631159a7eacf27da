"""Many MCP servers in one process, to measure how Sluice grows: every path `/NAME` is a server of its own.

Each has `tools` tools and `resources` resources in pages of 100, in both eras, and says by itself that its tools
changed: `POST /change` renews the tools of all and tells every open stream. A path `/hang...` never answers. Not a
model of how to write a server: it trusts its peer.

    python tests/bench/many_server.py PORT TOOLS RESOURCES
"""

import asyncio
import sys
from typing import Any

import uvloop
from fast_server import CALLED, DELETED, HEAD, MODERN, UNKNOWN, VERSION, Peer, initialized, rest
from pydantic_core import from_json, to_json

PAGE = 100
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {}}
KNOWN = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "ttlMs": 60_000, "cacheScope": "private"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOLD = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


def event(method: str, params: dict[str, Any]) -> bytes:
    data = b"data: " + to_json({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def tool(number: int, change: int) -> dict[str, Any]:
    """As long as tools are: about 500 bytes."""
    text = {"type": "string", "description": "What it is about, in a sentence that a model reads."}
    schema = {"type": "object", "properties": {"text": text, "title": text, "note": text}, "required": ["text"]}
    about = f"Does number {number} of what this server does, for the {change}. time."
    return {"name": f"do_{number}", "description": about, "inputSchema": schema}


class Servers:
    """What all of them are made of. `streams` are the open ones, each with the id of its subscription."""

    def __init__(self, tools: int, resources: int) -> None:
        self.resources = resources
        self.streams: dict[asyncio.Transport, dict[str, Any]] = {}
        self._tools, self._changes = tools, 0
        self.change()

    def change(self) -> None:
        self._changes += 1
        self.tools = {"tools": [tool(number, self._changes) for number in range(self._tools)]}
        for transport, meta in self.streams.items():
            transport.write(event("notifications/tools/list_changed", meta))

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        match method:
            case "initialize":
                return {**initialized(params), "capabilities": CAPABILITIES}
            case "server/discover":
                return KNOWN
            case "tools/list":
                return self.tools
            case "tools/call":
                return CALLED
            case "resources/list":
                return self._page(int(params.get("cursor", 0)))
            case "ping":
                return {}
        return None

    def _page(self, start: int) -> dict[str, Any]:
        end = min(start + PAGE, self.resources)
        found = [{"uri": f"file:///{number}", "name": f"file {number}"} for number in range(start, end)]
        return {"resources": found} | ({"nextCursor": str(end)} if end < self.resources else {})


class Many(Peer):
    servers: Servers

    def on_url(self, url: bytes) -> None:
        self.url = url

    def connection_lost(self, error: Exception | None) -> None:
        self.servers.streams.pop(self.transport, None)

    def on_message_complete(self) -> None:
        if self.url.startswith(b"/hang"):
            return
        method = self.parser.get_method()
        if self.url == b"/change":
            self.servers.change()
            self.transport.write(TOLD)
        elif method == b"GET":
            self.transport.write(STREAM)
            self.servers.streams[self.transport] = {}
        else:
            self.transport.write(self.answer() if method == b"POST" else DELETED)

    def answer(self) -> bytes:
        message = from_json(self.body)
        if "id" not in message or "method" not in message:
            return TOLD
        method, params = message["method"], message.get("params", {})
        if method == "subscriptions/listen":
            meta = {"_meta": {SUBSCRIPTION: message["id"]}}
            self.servers.streams[self.transport] = meta
            granted = {"notifications": params["notifications"], **meta}
            return STREAM + event("notifications/subscriptions/acknowledged", granted)
        result = self.servers.result(method, params)
        if result is None:
            tail = UNKNOWN
        else:
            tail = rest({**MODERN, **result} if VERSION in params.get("_meta", ()) else result)
        extra = b"mcp-session-id: %d\r\n" % id(message) if method == "initialize" else b""
        content = b'{"jsonrpc":"2.0","id":' + to_json(message["id"]) + tail
        return HEAD % (len(content), extra, content)


async def serve(port: int, tools: int, resources: int) -> None:
    Many.servers = Servers(tools, resources)
    server = await asyncio.get_running_loop().create_server(Many, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:4])))
