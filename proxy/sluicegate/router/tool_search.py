"""Finding tools among those that a client may see, and what is listed where it finds them so.

One index for all clients of equal rights: what is not in their list is not in it.
"""

import logging
import math
import re
from array import array
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from importlib import import_module
from itertools import islice
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from sluicegate.catalog.names import SEPARATOR
from sluicegate.catalog.snapshot import Entry
from sluicegate.catalog_cache import CatalogCache, ServerSnapshots
from sluicegate.policy.memo import Memo
from sluicegate.policy.toolsets import NO_SEARCH, Search
from sluicegate.protocol.jsonrpc import Json, dump, inside
from sluicegate.protocol.model import Call, Client, McpServer, Outcome, Result, Target
from sluicegate.router.visible_lists import VisibleList, VisibleLists
from sluicegate.runtime.loop_budget import client_budgets

MAX_QUERY: Final = 64  # words that are read of it
MAX_WORD: Final = 64  # characters
MAX_WORK: Final = 10_000  # places that are looked at for a query: 1 ms
MAX_TEXT: Final = 4_096  # characters of a description that are indexed
MAX_ARGUMENTS: Final = 100
WORD_STRIDE: Final = 16  # words that are indexed in a row: to find a stem takes up to 60 us
MANY: Final = 512  # definitions that are looked at in a row

# How much more a word in a name or title says of a tool than one in a description, and that than one of an argument.
_NAME, _TITLE, _DESCRIPTION, _ARGUMENT = 3.0, 2.0, 1.0, 0.5
# Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009): the usual values.
_K1: Final = 1.2
_B: Final = 0.75
_LENGTH: Final = 40.0  # of a usual definition, as weighed words
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD: Final = re.compile(r"[^\W_]+")
# Words that say nothing of what a tool does, and stand in nearly every description.
_EMPTY: Final = frozenset(
    "a about all an and any are as at be been by can could did do does for from had has have how i if in into is it "
    "its me my need of on or our please shall should so some than that the their them then there these they this those "
    "to up very want was we were what when where which who whom why will with would you your".split()
)


