"""Many alarms, one timer: each rings in time, once, and not when it was cancelled."""

import asyncio
import logging
import weakref

import pytest

from sluicegate.runtime.timers import GRAIN, CoarseTimers, Timer, timers_of


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Bells:
    """Alarms that note when they rang: seconds after the bells were made."""

    def __init__(self) -> None:
        self.loop, self.alarms = asyncio.get_running_loop(), CoarseTimers()
        self.began = self.loop.time()
        self.rung: list[tuple[str, float]] = []
        self._news = asyncio.Event()
        self.held: Timer | None = None

    def set(self, name: str, seconds: float) -> None:
        self.alarms.set(self.loop, self.began + seconds, lambda: self._note(name))

    def _note(self, name: str) -> None:
        self.rung.append((name, self.loop.time() - self.began))
        self._news.set()

    def clear(self) -> None:
        self.rung.clear()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.rung]

    async def rang(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.rung) < count:
                self._news.clear()
                await self._news.wait()


async def test_each_rings_in_its_time_whatever_the_order_in_which_they_were_set() -> None:
    bells = Bells()
    for name, seconds in (("late", 0.3), ("early", 0.1), ("middle", 0.2), ("past", -1.0)):
        bells.set(name, seconds)
    await bells.rang(4)
    assert bells.names == ["past", "early", "middle", "late"]
    for (_, at), due in zip(bells.rung, (0, 0.1, 0.2, 0.3), strict=True):
        assert at >= due - 0.002, "the clock of a loop has milliseconds"
    await asyncio.sleep(2 * GRAIN)
    assert len(bells.rung) == 4, "once"


async def test_one_that_was_cancelled_is_silent_and_others_are_not() -> None:
    bells = Bells()
    gone = bells.alarms.set(bells.loop, bells.began + 0.05, lambda: bells.rung.append(("gone", 0)))
    bells.set("stays", 0.1)
    gone.cancel()
    gone.cancel()
    await bells.rang(1)
    assert bells.names == ["stays"]


async def test_one_that_is_cancelled_when_it_is_due_is_silent_too() -> None:
    bells, rung = Bells(), []
    alarms, loop = bells.alarms, bells.loop

    def ring(mine: int) -> None:
        rung.append(mine)
        both[1 - mine].cancel()

    both = [alarms.set(loop, bells.began + 0.05, lambda mine=mine: ring(mine)) for mine in range(2)]  # type: ignore[misc]
    await asyncio.sleep(0.1)
    bells.set("end", 0.15)
    await bells.rang(1)
    assert len(rung) == 1


async def test_one_that_fails_keeps_no_other_from_ringing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")
    bells, told = Bells(), []
    bells.loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    bells.alarms.set(bells.loop, bells.began, lambda: 1 / 0)
    bells.set("other", 0.0)
    bells.set("later", 0.05)
    await bells.rang(2)
    assert bells.names == ["other", "later"]
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_one_that_rings_may_set_the_next() -> None:
    bells = Bells()
    bells.alarms.set(bells.loop, bells.began + 0.02, lambda: bells.set("next", 0.05))
    await bells.rang(1)
    assert bells.names == ["next"]


async def test_without_alarms_there_is_no_timer() -> None:
    bells = Bells()
    alarm = bells.alarms.set(bells.loop, bells.began + 0.02, lambda: None)
    alarm.cancel()
    await asyncio.sleep(0.1)
    assert bells.alarms._timer is None


async def test_an_event_loop_has_one() -> None:
    loop = asyncio.get_running_loop()
    assert timers_of(loop) is timers_of(loop)


async def test_a_cancelled_one_holds_nothing() -> None:
    """Whose method rings often holds the alarm: each call would leave a circle for the collector."""
    bells = Bells()
    alarm = bells.alarms.set(bells.loop, bells.began + 60, bells.clear)
    gone = weakref.ref(bells)
    bells.held, alarms = alarm, bells.alarms
    alarm.cancel()
    del bells, alarm
    assert gone() is None
    assert alarms._timer is not None
    alarms._timer.cancel()
