"""measure: the outermost guard. Every outcome and its seconds are counted, whatever happened inside, and how many calls
are open."""

from collections.abc import Callable
from typing import Protocol

from sluicegate.guards import Observer
from sluicegate.protocol.model import Call, Outcome

Observe = Callable[[Call, Outcome | None, float], None]
"""(call, outcome, seconds); an outcome of None means that the call was cancelled."""


class Gauge(Protocol):
    """A gauge of calls in flight."""

    value: int


class Measure(Observer):
    def __init__(self, observe: Observe, level: Gauge) -> None:
        self._observe, self._level = observe, level

    def begin(self, call: Call) -> None:
        self._level.value += 1

    def end(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        # Step 13 of docs/explanation/performance.md
        self._level.value -= 1
        self._observe(call, outcome, seconds)
