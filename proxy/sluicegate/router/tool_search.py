"""Finding tools among those that a client may see, and what is listed where it finds them so.

One index for all clients of equal rights: what is not in their list is not in it.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from sluicegate.catalog.names import SEPARATOR
from sluicegate.catalog.snapshot import Entry
from sluicegate.catalog_cache import CatalogCache
from sluicegate.policy.memo import Memo
from sluicegate.policy.toolsets import Search
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.protocol.model import Call, Client, McpServer, Outcome, Result, Target
from sluicegate.router.tool_index import ToolIndex
from sluicegate.router.visible_lists import VisibleList, VisibleLists
from sluicegate.runtime.loop_budget import client_budgets

MAX_INDEXES: Final = 16
MAX_ANSWER: Final = 128 * 1024
"""Bytes of definitions in an answer; the first one is there in any case."""
BYTES_PER_TOKEN: Final = 4
LIST: Final = "tools/list"

SearchOf = Callable[[Client], Search | None]


@dataclass(frozen=True, slots=True)
class SearchDeps:
    """`search_of` says whether and when a client searches, `is_pinned` what is listed all the same; `tools` are those
    by which it does."""

    search_of: SearchOf
    is_pinned: Callable[[Client, Target], bool]
    tools: tuple[Json, ...]


NO_SEARCH: Final = SearchDeps(lambda client: None, lambda client, target: False, ())


class _KeptIndex:
    """`of` are the numbers of the lists that it was made of."""

    def __init__(self) -> None:
        self.index = ToolIndex()
        self.of: Hashable = None
        self.turn = anyio.Lock()


class ToolSearch:
    def __init__(
        self, servers: Mapping[str, McpServer], lists: CatalogCache, views: VisibleLists, search_of: SearchOf,
        permission_key: Callable[[Call], Hashable | None],
    ) -> None:  # fmt: skip
        self._servers, self._lists, self._views = servers, lists, views
        self._search_of, self._permission_key = search_of, permission_key
        self._kept: Memo[Hashable, _KeptIndex] = Memo(MAX_INDEXES)

    async def is_in_place_of_list(self, call: Call) -> bool:
        """Whether the client's list has pinned tools alone."""
        search = self._search_of(call.client)
        if search is None or not search.is_auto:
            return search is not None
        return sum(view.size for view in await self._visible(call)) > search.budget * BYTES_PER_TOKEN

    async def find(self, call: Call, query: str, limit: int, server: str | None) -> Outcome:
        """The answer to a `find_tools`: JSON with whole definitions, the best first."""
        views = await self._visible(call)
        key, of = self._permission_key(call), tuple((view.snapshot.server, view.number) for view in views)
        kept = self._kept.get(key) if key is not None else None
        if kept is None:
            kept = _KeptIndex()
            if key is not None:
                self._kept.keep(key, kept)
        own = self._own(server) if server is not None else None

        def work() -> Generator[None, None, tuple[list[Entry], int]]:
            if kept.of != of:
                kept.of = None  # until it is whole
                yield from kept.index.update(_entries(views))
                kept.of = of
            return kept.index.find(query, limit, own)

        async with kept.turn:
            found, matching = await client_budgets()[call.client.principal].large(work())
        shown = [*_within(found)]
        answer: Json = {"tools": [entry.shown for entry in shown], "matching": matching}
        if not shown:
            answer["servers"] = [self._lists.settings.prefixes[view.snapshot.server] for view in views if view.shown]
        return Result({"content": [{"type": "text", "text": dump(answer).decode()}]})

    def _own(self, prefix: str) -> str:
        """The server whose tools begin with that, or its key."""
        prefix = prefix.removesuffix(SEPARATOR)
        return next((key for key, one in self._lists.settings.prefixes.items() if one == prefix), prefix)

    async def _visible(self, call: Call) -> list[VisibleList]:
        return [
            await self._views.view(call, key, snapshot, LIST, checkpoint)
            for key, snapshot in await self._lists.all(call.client)
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
