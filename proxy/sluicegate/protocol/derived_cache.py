"""What is made of a server's definition once, for as long as the definition lives. Pure."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sluicegate.protocol.jsonrpc import Json, dump

MOST: Final = 4_096
BYTES: Final = 4 * 1024 * 1024
"""Of the definitions of one generation, as JSON; two are kept. Decoded they may take twenty times as many: a server
chooses what they are."""

Value = TypeVar("Value")


class DerivedCache(Generic[Value]):
    """Keyed by the `id()` of the definition: snapshots keep one object for each. The cache keeps that object, too, so
    that no other object gets the same `id()`. Values have two generations. When the new one has `most` definitions or
    `most_bytes`, it becomes the old one, and the old one is dropped. A value that is used again becomes new. So a value
    made for a page of a list is still cached when that page is written."""

    def __init__(self, make: Callable[[Json], Value], most: int = MOST, most_bytes: int = BYTES) -> None:
        self._make, self._most, self._most_bytes = make, most, most_bytes
        self._new, self._old = dict[int, tuple[Json, Value, int]](), dict[int, tuple[Json, Value, int]]()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def clear(self) -> None:
        self._new, self._old, self._bytes = {}, {}, 0

    def of(self, definition: Json) -> Value:
        entry = self._new.get(id(definition))
        return entry[1] if entry is not None else self._renew(definition)

    def _renew(self, definition: Json) -> Value:
        entry = self._old.pop(id(definition), None) or (definition, self._make(definition), len(dump(definition)))
        if len(self._new) >= self._most or self._bytes + entry[2] > self._most_bytes:
            self._new, self._old, self._bytes = {}, self._new, 0
        self._new[id(definition)] = entry
        self._bytes += entry[2]
        return entry[1]
