"""The Python SDK 2.x as a client that subscribes to resources: `watch2.py URL modern|legacy`. See `watching.py`."""

import sys
import warnings
from typing import Any

import anyio
import mcp_types as types
import watching
from anyio.abc import TaskGroup
from mcp.client import session
from mcp.client.client import Client
from mcp.client.subscriptions import ResourceUpdated, SubscriptionLost
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError


class Legacy:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def subscribe(self, uri: str) -> None:
        await self._client.subscribe_resource(uri)

    async def unsubscribe(self, uri: str) -> None:
        await self._client.unsubscribe_resource(uri)

    async def call(self, name: str, arguments: dict[str, Any]) -> list[Any]:
        result = await self._client.call_tool(name, arguments)
        return [result.is_error, "".join(getattr(block, "text", "") for block in result.content)]


class Modern(Legacy):
    """A stream for each resource."""

    def __init__(self, client: Client, group: TaskGroup) -> None:
        super().__init__(client)
        self._group = group
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def subscribe(self, uri: str) -> list[str]:
        honoured: list[str] = await self._group.start(self._listen, uri)
        return honoured

    async def unsubscribe(self, uri: str) -> None:
        self._scopes.pop(uri).cancel()

    async def _listen(self, uri: str, *, task_status: Any) -> None:
        with anyio.CancelScope() as self._scopes[uri]:
            async with self._client.listen(resource_subscriptions=[uri]) as events:
                task_status.started(list(events.honored.resource_subscriptions or ()))
                async for event in events:
                    if isinstance(event, ResourceUpdated):
                        watching.updated(event.uri)


async def on_message(message: Any) -> None:
    if isinstance(message, types.ResourceUpdatedNotification) and sys.argv[2] == "legacy":
        watching.updated(message.params.uri)


async def main() -> None:
    mode: Any = "auto" if sys.argv[2] == "modern" else "legacy"
    async with anyio.create_task_group() as group:
        async with Client(sys.argv[1], mode=mode, message_handler=on_message) as client:
            resources = client.server_capabilities.resources
            watching.say(ready=client.protocol_version, subscribe=bool(resources and resources.subscribe))
            driver = Modern(client, group) if sys.argv[2] == "modern" else Legacy(client)
            await watching.obey(driver, (MCPError, SubscriptionLost), lambda error: getattr(error, "code", 0))
        group.cancel_scope.cancel()


warnings.simplefilter("ignore", MCPDeprecationWarning)
# The SDK takes who has not answered its probe in ten seconds for a legacy server; on a busy machine that says something
# of the machine, not of the server.
session.DISCOVER_TIMEOUT_SECONDS = 60.0
anyio.run(main)
