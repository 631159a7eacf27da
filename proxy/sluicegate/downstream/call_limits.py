"""How much of one server's trouble is let through: calls to a server that keeps failing, new attempts."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sluicegate.telemetry import DEFAULT_BACKOFF

MAX_FAILING: Final = 1_000
"""Principals whose failures are remembered."""
_SEVERAL: Final = 3
"""Principals. What fails for so many is not what one of them asks."""


def forget_first(failing: dict[str, Any]) -> None:
    if len(failing) >= MAX_FAILING:
        del failing[next(iter(failing))]


class RetryBackoff:
    """How long to wait before a server is dialled again: the longer, the more often it failed in a row. What ends of a
    principal's own holds up what is dialled for it; of several, everybody."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing: dict[str, tuple[int, float]] = {}  # how often, and until when to wait

    def left(self, whose: str = "") -> float:
        now = self._clock()
        late = {one: until - now for one, (_, until) in self._failing.items() if until > now}
        if len(late.keys() - {""}) < _SEVERAL:
            return max(late.get("", 0.0), late.get(whose, 0.0))
        return max(late.values())

    def failed(self, whose: str = "") -> None:
        failures = self._failing.pop(whose, (0, 0.0))[0] + 1
        forget_first(self._failing)
        pause = DEFAULT_BACKOFF.pause(failures) * random.uniform(0.75, 1.25)
        self._failing[whose] = failures, self._clock() + pause

    def succeeded(self, whose: str) -> None:
        for one in {"", whose} & self._failing.keys():
            self._failing[one] = 0, self._failing[one][1]

    def forget(self) -> None:
        """Resets the back-off: the next attempt need not wait."""
        self._failing.clear()


Circuit = Literal["closed", "half-open", "open"]


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0
    is_tried: bool = False


class Breaker:
    """After `threshold` failures in a row none of a principal's calls passes for `pause` seconds, then one to try. Each
    has its own count, for what it asks may be what fails; where several fail, nobody's pass. Any call that succeeds
    closes it for all."""

    def __init__(self, clock: Callable[[], float], threshold: int = 5, pause: float = 30.0) -> None:
        self._clock = clock
        self._threshold = threshold
        self._pause = pause
        self._failing: dict[str, _Failures] = {}
        self._all = _Failures()
        self._last = 0.0

    @property
    def state(self) -> Circuit:
        """Of all calls together, whoever made them."""
        if self._all.count < self._threshold:
            return "closed"
        return "half-open" if self._clock() - self._last >= self._pause else "open"

    def admits(self, whose: str) -> bool:
        """Whether a call may pass. In the half-open state the first one is the trial."""
        now, found = self._clock(), self._failing.get(whose)
        if found is None or found.count < self._threshold:
            if self._all.count < self._threshold or not self._is_of_several(now):
                return True
            found = self._all
        if found.is_tried or now - found.last < self._pause:
            return False
        found.is_tried = True
        return True

    def _is_of_several(self, now: float) -> bool:
        return sum(now - one.last < 2 * self._pause for one in self._failing.values()) >= _SEVERAL

    def succeeded(self) -> None:
        self._failing.clear()
        self._all = _Failures()

    def failed(self, whose: str) -> None:
        before = self._failing.pop(whose, _Failures())
        forget_first(self._failing)
        self._failing[whose] = _Failures(before.count + 1, self._clock())
        self._last = self._clock()
        # Trials of those whose own circuit is open put off nobody else's.
        last = self._all.last if before.count >= self._threshold else self._last
        self._all = _Failures(self._all.count + 1, last)

    def ended(self, whose: str) -> None:
        """A call has ended, whether or not that said anything about the server: the next one may be the trial."""
        self._all.is_tried = False
        if (found := self._failing.get(whose)) is not None:
            found.is_tried = False
