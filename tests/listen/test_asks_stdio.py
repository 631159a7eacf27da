"""A legacy client on a pipe is asked on that pipe: between calls, during them, and never after its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from asker import ACCEPTED, ALL, FORM, ROOTED, ROOTS, SAMPLE, Asker, answer, ask_its_name, result_for, said
from test_listen_stdio import Wire, cancel, connected, modern, request, tool

from sluicegate.protocol.jsonrpc import Json, Notification, Response
from sluicegate.protocol.model import Ask, Call, Outcome, Result

ROOT = Path(__file__).parents[2]


class Site:
    """A handler whose only tool is `tool`; what else it was called with, and what the listener offers."""

    def __init__(self, tool: Any) -> None:
        self.tool = tool
        self.told: list[str] = []
        self.listens: list[Call] = []
        self.abandoned: list[str] = []
        self.ask: Ask | None = None
        self.session: str | None = None

    async def __call__(self, call: Call) -> Outcome:
        self.session = call.client.session
        if call.method == "tools/call":
            outcome: Outcome = await self.tool(call)
            return outcome
        if call.method == "subscriptions/listen":
            await call.emit(Notification("notifications/subscriptions/acknowledged", {"notifications": {}}))
            self.listens.append(call)
            await anyio.sleep_forever()
        self.told.append(call.method)
        return Result({"supportedVersions": [], "capabilities": {}})

    def options(self) -> dict[str, Any]:
        return {"handler": self, "on_abandoned": self.abandoned.append, "offer_ask": self._offered}

    def _offered(self, ask: Ask) -> None:
        self.ask = ask


async def open_session(wire: Wire, revision: str = "2025-11-25", capabilities: Json = ALL) -> None:
    hello = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": {"name": "t"}}
    assert "result" in await wire.ask(request("initialize", 0, hello))
    await wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})


@pytest.mark.parametrize("ask", [FORM, SAMPLE, ROOTS], ids=["form", "sampling", "roots"])
async def test_a_question_comes_on_the_pipe_and_the_call_goes_on(ask: Json) -> None:
    asker = Asker({"q": ask})
    async with connected(**Site(asker).options()) as wire:
        await open_session(wire)
        question = await wire.ask(tool("ask", "c"))
        assert (question["method"], question["params"]) == (ask["method"], ask.get("params", {}))
        end = await wire.ask(answer(question["id"], result_for(ask["method"])))
        assert end["id"] == "c" and said(end) == [None, {"q": result_for(ask["method"])}]
    assert asker.calls[1].params["requestState"] == "1"


async def test_a_modern_request_on_the_same_pipe_is_not_asked_by_message() -> None:
    async with connected(**Site(Asker({"q": ROOTS})).options()) as wire:
        await open_session(wire)
        end = await wire.ask(modern(tool("ask", 5)))
        assert end["result"]["resultType"] == "input_required" and end["result"]["inputRequests"] == {"q": ROOTS}


async def test_calls_that_are_asked_at_once_never_cross() -> None:
    async with connected(**Site(ask_its_name).options()) as wire:
        await open_session(wire)
        names = [f"name{number}" for number in range(12)]
        await wire.send(*(tool("ask", name, {"who": name}) for name in names))
        questions = [await wire.receive() for _ in names]
        for question in reversed(questions):
            content = {"name": question["params"]["message"]}
            await wire.send(answer(question["id"], {"action": "accept", "content": content}))
        ends = [await wire.receive() for _ in names]
        assert {end["id"]: end["result"]["content"][0]["text"] for end in ends} == {
            name: f"{name} {name} state of {name}" for name in names
        }


async def test_a_cancelled_call_withdraws_its_question() -> None:
    asker = Asker({"q": FORM})
    site = Site(asker)
    async with connected(**site.options()) as wire:
        await open_session(wire)
        question = await wire.ask(tool("ask", 3))
        withdrawn = await wire.ask(cancel(3))
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", question["id"])
        await wire.send(answer(question["id"], ACCEPTED))
        assert (await wire.ask(request("ping", "p")))["id"] == "p", "the call is answered nothing"
    assert len(asker.calls) == 1 and site.abandoned == [asker.calls[0].trail.id]


@pytest.mark.parametrize("bad", [{"result": None}, {"result": [], "error": {}}, {"result": {}}])
async def test_a_malformed_answer_ends_the_call_and_no_other_with_that_id(bad: Json) -> None:
    """A refusal names no id: it could be that of a request of the client's own."""
    async with connected(**Site(Asker({"q": FORM})).options()) as wire:
        await open_session(wire)
        question = await wire.ask(tool("ask", "c"))
        await wire.send({**answer(question["id"]), **bad})
        found = [await wire.receive()]
        if "error" in found[0]:
            assert "id" not in found[0]
            found.append(await wire.receive())
        assert found[-1]["id"] == "c" and "malformed" in found[-1]["result"]["content"][0]["text"]


