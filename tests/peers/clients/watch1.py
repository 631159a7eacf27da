"""The Python SDK 1.x as a client that subscribes to resources. See `watching.py`."""

import sys
from typing import Any

import anyio
import watching
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl


class Driver:
    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def subscribe(self, uri: str) -> None:
        await self._session.subscribe_resource(AnyUrl(uri))

    async def unsubscribe(self, uri: str) -> None:
        await self._session.unsubscribe_resource(AnyUrl(uri))

    async def call(self, name: str, arguments: dict[str, Any]) -> list[Any]:
        result = await self._session.call_tool(name, arguments)
        return [result.isError, "".join(getattr(block, "text", "") for block in result.content)]


async def on_message(message: Any) -> None:
    root = getattr(message, "root", None)
    if isinstance(root, types.ResourceUpdatedNotification):
        watching.updated(root.params.uri)


async def main() -> None:
    async with streamablehttp_client(sys.argv[1]) as (read, write, _):
        async with ClientSession(read, write, message_handler=on_message) as session:
            hello = await session.initialize()
            resources = hello.capabilities.resources
            watching.say(ready=hello.protocolVersion, subscribe=bool(resources and resources.subscribe))
            await watching.obey(Driver(session), (McpError,), lambda error: error.error.code)


anyio.run(main)
