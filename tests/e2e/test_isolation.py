"""No client ever gets another client's answer, however alike their requests look on the wire.

Fifty clients, two hundred calls each, all at once, every request with `id: 1` and the same progress token, answered in
an order that the server shuffles. Every answer must carry its own caller's arguments and a nonce of its own, and
progress must reach its own call only. The clients are raw HTTP, so that no SDK hides what is on the wire.
"""

import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest
from e2e.sluice_process import Sluice, sluice
from peers.fleet import FIXTURE, fixture_over_http

Json = dict[str, Any]

CLIENTS, CALLS = 50, 200
TOKEN = "progress"
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "isolation", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def process(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    folder = tmp_path_factory.mktemp("isolation")
    with fixture_over_http(folder) as url:
        servers: Json = {
            "web": {"url": url, "concurrency": 200},
            "pipe": {"command": FIXTURE[0], "args": FIXTURE[1:], "sharing": "shared", "concurrency": 200},
        }
        with sluice({"servers": servers}, folder) as running:
            yield running


class Wire:
    """One client: raw requests, all with the same id."""

    def __init__(self, http: httpx.AsyncClient, url: str, modern: bool) -> None:
        self.http, self.url, self.modern = http, url, modern
        self.headers = dict(HEADERS)

    async def open(self) -> None:
        if self.modern:
            self.headers["MCP-Protocol-Version"] = "2026-07-28"
            return
        info = {"name": "isolation", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        answer = await self.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, {})
        assert answer.status_code == 200, answer.text
        self.headers |= {"MCP-Protocol-Version": "2025-11-25"}
        if session := answer.headers.get("Mcp-Session-Id"):
            self.headers["Mcp-Session-Id"] = session
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    async def post(self, message: Json, headers: dict[str, str]) -> httpx.Response:
        return await self.http.post(self.url, content=json.dumps(message), headers=self.headers | headers)

    async def call(self, name: str, arguments: Json) -> list[Json]:
        """All messages that came back for one tools/call."""
        meta: Json = {"progressToken": TOKEN} | (MODERN if self.modern else {})
        params = {"name": name, "arguments": arguments, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": name} if self.modern else {}
        answer = await self.post(message, headers)
        assert answer.status_code == 200, answer.text
        return messages_of(answer)


def messages_of(answer: httpx.Response) -> list[Json]:
    if answer.headers["Content-Type"].startswith("application/json"):
        return [answer.json()]
    lines = [line for line in answer.text.splitlines() if line.startswith("data:")]
    return [json.loads(line[5:]) for line in lines if line[5:].strip()]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=400, max_keepalive_connections=400)
    async with httpx.AsyncClient(limits=limits, timeout=120) as client:
        yield client


def result_of(messages: list[Json]) -> Json:
    final = [message for message in messages if "id" in message]
    assert len(final) == 1 and final[0]["id"] == 1, messages
    assert "result" in final[0], final
    return dict(final[0]["result"])


@pytest.mark.parametrize("server", ["web", "pipe"])
@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
async def test_ten_thousand_calls_with_equal_ids_get_ten_thousand_right_answers(
    process: Sluice, http: httpx.AsyncClient, server: str, modern: bool
) -> None:
    # the full number once; in the other three corners a tenth of it, for time
    per_client = CALLS if (server, modern) == ("web", True) else CALLS // 10
    dice = random.Random(7)
    nonces: list[str] = []

    async def client(number: int) -> None:
        wire = Wire(http, process.url, modern)
        await wire.open()
        async with anyio.create_task_group() as calls:
            for count in range(per_client):
                calls.start_soon(one, wire, {"client": number, "count": count, "delay_ms": dice.randrange(50)})

    async def one(wire: Wire, arguments: Json) -> None:
        result = result_of(await wire.call(f"{server}__echo", arguments))
        assert result["structuredContent"]["arguments"] == arguments
        nonces.append(result["structuredContent"]["nonce"])

    with anyio.fail_after(180):
        async with anyio.create_task_group() as clients:
            for number in range(CLIENTS):
                clients.start_soon(client, number)
    assert len(nonces) == len(set(nonces)) == CLIENTS * per_client


@pytest.mark.parametrize("server", ["web", "pipe"])
@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
async def test_progress_with_equal_tokens_reaches_its_own_call(
    process: Sluice, http: httpx.AsyncClient, server: str, modern: bool
) -> None:
    async def one(number: int) -> None:
        wire = Wire(http, process.url, modern)
        await wire.open()
        steps = 2 + number % 5  # how a call is told from its neighbours: by its number of steps
        messages = await wire.call(f"{server}__slow", {"ms": 100, "steps": steps, "run": f"{modern}{number}"})
        assert result_of(messages)["structuredContent"]["run"] == f"{modern}{number}"
        progress = [message["params"] for message in messages if message.get("method") == "notifications/progress"]
        assert [params["progressToken"] for params in progress] == [TOKEN] * steps
        assert [params["progress"] for params in progress] == list(range(1, steps + 1))
        assert {params["total"] for params in progress} == {steps}

    with anyio.fail_after(60):
        async with anyio.create_task_group() as clients:
            for number in range(40):
                clients.start_soon(one, number)


async def test_one_client_cannot_cancel_the_call_of_another(process: Sluice, http: httpx.AsyncClient) -> None:
    """2025-11-25 basic/utilities/cancellation: only requests of the same direction and session."""
    victim, bystander = Wire(http, process.url, False), Wire(http, process.url, False)
    await victim.open()
    await bystander.open()
    results: list[Json] = []

    async def work() -> None:
        arguments = {"ms": 1000, "steps": 10, "run": "victim"}
        results.append(result_of(await victim.call("web__slow", arguments)))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            params = {"requestId": 1, "reason": "not mine"}
            for _ in range(10):
                await bystander.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, {})
                await anyio.sleep(0.05)
    assert results[0]["structuredContent"] == {"run": "victim", "state": "finished"}
