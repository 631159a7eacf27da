"""A server that talks without end gets its part of the loop's time, and no more; who says little never waits."""

import asyncio

import pytest

from sluicegate.runtime.loop_budget import BURST, MOST, PART, LoopBudget


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def work(share: LoopBudget, clock: Clock, seconds: float) -> float:
    since = share.now()
    clock.time += seconds
    return share.take(since)


def test_whoever_talks_without_end_has_its_part_in_the_long_run() -> None:
    clock = Clock()
    share = LoopBudget(clock)
    worked = 0.0
    for _ in range(10_000):
        pause = work(share, clock, 0.001)
        worked += 0.001
        clock.time += pause
    assert worked / clock.time == pytest.approx(PART, rel=0.02)


def test_a_burst_and_a_little_all_the_time_wait_for_nothing() -> None:
    clock = Clock()
    share = LoopBudget(clock)
    assert [work(share, clock, BURST / 10) for _ in range(9)] == [0.0] * 9
    clock.time += BURST / PART
    for _ in range(1_000):
        assert work(share, clock, 0.001) == 0.0
        clock.time += 0.001 / PART
    assert share.pause() == 0.0


def test_time_that_was_spent_waiting_for_a_slow_client_counts_little() -> None:
    clock = Clock()
    share = LoopBudget(clock)
    assert work(share, clock, 60.0) <= (MOST - BURST) / PART + 1e-9
    assert repr(share) == f"<LoopBudget {MOST:.3f} s of {BURST}>"


async def test_an_answer_waits_for_nobody_where_nobody_has_need_of_the_loop() -> None:
    clock = Clock()
    share = LoopBudget(clock)
    for _ in range(3):
        work(share, clock, MOST)
    assert share.pause() > 0
    await share.rest()  # no turn takes any time
    assert share.pause() > 0


async def test_an_answer_waits_for_its_part_where_others_have_need_of_the_loop() -> None:
    clock = Clock()
    share = LoopBudget(clock)
    for _ in range(3):
        work(share, clock, MOST)

    async def others() -> None:
        while True:
            clock.time += 0.001
            await asyncio.sleep(0)

    busy = asyncio.create_task(others())
    await share.rest()
    busy.cancel()
    assert share.pause() == 0.0


async def test_who_was_refused_pays_for_the_next_requests_in_advance() -> None:
    """Those that are let in at once are refused later: without it all of them would come in before the first counts."""
    clock = Clock()
    share = LoopBudget(clock)
    assert share.is_unused()
    since = share.now()
    clock.time += BURST / 10
    share.refused(since)
    assert not share.is_unused()
    entered = 0

    async def enter() -> None:
        nonlocal entered
        await share.enter()
        entered += 1

    async def others() -> None:
        while entered < 20:
            clock.time += 0.001
            await asyncio.sleep(0)

    began = clock.time
    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        for _ in range(20):
            group.create_task(enter())
    assert clock.time - began > 15 * 3 * BURST / 10 / PART
    clock.time += 1_000
    assert share.is_unused()
