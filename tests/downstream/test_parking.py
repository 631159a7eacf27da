"""Servers that ask: real children and loopback endpoints, one client's question and its answer at a time."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from scripted_servers import Asked, endpoint, event, legacy_start, running, until

from sluicegate.downstream import server_life
from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.session import legacy, suspended
from sluicegate.downstream.settings import MAX_MESSAGE
from sluicegate.protocol.jsonrpc import Json, Notification, Response, dump
from sluicegate.protocol.methods import ROOTS_CHANGED
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    InputRequired,
    Outcome,
    OwnState,
    Result,
    TaskStarted,
    Trail,
)
from sluicegate.protocol.modern_client import capability_key

CHILD = Path(__file__).with_name("asking_child.py")
ALL: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {"listChanged": True}}


def client(
    capabilities: Json = ALL, principal: str = "key:a", revision: str = "2026-07-28", session: str | None = None
) -> Client:
    return Client(
        principal, revision=revision, capabilities=capabilities, session=session,
        capability_key=capability_key(capabilities),
    )  # fmt: skip


MODERN = client()
LEGACY = client(revision="2025-11-25", session="s1")
YES: Json = {"action": "accept", "content": {"name": "Ada"}}
MODEL: Json = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}],
    "model": "m",
}
ROOTS: Json = {"roots": [{"uri": "file:///a", "name": "a"}]}


class Peer:
    """One client of one server: it calls, and answers what it is asked."""

    def __init__(self, server: DownstreamServer, client: Client = MODERN) -> None:
        self.server, self.client = server, client
        self.heard: list[Notification] = []

    async def _hear(self, notification: Notification) -> None:
        self.heard.append(notification)

    async def call(self, tool: str, arguments: Json | None = None, token: object = None, **retry: Any) -> Outcome:
        params = {"name": tool, "arguments": arguments or {}, **retry}
        meta = {} if token is None else {"progressToken": token}
        trail = Trail("first")
        if "requestState" in retry:  # what its seal has proved
            trail.resume("first", 1)
        return await self.server(Call(self.client, "tools/call", params, meta, emit=self._hear, trail=trail))

    async def asked(self, tool: str, arguments: Json | None = None, **retry: Any) -> InputRequired:
        outcome = await self.call(tool, arguments, **retry)
        assert isinstance(outcome, InputRequired), outcome
        assert outcome.is_held and outcome.state is not None
        return outcome

    async def said(self, tool: str, arguments: Json | None = None, **retry: Any) -> Any:
        return text(await self.call(tool, arguments, **retry))

    async def report(self) -> Json:
        return dict(await self.said("report"))


def text(outcome: Outcome) -> Any:
    assert isinstance(outcome, Result), outcome
    content = outcome.value["content"][0]["text"]
    return content if outcome.value.get("isError") else json.loads(content)


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Result), outcome
    return str(outcome.value["_meta"]["dev.sluice/reason"])


def answers(*given: Any, start: int = 1) -> Json:
    return {f"ask{number}": answer for number, answer in enumerate(given, start)}


def child(*modes: str) -> dict[str, Any]:
    return {"command": (sys.executable, "-I", "-S", str(CHILD), *modes), "era": "legacy"}


# ---------------------------------------------------------------- one question and its answer


async def test_a_form_reaches_the_client_and_its_answer_the_server() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        asked = await peer.asked("name")
        assert asked.requests == {
            "ask1": {
                "method": "elicitation/create",
                "params": {
                    "mode": "form", "message": "Who are you?",
                    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
                },
            }
        }  # fmt: skip
        assert rig.server.describe()["parked"] == 1
        assert await peer.said("name", inputResponses=answers(YES), requestState=asked.state) == YES
        assert rig.server.describe()["parked"] == 0


@pytest.mark.parametrize(
    ("tool", "method", "params", "answer", "heard"),
    [
        (
            "url", "elicitation/create", {"mode": "url", "message": "Go there", "url": "https://x.test/"},
            {"action": "accept"}, {"action": "accept"},
        ),
        (
            "sample", "sampling/createMessage",
            {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5, "tools": []},
            MODEL, MODEL,
        ),
        ("roots", "roots/list", None, ROOTS, ROOTS),
        (
            "name", "elicitation/create", ..., {"action": "decline", "content": None}, {"action": "decline"},
        ),
    ],
)  # fmt: skip
async def test_every_kind_of_question_and_answer(
    tool: str, method: str, params: Any, answer: Json, heard: Json
) -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        asked = await peer.asked(tool)
        ask = asked.requests["ask1"]
        assert ask["method"] == method and (params is ... or ask.get("params") == params)
        assert await peer.said(tool, inputResponses=answers(answer), requestState=asked.state) == heard


async def test_a_legacy_clients_page_keeps_the_id_by_which_it_will_be_told() -> None:
    async with running(**child()) as rig:
        asked = await Peer(rig.server, LEGACY).asked("url")
        assert asked.requests["ask1"]["params"]["elicitationId"] == "e1"


async def test_three_questions_make_one_round_and_what_is_not_answered_is_asked_again() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        first = await peer.asked("three")
        assert list(first.requests) == ["ask1", "ask2", "ask3"]
        given = {"ask2": ROOTS, "ask9": YES, "ask1": YES}
        second = await peer.asked("three", inputResponses=given, requestState=first.state)
        assert list(second.requests) == ["ask3"] and second.state != first.state
        third = await peer.asked("three", requestState=second.state)
        assert third.requests == second.requests
        last = {"action": "cancel"}
        said = await peer.said("three", inputResponses={"ask3": last}, requestState=third.state)
        assert said == [YES, ROOTS, last]


async def test_many_rounds_and_progress_goes_to_the_request_of_each() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        outcome = await peer.call("rounds", {"count": 12}, token=0)
        for number in range(1, 13):
            assert isinstance(outcome, InputRequired)
            outcome = await peer.call(
                "rounds", {"count": 12}, token=f"t{number}", inputResponses=answers(YES, start=number),
                requestState=outcome.state,
            )  # fmt: skip
        assert text(outcome) == [YES] * 12
        assert [note.params["progressToken"] for note in peer.heard] == [0, *(f"t{number}" for number in range(1, 12))]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "given", [[], "x", {"ask1": None}, {"ask1": []}, {"ask1": {"action": "maybe"}}, {"ask1": {"content": {}}}]
)
async def test_a_malformed_answer_is_an_error_and_ends_the_call_at_the_server(given: Any) -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        asked = await peer.asked("stubborn")
        outcome = await peer.call("stubborn", inputResponses=given, requestState=asked.state)
        assert isinstance(outcome, Failure) and outcome.code == -32602
        await until_refused_and_cancelled(peer)
        outcome = await peer.call("stubborn", inputResponses=answers(YES), requestState=asked.state)
        assert reason(outcome) == "outcome_unknown"


async def until_refused_and_cancelled(peer: Peer, id: int = 2) -> None:
    """On another connection, while that call is open: so it is looked at by its end."""
    await until(lambda: peer.server.describe()["in_flight"] == 0 and peer.server.describe()["parked"] == 0)
    await until_seen(peer, lambda seen: [m for m in seen if m.get("method") == "notifications/cancelled"])
    seen = (await peer.report())["seen"]
    told = [m.get("result", m.get("error", {}).get("code")) for m in seen if "method" not in m]
    assert told == [{"action": "cancel"}, -32603]
    assert [m["params"]["requestId"] for m in seen if m.get("method") == "notifications/cancelled"] == [id]


async def test_a_state_is_good_once_for_its_client_and_in_its_process() -> None:
    async with running(**child()) as rig:
        peer, other = Peer(rig.server), Peer(rig.server, client(principal="key:b"))
        another_key = Peer(rig.server, replace(peer.client, credential="2"))
        asked = await peer.asked("name")
        retry = {"inputResponses": answers(YES), "requestState": asked.state}
        for stranger in (other, another_key):
            assert reason(await stranger.call("name", **retry)) == "outcome_unknown"
        assert await peer.said("name", **retry) == YES
        assert reason(await peer.call("name", **retry)) == "outcome_unknown"
        for state in ("", "parked", "parked 0 0", None, 5, "x y z", "pages", OwnState("parked 0 0")):
            foreign = await peer.call("name", inputResponses={}, requestState=state)
            assert reason(foreign) == "outcome_unknown"
        called = [m for m in (await peer.report())["seen"] if m.get("params", {}).get("name") == "name"]
        assert len(called) == 1


async def test_two_retries_at_once_are_one_answer_and_one_error() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        asked = await peer.asked("name")
        retry = {"inputResponses": answers(YES), "requestState": asked.state}
        both = await asyncio.gather(peer.call("name", **retry), peer.call("name", **retry))
        assert sorted("isError" in outcome.value for outcome in both if isinstance(outcome, Result)) == [False, True]


async def test_answers_without_a_state_are_a_new_call() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        await peer.asked("name", inputResponses=answers(YES))
        asked = [m for m in (await peer.report())["seen"] if m.get("method") == "tools/call"]
        assert "inputResponses" not in asked[0]["params"]


# ---------------------------------------------------------------- ends


async def test_who_does_not_come_back_in_time_has_cancelled() -> None:
    async with running(**child()) as rig:
        rig.server.suspended.life = 0.2
        peer = Peer(rig.server)
        asked = await peer.asked("stubborn")
        await until_refused_and_cancelled(peer)
        outcome = await peer.call("stubborn", inputResponses=answers(YES), requestState=asked.state)
        assert reason(outcome) == "outcome_unknown"


async def test_a_server_that_ends_its_call_when_its_question_is_refused_is_not_told_to() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        await peer.asked("name")
        rig.server.abandon("first")
        await until_seen(peer, lambda seen: [m for m in seen if "method" not in m])
        await anyio.sleep(legacy.LAST_CHANCE * 1.5)  # the time in which nothing must happen
        assert "notifications/cancelled" not in [m.get("method") for m in (await peer.report())["seen"]]


async def test_the_timeout_does_not_run_while_a_client_thinks_but_the_time_in_all_does() -> None:
    async with running(**child(), timeout=1.0, max_time=4.0) as rig:
        peer = Peer(rig.server)
        asked = await peer.asked("name")
        await anyio.sleep(1.5)
        asked = await peer.asked("name", requestState=asked.state)
        await until(lambda: rig.server.describe()["parked"] == 0)
        outcome = await peer.call("name", inputResponses=answers(YES), requestState=asked.state)
        assert reason(outcome) == "outcome_unknown"


async def test_an_abandoned_call_is_given_up_at_the_server_at_once() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        await peer.asked("stubborn")
        rig.server.abandon("another")
        assert rig.server.describe()["parked"] == 1
        rig.server.abandon("first")
        await until_refused_and_cancelled(peer)


async def test_a_call_whose_client_was_asked_by_us_first_is_given_up_by_the_id_of_that_round() -> None:
    async with running(**child()) as rig:
        peer, trail = Peer(rig.server), Trail("second")
        trail.resume("first", 1)
        call = Call(MODERN, "tools/call", {"name": "stubborn", "arguments": {}}, trail=trail)
        assert isinstance(await rig.server(call), InputRequired)
        rig.server.abandon("first")
        await until_refused_and_cancelled(peer)


async def test_a_call_of_a_client_that_cannot_come_in_any_more_is_given_up_at_the_server() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        await peer.asked("stubborn")
        rig.server.suspended.retain({"key:b", peer.client.principal})
        assert rig.server.describe()["parked"] == 1
        rig.server.suspended.retain({"key:b"})
        await until_refused_and_cancelled(peer)


async def test_a_client_that_goes_while_its_answer_is_worked_on_cancels_the_call() -> None:
    async with running(**child(), timeout=20) as rig:
        peer = Peer(rig.server)
        asked = await peer.asked("stubborn")
        going = asyncio.ensure_future(peer.call("stubborn", requestState=asked.state))
        await asyncio.sleep(0)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        await until_refused_and_cancelled(peer)


async def test_a_server_that_dies_while_its_call_waits_makes_the_retry_an_error_and_is_not_called_again() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        asked = await peer.asked("dies")
        await until(lambda: rig.server.describe()["connections"] == 0)
        outcome = await peer.call("dies", inputResponses=answers(YES), requestState=asked.state)
        assert reason(outcome) == "outcome_unknown"
        assert [m["params"]["name"] for m in (await peer.report())["seen"] if m["method"] == "tools/call"] == ["report"]


async def test_a_server_that_does_not_wait_for_its_answer_gets_it_all_the_same() -> None:
    """On a channel for all calls of a session the question may have been another's."""
    async with running(**child()) as rig:
        peer = Peer(rig.server, LEGACY)  # several calls of one session share a connection
        asked = await peer.asked("hurries")
        assert await peer.said("late") == "done"
        said = await peer.said("hurries", inputResponses=answers(YES), requestState=asked.state)
        assert said == "without you"
        late = [m for m in (await peer.report())["seen"] if "method" not in m]
        assert [m["result"] for m in late] == [YES]


