"""A server on the official SDK of the legacy era (1.x) whose tools ask. Run with that SDK's Python and

JOURNAL          for stdio
JOURNAL PORT     for Streamable HTTP
JOURNAL PORT sse for HTTP+SSE, the transport of 2024-11-05

where JOURNAL is a file for what its tools did, in all processes together.
"""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.fastmcp import Context, FastMCP
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import ElicitRequestURLParams, SamplingMessage, TextContent, Tool
from pydantic import BaseModel

JOURNAL, *PORT = sys.argv[1:3]
TRANSPORT = [*sys.argv[3:], "streamable-http"][0] if PORT else "stdio"
server = FastMCP("asker", port=int(PORT[0]) if PORT else 8000, log_level="WARNING")


def note(what: str) -> int:
    """Writes it down; how often it stands there now."""
    with Path(JOURNAL).open("a+") as file:
        file.write(f"{what}\n")
        file.seek(0)
        return file.read().split().count(what)


class Name(BaseModel):
    name: str


@server.tool()
async def greet(ctx: Context, who: str) -> str:
    note("greet")
    answer = await ctx.elicit(f"Who is {who}?", Name)
    return f"{who}: {answer.action} {answer.data.name if answer.action == 'accept' else '-'}"


@server.tool()
async def two_rounds(ctx: Context) -> str:
    first = await ctx.elicit("First name?", Name)
    await ctx.report_progress(1, 2)
    second = await ctx.elicit("Second name?", Name)
    return f"{first.data.name} {second.data.name}"


@server.tool()
async def three(ctx: Context) -> str:
    names = await asyncio.gather(*(ctx.elicit(f"Name {number}?", Name) for number in range(3)))
    return " ".join(name.data.name for name in names)


@server.tool()
async def page(ctx: Context) -> str:
    return (await ctx.elicit_url("Pay", "https://pay.test/", "e1")).action


@server.tool()
async def page_first(ctx: Context) -> str:
    if note("page_first") == 1:
        page = ElicitRequestURLParams(mode="url", message="Log in", url="https://login.test/", elicitationId="e2")
        raise UrlElicitationRequiredError([page])
    return "logged in"


@server.tool()
async def sample(ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text="2+2?"))
    tools = [Tool(name="add", inputSchema={"type": "object"})]
    answer = await ctx.session.create_message(
        [message], max_tokens=9, tools=tools, related_request_id=ctx.request_id
    )  # fmt: skip
    return f"{answer.model} {answer.stopReason} {type(answer.content).__name__}"


@server.tool()
async def roots(ctx: Context) -> str:
    """Over HTTP this SDK asks for roots on the stream of all calls."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def dies(ctx: Context) -> str:
    note(f"dies {os.getpid()}")
    asyncio.get_running_loop().call_later(0.3, os._exit, 3)
    return (await ctx.elicit("Are you there?", Name)).action


server.run(TRANSPORT)
