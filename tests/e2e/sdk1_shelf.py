"""A server on the official SDK of the legacy era (1.x) whose resources can be subscribed to. Run with that SDK's
Python:

(nothing)        for stdio
PORT             for Streamable HTTP

Every URI of `memo://` is a resource. `touch` tells those who subscribed to `of` that `uri` was updated, which may be a
part of it; `flood` tells of `count` parts of it with long names; `watched` says what this session subscribed to;
`crash` ends the process.
"""

import asyncio
import os
import sys
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import uvicorn
from mcp.server.lowlevel import Server
from mcp.types import Resource, ServerCapabilities, TextContent, Tool
from pydantic import AnyUrl
from sdk1_transports import over_http, serve_stdio

WATCHED: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()  # session -> URI -> how often


class Shelf(Server[Any, Any]):
    def get_capabilities(self, *args: Any, **kwargs: Any) -> ServerCapabilities:
        """This SDK never says that one can subscribe."""
        capabilities = super().get_capabilities(*args, **kwargs)
        assert capabilities.resources is not None
        capabilities.resources.subscribe = True
        return capabilities


server = Shelf("shelf")


def mine() -> Counter[str]:
    return WATCHED.setdefault(server.request_context.session, Counter())


@server.list_resources()
async def resources() -> list[Resource]:
    return []


@server.read_resource()
async def read(uri: AnyUrl) -> str:
    return f"what {uri} says"


@server.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    if "refused" in str(uri):
        raise ValueError("not this one")
    mine()[str(uri)] += 1


@server.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None:
    mine()[str(uri)] -= 1


@server.list_tools()
async def tools() -> list[Tool]:
    return [Tool(name=name, inputSchema={"type": "object"}) for name in ("touch", "flood", "watched", "crash")]


async def tell(of: str, uri: str) -> None:
    for session, watched in list(WATCHED.items()):
        if watched[of] > 0:
            await session.send_resource_updated(AnyUrl(uri))


@server.call_tool()
async def call(name: str, arguments: dict[str, Any]) -> list[TextContent]:
    if name == "crash":
        os._exit(3)
    if name == "touch":
        await tell(arguments.get("of", arguments["uri"]), arguments["uri"])
    if name == "flood":
        for number in range(arguments["count"]):
            await tell(arguments["uri"], f"{arguments['uri']}/{'x' * 4000}{number}")
    counts = sorted(f"{uri} {count}" for uri, count in mine().items() if count)
    return [TextContent(type="text", text="\n".join(counts))]


if len(sys.argv) > 1:
    uvicorn.run(over_http(server), port=int(sys.argv[1]), log_level="warning", timeout_graceful_shutdown=0)
else:
    asyncio.run(serve_stdio(server))
