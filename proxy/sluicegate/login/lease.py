"""The right to renew one login, held by one process at a time.

Time ends it, because a process may die; a lease that is still there when its time is over says that one did.
"""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio

from sluicegate.login.model import Bearer
from sluicegate.login.records import LEASES, Records, key_of
from sluicegate.store import StoreFailed, Write

LEASE: Final = 30.0
_POLL: Final = 0.1
_KEPT: Final = 90 * 86_400.0


@dataclass(frozen=True, slots=True)
class Lease:
    """`is_stale`: it was taken over from a process that never gave it back."""

    key: str
    raw: bytes
    is_stale: bool


class Leases:
    def __init__(self, records: Records, clock: Callable[[], float]) -> None:
        self._records, self._clock = records, clock

    async def take(self, server: str, whose: str, look: Callable[[], Awaitable[Bearer | None]]) -> Lease | Bearer:
        """The lease, or what `look` finds while it is waited for. Raises `TimeoutError`."""
        key = key_of(LEASES, server, whose)
        with anyio.fail_after(LEASE + 5):
            while True:
                held, payload = await self._records.read(key)
                at, now = (payload or {}).get("at"), self._clock()
                if held is None or not isinstance(at, int | float) or not 0 <= now - at < LEASE:
                    mine = self._records.write(key, {"at": now, "by": secrets.token_hex(8)}, _KEPT)
                    if await self._records.store.swap(key, held, [mine]):
                        return Lease(key, mine.value or b"", held is not None)
                await anyio.sleep(_POLL)
                if (found := await look()) is not None:
                    return found

    async def give_back(self, lease: Lease) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5.0), suppress(StoreFailed):
            await self._records.store.swap(lease.key, lease.raw, [Write(lease.key)])
