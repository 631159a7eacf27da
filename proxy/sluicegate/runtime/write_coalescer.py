"""Writes of one turn of the event loop, made at its end, one right behind the other.

The first byte wakes a peer that sleeps. On a virtual machine that costs more than the write itself. Calls that were
answered or recorded together are ready in the same turn. Written one by one they wake the peer each time, written in
a row once. No write is delayed beyond its turn.

Knows bytes and transports; knows no protocol.
"""

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

MOST: Final = 16
"""Writes that may wait: with more at once it is better that the peer begins to work than that it sleeps on."""
LARGE: Final = 64 * 1024
"""Bytes. More than this does not wait: a transport says only of what it has that a peer reads too slowly."""

_outboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, "WriteCoalescer"] = WeakKeyDictionary()


class WriteCoalescer:
    """One for each event loop, see `write_coalescer_of`. Whoever wants to do something else with a transport that may
    be in here (write, close, pass on), or learns that the loop will close it, calls `flush` first. What is aborted is
    dropped."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.WriteTransport, bytes]] = deque()

    def put(self, loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport, data: bytes) -> None:
        waiting = self._waiting
        waiting.append((transport, data))
        if len(waiting) >= MOST or len(data) > LARGE:
            self.flush()
        elif len(waiting) == 1:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes what waits, in the order in which it came."""
        # Step 15 of docs/explanation/performance.md
        waiting = self._waiting
        try:
            while waiting:
                transport, data = waiting.popleft()
                if not transport.is_closing():
                    transport.write(data)
        finally:
            if waiting:  # one that fails must not take the others with it
                self.flush()


def write_coalescer_of(loop: asyncio.AbstractEventLoop) -> WriteCoalescer:
    found = _outboxes.get(loop)
    if found is None:
        found = _outboxes[loop] = WriteCoalescer()
    return found
