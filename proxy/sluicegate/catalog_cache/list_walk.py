"""When and how servers are asked for their lists: what one says of itself, one whole list of it, within bounds that a
hostile server cannot stretch; who waits how long for lists that are still on their way; and which are walked again.

Knows servers by how they are doing, and catalogs, which it fills. Nothing here fails a list: a server that cannot be
walked keeps its last good snapshot, from memory or from the store, or has none.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

import anyio

from sluicegate.catalog.list_bounds import PIECE, Bounds, Intake
from sluicegate.catalog.snapshot import KINDS, ListSection, Snapshot, assemble
from sluicegate.catalog_cache import pin_store
from sluicegate.catalog_cache.definition_pins import DefinitionPins, instructions_of
from sluicegate.catalog_cache.server_catalog import (
    ALL_LISTS,
    MAX_SCOPES,
    ListSettings,
    ServedSnapshots,
    ServerCatalog,
    ServerCatalogs,
    digests,
    make_room,
)
from sluicegate.catalog_cache.snapshot_store import LentLists, SnapshotStore
from sluicegate.policy.pins import Found
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Client, Era, Failure, McpServer, Outcome, Result
from sluicegate.protocol.modern_server import time_to_live
from sluicegate.runtime.loop_budget import LoopBudget, budget_of

UNDECLARED_TIME: Final = 1.5  # seconds for an answer from a server that may not know the question
TRIES: Final = 3  # of a question that it does not answer, one with each walk
DEBOUNCE: Final = 0.05
RETRY: Final = 1.0
TOLD: Final = 20  # definitions that are not served, each with a line in the log
# A server may change a list without saying so: behind a list served from an older snapshot, it is looked at again.
REVALIDATE: Final = 5.0
AT_ONCE: Final = 16  # clients that are looked at in one step
EACH: Final = 0.1e-3
"""About the seconds that a change costs for each client, whose lists are filtered again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Walked:
    """`cut` says why the walk ended before the server's list did, "" if it did not. `digest` is equal for equal items,
    and empty where they cannot be told apart by it. `size` is about how many bytes the items have."""

    items: tuple[Any, ...]
    ttl_ms: int
    cut: str = ""
    digest: bytes = b""
    size: int = 0


@dataclass(slots=True)
class WalkedLists:
    """A server's last long list of each method, with the answer object from which it was made. If that same object
    comes again, the list is used again. One is made at a time: `turn`, because several scopes walk at once."""

    last: dict[str, tuple[Outcome, Walked]] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ServerInfos:
    """What each server says of itself, and what it lists without declaring it. `walked` has its last long lists."""

    def __init__(self) -> None:
        self.walked = defaultdict[str, WalkedLists](WalkedLists)
        self._undeclared: defaultdict[str, set[str]] = defaultdict(set)
        self._tries: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def forget(self, server_key: str) -> None:
        self._undeclared.pop(server_key, None)
        self._tries.pop(server_key, None)
        self.walked.pop(server_key, None)

    async def about(self, server: McpServer, client: Client, timeout: float) -> Json | None:
        """Its capabilities, with those that it has without declaring them, and its instructions; None if it does not
        say. A connection may have to be made for the answer."""
        outcome = await ask(server, Call(client, "server/discover", {}), max(timeout, server.start_timeout))
        if not isinstance(outcome, Result) or not isinstance(outcome.value.get("capabilities"), dict):
            return None
        answer: Json = {key: outcome.value[key] for key in ("capabilities", "instructions") if key in outcome.value}
        await self._ask_undeclared(server, client, answer["capabilities"])
        undeclared: Json = {name: {} for name in sorted(self._undeclared[server.key])}
        return {**answer, "capabilities": undeclared | answer["capabilities"]}

    async def _ask_undeclared(self, server: McpServer, client: Client, declared: Json) -> None:
        """Some servers list what they do not declare, and the SDKs ask them all the same. What a server has answered it
        is not asked again in this run, and each capability is warned of once."""
        found, tries = self._undeclared[server.key], self._tries[server.key]
        missing = {
            method: tries[method] + 1 for method, entry in LISTS.items()
            if entry.capability not in declared and tries[method] < TRIES
        }  # fmt: skip
        asking = (ask(server, Call(client, method, {}), UNDECLARED_TIME) for method in missing)
        answers = dict(zip(missing, await asyncio.gather(*asking), strict=True))
        for capability in sorted({LISTS[method].capability for method, one in answers.items() if page_of(one, method)}):
            if capability not in found:
                found.add(capability)
                log.warning("server %s lists %s without declaring them", server.key, capability)
        for method, outcome in answers.items():
            has_none = isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND
            tries[method] = TRIES if has_none or isinstance(outcome, Result) else missing[method]


