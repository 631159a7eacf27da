"""The chain as data: its order, and that a broken guard is a refusal."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from sluicegate.guards import ORDER, RESUMED, TASK_NOTIFICATIONS, Observer, chain
from sluicegate.protocol.model import Call, Client, Failure, Guard, Handler, Outcome, Result

CALL = Call(Client("local"), "tools/call", {"name": "x"})


async def answer(call: Call) -> Outcome:
    return Result({"answered": True})


def noting(seen: list[str], name: str) -> Guard:
    async def guard(call: Call, inner: Handler) -> Outcome:
        seen.append(name)
        outcome = await inner(call)
        seen.append(f"/{name}")
        return outcome

    return guard


async def test_guards_are_passed_in_order_and_left_in_reverse() -> None:
    seen: list[str] = []
    handler = chain({name: noting(seen, name) for name in ORDER}, answer)
    assert await handler(CALL) == Result({"answered": True})
    assert seen == [*ORDER, *(f"/{name}" for name in reversed(ORDER))]


def test_the_order_is_the_documented_one() -> None:
    assert ORDER == (
        "measure", "record", "cut_off", "throttle", "find", "name", "seal", "enforce", "quota", "call_hooks", "approve",
        "login", "commit", "inspect", "result_hooks",
    )  # fmt: skip


@pytest.mark.parametrize("order", [RESUMED, TASK_NOTIFICATIONS])
async def test_the_chain_of_each_use_is_declared_whole_and_keeps_the_order(order: tuple[str, ...]) -> None:
    seen: list[str] = []
    await chain({name: noting(seen, name) for name in ORDER}, answer, order)(CALL)
    assert tuple(seen[: len(order)]) == order == tuple(name for name in ORDER if name in order)
    # nothing judges less
    assert {"record", "seal", "enforce", "approve", "login", "commit", "inspect", "result_hooks"} <= {*order}


async def test_a_guard_without_work_is_no_link() -> None:
    assert chain(dict.fromkeys(ORDER), answer) is answer


@pytest.mark.parametrize("change", [lambda g: g.pop("enforce"), lambda g: g.update(extra=None)])
def test_a_guard_cannot_be_forgotten(change: Callable[[dict[str, Guard | None]], object]) -> None:
    guards: dict[str, Guard | None] = dict.fromkeys(ORDER)
    change(guards)
    with pytest.raises(ValueError, match="guards must be exactly"):
        chain(guards, answer)


@pytest.mark.parametrize("broken", ORDER)
@pytest.mark.parametrize("before", [True, False])
async def test_a_guard_that_raises_refuses(broken: str, before: bool) -> None:
    reached: list[Call] = []

    async def server(call: Call) -> Outcome:
        reached.append(call)
        return Result({"secret": 1})

    async def guard(call: Call, inner: Handler) -> Outcome:
        if not before:
            await inner(call)
        raise RuntimeError("secret detail")

    handler = chain({**dict.fromkeys(ORDER), broken: guard}, server)
    assert await handler(CALL) == Failure(-32603, "Internal error")
    assert len(reached) == (0 if before else 1)


async def test_guards_outside_a_broken_one_still_see_its_refusal() -> None:
    outcomes: list[Outcome] = []

    async def outer(call: Call, inner: Handler) -> Outcome:
        outcomes.append(await inner(call))
        return outcomes[-1]

    async def broken(call: Call, inner: Handler) -> Outcome:
        raise RuntimeError

    await chain({**dict.fromkeys(ORDER), "record": outer, "enforce": broken}, answer)(CALL)
    assert outcomes == [Failure(-32603, "Internal error")]


class Watcher(Observer):
    """Writes down what it is told; `breaks` is where it fails."""

    def __init__(self, told: list[Any], breaks: str = "") -> None:
        self.told, self.breaks = told, breaks

    def begin(self, call: Call) -> None:
        if self.breaks == "begin":
            raise RuntimeError("secret detail")

    def end(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        assert seconds >= 0
        self.told.append(outcome)
        if self.breaks == "end":
            raise RuntimeError("secret detail")


async def test_witnesses_share_a_boundary_and_are_told_the_innermost_first() -> None:
    told: list[Any] = []
    inner, outer = Watcher(told, "end"), Watcher(told)

    async def broken(call: Call, inner: Handler) -> Outcome:
        raise RuntimeError("secret detail")

    handler = chain({**dict.fromkeys(ORDER), "measure": outer, "record": inner, "enforce": broken}, answer)
    refusal = Failure(-32603, "Internal error")
    assert await handler(CALL) == refusal
    assert told == [refusal, refusal]  # and what the first of them breaks is still a refusal


@pytest.mark.parametrize("breaks", ["begin", "end"])
async def test_a_broken_witness_is_a_refusal_that_the_other_hears_of(breaks: str) -> None:
    told: list[Any] = []
    handler = chain({**dict.fromkeys(ORDER), "measure": Watcher(told), "record": Watcher([], breaks)}, answer)
    refusal = Failure(-32603, "Internal error")
    assert await handler(CALL) == refusal
    assert told == [refusal]


async def test_a_cancelled_call_stays_cancelled_whatever_its_witnesses_do() -> None:
    told: list[Any] = []

    async def server(call: Call) -> Outcome:
        scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    guards = {**dict.fromkeys(ORDER), "measure": Watcher(told), "record": Watcher([], "end")}
    with anyio.CancelScope() as scope:
        await chain(guards, server)(CALL)
    assert scope.cancelled_caught
    assert told == [None]
