"""measure: the outermost guard. Every outcome and its seconds are counted, whatever happened inside, and how many calls
are open."""

import time
from collections.abc import Callable
from typing import Protocol

from proxy.call import Call, Outcome
from proxy.guards import Witness

Observe = Callable[[Call, Outcome | None, float], None]
"""(call, outcome, seconds); an outcome of None means that the call was cancelled."""


class Level(Protocol):
    """How many there are now."""

    value: int


class Measure(Witness):
    def __init__(self, observe: Observe, level: Level, clock: Callable[[], float]) -> None:
        self._observe, self._level, self._clock = observe, level, clock

    def begin(self, call: Call) -> float:
        self._level.value += 1
        return self._clock()

    def end(self, call: Call, outcome: Outcome | None, began: float) -> None:
        self._level.value -= 1
        self._observe(call, outcome, self._clock() - began)


def measure(observe: Observe, level: Level, clock: Callable[[], float] = time.perf_counter) -> Measure:
    return Measure(observe, level, clock)
