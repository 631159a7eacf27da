"""The steps of a call are timed, and it runs as if nobody did."""

import asyncio

import anyio
import pytest

from sluicegate.runtime import own_steps
from sluicegate.runtime.own_steps import OwnSteps


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [0.0]
    monkeypatch.setattr(own_steps, "perf_counter", lambda: time[0])
    return time


async def test_its_own_steps_count_and_those_of_others_do_not(clock: list[float]) -> None:
    async def work() -> str:
        clock[0] += 1
        await asyncio.sleep(0)
        clock[0] += 2
        await asyncio.create_task(another())
        clock[0] += 4
        return "done"

    async def another() -> None:
        clock[0] += 100

    steps = OwnSteps(work())
    assert await steps == "done"
    assert (steps.seconds, steps.longest) == (7, 4)


async def test_what_it_raises_comes_out_and_its_last_step_counts(clock: list[float]) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        clock[0] += 2
        raise KeyError("its own")

    steps = OwnSteps(work())
    with pytest.raises(KeyError, match="its own"):
        await steps
    assert steps.seconds == 2


async def test_it_is_cancelled_where_it_waits_and_what_it_does_then_counts(clock: list[float]) -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            clock[0] += 3
            await asyncio.sleep(0)
            clock[0] += 4
            raise
        return "never"

    async def run() -> str:
        return await steps

    steps = OwnSteps(work())
    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (steps.seconds, steps.longest) == (7, 4)


async def test_it_may_take_an_exception_and_go_on(clock: list[float]) -> None:
    async def work() -> str:
        with anyio.move_on_after(0.01):
            await asyncio.Event().wait()
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
        return "in time"

    assert await OwnSteps(work()) == "in time"


async def test_it_ends_where_nobody_goes_on_with_it() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    waiting = OwnSteps(work())
    next(waiting)
    waiting.close()
    assert ended == [True]
