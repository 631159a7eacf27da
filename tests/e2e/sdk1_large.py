"""A server on the official SDK of the legacy era (1.x) whose answers are as large as is asked. Run with that SDK's
Python and

(nothing)    for stdio
PORT         for Streamable HTTP with event streams
PORT json    for Streamable HTTP without
PORT sse     for HTTP+SSE, the transport of 2024-11-05

`text` answers with lines of 100 characters; `values` with a list of numbers, as text and as structuredContent;
`blocks` with a text, a picture and a resource; `strict` has an outputSchema. Each resource `big:SIZE` is as long as it
says.
"""

import json
import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.types import EmbeddedResource, ImageContent, TextContent, TextResourceContents, Tool
from pydantic import AnyUrl
from sdk1_transports import over_http, over_sse, serve_stdio

LINE = 100
OBJECT: dict[str, Any] = {"type": "object"}
NUMBERS = {**OBJECT, "properties": {"numbers": {"type": "array"}}, "required": ["numbers"]}
server: Server[Any, Any] = Server("large")


def lines(size: int) -> str:
    return "".join(f"{number:0{LINE - 2}}\u00e9\n" for number in range(size // LINE))


@server.list_tools()
async def tools() -> list[Tool]:
    plain = [Tool(name=name, inputSchema=OBJECT) for name in ("text", "values", "blocks", "asked")]
    return [*plain, Tool(name="strict", inputSchema=OBJECT, outputSchema=NUMBERS)]


@server.call_tool()
async def call(name: str, arguments: dict[str, Any]) -> Any:
    size = arguments.get("size", 0)
    if name in ("values", "strict"):
        numbers = {"numbers": [[] for _ in range(size)]}
        return [TextContent(type="text", text=json.dumps(numbers))], numbers
    text = TextContent(type="text", text=lines(size))
    if name != "blocks":
        return [text]
    inside = TextResourceContents(uri=AnyUrl("x:y"), mimeType="text/csv", text="a,b\n" * 10)
    return [text, ImageContent(type="image", data="AA==", mimeType="image/png"),
            EmbeddedResource(type="resource", resource=inside)]  # fmt: skip


@server.list_resources()
async def resources() -> list[Any]:
    return []


@server.read_resource()
async def read(uri: AnyUrl) -> str:
    return lines(int(str(uri).partition(":")[2]))


if len(sys.argv) == 1:
    anyio.run(serve_stdio, server)
else:
    app = over_sse(server) if sys.argv[-1] == "sse" else over_http(server, sys.argv[-1] == "json")
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", timeout_graceful_shutdown=0)
