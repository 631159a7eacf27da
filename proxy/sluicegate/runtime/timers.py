"""Timers that hardly ever ring: every call has two, and nearly always ends long before.

A timer of the event loop is 1 us to make and to cancel, and as much again for the loop to clear away. Here one of them
serves all: it is set for the earliest alarm, and when it finds that one cancelled, for the next. So alarms that are
cancelled in time, which are as good as all, cost an entry in a set, 0.3 us. Knows time alone.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final
from weakref import WeakKeyDictionary

GRAIN: Final = 0.02
"""Seconds between two looks at all alarms: so late may one ring that was not the earliest when it was set."""

_all: WeakKeyDictionary[asyncio.AbstractEventLoop, "CoarseTimers"] = WeakKeyDictionary()


def _nothing() -> None:
    """The callback of a cancelled timer."""


class Timer:
    """Calls its callback once, unless it is cancelled before."""

    __slots__ = ("_among", "ring", "when")

    def __init__(self, when: float, ring: Callable[[], object], among: "set[Timer]") -> None:
        self.when, self._among = when, among
        self.ring: Callable[[], object] = ring

    def cancel(self) -> None:
        self._among.discard(self)
        self.ring = _nothing  # whose method it is often holds us: a circle


class CoarseTimers:
    """The timers of one event loop, see `timers_of`."""

    def __init__(self) -> None:
        self._set: set[Timer] = set()
        self._next = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, loop: asyncio.AbstractEventLoop, when: float, ring: Callable[[], object]) -> Timer:
        """`when` is by the loop's clock. Whoever sets one cancels it, or has it kept until then."""
        alarm = Timer(when, ring, self._set)
        self._set.add(alarm)
        if when < self._next:
            self._wake_at(loop, when)
        return alarm

    def _wake_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next, self._timer = when, loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._next, self._timer = inf, None
        for alarm in tuple(self._set):
            if alarm.when <= now:
                loop.call_soon(self._ring, alarm)  # each on its own: one that fails keeps no other from ringing
            elif alarm.when < self._next:
                self._next = alarm.when
        if self._next < inf:
            self._wake_at(loop, max(now + GRAIN, self._next))

    def _ring(self, alarm: Timer) -> None:
        if alarm in self._set:  # else it was cancelled in this very turn
            self._set.discard(alarm)
            alarm.ring()


def timers_of(loop: asyncio.AbstractEventLoop) -> CoarseTimers:
    found = _all.get(loop)
    if found is None:
        found = _all[loop] = CoarseTimers()
    return found