async def ask(server: McpServer, call: Call, timeout: float) -> Outcome | None:
    """What the server answers in time; None for a server that is dead or too slow."""
    try:
        with anyio.fail_after(timeout):
            return await server(call)
    except OSError:  # ConnectionError and TimeoutError are such
        return None


async def walk(
    server: McpServer, client: Client, method: str, timeout: float, bounds: Bounds,
    walked: WalkedLists | None = None,
) -> Walked | None:  # fmt: skip
    """All items of a list. A server without that method has none; None if a page fails, so that half a list is
    never taken for the whole. `walked` are its last long lists of one page."""
    try:
        with anyio.fail_after(timeout):
            return await _pages(server, client, method, bounds, WalkedLists() if walked is None else walked)
    except OSError:
        return None


async def _pages(
    server: McpServer, client: Client, method: str, bounds: Bounds, walked: WalkedLists
) -> Walked | None:  # fmt: skip
    items: list[Any] = []
    ttls: list[int] = []
    intake = Intake(bounds)
    params: Json = {}
    while True:
        outcome = await server(Call(client, method, params))
        if isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND and not params:
            return Walked((), 0)
        async with walked.turn:
            before, last_walked = walked.last.get(method, (None, None))
            if not params and before is outcome:
                return last_walked
            entries = page_of(outcome, method)
            if entries is None or not isinstance(outcome, Result):
                return None
            ttls.append(time_to_live(outcome.value))
            cursor = next_cursor(outcome.value)
            taken, cut = await budget_of(server.key).in_pieces(intake.take(entries, cursor))
            items += taken
            if cursor is None or cut:
                found = Walked(tuple(items), min(ttls), cut, intake.digest, intake.size)
                if not params and intake.size >= PIECE:
                    walked.last[method] = outcome, found
                return found
        params = {"cursor": cursor}


def page_of(outcome: Outcome | None, method: str) -> list[Any] | None:
    """Returns the items of a page; None where the outcome is no page."""
    entries = outcome.value.get(LISTS[method].key) if isinstance(outcome, Result) else None
    return entries if isinstance(entries, list) else None


def next_cursor(value: Json) -> str | None:
    """A missing cursor is the end, the empty one is a cursor (2026-07-28 server/utilities/pagination)."""
    cursor = value.get("nextCursor")
    return cursor if isinstance(cursor, str) else None


# ---------------------------------------------------------------- who waits how long

PATIENCE: Final = 2.0
MOMENT: Final = 0.2
ANSWERING: Final = 0.5
"""Seconds of a start that are left for the list itself, so that it is out when the start is over."""

Walks = Mapping[asyncio.Task[None], ServerCatalog]


async def wait_for_lists(
    walks: Walks, catalogs: Iterable[ServerCatalog], timeout: float, for_starts: bool, is_list: bool
) -> None:  # fmt: skip
    """`timeout` is that of the list of a server that is up; `for_starts` is whether a list (`is_list`) waits for
    servers that start.

    A stored list is shown while its server starts, so only a server that is up is waited for then, and only for a
    moment. Without one it depends on who asks. A client on stdio may keep its first list for ever: it waits for every
    server that is still starting, each at most `start_timeout` after that server's own start. A client over HTTP waits
    for the first servers that answer, and then no longer than PATIENCE after the last answer. A server that is down
    delays no list. Whoever was left behind is not waited for again until it has listed; list_changed follows then. A
    client on stdio leaves nobody behind that is still starting, and nobody at all with what is no list."""
    stored = {walk for walk, catalog in walks.items() if catalog.recalled and catalog.server.status == "up"}
    if stored:
        await asyncio.wait(stored, timeout=MOMENT)
    unknown = {walk: catalog for walk, catalog in walks.items() if not catalog.recalled and not walk.done()}
    await (_until_listed(unknown, timeout) if for_starts and is_list else _briefly(unknown, catalogs, timeout))
    for walk, catalog in unknown.items():
        is_left = not for_starts or (is_list and catalog.server.status != "starting")
        catalog.late = catalog.late or (is_left and not walk.done())


async def _until_listed(walks: Walks, timeout: float) -> None:
    async with anyio.create_task_group() as group:
        for walk, catalog in walks.items():
            group.start_soon(_until_one_listed, walk, catalog, timeout)