# ---------------------------------------------------------------- servers that misbehave


async def test_ids_that_a_server_uses_twice_cross_no_answers() -> None:
    async with running(**child("same-ids")) as rig:
        one, two = Peer(rig.server), Peer(rig.server, client(principal="key:b"))
        first, second = await one.asked("greet", {"who": "one"}), await two.asked("greet", {"who": "two"})
        yes = {"action": "accept", "content": {"name": "2"}}
        said = await two.said("greet", {"who": "two"}, inputResponses=answers(yes), requestState=second.state)
        assert said == ["two", yes]
        said = await one.said("greet", {"who": "one"}, inputResponses=answers(YES), requestState=first.state)
        assert said == ["one", YES]


async def test_a_flood_of_questions_is_bounded_and_each_is_answered() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        outcome, asked = await peer.call("floods"), list[int]()
        while isinstance(outcome, InputRequired):  # what comes after an answer finds room again
            asked.append(len(outcome.requests))
            retry = {"inputResponses": dict.fromkeys(outcome.requests, YES), "requestState": outcome.state}
            outcome = await peer.call("floods", **retry)
        assert max(asked) <= suspended.MAX_ASKS and sum(asked) >= suspended.MAX_ASKS
        said = text(outcome)
        assert len(said) == 100 and said.count(YES) == sum(asked)
        assert said.count({"action": "cancel"}) == 100 - sum(asked)


