"""Pinned definitions: what a server's tools, prompts, templates and instructions were when they were accepted.

Pure: definitions come in with their fingerprints, a new book and what changed come out. Knows no server, no client,
no store and no clock. A definition that differs from its pin waits for a person; while it waits, it and its name
are withheld (in `review` and `block`), even when the server turns back to what was accepted: who flaps is not trusted
again by itself. A name that is absent is no change, for another client may still see it.

A server may choose its definitions by what a client can do, so a first list is that of one capability set. There are
few sets (`era.asks.capability_set`), and each has one first list of each kind. A name has one pin in all of them. What
a person accepted is served in every set; a first use only in the sets that had it in their first list, so that no set
can be used to bring something new into another.
"""

import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeVar

from sluicegate.policy.csv_rows import written
from sluicegate.policy.globs import escape
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.jsonrpc import Json, dump, inside

Mode = Literal["off", "warn", "review", "block"]
PinKind = Literal["instructions", "tool", "prompt", "res"]
Key = tuple[PinKind, str]
"""What a definition is and its own name; the one of the instructions is empty."""
T = TypeVar("T")

KINDS: Final[tuple[PinKind, ...]] = ("instructions", "tool", "prompt", "res")
WORDS: Final[Mapping[PinKind, str]] = {
    "tool": "tool", "prompt": "prompt", "res": "template", "instructions": "instructions"
}  # fmt: skip
EVERY: Final = "*"  # stands for every capability set
MAX_WAITING: Final = 10_000  # definitions of one server and era; names beyond are withheld all the same
MAX_WAITING_TEXT: Final = 16 * 1024 * 1024
"""Bytes of their texts. Of what is over, the names without a pin are forgotten, and of others the text."""
MAX_PINNED: Final = 64 * 1024 * 1024
"""Bytes of the pins of one server and era, 1 KiB each beside their texts. Over that no further capability set has first
uses: a server may list new names to each of 32."""
_EACH: Final = 1024
ROWS: Final = 100
"""Pins that are looked at without a turn for others."""


_VARIABLE: Final = re.compile(r"\{[^{}]*\}")


def denying_row(server: str, key: Key) -> str:
    """The row of a policy with which nobody gets what has this name, whatever becomes of its definition. Empty for
    instructions, which no row is about."""
    kind, name = key
    if kind == "instructions":
        return ""
    pattern = _VARIABLE.sub("*", escape(name)) if kind == "res" else escape(name)
    return written("p", "*", server, f"{kind}:{pattern}", "*", "deny")


def fingerprint(value: Any) -> str:
    return sha256(canonical(value).encode("ascii")).hexdigest()


class Found(NamedTuple):
    """A definition as a server lists it now."""

    fingerprint: str
    value: Any


@dataclass(frozen=True, slots=True)
class Pin:
    """What was accepted: `by` whom is empty for a first use, which no person has looked at. `text` is canonical.
    `sets` are the capability sets that had it in their first list."""

    fingerprint: str
    text: str = field(repr=False)
    by: str
    at: str
    sets: frozenset[str] = frozenset({EVERY})

    @property
    def state(self) -> str:
        return "accepted" if self.by else "first_use"

    def counts_in(self, capabilities: str) -> bool:
        return self.by != "" or not self.sets.isdisjoint((EVERY, capabilities))


@dataclass(frozen=True, slots=True)
class Waiting:
    """What differs from the pin, or has none. `returned`: the server now gives what was accepted again. If it has the
    fingerprint of its pin, then a set showed it whose first list was over without it."""

    fingerprint: str
    text: str = field(repr=False)
    since: str
    returned: bool = False


