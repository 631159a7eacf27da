"""No record, no call: the guards that write the audit log, around a recording server."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from sluicegate.audit.log import AuditLog
from sluicegate.audit.settings import AuditSettings
from sluicegate.guards import ORDER, chain
from sluicegate.guards.commit import commit
from sluicegate.guards.record import RecordGuard
from sluicegate.outcomes import classify
from sluicegate.protocol.model import (
    REASON,
    ApprovalRef,
    Call,
    Client,
    Decision,
    Failure,
    Handler,
    Outcome,
    Result,
    Target,
    Trail,
    Verdict,
)
from sluicegate.store import StoreFailed
from sluicegate.store.memory import MemoryStore

TOOL = Target("github", "tool", "push", "gh__push", {"name": "push"})


def call(method: str = "tools/call", id: str = "c1") -> Call:
    return Call(Client("key:a"), method, {"name": "push"}, target=TOOL, trail=Trail(id))


class Server:
    """Writes down what reached it, and in what order with the log."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    async def __call__(self, call: Call) -> Outcome:
        self.events.append(f"server {call.trail.id}")
        return Result({})


def wire(events: list[str], keeps: bool, server: Handler | None = None) -> Handler:
    async def intend(call: Call, approval: Any) -> bool:
        events.append(f"intent {call.trail.id}")
        return keeps

    def close(call: Call, outcome: Outcome | None, seconds: float) -> None:
        events.append(f"closed {call.trail.id} {type(outcome).__name__}")

    inner, outer, last = commit(MemoryStore().spend, intend), RecordGuard(close), server or Server(events)

    async def committed(call: Call) -> Outcome:
        return await inner(call, last)

    async def handle(call: Call) -> Outcome:
        return await outer(call, committed)

    return handle


async def test_the_intent_is_kept_before_the_server_is_reached() -> None:
    events: list[str] = []
    assert await wire(events, keeps=True)(call()) == Result({})
    assert events == ["intent c1", "server c1", "closed c1 Result"]


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
async def test_without_a_record_nothing_reaches_the_server(method: str) -> None:
    events: list[str] = []
    outcome: Any = await wire(events, keeps=False)(call(method))
    assert not [event for event in events if event.startswith("server")] and len(events) == 2
    if method == "tools/call":
        assert outcome.value["isError"] and outcome.value["_meta"][REASON] == "audit_unavailable"
    else:
        assert (outcome.code, outcome.data) == (-32603, {"reason": "audit_unavailable"})


async def test_without_a_record_a_later_round_is_not_said_to_be_a_call_that_was_not_executed() -> None:
    again = call()
    again.trail.resume("c1", 1)
    outcome: Any = await wire([], keeps=False)(again)
    assert "NOT EXECUTED" not in str(outcome.value) and outcome.reason == "audit_unavailable"  # the seal says the rest


async def test_a_call_whose_record_took_long_is_judged_again() -> None:
    async def slowly(call: Call, approval: Any) -> bool:
        await anyio.sleep(0.2)
        return True

    for is_allowed in (True, False):
        events: list[str] = []
        guard, late = commit(MemoryStore().spend, slowly, may_still=lambda call: is_allowed), call()  # noqa: B023
        late.trail.add(Decision(Verdict.ALLOW, "p1", ""))
        refused: Any = await guard(late, Server(events))
        assert refused.reason == (None if is_allowed else "denied") and len(events) == is_allowed


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
async def test_what_a_store_that_fails_means_depends_on_whether_the_server_was_reached(
    begun: bool, is_sent: bool
) -> None:
    events: list[str] = []
    asked = call()
    if begun:
        asked.trail.resume("c1", 1)

    async def spend(key: str, seconds: float | None) -> bool:
        if not is_sent:
            raise StoreFailed("database is locked")
        return True

    async def keep(call: Call) -> Outcome:
        raise StoreFailed("database is locked")

    def close(call: Call, outcome: Outcome | None, seconds: float) -> None:
        assert outcome is not None
        events.append(classify(outcome, call).reason)

    guards: dict[str, Any] = dict.fromkeys(ORDER) | {"record": RecordGuard(close), "commit": commit(spend)}
    if not begun and not is_sent:
        async def approve(call: Call, inner: Handler) -> Outcome:
            async with anyio.create_task_group():  # as where a call is held
                raise StoreFailed("database is locked")

        guards["approve"] = approve
    outcome: Any = await chain(guards, keep)(asked)
    wanted = "outcome_unknown" if begun or is_sent else "store_unavailable"
    assert outcome.reason == wanted and events == [wanted]
    assert ("NOT EXECUTED" in str(outcome.value)) == (wanted == "store_unavailable")
    assert "locked" not in str(outcome.value)


