"""How a server on the official SDK of the legacy era (1.x) is served, for the scripts beside this one. They run with
that SDK's Python."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route


async def serve_stdio(server: Server[Any, Any]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def over_http(server: Server[Any, Any], is_json: bool = False) -> Starlette:
    """Streamable HTTP at /mcp; `is_json`: its answers are no event streams."""
    manager = StreamableHTTPSessionManager(server, json_response=is_json)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    return Starlette(routes=[Mount("/mcp", manager.handle_request)], lifespan=life)


def over_sse(server: Server[Any, Any]) -> Starlette:
    """HTTP+SSE, the transport of 2024-11-05, at /sse."""
    transport = SseServerTransport("/messages/")

    async def connect(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(streams[0], streams[1], server.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", transport.handle_post_message)])
