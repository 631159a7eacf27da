"""What a legacy session listens to, and what one more resource costs: the session in front of the real router."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from scripted_server import Front, Scripted

from sluicegate.listen import session_notifications
from sluicegate.listen.session_notifications import SessionNotifications
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Notification
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, Trail, not_found
from sluicegate.telemetry import Backoff

OLD = Client("key:ann", roles=("role:a",), revision="2025-11-25", session="s1")
LIMITED = Failure(INTERNAL_ERROR, "Too many requests", {"reason": "rate_limited"}, "rate_limited")
MANY = 40


@dataclass
class Bed:
    server: Scripted
    front: Front
    session: SessionNotifications
    heard: list[Notification]
    judged: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    is_limited: bool = False

    def updates(self) -> list[str]:
        return [note.params["uri"] for note in self.heard if note.method == session_notifications.UPDATED]

    def watched(self) -> list[str]:
        return sorted(uri for uri, _ in self.server.told)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await anyio.sleep(0.001)


@asynccontextmanager
async def bed() -> AsyncIterator[Bed]:
    server = Scripted("a", capabilities={"resources": {"subscribe": True}})
    heard: list[Notification] = []

    def may_list(call: Call, server: str, target: Any) -> bool:
        here.judged.append(target.own)
        return not target.own.startswith("x:secret")

    async def handler(call: Call) -> Outcome:
        here.calls.append(call)
        return LIMITED if here.is_limited else await here.front.router(call)

    async def tell(note: Notification) -> None:
        heard.append(note)

    async with (
        Front(server, may_list=may_list, may_see=lambda call, key: True) as front,
        anyio.create_task_group() as group,
    ):
        session = SessionNotifications(handler, OLD, Trail, tell, group)
        here = Bed(server, front, session, heard)
        session.start()
        await until(lambda: session._current is not None and session._current.settled.is_set())
        yield here
        session.stop()


async def test_one_resource_more_or_less_is_judged_alone_on_the_stream_that_is_open() -> None:
    async with bed() as here:
        for number in range(MANY):
            here.judged.clear()
            assert await here.session.subscribe(f"a+x:{number}", True) == Result({})
            assert set(here.judged) == {f"x:{number}"} and len(here.judged) <= 2
        streams = [call for call in here.calls if "dev.sluice/change" not in call.params]
        assert len(streams) == 1 and repr(here.front.hub) == "Hub(1 subscriptions)"
        assert here.updates() == [], "nothing was updated"
        here.server.update("x:7")
        await until(lambda: here.updates() == ["a+x:7"])
        here.judged.clear()
        assert await here.session.subscribe("a+x:7", False) == Result({})
        assert here.judged == [] and "x:7" not in here.watched() and len(here.watched()) == MANY - 1
    assert here.server.told == []


async def test_what_is_refused_or_denied_is_said_and_the_others_stay() -> None:
    async with bed() as here:
        here.server.refuses = {"x:no": Failure(-32000, "not this one")}
        await here.session.subscribe("a+x:1", True)
        assert await here.session.subscribe("a+x:no", True) == Failure(-32000, "not this one")
        unknown = "a+x:secret"
        assert await here.session.subscribe(unknown, True) == not_found("resources/read", {"uri": unknown})
        assert here.watched() == ["x:1"]


async def test_a_stream_is_changed_by_its_own_session_alone() -> None:
    async with bed() as here:
        current = here.session._current
        assert current is not None
        params = {
            "notifications": {"resourceSubscriptions": ["a+x:1"]},
            "dev.sluice/change": {"stream": current.stream, "wanted": True},
        }
        stranger = await here.front.router(Call(replace(OLD, session="s2"), "subscriptions/listen", params))
        assert isinstance(stranger, Failure) and here.watched() == []


async def test_with_other_roles_all_are_judged_again_and_each_can_still_be_left() -> None:
    async with bed() as here:
        for number in range(3):
            await here.session.subscribe(f"a+x:{number}", True)
        here.judged.clear()
        here.session.act_as(replace(OLD, roles=("role:b",)))
        assert await here.session.subscribe("a+x:1", False) == Result({})
        assert set(here.judged) == {"x:0", "x:1", "x:2"}
        assert here.watched() == ["x:0", "x:2"]


async def test_the_uris_of_a_session_are_bounded_together() -> None:
    async with bed() as here:
        long = "y" * 4_000
        for number in range(session_notifications.MAX_CHARS // 4_010):
            assert await here.session.subscribe(f"a+x:{number:05}{long}", True) == Result({})
        refused = await here.session.subscribe(f"a+x:more{long}", True)
        assert isinstance(refused, Failure) and refused.code == INVALID_PARAMS and "characters" in refused.message
        assert await here.session.subscribe("a+x:3", True) == Result({})


async def test_where_the_rate_refuses_a_change_that_is_said_and_the_stream_goes_on() -> None:
    async with bed() as here:
        await here.session.subscribe("a+x:1", True)
        here.is_limited = True
        assert await here.session.subscribe("a+x:2", True) == LIMITED
        assert await here.session.subscribe("a+x:1", False) == LIMITED
        here.server.update("x:1")
        await until(lambda: here.updates() == ["a+x:1"])
        here.is_limited = False
        assert await here.session.subscribe("a+x:1", False) == Result({})
        assert here.watched() == []


@pytest.mark.parametrize("asks", [False, True])
async def test_a_session_whose_stream_was_refused_listens_again(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_notifications, "DEFAULT_BACKOFF", Backoff(first=0.001, last=0.001))
    async with bed() as here:
        await here.session.subscribe("a+x:1", True)
        here.is_limited = True
        calls = len(here.calls)
        here.session.act_as(replace(OLD, roles=("role:b",)))
        await until(lambda: len(here.calls) > calls + 2)
        if asks:
            assert await here.session.subscribe("a+x:2", True) == LIMITED
            assert await here.session.subscribe("a+x:1", False) == LIMITED
        here.is_limited = False
        await until(lambda: here.updates() == ["a+x:1"])  # it may have been updated meanwhile
        here.server.update("x:1")
        await until(lambda: here.updates() == ["a+x:1"] * 2)
        assert await here.session.subscribe("a+x:2", True) == Result({})
        assert here.watched() == ["x:1", "x:2"]


@pytest.mark.parametrize(("more", "in_a_row"), [("", 4), ("y" * 1_000, 1)])
async def test_what_one_request_has_judged_counts_for_its_client_in_steps(more: str, in_a_row: int) -> None:
    spent: list[float] = []

    async def spend(since: float) -> None:
        spent.append(since)
        await anyio.lowlevel.checkpoint()

    async with bed() as here:
        trail = Trail()
        trail.spend = spend
        params = {"notifications": {"resourceSubscriptions": [f"a+x:{number}{more}" for number in range(MANY)]}}
        async with anyio.create_task_group() as group:
            other = Call(replace(OLD, session="s2"), "subscriptions/listen", params, trail=trail)
            group.start_soon(here.front.router, other)
            await until(lambda: len(here.watched()) == MANY)
            group.cancel_scope.cancel()
        assert len(spent) == MANY // in_a_row
