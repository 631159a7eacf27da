"""The official SDK 1.x as a client with tasks (2025-11-25): URL PREFIX. Prints what it saw as JSON.

It calls the tools of `legacy_task_server.py`, as tasks and waiting, and is asked while one runs.
"""

import asyncio
import json
import sys
from typing import Any

import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.exceptions import McpError

URL, PREFIX = sys.argv[1:]
seen: dict[str, Any] = {"asked": [], "told": [], "progress": []}


async def answer(context: Any, params: Any) -> types.ElicitResult:
    meta = params.meta.model_dump(by_alias=True) if params.meta else {}
    related = meta.get("io.modelcontextprotocol/related-task") or {}
    seen["asked"].append([params.message, related.get("taskId")])
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def hear(message: Any) -> None:
    root = getattr(message, "root", None)
    if isinstance(root, types.TaskStatusNotification):
        seen["told"].append([root.params.taskId, root.params.status])


async def progressed(done: float, total: float | None, message: str | None) -> None:
    seen["progress"].append(message)


def text(result: types.CallToolResult) -> str:
    return ("! " if result.isError else "") + result.content[0].text  # type: ignore[union-attr]


async def error_of(request: Any) -> list[Any]:
    try:
        await request
    except McpError as error:
        return [error.error.code, error.error.message]
    return []


async def play(session: ClientSession) -> None:
    hello = await session.initialize()
    tasks = hello.capabilities.tasks
    seen["declared"] = None if tasks is None else tasks.model_dump(exclude_none=True)
    tools = await session.list_tools()
    while not any(tool.name.startswith(PREFIX) for tool in tools.tools):  # our server is still starting
        tools = await session.list_tools()
    seen["support"] = {
        tool.name: tool.execution.taskSupport if tool.execution else None for tool in tools.tools
    }
    later = session.experimental
    begun = await later.call_tool_as_task(f"{PREFIX}slow", {"seconds": 0.2}, ttl=60_000)
    id = begun.task.taskId
    said = (begun.meta or {}).get("io.modelcontextprotocol/model-immediate-response")
    seen["begun"] = [begun.task.status, begun.task.ttl, said]
    seen["polled"] = [status.status async for status in later.poll_task(id)]
    result = await later.get_task_result(id, types.CallToolResult)
    seen["result"] = [text(result), (result.meta or {}).get("io.modelcontextprotocol/related-task") == {"taskId": id}]
    asking = await later.call_tool_as_task(f"{PREFIX}ask", {})
    seen["asking"] = text(await later.get_task_result(asking.task.taskId, types.CallToolResult))
    seen["asked_of_it"] = seen["asked"][-1][1] == asking.task.taskId
    long = await later.call_tool_as_task(f"{PREFIX}slow", {"seconds": 60})
    seen["cancelled"] = (await later.cancel_task(long.task.taskId)).status
    seen["cancelled_again"] = await error_of(later.cancel_task(long.task.taskId))
    mine = [id, asking.task.taskId, long.task.taskId]
    listed = (await later.list_tasks()).tasks  # also those of others who come in as we do
    seen["listed"] = [[mine.index(task.taskId), task.status] for task in listed if task.taskId in mine]
    seen["unknown"] = await error_of(later.get_task("no-such-task"))
    seen["forbidden"] = await error_of(later.call_tool_as_task(f"{PREFIX}plain", {}))
    seen["plain"] = text(await session.call_tool(f"{PREFIX}plain", {}))
    # by a client that waits, though the server does these only as tasks
    seen["must"] = text(await session.call_tool(f"{PREFIX}must", {"seconds": 0.3}, progress_callback=progressed))
    seen["must_ask"] = text(await session.call_tool(f"{PREFIX}must_ask", {}))
    seen["must_fail"] = text(await session.call_tool(f"{PREFIX}must_fail", {}))
    seen["mine"] = mine


async def main() -> None:
    async with streamablehttp_client(URL) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=answer, message_handler=hear) as session:
            await play(session)
    print(json.dumps(seen))


asyncio.run(main())
