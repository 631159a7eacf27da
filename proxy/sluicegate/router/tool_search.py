"""Finding tools among those that a client may see, and what is listed where it finds them so.

One index for all clients of equal rights: what is not in their list is not in it.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from sluicegate.catalog.names import SEPARATOR
from sluicegate.catalog.snapshot import Entry
from sluicegate.catalog_cache import CatalogCache, ServerSnapshots
from sluicegate.policy.memo import Memo
from sluicegate.policy.toolsets import NO_SEARCH, Search
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.protocol.model import Call, Client, McpServer, Outcome, Result, Target
from sluicegate.router.tool_index import ToolIndex, prepare
from sluicegate.router.visible_lists import VisibleList, VisibleLists
from sluicegate.runtime.loop_budget import client_budgets

MAX_INDEXES: Final = 16
MAX_LISTS: Final = 2_000
MAX_ANSWER: Final = 128 * 1024
"""Bytes of definitions in an answer; the first one is there in any case."""
BYTES_PER_TOKEN: Final = 4
LIST: Final = "tools/list"
STRIDE: Final = 256  # rows that are made in a row

SearchOf = Callable[[Client], Search]
Breathe = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchDeps:
    """`search_of` says whether and when a client searches, `is_pinned` what is listed all the same; `tools` are those
    by which it does."""

    search_of: SearchOf
    is_pinned: Callable[[Client, Target], bool]
    tools: tuple[Json, ...]


WITHOUT: Final = SearchDeps(lambda client: NO_SEARCH, lambda client, target: False, ())


class _KeptIndex:
    """`of` are the numbers of the lists that it was made of."""

    def __init__(self) -> None:
        self.index = ToolIndex()
        self.of: Hashable = None
        self.turn = anyio.Lock()


class ToolSearch:
    def __init__(
        self, servers: Mapping[str, McpServer], lists: CatalogCache, views: VisibleLists, deps: SearchDeps,
        permission_key: Callable[[Call], Hashable | None],
    ) -> None:  # fmt: skip
        self._servers, self._lists, self._views = servers, lists, views
        self._search_of, self._permission_key = deps.search_of, permission_key
        self._is_prepared = False
        self._own_size = sum(len(dump(tool)) for tool in deps.tools)
        self.tokens: Memo[tuple[str, str], int] = Memo(MAX_LISTS)
        """Of the last list of each principal in each toolset."""
        self._kept: Memo[Hashable, _KeptIndex] = Memo(MAX_INDEXES)

    async def is_in_place_of_list(self, call: Call, snapshots: ServerSnapshots, breathe: Breathe) -> bool:
        """Whether the client's list has pinned tools alone. Notes how many tokens it has."""
        search, is_first = self._search_of(call.client), call.params.get("cursor") is None
        if search.mode == "off" and not is_first:
            return False
        views = await self._visible(call, snapshots, breathe)
        size = sum(view.size for view in views)
        is_searched = search.mode == "on" or (search.mode == "auto" and size > search.budget * BYTES_PER_TOKEN)
        if is_searched:
            pinned = await self._visible(call, snapshots, breathe, only_pinned=True)
            size = self._own_size + sum(view.size for view in pinned)
        if is_first:
            self._note(call.client, size // BYTES_PER_TOKEN, search.budget)
        return is_searched

    def _note(self, client: Client, tokens: int, budget: int) -> None:
        whose = client.principal, client.toolset
        before = self.tokens.get(whose, 0)
        self.tokens.keep(whose, tokens)
        if before <= budget < tokens:
            about = {"client": client.principal, "toolset": client.toolset, "tokens": tokens, "budget": budget}
            log.warning("a list of tools is over its budget: see toolsets and search", extra=about)

    async def cost(self, call: Call, snapshots: ServerSnapshots) -> Json:
        """About how many tokens the client's list has, and all tools that it may call, the largest first."""
        search, views = self._search_of(call.client), await self._visible(call, snapshots, checkpoint)
        is_searched = await self.is_in_place_of_list(call, snapshots, checkpoint)
        rows: list[Json] = []
        for entry in _entries(views):
            tokens = entry.size // BYTES_PER_TOKEN
            rows.append({"name": entry.target.public, "server": entry.target.server, "tokens": tokens})
            if len(rows) % STRIDE == 0:
                await checkpoint()
        return {
            "list": self.tokens[call.client.principal, call.client.toolset], "is_searched": is_searched,
            "all": sum(view.size for view in views) // BYTES_PER_TOKEN, "budget": search.budget, "search": search.mode,
            "tools": sorted(rows, key=lambda row: -int(row["tokens"])),
        }  # fmt: skip

    async def find(self, call: Call, query: str, limit: int, server: str | None) -> Outcome:
        """The answer to a `find_tools`: JSON with whole definitions, the best first."""
        views = await self._visible(call, await self._lists.all(call.client), checkpoint)
        key, of = self._permission_key(call), tuple((view.snapshot.server, view.number) for view in views)
        kept = self._kept.get(key) if key is not None else None
        if kept is None:
            kept = _KeptIndex()
            if key is not None:
                self._kept.keep(key, kept)
        elif key is not None:
            self._kept.move_to_end(key)
        own = self._own(server) if server is not None else None

        def work() -> Generator[None, None, tuple[list[Entry], int]]:
            if kept.of != of:
                kept.of = None  # until it is whole
                yield from kept.index.update(_entries(views))
                kept.of = of
                yield
            return kept.index.find(query, limit, own)

        if not self._is_prepared:
            await anyio.to_thread.run_sync(prepare)
            self._is_prepared = True
        budget = client_budgets()[call.client.principal]
        async with budget.turn:
            await budget.rest()  # before the others' turn at the index
            async with kept.turn:
                found, matching = await budget.in_pieces(work())
        shown = [*_within(found)]
        answer: Json = {"tools": [entry.shown for entry in shown], "matching": matching}
        if not shown:
            answer["servers"] = [self._lists.settings.prefixes[view.snapshot.server] for view in views if view.shown]
        return Result({"content": [{"type": "text", "text": dump(answer).decode()}]})

    def _own(self, prefix: str) -> str:
        """The server whose tools begin with that, or its key."""
        prefix = prefix.removesuffix(SEPARATOR)
        return next((key for key, one in self._lists.settings.prefixes.items() if one == prefix), prefix)

    async def _visible(
        self, call: Call, snapshots: ServerSnapshots, breathe: Breathe, only_pinned: bool = False
    ) -> list[VisibleList]:
        return [
            await self._views.view(call, key, snapshot, LIST, breathe, only_pinned)
            for key, snapshot in snapshots
            if snapshot is not None and self._servers[key].shows(call.client)
        ]  # fmt: skip


def _entries(views: Iterable[VisibleList]) -> Iterable[Entry]:
    for view in views:
        entries = view.snapshot.entries(LIST)
        yield from (entries[index] for index in view.shown)


def _within(found: Iterable[Entry]) -> Iterable[Entry]:
    room = MAX_ANSWER
    for number, entry in enumerate(found):
        room -= entry.size
        if number and room < 0:
            return
        yield entry
