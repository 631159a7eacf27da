"""Every server's lists as snapshots, one for each scope: what is known of them now, and who is told of changes.

Knows servers by their state and clients by their scope; when a server is walked, `list_walk` knows. What the pins
withhold is left out before anybody sees it.

A stored list is served until the server has listed, and no call is decided by it. A call waits for the walk up to the
list timeout, and for a server of which a stored list has its name, as long as that may start.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final, Literal

import anyio

from sluicegate.catalog.snapshot import KINDS, Entry, Snapshot
from sluicegate.catalog_cache import list_walk
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.list_walk import CatalogWalks, HangingStarts
from sluicegate.catalog_cache.server_catalog import (
    ListSettings,
    ServedSnapshots,
    ServerCatalog,
    ServerCatalogs,
    digests,
)
from sluicegate.catalog_cache.snapshot_store import SnapshotStore
from sluicegate.hub import Event, Hub
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Client, Era, Kind, McpServer, Target
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

# To streams inside Sluice alone: another server than before has a key, or none has it any more.
RECONFIGURED: Final = "dev.sluice/reconfigured"

# What a list_changed notification says about the lists that are held. Resources are not, but their templates are.
HELD: Final[Mapping[str, str]] = {LISTS[method].changed: method for method in KINDS}
LIST_OF: Final[Mapping[Kind, str]] = {kind: method for method, kind in KINDS.items()}

Use = Literal["greeting", "list", "call"]


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
        self.servers = servers
        self._hub = hub
        self._may_see = may_see
        pins, stored = pins or DefinitionPins({}, MemoryStore()), SnapshotStore(store)
        pins.books.on_moved(self.serve_anew)
        self.catalogs = ServerCatalogs(servers)
        self._held = self.catalogs.held
        self._snapshots = ServedSnapshots(pins)
        self.namings = self._snapshots.namings
        for key in servers:
            self._snapshots.configure(key, settings)
        self.starts = HangingStarts(stored)
        self.walks = CatalogWalks(
            settings, self.catalogs, self._snapshots, stored, pins, self.starts, self._tell, lends, may_see
        )
        self._announced = Counter[tuple[str, str]]()  # changes that were announced to all scopes, by server and list
        self._patience: dict[str, asyncio.TimerHandle] = {}  # with servers that took another's place
        self.replaced: set[str] = set()
        """Keys that other servers had before, since the start."""

    @property
    def settings(self) -> ListSettings:
        return self.walks.settings

    def configure(self, settings: ListSettings, changed: Mapping[str, McpServer | None]) -> None:
        """Other servers are configured. `changed` has each key that another server has now, or none, and the server
        before. What is held of that one is forgotten. Who listens is told once: of a server that took another's place
        when it has listed, or does not in time."""
        self.walks.configure(settings)
        for key, before in changed.items():
            self.walks.forget(key)
            if (timer := self._patience.pop(key, None)) is not None:
                timer.cancel()
            earlier, self._held[key] = self._held.get(key, {}), {}
            if (server := self.servers.get(key)) is not None:
                self._snapshots.configure(key, settings)
                self._succeed(server, earlier)
                if before is not None and before.identity != server.identity:
                    self.replaced.add(key)
        for key in changed:
            self._hub.publish(Event(key, None, Notification(RECONFIGURED, {})))
            if key in self.servers:
                self.walks.soon(key)
            self._tell_all(key)

    def _succeed(self, server: McpServer, earlier: Mapping[str, ServerCatalog]) -> None:
        """Where there was a list of the server before, this one's is awaited, at most as long as a list may take."""
        held = {scope: catalog for scope, catalog in earlier.items() if catalog.snapshot is not None}
        for scope, before in held.items():
            catalog = self._held[server.key][scope] = ServerCatalog(server, scope)
            catalog.is_awaited, catalog.changed = True, set(KINDS)
            catalog.announced[LIST_OF["res"]] = before.announced[LIST_OF["res"]] + 1
        if held:
            later = asyncio.get_running_loop().call_later
            self._patience[server.key] = later(self.settings.list_timeout, self._stop_awaiting, server.key)

    def is_awaited(self, server_key: str, client: Client) -> bool:
        """Whether this server took another's place, and what it lists is not known yet."""
        catalog = self.catalogs.find(server_key, client)
        return catalog is not None and catalog.is_awaited

    def _stop_awaiting(self, server_key: str) -> None:
        self._patience.pop(server_key, None)
        awaited = [catalog for catalog in self.catalogs.of(server_key) if catalog.is_awaited]
        for catalog in awaited:
            catalog.is_awaited = False
        if awaited:
            self._tell_all(server_key)

    def has(self, client: Client, target: Target) -> bool:
        """Whether the server that has the key now lists this very definition to that client."""
        snapshot = self.current(target.server, client)
        found = snapshot.find.get((target.kind, target.public)) if snapshot else None
        return target.item is None or (found is not None and found.target == target)

    # ------------------------------------------------------------ reading

    def current(self, server_key: str, client: Client) -> Snapshot | None:
        catalog = self.catalogs.find(server_key, client)
        return catalog.snapshot if catalog else None

    def find(self, server_key: str, client: Client, kind: Kind, public: str) -> Entry | None:
        """The hot path: an entry of a list that is up to date, without waiting for anything."""
        catalog = self._held[server_key].get(self.servers[server_key].scope(client))
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
        catalog = self.catalogs.get(server_key, client)
        await self.walks.recall(catalog, client)
        is_listed = catalog.snapshot is not None and name in catalog.snapshot.find
        # Once it has started, a connection of the client's own may have to start, too.
        start = catalog.server.start_left + catalog.server.start_timeout if is_listed and catalog.recalled else 0.0
        with anyio.move_on_after(max(self.settings.list_timeout, start)):
            for _ in range(2):
                due = self.walks.due(catalog, client)
                if due is None or (catalog.late and catalog.is_whole):
                    break
                await asyncio.wait({due})
        return catalog.snapshot

    def is_stored(self, server_key: str, client: Client, kind: Kind) -> bool:
        """Whether that list is from an earlier run, and the server has not listed it since."""
        catalog = self.catalogs.find(server_key, client)
        return catalog is not None and LIST_OF[kind] in catalog.recalled

    async def all(self, client: Client, use: Use = "call") -> list[tuple[str, Snapshot | None]]:
        """The snapshot of every server on which this client has a right, in the order configured; None for those of
        which nothing is known (yet). `use` is what they are for. A client on stdio waits for servers to start with its
        lists, which are whole then, and with its first words for none."""
        catalogs = [one for one in await self.recall(client) if self._may_see(client, one.server.key)]
        due = {walk: catalog for catalog in catalogs if (walk := self.walks.due(catalog, client))}  # starts all of them
        walks = {walk: catalog for walk, catalog in due.items() if self._is_awaited(catalog)}
        for_starts, timeout = self.settings.for_starts, self.settings.list_timeout
        if walks and not (for_starts and use == "greeting" and not self.settings.transparent):
            await list_walk.wait_for_lists(walks, catalogs, timeout, for_starts, use == "list")
        for catalog in catalogs:
            self.walks.revalidate(catalog, client)
        return [(catalog.server.key, catalog.snapshot) for catalog in catalogs]

    async def look(self, client: Client) -> None:
        """Has each server say what it has, for an operator who looks with this client's eyes. It has no session and no
        capabilities, so servers learn nothing of a client that may not see them."""
        catalogs = await self.recall(client)
        due = {walk: one for one in catalogs if (walk := self.walks.due(one, client, for_operator=True))}
        if walks := {walk: one for walk, one in due.items() if self._is_awaited(one)}:
            await list_walk.wait_for_lists(walks, catalogs, self.settings.list_timeout, self.settings.for_starts, True)

    async def has_started(self, server_key: str, client: Client) -> bool:
        """Whether the server can be asked for its resources, of which nothing is stored, after a wait for its start.
        A client that got its list without them is told when they can be had."""
        catalog = self.catalogs.get(server_key, client)
        server = catalog.server
        if server.status == "starting" and not (catalog.missed or self.starts.hangs(server)):
            left = max(server.start_left - list_walk.ANSWERING, 0.0)  # as long as a list of its resources waits
            with anyio.move_on_after(left if self.settings.for_starts else self.settings.list_timeout):
                await server.ready(is_needed=True)
        catalog.missed = server.status == "starting"
        return not catalog.missed

    async def recall(self, client: Client) -> list[ServerCatalog]:
        """What is known without asking a server, from the store where it is not in memory."""
        there = [key for key, server in self.servers.items() if server.status != "disabled"]
        catalogs = [self.catalogs.get(key, client) for key in there]
        new = (catalog for catalog in catalogs if catalog.recall is None or not catalog.recall.done())
        await asyncio.gather(*(self.walks.recall(catalog, client) for catalog in new))
        return catalogs

    def _is_awaited(self, catalog: ServerCatalog) -> bool:
        return not (catalog.late or catalog.server.status == "down" or self.starts.hangs(catalog.server))

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
        elif (catalog := self._held[server_key].get(scope)) is not None:
            catalog.announced[method] += 1
        self.walks.outdate(server_key, scope, (method,))

    def stored_era(self, server_key: str, client: Client) -> Era | None:
        catalog = self.catalogs.find(server_key, client)
        return catalog.era if catalog is not None and catalog.recalled else None

    def announced(self, server_key: str, client: Client, method: str) -> int:
        """How often the server said that this list has changed, or the policy changed, which may change each list."""
        catalog = self.catalogs.find(server_key, client)
        return self._announced[server_key, method] + (catalog.announced[method] if catalog else 0)

    def moved(self, server_key: str) -> None:
        """The server came up or went down: all its lists come or go. Who listens is told that it went at once, and that
        it came when it has listed."""
        for catalog in self.catalogs.of(server_key):
            catalog.announced[LIST_OF["res"]] += catalog.missed
            catalog.missed = False
            if catalog.snapshot is None:
                catalog.recall = None  # whoever logged out is shown what the server listed to them before
        self.walks.outdate(server_key)
        if self.servers[server_key].status == "down":
            for catalog in self.catalogs.of(server_key):
                catalog.is_awaited = False
            self._tell_all(server_key)

    def reconsider(self, servers: Iterable[str] | None = None) -> None:
        """Policy, pins or grants changed: everyone's part of the lists may have, though no server's list did."""
        for server_key in self.servers if servers is None else servers:
            for catalog in self.catalogs.of(server_key) if servers is None else ():
                catalog.announced[LIST_OF["res"]] += 1  # nobody holds resources, so that what changes can be told
            self._tell_all(server_key)

    def serve_anew(self, server_key: str) -> Generator[None, None, None]:
        """The pins of a server changed: what its catalogs hold is judged again, once for all that hold the same."""
        self.walks.lend_anew(server_key)
        cases: dict[tuple[Era, str, bytes, bytes], tuple[Snapshot, list[str]]] = {}
        for catalog in self.catalogs.of(server_key):
            if catalog.whole is None or catalog.snapshot is None:
                continue
            case = (catalog.era, catalog.capabilities, catalog.whole.digest, catalog.snapshot.digest)
            if case not in cases:
                served = self._snapshots.served(catalog, catalog.whole)
                before, after = digests(catalog.snapshot), digests(served)
                cases[case] = (served, [method for method in KINDS if before.get(method) != after.get(method)])
            catalog.snapshot, changed = cases[case]
            for method in changed:
                self._tell(server_key, catalog.scope, method)
            yield

    def _tell(self, server_key: str, scope: str | None, method: str) -> None:
        self._hub.publish(Event(server_key, scope, Notification(LISTS[method].changed, {})))

    def _tell_all(self, server_key: str) -> None:
        """Each of its lists is another one now, for everybody."""
        for method in KINDS:
            self._tell(server_key, None, method)

    def close(self) -> None:
        self.walks.close()
        for timer in self._patience.values():
            timer.cancel()
