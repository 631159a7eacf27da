"""Reading that takes long and is asked for from outside: in threads, and few at once.

A thread that reads and decodes has the interpreter in turns with the event loop, 5 ms each: forty of them would hold
up every call.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

MAX_READERS: Final = 2
"""Of one event loop."""

T = TypeVar("T")
_limiter: Final = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("readers")


async def in_reader_thread(read: Callable[[], T]) -> T:
    """What `read` returns, when it is its turn."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MAX_READERS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(read, limiter=limiter)
