"""What is pinned of every server's definitions: asked by whoever serves, written when a list says something new, and
accepted by people.

Knows modes and books; `pin_store` has them, and whether a definition is served is decided by `policy.pins`. What a
withheld one looks like nobody knows: it is left out of the snapshot. Fails closed: what cannot be written down is not
served, and a book that cannot be read counts as one in which nothing was accepted.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

from sluicegate.catalog.snapshot import Snapshot, without
from sluicegate.catalog_cache import pin_store
from sluicegate.catalog_cache.pin_store import ERAS, PinBooks, Pinned
from sluicegate.policy import pins
from sluicegate.policy.hidden_text import flags_in, flags_in_pieces
from sluicegate.policy.pins import DefinitionChange, Found, Key, Mode, PinBook, PinKind, Wanted
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Era, Target
from sluicegate.runtime.loop_budget import budget_of
from sluicegate.store import Store
from sluicegate.store.watch import Watch

log = logging.getLogger(__name__)

MAX_LINES: Final = 20  # of log for one list
MAX_EVENTS: Final = 20_000  # changes of one server that are told of at once, and then so many a second
EVENTS_PER_SECOND: Final = 1.0
NOT_KEPT: Final = "too_much at /: its text is not kept until its server lists it again, for too much of it waits"
_STEP: Final = 0.001  # seconds after which others have their turn
_MAX_FLAGGED: Final = 10_000  # definitions of which it is remembered what is hidden in them


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
_Answer = str | tuple[Mapping[Era, PinBook], Mapping[Era, _Accepted]]
"""What is wrong in a sentence, or the books before, and after."""
OnChange = Callable[[PinEvent], None]


class DefinitionPins:
    """`servers` has every server that is pinned; one that is not in it, or `off`, is served as it is."""

    def __init__(
        self, servers: Mapping[str, Pinned], store: Store, on_change: OnChange = lambda event: None,
        clock: Callable[[], float] = time.time, watch: Watch | None = None,
    ) -> None:  # fmt: skip
        self._clock = clock
        self.books = PinBooks(servers, store, self._now, watch)
        self._shown = {server: pinned.shown for server, pinned in servers.items()}
        self._reports = PinReports(on_change, clock)

    @asynccontextmanager
    async def configure(self, servers: Mapping[str, Pinned]) -> AsyncIterator[Callable[[], None]]:
        """As of `PinBooks`, with the names that operators gave."""
        async with self.books.configure(servers) as put_books:

            def put() -> None:
                put_books()
                self._shown = {server: pinned.shown for server, pinned in servers.items()}

            yield put

    def is_pinned(self, server: str) -> bool:
        return server in self.books.modes

    # ------------------------------------------------------------ serving

    def serve(self, server: str, era: Era, capabilities: str, whole: Snapshot) -> Snapshot:
        """The part of a snapshot that clients with these capabilities may know of."""
        mode = self.books.modes.get(server)
        if mode is None or mode == "warn":
            return whole
        book, twin = self.books.both(server, era)
        entries = (entry for held in whole.listings.values() for entry in held.entries)
        keys: dict[Key, str] = {(entry.target.kind, entry.target.own): entry.fingerprint for entry in entries}
        instructions = instructions_of(whole.about).items()
        text: dict[Key, str] = {("instructions", own): found.fingerprint for own, found in instructions}
        judged = partial(pins.is_withheld, mode, book, twin, capabilities=capabilities)
        withheld = {key for key, mark in (keys | text).items() if judged(key, mark)}
        return without(whole, withheld, not withheld.isdisjoint(text))

    def serves(self, server: str, era: Era, target: Target, fingerprint: str) -> bool:
        """Whether clients of some capability set are shown that definition."""
        mode = self.books.modes.get(server)
        if mode is None or mode == "warn":
            return True
        book, twin = self.books.both(server, era)
        key = (target.kind, target.own)
        sets = book.pins[key].sets if key in book.pins else ()
        return any(not pins.is_withheld(mode, book, twin, key, fingerprint, one) for one in sets)

    def has_accepted(self, target: Target) -> bool:
        """Whether a person accepted this very definition: only then do the server's claims in it count."""
        if target.server not in self.books.modes or target.item is None:
            return False
        key = (target.kind, target.own)
        books = self.books.both(target.server)
        accepted = {pin.fingerprint for book in books if (pin := book.pins.get(key)) and pin.by}
        return bool(accepted) and pins.fingerprint(target.item) in accepted

    def accepted(self, server: str) -> frozenset[tuple[str, str, str]]:
        """What people have accepted of a server: kind, own name and fingerprint of each definition."""
        if server not in self.books.modes:
            return frozenset()
        books = self.books.both(server)
        return frozenset((*key, pin.fingerprint) for book in books for key, pin in book.pins.items() if pin.by)

    def review(self, target: Target) -> str:
        """What people have said of this very definition: `accepted`, `first_use` (served, and nobody has looked),
        `changed` since the one that is known, `unpinned` where none is kept."""
        if target.server not in self.books.modes or target.item is None:
            return "unpinned"
        if self.has_accepted(target):
            return "accepted"
        key, both = (target.kind, target.own), self.books.both(target.server)
        fingerprints = {pin.fingerprint for book in both if (pin := book.pins.get(key)) is not None}
        return "changed" if fingerprints and pins.fingerprint(target.item) not in fingerprints else "first_use"

    def acceptance(self, server: str, kind: PinKind, own: str, fingerprint: str) -> Json:
        """Who accepted this very definition and when, and the era of its pin; empty if nobody did."""
        for era in ERAS if server in self.books.modes else ():
            pin = self.books.held[server, era].pins.get((kind, own))
            if pin is not None and pin.by and pin.fingerprint == fingerprint:
                return {"by": pin.by, "at": pin.at, "era": era}
        return {}

    # ------------------------------------------------------------ lists arrive

    async def meet(
        self, server: str, era: Era, capabilities: str, kind: PinKind, found: Mapping[str, Found], size: int = 0
    ) -> None:
        """A complete list of one kind in one capability set, of so many bytes. On return what it says is written down.
        """
        mode = self.books.modes.get(server)
        if mode is None:
            return

        async def attempt() -> tuple[PinBook, list[DefinitionChange]] | None:
            book, twin = self.books.both(server, era)
            work = (book, twin, mode, capabilities, kind, found, self._now())
            new, changes = await pin_store.apart(len(found), size, pins.meet, *work)
            return (new, changes) if await self.books.write(server, {era: new}) else None

        await self.books.try_to(server, attempt, lambda made: self._reports.changed(server, era, mode, *made))

    async def settle(self, server: str, era: Era, capabilities: str) -> None:
        """All lists of a server have arrived for once in that capability set."""

        async def attempt() -> bool | None:
            return await self.books.write(server, {era: pins.close(self.books.held[server, era], capabilities)}) or None

        if server in self.books.modes:
            await self.books.try_to(server, attempt)

    def count_withheld(self, server: str) -> int:
        """Names of definitions that wait for a person and are not served."""
        if self.books.modes.get(server, "warn") == "warn":
            return 0
        return len({key for era in ERAS for key in self.books.held[server, era].waiting})

    def notice(self, server: str) -> str:
        """What a person should know of a server's pins, in a clause; empty where there is nothing to do."""
        if self.is_replaced(server) and server in self.books.unsaved and self.books.modes[server] != "warn":
            # Configs in two folders share a state directory where neither names one.
            return "another server under this key, here or in a file with this state.dir: what differs will wait"
        return pins.notice(self.count_withheld(server), self.is_replaced(server))

    def is_replaced(self, server: str) -> bool:
        """Whether other servers had that key before this one."""
        return server in self.books.modes and any(self.books.held[server, era].replaced_at for era in ERAS)

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
            flags = await budget_of(name).in_pieces(self._reports.flags(book, key))
            if name in self.books.modes:
                yield self._row(name, era, book, key, flags, definitions)
            if time.perf_counter() - since >= _STEP:
                await asyncio.sleep(0)
                since = time.perf_counter()

    def _each(self, server: str | None, waiting: bool) -> Iterator[tuple[str, Era, PinBook, Key]]:
        for (name, era), book in tuple(self.books.held.items()):
            for key in pins.keys(book) if server in (None, name) else ():
                if name not in self.books.modes:  # its configuration was changed meanwhile
                    break
                if not waiting or key in book.waiting or self._is_withheld(name, era, book, key):
                    yield name, era, book, key

    def _is_withheld(self, server: str, era: Era, book: PinBook, key: Key) -> bool:
        twin = self.books.both(server, era)[1]
        return pins.is_withheld(self.books.modes[server], book, twin, key, book.current(key) or "")

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
        if server not in self.books.modes:
            return f"no server {server} is pinned"
        seen: dict[Key, set[str]] = {}
        for one in wanted:
            seen.setdefault((one.kind, one.name), set()).add(one.fingerprint)

        async def attempt() -> _Answer | None:
            if server not in self.books.modes:  # its configuration was changed meanwhile
                return f"no server {server} is pinned"
            old = {era: self.books.held[server, era] for era in ERAS}
            accepted = {era: pins.accept(old[era], seen, by, self._now()) for era in ERAS}
            taken = {mark for _, found in accepted.values() for mark in found.items()}
            if missing := [key for key, marks in seen.items() if any((key, mark) not in taken for mark in marks)]:
                kind, name = missing[0]
                return f"{pins.WORDS[kind]} {name or 'instructions'}: that is not what the server gave last"
            is_written = await self.books.write(server, {era: book for era, (book, _) in accepted.items()})
            return (old, accepted) if is_written else None

        rows: list[Json] = []

        async def tell(made: _Answer) -> None:
            if isinstance(made, str):
                return
            old, accepted = made
            for key in seen:
                for era in ERAS:
                    if key in accepted[era][1]:
                        book = accepted[era][0]
                        flags = await budget_of(server).in_pieces(self._reports.flags(book, key))
                        before = old[era].pins.get(key)
                        self._reports.accepted(server, era, key, before, book.pins[key].fingerprint, flags, by)
                        if server in self.books.modes:
                            rows.append(self._row(server, era, book, key, flags))
                await asyncio.sleep(0)  # there may be thousands

        made: _Answer = await self.books.try_to(server, attempt, tell)
        return made if isinstance(made, str) else rows

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class PinReports:
    """What became of definitions, for the log and for `on_change`; and what is hidden in them."""

    def __init__(self, on_change: OnChange, clock: Callable[[], float]) -> None:
        self._on_change, self._clock = on_change, clock
        self._rooms: dict[str, tuple[float, float]] = {}  # how many changes of a server may be told of, and since when
        self._flagged: dict[str, list[str]] = {}  # by fingerprint, of those in which something is hidden

    def flags(self, book: PinBook, key: Key) -> Generator[None, None, list[str]]:
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

    def accepted(
        self, server: str, era: Era, key: Key, before: pins.Pin | None, after: str, flags: Sequence[str], by: str
    ) -> None:
        event = PinEvent(server, era, *key, "accepted", before.fingerprint if before else None, after, flags, by)
        log.info("definition accepted", extra=_fields(event))
        self._on_change(event)

    async def changed(
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
        if added := sum(change.no_room for change in changes):
            about = {"server": server, "era": era, "definitions": added}
            log.warning("pins have no room for new names of a further capability set: these are additions", extra=about)
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
            flags = yield from self.flags(book, change.key)
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