async def _until_one_listed(walk: asyncio.Task[None], catalog: ServerCatalog, timeout: float) -> None:
    server = catalog.server
    with anyio.move_on_after(max(server.start_left - ANSWERING, timeout if server.status == "up" else 0.0)):
        await server.ready(is_needed=True)
        if server.status != "down":
            await asyncio.wait({walk})


async def _briefly(walks: Walks, catalogs: Iterable[ServerCatalog], timeout: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    pending = set(walks)
    while pending:
        left = max(0.0, end - loop.time())
        arrived = any(catalog.snapshot is not None for catalog in catalogs)
        patience = min(left, PATIENCE) if arrived else left
        done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break


class HangingStarts:
    """Servers for whose starts nobody waits."""

    def __init__(self, stored: SnapshotStore) -> None:
        self._stored: Final = stored
        self._hung: set[str] = set()

    def forget(self, server_key: str) -> None:
        self._hung.discard(server_key)

    def hangs(self, server: McpServer) -> bool:
        """It is past the time for a start, or was at its last one, and has not listed since."""
        return server.status == "starting" and (server.key in self._hung or server.start_left <= 0)

    async def recall(self, server: McpServer) -> None:
        if await self._stored.has_hung(server):  # also of one that is up by now: its list takes the mark away
            self._hung.add(server.key)

    async def wait(self, server: McpServer) -> None:
        """Until its first start has ended, well or badly. That it hangs is remembered for the next run."""
        if server.status == "starting":
            with anyio.move_on_after(server.start_left):
                return await server.ready(is_needed=True)
            self._hung.add(server.key)
            await self._stored.note_hung(server, is_hung=True)
        await server.ready(is_needed=True)

    async def listed(self, server: McpServer) -> None:
        if server.key in self._hung:
            self._hung.discard(server.key)
            await self._stored.note_hung(server, is_hung=False)


# ---------------------------------------------------------------- which lists are walked again

Look = Callable[[Client], object]


class ListWatchers:
    def __init__(self) -> None:
        self._clients: dict[object, Client] = {}
        # Budgets of their own: looks at lists take nothing of the time that messages of servers have.
        self._paces: defaultdict[str, LoopBudget] = defaultdict(lambda: LoopBudget(everybody=LoopBudget()))

    def __len__(self) -> int:
        return len(self._clients)

    @contextmanager
    def watch(self, client: Client) -> Iterator[None]:
        """While somebody listens, this client's lists are walked again as soon as a change is announced."""
        token = object()
        self._clients[token] = client
        try:
            yield
        finally:
            del self._clients[token]

    def pause(self, server: str) -> float:
        """Seconds until a change at that server may be looked at, 0 for now."""
        return self._paces[server].pause()

    def forget(self, server: str) -> None:
        self._paces.pop(server, None)

    def each(self, server: str, look: Look) -> None:
        """Calls `look` for each client that still listens when its turn comes."""
        self._go_on(server, look, iter(tuple(self._clients)))

    def _go_on(self, server: str, look: Look, left: Iterator[object]) -> None:
        some = list(islice(left, AT_ONCE))
        self._paces[server].charge(EACH * len(some))
        for client in filter(None, map(self._clients.get, some)):
            look(client)
        if len(some) == AT_ONCE:
            asyncio.get_running_loop().call_soon(self._go_on, server, look, left)


class CatalogWalks:
    """Fills catalogs, from their servers and from the store. A catalog is walked by one task however many wait for it,
    and that task outlives whoever started it."""

    def __init__(
        self, settings: ListSettings, catalogs: ServerCatalogs, snapshots: ServedSnapshots, stored: SnapshotStore,
        pins: DefinitionPins, starts: HangingStarts, tell: Callable[[str, str | None, str], None],
        lends: Callable[[str, Client], bool], may_see: Callable[[Client, str], bool],
    ) -> None:  # fmt: skip
        """`tell` is told of (server, scope, method) where that list is another one now."""
        self.settings = settings
        self.watchers = ListWatchers()
        self._catalogs, self._snapshots, self._stored, self._pins = catalogs, snapshots, stored, pins
        self._starts, self._tell, self._lends, self._may_see = starts, tell, lends, may_see
        self._lent = LentLists(stored, pins)
        self._abouts = ServerInfos()
        self._news: dict[str, dict[str | None, set[str]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, settings: ListSettings) -> None:
        self.settings = settings

    def forget(self, server_key: str) -> None:
        """Another server has the key now, or none: nothing goes on about the one before."""
        for catalog in self._catalogs.held.get(server_key, {}).values():
            for task in filter(None, (catalog.walk, catalog.recall)):
                task.cancel()
        if (timer := self._timers.pop(server_key, None)) is not None:
            timer.cancel()
        self._news.pop(server_key, None)
        self._abouts.forget(server_key)
        self.watchers.forget(server_key)
        self._lent.forget(server_key)
        self._starts.forget(server_key)

    def due(self, catalog: ServerCatalog, client: Client, for_operator: bool = False) -> asyncio.Task[None] | None:
        """What to wait for if something is stale: the walk under way, or a new one if the last failure is long ago."""
        if not catalog.stale or self._catalogs.servers.get(catalog.server.key) is not catalog.server:
            return None
        is_time = catalog.walk is None and asyncio.get_running_loop().time() >= catalog.retry_at
        if is_time and (for_operator or self._may_see(client, catalog.server.key)):
            self._start(catalog, client, catalog.stale)
        return catalog.walk

    def revalidate(self, catalog: ServerCatalog, client: Client) -> None:
        if catalog.snapshot is None or catalog.walk or catalog.stale or catalog.server.status != "up":
            return
        age = asyncio.get_running_loop().time() - catalog.walked_at
        if age > max(REVALIDATE, catalog.snapshot.ttl_ms / 1000):
            self._start(catalog, client, KINDS)

    def _start(self, catalog: ServerCatalog, client: Client, methods: Iterable[str]) -> None:
        announce, catalog.changed = catalog.changed, set()
        self._catalogs.renewed(catalog.server.key)
        catalog.walk = asyncio.create_task(self._walk(catalog, client, tuple(methods), announce))
        self._tasks.add(catalog.walk)
        catalog.walk.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            log.error("a walk of lists failed", exc_info=problem)

    async def _walk(self, catalog: ServerCatalog, client: Client, methods: tuple[str, ...], announce: set[str]) -> None:
        await self.recall(catalog, client)
        before, whole = digests(catalog.snapshot), catalog.whole.digest if catalog.whole else b""
        began = asyncio.get_running_loop().time()
        complete = False
        try:
            await self._starts.wait(catalog.server)
            began = asyncio.get_running_loop().time()
            self._catalogs.rehome(catalog, client)
            announce |= catalog.changed  # whatever was announced before the first page is asked for is covered
            catalog.changed = set()
            self._catalogs.renewed(catalog.server.key)
            complete = await self._walk_lists(catalog, client, methods)
            if not complete:  # what could not be looked at is news once it could
                missed = announce & catalog.stale
                catalog.changed |= missed
                announce -= missed
        finally:
            catalog.walk, catalog.walked_at = None, asyncio.get_running_loop().time()
            catalog.late = not complete and (catalog.late or catalog.walked_at - began > PATIENCE)
            catalog.retry_at = catalog.walked_at + (0 if complete else RETRY)
            self._catalogs.renewed(catalog.server.key)
        if complete:
            catalog.is_awaited = False
        after = digests(catalog.snapshot)
        for method in KINDS:
            if method in announce or before.get(method) != after.get(method):
                self._tell(catalog.server.key, catalog.scope, method)
        if catalog.changed and catalog.server.status == "up":
            self.soon(catalog.server.key, DEBOUNCE if complete else RETRY)
        if complete:
            await self._starts.listed(catalog.server)
        if complete and catalog.whole is not None and whole != catalog.whole.digest:
            await self._stored.remember(catalog.server, catalog.scope, client, catalog.whole, catalog.era)
            self.lend_anew(catalog.server.key)

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
            server, timeout, walked_lists = catalog.server, self.settings.list_timeout, self._abouts.walked
            walked = await walk(server, client, method, timeout, self.settings.bounds, walked_lists[server.key])
            if walked is None:
                return False
            mark, size = walked.digest, walked.size
            budget = budget_of(catalog.server.key)
            is_large = len(walked.items) > pin_store.LARGE or size > pin_store.LARGE_BYTES
            do = budget.large if is_large else budget.in_pieces
            source = (method, walked.ttl_ms, mark, walked.cut)
            landed = await do(self._snapshots.made(catalog.server.key, source, walked.items))
        earlier = catalog.whole.listings if catalog.whole else {}
        if method not in earlier or earlier[method].left_out != landed.left_out:
            _tell_left_out(catalog.server.key, method, landed.left_out)
        if self._pins.is_pinned(catalog.server.key):
            found = await pin_store.apart(len(landed.entries), size, _found, landed)
            await self._pins.meet(catalog.server.key, catalog.era, catalog.capabilities, KINDS[method], found, size)
        earlier = catalog.whole.listings if catalog.whole else {}
        whole = self._land(catalog, assemble(catalog.server.key, about, {**earlier, method: landed}))
        self._snapshots.landed(catalog.server.key, mark, whole.listings[method])
        catalog.recalled.discard(method)
        if method not in catalog.changed:
            catalog.stale.discard(method)
        return True

    def _land(self, catalog: ServerCatalog, whole: Snapshot) -> Snapshot:
        landed = self._snapshots.land(catalog, whole)
        most = ALL_LISTS * self.settings.bounds.bytes
        is_large = sum(one.size for one in whole.listings.values()) > most // MAX_SCOPES  # else there is room for all
        if is_large and landed is whole:
            catalog.used = True  # or what was just found in the store would go first
            make_room(self._catalogs.held[catalog.server.key], most)
        return landed

    async def recall(self, catalog: ServerCatalog, client: Client) -> None:
        """What the store has of a server that has not listed yet, once, however many ask."""
        if catalog.recall is None:
            catalog.recall = asyncio.create_task(self._look_up(catalog, client))
            self._tasks.add(catalog.recall)
            catalog.recall.add_done_callback(self._ended)
        if not catalog.recall.done():
            await asyncio.wait({catalog.recall})

    async def _look_up(self, catalog: ServerCatalog, client: Client) -> None:
        server = catalog.server
        await self._starts.recall(server)
        made = partial(self._snapshots.made, server.key)
        stored = await self._stored.recall(self._snapshots.namings[server.key], server, catalog.scope, client, made)
        if stored is None and self._lends(server.key, client):
            catalog.is_lent = True
            stored = await self._lent.find(self._snapshots.namings[server.key], server.identity)
        if stored is not None and catalog.whole is None:  # unless the server has listed meanwhile
            whole, era = stored
            self._speak(catalog, client, era)
            catalog.recalled = set(KINDS)
            self._land(catalog, whole)

    def _speak(self, catalog: ServerCatalog, client: Client, era: Era) -> None:
        """What the pins go by: in which era, and with which of the client's capabilities, the server lists."""
        catalog.era, catalog.capabilities = era, catalog.server.capability_set(client, era)

    def lend_anew(self, server_key: str) -> None:
        """Others were shown something else, or people have accepted more: whoever has no login sees that."""
        self._lent.forget(server_key)
        for catalog in self._catalogs.of(server_key):
            if catalog.is_lent and (catalog.whole is None or catalog.recalled):
                catalog.recall = catalog.whole = catalog.snapshot = None
                for method in KINDS:
                    self._tell(server_key, catalog.scope, method)

    def outdate(self, server_key: str, scope: str | None = None, methods: Iterable[str] = KINDS) -> None:
        """These lists may be other than they were. Snapshots that somebody watches are walked again soon, others when
        they are next asked for, by then for a client that is still there."""
        outdated = set(methods)
        self._catalogs.outdate(server_key, scope, outdated)
        self._news.setdefault(server_key, {}).setdefault(scope, set()).update(outdated)
        if self._catalogs.servers[server_key].status != "down":
            self.soon(server_key)

    def soon(self, server_key: str, delay: float = DEBOUNCE) -> None:
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
        news = self._news.pop(server_key, {})
        self.watchers.each(server_key, partial(self._begin_walk, self._catalogs.servers[server_key], news))

    def _begin_walk(self, server: McpServer, news: Mapping[str | None, set[str]], client: Client) -> None:
        if self._catalogs.servers.get(server.key) is not server:
            return
        catalog = self._catalogs.get(server.key, client)
        if catalog.snapshot is None:
            catalog.changed |= news.get(None, set()) | news.get(catalog.scope, set())
        if catalog.walk is None and catalog.changed and self._may_see(client, server.key):
            self._start(catalog, client, catalog.stale or catalog.changed)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()


def _found(landed: ListSection) -> dict[str, Found]:
    return {entry.target.own: Found(entry.fingerprint, entry.target.item) for entry in landed.entries}


def _tell_left_out(server_key: str, method: str, left_out: Sequence[str]) -> None:
    """A server may list 10,000 definitions that cannot be served: a line of the log takes 20 us."""
    for line in left_out[:TOLD]:
        log.warning("server %s: not served: %s", server_key, line)
    if len(left_out) > TOLD:
        log.warning("server %s: not served: %s: %d more", server_key, method, len(left_out) - TOLD)
