"""Last good snapshots in the store: what a server that is down is still known by.

Knows where they stand there and whose they are; when to keep and when to recall one is said elsewhere.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, Final
from weakref import WeakValueDictionary

from sluicegate.catalog.list_bounds import ITEM, PIECE, add_item, items_digest
from sluicegate.catalog.snapshot import (
    KINDS,
    Entry,
    ListSection,
    ServerNaming,
    Snapshot,
    assemble,
    from_json,
    listing_in_pieces,
    to_json,
)
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.protocol import input_requests_server
from sluicegate.protocol.jsonrpc import Malformed, decode_fast, dump, inside
from sluicegate.protocol.model import Client, Era, McpServer
from sluicegate.runtime.loop_budget import budget_of
from sluicegate.store import Store

Source = tuple[str, int, bytes, str]  # of a list: its method, its time to live, a digest of the items, where it was cut
Made = Callable[[Source, Iterable[Any]], Generator[None, None, ListSection]]
MAX_KEPT: Final = 256 * 1024 * 1024
"""Bytes of one server's lists in the store. Lists that an earlier run wrote do not count."""
MAX_PLACES: Final = 10_000
"""Scopes of one server whose lists are stored."""
KEEP: Final = 30 * 86400.0  # a server that was away for longer has no names left


class _Encoding:
    """A snapshot as bytes, made once for all scopes that keep the same at the same time."""

    def __init__(self) -> None:
        self.turn, self.data = asyncio.Lock(), b""


class SnapshotStore:
    """Without a store nothing is kept."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._sizes = defaultdict[str, dict[str, int]](dict)  # bytes by key, the oldest first
        self._encodings: WeakValueDictionary[tuple[str, bytes, Era], _Encoding] = WeakValueDictionary()

    async def recall(
        self, naming: ServerNaming, server: McpServer, scope: str, client: Client, made: Made | None = None
    ) -> tuple[Snapshot, Era] | None:
        """A server that was not up since the start has no era, so its scope may read otherwise than it did when
        the snapshot was kept: what the client itself is leads there, too. `made` knows lists that were made before."""
        if self._store is None:
            return None
        data = await self._store.get(store_key(server, scope))
        if data is None and (there := await self._store.get(alias(server, client))):
            data = await self._store.get(there.decode())
        return await self._rebuilt(naming, data, client.era, made) if data else None

    async def all(self, naming: ServerNaming, identity: str) -> list[tuple[Era, Snapshot]]:
        """Every stored list of a server, whichever client it was for."""
        stored = {} if self._store is None else await self._store.scan(places(naming.server, identity))
        each = dict.fromkeys(stored.values())  # many clients were shown the same
        found = [await self._rebuilt(naming, data, "legacy") for data in each]
        return [(era, snapshot) for snapshot, era in filter(None, found)]

    async def _rebuilt(
        self, naming: ServerNaming, data: bytes, otherwise: Era, made: Made | None = None
    ) -> tuple[Snapshot, Era] | None:
        """One at a time for each server: whoever comes next finds the lists made, if they are the same."""
        async with self._turns[naming.server]:
            return await budget_of(naming.server).in_pieces(_rebuilt(naming, data, otherwise, made))

    async def has_hung(self, server: McpServer) -> bool:
        """Whether its last start took longer than a start may."""
        return self._store is not None and await self._store.get(hung_key(server.key, server.identity)) is not None

    async def note_hung(self, server: McpServer, is_hung: bool) -> None:
        if self._store is not None:
            hung_mark = hung_key(server.key, server.identity)
            await (self._store.put(hung_mark, b"", KEEP) if is_hung else self._store.delete(hung_mark))

    async def remember(self, server: McpServer, scope: str, client: Client, snapshot: Snapshot, era: Era) -> None:
        if self._store is None:
            return
        there = store_key(server, scope)
        shared = self._encodings.setdefault((server.key, snapshot.digest, era), _Encoding())
        async with shared.turn:
            shared.data = shared.data or await budget_of(server.key).in_pieces(_encoded(snapshot, era))
        await self._store.put(there, shared.data, KEEP)
        await self._forget_oldest(self._store, self._sizes[server.key], there, len(shared.data))
        await self._store.put(alias(server, client), there.encode(), KEEP)

    async def _forget_oldest(self, store: Store, sizes: dict[str, int], newest: str, size: int) -> None:
        """Keeps the stored lists of a server within `MAX_KEPT`: it may list something else to each client, and
        `LentLists` reads all of them at once."""
        sizes.pop(newest, None)
        sizes[newest] = size
        while len(sizes) > MAX_PLACES or (len(sizes) > 1 and sum(sizes.values()) > MAX_KEPT):
            oldest = next(iter(sizes))
            del sizes[oldest]
            await store.delete(oldest)


def places(key: str, identity: str) -> str:
    """What the keys of all stored lists of one server begin with."""
    return f"snapshot/{key}/{_short(identity)}/"


def definitions(stored: Iterable[bytes], method: str = "tools/list") -> dict[str, dict[str, Any]] | None:
    """The tools in stored lists of one server by own name, whichever client they were for; None if no list is known.
    Of one name with several definitions, any. `method` may be that of prompts."""
    found: dict[str, dict[str, Any]] | None = None
    for value in map(_decoded, stored):
        listed = inside(value, "lists", method, "items")
        if isinstance(listed, list):
            found = (found or {}) | {item["name"]: item for item in listed if isinstance(item, dict)}
    return found


def store_key(server: McpServer, scope: str) -> str:
    """Another server under the same key, or the same one under another, has lists of its own."""
    return places(server.key, server.identity) + _short(scope)


def alias(server: McpServer, client: Client) -> str:
    capabilities = input_requests_server.listing(client.capabilities)  # few, whatever a client writes there
    about = dump([server.identity, client.revision, client.principal, client.credential, capabilities]).decode()
    return f"snapshot-of/{server.key}/{_short(about)}"


def hung_key(key: str, identity: str) -> str:
    """Where it stands that the last start of this server took longer than a start may."""
    return f"hung/{key}/{_short(identity)}"


def _short(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _rebuilt(
    naming: ServerNaming, data: bytes, otherwise: Era, made: Made | None
) -> Generator[None, None, tuple[Snapshot, Era] | None]:
    def make(method: str, items: list[Any], ttl_ms: int) -> Generator[None, None, ListSection]:
        mark = b""
        if items and isinstance(items[0], bytes):
            mark = yield from _mark(items)
        own = (decode_fast(item) if isinstance(item, bytes) else item for item in items)
        if made is None:
            return (yield from listing_in_pieces(naming, method, own, ttl_ms))
        return (yield from made((method, ttl_ms, mark, ""), own))

    try:
        value = _value(data, lambda line: line)
        snapshot = yield from from_json(naming.server, value, make)
    except Malformed:
        return None
    if snapshot is None:
        return None
    era = value.get("era")
    return snapshot, era if era in ("legacy", "modern") else otherwise


def _mark(lines: list[bytes]) -> Generator[None, None, bytes]:
    """The digest of the items by which a walk knows them, too (`Intake.digest`)."""
    state, done = items_digest(), 0
    for line in lines:
        add_item(state, line)
        if (done := done + len(line) + ITEM // 16) >= PIECE:
            done = 0
            yield
    return state.digest()


def _encoded(snapshot: Snapshot, era: Era) -> Generator[None, None, bytes]:
    """The first line of JSON has everything but the items; each item follows on its own line. It is made in pieces on
    the event loop: a thread would hold the interpreter's lock, and each read and write would wait up to 20 ms."""
    value = {**to_json(snapshot), "era": era}
    items = [item for held in value["lists"].values() for item in held["items"]]
    lists = {method: {**held, "items": len(held["items"])} for method, held in value["lists"].items()}
    lines, done = [dump({**value, "lists": lists})], 0
    for item in items:
        lines.append(dump(item))
        if (done := done + len(lines[-1]) + ITEM) >= PIECE:
            done = 0
            yield
    return b"\n".join(lines)


