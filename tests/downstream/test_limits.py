"""The gate and the breaker, with a clock that is told the time; and what may be asked twice."""

import asyncio

import pytest

from sluicegate.downstream.call_limits import Breaker, ConcurrencyLimit
from sluicegate.downstream.failures import Lost, may_resend
from sluicegate.downstream.settings import ServerSettings


async def test_the_gate_lets_so_many_in_and_the_rest_wait_in_order() -> None:
    gate = ConcurrencyLimit(1, room=2)
    assert await gate.enter(1)
    order: list[int] = []

    async def wait(number: int) -> None:
        if await gate.enter(5):
            order.append(number)

    first, second = asyncio.ensure_future(wait(1)), asyncio.ensure_future(wait(2))
    await asyncio.sleep(0)
    assert not await gate.enter(5)  # no room to wait
    gate.leave()
    await first
    gate.leave()
    await second
    assert order == [1, 2] and gate.busy == 1
    gate.leave()
    assert gate.busy == 0


async def test_who_gives_up_waiting_leaves_no_place_behind() -> None:
    gate = ConcurrencyLimit(1, room=2)
    assert await gate.enter(1)
    assert not await gate.enter(0.01)
    waiting = asyncio.ensure_future(gate.enter(5))
    await asyncio.sleep(0)
    gate.leave()  # its turn comes, and in the same moment it is cancelled
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.busy == 0 and await gate.enter(0.01)


def test_the_breaker_opens_after_failures_in_a_row_and_tries_one_call() -> None:
    now = 0.0
    breaker = Breaker(lambda: now, threshold=2, pause=30)
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    assert breaker.admits()
    breaker.failed()
    assert not breaker.admits() and breaker.state == "open"
    now = 30.0
    assert breaker.state == "half-open" and breaker.admits() and not breaker.admits()
    breaker.gave_up()  # the trial was cancelled: the next one is the trial
    assert breaker.admits()
    breaker.failed()
    assert not breaker.admits()
    now = 60.0
    assert breaker.admits()
    breaker.succeeded()
    assert breaker.state == "closed"


@pytest.mark.parametrize(
    ("method", "sent", "gone", "again"),
    [
        ("tools/call", True, True, False),
        ("tools/call", True, False, False),
        ("tools/call", False, True, True),  # a session that is gone
        ("tools/call", False, False, False),
        ("tools/list", True, True, True),
        ("resources/read", True, False, True),
        ("tools/list", False, False, False),
    ],
)
def test_only_what_was_provably_not_executed_or_harms_nobody_is_asked_twice(
    method: str, sent: bool, gone: bool, again: bool
) -> None:
    assert may_resend(method, Lost("", sent=sent, gone=gone)) is again


def test_a_server_has_either_a_command_or_an_address() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        ServerSettings("x")
    with pytest.raises(ValueError, match="exactly one"):
        ServerSettings("x", command=("a",), url="http://localhost/mcp")
