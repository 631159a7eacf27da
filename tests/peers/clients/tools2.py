"""The official SDK 2.x lists the tools of JOB's `url`, declaring what JOB `declares`: `tools2.py JOB MODE`."""

import asyncio
import json
import sys
import warnings
from typing import Any

import mcp_types as types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPDeprecationWarning

JOB = json.loads(sys.argv[1])
warnings.simplefilter("ignore", MCPDeprecationWarning)


async def nothing(*asked: Any) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message="nobody is there")


async def main() -> None:
    callbacks: Any = {f"{name}_callback": nothing for name in JOB["declares"]}
    mode: Any = "2026-07-28" if sys.argv[2] == "modern" else "legacy"
    async with Client(streamable_http_client(JOB["url"]), mode=mode, **callbacks) as client:
        print(json.dumps({"tools": sorted(tool.name for tool in (await client.list_tools()).tools)}))


asyncio.run(main())
