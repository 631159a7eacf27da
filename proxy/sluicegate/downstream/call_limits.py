"""How much of one server's trouble is let through: calls to a server that keeps failing, new attempts."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from sluicegate.telemetry import DEFAULT_BACKOFF

MAX_FAILING: Final = 1_000
"""Principals whose failures are remembered."""
_SEVERAL: Final = 3
"""Principals. What fails for so many is not what one of them asks."""


@dataclass(slots=True)
class _Retry:
    failures: int = 0
    until: float = 0.0


class RetryBackoff:
    """How long to wait before a server is dialled again: the longer, the more often it failed in a row. The end of a
    connection that is one principal's counts for that principal alone: what it asks may be what ends it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_all, self._own = _Retry(), dict[str, _Retry]()

    def left(self, whose: str = "") -> float:
        """Seconds until a connection of that principal, or of nobody, may be dialled."""
        return max(self._of_all.until - self._clock(), self.own_left(whose))

    def own_left(self, whose: str) -> float:
        """Seconds for which that principal alone must wait, also where a connection is ready."""
        own = self._own.get(whose)
        return max(own.until - self._clock(), 0.0) if own else 0.0

    def failed(self, whose: str = "") -> None:
        """Counts once what ends together, as sessions do when their server is restarted."""
        now = self._clock()
        if whose and whose not in self._own:
            while len(self._own) >= MAX_FAILING:
                del self._own[next(iter(self._own))]
            self._own[whose] = _Retry()
        retry = self._own[whose] if whose else self._of_all
        if now < retry.until:
            return
        if whose and now - retry.until > DEFAULT_BACKOFF.healthy:
            retry.failures = 0
        retry.failures += 1
        retry.until = now + DEFAULT_BACKOFF.pause(retry.failures) * random.uniform(0.75, 1.25)

    def succeeded(self, whose: str = "") -> None:
        self._of_all.failures = 0
        self._own.pop(whose, None)

    def forget(self) -> None:
        """Resets the back-off: the next attempt need not wait."""
        self._of_all, self._own = _Retry(), {}


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
        self._trier = ""  # whose call is the trial for all
        self._is_open_for_all = False
        self._last = 0.0

    @property
    def state(self) -> Circuit:
        """Of all calls together, whoever made them."""
        if self._all.count < self._threshold:
            return "closed"
        return "half-open" if self._clock() - self._last >= self._pause else "open"

    def admits(self, whose: str) -> bool:
        """Whether a call may pass. In the half-open state the first one is the trial."""
        found = self._failing.get(whose)
        if found is None or found.count < self._threshold:
            if not self._is_open_for_all:
                return True
            found = self._all
        if found.is_tried or self._clock() - found.last < self._pause:
            return False
        found.is_tried = True
        if found is self._all:
            self._trier = whose
        return True

    def succeeded(self) -> None:
        self._failing.clear()
        self._all, self._is_open_for_all = _Failures(), False

    def failed(self, whose: str) -> None:
        now, before = self._clock(), self._failing.pop(whose, _Failures())
        if len(self._failing) >= MAX_FAILING:
            del self._failing[next(iter(self._failing))]
        self._failing[whose] = _Failures(before.count + 1, now)
        self._last = now
        self._all.count += 1
        if before.count < self._threshold:  # else it was a trial of its own, which puts off nobody else's
            self._all.last = now
            if self._all.count >= self._threshold and not self._is_open_for_all:
                recent = sum(now - one.last < 2 * self._pause for one in self._failing.values())
                self._is_open_for_all = recent >= _SEVERAL

    def ended(self, whose: str) -> None:
        """A call has ended, whether or not that said anything about the server: the next one may be the trial."""
        if whose == self._trier:
            self._all.is_tried = False
        if (found := self._failing.get(whose)) is not None:
            found.is_tried = False
