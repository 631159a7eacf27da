"""The gate and the breaker, with a clock that is told the time; and what may be asked twice."""

import asyncio

import anyio
import pytest

from sluicegate.downstream.call_limits import MAX_FAILING, Breaker, RetryBackoff
from sluicegate.downstream.failures import Lost, may_resend
from sluicegate.downstream.settings import ServerSettings
from sluicegate.runtime import concurrency_limit
from sluicegate.runtime.concurrency_limit import ConcurrencyLimit


class Gate:
    """A gate with a clock that is told the time, and those who wait at it."""

    def __init__(self, limit: int, room: int) -> None:
        self.now = 0.0
        self.limit = ConcurrencyLimit(limit, room, lambda: self.now)
        self.entered: list[str] = []
        self.refused: list[str] = []

    async def come(self, *names: str) -> list[asyncio.Task[None]]:
        """Each of these comes once, in this order, and waits if it must."""
        coming = [asyncio.ensure_future(self._come(name)) for name in names]
        await settled()
        return coming

    async def _come(self, name: str) -> None:
        (self.entered if await self.limit.enter(name, 30) else self.refused).append(name)

    async def leave(self, name: str) -> None:
        self.limit.leave(name)
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_gate_lets_so_many_in_and_the_rest_wait_in_order() -> None:
    gate = ConcurrencyLimit(1, room=2, clock=lambda: 0.0)
    assert await gate.enter("ann", 1)
    order: list[int] = []

    async def wait(number: int) -> None:
        if await gate.enter("ann", 5):
            order.append(number)

    first, second = asyncio.ensure_future(wait(1)), asyncio.ensure_future(wait(2))
    await asyncio.sleep(0)
    assert not await gate.enter("ann", 5)  # no room to wait
    gate.leave("ann")
    await first
    gate.leave("ann")
    await second
    assert order == [1, 2] and gate.busy == 1
    gate.leave("ann")
    assert gate.busy == 0


async def test_a_share_that_shrinks_ends_no_call_and_one_that_grows_lets_in_who_waits() -> None:
    gate = Gate(2, room=4)
    await gate.come("ann", "bob", "cid", "dan")
    gate.limit.set_limit(1, False)
    await gate.leave("ann")
    assert gate.entered == ["ann", "bob"] and not gate.limit.enter_at_once("eve")
    gate.limit.set_limit(3, True)
    await settled()
    assert gate.entered == ["ann", "bob", "cid", "dan"] and gate.limit.busy == 3


async def test_where_no_part_is_left_nobody_waits_for_one() -> None:
    gate = Gate(1, room=4)
    await gate.come("ann", "bob")
    gate.limit.set_limit(0, False)
    await gate.come("cid")
    assert gate.refused == [] and gate.limit.waiting == 2, "others may still have to shrink"
    gate.limit.set_limit(0, True)
    await gate.come("dan")
    assert sorted(gate.refused) == ["bob", "cid", "dan"] and gate.limit.waiting == 0
    await gate.leave("ann")
    gate.limit.set_limit(1, True)
    await gate.come("eve")
    assert gate.entered == ["ann", "eve"]


async def test_who_gives_up_waiting_leaves_no_place_behind() -> None:
    gate = ConcurrencyLimit(1, room=2, clock=lambda: 0.0)
    assert await gate.enter("ann", 1)
    assert not await gate.enter("ann", 0.01)
    waiting = asyncio.ensure_future(gate.enter("ann", 5))
    await asyncio.sleep(0)
    gate.leave("ann")  # its turn comes, and in the same moment it is cancelled
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.busy == 0 and gate.waiting == 0 and gate.enter_at_once("ann")


async def test_a_full_queue_has_room_for_whoever_has_less_of_it() -> None:
    gate = Gate(2, room=4)
    await gate.come(*["greedy"] * 7)
    assert gate.refused == ["greedy"] and gate.limit.waiting == 4
    await gate.come(*["ann"] * 3)
    assert sorted(gate.refused) == ["ann", "greedy", "greedy", "greedy"], "both have half of the queue"
    assert gate.limit.waiting == 4
    await gate.come("bob")
    assert len(gate.refused) == 5 and "bob" not in gate.refused


