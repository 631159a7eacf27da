"""Every server's lists as snapshots, one for each scope: when they are walked, kept, changed and forgotten.

Knows servers as Handlers and clients by their scope. A snapshot is walked by one task however many wait for it, and
that task outlives whoever started it. Nothing here fails a list: a server that cannot be walked keeps its last good
snapshot, from memory or from the store, or has none. What the pins withhold is left out before anybody sees it.

A stored list is served until the server has listed, and no call is decided by it. A call waits for the walk up to the
list timeout, and for a server of which a stored list has its name, as long as that may start. How long a list waits,
`list_waits` says.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal
from weakref import WeakValueDictionary

import anyio

from sluicegate.catalog.snapshot import (
    KINDS,
    Entry,
    ListSection,
    ServerNaming,
    Snapshot,
    assemble,
    listing,
)
from sluicegate.catalog_cache import list_waits
from sluicegate.catalog_cache.definition_pins import DefinitionPins, said
from sluicegate.catalog_cache.hanging_starts import HangingStarts
from sluicegate.catalog_cache.list_walk import walk
from sluicegate.catalog_cache.server_catalog import ServerCatalog, digests, evict
from sluicegate.catalog_cache.server_info import ServerInfos
from sluicegate.catalog_cache.settings import ListSettings
from sluicegate.catalog_cache.snapshot_store import SnapshotStore
from sluicegate.hub import Event, Hub
from sluicegate.policy.pins import Found, fingerprint
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Client, Era, Kind, McpServer
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

MAX_SCOPES: Final = 1000  # snapshots kept per server; clients that share a scope share one
DEBOUNCE: Final = 0.05
RETRY: Final = 1.0
LARGE: Final = 200  # items; making a listing of more takes longer than others should wait
# A server may change a list without saying so: behind a list served from an older snapshot, it is looked at again.
REVALIDATE: Final = 5.0

# What a list_changed notification says about the lists that are held. Resources are not, but their templates are.
HELD: Final[Mapping[str, str]] = {LISTS[method].changed: method for method in KINDS}
LIST_OF: Final[Mapping[Kind, str]] = {kind: method for method, kind in KINDS.items()}

Use = Literal["greeting", "list", "call"]

log = logging.getLogger(__name__)


class CatalogCache:
    """Snapshots of all `servers`, in the order configured. Without a `store` a restart forgets them; without `pins`
    all of them are served as they are."""

    def __init__(
        self, settings: ListSettings, servers: Mapping[str, McpServer], hub: Hub, store: Store | None = None,
        pins: DefinitionPins | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.servers = servers
        self._hub = hub
        self._kept = SnapshotStore(store)
        self.starts = HangingStarts(self._kept)
        self._pins = pins or DefinitionPins({}, MemoryStore())
        self._pins.moved = self.serve_anew
        self.faces = {key: self._face(key) for key in servers}
        self._shelves: dict[str, dict[str, ServerCatalog]] = {key: {} for key in servers}
        self._shared: WeakValueDictionary[bytes, Snapshot] = WeakValueDictionary()
        self._watchers: dict[object, Client] = {}
        self._news: dict[str, dict[str | None, set[str]]] = {key: {} for key in servers}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._abouts = ServerInfos()

    def _face(self, key: str) -> ServerNaming:
        settings = self.settings
        mark = fingerprint if self._pins.is_pinned(key) else None
        return ServerNaming(key, settings.prefixes[key], settings.names_max, key in settings.plain, mark)

    # ------------------------------------------------------------ reading

    def known(self, server_key: str, client: Client) -> Snapshot | None:
        shelf = self._shelves[server_key].get(self.servers[server_key].scope(client))
        return shelf.snapshot if shelf else None

    def find(self, server_key: str, client: Client, kind: Kind, public: str) -> Entry | None:
        """The hot path: an entry of a list that is up to date, without waiting for anything."""
        shelf = self._shelves[server_key].get(self.servers[server_key].scope(client))
        if shelf is None or shelf.snapshot is None or LIST_OF[kind] in shelf.stale:
            return None
        shelf.used = True
        return shelf.snapshot.find.get((kind, public))

    def has_listed(self, server_key: str, client: Client, kind: Kind) -> bool:
        """Whether that list of the server has landed once, also from the store."""
        snapshot = self.known(server_key, client)
        return snapshot is not None and LIST_OF[kind] in snapshot.listings

    async def snapshot(self, server_key: str, client: Client, name: tuple[Kind, str] | None = None) -> Snapshot | None:
        """The server's lists as this client's scope sees them, after the walk that is due, if one is; and after
        one more if that began before a change was announced. For a `name` that a stored list has, as long as the
        server may take to start."""
        shelf = self.shelf(server_key, client)
        await self._recall(shelf, client)
        is_listed = shelf.snapshot is not None and name in shelf.snapshot.find
        # Once it has started, a connection of the client's own may have to start, too.
        start = shelf.server.start_left + shelf.server.start_timeout if is_listed and shelf.recalled else 0.0
        with anyio.move_on_after(max(self.settings.list_timeout, start)):
            for _ in range(2):
                due = self._due(shelf, client)
                if due is None or (shelf.late and shelf.is_whole):
                    break
                await asyncio.wait({due})
        return shelf.snapshot

    def is_stored(self, server_key: str, client: Client, kind: Kind) -> bool:
        """Whether that list is from an earlier run, and the server has not listed it since."""
        shelf = self._shelves[server_key].get(self.servers[server_key].scope(client))
        return shelf is not None and LIST_OF[kind] in shelf.recalled

    async def all(self, client: Client, use: Use = "call") -> list[tuple[str, Snapshot | None]]:
        """Every server's snapshot in the order configured; None for those of which nothing is known (yet). `use` is
        what they are for. A client on stdio waits for servers to start with its lists, which are whole then, and with
        its first words for none."""
        shelves = await self.recall(client)
        walks = {due: shelf for shelf in shelves if (due := self._due(shelf, client)) and self._is_awaited(shelf)}
        for_starts, timeout = self.settings.for_starts, self.settings.list_timeout
        if walks and not (for_starts and use == "greeting" and not self.settings.transparent):
            await list_waits.wait(walks, shelves, timeout, for_starts, use == "list")
        for shelf in shelves:
            self._revalidate(shelf, client)
        return [(shelf.server.key, shelf.snapshot) for shelf in shelves]

    async def has_started(self, server_key: str, client: Client) -> bool:
        """Whether the server can be asked for its resources, of which nothing is stored, after a wait for its start.
        A client that got its list without them is told when they can be had."""
        shelf = self.shelf(server_key, client)
        server = shelf.server
        if server.status == "starting" and not (shelf.missed or self.starts.hangs(server)):
            await list_waits.start(server, self.settings.list_timeout, self.settings.for_starts)
        shelf.missed = server.status == "starting"
        return not shelf.missed

    async def recall(self, client: Client) -> list[ServerCatalog]:
        """What is known without asking a server, from the store where it is not in memory."""
        shelves = [self.shelf(key, client) for key, server in self.servers.items() if server.status != "disabled"]
        new = (shelf for shelf in shelves if shelf.recall is None or not shelf.recall.done())
        await asyncio.gather(*(self._recall(shelf, client) for shelf in new))
        return shelves

    def _is_awaited(self, shelf: ServerCatalog) -> bool:
        return not (shelf.late or shelf.server.status == "down" or self.starts.hangs(shelf.server))

    def shelf(self, server_key: str, client: Client) -> ServerCatalog:
        server = self.servers[server_key]
        shelves = self._shelves[server_key]
        scope = server.scope(client)
        shelf = shelves.get(scope)
        if shelf is not None:
            shelf.used = True
            return shelf
        if len(shelves) >= MAX_SCOPES:
            evict(shelves)
        shelf = shelves[scope] = ServerCatalog(server, scope)
        return shelf

    # ------------------------------------------------------------ walking

    def _due(self, shelf: ServerCatalog, client: Client) -> asyncio.Task[None] | None:
        """What to wait for if something is stale: the walk under way, or a new one if the last failure is long ago."""
        if not shelf.stale:
            return None
        if shelf.walk is None and asyncio.get_running_loop().time() >= shelf.retry_at:
            self._start(shelf, client, shelf.stale)
        return shelf.walk

    def _revalidate(self, shelf: ServerCatalog, client: Client) -> None:
        if shelf.snapshot is None or shelf.walk or shelf.stale or shelf.server.status != "up":
            return
        age = asyncio.get_running_loop().time() - shelf.walked_at
        if age > max(REVALIDATE, shelf.snapshot.ttl_ms / 1000):
            self._start(shelf, client, KINDS)

    def _start(self, shelf: ServerCatalog, client: Client, methods: Iterable[str]) -> None:
        announce, shelf.changed = shelf.changed, set()
        shelf.walk = asyncio.create_task(self._walk(shelf, client, tuple(methods), announce))
        self._tasks.add(shelf.walk)
        shelf.walk.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            log.error("a walk of lists failed", exc_info=problem)

    async def _walk(self, shelf: ServerCatalog, client: Client, methods: tuple[str, ...], announce: set[str]) -> None:
        await self._recall(shelf, client)
        before, whole = digests(shelf.snapshot), shelf.whole.digest if shelf.whole else b""
        began = asyncio.get_running_loop().time()
        complete = False
        try:
            await self.starts.wait(shelf.server)
            began = asyncio.get_running_loop().time()
            self._rehome(shelf, client)
            announce |= shelf.changed  # whatever was announced before the first page is asked for is covered
            shelf.changed = set()
            complete = await self._walk_lists(shelf, client, methods)
            if not complete:  # what could not be looked at is news once it could
                missed = announce & shelf.stale
                shelf.changed |= missed
                announce -= missed
        finally:
            shelf.walk, shelf.walked_at = None, asyncio.get_running_loop().time()
            shelf.late = not complete and (shelf.late or shelf.walked_at - began > list_waits.PATIENCE)
            shelf.retry_at = shelf.walked_at + (0 if complete else RETRY)
        after = digests(shelf.snapshot)
        for method in KINDS:
            if method in announce or before.get(method) != after.get(method):
                self._tell(shelf.server.key, shelf.scope, method)
        if shelf.changed and shelf.server.status == "up":
            self._soon(shelf.server.key, DEBOUNCE if complete else RETRY)
        if complete:
            await self.starts.listed(shelf.server)
        if complete and shelf.whole is not None and whole != shelf.whole.digest:
            await self._kept.remember(shelf.server, shelf.scope, client, shelf.whole, shelf.era)

    def _rehome(self, shelf: ServerCatalog, client: Client) -> None:
        """A server's era may be known only once it is up, and with it the scope of who asked before."""
        scope = shelf.server.scope(client)
        shelves = self._shelves[shelf.server.key]
        if scope != shelf.scope and scope not in shelves:
            shelves.pop(shelf.scope, None)
            shelves[scope] = shelf
            shelf.scope = scope

    async def _walk_lists(self, shelf: ServerCatalog, client: Client, methods: tuple[str, ...]) -> bool:
        """Each list lands as it arrives, so that one that hangs does not hold back the others."""
        about = await self._abouts.about(shelf.server, client, self.settings.list_timeout)
        if about is None:
            return False
        self._speak(shelf, client, shelf.server.era_for(client) or client.era)
        await self._pins.meet(shelf.server.key, shelf.era, shelf.capabilities, "instructions", said(about))
        complete = all(await asyncio.gather(*(self._walk_list(shelf, client, about, method) for method in methods)))
        if complete and shelf.is_whole:
            await self._pins.settle(shelf.server.key, shelf.era, shelf.capabilities)
        return complete

    async def _walk_list(self, shelf: ServerCatalog, client: Client, about: Json, method: str) -> bool:
        """A list whose capability is not declared is empty. One that fails midway stays what it was."""
        landed = ListSection(method)
        if LISTS[method].capability in about["capabilities"]:
            walked = await walk(shelf.server, client, method, self.settings.list_timeout, self.settings.bounds)
            if walked is None:
                return False
            cut = (f"{method}: {walked.cut}",) if walked.cut else ()
            make = partial(listing, self.faces[shelf.server.key], method, walked.items, walked.ttl_ms, cut)
            landed = make() if len(walked.items) <= LARGE else await asyncio.to_thread(make)
        earlier = shelf.whole.listings if shelf.whole else {}
        for line in landed.left_out if method not in earlier or earlier[method].left_out != landed.left_out else ():
            log.warning("server %s: not served: %s", shelf.server.key, line)
        found = {entry.target.own: Found(entry.fingerprint, entry.target.item) for entry in landed.entries}
        await self._pins.meet(shelf.server.key, shelf.era, shelf.capabilities, KINDS[method], found)
        earlier = shelf.whole.listings if shelf.whole else {}
        self._land(shelf, assemble(shelf.server.key, about, {**earlier, method: landed}))
        shelf.recalled.discard(method)
        if method not in shelf.changed:
            shelf.stale.discard(method)
        return True

    def _land(self, shelf: ServerCatalog, whole: Snapshot) -> None:
        """Snapshots of equal content are one object, however many scopes hold it."""
        shelf.whole = self._shared.setdefault(whole.digest, whole)
        shelf.snapshot = self._served(shelf, shelf.whole)

    def _served(self, shelf: ServerCatalog, whole: Snapshot) -> Snapshot:
        served = self._pins.serve(shelf.server.key, shelf.era, shelf.capabilities, whole)
        return self._shared.setdefault(served.digest, served)

    async def _recall(self, shelf: ServerCatalog, client: Client) -> None:
        """What the store has of a server that has not listed yet, once, however many ask."""
        if shelf.recall is None:
            shelf.recall = asyncio.create_task(self._look_up(shelf, client))
            self._tasks.add(shelf.recall)
            shelf.recall.add_done_callback(self._ended)
        if not shelf.recall.done():
            await asyncio.wait({shelf.recall})

    async def _look_up(self, shelf: ServerCatalog, client: Client) -> None:
        server = shelf.server
        await self.starts.recall(server)
        kept = await self._kept.recall(self.faces[server.key], server, shelf.scope, client)
        if kept is not None:
            whole, era = kept
            self._speak(shelf, client, era)
            shelf.recalled = set(KINDS)
            self._land(shelf, whole)

    def _speak(self, shelf: ServerCatalog, client: Client, era: Era) -> None:
        """What the pins go by: in which era, and with which of the client's capabilities, the server lists."""
        shelf.era, shelf.capabilities = era, shelf.server.capability_set(client, era)

    # ------------------------------------------------------------ changing

    def publish(self, server_key: str, scope: str | None, notification: Notification) -> None:
        """The Publish callback of all servers: news of a list goes on once that list is up to date."""
        method = HELD.get(notification.method)
        if method is None:
            self._hub.publish(Event(server_key, scope, notification))
        else:
            self.changed(server_key, scope, KINDS[method])

    def changed(self, server_key: str, scope: str | None, kind: Kind) -> None:
        """The server says that a list of that kind is no longer what it was."""
        for shelf in self.of(server_key, scope):
            shelf.announced[LIST_OF[kind]] += 1
        self.outdate(server_key, scope, (LIST_OF[kind],))

    def outdate(self, server_key: str, scope: str | None = None, methods: Iterable[str] = KINDS) -> None:
        """These lists may be other than they were. Snapshots that somebody watches are walked again soon, others when
        they are next asked for, by then for a client that is still there."""
        methods = set(methods)
        for shelf in self.of(server_key, scope):
            shelf.stale |= methods
            shelf.changed |= methods
            shelf.retry_at = float("-inf")
        self._news[server_key].setdefault(scope, set()).update(methods)
        if self.servers[server_key].status != "down":
            self._soon(server_key)

    def of(self, server_key: str, scope: str | None = None) -> list[ServerCatalog]:
        shelves = self._shelves[server_key]
        return list(shelves.values()) if scope is None else [shelves[scope]] if scope in shelves else []

    def stored_era(self, server_key: str, client: Client) -> Era | None:
        """The era that a stored list is of."""
        shelf = self._shelves[server_key].get(self.servers[server_key].scope(client))
        return shelf.era if shelf is not None and shelf.recalled else None

    def announced(self, server_key: str, client: Client, method: str) -> int:
        """How often the server said that this list has changed, or the policy changed, which may change each list."""
        shelf = self._shelves[server_key].get(self.servers[server_key].scope(client))
        return shelf.announced[method] if shelf else 0

    def moved(self, server_key: str) -> None:
        """The server came up or went down: all its lists come or go. Who listens is told that it went at once, and that
        it came when it has listed."""
        for shelf in self.of(server_key):
            shelf.announced[LIST_OF["res"]] += shelf.missed
            shelf.missed = False
        self.outdate(server_key)
        if self.servers[server_key].status == "down":
            for method in KINDS:
                self._tell(server_key, None, method)

    def reconsider(self, server: str | None = None) -> None:
        """Policy, pins or grants changed: everyone's part of the lists may have, though no server's list did."""
        for server_key in self.servers if server is None else (server,):
            for shelf in self.of(server_key) if server is None else ():
                shelf.announced[LIST_OF["res"]] += 1  # nobody holds resources, so that what changes can be told
            for method in KINDS:
                self._tell(server_key, None, method)

    def serve_anew(self, server_key: str) -> None:
        """The pins of a server changed: what its shelves hold is judged again, once for all that hold the same."""
        cases: dict[tuple[Era, str, bytes, bytes], tuple[Snapshot, list[str]]] = {}
        for shelf in self._shelves[server_key].values():
            if shelf.whole is None or shelf.snapshot is None:
                continue
            case = (shelf.era, shelf.capabilities, shelf.whole.digest, shelf.snapshot.digest)
            if case not in cases:
                served = self._served(shelf, shelf.whole)
                before, after = digests(shelf.snapshot), digests(served)
                cases[case] = (served, [method for method in KINDS if before.get(method) != after.get(method)])
            shelf.snapshot, changed = cases[case]
            for method in changed:
                self._tell(server_key, shelf.scope, method)

    @contextmanager
    def watch(self, client: Client) -> Iterator[None]:
        """While somebody listens, this client's lists are walked again as soon as a change is announced."""
        token = object()
        self._watchers[token] = client
        try:
            yield
        finally:
            del self._watchers[token]

    def _soon(self, server_key: str, delay: float = DEBOUNCE) -> None:
        """One timer a server: a server that announces changes all the time is walked DEBOUNCE after the first."""
        if server_key not in self._timers:
            timer = asyncio.get_running_loop().call_later(delay, self._settle, server_key)
            self._timers[server_key] = timer

    def _settle(self, server_key: str) -> None:
        """A walk that is under way may have begun before the change: its end calls for the next one. Scopes are
        asked anew, for they change when a server's era becomes known."""
        del self._timers[server_key]
        news, self._news[server_key] = self._news[server_key], {}
        for client in self._watchers.values():
            shelf = self.shelf(server_key, client)
            if shelf.snapshot is None:
                shelf.changed |= news.get(None, set()) | news.get(shelf.scope, set())
            if shelf.walk is None and shelf.changed:
                self._start(shelf, client, shelf.stale or shelf.changed)

    def _tell(self, server_key: str, scope: str | None, method: str) -> None:
        self._hub.publish(Event(server_key, scope, Notification(LISTS[method].changed, {})))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
