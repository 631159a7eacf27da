"""How much of one list is taken from a server, counted page by page.

Pure. A server may send pages without end: the walk ends at a number of items, at a number of bytes, at a cursor that
came twice, and after so many pages in a row that add nothing.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from sluicegate.protocol.jsonrpc import Malformed, dump

MAX_IDLE: Final = 64
MAX_DEFINITION: Final = 256 * 1024
"""Bytes of one definition; a larger one is not served."""
PIECE: Final = 64 * 1024
"""Of work on definitions, between two turns for others: their bytes, and `ITEM` for each."""
ITEM: Final = 1024
_NAMES: Final = ("uriTemplate", "uri", "name")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one list of one server."""

    items: int = 10_000
    bytes: int = 16 * 1024 * 1024


DEFAULT_BOUNDS: Final = Bounds()


class Intake:
    """What was taken of one list so far."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._items = self.size = self._idle = 0
        self._names: set[str] = set()
        self._cursors: set[str] = set()
        self._state, self._is_exact = items_digest(), True

    @property
    def digest(self) -> bytes:
        """Equal for equal items that were taken, to the order of keys; empty where one has no bytes to tell it by."""
        return self._state.digest() if self._is_exact else b""

    def take(self, entries: Sequence[Any], cursor: str | None) -> Generator[None, None, tuple[Sequence[Any], str]]:
        """The items of a page that are taken, and why the walk ends here although the server has more, "" if it does
        not. `cursor` leads to the next page, None where there is none."""
        names, done, room = set[str](), 0, self._bounds.items - self._items
        for number, item in enumerate(entries[:room]):
            data = self._encoded(item)
            size = MAX_DEFINITION if data is None else len(data)
            self.size += size
            if (name := _name(item)) is not None:
                names.add(name)
            if (done := done + size + ITEM) >= PIECE:
                done = 0
                yield
            if self.size > self._bounds.bytes:
                return entries[:number], f"the rest after {self._bounds.bytes} bytes (limits.list_bytes)"
            if data is not None:
                add_item(self._state, data)
        self._items += min(room, len(entries))
        if len(entries) > room or (len(entries) == room and cursor is not None):
            return entries[:room], f"the rest after {self._bounds.items} items (limits.list_items)"
        self._idle = self._idle + 1 if names <= self._names else 0
        self._names |= names
        if cursor is None:
            return entries, ""
        self.size += len(cursor)  # each is kept, and may be as long as a message
        if self.size > self._bounds.bytes:
            return entries, f"the rest after {self._bounds.bytes} bytes (limits.list_bytes)"
        if cursor in self._cursors:
            return entries, "the rest after a cursor that came twice"
        self._cursors.add(cursor)
        return entries, f"the rest after {MAX_IDLE} pages in a row with nothing new" if self._idle >= MAX_IDLE else ""

    def _encoded(self, item: Any) -> bytes | None:
        """None for what has no bytes: it is not served, and counts like the largest."""
        try:
            return dump(item)
        except Malformed:
            self._is_exact = False
            return None


def items_digest() -> blake2b:
    """Of a list, to the order of keys: for a walk, and for what was stored of one."""
    return blake2b(digest_size=16)


def add_item(digest: blake2b, data: bytes) -> None:
    digest.update(data + b"\0")  # which stands in no JSON


def _name(item: Any) -> str | None:
    names = (item.get(key) for key in _NAMES) if isinstance(item, dict) else ()
    return next((name for name in names if isinstance(name, str)), None)