async def test_a_server_that_asks_again_and_again_ends_its_call() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        outcome, asked = await peer.call("pesters"), 0
        while isinstance(outcome, InputRequired) and asked <= suspended.MAX_QUESTIONS:
            asked += len(outcome.requests)
            retry = {"inputResponses": dict.fromkeys(outcome.requests, YES), "requestState": outcome.state}
            outcome = await peer.call("pesters", **retry)
        assert (asked, reason(outcome)) == (suspended.MAX_QUESTIONS, "outcome_unknown")
        assert "asked more than 320 questions in one call" in text(outcome)
        await until(lambda: rig.server.describe()["in_flight"] == 0 and rig.server.describe()["parked"] == 0)


async def test_what_cannot_be_carried_is_refused_at_once() -> None:
    async with running(**child()) as rig:
        forms = Peer(rig.server, client({"elicitation": {}, "experimental": {"x": {}}}))
        codes = [answer["code"] for answer in await forms.said("unknown")]
        assert codes == [-32601, -32602, -32602]
        assert [answer["code"] for answer in (await forms.said("sample"), await forms.said("roots"))] == [-32601] * 2
        assert (await forms.report())["declared"] == {"elicitation": {}}


async def test_what_a_server_takes_back_is_not_asked() -> None:
    async with running(**child()) as rig:
        assert await Peer(rig.server).said("takes_back") == "done"


