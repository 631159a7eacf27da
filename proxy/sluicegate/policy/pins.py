"""Pinned definitions: what a server's tools, prompts, templates and instructions were when they were accepted.

Pure: definitions come in with their fingerprints, a new book and what changed come out. Knows no server, no client,
no store and no clock. A definition that differs from its pin waits for a person; while it waits, it and its name
are withheld (in `review` and `block`), even when the server turns back to what was accepted: who flaps is not trusted
again by itself. A name that is absent is no change, for another client may still see it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from sluicegate.message import Json

Mode = Literal["off", "warn", "review", "block"]
PinKind = Literal["instructions", "tool", "prompt", "res"]
Key = tuple[PinKind, str]
"""What a definition is and its own name; the one of the instructions is empty."""

KINDS: Final[tuple[PinKind, ...]] = ("instructions", "tool", "prompt", "res")
WORDS: Final[Mapping[PinKind, str]] = {
    "tool": "tool", "prompt": "prompt", "res": "template", "instructions": "instructions"
}  # fmt: skip
MAX_WAITING: Final = 10_000  # definitions of one server and era; names beyond are withheld all the same


def canonical(value: Any) -> str:
    """One text for equal JSON values: keys in order, no spaces, everything beyond ASCII escaped. 1 is not 1.0."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def fingerprint(value: Any) -> str:
    return sha256(canonical(value).encode("ascii")).hexdigest()


class Found(NamedTuple):
    """A definition as a server lists it now."""

    fingerprint: str
    value: Any


