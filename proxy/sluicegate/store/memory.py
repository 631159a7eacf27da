"""A store that lives as long as its process: for tests, and for a Sluice that keeps no state."""

import math
import time
from collections.abc import Callable, Sequence

from sluicegate.store import Write

PURGE_EVERY = 1_000  # writes


class MemoryStore:
    """Keeps values and their end in dicts; what is over leaves at the next purge."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.problem = self.warning = ""
        self._values: dict[str, tuple[bytes, float | None]] = {}
        self._spent: dict[str, float] = {}
        self._writes = 0

    async def get(self, key: str) -> bytes | None:
        value, expires = self._values.get(key, (None, None))
        return None if expires is not None and expires <= self._clock() else value

    async def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        return {key: value for key in keys if (value := await self.get(key)) is not None}

    async def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
        self._purge()
        self._values[key] = (value, None if ttl is None else self._clock() + ttl)

    async def delete(self, key: str) -> None:
        self._values.pop(key, None)

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        if await self.get(key) != expected:
            return False
        for write in writes:
            if write.value is None:
                await self.delete(write.key)
            else:
                await self.put(write.key, write.value, write.ttl)
        return True

    async def scan(self, prefix: str) -> dict[str, bytes]:
        now = self._clock()
        return {
            key: value for key, (value, expires) in sorted(self._values.items())
            if key.startswith(prefix) and (expires is None or expires > now)
        }  # fmt: skip

    async def expire(self, key: str, ttl: float) -> None:
        value = await self.get(key)
        if value is not None:
            await self.put(key, value, ttl)

    async def spend(self, key: str, ttl: float | None) -> bool:
        self._purge()
        now = self._clock()
        if self._spent.get(key, now) > now:
            return False
        self._spent[key] = math.inf if ttl is None else now + ttl
        return True

    async def now(self) -> float:
        return self._clock()

    async def close(self) -> None:
        self._values.clear()
        self._spent.clear()

    def _purge(self) -> None:
        self._writes += 1
        if self._writes % PURGE_EVERY:
            return
        now = self._clock()
        self._values = {key: entry for key, entry in self._values.items() if entry[1] is None or entry[1] > now}
        self._spent = {key: expires for key, expires in self._spent.items() if expires > now}