class ToolIndex:
    """Tools by the words of their definitions, ranked by BM25. It holds what one client may see and nothing else: how
    rare a word is counts, and must not tell of what is hidden. A tool that is replaced leaves its
    words behind until half of all are such; then the index is made anew."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, bytes], int] = {}
        self._entries: list[Entry | None] = []
        self._read = 0  # words
        self._found_in: dict[str, tuple[array[int], array[float]]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def update(self, entries: Iterable[Entry]) -> Generator[None, None, None]:
        """Has these from now on, and no others. Only what differs is indexed. Nobody uses the index between the steps.
        """
        wanted: dict[tuple[str, bytes], Entry] = {}
        for entry in entries:
            wanted[entry.target.server, entry.digest] = entry
            if len(wanted) % MANY == 0:
                yield
        gone = []
        for number, key in enumerate(self._places, 1):
            if key not in wanted:
                gone.append(key)
            if number % MANY == 0:
                yield
        if 2 * (len(gone) + len(self._entries) - len(self._places)) > len(self._entries):
            self.__init__()  # type: ignore[misc]  # anew
            gone = []
        for key in gone:
            self._entries[self._places.pop(key)] = None
        for number, (key, entry) in enumerate(wanted.items(), 1):
            if key not in self._places:
                yield from self._add(key, entry)
            if number % MANY == 0:
                yield

    def _add(self, key: tuple[str, bytes], entry: Entry) -> Generator[None, None, None]:
        counts: dict[str, float] = {}
        for weight, text_words in _texts(entry):
            for word in text_words:
                if stem := _stem(word):
                    counts[stem] = counts.get(stem, 0.0) + weight
                self._read += 1
                if self._read % WORD_STRIDE == 0:
                    yield
        position = self._places[key] = len(self._entries)
        self._entries.append(entry)
        longer = _K1 * (1 - _B + _B * sum(counts.values()) / _LENGTH)
        for word, count in counts.items():
            found = self._found_in.get(word)
            if found is None:
                found = self._found_in[word] = (array("L"), array("f"))
            found[0].append(position)
            found[1].append(count * (_K1 + 1) / (count + longer))

    def find(self, query: str, limit: int, server: str | None = None) -> tuple[list[Entry], int]:
        """The best `limit` tools for a query in words, of that server alone if one is named, and how many match. All
        match a query without words, in their order."""
        asked = dict.fromkeys(words(query, MAX_QUERY))
        if not asked:
            left = [entry for entry in self._entries if entry is not None and server in (None, entry.target.server)]
            return left[:limit], len(left)
        scores: dict[int, float] = {}
        for places, weights in self._rarest(asked):
            rare = math.log(1 + (len(self._entries) - len(places) + 0.5) / (len(places) + 0.5))
            for position, weight in islice(zip(places, weights, strict=True), MAX_WORK):
                scores[position] = scores.get(position, 0.0) + rare * weight
        if server is not None or len(self._entries) > len(self._places):
            entries = self._entries
            scores = {
                position: score for position, score in scores.items()
                if (entry := entries[position]) is not None and server in (None, entry.target.server)
            }  # fmt: skip
        best = nlargest(limit, scores, key=scores.__getitem__)
        return [entry for position in best if (entry := self._entries[position]) is not None], len(scores)

    def _rarest(self, asked: Iterable[str]) -> "Iterator[tuple[array[int], array[float]]]":
        """Where the words stand, the rarest first, as far as there is time: the most frequent ones say least."""
        found = sorted((self._found_in[word] for word in asked if word in self._found_in), key=lambda one: len(one[0]))
        room = MAX_WORK
        for number, one in enumerate(found):
            room -= len(one[0])
            if number and room < 0:
                return
            yield one


def words(text: str, most: int) -> list[str]:
    """The stems of a text's first words that say something: of `createPullRequests`, create, pull, request.
    What is behind so many words of the greatest length is not looked at."""
    return [stem for stem in map(_stem, _split(text[: most * MAX_WORD])[:most]) if stem]


def _split(text: str) -> list[str]:
    spread = text if text.islower() else _HUMP.sub(" ", text).lower()
    return [word[:MAX_WORD] for word in _WORD.findall(spread)]


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    if word in _EMPTY:
        return ""
    return str(_stemmer().stemWord(word)) if word.isalpha() and len(word) > 2 else word


def prepare() -> None:
    """Loads what finds stems: for a thread, because it takes a tenth of a second. Few Sluices ever need it."""
    _stemmer()


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    return import_module("snowballstemmer").stemmer("english")


@lru_cache(maxsize=10_000)
def _of_argument(name: str) -> list[str]:
    """Many tools have arguments of the same names."""
    return _split(name)


def _texts(entry: Entry) -> Iterator[tuple[float, list[str]]]:
    """The words of a definition, by where they stand and how much that counts."""
    shown = entry.shown
    yield _NAME, _split(shown["name"])
    for title in (shown.get("title"), inside(shown, "annotations", "title")):
        if isinstance(title, str):
            yield _TITLE, _split(title[:MAX_TEXT])
    description = shown.get("description")
    if isinstance(description, str):
        yield _DESCRIPTION, _split(description[:MAX_TEXT])
    properties = inside(shown, "inputSchema", "properties")
    for name in islice(properties, MAX_ARGUMENTS) if isinstance(properties, dict) else ():
        yield _ARGUMENT, _of_argument(name[:MAX_WORD])


MAX_INDEXES: Final = 16
MAX_LISTS: Final = 2_000
MAX_ANSWER: Final = 128 * 1024
"""Bytes of definitions in an answer; the first one is there in any case."""
BYTES_PER_TOKEN: Final = 4
LIST: Final = "tools/list"
STRIDE: Final = 256  # rows that are made in a row

SearchOf = Callable[[Client], Search]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchDeps:
    """`search_of` says whether and when a client searches, `is_pinned` what is listed all the same; `tools` are those
    by which it does."""

    search_of: SearchOf
    is_pinned: Callable[[Client, Target], bool]
    tools: tuple[Json, ...]


WITHOUT: Final = SearchDeps(lambda client: NO_SEARCH, lambda client, target: False, ())


_Seen = tuple[VisibleList, tuple[Entry, ...]]
"""What is shown of a server's tools, and all of them."""


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
        self._cached: Memo[Hashable, _KeptIndex] = Memo(MAX_INDEXES)

    async def is_in_place_of_list(self, call: Call, snapshots: ServerSnapshots) -> bool:
        """Whether the client's list has pinned tools alone. Notes how many tokens it has."""
        search, is_first = self._search_of(call.client), call.params.get("cursor") is None
        if search.mode == "off" and not is_first:
            return False
        views = await self._visible(call, snapshots)
        size = sum(view.size for view, _ in views)
        is_searched = search.mode == "on" or (search.mode == "auto" and size > search.budget * BYTES_PER_TOKEN)
        if is_searched:
            pinned = await self._visible(call, snapshots, only_pinned=True)
            size = self._own_size + sum(view.size for view, _ in pinned)
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
        search, views = self._search_of(call.client), await self._visible(call, snapshots)
        is_searched = await self.is_in_place_of_list(call, snapshots)
        rows: list[Json] = []
        for entry in _entries(views):
            tokens = entry.size // BYTES_PER_TOKEN
            rows.append({"name": entry.target.public, "server": entry.target.server, "tokens": tokens})
            if len(rows) % STRIDE == 0:
                await checkpoint()
        return {
            "list": self.tokens[call.client.principal, call.client.toolset], "is_searched": is_searched,
            "all": sum(view.size for view, _ in views) // BYTES_PER_TOKEN, "budget": search.budget,
            "search": search.mode, "tools": sorted(rows, key=lambda row: -int(row["tokens"])),
        }  # fmt: skip

    async def find(self, call: Call, query: str, limit: int, server: str | None) -> Outcome:
        """The answer to a `find_tools`: JSON with whole definitions, the best first."""
        views = await self._visible(call, await self._lists.all(call.client))
        key, of = self._permission_key(call), tuple((view.server, view.number) for view, _ in views)
        cached = self._cached.get(key) if key is not None else None
        if cached is None:
            cached = _KeptIndex()
            if key is not None:
                self._cached.keep(key, cached)
        elif key is not None:
            self._cached.move_to_end(key)
        own = self._own(server) if server is not None else None

        def work() -> Generator[None, None, tuple[list[Entry], int]]:
            if cached.of != of:
                cached.of = None  # until it is whole
                yield from cached.index.update(_entries(views))
                cached.of = of
                yield
            return cached.index.find(query, limit, own)

        if not self._is_prepared:
            await anyio.to_thread.run_sync(prepare)
            self._is_prepared = True
        budget = client_budgets()[call.client.principal]
        async with budget.turn:
            await budget.rest()  # before the others' turn at the index
            async with cached.turn:
                found, matching = await budget.in_pieces(work())
        shown = [*_within(found)]
        answer: Json = {"tools": [entry.shown for entry in shown], "matching": matching}
        if not shown:
            answer["servers"] = [self._lists.settings.prefixes[view.server] for view, _ in views if view.shown]
        return Result({"content": [{"type": "text", "text": dump(answer).decode()}]})

    def _own(self, prefix: str) -> str:
        """The server whose tools begin with that, or its key."""
        prefix = prefix.removesuffix(SEPARATOR)
        return next((key for key, one in self._lists.settings.prefixes.items() if one == prefix), prefix)

    async def _visible(
        self, call: Call, snapshots: ServerSnapshots, only_pinned: bool = False
    ) -> list[_Seen]:
        return [
            (await self._views.view(call, key, snapshot, LIST, only_pinned), snapshot.entries(LIST))
            for key, snapshot in snapshots
            if snapshot is not None and self._servers[key].shows(call.client)
        ]  # fmt: skip


def _entries(views: Iterable[_Seen]) -> Iterable[Entry]:
    for view, entries in views:
        yield from (entries[index] for index in view.shown)


def _within(found: Iterable[Entry]) -> Iterable[Entry]:
    room = MAX_ANSWER
    for number, entry in enumerate(found):
        room -= entry.size
        if number and room < 0:
            return
        yield entry
