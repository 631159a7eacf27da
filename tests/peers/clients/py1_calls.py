"""The official SDK 1.x as a client without tasks: calls some tools in turn, says yes to every form, prints
answers, the texts of the last one, and the messages of progress."""

import asyncio
import json
import sys
from typing import Any

import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

JOB = json.loads(sys.argv[1])
asked: list[str] = []
messages: list[str | None] = []


async def say_yes(context: Any, params: Any) -> types.ElicitResult:
    asked.append(params.message)
    fields = params.requestedSchema["properties"]
    content = {name: True if field["type"] == "boolean" else "Ada" for name, field in fields.items()}
    return types.ElicitResult(action="accept", content=content)


async def hear(progress: float, total: float | None, message: str | None) -> None:
    messages.append(message)


async def main() -> None:
    answers, texts = [], []
    async with streamablehttp_client(JOB["url"]) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=say_yes) as session:
            await session.initialize()
            for name, arguments in JOB["calls"]:
                result = await session.call_tool(name, arguments, progress_callback=hear)
                texts = [block.text for block in result.content]  # type: ignore[union-attr]
                answers.append(("! " if result.isError else "") + result.content[0].text)  # type: ignore[union-attr]
    print(json.dumps({"answers": answers, "asked": asked, "texts": texts, "progress": messages}))


asyncio.run(main())