async def test_who_hung_up_in_the_moment_before_makes_room() -> None:
    gate = Gate(1, room=2)
    waiting = await gate.come("greedy", "greedy", "greedy")
    waiting[-1].cancel()
    assert await gate.come("ann") and not gate.refused
    await gate.leave("greedy")
    await gate.leave("greedy")
    assert gate.entered == ["greedy", "greedy", "ann"]


async def test_places_go_to_whoever_has_fewest_and_then_in_turns() -> None:
    gate = Gate(4, room=32)
    await gate.come(*["greedy"] * 14, *["ann"] * 4, *["bob"] * 2)
    assert gate.entered == ["greedy"] * 4
    for _ in range(4):
        await gate.leave("greedy")
    assert sorted(gate.entered[4:]) == ["ann", "ann", "bob", "greedy"]
    assert gate.limit.busy == 4


async def test_one_place_is_kept_for_who_was_here_lately_and_has_none() -> None:
    gate = Gate(8, room=32)
    await gate.come(*["greedy"] * 40)
    await gate.come("ann")
    for turn in range(20):  # each call of hers but the first finds a place, however long those of the other one take
        if turn == 0:
            await gate.leave("greedy")
        assert gate.entered.count("ann") == turn + 1
        await gate.leave("ann")
        assert gate.limit.busy == 7, "the place is kept"
        gate.now += 5
        await gate.come("ann")
    await gate.leave("ann")
    gate.now += 60
    await gate.leave("greedy")
    assert gate.limit.busy == 8, "nobody else has come for long: the other one has all of them"


async def test_who_asks_for_no_more_than_there_is_takes_no_kept_place_either() -> None:
    gate = Gate(8, room=32)
    for name in ("eve", "bob"):
        await gate.come(name)
        await gate.leave(name)
    await gate.come(*["ann"] * 8)
    assert gate.entered.count("ann") == 6, "one place each for eve and bob"
    for turn in range(10):
        await gate.come("eve")
        assert gate.entered.count("eve") == turn + 2
        gate.now += 5
        await gate.leave("eve")
    assert gate.entered.count("ann") == 7, "bob has not come for long"


async def test_at_most_half_of_the_places_are_kept() -> None:
    gate = Gate(8, room=32)
    for number in range(20):
        await gate.come(f"c{number}")
        await gate.leave(f"c{number}")
    await gate.come(*["ann"] * 8)
    assert gate.entered.count("ann") == 4


async def test_a_kept_place_is_given_away_in_time_though_nobody_comes_or_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrency_limit, "_LATELY", 0.05)
    gate = Gate(2, room=32)
    await gate.come("bob")
    await gate.leave("bob")
    await gate.come(*["ann"] * 2)
    assert gate.entered.count("ann") == 1
    gate.now += 60
    with anyio.fail_after(10):
        while gate.entered.count("ann") < 2:  # noqa: ASYNC110 - a timer of the loop does it
            await anyio.sleep(0.01)


async def test_one_alone_has_every_place_and_no_place_is_lost() -> None:
    gate = Gate(3, room=32)
    waiting = await gate.come(*["ann"] * 9, *["bob"] * 3)
    for one in waiting[3::2]:
        one.cancel()
    await settled()
    for _ in range(12):
        for name in ("ann", "bob"):
            while gate.entered.count(name):
                gate.entered.remove(name)
                await gate.leave(name)
    assert gate.limit.busy == 0 and gate.limit.waiting == 0
    gate.now += 60  # bob has not come for long
    await gate.come(*["ann"] * 3)
    assert gate.entered == ["ann"] * 3


def test_the_breaker_opens_after_failures_in_a_row_and_tries_one_call() -> None:
    now = 0.0
    breaker = Breaker(lambda: now, threshold=2, pause=30)
    breaker.failed("ann")
    breaker.succeeded()
    breaker.failed("ann")
    assert breaker.admits("ann")
    breaker.failed("ann")
    assert not breaker.admits("ann") and breaker.state == "open"
    now = 30.0
    assert breaker.state == "half-open" and breaker.admits("ann") and not breaker.admits("ann")
    breaker.ended("ann")  # the trial was cancelled: the next one is the trial
    assert breaker.admits("ann")
    breaker.failed("ann")
    assert not breaker.admits("ann")
    now = 60.0
    assert breaker.admits("ann")
    breaker.succeeded()
    assert breaker.state == "closed"


