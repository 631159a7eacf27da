"""How much of the event loop one peer may take: with notifications without end, with answers by the megabyte, and with
requests that are refused.

All peers are heard by one loop, and the fastest writer would have most of it. So the time that its talk takes is
counted, and whoever reads from it pauses when that is too much; its own send buffer fills then, and it waits. Time is
the clock's, not the processor's: on a busy machine the others have less, too. Answers of an ordinary size count
nothing: there is a call for each. Knows seconds; reads nothing itself.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

PART: Final = 0.1
"""Of the loop's time, in the long run."""
BURST: Final = 0.05
"""Seconds of work that may come at once."""
MOST: Final = 0.05
"""Seconds that count of one piece of work: the rest was spent waiting for somebody."""
LARGE: Final = 64 * 1024
"""Bytes. An answer of more than this counts."""
PIECE: Final = 8 * 1024
"""Bytes of a stream that are read without a turn for others."""
_WHOLE: Final = 3
"""A request that is refused takes so many times what its refusal does: its head, its answer, its record."""
_DEBT: Final = 4 * BURST
"""Seconds. Refusals count no further: some have waited for others, and the next request waits 1.5 s at most."""
_TURNS: Final = 10
_IDLE: Final = 0.0005
"""Seconds that so many turns of the loop take when nobody has need of it."""
_NAP: Final = 0.005


class LoopBudget:
    """One server's, or one client's, over all its connections. Large messages come one at a time: `turn` is whose
    it is."""

    __slots__ = ("_at", "_clock", "_due", "_level", "_part", "turn")

    def __init__(self, clock: Callable[[], float] = time.perf_counter, part: float = PART) -> None:
        self.turn = asyncio.Lock()
        self._part = part
        self._clock = clock
        self._level = self._due = 0.0
        self._at = clock()

    def take(self, since: float) -> float:
        """Counts the work that began then, by `now`; gives the seconds to pause before more is read."""
        self.pause()
        self._level += min(MOST, self._at - since)
        return max(0.0, (self._level - BURST) / self._part)

    def pause(self) -> float:
        """Seconds, 0 for none."""
        now = self._clock()
        self._level = max(0.0, self._level - (now - self._at) * self._part)
        self._at = now
        return max(0.0, (self._level - BURST) / self._part)

    async def rest(self) -> None:
        """Before an answer that somebody waits for: until its server's part is not used up any more, or nobody else has
        need of the loop."""
        while (left := self.pause()) > 0:
            before = self._clock()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if self._clock() - before < _IDLE:
                return
            await asyncio.sleep(min(left, _NAP))

    def refused(self, since: float) -> None:
        """A request was refused, by work that began then. The next ones pay for it in advance: what is admitted at once
        is refused later."""
        self._due = min(MOST, (self._clock() - since) * _WHOLE)
        self.pause()
        self._level = min(_DEBT, self._level + self._due)

    async def enter(self) -> None:
        """Before a request of one whose part is in use: one request in a turn of the loop, and none while the part is
        used up and others need the loop."""
        async with self.turn:
            await asyncio.sleep(0)
            await self.rest()
            self._level += self._due

    def is_unused(self) -> bool:
        self.pause()
        return self._level == 0.0

    def now(self) -> float:
        return self._clock()

    def __repr__(self) -> str:
        return f"<LoopBudget {self._level:.3f} s of {BURST}>"