@dataclass(frozen=True, slots=True)
class Pin:
    """What was accepted: `by` whom is empty for a first use, which no person has looked at. `text` is canonical."""

    fingerprint: str
    text: str = field(repr=False)
    by: str
    at: str

    @property
    def state(self) -> str:
        return "accepted" if self.by else "first_use"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What differs from the pin, or has none. `returned`: the server now gives what was accepted again."""

    fingerprint: str
    text: str = field(repr=False)
    since: str
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Book:
    """The pins of one server in one era. `closed`: the kinds whose first complete list is over."""

    pins: Mapping[Key, Pin] = field(default_factory=dict, repr=False)
    waiting: Mapping[Key, Waiting] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()

    def current(self, key: Key) -> str | None:
        """The fingerprint of what the server gave last under that name."""
        pin, held = self.pins.get(key), self.waiting.get(key)
        if held is not None and not held.returned:
            return held.fingerprint
        return pin.fingerprint if pin else None


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one definition: `before` and `after` are fingerprints. `again`: its name was waiting already."""

    key: Key
    what: Literal["first_use", "accepted", "waiting"]
    before: str | None
    after: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A definition that a person has seen and accepts, in every era in which it is what the server gave last."""

    kind: PinKind
    name: str
    fingerprint: str


# ---------------------------------------------------------------- a list arrives


def meet(
    book: Book, twin: Book, mode: Mode, kind: PinKind, found: Mapping[str, Found], at: str
) -> tuple[Book, list[Change]]:
    """The book after a complete list of one kind; the same object if it says nothing new. `twin` is the book of
    the other era: what a person accepted there needs no second look here, what waits there is no first use here."""
    pins, waiting, changes = dict(book.pins), dict(book.waiting), []
    for own, seen in found.items():
        key: Key = (kind, own)
        placed = _place(book, twin, mode, key, seen, at)
        if placed is None:
            continue
        if isinstance(placed, Pin):
            pins[key] = placed
        else:
            waiting[key] = placed
        if change := _change(book, key, placed):
            changes.append(change)
    closed = book.closed | {kind} if found else book.closed
    if not changes and waiting == book.waiting and closed == book.closed:
        return book, []
    return Book(pins if pins != book.pins else book.pins, _bounded(waiting, pins), closed), changes


def _place(book: Book, twin: Book, mode: Mode, key: Key, seen: Found, at: str) -> Pin | Waiting | None:
    """Where a definition belongs now; None if it is there already."""
    pin, held = book.pins.get(key), book.waiting.get(key)
    if pin is not None and pin.fingerprint == seen.fingerprint:
        return replace(held, returned=True) if held and not held.returned else None
    if held is not None:
        if held.fingerprint != seen.fingerprint:
            return Waiting(seen.fingerprint, canonical(seen.value), at)
        return replace(held, returned=False) if held.returned else None
    vouched = twin.pins.get(key)
    if vouched is not None and vouched.by and vouched.fingerprint == seen.fingerprint:
        return vouched
    is_first = pin is None and key[0] not in book.closed and key not in twin.waiting
    if is_first and mode != "block":
        return Pin(seen.fingerprint, canonical(seen.value), "", at)
    return Waiting(seen.fingerprint, canonical(seen.value), at)


def _change(book: Book, key: Key, placed: Pin | Waiting) -> Change | None:
    pin, held = book.pins.get(key), book.waiting.get(key)
    before = pin.fingerprint if pin else None
    if isinstance(placed, Pin):
        return Change(key, "accepted" if placed.by else "first_use", before, placed.fingerprint)
    if held is not None and held.fingerprint == placed.fingerprint:
        return None
    return Change(key, "waiting", before, placed.fingerprint, again=held is not None)


def _bounded(waiting: dict[Key, Waiting], pins: Mapping[Key, Pin]) -> dict[Key, Waiting]:
    """A server that invents names for ever is not remembered for ever: names without a pin are forgotten, oldest
    first. They stay withheld, for nobody accepted them."""
    excess = len(waiting) - MAX_WAITING
    for key in [key for key in waiting if key not in pins][: max(0, excess)]:
        del waiting[key]
    return waiting


def close(book: Book) -> Book:
    """The first look at a server is over: what it adds from now on is new. A server that has listed nothing yet is
    still being met."""
    if len(book.closed) == len(KINDS) or not (book.pins or book.waiting):
        return book
    return replace(book, closed=frozenset(KINDS))


# ---------------------------------------------------------------- what is served


def is_withheld(mode: Mode, book: Book, twin: Book, key: Key, fingerprint: str) -> bool:
    """Whether that definition under that name is kept from clients. A pinned name that changed in one era is
    withheld in both: it is the same tool."""
    if mode in ("off", "warn"):
        return False
    pin = book.pins.get(key)
    if pin is None or pin.fingerprint != fingerprint or (mode == "block" and not pin.by):
        return True
    return key in book.waiting or (key in twin.waiting and key in twin.pins)


# ---------------------------------------------------------------- a person accepts


def accept(book: Book, key: Key, fingerprint: str, by: str, at: str) -> Book | None:
    """The book in which what the server gave last is the pin; None if that is not what the person has seen."""
    if book.current(key) != fingerprint:
        return None
    waiting = {other: held for other, held in book.waiting.items() if other != key}
    return Book({**book.pins, key: Pin(fingerprint, newest(book, key), by, at)}, waiting, book.closed)


# ---------------------------------------------------------------- showing


def state(book: Book, key: Key) -> str:
    """first_use, accepted; changed, new, returned while it waits."""
    pin, held = book.pins.get(key), book.waiting.get(key)
    if held is None:
        return pin.state if pin else "unknown"
    return "new" if pin is None else "returned" if held.returned else "changed"


def newest(book: Book, key: Key) -> str:
    """The canonical text of what the server gave last under that name; empty where there is none."""
    pin, held = book.pins.get(key), book.waiting.get(key)
    if held is not None and not held.returned:
        return held.text
    return pin.text if pin else ""


def keys(book: Book) -> list[Key]:
    return sorted({*book.pins, *book.waiting}, key=lambda key: (KINDS.index(key[0]), key[1]))


def lock(rows: Iterable[Json]) -> Json:
    """The lock file of these rows: server, era, kind and name to fingerprint, of what servers gave last."""
    servers: Json = {}
    for row in rows:
        place = servers.setdefault(row["server"], {}).setdefault(row["era"], {}).setdefault(row["kind"], {})
        place[row["name"]] = f"sha256:{row['current']}"
    return {"version": 1, "servers": servers}


def breaches(locked: Json, rows: Iterable[Json]) -> list[str]:
    """In words, what servers give that is not in the lock file. What they no longer give does no harm."""
    found = []
    for row in rows:
        place = locked.get("servers")
        for part in (row["server"], row["era"], row["kind"], row["name"]):
            place = place.get(part) if isinstance(place, dict) else None
        if place != f"sha256:{row['current']}":
            how = "is not in the lock file" if place is None else f"is not the locked {place}"
            where = f"{row['server']} ({row['era']}): {row['kind']} {row['name']}"
            found.append(f"{where}: sha256:{row['current']} {how}")
    return found


def unseen(locked: Json, rows: Iterable[Json]) -> int:
    """How many definitions of the lock file no server has given."""
    known = lock(rows)["servers"]
    return sum(
        name not in known.get(server, {}).get(era, {}).get(kind, {})
        for server, eras in locked.get("servers", {}).items()
        for era, kinds in eras.items()
        for kind, names in kinds.items()
        for name in names
    )


# ---------------------------------------------------------------- book <-> store


def pins_to_json(book: Book) -> Json:
    pins = [[*key, pin.fingerprint, pin.text, pin.by, pin.at] for key, pin in book.pins.items()]
    return {"pins": pins, "closed": sorted(book.closed)}


def waiting_to_json(book: Book) -> Json:
    waiting = book.waiting.items()
    return {"waiting": [[*key, held.fingerprint, held.text, held.since, held.returned] for key, held in waiting]}


def from_json(pins: Any, waiting: Any) -> Book:
    """The book that was kept. Raises `ValueError` for what is none: whoever asks must not take it for an empty one."""
    try:
        return Book(
            {(kind, own): Pin(*rest) for kind, own, *rest in pins["pins"]},
            {(kind, own): Waiting(*rest) for kind, own, *rest in waiting["waiting"]},
            frozenset(pins["closed"]),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"no book of pins: {error!r}") from None
