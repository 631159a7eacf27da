"""The official SDK 1.x as a client without tasks: calls some tools in turn, says yes to every form, prints answers."""

import asyncio
import json
import sys
from typing import Any

import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

JOB = json.loads(sys.argv[1])
asked: list[str] = []


async def say_yes(context: Any, params: Any) -> types.ElicitResult:
    asked.append(params.message)
    fields = params.requestedSchema["properties"]
    content = {name: True if field["type"] == "boolean" else "Ada" for name, field in fields.items()}
    return types.ElicitResult(action="accept", content=content)


async def main() -> None:
    answers = []
    async with streamablehttp_client(JOB["url"]) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=say_yes) as session:
            await session.initialize()
            for name, arguments in JOB["calls"]:
                result = await session.call_tool(name, arguments)
                answers.append(("! " if result.isError else "") + result.content[0].text)  # type: ignore[union-attr]
    print(json.dumps({"answers": answers, "asked": asked}))


asyncio.run(main())
