"""How many are inside at once of what many clients share, and whose turn is next."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Final

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

    async def enter(self, principal: str, timeout: float | None) -> bool:
        """Returns False when there is no room, now or in time, if that ends. A call that entered must `leave`."""
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
