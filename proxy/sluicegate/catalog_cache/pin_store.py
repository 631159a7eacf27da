"""Books of pins in the store: where they stand, how they are read and written, and with which one a server begins.

A book belongs to a server's key, identity and era. A server that has none of its own, while others under its key have,
begins with what was pinned for those, and nothing of it is a first use. Books that were kept before servers had an
identity belong to the first server that finds them. Knows no mode, and not when to read or write.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

import anyio

from sluicegate.policy import pins
from sluicegate.policy.pins import Key, Pin, PinBook, Waiting
from sluicegate.protocol.jsonrpc import Malformed, decode_fast
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


def read(kept: Mapping[str, bytes], server: str, identity: str, now: str) -> Stored:
    own = {era: _read_book(kept, book_key(server, identity, era)) for era in ERAS}
    if not any(own.values()):
        inside = f"{PINS}{server}/"
        found = [key.split("/")[2:] for key in kept if key.startswith(inside)]
        if found:
            return _begin(kept, server, {other for other, *era in found if era}, now)
    return Stored({era: book or PinBook() for era, book in own.items()})


def _begin(kept: Mapping[str, bytes], server: str, others: Collection[str], now: str) -> Stored:
    """`others` are the identities of which books are kept."""
    unnamed = {era: _read_book(kept, f"{server}/{era}") or PinBook() for era in ERAS}
    if not others:
        return Stored(unnamed, [])
    former = {
        other: {era: _read_book(kept, book_key(server, other, era)) or PinBook() for era in ERAS} for other in others
    }
    newest = sorted(others, key=lambda other: max(book.last_at for book in former[other].values()), reverse=True)
    return Stored(
        {era: pins.succeed([unnamed[era], *(former[other][era] for other in newest)], now) for era in ERAS},
        [book_key(server, other, era) for other in newest[MAX_FORMER:] for era in ERAS],
    )


def _read_book(kept: Mapping[str, bytes], book_key: str) -> PinBook | None:
    accepted, waiting = (kept.get(prefix + book_key) for prefix in (PINS, WAITING))
    if accepted is None and waiting is None:
        return None
    try:
        return pins.from_json(_decoded(accepted), _decoded(waiting or b'{"waiting": []}'))
    except ValueError as error:
        log.error("pins cannot be read: nothing counts as accepted", extra={"book": book_key, "error": str(error)})
        return pins.SHUT


def merged(ours: PinBook, stored: PinBook) -> PinBook:
    """What was accepted elsewhere, with what waits here: a name that nobody touched there waits on."""
    waiting = {key: held for key, held in ours.waiting.items() if _accepted(ours, key) == _accepted(stored, key)}
    return replace(stored, waiting={**stored.waiting, **waiting}, closed=stored.closed | ours.closed)


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


def _decoded(data: bytes | None) -> Any:
    try:
        return decode_fast(data) if data else None
    except Malformed:
        return None
