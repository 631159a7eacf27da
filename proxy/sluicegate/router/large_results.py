"""Answers over `limits.max_result`, as resources of Sluice's own: their parts are in the store, for whoever made the
call.

To anybody else, and once its time is over, there is no such resource. Reading a part is judged as the call was whose
answer it is. What is kept is bounded for each client and in all: the oldest of whoever has the most leaves first.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluicegate.catalog import part_uris
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import Json, Malformed, decode_fast, dump
from sluicegate.protocol.methods import JUDGED_BY_NAME, TARGET_KINDS
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    LargeAnswer,
    McpServer,
    Outcome,
    Result,
    Target,
    not_found,
)
from sluicegate.store import Store, StoreFailed, Write

_ALL: Final = 8
"""So many times of what one client may have is kept for all together."""
_MAX_ENTRIES: Final = 1_000
_ID_BYTES: Final = 24
_INDEX: Final = "results"
_RECORD: Final = "result:"
_SHOWN_DOCUMENTS: Final = 8
_TOGETHER: Final = 16
"""Parts that are written in one transaction."""
_TRIES: Final = 32
_SPARE: Final = 60.0
"""Seconds that the list of what is kept outlives it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LargeResultBounds:
    """`size` bytes are kept for one client, each answer for `seconds`."""

    size: int = 64 * 1024 * 1024
    seconds: float = 900.0


