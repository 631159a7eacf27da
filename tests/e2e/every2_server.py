"""A server of the matrix on the official SDK 2.x, in whatever era it is spoken to. Run with that SDK's Python; command
line, tools and journal are those of `every1_server.py`. The fixture server with other tools.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

from fixture.kit import TOOLS, Answer, Json, Visit, ask, elicit, sample, tool
from fixture.lists import LISTENERS
from fixture.rounds import field_of, words_of
from fixture.shelf import Shelf
from fixture_server import FixtureServer, serve_stdio
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

JOURNAL = Path(sys.argv[1])
ADDED = JOURNAL.with_name("added2")  # tools added at run time, in all processes
NAME: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS.clear()  # the fixture's own


def note(run: str, what: str) -> None:
    with JOURNAL.open("a") as file:
        file.write(json.dumps({"run": run, "what": what, "pid": os.getpid()}) + "\n")


def name_in(answer: Any) -> str:
    return str(field_of(answer, "name") or answer.action)


# ---------------------------------------------------------------- the tools


@tool("Asks for a name.")
async def form(visit: Visit) -> Answer:
    if "who" in visit.responses:
        return name_in(visit.responses["who"])
    # in the legacy era the question goes out when this has returned
    asyncio.get_running_loop().call_later(0.1, note, visit.arguments["run"], "asked")
    return ask(who=elicit("Name?", NAME))


@tool("Asks twice.")
async def twice(visit: Visit) -> Answer:
    if "first" in visit.responses:
        return ask(name_in(visit.responses["first"]), last=elicit("Last?", NAME))
    if "last" in visit.responses:
        return f"{visit.state} {name_in(visit.responses['last'])}"
    return ask(first=elicit("First?", NAME))


@tool("Asks three questions at once.")
async def three(visit: Visit) -> Answer:
    keys = ("one", "two", "three")
    if visit.responses:
        return " ".join(name_in(visit.responses[key]) for key in keys)
    return ask(**{key: elicit(f"{key.title()}?", NAME) for key in keys})


@tool("Asks to open a page.")
async def page(visit: Visit) -> Answer:
    if "page" in visit.responses:
        return str(visit.responses["page"].action)
    params = types.ElicitRequestURLParams(message="Pay", url="https://pay.test/")
    return ask(page=types.ElicitRequest(params=params))


@tool("Asks the client's model.")
async def model(visit: Visit) -> Answer:
    return words_of(visit.responses["model"]) if visit.responses else ask(model=sample("2+2?", 9))


@tool("Asks for the client's roots.")
async def roots(visit: Visit) -> Answer:
    if visit.responses:
        return " ".join(str(root.uri) for root in visit.responses["roots"].roots)
    return ask(roots=types.ListRootsRequest())


@tool("Counts, and says how far it is.")
async def count(visit: Visit) -> Answer:
    for done in range(1, visit.arguments["to"] + 1):
        await visit.progress(done, visit.arguments["to"])
        await anyio.sleep(0.02)
    return "counted"


@tool("Logs a line.")
async def log(visit: Visit) -> Answer:
    await visit.log("info", "a line")
    return "logged"


@tool("Adds a tool.")
async def add(visit: Visit) -> Answer:
    with ADDED.open("a") as file:
        file.write(f"added_{visit.arguments['run']}\n")
    await LISTENERS.tools_changed()
    return "added"


@tool("Says that a resource was changed.")
async def touch(visit: Visit) -> Answer:
    await LISTENERS.updated(visit.arguments["uri"])
    return "touched"


# ---------------------------------------------------------------- the server


class EveryServer(FixtureServer):
    async def list_tools(self, ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        added = ADDED.read_text().split() if ADDED.exists() else []
        more = [types.Tool(name=name, input_schema={"type": "object"}) for name in added]
        return types.ListToolsResult(tools=[*(tool.definition for tool in TOOLS.values()), *more])

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        run = str((params.arguments or {}).get("run", "-"))
        note(run, "called")
        try:
            return await super().call_tool(ctx, params)
        finally:
            note(run, "over")


def over_sse(server: EveryServer) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def connect(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(streams[0], streams[1], server.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", transport.handle_post_message)])


async def main(port: int | None, transport: str) -> None:
    server = EveryServer("every2", Shelf())
    note("-", "started")
    if port is None:
        await serve_stdio(server)
    else:
        app = over_sse(server) if transport == "sse" else server.streamable_http_app(session_idle_timeout=None)
        await uvicorn.Server(
            uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=0)
        ).serve()  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[2]) if len(sys.argv) > 2 else None, sys.argv[-1]))