async def test_answers_to_what_nobody_asked_change_nothing() -> None:
    async with connected(**Site(Asker({"q": FORM})).options()) as wire:
        await wire.send(answer(1, ACCEPTED))
        await open_session(wire)
        await wire.send(answer(1, ACCEPTED), answer("x", error={"code": 1, "message": "m"}))
        question = await wire.ask(tool("ask", "c"))
        await wire.send(answer(str(question["id"]), ROOTED), answer(question["id"] + 1, ROOTED))
        assert said(await wire.ask(answer(question["id"], ACCEPTED))) == [None, {"q": ACCEPTED}]


async def test_nobody_is_left_waiting_when_the_pipe_ends() -> None:
    asker = Asker({"q": FORM})
    site = Site(asker)
    async with connected(**site.options(), grace=30.0) as wire:
        await open_session(wire)
        await wire.ask(tool("ask"))
    assert site.abandoned == [asker.calls[0].trail.id]


async def test_an_item_of_a_batch_is_asked_too() -> None:
    async with connected(**Site(Asker({"q": ROOTS})).options()) as wire:
        await open_session(wire, "2025-03-26")
        question = await wire.ask([tool("ask", 1), request("ping", 2)])
        ends = await wire.ask([answer(question["id"], ROOTED)])
        assert {end["id"] for end in ends} == {1, 2}


# ---------------------------------------------------------------- outside of any call


async def test_a_session_is_asked_aside_once_it_has_begun() -> None:
    site = Site(Asker())
    answers: list[Response | None] = []
    async with connected(**site.options()) as wire, anyio.create_task_group() as group:
        assert (await wire.ask(request("ping")))["result"] == {}
        assert site.ask is not None and await site.ask("any", "roots/list", {}) is None
        await open_session(wire)
        await wire.until(lambda: site.listens)
        id = site.listens[0].client.session
        assert id is not None
        assert await site.ask("another", "roots/list", {}) is None
        ask = site.ask

        async def run() -> None:
            answers.append(await ask(id, "roots/list", {}))

        group.start_soon(run)
        question = await wire.receive()
        await wire.send(answer(question["id"], ROOTED))
        await wire.until(lambda: answers)
        assert answers[0] is not None and answers[0].result == ROOTED
        group.start_soon(run)
        await wire.receive()
        await wire.stream.aclose()
    assert answers[1:] == [None], "the end of the pipe ends the waiting"


@pytest.mark.parametrize("is_ready", [True, False], ids=["then it is initialized", "then it leaves"])
async def test_what_a_session_is_asked_before_it_is_initialized_waits_for_that(is_ready: bool) -> None:
    """A server that is started for it may be quicker than the client."""
    site, answers = Site(Asker()), list[Response | None]()
    async with connected(**site.options()) as wire, anyio.create_task_group() as group:
        hello = {"protocolVersion": "2025-11-25", "capabilities": ALL, "clientInfo": {"name": "t"}}
        await wire.ask(request("initialize", 0, hello))
        ask, id = site.ask, site.session
        assert ask is not None and id is not None

        async def run() -> None:
            answers.append(await ask(id, "roots/list", {}))

        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        if is_ready:
            await wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            question = await wire.receive()
            await wire.send(answer(question["id"], ROOTED))
            await wire.until(lambda: answers)
        await wire.stream.aclose()
    assert [found and found.result for found in answers] == [ROOTED if is_ready else None]


async def test_changed_roots_and_logs_pass_between_calls() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    site = Site(Asker())
    async with connected(**site.options()) as wire:
        await wire.send(changed)
        await open_session(wire)
        await wire.send(changed)
        await wire.until(lambda: site.told == ["server/discover", changed["method"]])
        await wire.until(lambda: site.listens)
        assert (await wire.ask(request("logging/setLevel", 1, {"level": "error"})))["result"] == {}
        for level in ("warning", "error"):
            await site.listens[0].emit(Notification("notifications/message", {"level": level, "data": level}))
        assert (await wire.receive())["params"]["data"] == "error"


# ---------------------------------------------------------------- a process

CHILD = """
import anyio, sys
sys.path.insert(0, "tests/listen")
from asker import ask_its_name
from test_asks_stdio import Site
from sluicegate.protocol.model import Client
from sluicegate.listen.line_streams import standard_streams
from sluicegate.listen.stdio import serve

async def main():
    async with standard_streams() as (reader, writer):
        await serve(Site(ask_its_name), reader=reader, writer=writer, client=Client("local"), server_info={"name": "s"},
                    on_session_end=lambda id: None)

anyio.run(main)
"""


def test_a_process_is_asked_and_answers_line_by_line() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "proxy")}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHILD], env=env, cwd=ROOT, **pipes) as child:
        assert child.stdin is not None and child.stdout is not None

        def ask(*messages: Json) -> Any:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
            child.stdin.flush()
            return json.loads(child.stdout.readline())

        hello = {"protocolVersion": "2025-11-25", "capabilities": ALL, "clientInfo": {"name": "t"}}
        assert "result" in ask(request("initialize", 0, hello))
        question = ask(tool("ask", 1, {"who": "me"}))
        assert question["method"] == "elicitation/create" and question["params"]["message"] == "me"
        end = ask(answer(question["id"], {"action": "accept", "content": {"name": "me"}}))
        assert end["id"] == 1 and end["result"]["content"][0]["text"] == "me me state of me"
        child.stdin.close()
        assert child.wait(30) == 0
