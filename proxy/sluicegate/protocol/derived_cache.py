"""What is made of a server's definition once, for as long as the definition lives. Pure."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sluicegate.protocol.jsonrpc import Json, dump

MOST: Final = 4_096
BYTES: Final = 4 * 1024 * 1024
"""Of all definitions together, as JSON. Decoded they may take twenty times as many: a server chooses what they are."""


Value = TypeVar("Value")


class DerivedCache(Generic[Value]):
    """By the identity of the definition: snapshots keep one object for each. The cache keeps that object, too, so that
    its identity stays its own. It forgets all when it is full, as of a server whose definitions always change."""

    def __init__(self, make: Callable[[Json], Value]) -> None:
        self._make = make
        self._known: dict[int, tuple[Json, Value]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def of(self, definition: Json) -> Value:
        known = self._known.get(id(definition))
        if known is None:
            size = len(dump(definition))
            if len(self._known) >= MOST or self._bytes + size > BYTES:
                self._known.clear()
                self._bytes = 0
            self._bytes += size
            known = self._known[id(definition)] = (definition, self._make(definition))
        return known[1]
