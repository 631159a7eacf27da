"""The Python SDK 1.x as a client in the matrix: legacy only. See `every_cell.py`."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import every_cell
from every_cell import MODEL_SAYS, ROOT, Json, Person
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.message import SessionMessage
from pydantic import AnyUrl, FileUrl


class Sdk1:
    modern = False

    def __init__(self, person: Person, write: Any) -> None:
        self.person, self._write = person, write
        self.session: ClientSession

    async def call(self, tool: str, arguments: Json, progress: list[str] | None = None) -> str:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            if progress is not None:
                progress.append(f"{done:g}/{total:g}")

        try:
            result = await self.session.call_tool(
                tool, arguments, progress_callback=on_progress if progress is not None else None
            )
        except McpError as error:
            return f"error {error.error.code} {error.error.message}"
        text = "".join(getattr(block, "text", "") for block in result.content)
        reason = (result.meta or {}).get("dev.sluice/reason", text)
        return f"failed {reason}" if result.isError else text

    async def call_and_cancel(self, tool: str, arguments: Json, when: anyio.Event) -> None:
        """This SDK tells the server nothing when its caller gives up; an application has to."""
        number = self.session._request_id

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            when.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.session.call_tool, tool, arguments, timedelta(60), on_progress)
            await when.wait()
            params = types.CancelledNotificationParams(requestId=number, reason="enough")
            cancelled = types.CancelledNotification(method="notifications/cancelled", params=params)
            await self.session.send_notification(types.ClientNotification(cancelled))
            tasks.cancel_scope.cancel()

    async def tools(self) -> list[str]:
        names: list[str] = []
        cursor = None
        while True:
            page = await self.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            names += [tool.name for tool in page.tools]
            if (cursor := page.nextCursor) is None:
                return names

    async def wants_logs(self) -> None:
        await self.session.set_logging_level("info")

    @asynccontextmanager
    async def watching(self, uri: str) -> AsyncIterator[None]:
        await self.session.subscribe_resource(AnyUrl(uri))
        yield
        await self.session.unsubscribe_resource(AnyUrl(uri))

    async def respond(self, id: Any, name: str) -> None:
        result = {"action": "accept", "content": {"name": name}}
        response = types.JSONRPCResponse(jsonrpc="2.0", id=id, result=result)
        await self._write.send(SessionMessage(types.JSONRPCMessage(response)))

    async def ask(self, tool: str, arguments: Json) -> tuple[list[str], str | None]:
        raise NotImplementedError("a legacy client has no rounds")

    async def retry(self, tool: str, arguments: Json, keys: list[str], state: str | None) -> str:
        raise NotImplementedError("a legacy client has no rounds")

    # ------------------------------------------------------------ what comes without being called

    async def on_message(self, message: Any) -> None:
        root = getattr(message, "root", None)
        if isinstance(root, types.ToolListChangedNotification):
            self.person.told.append("tools")
        elif isinstance(root, types.ResourceUpdatedNotification):
            self.person.told.append(str(root.params.uri))

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.person.logs.append(f"{params.level} {params.data}")

    async def on_elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        if isinstance(params, types.ElicitRequestURLParams):
            await self.person.hears(f"page {params.message} {params.url}", context.request_id)
            return types.ElicitResult(action="accept")
        action, content = await self.person.fills_in(params.message, context.request_id)
        return types.ElicitResult(action=action, content=content)  # type: ignore[arg-type]

    async def on_sample(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        await self.person.hears(f"model {getattr(params.messages[0].content, 'text', None)}", context.request_id)
        words = types.TextContent(type="text", text=MODEL_SAYS)
        return types.CreateMessageResult(role="assistant", content=words, model="none", stopReason="endTurn")

    async def on_roots(self, context: Any) -> types.ListRootsResult:
        await self.person.hears("roots", context.request_id)
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl(ROOT))])


@asynccontextmanager
async def reach(target: Json, leaves: bool) -> AsyncIterator[tuple[Any, Any]]:
    try:
        async with transport(target, leaves) as (read, write, *_):
            yield read, write
    except* anyio.BrokenResourceError:
        pass  # the SDK's own: something was said to it while it was leaving


def transport(target: Json, leaves: bool) -> AbstractAsyncContextManager[tuple[Any, ...]]:
    headers = target.get("headers")
    if target.get("sse"):
        return sse_client(target["url"], headers=headers)
    if "url" in target:
        return streamablehttp_client(target["url"], headers, terminate_on_close=leaves)
    command, *arguments = target["command"]
    return stdio_client(StdioServerParameters(command=command, args=arguments, env=target["env"]))


@asynccontextmanager
async def connect(target: Json, person: Person, *, declares: bool = True, leaves: bool = True) -> AsyncIterator[Sdk1]:
    async with reach(target, leaves) as (read, write):
        client = Sdk1(person, write)
        async with ClientSession(
            read,
            write,
            message_handler=client.on_message,
            logging_callback=client.on_log,
            elicitation_callback=client.on_elicit if declares else None,
            sampling_callback=client.on_sample if declares else None,
            list_roots_callback=client.on_roots if declares else None,
        ) as client.session:
            await client.session.initialize()
            yield client


anyio.run(every_cell.main, connect)
