"""The chain as data: its order, and that a broken guard is a refusal."""

from collections.abc import Callable

import pytest

from proxy.call import Call, Client, Failure, Guard, Handler, Outcome, Result
from proxy.guards import ORDER, chain

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
        "measure", "record", "throttle", "name", "seal", "enforce", "quota", "approve", "commit", "inspect"
    )  # fmt: skip


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
