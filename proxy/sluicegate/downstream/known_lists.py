"""The last long answer of one server to each of its lists: equal bytes are not decoded and looked at anew.

Many clients are shown the same, and a list is walked again and again. Knows answers by a digest, and no client.
"""

import asyncio
from dataclasses import dataclass, field

from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Result


@dataclass(slots=True)
class KnownList:
    """`result` is final, as every result is; `outcome` is what came of it, where its connection says so. Several ask at
    once: who has the `turn` makes it for all."""

    mark: bytes
    result: Json
    outcome: Result | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class KnownLists:
    def __init__(self) -> None:
        self._last: dict[str, KnownList] = {}

    def find(self, method: str, mark: bytes) -> Json | None:
        last = self._last.get(method)
        return last.result if last is not None and last.mark == mark else None

    def keep(self, method: str, mark: bytes, result: Json) -> None:
        self._last[method] = KnownList(mark, result)

    def of(self, method: str, result: Json | None) -> KnownList | None:
        """The one that has this very object."""
        last = self._last.get(method)
        return last if last is not None and last.result is result else None