@pytest.mark.parametrize(("key", "wanted"), [("q1", "outcome_unknown"), ("", "approval_denied")])
async def test_an_approval_that_another_replica_used_may_have_been_for_this_very_round(key: str, wanted: str) -> None:
    class Used:
        @property
        def note(self) -> dict[str, Any]:
            return {}

        async def redeem(self) -> bool:
            return False

    async def spend(key: str, seconds: float | None) -> bool:
        return True

    async def never(call: Call) -> Outcome:
        raise AssertionError

    asked = call()
    asked.trail.resume("c0", 1, ApprovalRef("a1", "d", "rule", "confirm", key))
    asked.trail.approval_use = Used()
    outcome: Any = await commit(spend)(asked, never)
    assert outcome.reason == wanted


@pytest.mark.parametrize("at", ["server", "witness"])
async def test_a_failure_of_ours_behind_the_sending_is_told_as_unknown(at: str) -> None:
    async def spend(key: str, seconds: float | None) -> bool:
        return True

    async def serve(call: Call) -> Outcome:
        if at == "server":
            raise ValueError
        return Result({"content": []})

    def close(call: Call, outcome: Outcome | None, seconds: float) -> None:
        if at == "witness":
            raise ValueError

    guards: dict[str, Any] = dict.fromkeys(ORDER) | {"record": RecordGuard(close), "commit": commit(spend)}
    outcome: Any = await chain(guards, serve)(call())
    assert outcome.reason == "outcome_unknown" and "may not have been executed" in str(outcome.value)


async def test_a_round_that_was_spent_is_no_intent() -> None:
    events: list[str] = []
    handle = wire(events, keeps=True)
    for attempt in ("c2", "c3"):
        again = call(id=attempt)
        again.trail.resume("c1", 1)
        last = await handle(again)
    assert isinstance(last, Failure)
    assert events == ["intent c2", "server c2", "closed c2 Result", "closed c3 Failure"]


async def test_crashes_and_cancellation_are_closed_too() -> None:
    events: list[str] = []

    async def crash(call: Call) -> Outcome:
        raise RuntimeError

    async def hang(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(RuntimeError):
        await wire(events, keeps=True, server=crash)(call())
    with anyio.move_on_after(0.01):
        await wire(events, keeps=True, server=hang)(call(id="c2"))
    assert events == ["intent c1", "closed c1 NoneType", "intent c2", "closed c2 NoneType"]


async def test_with_a_real_log_a_refused_call_reaches_nobody(tmp_path: Path) -> None:
    events: list[str] = []
    audit = AuditLog(AuditSettings(tmp_path / "audit" / "sluice.jsonl", tmp_path / "state"), b"d" * 32, [b"s" * 32])
    await audit.start()
    guard = commit(MemoryStore().spend, audit.intent)
    assert await guard(call(), Server(events)) == Result({})
    (tmp_path / "audit" / "sluice.jsonl").unlink()
    refused = await guard(call(id="c2"), Server(events))
    assert isinstance(refused, Result) and refused.value["isError"]
    await audit.stop()
    assert events == ["server c1"]


@pytest.mark.parametrize("waits", ["round", "approval"])
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_call_that_waited_for_the_store_is_judged_again(waits: str, is_allowed: bool) -> None:
    """An approval, or a round, is used up by a database: rights may change meanwhile, and the log took no time."""
    judged: list[str] = []

    class Use:
        note: Any = None

        async def redeem(self) -> bool:
            return True

    def may_still(call: Call) -> bool:
        judged.append(call.trail.id)
        return is_allowed

    events: list[str] = []
    one = call()
    if waits == "round":
        one.trail.resume("c1", 1)
    else:
        one.trail.approval_use = Use()
    one.trail.add(Decision(Verdict.ALLOW, "p1", ""))
    refused: Any = await commit(MemoryStore().spend, None, may_still=may_still)(one, Server(events))
    assert judged == ["c1"] and len(events) == is_allowed
    assert refused.reason == (None if is_allowed else "outcome_unknown" if waits == "round" else "denied")
