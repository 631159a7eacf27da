"""Answers that were written and that nobody has read yet: how many bytes of them one principal may have.

A slow reader leaves them in the buffer of its connection. There it has room for some, and a principal may have
thousands of connections. Knows connections and bytes, no message.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol

_LOOK_EVERY: Final = 0.02
_FEW: Final = 64


class HttpPeer(Protocol):
    """Who is answered: `unread` are the bytes that wait for it, `lost` is whether it has gone."""

    loop: asyncio.AbstractEventLoop

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def unread(self) -> int: ...

    @property
    def lost(self) -> bool: ...

    async def drained(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Unread:
    """One principal's. `bytes` is never too small: what was read meanwhile shows at the next count."""

    connections: dict[asyncio.Transport, int] = field(default_factory=dict)
    bytes: int = 0
    counted_at: float = 0.0
    counted: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def count(self, now: float) -> None:
        sizes = ((one, one.get_write_buffer_size()) for one in self.connections)
        self.connections = {one: size for one, size in sizes if size}
        self.bytes, self.counted, self.counted_at = sum(self.connections.values()), len(self.connections), now


class UnreadAnswers:
    def __init__(self, most: int) -> None:
        self._most = most
        self.held: dict[str, _Unread] = {}

    def note(self, principal: str, peer: HttpPeer) -> None:
        """Something was written to that client, and not all of it has left."""
        mine, one, size = self.held.setdefault(principal, _Unread()), peer.transport, peer.unread
        mine.bytes += size - mine.connections.get(one, 0)
        mine.connections[one] = size
        if len(mine.connections) > 2 * mine.counted + _FEW:
            mine.count(peer.loop.time())

    def is_full(self, principal: str) -> bool:
        """Whether nothing more may be encoded for it."""
        mine = self.held.get(principal)
        if mine is None or mine.bytes <= self._most:
            return False
        now = asyncio.get_running_loop().time()
        if now - mine.counted_at >= _LOOK_EVERY:  # a count of thousands takes as long as a call
            mine.count(now)
        return mine.bytes > self._most

    async def room(self, principal: str, peer: HttpPeer) -> None:
        """Returns when an answer may be encoded for that client, or it has gone. Who waits has its turn in order."""
        await peer.drained()
        while not peer.lost and self.is_full(principal):
            async with self.held[principal].turn:
                while not peer.lost and self.is_full(principal):  # noqa: ASYNC110 - no event says that others read
                    await asyncio.sleep(_LOOK_EVERY)

    def sweep(self) -> None:
        """Forgets those who have read everything."""
        for principal, mine in list(self.held.items()):
            mine.count(asyncio.get_running_loop().time())
            if not mine.connections and not mine.turn.locked():
                del self.held[principal]
