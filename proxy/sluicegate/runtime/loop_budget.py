"""How much of the event loop one peer may take: with notifications without end, with answers by the megabyte, and with
requests that are refused.

All peers are heard by one loop, and the fastest writer would have most of it. So the time that its messages take is
counted, whatever became of them. Whoever reads from it pauses when that is too much; its own send buffer fills then,
and it waits. Time is the clock's, not the processor's: on a busy machine the others have less, too. One budget is that
of all clients and servers of a loop together: whoever has used up its own part waits for both. Knows seconds; reads
nothing itself.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import anyio.to_thread

PART: Final = 0.05
"""Of the loop's time, in the long run, for one peer."""
_EVERYBODY: Final = 0.1
"""The same for all peers together that have used up theirs."""
BURST: Final = 0.05
"""Seconds of work that may come at once."""
STEP: Final = 0.002
"""Seconds. A longer step costs more than its time, as the square of it: the longer it is, the more requests wait for
it, and each of them longer."""
MOST: Final = 5 * BURST
"""Seconds that count at most: the rest was spent waiting for somebody. So the next message waits 4 s at most."""
LARGE: Final = 16 * 1024
"""Bytes. An answer of more than this counts."""
VALUES: Final = 500
"""Commas and brackets. An answer of more than these counts, too: each value costs as much as a long text."""
_READ_WITHIN: Final = 2  # turns of the loop until what the connection before has read is counted
BYTE: Final = 4e-9
"""Seconds that count for a byte of a large body: its copies, and the memory that it waits in."""
PIECE: Final = 8 * 1024
"""Bytes of a stream that are read without a turn for others."""
_OTHERS: Final = 4
_EMPTY: Final = 50e-6
"""Seconds. A turn of the loop that is shorter had nothing to do for anybody."""
_SHORT: Final = 0.1e-3
"""Seconds of work on a large message without a turn for others. A message of 28 KiB takes little more, and ten turns
for it would cost more than the work."""
_RELEASED: Final = 50e-6
_WHOLE: Final = 3
"""A request that is refused takes so many times what its refusal does: its head, its answer, its record."""
_IDLE: Final = 0.1
"""Of the processor's time. While no more of it is used, nobody else has need of the loop."""
_NAP: Final = 0.005
_FREE_WHEN_IDLE: Final = 2 * _NAP
"""Seconds of work that are free for whoever has found an idle moment. The largest message takes as long."""
_STEPS: Final = 3
_LONGEST_NAP: Final = 0.1
_MAX_REMEMBERED: Final = 1_000

T = TypeVar("T")

_nobody: Final = Lock()
"""Nobody releases it: who acquires it with a timeout waits without the interpreter's lock."""
_nobody.acquire()
_is_thread_awaited: Callable[[], bool] = bool
_all: WeakKeyDictionary[asyncio.AbstractEventLoop, "LoopBudget"] = WeakKeyDictionary()
_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, "LoopBudget"]] = WeakKeyDictionary()
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, "ClientBudgets"] = WeakKeyDictionary()


def is_large(data: bytes | bytearray) -> bool:
    """Whether a message takes as long to handle as many usual ones."""
    size = len(data)
    return size > LARGE or (size > VALUES and data.count(b",") + data.count(b"[") + data.count(b"{") > VALUES)


def release_gil() -> None:
    """Releases the interpreter's lock, so that a waiting thread gets it. In short turns the loop takes it back before a
    thread wakes, and a thread requests it only where nobody released it for long (CPython, ceval_gil.h, `take_gil`)."""
    _nobody.acquire(timeout=_RELEASED)  # `time.sleep` raises where the clock jumps meanwhile


def release_gil_while(is_awaited: Callable[[], bool]) -> None:
    """Work in pieces releases the interpreter's lock after each piece, as long as this function says that somebody
    waits for a thread. Releasing it takes longer than most pieces. The last one counts."""
    global _is_thread_awaited
    _is_thread_awaited = is_awaited


def budget_of(server: str) -> "LoopBudget":
    """That of a configured server: of its connections, and of who looks at what it answered."""
    servers = _servers.setdefault(asyncio.get_running_loop(), {})
    return servers.get(server) or servers.setdefault(server, LoopBudget())


def client_budgets() -> "ClientBudgets":
    """Those of the running loop."""
    return _clients.setdefault(asyncio.get_running_loop(), ClientBudgets())


_working: Final = set[asyncio.Task[Any]]()


async def _work(budget: "LoopBudget", held: AsyncExitStack, work: Callable[[], T]) -> T:
    """A thread goes on when its caller is cancelled. This task waits for it and holds the locks until then."""
    took = 0.0

    def timed() -> T:
        nonlocal took
        since = time.thread_time()
        try:
            return work()
        finally:
            took = time.thread_time() - since

    async with held:
        try:
            return await anyio.to_thread.run_sync(timed)
        finally:
            budget.charge_thread(took)


def _worked(working: asyncio.Task[Any]) -> None:
    """Its error is not told as one that nobody has seen: its caller may be gone."""
    _working.discard(working)
    if not working.cancelled():
        working.exception()


