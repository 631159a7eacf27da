"""Every server's lists as snapshots, one for each scope: when they are walked, kept, changed and forgotten.

Knows servers as Handlers and clients by their scope. A snapshot is walked by one task however many wait for it, and
that task outlives whoever started it. Nothing here fails a list: a server that cannot be walked keeps its last good
snapshot, from memory or from the store, or has none. What the pins withhold is left out before anybody sees it.

A stored list is served until the server has listed, and no call is decided by it. A call waits for the walk up to the
list timeout, and for a server of which a stored list has its name, as long as that may start.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

import anyio

from sluicegate.catalog.list_bounds import DEFAULT_BOUNDS, Bounds
from sluicegate.catalog.snapshot import KINDS, Entry, ListSection, ServerNaming, Snapshot, assemble, listing_in_pieces
from sluicegate.catalog_cache import list_walk, pin_store
from sluicegate.catalog_cache.definition_pins import DefinitionPins, instructions_of
from sluicegate.catalog_cache.list_walk import HangingStarts, ServerInfos, walk
from sluicegate.catalog_cache.list_watchers import ListWatchers
from sluicegate.catalog_cache.server_catalog import ServerCatalog, digests, evict, make_room
from sluicegate.catalog_cache.snapshot_store import LentLists, SnapshotStore, Source
from sluicegate.hub import Event, Hub
from sluicegate.policy.pins import Found, fingerprint
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Client, Era, Kind, McpServer, Target
from sluicegate.protocol.shape import Shape
from sluicegate.runtime.loop_budget import budget_of
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

MAX_SCOPES: Final = 1000  # snapshots kept per server; clients that share a scope share one
ALL_LISTS: Final = 8  # times the bytes of one list, for the lists of a server over all scopes
DEBOUNCE: Final = 0.05
RETRY: Final = 1.0
TOLD: Final = 20  # definitions that are not served, each with a line in the log
# To streams inside Sluice alone: another server than before has a key, or none has it any more.
RECONFIGURED: Final = "dev.sluice/reconfigured"
# A server may change a list without saying so: behind a list served from an older snapshot, it is looked at again.
REVALIDATE: Final = 5.0

# What a list_changed notification says about the lists that are held. Resources are not, but their templates are.
HELD: Final[Mapping[str, str]] = {LISTS[method].changed: method for method in KINDS}
LIST_OF: Final[Mapping[Kind, str]] = {kind: method for method, kind in KINDS.items()}

Sections = WeakValueDictionary[tuple[str, bytes], ListSection]  # by method and digest of the items
"""Of one server, by what they were made of: each is made once, however many scopes list the same, however often."""

Use = Literal["greeting", "list", "call"]

log = logging.getLogger(__name__)


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


class CatalogCache:
    """Snapshots of all `servers`, in the order configured. Without a `store` a restart forgets them; without `pins`
    all of them are served as they are."""

    def __init__(
        self, settings: ListSettings, servers: Mapping[str, McpServer], hub: Hub, store: Store | None = None,
        pins: DefinitionPins | None = None, lends: Callable[[str, Client], bool] = lambda server, client: False,
        may_see: Callable[[Client, str], bool] = lambda client, server: True,
    ) -> None:  # fmt: skip
        """`lends`: whether a client, which has no login to a server, is shown what people have accepted of it.
        `may_see`: whether a client has any right on a server: no other one is asked for lists in its name."""
        self.settings = settings
        self.servers = servers
        self._hub = hub
        self._stored = SnapshotStore(store)
        self.starts = HangingStarts(self._stored)
        self._pins = pins or DefinitionPins({}, MemoryStore())
        self._pins.on_moved(self.serve_anew)
        self._may_see = may_see
        self._lends, self._lent = lends, LentLists(self._stored, self._pins)
        self.namings = {key: self._naming(key) for key in servers}
        self._catalogs: dict[str, dict[str, ServerCatalog]] = {key: {} for key in servers}
        self._shared: WeakValueDictionary[bytes, Snapshot] = WeakValueDictionary()
        self._sections: dict[str, Sections] = {}
        self.watchers = ListWatchers()
        self._news: dict[str, dict[str | None, set[str]]] = {key: {} for key in servers}
        self._announced = Counter[tuple[str, str]]()  # changes that were announced to all scopes, by server and list
        self._outdated = defaultdict[str, set[str]](set)  # lists that are `stale` and `changed` in each scope by now
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._patience: dict[str, asyncio.TimerHandle] = {}  # with servers that took another's place
        self._tasks: set[asyncio.Task[None]] = set()
        self._abouts = ServerInfos()
        self.replaced: set[str] = set()
        """Keys that other servers had before, since the start."""

    def configure(self, settings: ListSettings, changed: Mapping[str, McpServer | None]) -> None:
        """Other servers are configured. `changed` has each key that another server has now, or none, and the server
        before. What is held of that one is forgotten. Who listens is told once: of a server that took another's place
        when it has listed, or does not in time."""
        self.settings = settings
        for key, before in changed.items():
            earlier = self._forget(key)
            if (server := self.servers.get(key)) is not None:
                self.namings[key] = self._naming(key)
                self._succeed(server, earlier)
                if before is not None and before.identity != server.identity:
                    self.replaced.add(key)
        for key in changed:
            self._hub.publish(Event(key, None, Notification(RECONFIGURED, {})))
            if key in self.servers:
                self._soon(key)
            for method in KINDS:
                self._tell(key, None, method)

    def _forget(self, server_key: str) -> dict[str, ServerCatalog]:
        """What was held of a server that does not run any more: nothing goes on about it."""
        catalogs = self._catalogs.get(server_key, {})
        for catalog in catalogs.values():
            for task in filter(None, (catalog.walk, catalog.recall)):
                task.cancel()
        for timers in (self._timers, self._patience):
            if (timer := timers.pop(server_key, None)) is not None:
                timer.cancel()
        self._catalogs[server_key], self._news[server_key] = {}, {}
        self._abouts.forget(server_key)
        self.watchers.forget(server_key)
        self._sections.pop(server_key, None)  # the names in them were given by other settings
        self._lent.forget(server_key)
        self.starts.forget(server_key)
        return catalogs

    def _succeed(self, server: McpServer, earlier: Mapping[str, ServerCatalog]) -> None:
        """Where there was a list of the server before, this one's is awaited, at most as long as a list may take."""
        held = {scope: catalog for scope, catalog in earlier.items() if catalog.snapshot is not None}
        for scope, before in held.items():
            catalog = self._catalogs[server.key][scope] = ServerCatalog(server, scope)
            catalog.is_awaited, catalog.changed = True, set(KINDS)
            catalog.announced[LIST_OF["res"]] = before.announced[LIST_OF["res"]] + 1
        if held:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self.settings.list_timeout, self._stop_awaiting, server.key)
            self._patience[server.key] = timer

    def is_awaited(self, server_key: str, client: Client) -> bool:
        """Whether this server took another's place, and what it lists is not known yet."""
        catalog = self._catalogs[server_key].get(self.servers[server_key].scope(client))
        return catalog is not None and catalog.is_awaited

    def _stop_awaiting(self, server_key: str) -> None:
        self._patience.pop(server_key, None)
        awaited = [catalog for catalog in self.of(server_key) if catalog.is_awaited]
        for catalog in awaited:
            catalog.is_awaited = False
        for method in KINDS if awaited else ():
            self._tell(server_key, None, method)

    def has(self, client: Client, target: Target) -> bool:
        """Whether the server that has the key now lists this very definition to that client."""
        snapshot = self.current(target.server, client)
        found = snapshot.find.get((target.kind, target.public)) if snapshot else None
        return target.item is None or (found is not None and found.target == target)

    def _naming(self, key: str) -> ServerNaming:
        settings = self.settings
        mark = fingerprint if self._pins.is_pinned(key) else None
        return ServerNaming(
            key, settings.prefixes[key], settings.names_max, key in settings.plain, mark, settings.others(key),
            settings.reserved, settings.shapes.get(key, {}),
        )  # fmt: skip

    # ------------------------------------------------------------ reading

    def current(self, server_key: str, client: Client) -> Snapshot | None:
        catalog = self._catalogs[server_key].get(self.servers[server_key].scope(client))
        return catalog.snapshot if catalog else None

    def find(self, server_key: str, client: Client, kind: Kind, public: str) -> Entry | None:
        """The hot path: an entry of a list that is up to date, without waiting for anything."""
        catalog = self._catalogs[server_key].get(self.servers[server_key].scope(client))
        if catalog is None or catalog.snapshot is None or LIST_OF[kind] in catalog.stale:
            return None
        catalog.used = True
        return catalog.snapshot.find.get((kind, public))

    def has_listed(self, server_key: str, client: Client, kind: Kind) -> bool:
        """Whether that list of the server has landed once, also from the store."""
        snapshot = self.current(server_key, client)
        return snapshot is not None and LIST_OF[kind] in snapshot.listings

    async def snapshot(self, server_key: str, client: Client, name: tuple[Kind, str] | None = None) -> Snapshot | None:
        """The server's lists as this client's scope sees them, after the walk that is due, if one is; and after
        one more if that began before a change was announced. For a `name` that a stored list has, as long as the
        server may take to start."""
        catalog = self.catalog(server_key, client)
        await self._recall(catalog, client)
        is_listed = catalog.snapshot is not None and name in catalog.snapshot.find
        # Once it has started, a connection of the client's own may have to start, too.
        start = catalog.server.start_left + catalog.server.start_timeout if is_listed and catalog.recalled else 0.0
        with anyio.move_on_after(max(self.settings.list_timeout, start)):
            for _ in range(2):
                due = self._due(catalog, client)
                if due is None or (catalog.late and catalog.is_whole):
                    break
                await asyncio.wait({due})
        return catalog.snapshot

    def is_stored(self, server_key: str, client: Client, kind: Kind) -> bool:
        """Whether that list is from an earlier run, and the server has not listed it since."""
        catalog = self._catalogs[server_key].get(self.servers[server_key].scope(client))
        return catalog is not None and LIST_OF[kind] in catalog.recalled

    async def all(self, client: Client, use: Use = "call") -> list[tuple[str, Snapshot | None]]:
        """The snapshot of every server on which this client has a right, in the order configured; None for those of
        which nothing is known (yet). `use` is what they are for. A client on stdio waits for servers to start with its
        lists, which are whole then, and with its first words for none."""
        catalogs = [one for one in await self.recall(client) if self._may_see(client, one.server.key)]
        due = {walk: catalog for catalog in catalogs if (walk := self._due(catalog, client))}  # starts all of them
        walks = {walk: catalog for walk, catalog in due.items() if self._is_awaited(catalog)}
        for_starts, timeout = self.settings.for_starts, self.settings.list_timeout
        if walks and not (for_starts and use == "greeting" and not self.settings.transparent):
            await list_walk.wait_for_lists(walks, catalogs, timeout, for_starts, use == "list")
        for catalog in catalogs:
            self._revalidate(catalog, client)
        return [(catalog.server.key, catalog.snapshot) for catalog in catalogs]

    async def look(self, client: Client) -> None:
        """Has each server say what it has, for an operator who looks with this client's eyes. It has no session and no
        capabilities, so servers learn nothing of a client that may not see them."""
        catalogs = await self.recall(client)
        due = {walk: one for one in catalogs if (walk := self._due(one, client, for_operator=True))}
        if walks := {walk: one for walk, one in due.items() if self._is_awaited(one)}:
            await list_walk.wait_for_lists(walks, catalogs, self.settings.list_timeout, self.settings.for_starts, True)

    async def has_started(self, server_key: str, client: Client) -> bool:
        """Whether the server can be asked for its resources, of which nothing is stored, after a wait for its start.
        A client that got its list without them is told when they can be had."""
        catalog = self.catalog(server_key, client)
        server = catalog.server
        if server.status == "starting" and not (catalog.missed or self.starts.hangs(server)):
            await list_walk.wait_for_start(server, self.settings.list_timeout, self.settings.for_starts)
        catalog.missed = server.status == "starting"
        return not catalog.missed

    async def recall(self, client: Client) -> list[ServerCatalog]:
        """What is known without asking a server, from the store where it is not in memory."""
        catalogs = [self.catalog(key, client) for key, server in self.servers.items() if server.status != "disabled"]
        new = (catalog for catalog in catalogs if catalog.recall is None or not catalog.recall.done())
        await asyncio.gather(*(self._recall(catalog, client) for catalog in new))
        return catalogs

    def _is_awaited(self, catalog: ServerCatalog) -> bool:
        return not (catalog.late or catalog.server.status == "down" or self.starts.hangs(catalog.server))

    def catalog(self, server_key: str, client: Client) -> ServerCatalog:
        server = self.servers[server_key]
        catalogs = self._catalogs[server_key]
        scope = server.scope(client)
        catalog = catalogs.get(scope)
        if catalog is not None:
            catalog.used = True
            return catalog
        if len(catalogs) >= MAX_SCOPES:
            evict(catalogs)
        catalog = catalogs[scope] = ServerCatalog(server, scope)
        self._outdated[server_key].clear()
        return catalog

    # ------------------------------------------------------------ walking

    def _due(self, catalog: ServerCatalog, client: Client, for_operator: bool = False) -> asyncio.Task[None] | None:
        """What to wait for if something is stale: the walk under way, or a new one if the last failure is long ago."""
        if not catalog.stale or self.servers.get(catalog.server.key) is not catalog.server:
            return None
        is_time = catalog.walk is None and asyncio.get_running_loop().time() >= catalog.retry_at
        if is_time and (for_operator or self._may_see(client, catalog.server.key)):
            self._start(catalog, client, catalog.stale)
        return catalog.walk

    def _revalidate(self, catalog: ServerCatalog, client: Client) -> None:
        if catalog.snapshot is None or catalog.walk or catalog.stale or catalog.server.status != "up":
            return
        age = asyncio.get_running_loop().time() - catalog.walked_at
        if age > max(REVALIDATE, catalog.snapshot.ttl_ms / 1000):
            self._start(catalog, client, KINDS)

    def _start(self, catalog: ServerCatalog, client: Client, methods: Iterable[str]) -> None:
        announce, catalog.changed = catalog.changed, set()
        self._outdated[catalog.server.key].clear()
        catalog.walk = asyncio.create_task(self._walk(catalog, client, tuple(methods), announce))
        self._tasks.add(catalog.walk)
        catalog.walk.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            log.error("a walk of lists failed", exc_info=problem)

    async def _walk(self, catalog: ServerCatalog, client: Client, methods: tuple[str, ...], announce: set[str]) -> None:
        await self._recall(catalog, client)
        before, whole = digests(catalog.snapshot), catalog.whole.digest if catalog.whole else b""
        began = asyncio.get_running_loop().time()
        complete = False
        try:
            await self.starts.wait(catalog.server)
            began = asyncio.get_running_loop().time()
            self._rehome(catalog, client)
            announce |= catalog.changed  # whatever was announced before the first page is asked for is covered
            catalog.changed = set()
            self._outdated[catalog.server.key].clear()
            complete = await self._walk_lists(catalog, client, methods)
            if not complete:  # what could not be looked at is news once it could
                missed = announce & catalog.stale
                catalog.changed |= missed
                announce -= missed
        finally:
            catalog.walk, catalog.walked_at = None, asyncio.get_running_loop().time()
            catalog.late = not complete and (catalog.late or catalog.walked_at - began > list_walk.PATIENCE)
            catalog.retry_at = catalog.walked_at + (0 if complete else RETRY)
            self._outdated[catalog.server.key].clear()
        if complete:
            catalog.is_awaited = False
        after = digests(catalog.snapshot)
        for method in KINDS:
            if method in announce or before.get(method) != after.get(method):
                self._tell(catalog.server.key, catalog.scope, method)
        if catalog.changed and catalog.server.status == "up":
            self._soon(catalog.server.key, DEBOUNCE if complete else RETRY)
        if complete:
            await self.starts.listed(catalog.server)
        if complete and catalog.whole is not None and whole != catalog.whole.digest:
            await self._stored.remember(catalog.server, catalog.scope, client, catalog.whole, catalog.era)
            self._lend_anew(catalog.server.key)

    def _rehome(self, catalog: ServerCatalog, client: Client) -> None:
        """A server's era may be known only once it is up, and with it the scope of who asked before."""
        scope = catalog.server.scope(client)
        catalogs = self._catalogs[catalog.server.key]
        if scope != catalog.scope and scope not in catalogs and catalogs.get(catalog.scope) is catalog:
            catalogs.pop(catalog.scope, None)
            catalogs[scope] = catalog
            catalog.scope = scope

    async def _walk_lists(self, catalog: ServerCatalog, client: Client, methods: tuple[str, ...]) -> bool:
        """Each list lands as it arrives, so that one that hangs does not hold back the others."""
        about = await self._abouts.about(catalog.server, client, self.settings.list_timeout)
        if about is None:
            return False
        self._speak(catalog, client, catalog.server.era_for(client) or client.era)
        found = instructions_of(about)
        await self._pins.meet(catalog.server.key, catalog.era, catalog.capabilities, "instructions", found)
        complete = all(await asyncio.gather(*(self._walk_list(catalog, client, about, method) for method in methods)))
        if complete and catalog.is_whole:
            await self._pins.settle(catalog.server.key, catalog.era, catalog.capabilities)
        return complete

    async def _walk_list(self, catalog: ServerCatalog, client: Client, about: Json, method: str) -> bool:
        """A list whose capability is not declared is empty. One that fails midway stays what it was."""
        landed, mark, size = ListSection(method), b"", 0
        if LISTS[method].capability in about["capabilities"]:
            server, timeout, known = catalog.server, self.settings.list_timeout, self._abouts.walked
            walked = await walk(server, client, method, timeout, self.settings.bounds, known[server.key])
            if walked is None:
                return False
            mark, size = walked.digest, walked.size
            budget = budget_of(catalog.server.key)
            is_large = len(walked.items) > pin_store.LARGE or size > pin_store.LARGE_BYTES
            do = budget.large if is_large else budget.in_pieces
            source = (method, walked.ttl_ms, mark, walked.cut)
            landed = await do(self._made(catalog.server.key, source, walked.items))
        earlier = catalog.whole.listings if catalog.whole else {}
        if method not in earlier or earlier[method].left_out != landed.left_out:
            _tell_left_out(catalog.server.key, method, landed.left_out)
        if self._pins.is_pinned(catalog.server.key):
            found = await pin_store.apart(len(landed.entries), size, _found, landed)
            await self._pins.meet(catalog.server.key, catalog.era, catalog.capabilities, KINDS[method], found, size)
        earlier = catalog.whole.listings if catalog.whole else {}
        whole = self._land(catalog, assemble(catalog.server.key, about, {**earlier, method: landed}))
        self._sections.setdefault(catalog.server.key, Sections())[method, mark] = whole.listings[method]
        catalog.recalled.discard(method)
        if method not in catalog.changed:
            catalog.stale.discard(method)
        return True

    def _made(self, server_key: str, source: Source, items: Iterable[Any]) -> Generator[None, None, ListSection]:
        """The list of these items: the one that is there, if one was made of the same. A thread that makes it would
        hold up each read and write of the loop."""
        method, ttl_ms, mark, cut = source
        sections, why = self._sections.setdefault(server_key, Sections()), (f"{method}: {cut}",) if cut else ()
        landed = sections.get((method, mark)) if mark else None
        if landed is None:
            landed = yield from listing_in_pieces(self.namings[server_key], method, items, ttl_ms, why)
            sections[method, mark] = landed
        return landed.again(ttl_ms, why)

    def _land(self, catalog: ServerCatalog, whole: Snapshot) -> Snapshot:
        """Snapshots of equal content are one object, however many scopes hold it."""
        catalog.whole = self._shared.setdefault(whole.digest, whole)
        catalog.snapshot = self._served(catalog, catalog.whole)
        most = ALL_LISTS * self.settings.bounds.bytes
        is_large = sum(one.size for one in whole.listings.values()) > most // MAX_SCOPES  # else there is room for all
        if is_large and catalog.whole is whole:
            catalog.used = True  # or what was just found in the store would go first
            make_room(self._catalogs[catalog.server.key], most)
        return catalog.whole

    def _served(self, catalog: ServerCatalog, whole: Snapshot) -> Snapshot:
        served = self._pins.serve(catalog.server.key, catalog.era, catalog.capabilities, whole)
        return self._shared.setdefault(served.digest, served)

    async def _recall(self, catalog: ServerCatalog, client: Client) -> None:
        """What the store has of a server that has not listed yet, once, however many ask."""
        if catalog.recall is None:
            catalog.recall = asyncio.create_task(self._look_up(catalog, client))
            self._tasks.add(catalog.recall)
            catalog.recall.add_done_callback(self._ended)
        if not catalog.recall.done():
            await asyncio.wait({catalog.recall})

    async def _look_up(self, catalog: ServerCatalog, client: Client) -> None:
        server = catalog.server
        await self.starts.recall(server)
        made = partial(self._made, server.key)
        stored = await self._stored.recall(self.namings[server.key], server, catalog.scope, client, made)
        if stored is None and self._lends(server.key, client):
            catalog.is_lent = True
            stored = await self._lent.find(self.namings[server.key], server.identity)
        if stored is not None and catalog.whole is None:  # unless the server has listed meanwhile
            whole, era = stored
            self._speak(catalog, client, era)
            catalog.recalled = set(KINDS)
            self._land(catalog, whole)

    def _speak(self, catalog: ServerCatalog, client: Client, era: Era) -> None:
        """What the pins go by: in which era, and with which of the client's capabilities, the server lists."""
        catalog.era, catalog.capabilities = era, catalog.server.capability_set(client, era)

    # ------------------------------------------------------------ changing

    def publish(self, server_key: str, scope: str | None, notification: Notification) -> None:
        """The Publish callback of all servers: news of a list goes on once that list is up to date."""
        method = HELD.get(notification.method)
        if method is None:
            self._hub.publish(Event(server_key, scope, notification))
        else:
            self.changed(server_key, scope, KINDS[method])

    def changed(self, server_key: str, scope: str | None, kind: Kind) -> None:
        """The server announced that its list of that kind has changed."""
        method = LIST_OF[kind]
        if scope is None:
            self._announced[server_key, method] += 1
        elif (catalog := self._catalogs[server_key].get(scope)) is not None:
            catalog.announced[method] += 1
        self.outdate(server_key, scope, (method,))

    def outdate(self, server_key: str, scope: str | None = None, methods: Iterable[str] = KINDS) -> None:
        """These lists may be other than they were. Snapshots that somebody watches are walked again soon, others when
        they are next asked for, by then for a client that is still there."""
        methods = set(methods)
        is_known = scope is None and methods <= self._outdated[server_key]  # a server may repeat it without end
        for catalog in () if is_known else self.of(server_key, scope):
            catalog.stale |= methods
            catalog.changed |= methods
            catalog.retry_at = float("-inf")
        if scope is None:
            self._outdated[server_key] |= methods
        self._news[server_key].setdefault(scope, set()).update(methods)
        if self.servers[server_key].status != "down":
            self._soon(server_key)

    def of(self, server_key: str, scope: str | None = None) -> list[ServerCatalog]:
        catalogs = self._catalogs[server_key]
        return list(catalogs.values()) if scope is None else [catalogs[scope]] if scope in catalogs else []

    def stored_era(self, server_key: str, client: Client) -> Era | None:
        catalog = self._catalogs[server_key].get(self.servers[server_key].scope(client))
        return catalog.era if catalog is not None and catalog.recalled else None

    def announced(self, server_key: str, client: Client, method: str) -> int:
        """How often the server said that this list has changed, or the policy changed, which may change each list."""
        catalog = self._catalogs[server_key].get(self.servers[server_key].scope(client))
        return self._announced[server_key, method] + (catalog.announced[method] if catalog else 0)

    def moved(self, server_key: str) -> None:
        """The server came up or went down: all its lists come or go. Who listens is told that it went at once, and that
        it came when it has listed."""
        for catalog in self.of(server_key):
            catalog.announced[LIST_OF["res"]] += catalog.missed
            catalog.missed = False
            if catalog.snapshot is None:
                catalog.recall = None  # whoever logged out is shown what the server listed to them before
        self.outdate(server_key)
        if self.servers[server_key].status == "down":
            for catalog in self.of(server_key):
                catalog.is_awaited = False
            for method in KINDS:
                self._tell(server_key, None, method)

    def reconsider(self, servers: Iterable[str] | None = None) -> None:
        """Policy, pins or grants changed: everyone's part of the lists may have, though no server's list did."""
        for server_key in self.servers if servers is None else servers:
            for catalog in self.of(server_key) if servers is None else ():
                catalog.announced[LIST_OF["res"]] += 1  # nobody holds resources, so that what changes can be told
            for method in KINDS:
                self._tell(server_key, None, method)

    def _lend_anew(self, server_key: str) -> None:
        """Others were shown something else, or people have accepted more: whoever has no login sees that."""
        self._lent.forget(server_key)
        for catalog in self.of(server_key):
            if catalog.is_lent and (catalog.whole is None or catalog.recalled):
                catalog.recall = catalog.whole = catalog.snapshot = None
                for method in KINDS:
                    self._tell(server_key, catalog.scope, method)

    def serve_anew(self, server_key: str) -> None:
        """The pins of a server changed: what its catalogs hold is judged again, once for all that hold the same."""
        self._lend_anew(server_key)
        cases: dict[tuple[Era, str, bytes, bytes], tuple[Snapshot, list[str]]] = {}
        for catalog in self._catalogs[server_key].values():
            if catalog.whole is None or catalog.snapshot is None:
                continue
            case = (catalog.era, catalog.capabilities, catalog.whole.digest, catalog.snapshot.digest)
            if case not in cases:
                served = self._served(catalog, catalog.whole)
                before, after = digests(catalog.snapshot), digests(served)
                cases[case] = (served, [method for method in KINDS if before.get(method) != after.get(method)])
            catalog.snapshot, changed = cases[case]
            for method in changed:
                self._tell(server_key, catalog.scope, method)

    def _soon(self, server_key: str, delay: float = DEBOUNCE) -> None:
        """Starts the timer of this server, unless it runs: a server may announce changes all the time. Where very many
        clients listen, the timer runs for longer."""
        if server_key not in self._timers:
            delay = max(delay, self.watchers.pause(server_key))
            timer = asyncio.get_running_loop().call_later(delay, self._settle, server_key)
            self._timers[server_key] = timer

    def _settle(self, server_key: str) -> None:
        """A walk that is under way may have begun before the change: its end calls for the next one. Scopes are
        asked anew, for they change when a server's era becomes known."""
        del self._timers[server_key]
        news, self._news[server_key] = self._news[server_key], {}
        self.watchers.each(server_key, partial(self._begin_walk, self.servers[server_key], news))

    def _begin_walk(self, server: McpServer, news: Mapping[str | None, set[str]], client: Client) -> None:
        if self.servers.get(server.key) is not server:
            return
        catalog = self.catalog(server.key, client)
        if catalog.snapshot is None:
            catalog.changed |= news.get(None, set()) | news.get(catalog.scope, set())
        if catalog.walk is None and catalog.changed and self._may_see(client, server.key):
            self._start(catalog, client, catalog.stale or catalog.changed)

    def _tell(self, server_key: str, scope: str | None, method: str) -> None:
        self._hub.publish(Event(server_key, scope, Notification(LISTS[method].changed, {})))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for timer in (*self._timers.values(), *self._patience.values()):
            timer.cancel()


def _found(landed: ListSection) -> dict[str, Found]:
    return {entry.target.own: Found(entry.fingerprint, entry.target.item) for entry in landed.entries}


def _tell_left_out(server_key: str, method: str, left_out: Sequence[str]) -> None:
    """A server may list 10,000 definitions that cannot be served: a line of the log takes 20 us."""
    for line in left_out[:TOLD]:
        log.warning("server %s: not served: %s", server_key, line)
    if len(left_out) > TOLD:
        log.warning("server %s: not served: %s: %d more", server_key, method, len(left_out) - TOLD)
