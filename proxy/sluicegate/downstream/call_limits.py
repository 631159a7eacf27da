"""How much of one server's trouble is let through: calls to a server that keeps failing, new attempts."""

import random
from collections.abc import Callable
from typing import Literal

from sluicegate.telemetry import DEFAULT_BACKOFF


class RetryBackoff:
    """How long to wait before a server is dialled again: the longer, the more often it failed in a row."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def left(self) -> float:
        return max(self._until - self._clock(), 0.0)

    def failed(self) -> None:
        self._failures += 1
        self._until = self._clock() + DEFAULT_BACKOFF.pause(self._failures) * random.uniform(0.75, 1.25)

    def succeeded(self) -> None:
        self._failures = 0

    def forget(self) -> None:
        """Resets the back-off: the next attempt need not wait."""
        self._failures, self._until = 0, 0.0


Circuit = Literal["closed", "open", "half-open"]


class Breaker:
    """After `threshold` failures in a row nothing passes for `pause` seconds, then one call to try."""

    def __init__(self, clock: Callable[[], float], threshold: int = 5, pause: float = 30.0) -> None:
        self._clock = clock
        self._threshold = threshold
        self._pause = pause
        self._failures = 0
        self._opened = 0.0
        self._is_tried = False

    @property
    def state(self) -> Circuit:
        if self._failures < self._threshold:
            return "closed"
        return "half-open" if self._clock() - self._opened >= self._pause else "open"

    def admits(self) -> bool:
        """Whether a call may pass. In the half-open state the first one is the trial."""
        if self._failures < self._threshold:
            return True
        if self._is_tried or self.state == "open":
            return False
        self._is_tried = True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._is_tried = False

    def failed(self) -> None:
        self._failures += 1
        self._is_tried = False
        if self._failures >= self._threshold:
            self._opened = self._clock()

    def ended(self) -> None:
        """A call has ended, whether or not that said anything about the server: the next one may be the trial."""
        self._is_tried = False