class ClientBudgets(dict[str, "LoopBudget"]):
    """By principal: of all that is done for it. Those that nobody has need of are forgotten."""

    def __missing__(self, principal: str) -> "LoopBudget":
        if len(self) >= _MAX_REMEMBERED:
            for name, budget in tuple(self.items()):
                if not budget.turn.locked() and not budget._apart.locked() and budget.is_unused():
                    del self[name]
        found = self[principal] = LoopBudget()
        return found


class LoopBudget:
    """One server's, or one client's, over all its connections. Large messages come one at a time: `turn` is whose
    it is."""

    __slots__ = (
        "_advance", "_apart", "_at", "_chosen", "_chosen_at", "_clock", "_due", "_everybody", "_free", "_idle_at",
        "_lent", "_level", "_moment", "_part", "_raised", "_reading", "_short", "_start", "_used", "_waiting",
        "turn",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        part: float = PART,
        used: Callable[[], float] = time.process_time,
        everybody: "LoopBudget | None" = None,
    ) -> None:
        """`used` is the processor's time of all threads, for each holds the interpreter's lock. `everybody` is by
        default the budget of all peers of the running loop."""
        self.turn, self._reading, self._apart = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._part, self._clock, self._used = part, clock, used
        self._idle_at = self._chosen_at = 0.0
        self._level = self._due = self._advance = self._start = self._free = self._short = 0.0
        self._lent = self._raised = 0.0  # of `_advance`: what `_free` paid, and what was added to `_level`
        self._moment = 0  # idle moments that somebody has taken
        self._everybody = everybody
        self._waiting: list[LoopBudget] = []
        self._chosen: LoopBudget | None = None  # of `_waiting`
        self._at = clock()

    def charge_since(self, since: float) -> float:
        """Counts the work that began then, by `now`; gives the seconds of `pause`."""
        self.charge(self._clock() - since)
        return self.pause()

    def charge(self, seconds: float) -> None:
        """Counts work in one step."""
        self._pay(_cost(seconds, seconds))

    def charge_thread(self, seconds: float) -> None:
        """Counts the processor's time of a thread, which keeps nobody from the loop for all of it."""
        self._pay(min(MOST, seconds))

    def read(self, size: int) -> bool:
        """Counts bytes that were read; whether their peer has used up its part."""
        self.charge(size * BYTE)
        return self.pause() > 0.0

    async def charge_and_rest(self, since: float) -> None:
        """The same, and others have their turn: a server that talks without end waits for its own."""
        self.charge_since(since)
        await asyncio.sleep(0)
        await self.rest()

    async def charge_and_yield(self, since: float) -> None:
        """Counts a step of the work on a large message. Others have their turn after it, unless it was short."""
        seconds = self._clock() - since
        self.charge(seconds)
        await self._after(seconds)

    async def _after(self, seconds: float) -> None:
        """Others have their turn after several short steps, too: a peer may have sent many messages."""
        self._short += seconds
        if self._short >= _SHORT:
            self._short = 0.0
            await asyncio.sleep(0)

    async def in_pieces(self, work: Generator[None, None, T]) -> T:
        """What the work returns. Others have their turn between its pieces, and each piece counts. Pieces of less than
        `_SHORT` together are one."""
        while True:
            since = self._clock()
            try:
                next(work)
                while self._clock() - since < _SHORT:
                    next(work)
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                self.charge_since(since)
            await self.give_way(since)

    async def give_way(self, since: float) -> None:
        """After a piece of work that began then, a thread that somebody waits for gets the interpreter's lock. Then
        other tasks have the loop `_OTHERS` times as long, if they need it. A call takes ten turns of the loop or more;
        without this it waits for a piece in each. Time over a `STEP` does not count: the process mostly waited for a
        processor."""
        now = self._clock()
        until = now + _OTHERS * min(now - since, STEP)
        if _is_thread_awaited():
            release_gil()
            now = self._clock()
        while True:
            await asyncio.sleep(0)
            before, now = now, self._clock()
            if now >= until or now - before < _EMPTY:
                return

    async def large(self, work: Generator[None, None, T]) -> T:
        """The same of a large message, when it is this peer's turn. The steps of its way to the client, each as long,
        are taken meanwhile, unless all of it was short."""
        async with self.turn:
            await self.rest()
            since = self._clock()
            value = await self.in_pieces(work)
            if (seconds := self._clock() - since) < _SHORT:
                await self._after(seconds)
            else:
                since = self._clock()
                for _ in range(_STEPS):
                    await asyncio.sleep(0)
                self.charge_since(since)
            return value

    async def apart(self, alone: asyncio.Lock, work: Callable[[], T]) -> T:
        """What the work returns, in a thread: it holds the interpreter's lock. With this `alone` one works at a time,
        for each peer in turn, and its time counts. Other messages of this peer do not wait for that."""
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._apart)
            await self.rest()
            await held.enter_async_context(alone)
            working = asyncio.create_task(_work(self, held.pop_all(), work))
            _working.add(working)
            working.add_done_callback(_worked)
        return await asyncio.shield(working)

    def pause(self) -> float:
        """Returns the seconds to pause, 0 for none."""
        now = self._clock()
        self._level = max(0.0, self._level - (now - self._at) * self._part)
        self._at = now
        return max(0.0, (self._level - BURST) / self._part)

    def _pay(self, cost: float) -> None:
        """Charges `cost`, or refunds a negative one. Work of `_free` seconds costs nothing."""
        self._start += cost
        if self._free > 0.0 < cost:
            paid = min(self._free, cost)
            self._free -= paid
            cost -= paid
        for budget in (self, self._common()):
            budget.pause()
            budget._level = max(0.0, min(MOST, budget._level + cost))

    def _common(self) -> "LoopBudget":
        if self._everybody is None:
            loop = asyncio.get_running_loop()
            if loop not in _all:
                _all[loop] = LoopBudget(self._clock, _EVERYBODY)
            self._everybody = _all[loop]
        return self._everybody

    async def rest(self) -> None:
        """Before an answer that somebody waits for: at once for a peer that has some of its own part left. Others wait
        until that is so, and for the part of all, whoever has had the least of it first; or until nobody else has need
        of the loop: one alone takes an idle moment, and works for `_FREE_WHEN_IDLE`."""
        if self.pause() <= 0.0 or (self._free > 0.0 and self._at - self._idle_at < _LONGEST_NAP):
            return
        common, nap = self._common(), _NAP
        self._start = max(self._start, common._start)
        common._waiting.append(self)
        try:
            while (left := max(self.pause(), common.pause())) > 0.0 or common._first() is not self:
                before, moment, slept = self._used(), common._moment, min(left, nap) or _NAP
                await asyncio.sleep(slept)
                if moment == common._moment and self._used() - before < _IDLE * slept:
                    common._moment += 1  # all who wait see it, and would fill it many times over
                    self._free, self._idle_at = _FREE_WHEN_IDLE, self._clock()
                    return
                nap = min(2 * nap, _LONGEST_NAP)
        finally:
            common._waiting.remove(self)
            if common._chosen is self:
                common._chosen = None
            common._start = max(common._start, self._start)

    async def rest_to_read(self) -> None:
        """The same, and one connection goes on at a time: all would read a piece each before the first one counts."""
        async with self._reading:
            for _ in range(_READ_WITHIN):
                await asyncio.sleep(0)
            await self.rest()

    def _first(self) -> "LoopBudget":
        """Whoever waits and has had the least. Found once in a `_NAP`: a thousand would each look at a thousand."""
        if self._chosen is None or self._clock() - self._chosen_at >= _NAP:
            self._chosen, self._chosen_at = min(self._waiting, key=lambda budget: budget._start), self._clock()
        return self._chosen

    def refused(self, seconds: float, longest: float) -> None:
        """A request was refused, by so much work, in steps of which one was the longest. The next ones pay for it in
        advance: what is admitted at once is refused later. What was paid so is not paid again."""
        self._due = _cost(seconds * _WHOLE, longest * _WHOLE)
        paid = min(self._advance, self._due)
        self._settle(paid)
        self._pay(self._due - paid)

    def served(self) -> None:
        """A request was not refused: it gets back what it paid in advance, and the next ones pay nothing so."""
        if self._due:
            paid = min(self._advance, self._due)
            lent = min(self._lent, paid)
            raised = min(self._raised, paid - lent)
            self._lent, self._raised, self._due = self._lent - lent, self._raised - raised, 0.0
            self._settle(paid)
            self._free = min(_FREE_WHEN_IDLE, self._free + lent)
            self._start -= paid - raised
            self._pay(-raised)

    def _settle(self, paid: float) -> None:
        """Takes so much out of `_advance`: its request has come to an end."""
        self._advance -= paid
        self._lent, self._raised = min(self._lent, self._advance), min(self._raised, self._advance)

    async def enter(self) -> None:
        """Before a request of one whose part is in use: one request in a turn of the loop, and none while the part is
        used up and others need the loop."""
        async with self.turn:
            await asyncio.sleep(0)
            await self.rest()
            self.pause()
            free, level = self._free, self._level
            self._pay(self._due)
            self._advance = min(MOST, self._advance + self._due)
            self._lent, self._raised = self._lent + free - self._free, self._raised + self._level - level

    def is_unused(self) -> bool:
        if self._level == 0.0:  # time makes it no less
            return True
        self.pause()
        return self._level == 0.0

    def now(self) -> float:
        return self._clock()


class PeriodicYield:
    """Yields to other tasks during work in small steps. The work is not charged."""

    def __init__(self, budget: LoopBudget) -> None:
        self._budget, self._since = budget, budget.now()

    async def yield_if_due(self) -> None:
        if self._budget.now() - self._since >= _SHORT:
            await self._budget.give_way(self._since)
            self._since = self._budget.now()


def _cost(seconds: float, step: float) -> float:
    """Of work whose longest step takes so long."""
    return min(MOST, seconds * max(1.0, step / STEP))
