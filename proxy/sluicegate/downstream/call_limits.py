"""How much of one server's trouble is let through: calls at once, calls to a server that keeps failing, new attempts.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Literal

from sluicegate.telemetry import DEFAULT_BACKOFF


class ConcurrencyLimit:
    """At most `limit` inside at once, at most `room` waiting, first come first served."""

    def __init__(self, limit: int, room: int) -> None:
        self._limit = limit
        self._room = room
        self._queue: deque[asyncio.Future[None]] = deque()
        self.busy = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def enter_at_once(self) -> bool:
        """Whether there was a place, as there nearly always is: then nothing has to be awaited."""
        if self.busy >= self._limit:
            return False
        self.busy += 1
        return True

    async def enter(self, timeout: float) -> bool:
        """Returns False when there is no room, now or in time. A call that entered must `leave`."""
        if self.enter_at_once():
            return True
        if len(self._queue) >= self._room:
            return False
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException as end:
            self._give_up(turn)
            if isinstance(end, TimeoutError):
                return False
            raise
        return True

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        if turn in self._queue:
            self._queue.remove(turn)
        elif not turn.cancelled():
            self.leave()  # the turn came in the same moment: pass it on

    def leave(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                return turn.set_result(None)  # the place changes hands
        self.busy -= 1


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

    def gave_up(self) -> None:
        """The call ended without saying anything about the server (its client cancelled it)."""
        self._is_tried = False