DEFAULT_BOUNDS: Final = LargeResultBounds()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One answer in the list of all."""

    id: str
    owner: str
    size: int
    parts: int
    expires: float

    def keys(self) -> list[str]:
        return [_RECORD + self.id, *(_part(self.id, number) for number in range(1, self.parts + 1))]


@dataclass(frozen=True, slots=True)
class _Record:
    owner: str
    session: str | None
    identity: str
    target: Target
    documents: Sequence[tuple[str, int]]  # MIME type, number of parts

    def kind_of(self, number: int) -> str | None:
        """The MIME type of a part; None where there is no such part."""
        for kind, parts in self.documents:
            if number <= parts:
                return kind
            number -= parts
        return None

    @property
    def parts(self) -> int:
        return sum(parts for _, parts in self.documents)


class LargeResults:
    """Without a `store` nothing is kept."""

    def __init__(
        self, servers: Mapping[str, McpServer], store: Store | None,
        bounds: LargeResultBounds = DEFAULT_BOUNDS, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._servers, self._store = servers, store
        self._bounds, self._clock = bounds, clock

    # ------------------------------------------------------------ in

    async def keep(self, call: Call, outcome: Outcome) -> Outcome:
        """What the client gets for an oversized answer: how to read it, or `outcome`, which refuses it."""
        large = call.trail.oversized
        if large is None or call.target is None:
            return outcome
        try:
            entry = await self._add(call, call.target, large)
        except StoreFailed as failure:
            log.error("cannot keep a large answer (call %s): %s", call.trail.id, failure)
            return outcome
        finally:
            large.close()
        if entry is None:
            return outcome
        call.trail.parts = {"id": entry.id, "bytes": large.size, "parts": entry.parts}
        return _announced(call, outcome, large, entry)

    async def _add(self, call: Call, target: Target, large: LargeAnswer) -> _Entry | None:
        store = self._store
        parts = sum(len(lengths) for _, lengths in large.documents)
        size = sum(sum(lengths) for _, lengths in large.documents)
        if store is None or not parts or size > self._bounds.size:
            return None
        seconds, owner, id = self._bounds.seconds, tasks.owner(call.client), secrets.token_urlsafe(_ID_BYTES)
        entry = _Entry(id, owner, size, parts, self._clock() + seconds)
        await self._enter(store, entry)
        lengths = [length for _, each in large.documents for length in each]
        start = 0
        for first in range(0, parts, _TOGETHER):
            writes = []
            for number, length in enumerate(lengths[first : first + _TOGETHER], first + 1):
                writes.append(Write(_part(id, number), await large.read(start, length), seconds))
                start += length
            await store.swap(writes[0].key, None, writes)
        documents = [[kind, len(lengths)] for kind, lengths in large.documents]
        identity = self._servers[target.server].identity
        about = [target.server, target.kind, target.own, target.public]
        record = dump([owner, call.client.session, identity, *about, documents])
        return entry if await self._complete(store, entry, record) else None

    async def _enter(self, store: Store, entry: _Entry) -> None:
        """Puts it into the list of all, in place of older ones where there is no room. Raises `StoreFailed`."""
        for _ in range(_TRIES):
            before = await store.get(_INDEX)
            entries = [one for one in _read_index(before) if one.expires > self._clock()]
            gone = []
            while (owner := self._crowding(entries, entry)) is not None:
                oldest = next(one for one in entries if one.owner == owner)
                entries.remove(oldest)
                gone.append(oldest)
            index = dump([[one.id, one.owner, one.size, one.parts, one.expires] for one in (*entries, entry)])
            writes = [Write(_INDEX, index, self._bounds.seconds + _SPARE)]
            writes += [Write(key) for one in gone for key in one.keys()]
            if await store.swap(_INDEX, before, writes):
                return
        raise StoreFailed("the list of large answers is written to without end")

    async def _complete(self, store: Store, entry: _Entry, record: bytes) -> bool:
        """Makes it readable; False where it has had to leave meanwhile. Raises `StoreFailed`."""
        for _ in range(_TRIES):
            before = await store.get(_INDEX)
            if all(one.id != entry.id for one in _read_index(before)):
                for key in entry.keys():
                    await store.delete(key)
                return False
            seconds = self._bounds.seconds
            writes = [Write(_INDEX, before, seconds + _SPARE), Write(_RECORD + entry.id, record, seconds)]
            if await store.swap(_INDEX, before, writes):
                return True
        raise StoreFailed("the list of large answers is written to without end")

    def _crowding(self, entries: Sequence[_Entry], entry: _Entry) -> str | None:
        """Whose oldest answer has to leave, for there is no room."""
        sizes: dict[str, int] = {}
        for one in entries:
            sizes[one.owner] = sizes.get(one.owner, 0) + one.size
        if sizes.get(entry.owner, 0) + entry.size > self._bounds.size and entry.owner in sizes:
            return entry.owner
        if len(entries) >= _MAX_ENTRIES:
            return Counter(one.owner for one in entries).most_common(1)[0][0]
        is_full = sum(sizes.values()) + entry.size > _ALL * self._bounds.size
        return max(sizes, key=sizes.__getitem__) if is_full and sizes else None

    # ------------------------------------------------------------ out

    async def resolve(self, call: Call, resolve: Callable[[Call], Awaitable[Target | None]]) -> Target | None:
        """What a part is an answer of: reading it is judged as that call, which `resolve` has to find still."""
        found = part_uris.read(call.params.get("uri"))
        record = None if found is None else await self._record(found[0], call.client)
        if found is None or record is None or record.kind_of(found[1]) is None:
            return None
        method = next(method for method, kind in TARGET_KINDS.items() if kind == record.target.kind)
        named = {JUDGED_BY_NAME[method]: record.target.public}
        target = await resolve(replace(call, method=method, params=named))
        if target is None or (target.server, target.own) != (record.target.server, record.target.own):
            return None
        return replace(target, is_part=True)

    async def read(self, call: Call) -> Outcome:
        uri = call.params.get("uri")
        found = part_uris.read(uri)
        record = None if found is None else await self._record(found[0], call.client)
        kind = None if found is None or record is None else record.kind_of(found[1])
        if self._store is None or found is None or record is None or kind is None:
            return not_found(call.method, call.params)
        id, number = found
        data = await self._store.get(_part(id, number))
        if data is None:
            return not_found(call.method, call.params)
        about: Json = {"number": number, "of": record.parts}
        if number < record.parts:
            about["next"] = part_uris.uri(id, number + 1)
        call.trail.parts = {"id": id, "part": number}
        content = {"uri": uri, "mimeType": kind, "text": data.decode(), "_meta": {"dev.sluice/part": about}}
        return Result({"contents": [content]})

    async def _record(self, id: str, client: Client) -> _Record | None:
        data = None if self._store is None else await self._store.get(_RECORD + id)
        record = None if data is None else _read_record(data)
        if record is None or record.owner != tasks.owner(client):
            return None
        if tasks.is_nobody(client) and record.session != client.session:
            return None
        server = self._servers.get(record.target.server)
        return record if server is not None and server.identity == record.identity else None


def _part(id: str, number: int) -> str:
    return f"part:{id}:{number}"


def _read_index(data: bytes | None) -> list[_Entry]:
    """Another release may have written it."""
    try:
        found = [] if data is None else decode_fast(data)
        return [_Entry(id, owner, size, parts, expires) for id, owner, size, parts, expires in found]
    except (Malformed, ValueError, TypeError):
        return []


def _read_record(data: bytes) -> _Record | None:
    """Another release may have written it."""
    try:
        match decode_fast(data):
            case [str(owner), str() | None as session, str(identity), str(server),
                  "tool" | "prompt" | "res" as kind, str(own), str(public), list(documents)]:  # fmt: skip
                target = Target(server, kind, own, public)
                return _Record(owner, session, identity, target, [(name, int(parts)) for name, parts in documents])
    except (Malformed, ValueError, TypeError):
        pass
    return None


# ---------------------------------------------------------------- what is said


def _announced(call: Call, outcome: Outcome, large: LargeAnswer, entry: _Entry) -> Outcome:
    first, last = part_uris.uri(entry.id, 1), part_uris.uri(entry.id, entry.parts)
    until = time.strftime("%H:%M UTC", time.gmtime(entry.expires))
    where = f"resources/read of {first}" + (f" to {last}" if entry.parts > 1 else "")
    parts = "1 part" if entry.parts == 1 else f"{entry.parts} parts"
    how = f"It can be read in {parts} until {until}: {where}.{_kinds(large)}"
    what = f"The answer has {large.size:,} bytes. It is over `limits.max_result` or `limits.result_nodes`."
    if isinstance(outcome, Failure):
        data = outcome.data if isinstance(outcome.data, dict) else {}
        about = {"first": first, "last": last, "count": entry.parts}
        return Failure(outcome.code, f"{what} {how}", {**data, "parts": about}, outcome.reason)
    text = f"{what} The tool was executed: do not call it again for the answer. {how}"
    kind = large.documents[0][0]
    link = {"type": "resource_link", "uri": first, "name": f"part 1 of {entry.parts}", "mimeType": kind}
    # A client that knows the tool's outputSchema takes no result without its structuredContent, unless it is an error
    # (2025-06-18 server/tools#output-schema).
    has_schema = call.target is not None and call.target.item is not None and "outputSchema" in call.target.item
    return Result({"content": [{"type": "text", "text": text}, link], "isError": has_schema or large.is_error})


def _kinds(large: LargeAnswer) -> str:
    """Which parts are what, where the answer has several texts."""
    if not 1 < len(large.documents) <= _SHOWN_DOCUMENTS:
        return ""
    ranges, start = [], 1
    for kind, lengths in large.documents:
        end = start + len(lengths) - 1
        word = "JSON" if kind == "application/json" else "text"  # the type itself is the server's word
        ranges.append(f"{start} to {end} {word}" if end > start else f"{start} {word}")
        start = end + 1
    return f" Parts: {', '.join(ranges)}."
