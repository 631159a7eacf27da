"""Last good snapshots in the store: what a server that is down is still known by.

Knows where they stand there and whose they are; when to keep and when to recall one is said elsewhere.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Any, Final, TypeVar

from sluicegate.catalog.snapshot import ServerNaming, Snapshot, from_json, to_json
from sluicegate.protocol import input_requests_server
from sluicegate.protocol.jsonrpc import Malformed, decode_fast, dump, inside
from sluicegate.protocol.model import Client, Era, McpServer
from sluicegate.store import Store

T = TypeVar("T")
_SMALL: Final = 64 * 1024  # bytes that are read at once
KEEP: Final = 30 * 86400.0  # a server that was away for longer has no names left


class SnapshotStore:
    """Without a store nothing is kept."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def recall(
        self, naming: ServerNaming, server: McpServer, scope: str, client: Client
    ) -> tuple[Snapshot, Era] | None:
        """A server that was not up since the start has no era, so its scope may read otherwise than it did when
        the snapshot was kept: what the client itself is leads there, too."""
        if self._store is None:
            return None
        data = await self._store.get(store_key(server, scope))
        if data is None and (there := await self._store.get(alias(server, client))):
            data = await self._store.get(there.decode())
        return await _apart(data, _rebuilt, naming, data, client.era) if data else None

    async def all(self, naming: ServerNaming, identity: str) -> list[tuple[Era, Snapshot]]:
        """Every stored list of a server, whichever client it was for."""
        stored = {} if self._store is None else await self._store.scan(places(naming.server, identity))
        each = dict.fromkeys(stored.values())  # many clients were shown the same
        found = [await _apart(data, _rebuilt, naming, data, "legacy") for data in each]
        return [(era, snapshot) for snapshot, era in filter(None, found)]

    async def has_hung(self, server: McpServer) -> bool:
        """Whether its last start took longer than a start may."""
        return self._store is not None and await self._store.get(hung_key(server.key, server.identity)) is not None

    async def note_hung(self, server: McpServer, is_hung: bool) -> None:
        if self._store is not None:
            place = hung_key(server.key, server.identity)
            await (self._store.put(place, b"", KEEP) if is_hung else self._store.delete(place))

    async def remember(self, server: McpServer, scope: str, client: Client, snapshot: Snapshot, era: Era) -> None:
        if self._store is None:
            return
        there = store_key(server, scope)
        await self._store.put(there, await asyncio.to_thread(_encoded, snapshot, era), KEEP)
        await self._store.put(alias(server, client), there.encode(), KEEP)


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
    told = input_requests_server.listing(client.capabilities)  # few, whatever a client writes there
    about = dump([server.identity, client.revision, client.principal, client.credential, told]).decode()
    return f"snapshot-of/{server.key}/{_short(about)}"


def hung_key(key: str, identity: str) -> str:
    """Where it stands that the last start of this server took longer than a start may."""
    return f"hung/{key}/{_short(identity)}"


def _short(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


async def _apart(data: bytes, work: Callable[..., T], *args: Any) -> T:
    """Work on stored bytes, in a thread where they are many."""
    return work(*args) if len(data) <= _SMALL else await asyncio.to_thread(work, *args)


def _rebuilt(naming: ServerNaming, data: bytes, otherwise: Era) -> tuple[Snapshot, Era] | None:
    value = _decoded(data)
    snapshot = from_json(naming, value)
    if snapshot is None:
        return None
    era = value.get("era")
    return snapshot, era if era in ("legacy", "modern") else otherwise


def _encoded(snapshot: Snapshot, era: Era) -> bytes:
    """A line of JSON for each item behind one for all others: a thread that reads or writes much in one piece stops the
    event loop as long."""
    value = {**to_json(snapshot), "era": era}
    items = [item for held in value["lists"].values() for item in held["items"]]
    lists = {method: {**held, "items": len(held["items"])} for method, held in value["lists"].items()}
    return b"\n".join(map(dump, ({**value, "lists": lists}, *items)))


def _decoded(data: bytes) -> Any:
    try:
        head, *rest = map(decode_fast, data.split(b"\n"))
    except Malformed:
        return None
    match head:
        case {"lists": dict() as lists}:
            lines = iter(rest)
            return {**head, "lists": {method: _with_items(held, lines) for method, held in lists.items()}}
    return head


def _with_items(held: Any, lines: Iterator[Any]) -> Any:
    match held:
        case {"items": int() as count}:
            return {**held, "items": list(islice(lines, max(0, count)))}
    return held