async def test_what_a_server_takes_back_is_looked_for_in_no_call_but_that_which_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, withdraw = list[Any](), suspended.InteractiveExchange.withdraw

    def watched(exchange: suspended.InteractiveExchange, id: Any) -> bool:
        looked.append(id)
        return withdraw(exchange, id)

    monkeypatch.setattr(suspended.InteractiveExchange, "withdraw", watched)
    async with running(**child()) as rig:
        peer = Peer(rig.server, LEGACY)
        await asyncio.gather(*(peer.asked("greet", {"who": str(number)}) for number in range(8)))
        assert await peer.said("takes_back") == "done"
    assert looked == ["back"]


async def test_a_shared_server_can_ask_nobody() -> None:
    async with running(**child(), sharing="shared") as rig:
        peer = Peer(rig.server)
        assert (await peer.report())["declared"] == {}
        assert (await peer.said("name"))["code"] == -32601


# ---------------------------------------------------------------- whose question it is


async def test_twenty_clients_of_one_principal_are_asked_each_its_own_name() -> None:
    async with running(**child()) as rig:

        async def one(who: str) -> None:
            peer = Peer(rig.server)
            asked = await peer.asked("greet", {"who": who})
            assert asked.requests["ask1"]["params"]["message"] == f"Who is {who}?"
            await anyio.lowlevel.checkpoint()
            answer = {"action": "accept", "content": {"name": who}}
            retry = {"inputResponses": answers(answer), "requestState": asked.state}
            key = next(iter(asked.requests))
            assert key == "ask1"
            assert await peer.said("greet", {"who": who}, **retry) == [who, answer]

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, f"client {number}")
        assert rig.server.describe()["in_flight"] == 0


