"""What outlives a call: small values under keys, and things that may happen only once.

The Protocol that rooms see. Knows nothing of what is stored; who stores says so with a prefix of its keys.
Times to live are seconds; None is "until deleted".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Write:
    """One part of a change: `value` under `key` for `ttl` seconds; a value of None forgets the key."""

    key: str
    value: bytes | None = None
    ttl: float | None = None


class StoreFailed(OSError):
    """What is kept cannot be read or written now: a full disk, a lock that another program holds, a damaged file."""


TRIES: Final = 20
"""Attempts at a change by compare-and-set. It fails if other processes write during each of them."""


def overtaken(what: str) -> StoreFailed:
    return StoreFailed(f"{what} cannot be written: other processes write all the time")


class Store(Protocol):
    """Each method raises `StoreFailed` where what is kept cannot be read or written."""

    @property
    def problem(self) -> str:
        """Why it could not be used the last time; empty once it can be."""

    @property
    def warning(self) -> str:
        """What an operator should know although it can be used; empty most of the time."""

    async def get(self, key: str) -> bytes | None:
        """The value, None if there is none or its time is over."""

    async def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those keys that have one, in one read."""

    async def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
        """Keep the value, in place of an earlier one. On return it survives the death of the process."""

    async def delete(self, key: str) -> None:
        """Forget the value; nothing happens if there is none."""

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        """All of `writes` or none: they are made if what stands under `key` is `expected` (None: nothing). One
        compare-and-set, whoever else writes."""

    async def scan(self, prefix: str) -> dict[str, bytes]:
        """Returns all entries whose key has this prefix, in the order of the keys."""

    async def expire(self, key: str, ttl: float) -> None:
        """Keep the value for that long from now on; nothing happens if there is none."""

    async def spend(self, key: str, ttl: float | None) -> bool:
        """True exactly once within `ttl` seconds, whoever asks: one compare-and-set. Spent keys and values
        do not meet, so a `put` can neither spend nor restore a key."""

    async def now(self) -> float:
        """Its time, by which things are over, as Unix time: that of the engine, where it has one."""

    async def close(self) -> None:
        """Finish what was begun. The store is of no use afterwards."""
