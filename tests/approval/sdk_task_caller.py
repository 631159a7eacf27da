"""Calls of tools as tasks on the Python SDK 1.x (2025-11-25), each of which needs a person's yes: JSON with "url" and
"headers". Prints what it saw as JSON; whoever started it decides meanwhile.
"""

import asyncio
import json
import sys
from typing import Any

import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.exceptions import McpError

job = json.loads(sys.argv[1])
seen: dict[str, Any] = {"asked": []}


async def answer(context: Any, params: Any) -> types.ElicitResult:
    seen["asked"].append(params.message)
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def code_of(request: Any) -> int:
    try:
        await request
    except McpError as error:
        return error.error.code
    return 0


async def play(session: ClientSession) -> None:
    await session.initialize()
    later = session.experimental

    async def begin(tool: str, **arguments: Any) -> types.Task:
        return (await later.call_tool_as_task(f"pipe__{tool}", arguments, ttl=60_000)).task

    async def result(id: str) -> str:
        return str((await later.get_task_result(id, types.CallToolResult)).content[0].text)  # type: ignore[union-attr]

    task = await begin("slow", seconds=0.1)
    seen["begun"] = [task.status, task.statusMessage]
    seen["result"] = await result(task.taskId)  # waits for the person, then for the server
    seen["status"] = (await later.get_task(task.taskId)).status
    seen["asking"] = await result((await begin("ask")).taskId)
    denied = (await begin("slow", seconds=9)).taskId
    words = await result(denied)
    seen["denied"] = [(await later.get_task(denied)).status, words]
    given_up = (await begin("slow", seconds=60)).taskId
    seen["cancelled"] = (await later.cancel_task(given_up)).status
    seen["cancelled_again"] = await code_of(later.cancel_task(given_up))
    seen["forbidden"] = await code_of(later.call_tool_as_task("pipe__plain", {}))


async def main() -> None:
    async with (
        streamablehttp_client(job["url"], headers=job["headers"]) as (read, write, _),
        ClientSession(read, write, elicitation_callback=answer) as session,
    ):
        await play(session)


asyncio.run(main())
print(json.dumps(seen))
