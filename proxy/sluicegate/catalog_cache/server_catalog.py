"""One server's lists for one scope: what is held of them, and how up to date that is.

Keeps and tells; when to walk and whom to tell is said elsewhere.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import Final

from sluicegate.catalog.snapshot import KINDS, ListSection, Snapshot
from sluicegate.protocol.model import Era, Kind, McpServer

MAX_LEARNED: Final = 10_000


class ServerCatalog:
    """One server's lists for one scope. `stale`: lists to be walked again. `changed`: those of them that the server
    announced and subscribers were not told of yet. `late`: lists no longer wait for its walk. `learned`: resources
    shown under their own URI, as their pages passed by. `recalled`: lists that are from the store, and that the server
    has not listed since; `recall` looks there. `missed`: a list of resources lacks its own, because it was still
    starting. `is_awaited`: the server took another's place, and has not listed since. `announced` counts how often the
    server said that a list has changed. `is_lent`: it is of a client without a login, and has what others were shown.
    `whole` is what the server listed, in its `era`, to these `capabilities` (`McpServer.capability_set`); `snapshot` is
    the part of it that is served."""

    __slots__ = ("announced", "capabilities", "changed", "era", "is_awaited", "is_lent", "late", "learned", "missed",
                 "recall", "recalled", "retry_at", "scope", "searched_at", "server", "snapshot", "stale", "used",
                 "walk", "walked_at", "whole")  # fmt: skip

    def __init__(self, server: McpServer, scope: str) -> None:
        self.server = server
        self.scope = scope
        self.era: Era = "modern"
        self.capabilities = ""
        self.whole: Snapshot | None = None
        self.snapshot: Snapshot | None = None
        self.walk: asyncio.Task[None] | None = None
        self.recall: asyncio.Task[None] | None = None
        self.recalled: set[str] = set()
        self.announced: Counter[str] = Counter()
        self.stale = set(KINDS)
        self.changed: set[str] = set()
        self.learned: dict[str, None] = {}
        self.late = self.missed = self.used = self.is_awaited = self.is_lent = False
        self.retry_at = self.walked_at = self.searched_at = float("-inf")

    @property
    def is_whole(self) -> bool:
        """Whether every list has landed once. What has not is not known to lack anything."""
        return self.whole is not None and len(self.whole.listings) == len(KINDS)

    def withholds(self, kind: Kind, public: str) -> bool:
        """Whether the server listed it and the pins keep it from clients."""
        if self.whole is None or self.snapshot is None or self.whole is self.snapshot:
            return False
        return (kind, public) in self.whole.find and (kind, public) not in self.snapshot.find

    def learn(self, uri: str) -> None:
        if uri not in self.learned and len(self.learned) >= MAX_LEARNED:
            del self.learned[next(iter(self.learned))]
        self.learned[uri] = None


def digests(snapshot: Snapshot | None) -> dict[str, bytes]:
    """A list that is empty is like one that is not known: its first arrival is no news."""
    held = snapshot.listings.values() if snapshot else ()
    return {one.method: one.digest for one in held if one.entries}


def evict(catalogs: dict[str, ServerCatalog]) -> ServerCatalog | None:
    """Forgets one scope that nobody used since the last round (second chance, oldest first); None where all walk."""
    for _ in range(2 * len(catalogs)):
        scope = next(iter(catalogs))
        catalog = catalogs.pop(scope)
        if not (catalog.used or catalog.walk):
            return catalog
        catalog.used = False
        catalogs[scope] = catalog
    return None


def make_room(catalogs: dict[str, ServerCatalog], most: int) -> None:
    """Forgets scopes until all lists together have at most `most` bytes: a server may list something else in each."""
    sections = Counter(map(id, chain.from_iterable(map(_sections, catalogs.values()))))
    sizes = {id(one): one.size for catalog in catalogs.values() for one in _sections(catalog)}
    total = sum(sizes.values())
    while total > most and (gone := evict(catalogs)) is not None:
        for one in _sections(gone):
            sections[id(one)] -= 1
            total -= 0 if sections[id(one)] else one.size


def _sections(catalog: ServerCatalog) -> Collection[ListSection]:
    return () if catalog.whole is None else catalog.whole.listings.values()
