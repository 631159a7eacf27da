"""How much of one server's trouble is let through: calls at once, calls to a server that keeps failing, new attempts.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Literal

from sluicegate.telemetry import DEFAULT_BACKOFF

_LATELY: Final = 30.0  # seconds for which a place is kept for whoever left
_MANY: Final = 1_000  # who left, before those are forgotten who left longer ago


def room(limit: int) -> int:
    """For calls that wait."""
    return max(32, 4 * limit)


class ConcurrencyLimit:
    """At most `limit` inside at once, at most `room` waiting. Principals have equal shares of both: the next place goes
    to who has fewest, and where that says nothing, turns go round. What one principal waits for is first come first
    served. Up to half of the places stay free for those who were here lately and have none, one each: calls that take
    long would hold all."""

    def __init__(self, limit: int, room: int, clock: Callable[[], float]) -> None:
        self.limit, self._room, self._clock = limit, room, clock
        self.is_closed = False
        self._free_for_all = limit - limit // 2  # places that nothing is asked for: none while somebody waits
        self._inside: list[str] = []
        self._queues: dict[str, deque[asyncio.Future[bool]]] = {}  # whose turn comes first is first
        self._lately: dict[str, float] = {}  # who left, the longest ago first
        self._timer: asyncio.TimerHandle | None = None

    def set_limit(self, limit: int, is_settled: bool) -> None:
        """Other replicas have the rest. More are inside where it shrinks, until they leave; where no place is left, and
        that is settled, nobody waits for one."""
        self.limit, self._room = limit, room(limit)
        self.is_closed = is_settled and limit == 0
        for queue in self._queues.values() if self.is_closed else ():
            for turn in queue:
                if not turn.done():
                    turn.set_result(False)
            queue.clear()
        self._queues = {principal: queue for principal, queue in self._queues.items() if queue}
        self._give_turns()

    @property
    def busy(self) -> int:
        return len(self._inside)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def enter_at_once(self, principal: str) -> bool:
        """Whether there was a place, as there nearly always is: then nothing has to be awaited."""
        if len(self._inside) >= self._free_for_all and (self._queues or not self._has_place(principal)):
            return False
        self._inside.append(principal)
        return True

    async def enter(self, principal: str, timeout: float) -> bool:
        """Returns False when there is no room, now or in time. A call that entered must `leave`."""
        if self.enter_at_once(principal):
            return True
        if self.is_closed or (self.waiting >= self._room and not self._displace(principal)):
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(principal, deque()).append(turn)
        self._give_turns()
        try:
            async with asyncio.timeout(timeout):
                return await turn
        except BaseException as end:
            self._give_up(principal, turn)
            if isinstance(end, TimeoutError):
                return False
            raise

    def _displace(self, principal: str) -> bool:
        """The newest of whoever waits most often makes room: it was not sent, so it is only refused."""
        greedy = max(self._queues, key=lambda one: len(self._queues[one]))
        if len(self._queues[greedy]) <= len(self._queues.get(principal, ())) + 1:
            return False
        turn = self._queues[greedy].pop()
        if not turn.done():
            turn.set_result(False)
        return True

    def _give_up(self, principal: str, turn: asyncio.Future[bool]) -> None:
        queue = self._queues.get(principal)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._queues[principal]
            self._give_turns()
        elif not turn.cancelled() and turn.result():
            self.leave(principal)  # the turn came in the same moment: pass it on

    def leave(self, principal: str) -> None:
        self._inside.remove(principal)
        self._lately.pop(principal, None)
        self._lately[principal] = self._clock()
        if self._queues:
            self._give_turns()
        elif len(self._lately) > _MANY:
            self._forget()

    def _forget(self) -> None:
        now = self._clock()
        while self._lately and now - next(iter(self._lately.values())) > _LATELY:
            del self._lately[next(iter(self._lately))]

    def _has_place(self, principal: str) -> bool:
        free = self.limit - len(self._inside)
        if free <= 0 or principal not in self._inside:
            return free > 0
        self._forget()
        absent = (one for one in self._lately if one not in self._inside)
        return free > len(list(islice(absent, self.limit // 2)))

    def _give_turns(self) -> None:
        while self._queues:
            counts = Counter(self._inside)
            principal = min(self._queues, key=counts.__getitem__)
            if not self._has_place(principal):
                break
            queue = self._queues.pop(principal)
            turn = queue.popleft()
            if queue:
                self._queues[principal] = queue
            if not turn.done():
                self._inside.append(principal)
                turn.set_result(True)
        self._free_for_all = 0 if self._queues else self.limit - self.limit // 2
        if self._queues and len(self._inside) < self.limit and self._timer is None:  # until nobody was here lately
            over = min(self._lately.values(), default=0.0) + _LATELY - self._clock()
            self._timer = asyncio.get_running_loop().call_later(max(over, 0.01), self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._give_turns()


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
