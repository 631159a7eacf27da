"""Many servers' lists as one, in pages of ours: in the order of the config, then as each server lists.

Tools, prompts and templates come from snapshots. Resources are followed page by page, because there may be a
million of them: of those, one page of one server (and the first pages of the next few, asked for together) is in
memory, and all that is remembered between two pages of ours travels in the cursor. What a client may not see is
left out before pages are cut, so that neither their number nor their length tells of it.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, Final

from sluicegate.catalog import uri_fields
from sluicegate.catalog.cursor import Generations, Position, Seal, Unseal, open_cursor, seal_cursor
from sluicegate.catalog.snapshot import KINDS, Entry, Snapshot
from sluicegate.catalog_cache import CatalogCache, MayList, Resolver, ServerSnapshots
from sluicegate.catalog_cache.list_walk import ask, next_cursor, page_of
from sluicegate.policy.memo import Memo
from sluicegate.protocol import downgrade
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Malformed, SharedList, decode_fast, dump, size_of
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Failure, McpServer, Outcome, Result, Target
from sluicegate.protocol.modern_server import time_to_live
from sluicegate.protocol.revisions import REVISIONS
from sluicegate.router.tool_search import LIST, ToolSearch
from sluicegate.router.visible_lists import LONG, VisibleList, VisibleLists

MAX_SHARED: Final = 64  # pages of ours that are the same for many
PAGE_BYTES: Final = 1024 * 1024
"""Of one page of ours, which is encoded in one step of the event loop. A larger item is alone."""
MAX_PAGES: Final = 64  # of one server for one page of ours, once there is something to answer with
MAX_EMPTY: Final = 64  # in a row, then the server's part is over
MAX_HIDDEN: Final = 1024  # of which the client may see nothing, for one page of ours
MAX_WALK: Final = 10_000  # of one server for a whole walk, which may be of many requests
AHEAD: Final = 4  # servers asked for their first page at the same time
SILENCE: Final = 30.0  # a server that did not answer in time is not asked again for so long
SLICE: Final = 0.005  # seconds of work after which others have their turn
STRIDE: Final = 8  # items that are judged in a row before the clock is looked at

log = logging.getLogger(__name__)

_STALE = Failure(INVALID_PARAMS, "Invalid cursor")
_Part = tuple[VisibleList, int, int]
"""What one server has in a page: of all that is shown of its list, from the first number up to the second."""


@dataclass(frozen=True, slots=True)
class Cursors:
    """Seals positions into cursors. `generations` are of the servers configured now: with others ahead of it, a
    cursor is stale."""

    seal: Seal
    unseal: Unseal
    generations: Callable[[], Generations]

    def close(self, call: Call, position: Position) -> str:
        return seal_cursor(
            position, principal=call.client.holder,
            method=call.method, generations=self.generations(), seal=self.seal,
        )  # fmt: skip

    def open(self, call: Call) -> Position | None:
        return open_cursor(
            call.params["cursor"], principal=call.client.holder,
            method=call.method, generations=self.generations(), unseal=self.unseal,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """Where the walk through one server's pages stands. `anchor` marks an earlier cursor: it moves on at every
    power of two, so that a circle of any length is met again at last (Brent's cycle detection)."""

    cursor: str | None = None
    pages: int = 0
    anchor: str = ""

    def after(self, cursor: str) -> "Trace | None":
        """Asks for the next page; None where its cursor leads nowhere."""
        pages = self.pages + 1
        mark = blake2b(cursor.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        if cursor == self.cursor or mark == self.anchor:
            return None
        if pages >= MAX_WALK:
            log.warning("a list of resources is cut", extra={"pages": pages})
            return None
        return Trace(cursor, pages, mark if pages & (pages - 1) == 0 else self.anchor)

    def pack(self) -> str:
        return dump([self.cursor, self.pages, self.anchor]).decode()

    @classmethod
    def unpack(cls, text: str | None) -> "Trace | None":
        if text is None:
            return cls()
        try:
            match decode_fast(text.encode()):
                case [str() | None as cursor, int() as pages, str() as anchor]:
                    return cls(cursor, pages, anchor)
        except Malformed:
            pass
        return None


@dataclass(slots=True)
class _Page:
    """A page of ours as it grows. `ttls` are those of the servers it was made from."""

    size: int
    items: list[Json] = field(default_factory=list)
    bytes: int = 0
    ttls: list[int] = field(default_factory=list)
    uris: set[str] = field(default_factory=set)
    _turn: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def is_full(self) -> bool:
        return len(self.items) >= self.size or self.bytes >= PAGE_BYTES

    async def yield_if_due(self) -> None:
        """Yields to other tasks when this page has used its time slice."""
        now = asyncio.get_running_loop().time()
        if now - self._turn > SLICE:
            await asyncio.sleep(0)
            self._turn = asyncio.get_running_loop().time()


class _Ahead:
    """First pages of the next servers, in flight together. Only asked for when the walk comes to a new server, so
    that a long list is not accompanied by the same questions to its neighbours on every page of ours."""

    def __init__(self, ask: Callable[[str], Coroutine[Any, Any, Outcome | None]], keys: list[str]) -> None:
        self._ask = ask
        self._keys = keys
        self._tasks: dict[str, asyncio.Task[Outcome | None]] = {}

    async def first(self, key: str) -> Outcome | None:
        at = self._keys.index(key)
        for near in self._keys[at : at + AHEAD]:
            if near not in self._tasks:
                self._tasks[near] = asyncio.create_task(self._ask(near))
        return await self._tasks.pop(key)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()


class CombinedLists:
    def __init__(
        self, servers: Mapping[str, McpServer], lists: CatalogCache, resolver: Resolver, cursors: Cursors,
        may_list: MayList, views: VisibleLists, search: ToolSearch, own_tools: Sequence[Json],
    ) -> None:  # fmt: skip
        """`own_tools` are listed in place of what a client finds by `search`."""
        self._servers = servers
        self._lists = lists
        self._resolver = resolver
        self._cursors = cursors
        self._may_list = may_list
        self._views, self._search, self._own_tools = views, search, tuple(own_tools)
        self._pages: Memo[tuple[tuple[_Part, ...], bool], SharedList] = Memo(MAX_SHARED)
        self._silent_until: dict[tuple[str, str], float] = {}

    # ------------------------------------------------------------ tools, prompts, templates

    async def held(self, call: Call) -> Outcome:
        start = self._start(call)
        if isinstance(start, Failure):
            return start
        list_page, parts, rest = _Page(self._lists.settings.page), list[_Part](), None
        sources = list[tuple[Entry, ...]]()
        room, left = list_page.size, PAGE_BYTES
        snapshots = await self._lists.all(call.client, "list")
        is_searched = call.method == LIST and await self._search.is_in_place_of_list(call, snapshots)
        for key, snapshot in self._from(snapshots, start.server):
            self._note_ttl(list_page, key, snapshot, call)
            if snapshot is None or not self._servers[key].shows(call.client):
                continue
            view = await self._views.view(call, key, snapshot, call.method, is_searched)
            begin = bisect_left(view.shown, start.offset) if key == start.server else 0
            entries = snapshot.entries(call.method)
            end, size = _fitting(view, entries, begin, min(begin + room, len(view.shown)), left)
            parts.append((view, begin, end))
            sources.append(entries)
            room, left = room - (end - begin), left - size
            if end < len(view.shown):
                rest = Position(key, None, view.shown[end])
                break
        has_own = is_searched and call.params.get("cursor") is None
        list_page.items = shared = self._shared(tuple(parts), sources, has_own)
        if not shared.has_form(call.client.revision):
            for item in shared:
                downgrade.prepare(call.method, item, REVISIONS[call.client.revision])
                await list_page.yield_if_due()
        return self._answer(call, list_page, rest)

    def _shared(self, parts: tuple[_Part, ...], sources: list[tuple[Entry, ...]], has_own: bool) -> SharedList:
        """Returns the items of these parts, behind our own tools: the same list object for the same parts. `sources`
        has what each of their servers lists."""
        shared = self._pages.get((parts, has_own))
        if shared is None:
            items = (
                entries[index].shown for (view, begin, end), entries in zip(parts, sources, strict=True)
                for index in view.shown[begin:end]
            )  # fmt: skip
            shared = SharedList(chain(self._own_tools if has_own else (), items))
            for key in [key for key in self._pages if any(view.of() is None for view, _, _ in key[0])]:
                del self._pages[key]  # of a list that its server has no more: nobody asks for it
            self._pages.keep((parts, has_own), shared)
        return shared

    def _from(self, snapshots: ServerSnapshots, server: str) -> ServerSnapshots:
        """Those from that server on, which this client may not see any more, maybe."""
        keys = list(self._servers)
        rest = frozenset(keys[keys.index(server) :] if server in keys else ())
        return [one for one in snapshots if one[0] in rest]

    def _note_ttl(self, list_page: _Page, key: str, snapshot: Snapshot | None, call: Call) -> None:
        """What a server that is away will list cannot be known, so the page is stale at once."""
        method, client = call.method, call.client
        if snapshot is None or self._servers[key].status != "up":
            list_page.ttls.append(0)
        elif snapshot.declares(LISTS[method].capability) and method in snapshot.listings:
            is_stored = self._lists.is_stored(key, client, KINDS[method])
            list_page.ttls.append(0 if is_stored else snapshot.listings[method].ttl_ms)

    # ------------------------------------------------------------ resources

    async def walked(self, call: Call) -> Outcome:
        start = self._start(call)
        trace = start if isinstance(start, Failure) else Trace.unpack(start.cursor) or _STALE
        if isinstance(start, Failure) or isinstance(trace, Failure):
            return _STALE
        list_page = _Page(self._lists.settings.page)
        snapshots = list(self._from(await self._lists.all(call.client, "list"), start.server))
        keys = [key for key, snapshot in snapshots if not self._is_skipped(call, key, snapshot)]
        started = await asyncio.gather(*(self._lists.has_started(key, call.client) for key in keys))
        keys = [key for key, has_started in zip(keys, started, strict=True) if has_started]
        for key, snapshot in snapshots:
            self._note_ttl(list_page, key, snapshot, call)
        ahead = _Ahead(lambda key: self._ask(call, key, Trace()), keys)
        try:
            for key in keys:
                here = (trace, start.offset) if key == start.server else (Trace(), 0)
                rest = await self._walked_part(call, key, *here, list_page, ahead)
                if isinstance(rest, Failure):
                    return rest
                if rest is not None:
                    return self._answer(call, list_page, rest)
        finally:
            ahead.close()
        return self._answer(call, list_page, None)

    def _is_skipped(self, call: Call, key: str, snapshot: Snapshot | None) -> bool:
        server = self._servers[key]
        if snapshot is None or server.status == "down" or not snapshot.declares("resources"):
            return True
        return self._silent_until.get((key, server.scope(call.client)), 0.0) > asyncio.get_running_loop().time()

    async def _walked_part(
        self, call: Call, key: str, trace: Trace, offset: int, list_page: _Page, ahead: _Ahead
    ) -> Position | Failure | None:
        """Fills the page from one server, as few of its pages as that takes. Returns where the next page of ours
        starts, None if that server has no more, a Failure if it does not know its own cursor any more."""
        late = asyncio.get_running_loop().time() + self._lists.settings.list_timeout / 2
        given = trace
        empty = 0
        for asked in range(1, MAX_HIDDEN + 1):
            is_new = trace.cursor is None and not offset
            outcome = await (ahead.first(key) if is_new else self._ask(call, key, trace))
            items = page_of(outcome, call.method)
            if items is None or not isinstance(outcome, Result):
                return _STALE if trace is given and _is_refused(outcome, trace) else None
            list_page.ttls.append(time_to_live(outcome.value))
            index = await self._take(call, key, items, offset, list_page)
            if index is not None:
                return Position(key, trace.pack(), index)
            offset = 0
            cursor = next_cursor(outcome.value)
            further = None if cursor is None else trace.after(cursor)
            empty = 0 if items else empty + 1
            if further is None or empty >= MAX_EMPTY:
                return None
            trace = further
            tired = asked >= MAX_PAGES or asyncio.get_running_loop().time() > late
            if list_page.is_full or (list_page.items and tired):
                return Position(key, trace.pack(), 0)
        return None

    async def _ask(self, call: Call, key: str, trace: Trace) -> Outcome | None:
        server = self._servers[key]
        params: Json = {} if trace.cursor is None else {"cursor": trace.cursor}
        asking = Call(call.client, call.method, params, call.meta, None, None, call.emit, call.trail)
        outcome = await ask(server, asking, self._lists.settings.list_timeout)
        if outcome is None:
            silent = asyncio.get_running_loop().time() + SILENCE
            self._silent_until = {**_ahead(self._silent_until), (key, server.scope(call.client)): silent}
        return outcome

    async def _take(self, call: Call, key: str, items: list[Any], offset: int, list_page: _Page) -> int | None:
        """Adds what the client may see; returns the index of the first item for which there is no room."""
        uris = self._lists.namings[key].uris
        for index in range(offset, len(items)):
            if index % STRIDE == 0:
                await list_page.yield_if_due()
            item = items[index]
            own = item.get("uri") if isinstance(item, dict) else None
            if not isinstance(own, str) or uris.is_of_another(own):
                continue
            if len(own) > LONG:
                await list_page.yield_if_due()
            public = uris.public(own)
            if public in list_page.uris or not self._may_list(call, key, Target(key, "res", own, public, item)):
                continue
            if list_page.is_full:
                return index
            list_page.uris.add(public)
            list_page.items.append(item if public == own else uri_fields.items(call.method, item, uris.public))
            list_page.bytes += size_of(item)
            if public == own:
                self._resolver.learn(call, key, own)
        return None

    # ------------------------------------------------------------ cursors

    def _start(self, call: Call) -> Position | Failure:
        """Without a cursor the first server; a cursor that is not ours, or no longer, is an error
        (2026-07-28 server/utilities/pagination)."""
        if call.params.get("cursor") is None:
            return Position(next(iter(self._servers), ""))
        position = self._cursors.open(call)
        return position if position is not None and position.server in self._servers else _STALE

    def _answer(self, call: Call, list_page: _Page, rest: Position | None) -> Result:
        more = {} if rest is None else {"nextCursor": self._cursors.close(call, rest)}
        ttl_ms = min(list_page.ttls, default=0)
        return Result({LISTS[call.method].key: list_page.items, **more, "ttlMs": ttl_ms, "cacheScope": "private"})


def _fitting(view: VisibleList, entries: Sequence[Entry], begin: int, end: int, most: int) -> tuple[int, int]:
    """Where that part of a list ends which has at most so many bytes, and how many it has."""
    if view.size <= most and end - begin == len(view.shown):
        return end, view.size
    size = 0
    for at in range(begin, end):
        if size + entries[view.shown[at]].size > most and (size or most < PAGE_BYTES):  # a page has one at least
            return at, size
        size += entries[view.shown[at]].size
    return end, size


def _is_refused(outcome: Outcome | None, trace: Trace) -> bool:
    return isinstance(outcome, Failure) and outcome.code == INVALID_PARAMS and trace.cursor is not None


def _ahead(times: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    now = asyncio.get_running_loop().time()
    return {key: time for key, time in times.items() if time > now}