@dataclass(frozen=True, slots=True)
class PinBook:
    """The pins of one server in one era. `closed`: the capability sets and kinds whose first complete list is over.
    `replaced_at`: when this server took the place of another one under its key; empty for the first one."""

    pins: Mapping[Key, Pin] = field(default_factory=dict, repr=False)
    waiting: Mapping[Key, Waiting] = field(default_factory=dict)
    closed: frozenset[tuple[str, str]] = frozenset()
    replaced_at: str = ""

    def current(self, key: Key) -> str | None:
        """The fingerprint of what the server gave last under that name."""
        pin, held = self.pins.get(key), self.waiting.get(key)
        if held is not None and not held.returned:
            return held.fingerprint
        return pin.fingerprint if pin else None

    @property
    def last_at(self) -> str:
        """The time of the last addition."""
        return max((pin.at for pin in self.pins.values()), default=self.replaced_at)

    def is_closed(self, capabilities: str, kind: str) -> bool:
        return not self.closed.isdisjoint(((EVERY, kind), (capabilities, kind)))

    def has_changed(self, key: Key) -> bool:
        """Whether something other than its pin waits under that name."""
        pin, held = self.pins.get(key), self.waiting.get(key)
        return held is not None and (pin is None or pin.fingerprint != held.fingerprint)


