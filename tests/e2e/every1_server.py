"""A server of the matrix on the official SDK of the legacy era (1.x). Run with that SDK's Python and

JOURNAL            for stdio
JOURNAL PORT       for Streamable HTTP
JOURNAL PORT sse   for HTTP+SSE, the transport of 2024-11-05

`every2_server.py` has the same tools on the SDK 2.x. What becomes of a call stands in the file JOURNAL, a line of JSON
each: the call's `run`, `what` became of it, and which process `pid` says so.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.types import SamplingMessage, ServerCapabilities, TextContent, Tool
from pydantic import AnyUrl
from sdk1_transports import over_http, over_sse, serve_stdio

Json = dict[str, Any]
JOURNAL = Path(sys.argv[1])
ADDED = JOURNAL.with_name("added1")  # tools added at run time, in all processes
NAME: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WATCHED: dict[str, Any] = {}  # URI -> the session that subscribed to it


class EveryServer(Server[Any, Any]):
    def get_capabilities(self, *args: Any, **kwargs: Any) -> ServerCapabilities:
        """This SDK never says that one can subscribe."""
        capabilities = super().get_capabilities(NotificationOptions(tools_changed=True), {})
        assert capabilities.resources is not None
        capabilities.resources.subscribe = True
        return capabilities


server = EveryServer("every1")


def note(run: str, what: str) -> None:
    with JOURNAL.open("a") as file:
        file.write(json.dumps({"run": run, "what": what, "pid": os.getpid()}) + "\n")


async def ask(message: str) -> str:
    ctx = server.request_context
    answer = await ctx.session.elicit(message, NAME, ctx.request_id)
    return str((answer.content or {}).get("name", answer.action))


# ---------------------------------------------------------------- the tools


async def form(arguments: Json) -> str:
    # said when the question is out: who reads it can count on its being asked
    asyncio.get_running_loop().call_later(0.1, note, arguments["run"], "asked")
    return await ask("Name?")


async def twice(arguments: Json) -> str:
    return f"{await ask('First?')} {await ask('Last?')}"


async def three(arguments: Json) -> str:
    return " ".join(await asyncio.gather(ask("One?"), ask("Two?"), ask("Three?")))


async def page(arguments: Json) -> str:
    ctx = server.request_context
    return (await ctx.session.elicit_url("Pay", "https://pay.test/", "e1", ctx.request_id)).action


async def model(arguments: Json) -> str:
    ctx = server.request_context
    message = SamplingMessage(role="user", content=TextContent(type="text", text="2+2?"))
    answer = await ctx.session.create_message([message], max_tokens=9, related_request_id=ctx.request_id)
    return str(getattr(answer.content, "text", None))


async def roots(arguments: Json) -> str:
    """Over HTTP this SDK asks for roots on the stream of all calls."""
    return " ".join(str(root.uri) for root in (await server.request_context.session.list_roots()).roots)


async def count(arguments: Json) -> str:
    ctx = server.request_context
    token = ctx.meta.progressToken if ctx.meta else None
    for done in range(1, arguments["to"] + 1):
        if token is not None:
            await ctx.session.send_progress_notification(
                token, done, arguments["to"], related_request_id=str(ctx.request_id)
            )
        await asyncio.sleep(0.02)
    return "counted"


async def log(arguments: Json) -> str:
    ctx = server.request_context
    await ctx.session.send_log_message("info", "a line", related_request_id=ctx.request_id)
    return "logged"


async def add(arguments: Json) -> str:
    with ADDED.open("a") as file:
        file.write(f"added_{arguments['run']}\n")
    await server.request_context.session.send_tool_list_changed()
    return "added"


async def touch(arguments: Json) -> str:
    if arguments["uri"] in WATCHED:
        await WATCHED[arguments["uri"]].send_resource_updated(AnyUrl(arguments["uri"]))
    return "touched"


TOOLS: dict[str, Callable[[Json], Awaitable[str]]] = {
    tool.__name__: tool for tool in (form, twice, three, page, model, roots, count, log, add, touch)
}


# ---------------------------------------------------------------- the server


@server.list_tools()
async def tools() -> list[Tool]:
    added = ADDED.read_text().split() if ADDED.exists() else []
    return [Tool(name=name, inputSchema={"type": "object"}) for name in (*TOOLS, *added)]


@server.call_tool()
async def call(name: str, arguments: Json) -> list[TextContent]:
    run = arguments.get("run", "-")
    note(run, "called")
    try:
        return [TextContent(type="text", text=await TOOLS[name](arguments))]
    finally:
        note(run, "over")


@server.set_logging_level()
async def set_level(level: str) -> None:
    """All that is ever logged here is worth it."""


@server.list_resources()
async def resources() -> list[Any]:
    return []


@server.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    WATCHED[str(uri)] = server.request_context.session


@server.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None:
    WATCHED.pop(str(uri), None)


async def main(port: int | None, transport: str) -> None:
    note("-", "started")
    if port is None:
        await serve_stdio(server)
    else:
        app = over_sse(server) if transport == "sse" else over_http(server)
        await uvicorn.Server(
            uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=0)
        ).serve()  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[2]) if len(sys.argv) > 2 else None, sys.argv[-1]))
