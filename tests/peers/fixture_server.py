"""Our own everything-server: all fixtures of the official conformance suite, and tools for our own tests.

    .peers/mcp2/bin/python tests/peers/fixture_server.py                  stdio
    .peers/mcp2/bin/python tests/peers/fixture_server.py --port 0         Streamable HTTP; prints its URL

Serves every revision, as the peer wishes. Here is only the assembly; the fixtures are in `fixture/`.
"""

import argparse
import asyncio
import logging
import socket
import sys
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from fixture import plain, rounds, workshop  # importing them is what registers their tools and prompts
from fixture.kit import PROMPTS, TOOLS, Visit, play, text
from fixture.lists import LISTENERS, Context
from fixture.shelf import TEMPLATES, Shelf, complete
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

FIXTURES = (plain, rounds, workshop)
CACHED = {"tools/list": CacheHint(ttl_ms=1000), "resources/list": CacheHint(ttl_ms=5000)}


class FixtureServer(Server[Any]):
    """Lists come from the registries; unlike the SDK's default, legacy clients are promised changes too."""

    def __init__(self, name: str, shelf: Shelf) -> None:
        super().__init__(
            name,
            version="1.0.0",
            instructions=f"{name}: one of everything, for tests.",
            cache_hints=CACHED,
            get_tool_input_schema=lambda tool: TOOLS[tool].definition.input_schema if tool in TOOLS else None,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=LISTENERS.subscribe,
            on_unsubscribe_resource=LISTENERS.unsubscribe,
            on_subscriptions_listen=ListenHandler(LISTENERS.bus),
            on_completion=complete,
        )
        self.shelf = shelf
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self.set_level)
        self.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=name))
        self.middleware.append(LISTENERS.middleware)

    def get_capabilities(
        self, notification_options: NotificationOptions | None = None, *args: Any, **kwargs: Any
    ) -> types.ServerCapabilities:
        return super().get_capabilities(NotificationOptions(True, True, True), *args, **kwargs)

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        every = [tool.definition for tool in TOOLS.values()]
        begin, end, more = self.shelf.window(params and params.cursor, len(every))
        return types.ListToolsResult(tools=every[begin:end], next_cursor=more)

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        if params.name not in TOOLS:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        visit = Visit(ctx, params.arguments or {}, dict(params.input_responses or {}), params.request_state)
        answer = await play(TOOLS[params.name].run, visit)
        if isinstance(answer, str):
            answer = [text(answer)]
        return types.CallToolResult(content=answer) if isinstance(answer, list) else answer

    async def list_prompts(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        every = [prompt.definition for prompt in PROMPTS.values()]
        begin, end, more = self.shelf.window(params and params.cursor, len(every))
        return types.ListPromptsResult(prompts=every[begin:end], next_cursor=more)

    async def get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> Any:
        if params.name not in PROMPTS:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown prompt: {params.name}")
        prompt = PROMPTS[params.name]
        visit = Visit(ctx, dict(params.arguments or {}), dict(params.input_responses or {}), params.request_state)
        answer = await play(prompt.run, visit)
        if not isinstance(answer, list):
            return answer
        return types.GetPromptResult(description=prompt.definition.description, messages=answer)

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return self.shelf.resources(params and params.cursor)

    async def list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        begin, end, more = self.shelf.window(params and params.cursor, len(TEMPLATES))
        return types.ListResourceTemplatesResult(resource_templates=TEMPLATES[begin:end], next_cursor=more)

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return self.shelf.read(str(params.uri), ctx.protocol_version)

    async def set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return types.EmptyResult()


class RecentEvents(EventStore):
    """The last events of all streams, so that a client may come back for what it missed."""

    def __init__(self, length: int = 1000) -> None:
        self._events: deque[tuple[int, str, types.JSONRPCMessage | None]] = deque(maxlen=length)
        self._count = 0

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self._count += 1
        self._events.append((self._count, stream_id, message))
        return str(self._count)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id)
        stream = next((stream for number, stream, _ in self._events if number == last), None)
        for number, of, message in list(self._events):
            if of == stream and number > last and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


async def serve_stdio(server: FixtureServer) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(server: FixtureServer, port: int, resumable: bool) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    events = RecentEvents() if resumable else None
    app = server.streamable_http_app(event_store=events, retry_interval=100, session_idle_timeout=None)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="serve Streamable HTTP on this port; 0 takes a free one")
    parser.add_argument("--name", default="fixture", help="the server's own name")
    parser.add_argument("--resources", type=int, default=0, help="this many numbered resources more")
    parser.add_argument("--page", type=int, default=1000, help="items on a page of a list")
    parser.add_argument("--journal", type=Path, help="append what becomes of each run of `slow` to this file")
    parser.add_argument("--resumable", action="store_true", help="keep events for clients that come back (legacy HTTP)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if options.journal:
        workshop.JOURNAL.append(options.journal)
    server = FixtureServer(options.name, Shelf(options.resources, options.page))
    if options.port is None:
        asyncio.run(serve_stdio(server))
    else:
        asyncio.run(serve_http(server, options.port, options.resumable))


if __name__ == "__main__":
    main()
