"""A legacy client in front, a legacy server behind, and Sluice as a process between them: questions in calls and
outside of them, changed roots, log messages, cancels. A client of its own beside it hears nothing of it."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from e2e.sluice_process import Sluice, sluice

Json = dict[str, Any]
ACCEPT = {"accept": "application/json, text/event-stream"}
CAPABILITIES: Json = {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}}
SAMPLED: Json = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    server = {"command": sys.executable, "args": [str(Path(__file__).parent / "asking_server.py")]}
    with sluice({"servers": {"asks": server}}, tmp_path_factory.mktemp("asks"), watched=True) as running:
        yield running


class Session:
    """One legacy client. `pushed` is what came on its GET stream."""

    def __init__(self, http: httpx.AsyncClient, url: str, root: str) -> None:
        self.http, self.url, self.root = http, url, root
        self.pushed: list[Json] = []
        self.asked: list[str] = []

    async def post(self, message: Json) -> httpx.Response:
        return await self.http.post(self.url, json={"jsonrpc": "2.0", **message})

    async def listen(self) -> None:
        async with self.http.stream("GET", self.url, headers={"accept": "text/event-stream"}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    message = json.loads(line[6:])
                    self.pushed.append(message)
                    await self.reply(message)

    async def reply(self, message: Json) -> None:
        if "id" not in message:
            return
        self.asked.append(message["params"].get("message", message["method"]))
        results: Json = {
            "roots/list": {"roots": [{"uri": self.root}]},
            "elicitation/create": {"action": "accept", "content": {"name": self.root}},
        }
        if message["method"] in results:
            await self.post({"id": message["id"], "result": results[message["method"]]})
        else:
            await self.post({"id": message["id"], "error": {"code": -1, "message": "User rejected it"}})

    async def call(self, tool: str) -> Any:
        """The text of the result; questions on the call's stream are answered."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": f"asks__{tool}"}}
        async with self.http.stream("POST", self.url, json=body) as response:
            if response.headers["content-type"] == "application/json":
                end = json.loads(await response.aread())
            else:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        end = json.loads(line[6:])
                        if "method" not in end:
                            break
                        await self.reply(end)
        return end["result"]["content"][0]["text"]

    async def told(self, wanted: Json) -> list[Json]:
        """All that the server was told, once that is among it. A server may be told first that nobody can be asked:
        it was there before its client."""
        while wanted not in (found := json.loads(await self.call("told"))):
            await anyio.lowlevel.checkpoint()
        return list(found)

    @property
    def roots(self) -> Json:
        return {"result": {"roots": [{"uri": self.root}]}}


@asynccontextmanager
async def session(process: Sluice, root: str, capabilities: Json = CAPABILITIES) -> AsyncIterator[Session]:
    with anyio.fail_after(60):
        async with httpx.AsyncClient(headers=ACCEPT, timeout=20, trust_env=False) as http:
            one = Session(http, process.url, root)
            hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": root}}
            answer = await one.post({"id": 0, "method": "initialize", "params": hello})
            http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            await one.post({"method": "notifications/initialized"})
            async with anyio.create_task_group() as group:
                group.start_soon(one.listen)
                yield one
                group.cancel_scope.cancel()


async def test_roots_are_asked_for_outside_of_calls_and_reach_the_server_that_asked(process: Sluice) -> None:
    async with session(process, "file:///a") as a, session(process, "file:///b") as b:
        for one in (a, b):
            declared = (await one.told(one.roots))[0]
            assert declared["roots"] == {"listChanged": True} and "elicitation" in declared
        a.root = "file:///new"
        await a.post({"method": "notifications/roots/list_changed"})
        assert b.roots not in await a.told(a.roots)
        assert a.roots not in await b.told(b.roots)
        while not any(message["method"] == "notifications/message" for message in a.pushed):
            await anyio.lowlevel.checkpoint()


async def test_a_call_that_asks_is_answered_by_its_own_client(process: Sluice) -> None:
    async with session(process, "file:///a") as a, session(process, "file:///b") as b:
        said: Json = {}

        async def run(one: Session) -> None:
            said[one.root] = json.loads(await one.call("name"))

        async with anyio.create_task_group() as group:
            group.start_soon(run, a)
            group.start_soon(run, b)
        for one in (a, b):
            assert said[one.root] == {"result": {"action": "accept", "content": {"name": one.root}}}
            assert "[asks] Who are you?" in one.asked


async def test_a_refused_question_ends_the_call_in_words(process: Sluice) -> None:
    async with session(process, "file:///a") as one:
        assert "User rejected it" in await one.call("model")


async def test_a_client_that_cannot_be_asked_is_not_asked(process: Sluice) -> None:
    async with session(process, "file:///a", {}) as one:
        assert "not supported" in await one.call("name")
        assert one.asked == [] and one.pushed == []


async def test_a_cancelled_call_is_cancelled_at_the_server_that_waits(process: Sluice) -> None:
    async with session(process, "file:///a") as one:
        await one.told(one.roots)
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "asks__name"}}
        async with one.http.stream("POST", one.url, json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["method"] == "elicitation/create":
                    await one.post({"method": "notifications/cancelled", "params": {"requestId": 9}})
        await one.told({"cancelled": True})
