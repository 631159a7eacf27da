"""One server's lists for one scope: what is held of them, and how up to date that is; and the catalogs of all servers.

Keeps and tells; when to walk and whom to tell is said elsewhere.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from weakref import WeakValueDictionary

from sluicegate.catalog.list_bounds import DEFAULT_BOUNDS, Bounds
from sluicegate.catalog.snapshot import KINDS, ListSection, ServerNaming, Snapshot, listing_in_pieces
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.snapshot_store import Source
from sluicegate.policy.pins import fingerprint
from sluicegate.protocol.model import Client, Era, Kind, McpServer
from sluicegate.protocol.shape import Shape

MAX_LEARNED: Final = 10_000
MAX_SCOPES: Final = 1000  # snapshots kept per server; clients that share a scope share one
ALL_LISTS: Final = 8  # times the bytes of one list, for the lists of a server over all scopes

Sections = WeakValueDictionary[tuple[str, bytes], ListSection]  # by method and digest of the items
"""Of one server, by what they were made of: each is made once, however many scopes list the same, however often."""


@dataclass(frozen=True, slots=True)
class ListSettings:
    """`prefixes` has every server; in transparent mode there is one, with the prefix "". `for_starts`: a list waits for
    servers that are still starting."""

    prefixes: Mapping[str, str]
    plain: frozenset[str] = frozenset()
    transparent: bool = False
    forward_unlisted: bool = False
    names_max: int = 50
    page: int = 1000
    list_timeout: float = 10.0
    bounds: Bounds = DEFAULT_BOUNDS
    for_starts: bool = False
    reserved: frozenset[str] = frozenset()
    """Names of Sluice's own tools, which no other tool may have."""
    shapes: Mapping[str, Mapping[tuple[Kind, str], Shape]] = field(default_factory=dict)
    """Of each server that has some: by kind and own name."""

    def others(self, key: str) -> frozenset[str]:
        return frozenset(prefix for other, prefix in self.prefixes.items() if other != key and prefix)


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


class ServerCatalogs:
    """The catalogs of all servers, by server and scope."""

    def __init__(self, servers: Mapping[str, McpServer]) -> None:
        self.servers = servers
        self.held: dict[str, dict[str, ServerCatalog]] = {key: {} for key in servers}
        self._outdated = defaultdict[str, set[str]](set)  # lists that are `stale` and `changed` in each scope by now

    def find(self, server_key: str, client: Client) -> ServerCatalog | None:
        return self.held[server_key].get(self.servers[server_key].scope(client))

    def get(self, server_key: str, client: Client) -> ServerCatalog:
        """That of the client's scope, made where it is missing."""
        server, catalogs = self.servers[server_key], self.held[server_key]
        scope = server.scope(client)
        catalog = catalogs.get(scope)
        if catalog is not None:
            catalog.used = True
            return catalog
        if len(catalogs) >= MAX_SCOPES:
            evict(catalogs)
        catalog = catalogs[scope] = ServerCatalog(server, scope)
        self.renewed(server_key)
        return catalog

    def of(self, server_key: str, scope: str | None = None) -> list[ServerCatalog]:
        catalogs = self.held[server_key]
        return list(catalogs.values()) if scope is None else [catalogs[scope]] if scope in catalogs else []

    def outdate(self, server_key: str, scope: str | None, methods: set[str]) -> None:
        """These lists may be other than they were."""
        is_known = scope is None and methods <= self._outdated[server_key]  # a server may repeat it without end
        for catalog in () if is_known else self.of(server_key, scope):
            catalog.stale |= methods
            catalog.changed |= methods
            catalog.retry_at = float("-inf")
        if scope is None:
            self._outdated[server_key] |= methods

    def renewed(self, server_key: str) -> None:
        """There is a catalog of which less is stale."""
        self._outdated[server_key].clear()

    def rehome(self, catalog: ServerCatalog, client: Client) -> None:
        """A server's era may be known only once it is up, and with it the scope of who asked before."""
        scope, catalogs = catalog.server.scope(client), self.held[catalog.server.key]
        if scope != catalog.scope and scope not in catalogs and catalogs.get(catalog.scope) is catalog:
            del catalogs[catalog.scope]
            catalogs[scope] = catalog
            catalog.scope = scope


class ServedSnapshots:
    """How what servers list becomes snapshots: under which names, and what of them the pins let clients see. Snapshots
    of equal content are one object, however many scopes hold it."""

    def __init__(self, pins: DefinitionPins) -> None:
        self._pins = pins
        self.namings: dict[str, ServerNaming] = {}
        self._shared: WeakValueDictionary[bytes, Snapshot] = WeakValueDictionary()
        self._sections: dict[str, Sections] = {}

    def configure(self, key: str, settings: ListSettings) -> None:
        self._sections.pop(key, None)  # the names in them were given by other settings
        mark = fingerprint if self._pins.is_pinned(key) else None
        self.namings[key] = ServerNaming(
            key, settings.prefixes[key], settings.names_max, key in settings.plain, mark, settings.others(key),
            settings.reserved, settings.shapes.get(key, {}),
        )  # fmt: skip

    def made(self, server_key: str, source: Source, items: Iterable[Any]) -> Generator[None, None, ListSection]:
        """The list of these items: the one that is there, if one was made of the same. A thread that makes it would
        hold up each read and write of the loop."""
        method, ttl_ms, mark, cut = source
        sections, why = self._sections.setdefault(server_key, Sections()), (f"{method}: {cut}",) if cut else ()
        landed = sections.get((method, mark)) if mark else None
        if landed is None:
            landed = yield from listing_in_pieces(self.namings[server_key], method, items, ttl_ms, why)
            sections[method, mark] = landed
        return landed.again(ttl_ms, why)

    def land(self, catalog: ServerCatalog, whole: Snapshot) -> Snapshot:
        catalog.whole = self._shared.setdefault(whole.digest, whole)
        catalog.snapshot = self.served(catalog, catalog.whole)
        return catalog.whole

    def landed(self, server_key: str, mark: bytes, section: ListSection) -> None:
        """That section is the one that snapshots have of the items with this digest."""
        self._sections.setdefault(server_key, Sections())[section.method, mark] = section

    def served(self, catalog: ServerCatalog, whole: Snapshot) -> Snapshot:
        served = self._pins.serve(catalog.server.key, catalog.era, catalog.capabilities, whole)
        return self._shared.setdefault(served.digest, served)


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
