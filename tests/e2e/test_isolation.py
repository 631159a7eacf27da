"""No client ever gets another client's answer, however alike their requests look on the wire.

Fifty clients, two hundred calls each, all at once, every request with `id: 1` and the same progress token, answered in
an order that the server shuffles. Every answer must carry its own caller's arguments and a nonce of its own, and
progress must reach its own call only.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.sluice_process import Sluice, sluice
from e2e.wire import TOKEN, Client
from peers.fleet import CROWD, FIXTURE, fixture_over_http, run_client

Json = dict[str, Any]

CLIENTS, CALLS = 50, 200


@pytest.fixture(scope="module")
def process(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    folder = tmp_path_factory.mktemp("isolation")
    with fixture_over_http(folder) as url:
        servers: Json = {
            "web": {"url": url, "concurrency": 400},
            "pipe": {"command": FIXTURE[0], "args": FIXTURE[1:], "sharing": "shared", "concurrency": 400},
            "legacy": {"url": url, "era": "legacy", "concurrency": 100},
            "modern": {"url": url, "era": "modern", "concurrency": 100},
            "child": {"command": FIXTURE[0], "args": FIXTURE[1:], "era": "legacy"},
        }
        for era in ("legacy", "modern"):
            arguments = [str(Path(__file__).with_name("mischief_server.py")), era, str(folder / f"{era}.seen")]
            servers[f"stdio-{era}"] = {"command": sys.executable, "args": arguments, "concurrency": 100}
        with sluice({"servers": servers}, folder) as running:
            yield running


EVERY_CORNER = pytest.mark.parametrize(
    ("server", "modern"),
    [("web", True), ("pipe", True), ("web", False), ("pipe", False)],
    ids=["http-modern", "stdio-modern", "http-legacy", "stdio-legacy"],
)


@EVERY_CORNER
async def test_ten_thousand_calls_with_equal_ids_get_ten_thousand_right_answers(
    process: Sluice, server: str, modern: bool
) -> None:
    # the full number where most traffic is; in the other corners a tenth of it, for time
    calls = CALLS if server == "web" and modern else CALLS // 10
    dice = random.Random(7)
    nonces: list[str] = []

    async def one(client: Client, arguments: Json) -> None:
        result = (await client.call(f"{server}__echo", arguments)).result()
        assert result["structuredContent"]["arguments"] == arguments
        nonces.append(result["structuredContent"]["nonce"])

    async def all_of(number: int) -> None:
        async with Client(process.url, modern) as client, anyio.create_task_group() as tasks:
            for count in range(calls):
                tasks.start_soon(one, client, {"client": number, "count": count, "delay_ms": dice.randrange(50)})

    with anyio.fail_after(240):
        async with anyio.create_task_group() as clients:
            for number in range(CLIENTS):
                clients.start_soon(all_of, number)
    assert len(nonces) == len(set(nonces)) == CLIENTS * calls


@EVERY_CORNER
async def test_progress_with_equal_tokens_reaches_its_own_call(process: Sluice, server: str, modern: bool) -> None:
    async def one(number: int) -> None:
        steps = 2 + number % 5  # how a call is told from its neighbours: by its number of steps
        run = f"{server}-{modern}-{number}"
        async with Client(process.url, modern, connections=1) as client:
            answer = await client.call(f"{server}__slow", {"ms": 100 * steps, "steps": steps, "run": run})
        assert answer.result()["structuredContent"]["run"] == run
        assert [params["progressToken"] for params in answer.progress()] == [TOKEN] * steps
        assert [params["progress"] for params in answer.progress()] == list(range(1, steps + 1))
        assert {params["total"] for params in answer.progress()} == {steps}

    with anyio.fail_after(120):
        async with anyio.create_task_group() as clients:
            for number in range(40):
                clients.start_soon(one, number)


async def test_one_client_cannot_cancel_the_call_of_another(process: Sluice) -> None:
    """2025-11-25 basic/utilities/cancellation: a request is cancelled by its own sender only."""
    answers: list[Json] = []

    async def work(victim: Client) -> None:
        answer = await victim.call("web__slow", {"ms": 1000, "steps": 10, "run": "victim"})
        answers.append(answer.result()["structuredContent"])

    with anyio.fail_after(60):
        async with Client(process.url, False) as victim, Client(process.url, False) as bystander:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work, victim)
                for _ in range(10):
                    await bystander.notify("notifications/cancelled", {"requestId": 1, "reason": "not mine"})
                    await anyio.sleep(0.05)
    assert answers == [{"run": "victim", "state": "finished"}]


@pytest.mark.parametrize("server", ["legacy", "modern", "child"])
@pytest.mark.parametrize("mode", ["modern", "legacy"])
def test_every_client_is_asked_its_own_questions_only(process: Sluice, server: str, mode: str) -> None:
    """A child process a session makes many processes: fewer clients there."""
    clients = 4 if server == "child" else 20
    job = {"url": process.url, "tool": f"{server}__test_elicitation", "clients": clients, "calls": 4, "mode": mode}
    report = run_client(CROWD, job)
    assert report["wrong"] == [] and report["right"] == clients * 4


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("mode", ["modern", "legacy"])
def test_twenty_clients_of_one_stdio_server_are_asked_each_its_own_name(process: Sluice, era: str, mode: str) -> None:
    """All at once, and all of one principal: nothing but the call tells whose question and whose answer it is."""
    job = {"url": process.url, "tool": f"stdio-{era}__form", "clients": 20, "calls": 4, "mode": mode}
    report = run_client(CROWD, job)
    assert report["wrong"] == [] and report["right"] == 80