async def test_nobody_keeps_all_processes_from_others_by_calls_that_wait_for_it() -> None:
    """A client may leave a question open for ten minutes. Who has more than an equal share loses one such call."""
    async with running(**child(), processes=2) as rig:
        ann, bob = Peer(rig.server), Peer(rig.server, client(principal="key:b"))
        states = [(await ann.asked("name")).state for _ in range(2)]
        bobs = await bob.asked("name")
        left = [await ann.call("name", inputResponses=answers(YES), requestState=state) for state in states]
        assert sorted(isinstance(one, Result) and not one.value.get("isError") for one in left) == [False, True]
        assert await bob.said("name", inputResponses=answers(YES), requestState=bobs.state) == YES


async def test_quick_calls_of_clients_that_can_be_asked_share_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_life, "_MOMENT", 60.0)  # a call is quick by it, and not on a busy machine
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        pids = {report["pid"] for report in await asyncio.gather(*(peer.report() for _ in range(8)))}
        assert len(pids) == 1


async def test_calls_of_one_session_share_a_connection_and_its_client_gets_all_questions() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server, LEGACY)
        outcomes = await asyncio.gather(*(peer.call("greet", {"who": who}) for who in "ab"))
        assert rig.server.describe()["connections"] == 1
        messages: dict[str, str] = {}
        for who, outcome in zip("ab", outcomes, strict=True):
            assert isinstance(outcome, InputRequired)
            for ask in outcome.requests.values():
                messages[who] = ask["params"]["message"]
        assert set(messages.values()) == {"Who is a?", "Who is b?"}


async def test_a_question_that_comes_with_the_answer_to_another_call_is_not_that_calls() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server, LEGACY)
        async with anyio.create_task_group() as group:
            group.start_soon(peer.call, "quiet")
            await until(lambda: rig.server.describe()["in_flight"] == 1)
            await peer.report()  # behind it: the server has the quiet one
            asked = await peer.asked("cuts_in")
            assert await peer.said("cuts_in", inputResponses=answers(YES), requestState=asked.state) == YES


async def test_a_call_that_is_given_up_leaves_the_questions_of_its_session_to_the_others() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server, LEGACY)
        first = await peer.asked("greet", {"who": "a"})
        assert first.requests["ask1"]["params"]["message"] == "Who is a?"
        second = asyncio.ensure_future(peer.call("rounds", {"count": 1}))
        await until(lambda: rig.server.describe()["parked"] == 2)
        rig.server.abandon("first")  # both: each is left to the other, the last one refuses
        await second
        seen = (await peer.report())["seen"]
        assert [m["result"] for m in seen if "method" not in m] == [{"action": "cancel"}] * 2


async def test_progress_of_a_task_reaches_the_session_that_began_it_under_its_own_token() -> None:
    async with running(**child("tasks")) as rig:
        peer = Peer(rig.server, LEGACY)
        assert isinstance(await peer.call("later", token="mine", task={}), TaskStarted)
        assert await peer.said("works") == "done"
        told = [(scope, note.params) for _, scope, note in rig.published if note.method == "notifications/progress"]
        assert told == [("session:s1", {"progressToken": "mine", "progress": number}) for number in (1, 2)]
        assert peer.heard == []


# ---------------------------------------------------------------- outside of any call


async def test_a_server_that_asks_for_roots_at_its_start_gets_its_sessions() -> None:
    asked: list[tuple[str, str]] = []

    async def ask(session: str, method: str, params: Json) -> Response | None:
        asked.append((session, method))
        return Response(None, ROOTS) if len(asked) == 1 else None

    async with running(ask=ask, **child("asks-roots")) as rig:
        peer = Peer(rig.server, LEGACY)
        await peer.report()
        await until(lambda: asked)
        await until_seen(peer, lambda seen: [m for m in seen if m.get("result") == ROOTS])
        assert asked == [("s1", "roots/list")]
        await rig.server(Call(LEGACY, ROOTS_CHANGED, {}))
        await until(lambda: len(asked) == 2)
        await until_seen(peer, lambda seen: [m for m in seen if m.get("error", {}).get("code") == -32603])


async def until_seen(peer: Peer, is_so: Any) -> None:
    while not is_so((await peer.report())["seen"]):  # noqa: ASYNC110 - what another process has heard
        await anyio.sleep(0.01)