def test_whoever_makes_a_server_end_waits_for_the_next_start_alone() -> None:
    now = 0.0
    backoff = RetryBackoff(lambda: now)
    backoff.failed("b")
    now += backoff.left("b") + 0.001
    backoff.failed("a")
    for _ in range(5):
        backoff.failed("b")  # sessions that end together
    assert backoff.left("b") < 3.0
    assert backoff.left() == backoff.left("c") == 0.0 < backoff.left("a") < backoff.left("b")
    now = 100.0
    assert backoff.left("a") == backoff.left("b") == 0.0
    backoff.failed()
    assert backoff.left() == backoff.left("a") == backoff.left("c") > 0.0
    for number in range(MAX_FAILING + 1):
        backoff.failed(f"key:{number}")
    assert backoff.left("key:0") == backoff.left()
    now = 1000.0
    backoff.failed("b")
    assert 0.0 < backoff.left("b") < 1.3, "what ended so long ago does not count"
    backoff.forget()
    assert backoff.left("b") == 0.0


def test_whoever_makes_a_server_fail_opens_the_breaker_for_itself_alone() -> None:
    breaker = Breaker(lambda: 0.0, threshold=2)
    for name in ("ann", "ann", "bob"):
        breaker.failed(name)
    assert not breaker.admits("ann") and breaker.admits("bob") and breaker.state == "open"
    for number in range(MAX_FAILING):
        breaker.failed(f"{number}")
    assert "ann" not in breaker._failing and len(breaker._failing) == MAX_FAILING
    breaker.succeeded()
    assert breaker.admits("0") and breaker.state == "closed"


def test_a_server_that_fails_for_several_gets_one_call_to_try_from_all_of_them() -> None:
    """Each of 300 users would wait five times for a server that hangs."""
    now = 0.0
    breaker = Breaker(lambda: now)
    for name in ("ann", "bob", "ann", "bob"):
        breaker.failed(name)
    assert breaker.admits("eve") and breaker.state == "closed"
    breaker.failed("cy")
    assert not any(breaker.admits(name) for name in ("ann", "bob", "cy", "eve")) and breaker.state == "open"
    now = 30.0
    assert breaker.state == "half-open"
    assert [breaker.admits(name) for name in ("eve", "ann", "bob")] == [True, False, False]
    breaker.ended("ann")
    assert not breaker.admits("bob"), "the trial is still on its way"
    for name in ("eve", "ann", "ann"):
        assert breaker.state == "half-open"
        breaker.failed(name)
        breaker.ended(name)
        assert not breaker.admits("ann") and breaker.state == "open"
        now += 30.0
        assert [breaker.admits(one) for one in ("ann", "bob", "eve", "fay")] == [True, False, False, False]
    breaker.succeeded()
    assert breaker.admits("bob") and breaker.admits("cy")


def test_trials_of_those_who_always_fail_put_off_nobody_elses() -> None:
    """With three keys that fail for ever nobody else had a call in an hour."""
    now, tried = 0.0, 0
    breaker = Breaker(lambda: now)
    while now < 3600.0:
        for name in ("a", "b", "c"):
            if breaker.admits(name):
                breaker.failed(name)
                breaker.ended(name)
        if breaker.admits("eve"):
            tried += 1
            breaker.ended("eve")
        now += 1.0
    assert tried > 100
    breaker.failed("a")
    assert breaker.state == "open"


def test_a_server_that_hangs_for_several_in_turn_is_left_alone() -> None:
    """Each call waits a minute for its answer, and each of three users makes one after the other."""
    now = 0.0
    breaker = Breaker(lambda: now)
    for number in range(5):
        breaker.failed(("ann", "bob", "cy")[number % 3])
        now += 20.0
    assert [breaker.admits(name) for name in ("eve", "ann")] == [False, False]


def test_old_failures_of_others_are_not_of_several() -> None:
    now = 0.0
    breaker = Breaker(lambda: now)
    for name in ("ann", "bob"):
        breaker.failed(name)
    now = 86_400.0
    for _ in range(5):
        breaker.failed("cy")
    assert breaker.admits("eve") and not breaker.admits("cy")


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
