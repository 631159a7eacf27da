"""How many calls at once each replica of a fleet may have open at a server: together never more than its `concurrency`.

Pure. A replica tells the others by whose presence it goes (its view), and at which servers it still has more open calls
than it may. Where replicas come or go, shares shrink at once. They grow once all that live have the same view, and none
has too many.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import sha256
from typing import Any, Protocol

from sluicegate.app.partition import WHOLE, Partition
from sluicegate.protocol.jsonrpc import Json


class SharedServer(Protocol):
    @property
    def most_in_flight(self) -> int: ...

    def share(self, limit: int, is_settled: bool) -> None: ...


SharedServers = Callable[[], Iterable[tuple[str, int, SharedServer]]]


class ConcurrencyShares:
    """Of the replica that has this mark. `see` is to be called with what the store says of the others, and `row` to be
    written to it before that happens again."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.partition = WHOLE
        self._view = ""
        self.is_agreed = False
        self._late: frozenset[str] = frozenset()
        self._shares: dict[str, int] = {}
        self._servers: SharedServers = tuple

    def attach(self, servers: SharedServers) -> None:
        """`servers` gives the key and the `concurrency` of each that runs here."""
        self._servers = servers

    def row(self) -> Json:
        over = [key for key, _, server in self._servers() if server.most_in_flight > self._shares.get(key, 0)]
        return {"view": self._view, "over": over}

    def see(self, others: Mapping[str, Mapping[str, Any]]) -> None:
        """`others`: the row of each other one that lives, by its mark."""
        marks = sorted({*others, self._mark})
        self.partition = Partition(marks.index(self._mark), len(marks))
        self._view = sha256("\n".join(marks).encode()).hexdigest()[:16]
        # One of the version before shares nothing, and would never agree.
        self.is_agreed = all(row["view"] == self._view for row in others.values() if "view" in row)
        self._late = frozenset(key for row in others.values() for key in _keys(row.get("over")))
        servers = tuple(self._servers())
        self._shares = {key: self._shares.get(key, 0) for key, _, _ in servers}
        for key, concurrency, server in servers:
            server.share(self.of(key, concurrency), self.is_agreed)

    def of(self, key: str, concurrency: int) -> int:
        """The share of a server: as of now where it is settled, else what it was, or less."""
        share = self.partition.of(concurrency)
        if not self.is_agreed or key in self._late:
            share = min(share, self._shares.get(key, 0))
        self._shares[key] = share
        return share


def _keys(over: object) -> Collection[str]:
    return [key for key in over if isinstance(key, str)] if isinstance(over, list) else []
