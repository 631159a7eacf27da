"""Books of pins in the store: where they stand, how they are read and written, and with which one a server begins.

A book belongs to a server's key, identity and era. A server that has none of its own, while others under its key have,
begins with what was pinned for those, and nothing of it is a first use. Books that were kept before servers had an
identity belong to the first server that finds them. They are read in pieces, for others may have written 16 MiB. Knows
no mode, and not when to read or write.
"""

import logging
import re
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

import anyio

from sluicegate.catalog.list_bounds import PIECE
from sluicegate.policy import pins
from sluicegate.policy.pins import Key, Pin, PinBook, Waiting
from sluicegate.protocol.jsonrpc import decode_fast
from sluicegate.protocol.model import Era
from sluicegate.store import Store, Write

T = TypeVar("T")
Args = TypeVarTuple("Args")

log = logging.getLogger(__name__)

ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")
LARGE: Final = 100  # definitions; comparing more for the first time takes longer than others should wait
LARGE_BYTES: Final = 64 * 1024  # of them: 256 KiB of small values take 20 ms
MAX_FORMER: Final = 8  # identities under one key of which books are kept; of more, the oldest are forgotten
PINS: Final = "pins/"
WAITING: Final = "pins-waiting/"
_EMPTY: Final = dict.fromkeys(ERAS, PinBook())
# Where a row ends and the next one begins. It stands in no text: a quote in a text is escaped, or ends it.
_BETWEEN: Final = re.compile(rb'\],(?<=[\]e]\],)(?=\["(?:' + "|".join(pins.KINDS).encode() + rb')",)')
Marks = dict[str, bytes]
"""Digests of the stored values of one server, by key; empty where the value is."""


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


async def marks(kept: Mapping[str, bytes]) -> dict[str, Marks]:
    """The digests for each server that has values in `kept`."""
    return await apart(len(kept), sum(map(len, kept.values())), _marks, kept)


def _marks(kept: Mapping[str, bytes]) -> dict[str, Marks]:
    found = dict[str, Marks]()
    for key, data in kept.items():
        found.setdefault(key.split("/")[1], {})[key] = sha256(data).digest() if data else b""
    return found


def read(kept: Mapping[str, bytes], server: str, identity: str, now: str) -> Generator[None, None, Stored]:
    own = yield from _books(kept, f"{server}/{identity}")
    if not own:
        inside = f"{PINS}{server}/"
        found = [key.split("/")[2:] for key in kept if key.startswith(inside)]
        if found:
            return (yield from _begin(kept, server, {other for other, *era in found if era}, now))
    return Stored(_EMPTY | own)


def _begin(
    kept: Mapping[str, bytes], server: str, others: Collection[str], now: str
) -> Generator[None, None, Stored]:
    """`others` are the identities of which books are kept."""
    unnamed = _EMPTY | (yield from _books(kept, server))
    if not others:
        return Stored(unnamed, [])
    former, last = dict[str, dict[Era, PinBook]](), dict[str, str]()
    for other in others:
        former[other] = _EMPTY | (yield from _books(kept, f"{server}/{other}"))
        last[other] = max(book.last_at for book in former[other].values())
        yield
    newest = sorted(others, key=last.__getitem__, reverse=True)
    books = dict[Era, PinBook]()
    for era in ERAS:
        books[era] = yield from pins.succeed([unnamed[era], *(former[other][era] for other in newest)], now)
    return Stored(books, [book_key(server, other, era) for other in newest[MAX_FORMER:] for era in ERAS])


def _books(kept: Mapping[str, bytes], place: str) -> Generator[None, None, dict[Era, PinBook]]:
    """Those that are kept there."""
    books = dict[Era, PinBook]()
    for era in ERAS:
        accepted, waiting = (kept.get(f"{prefix}{place}/{era}") for prefix in (PINS, WAITING))
        if accepted is None and waiting is None:
            continue
        try:
            first = yield from _decoded(accepted or b"", "pins")
            second = yield from _decoded(waiting or b'{"waiting":[]}', "waiting")
            books[era] = yield from pins.from_json(first, second)
        except (TypeError, ValueError) as error:
            about = {"book": f"{place}/{era}", "error": str(error)}
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
