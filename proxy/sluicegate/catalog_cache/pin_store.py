"""Books of pins: where they stand in the store, how they are read, written and merged, and with which one a server
begins.

A book belongs to a server's key, identity and era. A server that has none of its own, while others under its key have,
begins with theirs, and nothing in them is a first use. Books that were kept before servers had an identity belong to
the first server that finds them. They are read in pieces, for others may have written 16 MiB. What they say, and when
one changes, `policy.pins` knows.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

import anyio

from sluicegate.catalog.list_bounds import PIECE
from sluicegate.policy import pins
from sluicegate.policy.pins import Key, Mode, Pin, PinBook, Waiting
from sluicegate.protocol.jsonrpc import decode_fast
from sluicegate.protocol.model import Era
from sluicegate.runtime.loop_budget import LoopBudget, budget_of
from sluicegate.store import TRIES, Store, StoreFailed, Write, overtaken
from sluicegate.store.watch import Watch

T = TypeVar("T")
Args = TypeVarTuple("Args")

log = logging.getLogger(__name__)

ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")
LARGE: Final = 100  # definitions; comparing more for the first time takes longer than others should wait
LARGE_BYTES: Final = 64 * 1024  # of them: 256 KiB of small values take 20 ms
MAX_FORMER: Final = 8  # identities under one key of which books are kept; of more, the oldest are forgotten
PINS: Final = "pins/"
WAITING: Final = "pins-waiting/"
REVISION: Final = "pins-revision"  # of all books: whoever writes one changes it, if it is what they have read
POLL: Final = 2.0
_EMPTY: Final = dict.fromkeys(ERAS, PinBook())
# Where a row ends and the next one begins. It stands in no text: a quote in a text is escaped, or ends it.
_BETWEEN: Final = re.compile(rb'\],(?<=[\]e]\],)(?=\["(?:' + "|".join(pins.KINDS).encode() + rb')",)')
Marks = dict[str, bytes]
"""Digests of the stored values of one server, by key; empty where the value is."""


class Pinned(NamedTuple):
    """A server whose definitions are pinned: how, who it is, and which names the operator gave them for clients."""

    mode: Mode
    identity: str
    shown: Mapping[Key, str] = MappingProxyType({})


class Stored(NamedTuple):
    """The books of a server. `forget` is None if they are kept; else the places of books that need not be kept any
    longer once these are."""

    books: dict[Era, PinBook]
    forget: list[str] | None = None


def book_key(server: str, identity: str, era: Era) -> str:
    return f"{server}/{identity}/{era}"


async def entries(store: Store) -> dict[str, bytes]:
    """What is kept of all servers, in two requests: one for each book would take longer than all else of a start."""
    return await store.scan(PINS) | await store.scan(WAITING)


async def marks(stored: Mapping[str, bytes]) -> dict[str, Marks]:
    """The digests for each server that has values in `stored`."""
    return await apart(len(stored), sum(map(len, stored.values())), _marks, stored)


def _marks(stored: Mapping[str, bytes]) -> dict[str, Marks]:
    found = dict[str, Marks]()
    for key, data in stored.items():
        found.setdefault(key.split("/")[1], {})[key] = sha256(data).digest() if data else b""
    return found


def read(stored: Mapping[str, bytes], server: str, identity: str, now: str) -> Generator[None, None, Stored]:
    own = yield from _books(stored, f"{server}/{identity}")
    if not own:
        inside = f"{PINS}{server}/"
        found = [key.split("/")[2:] for key in stored if key.startswith(inside)]
        if found:
            return (yield from _begin(stored, server, {other for other, *era in found if era}, now))
    return Stored(_EMPTY | own)


def _begin(
    stored: Mapping[str, bytes], server: str, others: Collection[str], now: str
) -> Generator[None, None, Stored]:
    """`others` are the identities of which books are kept."""
    unnamed = _EMPTY | (yield from _books(stored, server))
    if not others:
        return Stored(unnamed, [])
    former, last = dict[str, dict[Era, PinBook]](), dict[str, str]()
    for other in others:
        former[other] = _EMPTY | (yield from _books(stored, f"{server}/{other}"))
        last[other] = max(book.last_at for book in former[other].values())
        yield
    newest = sorted(others, key=last.__getitem__, reverse=True)
    books = dict[Era, PinBook]()
    for era in ERAS:
        books[era] = yield from pins.succeed([unnamed[era], *(former[other][era] for other in newest)], now)
    return Stored(books, [book_key(server, other, era) for other in newest[MAX_FORMER:] for era in ERAS])


def _books(stored: Mapping[str, bytes], book_path: str) -> Generator[None, None, dict[Era, PinBook]]:
    """Those that are kept there."""
    books = dict[Era, PinBook]()
    for era in ERAS:
        accepted, waiting = (stored.get(f"{prefix}{book_path}/{era}") for prefix in (PINS, WAITING))
        if accepted is None and waiting is None:
            continue
        try:
            first = yield from _decoded(accepted or b"", "pins")
            second = yield from _decoded(waiting or b'{"waiting":[]}', "waiting")
            books[era] = yield from pins.from_json(first, second)
        except (TypeError, ValueError) as error:
            about = {"book": f"{book_path}/{era}", "error": str(error)}
            log.error("pins cannot be read: nothing counts as accepted", extra=about)
            books[era] = pins.SHUT
        yield
    return books


def _decoded(data: bytes, name: str) -> Generator[None, None, Any]:
    """The JSON of a book, with its rows under that name. Raises `Malformed`, and `TypeError` where it has none."""
    head, rows = b'{"%b":[' % name.encode(), list[Any]()
    if not data.startswith(head):
        return decode_fast(data)
    start = len(head)
    while (between := _BETWEEN.search(data, start + PIECE)) is not None:
        rows += decode_fast(b"[%b]" % data[start : between.start() + 1])
        start = between.end()
        yield
    value = decode_fast(head + data[start:])
    value[name][:0] = rows
    return value


def merged(ours: PinBook, stored: PinBook) -> Generator[None, None, PinBook]:
    """What was accepted elsewhere, with what waits here: a name that nobody touched there waits on. Equal pins are the
    same objects: whoever compares the books does not compare texts."""
    same, waiting = dict[Key, Pin](), dict(stored.waiting)
    for number, (key, pin) in enumerate(stored.pins.items(), 1):
        old = ours.pins.get(key)
        same[key] = old if old is not None and old == pin else pin
        if number % pins.ROWS == 0:
            yield
    for number, (key, held) in enumerate(ours.waiting.items(), 1):
        if _accepted(ours, key) == _accepted(stored, key):
            waiting[key] = held
        if number % pins.ROWS == 0:
            yield
    return replace(stored, pins=same, waiting=waiting, closed=stored.closed | ours.closed)


def _accepted(book: PinBook, key: Key) -> tuple[str, str, str] | None:
    pin = book.pins.get(key)
    return None if pin is None else (pin.fingerprint, pin.by, pin.at)


async def write_pins(book_key: str, book: PinBook) -> Write:
    return Write(PINS + book_key, await apart(len(book.pins), _size(book.pins), pins.pins_to_json, book))


async def write_waiting(book_key: str, book: PinBook) -> Write:
    return Write(WAITING + book_key, await apart(len(book.waiting), _size(book.waiting), pins.waiting_to_json, book))


def _size(held: Mapping[Key, Pin | Waiting]) -> int:
    return sum(len(one.text) for one in held.values())


def deletes(book_key: str) -> list[Write]:
    return [Write(prefix + book_key) for prefix in (PINS, WAITING)]


async def apart(count: int, size: int, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """In a worker thread where there are many definitions, or many bytes of them, so that others do not wait for it."""
    is_much = count > LARGE or size > LARGE_BYTES
    return await anyio.to_thread.run_sync(function, *args) if is_much else function(*args)


class PinBooks:
    """The books of all servers that are pinned, by server and era, and the store that they are read from and written
    to. A book is read, thought over and written by one task at a time; other processes may write the same store."""

    def __init__(
        self, servers: Mapping[str, Pinned], store: Store, now: Callable[[], str], watch: Watch | None = None
    ) -> None:
        self.modes = {server: pinned.mode for server, pinned in servers.items() if pinned.mode != "off"}
        self._identities = {server: pinned.identity for server, pinned in servers.items()}
        self._store, self._watch, self._now = store, watch or Watch(), now
        self.held = {(server, era): PinBook() for server in self.modes for era in ERAS}
        self.unsaved: dict[str, list[str]] = {}  # servers whose books the store has not yet: what to forget once it has
        self._revision: bytes | None = None
        self._digests: dict[str, Marks] = {}  # of the store's values that these books contain
        self._unwritten: set[tuple[str, Era]] = set()
        self._lock = asyncio.Lock()
        self._attempts: set[asyncio.Task[Any]] = set()
        self._on_moved: list[Callable[[str], Generator[None, None, None] | None]] = []

    def on_moved(self, listener: Callable[[str], Generator[None, None, None] | None]) -> None:
        """`listener` is called with a server of which other definitions are served from now on, in the step in which
        they are. What takes long it returns. That is done in the order of the listeners, and whoever writes waits."""
        self._on_moved.append(listener)

    def both(self, server: str, era: Era = "legacy") -> tuple[PinBook, PinBook]:
        return self.held[server, era], self.held[server, "modern" if era == "legacy" else "legacy"]

    @asynccontextmanager
    async def configure(self, servers: Mapping[str, Pinned]) -> AsyncIterator[Callable[[], None]]:
        """Reads the books of servers that are new or other than before. What is given puts them in force; until the
        block ends nobody writes, so that nothing of a server is recorded for the one that takes its place."""
        identities = {server: pinned.identity for server, pinned in servers.items()}
        modes = {server: pinned.mode for server, pinned in servers.items() if pinned.mode != "off"}
        async with self._lock:
            both = self.modes.keys() & modes.keys()
            is_same = {server for server in both if self._identities[server] == identities[server]}
            new, digests = dict[str, Stored](), dict[str, Marks]()
            if modes.keys() - is_same:
                values = await entries(self._store)
                digests = await marks(values)
                for server in modes.keys() - is_same:
                    work = read(values, server, identities[server], self._now())
                    new[server] = await budget_of(server).in_pieces(work)

            def put() -> None:
                self.modes, self._identities = modes, identities
                self.held = {owner: book for owner, book in self.held.items() if owner[0] in is_same}
                self.unsaved = {server: forget for server, forget in self.unsaved.items() if server in is_same}
                self._unwritten = {owner for owner in self._unwritten if owner[0] in is_same}
                self._digests = {server: held for server, held in self._digests.items() if server in is_same}
                for server, stored in new.items():
                    self._digests[server] = digests.get(server, {})
                    self.held |= {(server, era): book for era, book in stored.books.items()}
                    if stored.forget is not None:
                        self.unsaved[server] = stored.forget

            yield put

    async def watch(self) -> None:
        """What another process on the same store accepted is in force here soon after, and what waits here is known
        there."""
        seen = None
        while True:
            await self._watch.turn(POLL)
            mark = self._watch.mark(REVISION)
            with suppress(StoreFailed):  # which the store says by itself
                await self.flush()
                if mark is None or mark != seen:
                    await self.refresh()
                    seen = mark

    async def flush(self) -> None:
        """Writes down what waiting definitions became; a server that changes all the time costs no more than this."""

        async def attempt() -> bool | None:
            owners = tuple(self._unwritten)
            found = [await write_waiting(self._store_key(*owner), self.held[owner]) for owner in owners]
            if found and not await self._swap(found):
                return None
            self._unwritten.difference_update(owners)
            return True

        await self.try_to("*", attempt)

    async def refresh(self) -> None:
        if await self._store.get(REVISION) != self._revision:
            async with self._lock:
                await self.load()

    async def load(self) -> None:
        revision = await self._store.get(REVISION)
        values = await entries(self._store)
        digests = await marks(values)
        budget = LoopBudget()  # no server pays for what another one made necessary
        for server in self.modes:
            if self._digests.get(server) == digests.get(server, {}):  # these books contain all of it, and may have more
                continue
            stored = await budget.in_pieces(read(values, server, self._identities[server], self._now()))
            merging = [(era, merged(self.held[server, era], book)) for era, book in stored.books.items()]
            books = [(era, await budget.in_pieces(work)) for era, work in merging]
            self.unsaved.pop(server, None)
            if stored.forget is not None:
                self.unsaved[server] = stored.forget
            await self._set(server, dict(books))
            self._digests[server] = digests.get(server, {})
        self._revision = revision  # last: whoever is cancelled before has not read all of it

    async def try_to(
        self, server: str, attempt: Callable[[], Awaitable[T | None]],
        then: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:  # fmt: skip
        """Repeats `attempt` until it returns a value: None means that another process has written meanwhile. Other
        tasks take the lock between two attempts, and before `then`, which tells what was done. An attempt that has the
        lock, and `then`, go on when their caller is cancelled. Raises `StoreFailed` after `TRIES`."""
        for _ in range(TRIES):
            async with AsyncExitStack() as held:
                await held.enter_async_context(self._lock)
                work = _attempted(held.pop_all(), attempt, then)
                working = asyncio.create_task(work)
                self._attempts.add(working)
                working.add_done_callback(self._attempts.discard)
            if (made := await asyncio.shield(working)) is not None:
                return made
        log.error("pins cannot be written: other processes write all the time", extra={"server": server})
        raise overtaken("the pins")

    async def aclose(self) -> None:
        """Waits for what goes on without its caller, and writes down the rest."""
        if self._attempts:
            await asyncio.wait(self._attempts)
        await self.flush()

    async def write(self, server: str, books: Mapping[Era, PinBook]) -> bool:
        """All or nothing; False if another process has written meanwhile: what it wrote is known then, and has to be
        thought over. What a definition that waits already became is written later: its name waits in any case."""
        forget = self.unsaved.get(server)
        if forget is not None:
            books = {era: self.held[server, era] for era in ERAS} | dict(books)
        new = {
            (server, era): book for era, book in books.items()
            if forget is not None or book is not self.held[server, era]
        }  # fmt: skip
        writes, later = list[Write](), set[tuple[str, Era]]()
        for owner, book in new.items():
            old = self.held[owner]
            if forget is not None or book.pins is not old.pins or book.closed != old.closed:
                writes.append(await write_pins(self._store_key(*owner), book))
            if forget is not None or book.waiting.keys() != old.waiting.keys():
                writes.append(await write_waiting(self._store_key(*owner), book))
            elif book.waiting != old.waiting:
                later.add(owner)
        writes += [write for owner in forget or () for write in deletes(owner)]
        if writes and not await self._swap(writes):
            return False
        self.unsaved.pop(server, None)
        self._unwritten |= later
        await self._set(server, {era: book for (_, era), book in new.items()})
        return True

    async def _swap(self, writes: list[Write]) -> bool:
        revision = secrets.token_bytes(16)
        digests = await marks({write.key: write.value or b"" for write in writes})
        if not await self._store.swap(REVISION, self._revision, [*writes, Write(REVISION, revision)]):
            await self.load()
            return False
        self._revision = revision
        for server, written in digests.items():
            held = self._digests.get(server, {}) | written
            self._digests[server] = {key: mark for key, mark in held.items() if mark}
        return True

    def _store_key(self, server: str, era: Era) -> str:
        return book_key(server, self._identities[server], era)

    async def _set(self, server: str, books: Mapping[Era, PinBook]) -> None:
        old = {era: self.held[server, era] for era in books}
        self.held |= {(server, era): book for era, book in books.items()}
        if any(_is_moved(old[era], book) for era, book in books.items()):
            work = self._moved(server)
            try:
                await budget_of(server).in_pieces(work)
            finally:
                for _ in work:  # what is in force is served, also if whoever brought it is cancelled
                    pass

    def _moved(self, server: str) -> Generator[None, None, None]:
        for work in [listener(server) for listener in self._on_moved]:
            yield from work or ()


async def _attempted(
    held: AsyncExitStack, attempt: Callable[[], Awaitable[T | None]], then: Callable[[T], Awaitable[object]] | None
) -> T | None:
    async with held:
        made = await attempt()
    if made is not None and then is not None:
        await then(made)
    return made


def _is_moved(old: PinBook, new: PinBook) -> bool:
    return new.pins != old.pins or new.waiting.keys() != old.waiting.keys()
