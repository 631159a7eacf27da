"""Every server's book of pins: kept in the store, written when a list says something new, read by whoever serves.

Knows modes, books and the store; whether a definition is served is decided by `policy.pins`, and what a withheld one
looks like by nobody: it is left out of the snapshot. Fails closed: what cannot be written down is not served, and a
book that cannot be read counts as one in which nothing was accepted.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar

import anyio

from sluicegate.catalog.snapshot import Snapshot, without
from sluicegate.catalog_cache import pin_store
from sluicegate.catalog_cache.pin_store import ERAS
from sluicegate.policy import pins
from sluicegate.policy.hidden_text import flags_in, flags_in_pieces
from sluicegate.policy.pins import DefinitionChange, Found, Key, Mode, PinBook, PinKind, Wanted
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Era, Target
from sluicegate.runtime.loop_budget import LoopBudget, budget_of
from sluicegate.store import TRIES, Store, StoreFailed, Write, overtaken
from sluicegate.store.watch import Watch

T = TypeVar("T")

log = logging.getLogger(__name__)

REVISION: Final = "pins-revision"  # of all books: whoever writes one changes it, if it is what they have read
POLL: Final = 2.0
MAX_LINES: Final = 20  # of log for one list
MAX_EVENTS: Final = 20_000  # changes of one server that are told of at once, and then so many a second
EVENTS_PER_SECOND: Final = 1.0
NOT_KEPT: Final = "too_much at /: its text is not kept until its server lists it again, for too much of it waits"
_STEP: Final = 0.001  # seconds after which others have their turn
_MAX_FLAGGED: Final = 10_000  # definitions of which it is remembered what is hidden in them


class Pinned(NamedTuple):
    """A server whose definitions are pinned: how, who it is, and which names the operator gave them for clients."""

    mode: Mode
    identity: str
    shown: Mapping[Key, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PinEvent:
    """What became of a definition, for the audit and metrics: `reported` is a change that `warn` serves. `before`
    and `after` are fingerprints, None where there was no pin; `flags` say what is hidden in it and where, `by` is the
    person who accepted."""

    server: str
    era: Era
    kind: PinKind
    name: str
    what: Literal["first_use", "accepted", "withheld", "reported"]
    before: str | None
    after: str
    flags: Sequence[str] = ()
    by: str = ""


_Accepted = tuple[PinBook, dict[Key, str]]
OnChange = Callable[[PinEvent], None]


class DefinitionPins:
    """`servers` has every server that is pinned; one that is not in it, or `off`, is served as it is. `moved` is told
    the server of which something came to be served, or no longer is."""

    def __init__(
        self, servers: Mapping[str, Pinned], store: Store, on_change: OnChange = lambda event: None,
        clock: Callable[[], float] = time.time, watch: Watch | None = None,
    ) -> None:  # fmt: skip
        self._watch = watch or Watch()
        self._modes = {server: pinned.mode for server, pinned in servers.items() if pinned.mode != "off"}
        self._identities = {server: pinned.identity for server, pinned in servers.items()}
        self._shown = {server: pinned.shown for server, pinned in servers.items()}
        self._store = store
        self._on_change = on_change
        self._clock = clock
        self._books = {(server, era): PinBook() for server in self._modes for era in ERAS}
        self._revision: bytes | None = None
        self._kept: dict[str, pin_store.Marks] = {}  # of the store's values that these books contain
        self._unwritten: set[tuple[str, Era]] = set()
        self._begun: dict[str, list[str]] = {}  # servers with books that are not kept yet: what to forget once they are
        self._rooms: dict[str, tuple[float, float]] = {}  # how many changes of a server may be told of, and since when
        self._flagged: dict[str, list[str]] = {}  # by fingerprint, of those in which something is hidden
        self._lock = asyncio.Lock()  # of writers: a book is read, thought over and written by one at a time
        self._on_moved: list[Callable[[str], None]] = []

    def on_moved(self, listener: Callable[[str], None]) -> None:
        """`listener` is called with a server of which other definitions are served from now on."""
        self._on_moved.append(listener)

    def is_pinned(self, server: str) -> bool:
        return server in self._modes

    # ------------------------------------------------------------ serving

    def serve(self, server: str, era: Era, capabilities: str, whole: Snapshot) -> Snapshot:
        """The part of a snapshot that clients with these capabilities may know of."""
        mode = self._modes.get(server)
        if mode is None or mode == "warn":
            return whole
        book, twin = self._both(server, era)
        entries = (entry for held in whole.listings.values() for entry in held.entries)
        keys: dict[Key, str] = {(entry.target.kind, entry.target.own): entry.fingerprint for entry in entries}
        instructions = instructions_of(whole.about).items()
        text: dict[Key, str] = {("instructions", own): found.fingerprint for own, found in instructions}
        judged = partial(pins.is_withheld, mode, book, twin, capabilities=capabilities)
        withheld = {key for key, mark in (keys | text).items() if judged(key, mark)}
        return without(whole, withheld, not withheld.isdisjoint(text))

    def serves(self, server: str, era: Era, target: Target, fingerprint: str) -> bool:
        """Whether clients of some capability set are shown that definition."""
        mode = self._modes.get(server)
        if mode is None or mode == "warn":
            return True
        book, twin = self._both(server, era)
        key = (target.kind, target.own)
        sets = book.pins[key].sets if key in book.pins else ()
        return any(not pins.is_withheld(mode, book, twin, key, fingerprint, one) for one in sets)

    def has_accepted(self, target: Target) -> bool:
        """Whether a person accepted this very definition: only then do the server's claims in it count."""
        if target.server not in self._modes or target.item is None:
            return False
        key = (target.kind, target.own)
        accepted = {pin.fingerprint for book in self._both(target.server) if (pin := book.pins.get(key)) and pin.by}
        return bool(accepted) and pins.fingerprint(target.item) in accepted

    def accepted(self, server: str) -> frozenset[tuple[str, str, str]]:
        """What people have accepted of a server: kind, own name and fingerprint of each definition."""
        if server not in self._modes:
            return frozenset()
        books = self._both(server)
        return frozenset((*key, pin.fingerprint) for book in books for key, pin in book.pins.items() if pin.by)

    def review(self, target: Target) -> str:
        """What people have said of this very definition: `accepted`, `first_use` (served, and nobody has looked),
        `changed` since the one that is known, `unpinned` where none is kept."""
        if target.server not in self._modes or target.item is None:
            return "unpinned"
        if self.has_accepted(target):
            return "accepted"
        key, both = (target.kind, target.own), self._both(target.server)
        fingerprints = {pin.fingerprint for book in both if (pin := book.pins.get(key)) is not None}
        return "changed" if fingerprints and pins.fingerprint(target.item) not in fingerprints else "first_use"

    def acceptance(self, server: str, kind: PinKind, own: str, fingerprint: str) -> Json:
        """Who accepted this very definition and when, and the era of its pin; empty if nobody did."""
        for era in ERAS if server in self._modes else ():
            pin = self._books[server, era].pins.get((kind, own))
            if pin is not None and pin.by and pin.fingerprint == fingerprint:
                return {"by": pin.by, "at": pin.at, "era": era}
        return {}

    def _both(self, server: str, era: Era = "legacy") -> tuple[PinBook, PinBook]:
        return self._books[server, era], self._books[server, "modern" if era == "legacy" else "legacy"]

    # ------------------------------------------------------------ lists arrive

    async def meet(
        self, server: str, era: Era, capabilities: str, kind: PinKind, found: Mapping[str, Found], size: int = 0
    ) -> None:
        """A complete list of one kind in one capability set, of so many bytes. On return what it says is written down.
        """
        mode = self._modes.get(server)
        if mode is None:
            return

        async def attempt() -> tuple[PinBook, list[DefinitionChange]] | None:
            book, twin = self._both(server, era)
            work = (book, twin, mode, capabilities, kind, found, self._now())
            new, changes = await pin_store.apart(len(found), size, pins.meet, *work)
            return (new, changes) if await self._write(server, {era: new}) else None

        new, changes = await self._try(server, attempt)
        with anyio.CancelScope(shield=True):  # what is written down is told
            await self._report(server, era, mode, new, changes)

    async def settle(self, server: str, era: Era, capabilities: str) -> None:
        """All lists of a server have arrived for once in that capability set."""

        async def attempt() -> bool | None:
            return await self._write(server, {era: pins.close(self._books[server, era], capabilities)}) or None

        if server in self._modes:
            await self._try(server, attempt)

    def count_withheld(self, server: str) -> int:
        """Names of definitions that wait for a person and are not served."""
        if self._modes.get(server, "warn") == "warn":
            return 0
        return len({key for era in ERAS for key in self._books[server, era].waiting})

    def notice(self, server: str) -> str:
        """What a person should know of a server's pins, in a clause; empty where there is nothing to do."""
        if self.is_replaced(server) and server in self._begun and self._modes[server] != "warn":
            return "another server under this key: what differs from the pins will wait"
        return pins.notice(self.count_withheld(server), self.is_replaced(server))

    def is_replaced(self, server: str) -> bool:
        """Whether other servers had that key before this one."""
        return server in self._modes and any(self._books[server, era].replaced_at for era in ERAS)

    # ------------------------------------------------------------ people look and accept

    def rows(self, server: str | None = None, definitions: bool = False, waiting: bool = False) -> list[Json]:
        """Every pin and everything that waits, of one server or all, or what waits or is withheld alone; with their
        canonical texts if wanted."""
        rows = []
        for name, era, book, key in self._each(server, waiting):
            text = pins.newest(book, key)
            rows.append(self._row(name, era, book, key, flags_in(text) if text else [NOT_KEPT], definitions))
        return rows

    async def each_row(
        self, server: str | None = None, definitions: bool = False, waiting: bool = False
    ) -> AsyncIterator[Json]:
        """The same, one row after the other, over the books as they are now: a server may have 10,000."""
        since = time.perf_counter()
        for name, era, book, key in self._each(server, waiting):
            flags = await budget_of(name).in_pieces(self._flags(book, key))
            if name in self._modes:
                yield self._row(name, era, book, key, flags, definitions)
            if time.perf_counter() - since >= _STEP:
                await asyncio.sleep(0)
                since = time.perf_counter()

    def _each(self, server: str | None, waiting: bool) -> Iterator[tuple[str, Era, PinBook, Key]]:
        for (name, era), book in tuple(self._books.items()):
            for key in pins.keys(book) if server in (None, name) else ():
                if name not in self._modes:  # its configuration was changed meanwhile
                    break
                if not waiting or key in book.waiting or self._is_withheld(name, era, book, key):
                    yield name, era, book, key

    def _flags(self, book: PinBook, key: Key) -> Generator[None, None, list[str]]:
        """What is hidden in a definition, which is looked for once."""
        fingerprint, text = book.current(key) or "", pins.newest(book, key)
        if not text:
            return [NOT_KEPT]
        found = self._flagged.get(fingerprint)
        if found is None:
            found = yield from flags_in_pieces(text)
            while len(self._flagged) >= _MAX_FLAGGED:
                del self._flagged[next(iter(self._flagged))]
            if found:
                self._flagged[fingerprint] = found
        return found

    def _is_withheld(self, server: str, era: Era, book: PinBook, key: Key) -> bool:
        return pins.is_withheld(self._modes[server], book, self._both(server, era)[1], key, book.current(key) or "")

    def _row(
        self, server: str, era: Era, book: PinBook, key: Key, flags: Sequence[str], definitions: bool = False
    ) -> Json:
        pin, held = book.pins.get(key), book.waiting.get(key)
        current, withheld = book.current(key) or "", self._is_withheld(server, era, book, key)
        row: Json = {
            "server": server, "era": era, "kind": pins.WORDS[key[0]], "name": key[1] or "instructions",
            "state": pins.state(book, key), "withheld": withheld, "current": current,
            "fingerprint": pin.fingerprint if pin else None, "by": pin.by if pin else "", "at": pin.at if pin else "",
            "waiting": held.fingerprint if held else None, "since": held.since if held else "",
            "shown_as": self._shown.get(server, {}).get(key, ""), "flags": flags, "replaced_at": book.replaced_at,
        }  # fmt: skip
        texts = {"accepted_text": pin.text if pin else None, "waiting_text": held.text if held else None}
        return {**row, **texts, "deny_row": pins.denying_row(server, key)} if definitions else row

    async def accept(self, server: str, wanted: Iterable[Wanted], by: str) -> list[Json] | str:
        """All of it or nothing: the rows as they are then, or what is wrong in a sentence."""
        if server not in self._modes:
            return f"no server {server} is pinned"
        seen: dict[Key, set[str]] = {}
        for one in wanted:
            seen.setdefault((one.kind, one.name), set()).add(one.fingerprint)

        async def attempt() -> str | tuple[Mapping[Era, PinBook], Mapping[Era, _Accepted]] | None:
            if server not in self._modes:  # its configuration was changed meanwhile
                return f"no server {server} is pinned"
            old = {era: self._books[server, era] for era in ERAS}
            accepted = {era: pins.accept(old[era], seen, by, self._now()) for era in ERAS}
            taken = {mark for _, found in accepted.values() for mark in found.items()}
            if missing := [key for key, marks in seen.items() if any((key, mark) not in taken for mark in marks)]:
                kind, name = missing[0]
                return f"{pins.WORDS[kind]} {name or 'instructions'}: that is not what the server gave last"
            is_written = await self._write(server, {era: book for era, (book, _) in accepted.items()})
            return (old, accepted) if is_written else None

        made: str | tuple[Mapping[Era, PinBook], Mapping[Era, _Accepted]] = await self._try(server, attempt)
        if isinstance(made, str):
            return made
        old, accepted = made
        books = {era: book for era, (book, _) in accepted.items()}
        rows: list[Json] = []
        for key in seen:
            for era in ERAS:
                if key in accepted[era][1]:
                    flags = await budget_of(server).in_pieces(self._flags(books[era], key))
                    before = old[era].pins.get(key)
                    self._tell_accepted(server, era, key, before, books[era].pins[key].fingerprint, flags, by)
                    if server in self._modes:
                        rows.append(self._row(server, era, books[era], key, flags))
            await asyncio.sleep(0)  # there may be thousands
        return rows

    def _tell_accepted(
        self, server: str, era: Era, key: Key, before: pins.Pin | None, after: str, flags: Sequence[str], by: str
    ) -> None:
        event = PinEvent(server, era, *key, "accepted", before.fingerprint if before else None, after, flags, by)
        log.info("definition accepted", extra=_fields(event))
        self._on_change(event)

    # ------------------------------------------------------------ the store

    async def load(self) -> None:
        """Loads the pins, once, before anything is served."""
        await self._read_anew()

    @asynccontextmanager
    async def configure(self, servers: Mapping[str, Pinned]) -> AsyncIterator[Callable[[], None]]:
        """Reads the books of servers that are new or other than before. What is given puts them in force; until the
        block ends nobody writes, so that nothing of a server is recorded for the one that takes its place."""
        identities = {server: pinned.identity for server, pinned in servers.items()}
        modes = {server: pinned.mode for server, pinned in servers.items() if pinned.mode != "off"}
        async with self._lock:
            both = self._modes.keys() & modes.keys()
            is_same = {server for server in both if self._identities[server] == identities[server]}
            new, marks = dict[str, pin_store.Stored](), dict[str, pin_store.Marks]()
            if modes.keys() - is_same:
                kept = await pin_store.entries(self._store)
                marks = await pin_store.marks(kept)
                for server in modes.keys() - is_same:
                    work = pin_store.read(kept, server, identities[server], self._now())
                    new[server] = await budget_of(server).in_pieces(work)

            def put() -> None:
                self._modes, self._identities = modes, identities
                self._shown = {server: pinned.shown for server, pinned in servers.items()}
                self._books = {owner: book for owner, book in self._books.items() if owner[0] in is_same}
                self._begun = {server: begun for server, begun in self._begun.items() if server in is_same}
                self._unwritten = {owner for owner in self._unwritten if owner[0] in is_same}
                self._kept = {server: held for server, held in self._kept.items() if server in is_same}
                for server, read in new.items():
                    self._kept[server] = marks.get(server, {})
                    self._books |= {(server, era): book for era, book in read.books.items()}
                    if read.forget is not None:
                        self._begun[server] = read.forget

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
            places = tuple(self._unwritten)
            found = [await pin_store.write_waiting(self._store_key(*owner), self._books[owner]) for owner in places]
            if found and not await self._swap(found):
                return None
            self._unwritten.difference_update(places)
            return True

        await self._try("*", attempt)

    async def refresh(self) -> None:
        if await self._store.get(REVISION) != self._revision:
            async with self._lock:
                await self._read_anew()

    async def _read_anew(self) -> None:
        revision = await self._store.get(REVISION)
        kept = await pin_store.entries(self._store)
        marks = await pin_store.marks(kept)
        budget = LoopBudget()  # no server pays for what another one made necessary
        for server in self._modes:
            if self._kept.get(server) == marks.get(server, {}):  # these books contain all of it, and may have more
                continue
            read = await budget.in_pieces(pin_store.read(kept, server, self._identities[server], self._now()))
            merged = [(era, pin_store.merged(self._books[server, era], book)) for era, book in read.books.items()]
            books = [(era, await budget.in_pieces(work)) for era, work in merged]
            self._begun.pop(server, None)
            if read.forget is not None:
                self._begun[server] = read.forget
            for era, book in books:
                self._set(server, era, book)
            self._kept[server] = marks.get(server, {})
        self._revision = revision  # last: whoever is cancelled before has not read all of it

    async def _try(self, server: str, attempt: Callable[[], Awaitable[T | None]]) -> T:
        """Repeats `attempt` until it returns a value: None means that another process has written meanwhile. Other
        tasks take the lock between two attempts. Raises `StoreFailed` after `TRIES`."""
        for _ in range(TRIES):
            async with self._lock:
                if (made := await attempt()) is not None:
                    return made
        log.error("pins cannot be written: other processes write all the time", extra={"server": server})
        raise overtaken("the pins")

    async def _write(self, server: str, books: Mapping[Era, PinBook]) -> bool:
        """All or nothing; False if another process has written meanwhile: what it wrote is known then, and has to be
        thought over. What a definition that waits already became is written later: its name waits in any case."""
        forget = self._begun.get(server)
        if forget is not None:
            books = {era: self._books[server, era] for era in ERAS} | dict(books)
        new = {
            (server, era): book for era, book in books.items()
            if forget is not None or book is not self._books[server, era]
        }  # fmt: skip
        writes, later = list[Write](), set[tuple[str, Era]]()
        for owner, book in new.items():
            old = self._books[owner]
            if forget is not None or book.pins is not old.pins or book.closed != old.closed:
                writes.append(await pin_store.write_pins(self._store_key(*owner), book))
            if forget is not None or book.waiting.keys() != old.waiting.keys():
                writes.append(await pin_store.write_waiting(self._store_key(*owner), book))
            elif book.waiting != old.waiting:
                later.add(owner)
        writes += [write for owner in forget or () for write in pin_store.deletes(owner)]
        if writes and not await self._swap(writes):
            return False
        self._begun.pop(server, None)
        self._unwritten |= later
        for owner, book in new.items():
            self._set(*owner, book)
        return True

    async def _swap(self, writes: list[Write]) -> bool:
        revision = secrets.token_bytes(16)
        marks = await pin_store.marks({write.key: write.value or b"" for write in writes})
        if not await self._store.swap(REVISION, self._revision, [*writes, Write(REVISION, revision)]):
            await self._read_anew()
            return False
        self._revision = revision
        for server, written in marks.items():
            held = self._kept.get(server, {}) | written
            self._kept[server] = {key: mark for key, mark in held.items() if mark}
        return True

    def _store_key(self, server: str, era: Era) -> str:
        return pin_store.book_key(server, self._identities[server], era)

    def _set(self, server: str, era: Era, book: PinBook) -> None:
        old = self._books[server, era]
        self._books[server, era] = book
        if book.pins != old.pins or book.waiting.keys() != old.waiting.keys():
            for listener in self._on_moved:
                listener(server)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    # ------------------------------------------------------------ telling

    async def _report(
        self, server: str, era: Era, mode: Mode, book: PinBook, changes: list[DefinitionChange]
    ) -> None:
        """A definition that waits already, and is other again, is told of no more: nothing that is served changes. What
        is told is bounded for each server, or one that changes all the time would fill the disk with records."""
        news = [change for change in changes if mode == "warn" or not change.again]
        if left_out := len(news) - self._room(server, len(news)):
            about = {"server": server, "era": era, "left_out": left_out}
            log.warning("definitions change too often: not every change is in the audit log", extra=about)
        reported = news[: len(news) - left_out]
        budget = budget_of(server)
        events = await budget.in_pieces(self._events(server, era, mode, book, reported))
        new = zip(events, reported, strict=True)
        loud = [event for event, change in new if change.what == "waiting" and not change.again]
        words = "definition changed" if mode == "warn" else "definition withheld until it is accepted"
        for event in loud[:MAX_LINES]:
            log.warning(words, extra=_fields(event) | {"hint": f"sluice pins diff {server}"})
        if len(loud) > MAX_LINES:
            log.warning(words, extra={"server": server, "era": era, "more": len(loud) - MAX_LINES})
        if first := sum(event.what == "first_use" for event in events):
            log.info("definitions recorded at first use", extra={"server": server, "era": era, "definitions": first})
        for event in [event for event in events if event.flags][:MAX_LINES]:
            log.warning("definition with hidden characters", extra=_fields(event))
        await budget.in_pieces(self._tell(events))

    def _events(
        self, server: str, era: Era, mode: Mode, book: PinBook, changes: list[DefinitionChange]
    ) -> Generator[None, None, list[PinEvent]]:
        events, since = list[PinEvent](), time.perf_counter()
        for change in changes:
            flags = yield from self._flags(book, change.key)
            events.append(_event(server, era, mode, change, flags))
            if time.perf_counter() - since >= _STEP:
                yield
                since = time.perf_counter()
        return events

    def _tell(self, events: Sequence[PinEvent]) -> Generator[None, None, None]:
        since = time.perf_counter()
        for event in events:
            self._on_change(event)
            if time.perf_counter() - since >= _STEP:
                yield
                since = time.perf_counter()

    def _room(self, server: str, wanted: int) -> int:
        """How many of these changes may be told of now."""
        now = self._clock()
        room, since = self._rooms.get(server, (float(MAX_EVENTS), now))
        room = min(MAX_EVENTS, room + max(0.0, now - since) * EVENTS_PER_SECOND)
        taken = min(wanted, int(room))
        self._rooms[server] = room - taken, now
        return taken


def instructions_of(about: Json) -> dict[str, Found]:
    """A server's instructions as something that can be pinned."""
    text: Any = about.get("instructions")
    return {"": Found(pins.fingerprint(text), text)} if isinstance(text, str) and text.strip() else {}


def _event(server: str, era: Era, mode: Mode, change: DefinitionChange, flags: Sequence[str]) -> PinEvent:
    what = change.what if change.what != "waiting" else "reported" if mode == "warn" else "withheld"
    return PinEvent(server, era, *change.key, what, change.before, change.after, flags)


def _fields(event: PinEvent) -> Json:
    """`name` is a word of the logging library's own."""
    return {
        "server": event.server, "era": event.era, "kind": pins.WORDS[event.kind], "definition": event.name,
        "before": event.before, "after": event.after, **({"by": event.by} if event.by else {}),
        **({"flags": event.flags} if event.flags else {}),
    }  # fmt: skip
