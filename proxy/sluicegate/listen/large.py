"""Large requests: what is judged before their bytes are decoded, and how much of the event loop their clients may have.

A small request costs less than the call that it asks for, so its rate is judged with the call. Decoding a megabyte
takes milliseconds: a large one is refused first where its client's rate would refuse it, or where the client has too
many bytes in flight. Large ones of one client are decoded one at a time. Knows principals and bytes, no message.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sluicegate.era import reserved
from sluicegate.listen.settings import Limits
from sluicegate.message import INTERNAL_ERROR, decode_weighed, weigh
from sluicegate.network.turns import Turns

LARGE: Final = 16 * 1024
"""Bytes. What has more is large."""
_MAX_REMEMBERED: Final = 1_000
_RETRY: Final = 1.0

UntilFree = Callable[[str], float]
"""Seconds until this principal may send another request, 0.0 where it may now. Counts no request."""


class Refused(Exception):
    """A large request may not come in now; `wait` is in seconds."""

    def __init__(self, wait: float, text: str) -> None:
        super().__init__(text)
        self.wait = wait
        self.error = {"code": INTERNAL_ERROR, "message": text, "data": {"reason": "rate_limited"}}


class LargeRequests:
    def __init__(self, limits: Limits, until_free: UntilFree = lambda principal: 0.0) -> None:
        self._limits, self._until_free = limits, until_free
        self._held: Counter[str] = Counter()
        self._turns: dict[str, Turns] = {}

    def __repr__(self) -> str:
        return f"LargeRequests({self._held.total()} bytes)"

    def judge(self, principal: str, size: int) -> None:
        """Raises `Refused`."""
        if wait := self._until_free(principal):
            raise Refused(wait, "Too many requests, this one was not executed: it was not even read.")
        if self._held[principal] + size > self._limits.in_flight:
            text = f"More than {self._limits.in_flight} bytes of requests are in flight, this one was not executed."
            raise Refused(_RETRY, text)

    @contextmanager
    def holding(self, principal: str, size: int) -> Iterator[None]:
        """A request of that size is in flight. Raises `Refused`."""
        self.judge(principal, size)
        self._held[principal] += size
        try:
            yield
        finally:
            self._held[principal] -= size
            if not self._held[principal]:
                del self._held[principal]

    async def decode(self, principal: str, data: bytes) -> Any:
        """The JSON value, read in two steps of the event loop. Raises `Malformed`."""
        turns = self._of(principal)
        async with turns.turn:
            await turns.rest()
            since = turns.now()
            try:
                pairs = weigh(data, self._limits.max_depth, self._limits.nodes)
                turns.take(since)
                await asyncio.sleep(0)
                since = turns.now()
                return reserved.from_client(decode_weighed(data, pairs), data)
            finally:
                turns.take(since)

    def _of(self, principal: str) -> Turns:
        found = self._turns.get(principal)
        if found is None:
            if len(self._turns) >= _MAX_REMEMBERED:
                self._turns = {name: one for name, one in self._turns.items() if one.turn.locked() or one.pause() > 0}
            found = self._turns[principal] = Turns()
        return found
