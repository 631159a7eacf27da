"""The official SDK 1.x lists the tools of JOB's `url` or `command`, declaring what JOB `declares`."""

import asyncio
import json
import os
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

import mcp.types as types
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

JOB = json.loads(sys.argv[1])


async def nothing(*asked: Any) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message="nobody is there")


def transport() -> AbstractAsyncContextManager[Any]:
    if "url" in JOB:
        return streamablehttp_client(JOB["url"])
    return stdio_client(StdioServerParameters(command=JOB["command"][0], args=JOB["command"][1:]))


async def main() -> None:
    callbacks: Any = {f"{name}_callback": nothing for name in JOB["declares"]}
    async with transport() as (read, write, *_), ClientSession(read, write, **callbacks) as session:
        await session.initialize()
        print(json.dumps({"tools": sorted(tool.name for tool in (await session.list_tools()).tools)}), flush=True)
        os._exit(0)  # this SDK breaks when it is asked something while it closes


asyncio.run(main())