SHUT: Final = PinBook(closed=frozenset((EVERY, kind) for kind in KINDS))
"""Nothing was accepted, and nothing can be a first use."""


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """What became of one definition: `before` and `after` are fingerprints. `again`: its name was waiting already.
    `no_room`: it waits, though it is in the first list of its set, for the pins are over `MAX_PINNED`."""

    key: Key
    what: Literal["first_use", "accepted", "waiting"]
    before: str | None
    after: str
    again: bool = False
    no_room: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A definition that a person has seen and accepts, in every era in which it is what the server gave last."""

    kind: PinKind
    name: str
    fingerprint: str


def meet(
    book: PinBook, twin: PinBook, mode: Mode, capabilities: str, kind: PinKind, found: Mapping[str, Found], at: str
) -> tuple[PinBook, list[DefinitionChange]]:
    """The book after a complete list of one kind in one capability set; the same object if it says nothing new. `twin`
    is the book of the other era: what a person accepted there needs no second look here, what waits there is no first
    use here."""
    pins, waiting, changes = dict(book.pins), dict(book.waiting), []
    is_first = mode != "block" and not book.is_closed(capabilities, kind)
    is_new = is_first and _has_room(book, capabilities, kind)
    for own, seen in found.items():
        key: Key = (kind, own)
        placed = _assign(book, twin, is_first, is_new, capabilities, key, seen, at)
        if placed is None:
            continue
        if isinstance(placed, Pin):
            pins[key] = placed
        else:
            waiting.pop(key, None)  # the newest stands last
            waiting[key] = placed
        if change := _change(book, key, placed):
            is_left_out = is_first and not is_new and change.what == "waiting" and change.before is None
            changes.append(replace(change, no_room=True) if is_left_out else change)
    closed = book.closed | {(capabilities, kind)} if found else book.closed
    if pins == book.pins and waiting == book.waiting and closed == book.closed:
        return book, []
    new_pins = pins if pins != book.pins else book.pins
    return replace(book, pins=new_pins, waiting=_bounded(waiting, pins), closed=closed), changes


def _has_room(book: PinBook, capabilities: str, kind: PinKind) -> bool:
    """Whether what this set lists first may be pinned, also under new names."""
    is_further = any(listed == kind and one != capabilities for one, listed in book.closed)
    return not is_further or sum(len(pin.text) + _EACH for pin in book.pins.values()) <= MAX_PINNED


def _assign(
    book: PinBook, twin: PinBook, is_first: bool, is_new: bool, capabilities: str, key: Key, seen: Found, at: str
) -> Pin | Waiting | None:
    """Returns the entry that a definition gets now; None if it has that already. `is_first` is whether its list is the
    first of that set, and `is_new` whether that may have new names."""
    pin, held = book.pins.get(key), book.waiting.get(key)
    is_pinned = pin is not None and pin.fingerprint == seen.fingerprint
    if held is not None and is_pinned and book.has_changed(key):
        return None if held.returned else replace(held, returned=True)
    if pin is not None and is_pinned:
        if pin.counts_in(capabilities):
            return None
        if is_first:  # also while it waits for another set, whose first list was over without it
            return replace(pin, sets=pin.sets | {capabilities})
    if held is not None:
        if held.fingerprint != seen.fingerprint:
            return Waiting(seen.fingerprint, canonical(seen.value), at)
        if held.returned or not held.text:
            return replace(held, text=held.text or canonical(seen.value), returned=False)
        return None
    vouched = twin.pins.get(key)
    if vouched is not None and vouched.by and vouched.fingerprint == seen.fingerprint:
        return vouched
    if pin is None and is_new and key not in twin.waiting:
        return Pin(seen.fingerprint, canonical(seen.value), "", at, frozenset({capabilities}))
    return Waiting(seen.fingerprint, canonical(seen.value), at)


def _change(book: PinBook, key: Key, placed: Pin | Waiting) -> DefinitionChange | None:
    pin, held = book.pins.get(key), book.waiting.get(key)
    before = pin.fingerprint if pin else None
    if isinstance(placed, Pin):
        if before == placed.fingerprint and not placed.by:
            return None
        return DefinitionChange(key, "accepted" if placed.by else "first_use", before, placed.fingerprint)
    if held is not None and held.fingerprint == placed.fingerprint:
        return None
    return DefinitionChange(key, "waiting", before, placed.fingerprint, again=held is not None)


def _bounded(waiting: dict[Key, Waiting], pins: Mapping[Key, Pin]) -> dict[Key, Waiting]:
    """A server that invents names for ever is not remembered for ever: names without a pin are forgotten, oldest
    first. They stay withheld, for nobody accepted them. Of a name with a pin it is remembered that it changed."""
    excess, size = len(waiting) - MAX_WAITING, sum(len(held.text) for held in waiting.values())
    for key in [key for key in waiting if key not in pins] if excess > 0 or size > MAX_WAITING_TEXT else ():
        if excess <= 0 and size <= MAX_WAITING_TEXT:
            break
        excess, size = excess - 1, size - len(waiting.pop(key).text)
    for key, held in tuple(waiting.items()) if size > MAX_WAITING_TEXT else ():
        if size <= MAX_WAITING_TEXT:
            break
        size -= len(held.text)
        waiting[key] = replace(held, text="")
    return waiting


def close(book: PinBook, capabilities: str) -> PinBook:
    """The first look at a server in that capability set is over: what it adds from now on is new. A server that has
    listed nothing there yet is still being met."""
    closed = book.closed | {(capabilities, kind) for kind in KINDS}
    if closed == book.closed or not any(one == capabilities for one, _ in book.closed):
        return book
    return replace(book, closed=closed)


def succeed(before: Iterable[PinBook], at: str) -> Generator[None, None, PinBook]:
    """The book that a server begins with if others were known under its key before: what they had pinned stays so, the
    newest of each name, as long as it is equal; everything else waits, for nothing is a first use."""
    pins: dict[Key, Pin] = {}
    for book in before:
        for number, (key, pin) in enumerate(book.pins.items(), 1):
            if key not in pins or pins[key].at < pin.at:
                pins[key] = pin
            if number % ROWS == 0:
                yield
    return replace(SHUT, pins=pins, replaced_at=at)


def is_withheld(
    mode: Mode, book: PinBook, twin: PinBook, key: Key, fingerprint: str, capabilities: str | None = None
) -> bool:
    """Whether that definition under that name is kept from clients of a capability set; None: from those of any. A
    pinned name that changed is withheld in every set, and in both eras: it is the same tool."""
    if mode in ("off", "warn"):
        return False
    pin = book.pins.get(key)
    if pin is None or pin.fingerprint != fingerprint or (mode == "block" and not pin.by):
        return True
    if key in book.waiting if capabilities is None else not pin.counts_in(capabilities):
        return True
    return book.has_changed(key) or (twin.has_changed(key) and key in twin.pins)


def accept(book: PinBook, seen: Mapping[Key, Collection[str]], by: str, at: str) -> tuple[PinBook, dict[Key, str]]:
    """The book in which what the server gave last is the pin, of each definition that is still as the person has seen
    it, in one era or the other; and the fingerprints of these. What has no text any more nobody has seen."""
    taken = {key: current for key, marks in seen.items() if (current := book.current(key)) and current in marks}
    taken = {key: current for key, current in taken.items() if newest(book, key)}
    new = {key: Pin(current, newest(book, key), by, at) for key, current in taken.items()}
    waiting = {key: held for key, held in book.waiting.items() if key not in new}
    return replace(book, pins={**book.pins, **new}, waiting=waiting), taken


def state(book: PinBook, key: Key) -> str:
    """first_use, accepted; changed, new, returned while it waits."""
    pin, held = book.pins.get(key), book.waiting.get(key)
    if held is None:
        return pin.state if pin else "unknown"
    if pin is None or not book.has_changed(key):
        return "new"
    return "returned" if held.returned else "changed"


def newest(book: PinBook, key: Key) -> str:
    """The canonical text of what the server gave last under that name; empty where there is none."""
    pin, held = book.pins.get(key), book.waiting.get(key)
    if held is not None and not held.returned:
        return held.text
    return pin.text if pin else ""


def notice(count: int, is_replaced: bool) -> str:
    """What a person should know of a server of which `count` definitions wait, in a clause; empty where none do."""
    waits = f"{count} definition{'s wait' if count != 1 else ' waits'}"
    return "" if not count else f"another server under this key: {waits}" if is_replaced else waits


def keys(book: PinBook) -> list[Key]:
    return sorted({*book.pins, *book.waiting}, key=lambda key: (KINDS.index(key[0]), key[1]))


def lock(rows: Iterable[Json]) -> Json:
    """The lock file of these rows: server, era, kind and name to fingerprint, of what servers gave last."""
    servers: Json = {}
    for row in rows:
        level = servers.setdefault(row["server"], {}).setdefault(row["era"], {}).setdefault(row["kind"], {})
        level[row["name"]] = f"sha256:{row['current']}"
    return {"version": 1, "servers": servers}


def breaches(locked: Json, rows: Iterable[Json]) -> list[str]:
    """In words, what servers give that is not in the lock file. What they no longer give does no harm."""
    found = []
    for row in rows:
        level = inside(locked, "servers", row["server"], row["era"], row["kind"], row["name"])
        if level != f"sha256:{row['current']}":
            how = "is not in the lock file" if level is None else f"is not the locked {level}"
            where = f"{row['server']} ({row['era']}): {row['kind']} {row['name']}"
            found.append(f"{where}: sha256:{row['current']} {how}")
    return found


def unseen(locked: Json, rows: Iterable[Json]) -> int:
    """How many definitions of the lock file no server has given."""
    listed = lock(rows)["servers"]
    return sum(
        name not in listed.get(server, {}).get(era, {}).get(kind, {})
        for server, eras in locked.get("servers", {}).items()
        for era, kinds in eras.items()
        for kind, names in kinds.items()
        for name in names
    )


def pins_to_json(book: PinBook) -> bytes:
    """JSON, made of one pin after the other: a thread that encodes all of it at once holds up the others."""
    rows = ([*key, pin.fingerprint, pin.text, pin.by, pin.at, sorted(pin.sets)] for key, pin in book.pins.items())
    rest = dump({"closed": sorted(book.closed), "replaced_at": book.replaced_at})
    return b'{"pins":[%b],%b' % (b",".join(map(dump, rows)), rest[1:])


def waiting_to_json(book: PinBook) -> bytes:
    waiting = book.waiting.items()
    rows = ([*key, held.fingerprint, held.text, held.since, held.returned] for key, held in waiting)
    return b'{"waiting":[%b]}' % b",".join(map(dump, rows))


def from_json(pins: Any, waiting: Any) -> Generator[None, None, PinBook]:
    """The book that was kept. Raises `ValueError` for what is none: whoever asks must not take it for an empty one.
    A book of before there were capability sets counts for all of them: an update is no second first look."""
    try:
        return PinBook(
            (yield from _by_key(pins["pins"], _pin)),
            (yield from _by_key(waiting["waiting"], Waiting)),
            frozenset((EVERY, one) if isinstance(one, str) else _closed(*one) for one in pins["closed"]),
            pins.get("replaced_at", ""),
        )
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"no book of pins: {error!r}") from None


def _by_key(rows: Any, made: Callable[..., T]) -> Generator[None, None, dict[Key, T]]:
    found = dict[Key, T]()
    for number, (kind, own, *rest) in enumerate(rows, 1):
        found[kind, own] = made(*rest)
        if number % ROWS == 0:
            yield
    return found


def _pin(fingerprint: str, text: str, by: str, at: str, sets: Iterable[str] = (EVERY,)) -> Pin:
    return Pin(fingerprint, text, by, at, frozenset(sets))


def _closed(capabilities: str, kind: str) -> tuple[str, str]:
    return capabilities, kind
