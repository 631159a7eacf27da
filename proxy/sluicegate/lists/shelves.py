"""Every server's lists as snapshots, one for each scope: when they are walked, kept, changed and forgotten.

Knows servers as Handlers and clients by their scope. A snapshot is walked by one task however many wait for it, and
that task outlives whoever started it. Nothing here fails a list: a server that cannot be walked keeps its last good
snapshot, from memory or from the store, or has none. What the pins withhold is left out before anybody sees it.

Who waits how long: a call to a server without a snapshot waits for its walk, up to the list timeout. A list waits
for the first walks of all servers, but once one server has answered, no longer than PATIENCE after the last arrival;
whoever is left behind is not waited for again until it answers, and list_changed follows its arrival.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from sluicegate.call import Call, Client, Era, Kind, Result, Server
from sluicegate.catalog.bounds import DEFAULT_BOUNDS, Bounds
from sluicegate.catalog.snapshot import KINDS, Entry, Face, Listing, Snapshot, assemble, listing
from sluicegate.era.revisions import LISTS
from sluicegate.hub import Event, Hub
from sluicegate.lists.kept import Kept
from sluicegate.lists.pinboard import Pinboard, said
from sluicegate.lists.shelf import Shelf, digests, evict
from sluicegate.lists.walk import ask, page_of, walk
from sluicegate.message import Json, Notification
from sluicegate.policy.pins import Found, fingerprint
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

MAX_SCOPES: Final = 1000  # snapshots kept per server; clients that share a scope share one
PATIENCE: Final = 2.0
DEBOUNCE: Final = 0.05
RETRY: Final = 1.0
UNDECLARED_TIME: Final = 1.5  # seconds for an answer from a server that may not know the question
LARGE: Final = 200  # items; making a listing of more takes longer than others should wait
# A server may change a list without saying so: behind a list served from an older snapshot, it is looked at again.
REVALIDATE: Final = 5.0

# What a list_changed notification says about the lists that are held. Resources are not, but their templates are.
HELD: Final[Mapping[str, str]] = {LISTS[method].changed: method for method in KINDS}
LIST_OF: Final[Mapping[Kind, str]] = {kind: method for method, kind in KINDS.items()}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListSettings:
    """`prefixes` has every server; in transparent mode there is one, with the prefix ""."""

    prefixes: Mapping[str, str]
    plain: frozenset[str] = frozenset()
    transparent: bool = False
    forward_unlisted: bool = False
    names_max: int = 50
    page: int = 1000
    list_timeout: float = 10.0
    bounds: Bounds = DEFAULT_BOUNDS


class Lists:
    """Snapshots of all `servers`, in the order configured. Without a `store` a restart forgets them; without `pins`
    all of them are served as they are."""

    def __init__(
        self, settings: ListSettings, servers: Mapping[str, Server], hub: Hub, store: Store | None = None,
        pins: Pinboard | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.servers = servers
        self._hub = hub
        self._kept = Kept(store)
        self._pins = pins or Pinboard({}, MemoryStore())
        self._pins.moved = self.serve_anew
        self.faces = {key: self._face(key) for key in servers}
        self._shelves: dict[str, dict[str, Shelf]] = {key: {} for key in servers}
        self._shared: WeakValueDictionary[bytes, Snapshot] = WeakValueDictionary()
        self._watchers: dict[object, Client] = {}
        self._news: dict[str, dict[str | None, set[str]]] = {key: {} for key in servers}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._undeclared: dict[str, frozenset[str]] = {}

    def _face(self, key: str) -> Face:
        settings = self.settings
        mark = fingerprint if self._pins.is_pinned(key) else None
        return Face(key, settings.prefixes[key], settings.names_max, key in settings.plain, mark)

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

    def count_tools(self, server_key: str) -> int:
        """In the longest list of them that any scope was served, what is withheld not counted."""
        snapshots = (shelf.snapshot for shelf in self._shelves[server_key].values())
        return max((len(found.entries("tools/list")) for found in snapshots if found), default=0)

    async def snapshot(self, server_key: str, client: Client) -> Snapshot | None:
        """The server's lists as this client's scope sees them, after the walk that is due, if one is; and after
        one more if that began before a change was announced."""
        shelf = self.shelf(server_key, client)
        for _ in range(2):
            due = self._due(shelf, client)
            if due is None or (shelf.late and shelf.is_whole):
                break
            await asyncio.wait({due}, timeout=self.settings.list_timeout)
        return shelf.snapshot

    async def all(self, client: Client) -> list[tuple[str, Snapshot | None]]:
        """Every server's snapshot in the order configured; None for those of which nothing is known (yet)."""
        shelves = [self.shelf(key, client) for key, server in self.servers.items() if server.status != "disabled"]
        walks = {due: shelf for shelf in shelves if (due := self._due(shelf, client)) and not shelf.late}
        if walks:
            await self._patiently(walks, shelves)
        for shelf in shelves:
            self._revalidate(shelf, client)
        return [(shelf.server.key, shelf.snapshot) for shelf in shelves]

    async def _patiently(self, walks: Mapping[asyncio.Task[None], Shelf], shelves: Iterable[Shelf]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.list_timeout
        pending = set(walks)
        while pending:
            left = max(0.0, end - loop.time())
            arrived = any(shelf.snapshot is not None for shelf in shelves)
            timeout = min(left, PATIENCE) if arrived else left
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
        for unfinished in pending:
            walks[unfinished].late = True

    def shelf(self, server_key: str, client: Client) -> Shelf:
        server = self.servers[server_key]
        shelves = self._shelves[server_key]
        scope = server.scope(client)
        shelf = shelves.get(scope)
        if shelf is not None:
            shelf.used = True
            return shelf
        if len(shelves) >= MAX_SCOPES:
            evict(shelves)
        shelf = shelves[scope] = Shelf(server, scope)
        return shelf

    # ------------------------------------------------------------ walking

    def _due(self, shelf: Shelf, client: Client) -> asyncio.Task[None] | None:
        """What to wait for if something is stale: the walk under way, or a new one if the last failure is long ago."""
        if not shelf.stale:
            return None
        if shelf.walk is None and asyncio.get_running_loop().time() >= shelf.retry_at:
            self._start(shelf, client, shelf.stale)
        return shelf.walk

    def _revalidate(self, shelf: Shelf, client: Client) -> None:
        if shelf.snapshot is None or shelf.walk or shelf.stale or shelf.server.status != "up":
            return
        age = asyncio.get_running_loop().time() - shelf.walked_at
        if age > max(REVALIDATE, shelf.snapshot.ttl_ms / 1000):
            self._start(shelf, client, KINDS)

    def _start(self, shelf: Shelf, client: Client, methods: Iterable[str]) -> None:
        announce, shelf.changed = shelf.changed, set()
        shelf.walk = asyncio.create_task(self._walk(shelf, client, tuple(methods), announce))
        self._tasks.add(shelf.walk)
        shelf.walk.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            log.error("a walk of lists failed", exc_info=problem)

    async def _walk(self, shelf: Shelf, client: Client, methods: tuple[str, ...], announce: set[str]) -> None:
        before, whole = digests(shelf.snapshot), digests(shelf.whole)
        began = asyncio.get_running_loop().time()
        complete = False
        try:
            await shelf.server.ready()
            self._rehome(shelf, client)
            announce |= shelf.changed  # whatever was announced before the first page is asked for is covered
            shelf.changed = set()
            complete = await self._walk_lists(shelf, client, methods)
            if not complete:  # what could not be looked at is news once it could
                missed = announce & shelf.stale
                shelf.changed |= missed
                announce -= missed
            if shelf.whole is None:
                await self._recall(shelf, client)
        finally:
            shelf.walk, shelf.walked_at = None, asyncio.get_running_loop().time()
            shelf.late = not complete and (shelf.late or shelf.walked_at - began > PATIENCE)
            shelf.retry_at = shelf.walked_at + (0 if complete else RETRY)
        after = digests(shelf.snapshot)
        for method in KINDS:
            if method in announce or before.get(method) != after.get(method):
                self._tell(shelf.server.key, shelf.scope, method)
        if shelf.changed and shelf.server.status == "up":
            self._soon(shelf.server.key, DEBOUNCE if complete else RETRY)
        if complete and shelf.whole is not None and whole != digests(shelf.whole):
            await self._kept.remember(shelf.server, shelf.scope, client, shelf.whole, shelf.era)

    def _rehome(self, shelf: Shelf, client: Client) -> None:
        """A server's era may be known only once it is up, and with it the scope of who asked before."""
        scope = shelf.server.scope(client)
        shelves = self._shelves[shelf.server.key]
        if scope != shelf.scope and scope not in shelves:
            shelves.pop(shelf.scope, None)
            shelves[scope] = shelf
            shelf.scope = scope

    async def _walk_lists(self, shelf: Shelf, client: Client, methods: tuple[str, ...]) -> bool:
        """Each list lands as it arrives, so that one that hangs does not hold back the others."""
        about = await self._about(shelf.server, client)
        if about is None:
            return False
        about = await self._with_undeclared(shelf.server, client, about)
        self._speak(shelf, client, shelf.server.era_for(client) or client.era)
        await self._pins.meet(shelf.server.key, shelf.era, shelf.capabilities, "instructions", said(about))
        complete = all(await asyncio.gather(*(self._walk_list(shelf, client, about, method) for method in methods)))
        if complete and shelf.is_whole:
            await self._pins.settle(shelf.server.key, shelf.era, shelf.capabilities)
        return complete

    async def _walk_list(self, shelf: Shelf, client: Client, about: Json, method: str) -> bool:
        """A list whose capability is not declared is empty. One that fails midway stays what it was."""
        landed = Listing(method)
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
        if method not in shelf.changed:
            shelf.stale.discard(method)
        return True

    def _land(self, shelf: Shelf, whole: Snapshot) -> None:
        """Snapshots of equal content are one object, however many scopes hold it."""
        shelf.whole = self._shared.setdefault(whole.digest, whole)
        shelf.snapshot = self._served(shelf, shelf.whole)

    def _served(self, shelf: Shelf, whole: Snapshot) -> Snapshot:
        served = self._pins.serve(shelf.server.key, shelf.era, shelf.capabilities, whole)
        return self._shared.setdefault(served.digest, served)

    async def _about(self, server: Server, client: Client) -> Json | None:
        outcome = await ask(server, Call(client, "server/discover", {}), self.settings.list_timeout)
        if not isinstance(outcome, Result) or not isinstance(outcome.value.get("capabilities"), dict):
            return None
        return {key: outcome.value[key] for key in ("capabilities", "instructions") if key in outcome.value}

    async def _with_undeclared(self, server: Server, client: Client, about: Json) -> Json:
        """Some servers list what they do not declare, and the SDKs ask them all the same. Asked once in a run."""
        declared: Json = about["capabilities"]
        if server.key not in self._undeclared:
            missing = [method for method, entry in LISTS.items() if entry.capability not in declared]
            asking = (ask(server, Call(client, method, {}), UNDECLARED_TIME) for method in missing)
            answers = zip(missing, await asyncio.gather(*asking), strict=True)
            has = frozenset(LISTS[method].capability for method, outcome in answers if page_of(outcome, method))
            self._undeclared[server.key] = has
            for capability in sorted(has):
                log.warning("server %s lists %s without declaring them", server.key, capability)
        return {**about, "capabilities": {name: {} for name in self._undeclared[server.key]} | declared}

    async def _recall(self, shelf: Shelf, client: Client) -> None:
        kept = await self._kept.recall(self.faces[shelf.server.key], shelf.server, shelf.scope, client)
        if kept is not None:
            whole, era = kept
            self._speak(shelf, client, era)
            self._land(shelf, whole)

    def _speak(self, shelf: Shelf, client: Client, era: Era) -> None:
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
        """A list of that kind is no longer what it was. Snapshots that somebody watches are walked again soon,
        others when they are next asked for, by then for a client that is still there."""
        shelves = self._shelves[server_key]
        for shelf in shelves.values() if scope is None else filter(None, (shelves.get(scope),)):
            shelf.stale.add(LIST_OF[kind])
            shelf.changed.add(LIST_OF[kind])
            shelf.retry_at = float("-inf")
        self._news[server_key].setdefault(scope, set()).add(LIST_OF[kind])
        self._soon(server_key)

    def moved(self, server_key: str) -> None:
        """The server came up or went down: all its lists come or go."""
        for kind in KINDS.values():
            self.changed(server_key, None, kind)

    def reconsider(self, server: str | None = None) -> None:
        """Policy, pins or grants changed: everyone's part of the lists may have, though no server's list did."""
        for server_key in self.servers if server is None else (server,):
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
