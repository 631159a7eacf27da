"""The official SDK 1.x as a client whose server dies while a task of it runs; prints what is said of the task then."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from typing import Any

import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.exceptions import McpError

JOB = json.loads(sys.argv[1])


def kill_server() -> None:
    token = {"Authorization": f"Bearer {JOB['token']}"}
    request = urllib.request.Request(f"{JOB['admin']}/api/v1/servers", headers=token)
    with urllib.request.urlopen(request) as answer:
        servers = json.loads(answer.read())["servers"]
    for pid in next(entry["pids"] for entry in servers if entry["key"] == JOB["tool"].split("__")[0]):
        os.kill(pid, signal.SIGKILL)


async def play(session: ClientSession) -> dict[str, Any]:
    await session.initialize()
    later = session.experimental
    id = (await later.call_tool_as_task(JOB["tool"], {"seconds": 60})).task.taskId
    await asyncio.to_thread(kill_server)
    while (task := await later.get_task(id)).status == "working":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    result = await later.get_task_result(id, types.CallToolResult)
    try:
        await later.cancel_task(id)
        cancel = []
    except McpError as error:
        cancel = [error.error.code]
    listed = {entry.taskId: entry.status for entry in (await later.list_tasks()).tasks}
    return {
        "get": [task.status, task.statusMessage], "result": [result.isError],
        "reason": (result.meta or {}).get("dev.sluice/reason"), "cancel": cancel, "listed": listed[id],
    }  # fmt: skip


async def main() -> None:
    async with streamablehttp_client(JOB["url"]) as (read, write, _):
        async with ClientSession(read, write) as session:
            print(json.dumps(await play(session)))


asyncio.run(main())