def _decoded(data: bytes) -> Any:
    try:
        return _value(data, decode_fast)
    except Malformed:
        return None


def _value(data: bytes, read: Callable[[bytes], Any]) -> Any:
    """What was kept, with each item as `read` takes its line. Raises `Malformed`."""
    first, *rest = data.split(b"\n")
    head = decode_fast(first)
    match head:
        case {"lists": dict() as lists}:
            lines = map(read, rest)
            return {**head, "lists": {method: _with_items(held, lines) for method, held in lists.items()}}
    return head


def _with_items(held: Any, lines: Iterator[Any]) -> Any:
    match held:
        case {"items": int() as count}:
            return {**held, "items": list(islice(lines, max(0, count)))}
    return held


# ---------------------------------------------------------------- without a login


class LentLists:
    """What of a server is shown to clients that have no login there: definitions that a person has accepted, from
    whichever stored list has them. Instructions are not among them. Found once a server, until something changes."""

    def __init__(self, stored: SnapshotStore, pins: DefinitionPins) -> None:
        self._stored, self._pins = stored, pins
        self._found: dict[str, asyncio.Task[tuple[Snapshot, Era] | None]] = {}

    def forget(self, server: str) -> None:
        self._found.pop(server, None)

    async def find(self, naming: ServerNaming, identity: str) -> tuple[Snapshot, Era] | None:
        """None where nothing was accepted, or no list has it."""
        task = self._found.get(naming.server)
        if task is None:
            task = self._found[naming.server] = asyncio.create_task(self._find(naming, identity))
        return await asyncio.shield(task)

    async def _find(self, naming: ServerNaming, identity: str) -> tuple[Snapshot, Era] | None:
        accepted = self._pins.accepted(naming.server)
        stored = await self._stored.all(naming, identity) if accepted else []
        found: dict[str, dict[str, Entry]] = {method: {} for method in KINDS}
        first: tuple[Mapping[str, object], Era] | None = None
        for era, snapshot in stored:
            for method, entries in found.items():
                for entry in snapshot.entries(method):
                    target = entry.target
                    if (target.kind, target.own, entry.fingerprint) in accepted:
                        entries.setdefault(target.public, entry)
                        first = first or (snapshot.about, era)
            await asyncio.sleep(0)
        if first is None:
            return None
        about = {name: value for name, value in first[0].items() if name != "instructions"}
        listings = {method: ListSection(method, tuple(entries.values())) for method, entries in found.items()}
        return assemble(naming.server, about, listings), first[1]