async def test_who_adopts_a_connection_that_asked_in_vain_for_roots_has_it_ask_again() -> None:
    async def ask(session: str, method: str, params: Json) -> Response | None:
        return Response(None, ROOTS)

    async with running(ask=ask, **child("asks-roots")) as rig:
        lists = Call(LEGACY, "tools/list", {})
        assert isinstance(await rig.server(lists), Result)
        peer = Peer(rig.server, LEGACY)
        await until_seen(peer, lambda seen: [m for m in seen if m.get("result") == ROOTS])
        seen = (await peer.report())["seen"]
        assert [m["method"] for m in seen if "method" in m].count("initialize") == 1
        assert rig.server.describe()["connections"] == 1


async def test_roots_outside_of_a_call_are_those_last_seen_in_one() -> None:
    async with running(**child("asks-roots")) as rig:
        peer = Peer(rig.server, client({"roots": {}}))
        await until_seen(peer, lambda seen: [m for m in seen if m.get("error", {}).get("code") == -32603])
        asked = await peer.asked("roots")
        assert await peer.said("roots", inputResponses=answers(ROOTS), requestState=asked.state) == ROOTS


# ---------------------------------------------------------------- pages first


async def test_a_call_that_needs_a_page_first_is_made_again_after_consent_and_not_without() -> None:
    async with running(**child()) as rig:
        peer = Peer(rig.server)
        asked = await peer.call("pages")
        assert isinstance(asked, InputRequired) and not asked.is_held
        params = {"mode": "url", "message": "Go there", "url": "https://x.test/"}
        assert asked.requests == {"page1": {"method": "elicitation/create", "params": params}}
        again = await peer.call("pages", requestState=asked.state)
        assert isinstance(again, InputRequired) and again.requests == asked.requests
        no = await peer.said("pages", inputResponses={"page1": {"action": "decline"}}, requestState=asked.state)
        assert no.startswith("NOT EXECUTED")
        bad = await peer.said("pages", inputResponses={"page1": {}}, requestState=asked.state)
        assert bad.startswith("NOT EXECUTED")
        assert len([m for m in (await peer.report())["seen"] if m.get("params", {}).get("name") == "pages"]) == 1
        yes = {"page1": {"action": "accept"}}
        assert await peer.said("pages", inputResponses=yes, requestState=asked.state) == "paid"


async def test_a_legacy_client_is_told_of_the_page_in_its_own_words() -> None:
    async with running(**child()) as rig:
        outcome = await Peer(rig.server, LEGACY).call("pages")
        assert isinstance(outcome, Failure) and outcome.code == -32042
        old = client(ALL, revision="2025-06-18", session="s2")
        assert await Peer(rig.server, old).said("pages") == "log in first\nGo there: https://x.test/"


# ---------------------------------------------------------------- over HTTP

FORM_ASK: Json = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}


class HttpServer:
    """Asks on each call's own stream, or on the GET stream; answers with what it was answered, unless stubborn."""

    def __init__(self, is_aside: bool = False, is_stubborn: bool = False) -> None:
        self.is_aside, self.is_stubborn = is_aside, is_stubborn
        self.calls: dict[int, Asked] = {}
        self.pushes: dict[str, Asked] = {}
        self.sessions = 0
        self.told: list[Json] = []
        self.closed: list[int] = []

    async def __call__(self, asked: Asked) -> None:
        if asked.method == "GET":
            self.pushes[asked.headers["mcp-session-id"]] = asked
            await asked.stream(": open", end=False)
            await asked.gone()
        elif asked.rpc == "tools/call":
            await self._call(asked)
        elif asked.message is not None and "method" not in asked.message:
            await asked.reply(status=202)
            self.told.append(asked.message)
            number = asked.message["id"]
            if self.is_stubborn:
                return
            await self.calls[number].more(event({"id": number, "result": {"content": [
                {"type": "text", "text": json.dumps(asked.message.get("result"))}]}}))  # fmt: skip
            self.calls[number].writer.close()
        else:
            if asked.rpc == "notifications/cancelled":
                self.told.append(asked.message)
            self.sessions += asked.rpc == "initialize"
            if not await legacy_start(asked, Mcp_Session_Id=f"session-{self.sessions}"):
                await asked.result({"tools": []})

    async def _call(self, asked: Asked) -> None:
        number = asked.message["id"]
        self.calls[number] = asked
        await asked.stream(": go", end=False)
        stream = asked if not self.is_aside else self.pushes.get(asked.headers["mcp-session-id"])
        if stream is not None:
            await stream.more(event({"id": number, "method": "elicitation/create", "params": FORM_ASK}))
        await asked.gone()
        self.closed.append(number)


