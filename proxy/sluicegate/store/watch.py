"""What moved in a store, for parts that look every second: a replica asks once for all of them.

Knows no engine and no part. A part names the prefixes of its keys, and reads its rows only where their mark is another
one than before it read them last.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import anyio


class Polled(NamedTuple):
    """`marks` has one for each prefix: another one once a key or a value under it is another one."""

    is_renewed: bool
    now: float
    rows: list[bytes]
    marks: dict[str, str]


@runtime_checkable
class Polls(Protocol):
    """A store that answers all of it in one statement."""

    async def poll(
        self, lease: tuple[str, float], seen: tuple[str, float], row: bytes | None, others: str,
        prefixes: Sequence[str],
    ) -> Polled:  # fmt: skip
        """Renews a lease that has this very row, and the copy of it, each for its seconds; with None neither. `rows`
        are those under `others`. Raises `StoreFailed`."""
        ...


class Watch:
    """Tells parts when to look. Where nobody polls each looks for itself, as often as it wants to."""

    def __init__(self, patience: float = 0.0) -> None:
        """`patience`: the seconds after which parts look for themselves although somebody should have polled."""
        self._patience = patience
        self._marks: Mapping[str, str] = {}
        self._polled = anyio.Event()
        self.prefixes: tuple[str, ...] = ()
        """All that parts have asked for."""
        self.since = 0.0
        """The moment of the monotonic clock before which the marks were made."""

    def tell(self, marks: Mapping[str, str], since: float) -> None:
        self._marks, self.since = marks, since
        self._polled.set()
        self._polled = anyio.Event()

    async def turn(self, every: float) -> None:
        """Until somebody polled, or that long if nobody does."""
        with anyio.move_on_after(max(every, self._patience)):
            await self._polled.wait()
            return
        self._marks = {}

    def mark(self, *prefixes: str) -> tuple[str, ...] | None:
        """What is there now has this mark; None where that is not known, and a part has to read."""
        self.prefixes = tuple(dict.fromkeys([*self.prefixes, *prefixes]))
        found = tuple(self._marks[one] for one in prefixes if one in self._marks)
        return found if len(found) == len(prefixes) else None
