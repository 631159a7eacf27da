"""Which list_changed clients of Streamable HTTP hear, and how often: when definitions are withheld, and when a server
goes away and returns.

That nothing more comes is seen by what comes next: each test ends with a change that everybody hears of.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import TaskGroup
from e2e.sluice_process import Sluice, sluice
from e2e.wire import LEGACY, META, MODERN
from peers.fleet import FIXTURE, free_port, running, wait_for_port
from policy_bed import bearer, bed, client_keys, recorder

Json = dict[str, Any]
TURNCOAT = str(Path(__file__).parents[1] / "turncoat_server.py")
TOOLS, PROMPTS, RESOURCES = (f"notifications/{what}/list_changed" for what in ("tools", "prompts", "resources"))
ADD: Json = {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}
ROWS = """\
p, key:ann, math, *, *, allow
p, role:everyone, b, tool:*, *, allow
p, role:everyone, b, res:*, *, allow
"""


class Listening:
    """A client that listens from the beginning, and what it has heard so far."""

    def __init__(self, process: Sluice, who: str, modern: bool) -> None:
        self.heard: list[str] = []
        headers = {"Accept": "application/json, text/event-stream", **bearer(who)}
        self._http = httpx.AsyncClient(headers=headers, timeout=60)
        self._url, self._modern = process.url, modern
        self.is_listening = anyio.Event()

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, method: str, **params: Any) -> Json:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {}
        if self._modern:
            body["params"] = {**params, "_meta": META}
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            headers |= {"Mcp-Name": params["name"]} if "name" in params else {}
        answer = await self._http.post(self._url, json=body, headers=headers)
        return dict(answer.json()) if answer.headers["content-type"].startswith("application/json") else {}

    async def run(self) -> None:
        if self._modern:
            wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
            params = {"notifications": wanted, "_meta": META}
            body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
            await self._hear("POST", json=body, headers=headers)
            return
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        session = (await self._http.post(self._url, json=body)).headers["mcp-session-id"]
        self._http.headers.update({"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": session})
        await self._http.post(self._url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.is_listening.set()
        await self._hear("GET")

    async def _hear(self, method: str, **request: Any) -> None:
        async with self._http.stream(method, self._url, **request) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    self.heard.append(str(json.loads(line[5:]).get("method")))
                    self.is_listening.set()

    async def until(self, is_so: Callable[[list[str]], bool]) -> None:
        while not is_so(self.heard):  # noqa: ASYNC110 - what another process says has no event
            await anyio.sleep(0.01)


@asynccontextmanager
async def listening(process: Sluice, *whos: tuple[str, bool]) -> AsyncIterator[list[Listening]]:
    clients = [Listening(process, who, modern) for who, modern in whos]
    with anyio.fail_after(40):
        async with anyio.create_task_group() as group:
            try:
                await _begin(clients, group)
                yield clients
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    for client in clients:
                        await client.close()


async def _begin(clients: list[Listening], group: TaskGroup) -> None:
    for client in clients:
        group.start_soon(client.run)
        await client.is_listening.wait()
        await client.ask("tools/list")


def resources_after_prompts(number: int) -> Callable[[list[str]], bool]:
    """A changed policy is news of the resources of each server that the client may use."""
    return lambda heard: PROMPTS in heard and heard[heard.index(PROMPTS) :].count(RESOURCES) >= number


async def test_a_withheld_definition_is_news_once_for_who_may_use_its_server_and_no_news_of_resources(
    tmp_path: Path,
) -> None:
    math = tmp_path / "math"
    math.mkdir()
    (math / "tools.json").write_text(json.dumps([ADD, {**ADD, "name": "sub"}]))
    (math / "resources.json").write_text(json.dumps([{"uri": "x:1", "name": "one"}]))
    (math / "calls").touch()
    servers = {
        "b": recorder(tmp_path, "b", tools=["look"], prompts=["p", "q"], resources=["x:2"]),
        "math": {"command": sys.executable, "args": [TURNCOAT, str(math)]},
    }
    clients = {"keys": client_keys(ann=[], eve=[])}
    shown = ROWS + "p, role:everyone, b, prompt:p, *, allow\n"
    with bed(tmp_path, shown + "p, role:everyone, b, prompt:q, *, allow\n", servers, clients=clients) as made:
        async with listening(made.process, ("ann", False), ("ann", True), ("eve", False), ("eve", True)) as all_four:
            anns = all_four[:2]
            made.write(shown)  # whatever belonged to the beginning has been told before this is
            for client in all_four:
                await client.until(resources_after_prompts(2 if client in anns else 1))
                client.heard.clear()
            await anns[0].ask("tools/call", name="math__add", arguments={})
            for client in anns:
                await client.until(lambda heard: TOOLS in heard)
                names = [tool["name"] for tool in (await client.ask("tools/list"))["result"]["tools"]]
                assert names == ["b__look", "math__sub"]
            made.write(ROWS)
            for client in all_four:
                await client.until(lambda heard: PROMPTS in heard)
            told = [client.heard[: client.heard.index(PROMPTS)] for client in all_four]
            assert told == [[TOOLS], [TOOLS], [], []], "legacy and modern of ann, then of eve"


@pytest.mark.parametrize("era", ["modern", "auto"])
async def test_a_server_of_the_newest_revision_that_goes_away_and_returns_is_news_once_each_time(
    peers: None, tmp_path: Path, era: str
) -> None:
    port = free_port()
    with ExitStack() as outer:

        def start() -> ExitStack:
            life = ExitStack()
            command, log = [*FIXTURE, "--port", str(port)], tmp_path / "fixture.log"
            wait_for_port(port, life.enter_context(running(command, log, stdout=subprocess.DEVNULL)), log)
            outer.push(life)
            return life

        life = start()
        servers: Json = {"web": {"url": f"http://127.0.0.1:{port}/mcp", "era": era, "pin": "off"}}
        process = outer.enter_context(sluice({"servers": servers}, tmp_path))
        async with listening(process, ("", False), ("", True)) as clients:
            await clients[0].ask("tools/call", name="web__test_trigger_prompt_change", arguments={})
            for client in clients:
                await client.until(lambda heard: PROMPTS in heard)
                client.heard.clear()
            life.close()
            await clients[0].ask("tools/call", name="web__echo", arguments={})
            for client in clients:
                await client.until(lambda heard: {TOOLS, PROMPTS, RESOURCES} <= set(heard))
                assert sorted(client.heard) == [PROMPTS, RESOURCES, TOOLS]
                client.heard.clear()
            start()
            for client in clients:
                await client.until(lambda heard: {TOOLS, PROMPTS, RESOURCES} <= set(heard))
            await clients[0].ask("tools/call", name="web__test_trigger_tool_change", arguments={})
            for client in clients:
                await client.until(lambda heard: heard.count(TOOLS) >= 2)
                assert sorted(client.heard) == [PROMPTS, RESOURCES, TOOLS, TOOLS]
