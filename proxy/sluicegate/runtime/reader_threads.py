"""Reading that takes long and is asked for from outside: in threads, and few at once.

A thread that reads and decodes has the interpreter in turns with the event loop, 5 ms each: forty of them would hold
up every call.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel

MAX_READERS: Final = 2
"""Of one event loop."""

asker: Final = ContextVar("asker", default="")
"""Who asks, and whether to decide on an approval. One thread at a time reads for each: two searches of one client would
hold up all others, and one of `local`, who is every operator, their approvals."""

T = TypeVar("T")


class _Readers:
    def __init__(self) -> None:
        self.limiter = anyio.CapacityLimiter(MAX_READERS)
        self._turns = WeakValueDictionary[str, anyio.Lock]()

    def turn(self, who: str) -> anyio.Lock:
        """Kept for as long as somebody has it or waits for it."""
        return self._turns.setdefault(who, anyio.Lock())


_readers: Final = anyio.lowlevel.RunVar[_Readers]("readers")


async def in_reader_thread(read: Callable[[], T]) -> T:
    """What `read` returns, when it is its turn."""
    try:
        readers = _readers.get()
    except LookupError:
        readers = _Readers()
        _readers.set(readers)
    async with readers.turn(asker.get()):
        return await anyio.to_thread.run_sync(read, limiter=readers.limiter)
