"""Between the event loop and the writer's thread: records go one way, "it is kept" comes back.

Handing over costs an append; the thread is woken only for records that somebody waits for, the others are picked
up together after a moment. It is woken when the event loop runs out of such records, not at the first one: each waking
and each sync sets two threads against each other for the interpreter's lock, which costs more than a record does: with
16 calls at once a call takes 20 us of CPU less. A sync covers 8 to 11 of 16, and some 40 of 64. Where one client calls
at a time there is nobody to wait for. Knows no file and no chain.
"""

import asyncio
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from sluicegate.runtime.loop_budget import release_gil, release_gil_while

LINGER: Final = 0.05  # seconds a record may wait that nobody waits for
GATHER: Final = 0.005  # seconds that one may wait for others, however many come
MAX_BATCH: Final = 2_000
_PATIENCE: Final = 0.001
"""Seconds. If the thread settles no record in this time, it may be waiting for the interpreter's lock."""
_LONGEST: Final = 0.004  # seconds between two checks at most

Done = asyncio.Future[bool]


class QueuedRecord(NamedTuple):
    """A record on its way: `opens` and `closes` are ids of calls, `done` is for whoever waits until it is kept, or,
    with `signs`, until a checkpoint covers it, too."""

    body: bytes
    opens: str = ""
    closes: str = ""
    done: Done | None = None
    signs: bool = False


class RecordQueue:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[QueuedRecord] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_rung = self._has_more = self._is_gathering = False
        self._dropped = self._reported = 0  # records that were not taken, and those of which the thread was told
        self._asked = self._settled = 0  # records so far that somebody waits for, and those of which they were told
        self._together = 0  # how many of them were kept at once last
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_watched = False

    def __len__(self) -> int:
        return len(self._items)

    # ------------------------------------------------------------ the event loop's side

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        release_gil_while(self._is_awaited)

    def _is_awaited(self) -> bool:
        return self._settled < self._asked

    @property
    def is_full(self) -> bool:
        return len(self._items) >= self._limit

    def drop(self) -> None:
        """Counts a record that is not taken, for the log to say so."""
        self._dropped += 1

    def put(self, body: bytes, closes: str = "") -> None:
        """A record that nobody waits for."""
        self._items.append(QueuedRecord(body, "", closes))
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(LINGER, self.ring)

    def ask(self, body: bytes, opens: str = "", signs: bool = False) -> Done:
        """A record, and whether it is kept."""
        loop = self._loop
        assert loop is not None
        done = loop.create_future()
        self._items.append(QueuedRecord(body, opens, "", done, signs))
        self._asked += 1
        if not self._is_watched:
            self._is_watched = True
            loop.call_later(_PATIENCE, self._watch, _PATIENCE, self._settled)
        if self._together <= 1 and self._settled == self._asked - 1:
            self.ring()
        elif not self._is_gathering:
            self._is_gathering = True
            self._until = loop.time() + GATHER
            loop.call_soon(self._gather, -1)
        return done

    def _watch(self, patience: float, settled: int) -> None:
        """Releases the interpreter's lock if the thread has settled no record meanwhile. When the loop does much work
        in short turns, the thread does not get the lock otherwise. If the disk is slow, releasing it does not help, so
        the next check comes later."""
        assert self._loop is not None
        self._is_watched = self._is_awaited()
        if self._is_watched:
            is_stuck = self._settled == settled
            if is_stuck:
                release_gil()
            patience = min(2 * patience, _LONGEST) if is_stuck else _PATIENCE
            self._loop.call_later(patience, self._watch, patience, self._settled)

    def _gather(self, before: int) -> None:
        """Once in each turn of the loop: a turn without news is followed by the sync. The first turn cannot tell, for
        what is read in it is looked at only behind us."""
        # Step 8 of docs/explanation/performance.md
        assert self._loop is not None
        if self._asked != before and self._loop.time() < self._until:
            self._loop.call_soon(self._gather, self._asked)
        else:
            self._is_gathering = False
            self.ring()

    def ring(self) -> None:
        """Wakes the thread. It lowers the flag before it looks, so that nothing put after its look goes unseen."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_rung:
            self._is_rung = True
            self._bell.put(None)

    # ------------------------------------------------------------ the thread's side

    def wait(self, until: float) -> None:
        """Until somebody rings, or that moment (monotonic seconds, infinity for none)."""
        if self._has_more:
            return
        try:
            self._bell.get(timeout=None if until == float("inf") else max(0.0, until - time.monotonic()))
        except Empty:
            return
        self._is_rung = False

    def take(self) -> list[QueuedRecord]:
        items = self._items
        batch = [items.popleft() for _ in range(min(len(items), MAX_BATCH))]
        self._has_more = len(batch) == MAX_BATCH
        return batch

    def take_dropped(self) -> int:
        """How many were dropped since this was asked last."""
        before, self._reported = self._reported, self._dropped
        return self._reported - before

    def settle(self, waiting: list[Done], is_kept: bool) -> None:
        """Tells who waits, in the event loop."""
        if waiting and self._loop is not None:
            self._loop.call_soon_threadsafe(self._resolve, waiting, is_kept)

    def refuse_all(self) -> None:
        """The thread ends early: who waits hears no. Done in the event loop, behind whoever puts just now."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._refuse)

    def _refuse(self) -> None:
        waiting = [item.done for item in self._items if item.done is not None]
        self._items.clear()
        self._resolve(waiting, False)

    def _resolve(self, waiting: list[Done], is_kept: bool) -> None:
        # Step 8 of docs/explanation/performance.md
        self._settled += len(waiting)
        self._together = len(waiting)
        for done in waiting:
            if not done.done():  # its call may have been cancelled
                done.set_result(is_kept)

    def tell(self, opened: asyncio.Future[None], error: BaseException | None) -> None:
        """The end of the first opening, well or badly."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_tell, opened, error)


def _tell(opened: asyncio.Future[None], error: BaseException | None) -> None:
    if opened.done():
        return
    if error is None:
        opened.set_result(None)
    else:
        opened.set_exception(error)