async def test_over_http_each_question_belongs_to_the_call_on_whose_stream_it_came() -> None:
    server = HttpServer()
    async with endpoint(server) as (url, _), running(url=url, era="legacy") as rig:
        peer = Peer(rig.server)
        outcomes = await asyncio.gather(*(peer.call("x", {"n": number}) for number in range(5)))
        assert rig.server.describe()["connections"] == 1 and rig.server.describe()["parked"] == 5
        for number, asked in reversed(list(enumerate(outcomes))):
            assert isinstance(asked, InputRequired)
            answer = {"action": "accept", "content": {"n": number}}
            retry = {"inputResponses": answers(answer), "requestState": asked.state}
            assert await peer.said("x", {"n": number}, **retry) == answer


async def test_what_is_asked_while_a_call_waits_is_weighed_with_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small question had its call wait, and megabytes behind it counted for nobody."""
    monkeypatch.setattr(suspended, "MAX_PARKED_BYTES", 10_000)
    server = HttpServer(is_stubborn=True)
    async with endpoint(server) as (url, _), running(url=url, era="legacy") as rig:
        for _ in range(2):
            await Peer(rig.server).asked("x")
        first, second = server.calls
        long = {**FORM_ASK, "message": "x" * 8_400}  # all three questions are too much, and two are not
        await server.calls[second].more(event({"id": 77, "method": "elicitation/create", "params": long}))
        await until(lambda: rig.server.describe()["parked"] == 1 and server.told)
        assert server.told[0]["id"] == first


async def test_an_answer_while_a_call_waits_is_weighed_with_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server need not wait for what it has asked, and its answer may be the largest."""
    monkeypatch.setattr(suspended, "MAX_PARKED_BYTES", MAX_MESSAGE + 10_000)
    server = HttpServer(is_stubborn=True)
    async with endpoint(server) as (url, _), running(url=url, era="legacy") as rig:
        peer = Peer(rig.server)
        asked = [await peer.asked("x") for _ in range(2)]
        long = {"content": [{"type": "text", "text": dump("x" * 20_000).decode()}]}
        for id in server.calls:
            await server.calls[id].more(event({"id": id, "result": long}))
        await until(lambda: rig.server.describe()["parked"] == 1)
        states = [one.state for one in asked]
        lost, fetched = [await peer.call("x", inputResponses=answers(YES), requestState=state) for state in states]
        assert reason(lost) == "outcome_unknown" and text(fetched) == "x" * 20_000


async def test_over_http_a_call_that_is_given_up_is_cancelled_and_its_stream_closed() -> None:
    server = HttpServer(is_stubborn=True)
    async with endpoint(server) as (url, _), running(url=url, era="legacy") as rig:
        await Peer(rig.server).asked("x")
        rig.server.abandon("first")
        await until(lambda: len(server.told) == 2 and server.closed)
        assert server.told[0]["result"] == {"action": "cancel"}
        assert server.told[1]["method"] == "notifications/cancelled"


async def test_a_question_on_the_stream_of_all_calls_belongs_to_the_only_one() -> None:
    server = HttpServer(is_aside=True)
    async with endpoint(server) as (url, _), running(url=url, era="legacy") as rig:
        peer = Peer(rig.server)
        await rig.server(Call(MODERN, "tools/list", {}))  # dials what the call will use
        await until(lambda: "session-2" in server.pushes)
        asked = await peer.asked("x")
        assert await peer.said("x", inputResponses=answers(YES), requestState=asked.state) == YES


async def test_a_server_that_asks_beside_the_streams_of_its_calls_gets_one_call_at_a_time() -> None:
    server = HttpServer(is_aside=True)
    async with endpoint(server) as (url, _), running(url=url, era="legacy") as rig:
        peer = Peer(rig.server)
        await rig.server(Call(MODERN, "tools/list", {}))
        await until(lambda: "session-2" in server.pushes)
        first = await peer.asked("x")
        second = asyncio.ensure_future(peer.call("x"))
        await until(lambda: rig.server.describe()["connections"] == 2)
        second.cancel()
        assert await peer.said("x", inputResponses=answers(YES), requestState=first.state) == YES
