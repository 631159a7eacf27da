"""The Python SDK 1.x as a client: legacy only. See `script.py`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import script
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl, FileUrl
from script import Json, Progress

PAGES = {
    "tools": ("list_tools", "tools", "name"),
    "prompts": ("list_prompts", "prompts", "name"),
    "resources": ("list_resources", "resources", "uri"),
    "templates": ("list_resource_templates", "resourceTemplates", "uriTemplate"),
}


class Driver:
    name = "py1"

    def __init__(self) -> None:
        self.session: ClientSession
        self.hello: types.InitializeResult
        self._changed = anyio.Event()

    async def on_message(self, message: Any) -> None:
        root = getattr(message, "root", None)
        if isinstance(root, types.ToolListChangedNotification):
            self._changed.set()

    def facts(self) -> Json:
        return {"revision": str(self.hello.protocolVersion), "server": self.hello.serverInfo.name}

    async def pages(self, kind: str) -> list[list[str]]:
        verb, items, key = PAGES[kind]
        pages, cursor = [], None
        while True:
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await getattr(self.session, verb)(params=params)
            pages.append([str(getattr(item, key)) for item in getattr(page, items)])
            cursor = page.nextCursor
            if cursor is None:
                return pages

    async def call(self, name: str, arguments: Json, progress: Progress | None = None) -> Json:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            if progress is not None:
                progress(done, total)

        result = await self.session.call_tool(
            name, arguments, progress_callback=on_progress if progress is not None else None
        )
        text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
        return {"error": bool(result.isError), "value": script.value_of(text)}

    async def call_and_cancel(self, name: str, arguments: Json, when: anyio.Event, progress: Progress) -> None:
        """This SDK tells the server nothing when its caller gives up; an application has to."""
        number = self.session._request_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.call, name, arguments, progress)
            await when.wait()
            params = types.CancelledNotificationParams(requestId=number, reason="enough")
            cancelled = types.CancelledNotification(method="notifications/cancelled", params=params)
            await self.session.send_notification(types.ClientNotification(cancelled))
            tasks.cancel_scope.cancel()

    async def read(self, uri: str) -> str:
        return str(getattr((await self.session.read_resource(AnyUrl(uri))).contents[0], "text", None))

    async def prompt(self, name: str, arguments: dict[str, str]) -> str:
        return str(getattr((await self.session.get_prompt(name, arguments)).messages[0].content, "text", None))

    async def complete(self, reference: Json, argument: str, value: str) -> list[str]:
        ref: types.PromptReference | types.ResourceTemplateReference
        if "prompt" in reference:
            ref = types.PromptReference(type="ref/prompt", name=reference["prompt"])
        else:
            ref = types.ResourceTemplateReference(type="ref/resource", uri=reference["template"])
        return (await self.session.complete(ref, {"name": argument, "value": value})).completion.values

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        yield self._changed.wait


@asynccontextmanager
async def reach(job: Json) -> AsyncIterator[tuple[Any, Any]]:
    try:
        async with transport(job) as (read, write, *_):
            yield read, write
    except* anyio.BrokenResourceError:
        pass  # the SDK's own: something was said to it while it was leaving


def transport(job: Json) -> AbstractAsyncContextManager[tuple[Any, ...]]:
    if job.get("sse"):
        return sse_client(job["url"], headers=job.get("headers"))
    if "url" in job:
        return streamablehttp_client(job["url"], headers=job.get("headers"))
    command, *arguments = job["command"]
    return stdio_client(StdioServerParameters(command=command, args=arguments, env=job.get("env")))


async def ask_user(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert isinstance(params, types.ElicitRequestFormParams)
    return types.ElicitResult(action="accept", content=script.fill_in(params.requestedSchema))


async def ask_model(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    words = types.TextContent(type="text", text=script.MODEL_SAYS)
    return types.CreateMessageResult(role="assistant", content=words, model="none", stopReason="endTurn")


async def list_roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=FileUrl(script.ROOT))])


async def main() -> None:
    job, driver = script.job(), Driver()
    async with reach(job) as (read, write):
        async with ClientSession(
            read,
            write,
            message_handler=driver.on_message,
            elicitation_callback=ask_user,
            sampling_callback=ask_model,
            list_roots_callback=list_roots,
        ) as driver.session:
            driver.hello = await driver.session.initialize()
            script.say(await script.run(driver, job, (McpError,)))


anyio.run(main)
