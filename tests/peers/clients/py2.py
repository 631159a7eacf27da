"""The Python SDK 2.x as a client, in either era: `py2.py JOB modern` or `py2.py JOB legacy`. See `script.py`."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp_types as types
import script
from mcp.client import session
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from script import Json, Progress

PAGES = {
    "tools": ("list_tools", "tools", "name"),
    "prompts": ("list_prompts", "prompts", "name"),
    "resources": ("list_resources", "resources", "uri"),
    "templates": ("list_resource_templates", "resource_templates", "uri_template"),
}


class Driver:
    def __init__(self, mode: str) -> None:
        self.name = f"py2-{mode}"
        self.modern = mode == "modern"
        self.client: Client
        self._changed = anyio.Event()

    async def on_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    def facts(self) -> Json:
        info = self.client.server_info
        return {"revision": self.client.protocol_version, "server": info and info.name}

    async def pages(self, kind: str) -> list[list[str]]:
        verb, items, key = PAGES[kind]
        pages, cursor = [], None
        while True:
            page = await getattr(self.client, verb)(cursor=cursor, cache_mode="bypass")
            pages.append([str(getattr(item, key)) for item in getattr(page, items)])
            cursor = page.next_cursor
            if cursor is None:
                return pages

    async def call(self, name: str, arguments: Json, progress: Progress | None = None) -> Json:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            if progress is not None:
                progress(done, total)

        result = await self.client.call_tool(
            name, arguments, progress_callback=on_progress if progress is not None else None
        )
        return {"error": bool(result.is_error), "value": text_of(result.content)}

    async def call_and_cancel(self, name: str, arguments: Json, when: anyio.Event, progress: Progress) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.call, name, arguments, progress)
            await when.wait()
            tasks.cancel_scope.cancel()

    async def read(self, uri: str) -> str:
        return str(getattr((await self.client.read_resource(uri)).contents[0], "text", None))

    async def prompt(self, name: str, arguments: dict[str, str]) -> str:
        return str(getattr((await self.client.get_prompt(name, arguments)).messages[0].content, "text", None))

    async def complete(self, reference: Json, argument: str, value: str) -> list[str]:
        ref: types.PromptReference | types.ResourceTemplateReference
        if "prompt" in reference:
            ref = types.PromptReference(type="ref/prompt", name=reference["prompt"])
        else:
            ref = types.ResourceTemplateReference(type="ref/resource", uri=reference["template"])
        return (await self.client.complete(ref, {"name": argument, "value": value})).completion.values

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        if not self.modern:
            yield self._changed.wait
            return
        async with self.client.listen(tools_list_changed=True) as events:
            yield aiter(events).__anext__


def text_of(content: list[types.ContentBlock]) -> Any:
    return script.value_of("".join(block.text for block in content if isinstance(block, types.TextContent)))


@asynccontextmanager
async def reach(job: Json) -> AsyncIterator[Any]:
    if "url" not in job:
        command, *arguments = job["command"]
        yield StdioServerParameters(command=command, args=arguments, env=job.get("env"))
        return
    if job.get("sse"):
        yield sse_client(job["url"], headers=job.get("headers"))
        return
    async with httpx2.AsyncClient(headers=job.get("headers"), timeout=30) as http:
        yield streamable_http_client(job["url"], http_client=http)


async def ask_user(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert isinstance(params, types.ElicitRequestFormParams)
    return types.ElicitResult(action="accept", content=script.fill_in(params.requested_schema))


async def ask_model(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    words = types.TextContent(type="text", text=script.MODEL_SAYS)
    return types.CreateMessageResult(role="assistant", content=words, model="none", stop_reason="endTurn")


async def list_roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=script.ROOT)])


async def main() -> None:
    job, mode = script.job(), sys.argv[2]
    driver = Driver(mode)
    async with reach(job) as server:
        negotiate: Any = "auto" if driver.modern else "legacy"
        driver.modern = driver.modern and not job.get("sse")  # a transport that implies the other era
        async with Client(
            server,
            mode=negotiate,
            message_handler=driver.on_message,
            elicitation_callback=ask_user,
            sampling_callback=ask_model,
            list_roots_callback=list_roots,
        ) as driver.client:
            script.say(await script.run(driver, job, (MCPError, SubscriptionLost)))


# The SDK takes who has not answered its probe in ten seconds for a legacy server; on a busy machine that says something
# of the machine, not of the server.
session.DISCOVER_TIMEOUT_SECONDS = 60.0
anyio.run(main)
