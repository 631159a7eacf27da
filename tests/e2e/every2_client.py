"""The Python SDK 2.x as a client in the matrix: `every2_client.py JOB modern` speaks nothing but the newest revision,
`every2_client.py JOB dual` whatever the transport allows. See `every_cell.py`."""

import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import every_cell
import httpx2
import mcp_types as types
from every_cell import IN_TIME, MODEL_SAYS, ROOT, Json, Person
from mcp.client import session
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.message import SessionMessage

MODE = "auto" if sys.argv[2] == "dual" else "2026-07-28"


class Sdk2:
    def __init__(self, person: Person) -> None:
        self.person = person
        self.write: Any = None
        self.client: Client

    @property
    def modern(self) -> bool:
        return self.client.protocol_version == "2026-07-28"

    async def call(self, tool: str, arguments: Json, progress: list[str] | None = None) -> str:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            if progress is not None:
                progress.append(f"{done:g}/{total:g}")

        callback = on_progress if progress is not None else None
        try:
            return words(await self.client.call_tool(tool, arguments, progress_callback=callback))
        except MCPError as error:
            return f"error {error.code} {error.message}"

    async def call_and_cancel(self, tool: str, arguments: Json, when: anyio.Event) -> None:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            when.set()

        async def run() -> None:
            await self.client.call_tool(tool, arguments, progress_callback=on_progress)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await when.wait()
            tasks.cancel_scope.cancel()

    async def tools(self) -> list[str]:
        names: list[str] = []
        cursor = None
        while True:
            page = await self.client.list_tools(cursor=cursor, cache_mode="bypass")
            names += [tool.name for tool in page.tools]
            if (cursor := page.next_cursor) is None:
                return names

    async def wants_logs(self) -> None:
        if not self.modern:  # which asks for them with each request
            await self.client.set_logging_level("info")

    @asynccontextmanager
    async def watching(self, uri: str) -> AsyncIterator[None]:
        if not self.modern:
            await self.client.subscribe_resource(uri)
            yield
            await self.client.unsubscribe_resource(uri)
            return
        async with anyio.create_task_group() as group:
            await group.start(self._listen, uri)
            yield
            group.cancel_scope.cancel()

    async def _listen(self, uri: str, *, task_status: Any) -> None:
        async with self.client.listen(tools_list_changed=True, resource_subscriptions=[uri]) as events:
            task_status.started()
            async for event in events:
                if isinstance(event, ToolsListChanged):
                    self.person.told.append("tools")
                elif isinstance(event, ResourceUpdated):
                    self.person.told.append(event.uri)

    async def respond(self, id: Any, name: str) -> None:
        result = {"action": "accept", "content": {"name": name}}
        await self.write.send(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=id, result=result)))

    async def ask(self, tool: str, arguments: Json) -> tuple[list[str], str | None]:
        result = await self.client.session.call_tool(tool, arguments, allow_input_required=True)
        assert isinstance(result, types.InputRequiredResult), result
        return list(result.input_requests or ()), result.request_state

    async def retry(self, tool: str, arguments: Json, keys: list[str], state: str | None) -> str:
        answers = {key: types.ElicitResult(action="accept", content={"name": "Ada"}) for key in keys}
        try:
            return words(
                await self.client.session.call_tool(
                    tool, arguments, input_responses=answers, request_state=state, allow_input_required=True
                )
            )
        except MCPError as error:
            return f"error {error.code} {error.message}"

    # ------------------------------------------------------------ what comes without being called

    async def on_message(self, message: Any) -> None:
        if self.modern:
            return
        if isinstance(message, types.ToolListChangedNotification):
            self.person.told.append("tools")
        elif isinstance(message, types.ResourceUpdatedNotification):
            self.person.told.append(str(message.params.uri))

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
        said = types.TextContent(type="text", text=MODEL_SAYS)
        return types.CreateMessageResult(role="assistant", content=said, model="none", stop_reason="endTurn")

    async def on_roots(self, context: Any) -> types.ListRootsResult:
        await self.person.hears("roots", context.request_id)
        return types.ListRootsResult(roots=[types.Root(uri=ROOT)])


def words(result: Any) -> str:
    if isinstance(result, types.InputRequiredResult):
        return "asked again"
    text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
    return f"failed {(result.meta or {}).get('dev.sluice/reason', text)}" if result.is_error else text


@asynccontextmanager
async def reach(target: Json, leaves: bool) -> AsyncIterator[Any]:
    if "url" not in target:
        command, *arguments = target["command"]
        yield stdio_client(StdioServerParameters(command=command, args=arguments, env=target["env"]))
    elif target.get("sse"):
        yield sse_client(target["url"], headers=target.get("headers"))
    else:
        async with httpx2.AsyncClient(headers=target.get("headers"), timeout=60) as http:
            yield streamable_http_client(target["url"], http_client=http, terminate_on_close=leaves)


@asynccontextmanager
async def seen(transport: Any, client: Sdk2) -> AsyncIterator[tuple[Any, Any]]:
    """The transport, with its sending side in reach."""
    async with transport as (read, client.write):
        yield read, client.write


@asynccontextmanager
async def connect(target: Json, person: Person, *, declares: bool = True, leaves: bool = True) -> AsyncIterator[Sdk2]:
    sdk = Sdk2(person)
    async with reach(target, leaves) as transport:
        async with Client(
            seen(transport, sdk),
            mode=MODE,
            log_level="info",
            message_handler=sdk.on_message,
            logging_callback=sdk.on_log,
            elicitation_callback=sdk.on_elicit if declares else None,
            sampling_callback=sdk.on_sample if declares else None,
            list_roots_callback=sdk.on_roots if declares else None,
        ) as sdk.client:
            yield sdk


warnings.simplefilter("ignore", MCPDeprecationWarning)
# The SDK takes who has not answered its probe in ten seconds for a legacy server; on a machine full of processes that
# says something of the machine, not of the server.
session.DISCOVER_TIMEOUT_SECONDS = IN_TIME
anyio.run(every_cell.main, connect)
