"""Calls that wait as tasks, where something fails that never should: the call is made once, and its client is told.

What works is told by `tests/approval/test_approval_tasks.py`, between real peers.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from approval_kit import ANN, TOOL, Town

from sluicegate import telemetry
from sluicegate.guards.approval_tasks import ApprovalTaskDeps, ApprovalTasks
from sluicegate.guards.approve import approve
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    Handler,
    InputRequired,
    Outcome,
    Result,
    Target,
    TaskStarted,
)


class Place:
    """Where tasks are kept: one, and what it was told of it."""

    def __init__(self, town: Town, outcome: Outcome) -> None:
        self.town, self.outcome = town, outcome
        self.runs, self.told = 0, list[Json]()
        self.holder: Handler | None = None
        self.ended = anyio.Event()

    async def again(self, call: Call) -> Outcome:
        self.runs += 1
        return self.outcome

    async def keep(self, call: Call, target: Target, started: TaskStarted, holder: Handler) -> Outcome:
        self.holder = holder
        return TaskStarted({**started.task, "taskId": "ours"})

    def announce(self, server: str, scope: str | None, notification: Notification) -> None:
        self.told.append(notification.params)
        self.ended.set()

    async def ask(self, method: str) -> Outcome:
        assert self.holder is not None
        return await self.holder(Call(ANN, method, {"taskId": "ours"}, target=TOOL))

    def ways(self, start: Any) -> ApprovalTaskDeps:
        async def broken(*ids: str) -> None:
            raise OSError("the disk is full")

        async def fine(*args: object) -> Failure | None:
            return None

        async def yes(call: Call) -> bool:
            return True

        return ApprovalTaskDeps(
            self.again, start, fine, yes, self.keep, broken, broken, self.again, self.announce, lambda client: client,
            lambda server, call: None,
        )  # fmt: skip


@asynccontextmanager
async def waiting(outcome: Outcome) -> AsyncIterator[Place]:
    town = Town()
    place = Place(town, outcome)
    async with anyio.create_task_group() as group:
        holding = ApprovalTasks(town.desk, place.ways(partial(group.start_soon, telemetry.supervise, "held call")))
        started = await approve(town.desk, town.means(), holding)(town.call(amount=1), town.server)
        assert isinstance(started, TaskStarted) and started.task["status"] == "working"
        with anyio.fail_after(20):
            await place.ended.wait()
        yield place
        group.cancel_scope.cancel()


@asynccontextmanager
async def waiting_call(town: Town, place: Place, again: Handler, begun: anyio.Event) -> AsyncIterator[None]:
    """A call that waits as a task and is made again by `again`, once that has begun."""
    place.again = again  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        holding = ApprovalTasks(town.desk, place.ways(group.start_soon))
        await approve(town.desk, town.means(), holding)(town.call(amount=1), town.server)
        with anyio.fail_after(20):
            await begun.wait()
        yield
        group.cancel_scope.cancel()


async def never(begun: anyio.Event) -> Outcome:
    """A call that runs and does not end."""
    begun.set()
    await anyio.sleep_forever()
    raise AssertionError


async def test_a_task_that_cannot_be_handed_over_has_failed_and_its_call_is_not_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = TaskStarted({"taskId": "theirs", "status": "working"})
    async with waiting(theirs) as place:
        told = await place.ask("tasks/get")
        assert isinstance(told, Result) and told.value["status"] == "failed"
        assert told.value["error"]["message"].startswith("Internal error") and place.runs == 1
        assert "the disk is full" in caplog.text


async def test_an_error_of_the_server_is_the_tasks_error() -> None:
    async with waiting(Failure(-32050, "broken", {"why": "x"})) as place:
        told = await place.ask("tasks/get")
        assert isinstance(told, Result) and told.value["status"] == "failed"
        assert told.value["error"] == {"code": -32050, "message": "broken", "data": {"why": "x"}}
        assert await place.ask("tasks/result") == place.outcome
        assert await place.ask("tasks/cancel") == Result({}), "what has ended stays as it ended"
        assert [task["status"] for task in place.told] == ["failed"]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_cancelled_task_says_not_executed_only_where_its_call_had_not_begun(is_late: bool) -> None:
    town = Town()
    place, begun = Place(town, Result({})), anyio.Event()

    async def again(call: Call) -> Outcome:
        if is_late:
            (approval,) = town.desk.open_ones()
            await town.decide(approval)
            assert await town.desk.consume(approval.id)
        return await never(begun)

    async with waiting_call(town, place, again, begun):
        assert await place.ask("tasks/cancel") == Result({})
        ended = await place.ask("tasks/result")
    assert isinstance(ended, Result) and ended.reason == ("outcome_unknown" if is_late else "approval_denied")
    assert ended.value["content"][0]["text"].startswith("NOT EXECUTED") is not is_late


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_call_that_was_sent_without_its_approval_has_begun_too(rounds: int) -> None:
    """The policy may need nobody by the time that somebody agrees: the approval is superseded, and the call runs."""
    town = Town()
    place, begun = Place(town, Result({})), anyio.Event()

    async def again(call: Call) -> Outcome:
        (approval, *_) = town.desk.open_ones() or [None]
        if approval is not None:
            await town.desk.end(approval.id, "superseded")
            call.trail.is_sent = True
        place.runs += 1
        if place.runs <= rounds:
            return InputRequired({})  # a state alone: the call is made again at once
        return await never(begun)

    async with waiting_call(town, place, again, begun):
        assert await place.ask("tasks/cancel") == Result({})
        ended, told = await place.ask("tasks/result"), await place.ask("tasks/get")
    assert isinstance(ended, Result) and ended.reason == "outcome_unknown"
    assert "NOT EXECUTED" not in ended.value["content"][0]["text"]
    assert isinstance(told, Result) and told.value["statusMessage"] == "cancelled after it had begun"


async def test_a_call_whose_task_could_not_be_kept_has_one_when_it_comes_again_which_runs() -> None:
    town = Town()
    place, jobs, faults = Place(town, Result({})), list[Any](), [OSError("the disk is full")]
    keep = place.keep

    async def failing_once(*about: Any) -> Outcome:
        if faults:
            raise faults.pop()
        return await keep(*about)

    place.keep = failing_once  # type: ignore[method-assign]
    approving = approve(town.desk, town.means(), ApprovalTasks(town.desk, place.ways(jobs.append)))
    with pytest.raises(OSError, match="the disk is full"):
        await approving(town.call(amount=1), town.server)
    for _ in range(2):
        assert isinstance(await approving(town.call(amount=1), town.server), TaskStarted)
    assert len(jobs) == 1


NOBODY = replace(ANN, principal="anonymous", revision="2025-11-25", session="s1")


@pytest.mark.parametrize(("own", "other"), [
    (ANN, replace(ANN, toolset="ops")), (NOBODY, replace(NOBODY, session="s2")),
    (NOBODY, replace(NOBODY, revision="2026-07-28", session=None)),
])  # fmt: skip
async def test_the_same_call_where_its_task_is_unknown_waits_and_takes_no_task_from_its_owner(
    own: Client, other: Client
) -> None:
    """At another toolset, or in another session of whoever has no name."""
    town, begun, kept = Town(), anyio.Event(), list[Call]()
    town.people[own.principal] = own
    place = Place(town, Result({}))

    async def keep(call: Call, target: Target, started: TaskStarted, holder: Handler) -> Outcome:
        kept.append(call)
        return TaskStarted({**started.task, "taskId": "ours"})

    place.keep = keep  # type: ignore[method-assign]
    place.again = lambda call: never(begun)  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        guard = approve(town.desk, town.means(), ApprovalTasks(town.desk, place.ways(group.start_soon)))
        for client in (own, other, own):
            said = await guard(town.call(client, amount=1), town.server)
            if client is other:
                assert isinstance(said, Result) and said.reason == "approval_pending"
            else:
                assert isinstance(said, TaskStarted)
        group.cancel_scope.cancel()
    assert [call.client for call in kept] == [own, own]
