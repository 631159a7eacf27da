"""Which Sluices run on a database: one at a time, or the replicas of a fleet, which know each other.

Each holds a lease, a row of the store that it renews and that ends soon after it. One that starts waits until a lease
in its way is over.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, Protocol

import anyio

from sluicegate import __version__, telemetry
from sluicegate.app import audit_heads, blocks, settings
from sluicegate.app.partition import WHOLE, Partition
from sluicegate.app.state import REVOKED
from sluicegate.config import Config
from sluicegate.metrics import Sample
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.store import Store, StoreFailed, Write
from sluicegate.store.keys import KeyRing, Sealer
from sluicegate.store.watch import Polled, Polls, Watch

LEASE: Final = "lease/sluice"
REPLICA: Final = "replica/"
SEEN: Final = "seen/"
"""The same rows for longer: what a replica knows that is cut off from the store, and may still serve."""
LASTS: Final = 10.0
"""Seconds. A Sluice that could not renew its lease for so long may have been replaced."""
BEAT: Final = 1.0
CONFIRM_WITHIN: Final = 12.0
LOOK_EVERY: Final = 5.0
"""Seconds until the list of all audit logs, and of those that may still serve, is read again if it has changed."""
_SKEWED: Final = 1.0
_PROMPT: Final = 0.5  # seconds
_DIFFER_FOR: Final = 60.0
_PATIENCE: Final = 1.5  # seconds
AGREED_WITHIN: Final = 5
"""Beats that a replica waits at its start for those that live, for one of them may be dead."""
_SEEN_FOR: Final = 24 * 3600.0  # of one that never stops serving

log = logging.getLogger(__name__)


class SharedServer(Protocol):
    @property
    def most_in_flight(self) -> int: ...

    def set_limit(self, limit: int, is_settled: bool) -> None: ...


SharedServers = Callable[[], Iterable[tuple[str, int, SharedServer]]]


class ConcurrencyShares:
    """How many calls at once each replica may have open at a server: together never more than its `concurrency`. A
    replica tells the others by whose presence it goes (its view), and at which servers it still has more open calls
    than it may. Where replicas come or go, shares shrink at once. They grow once all that live have the same view, and
    none has too many.

    This one is of the replica that has this mark. `see` is to be called with what the store says of the others, and
    `row` to be written to it before that happens again."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.partition = WHOLE
        self._view = ""
        self.is_agreed = False
        self._late: frozenset[str] = frozenset()
        self._shares: dict[str, int] = {}
        self._servers: SharedServers = tuple

    def attach(self, servers: SharedServers) -> None:
        """`servers` gives the key and the `concurrency` of each that runs here."""
        self._servers = servers

    def row(self) -> Json:
        over = [key for key, _, server in self._servers() if server.most_in_flight > self._shares.get(key, 0)]
        return {"view": self._view, "over": over}

    def see(self, others: Mapping[str, Mapping[str, Any]]) -> None:
        """`others`: the row of each other one that lives, by its mark."""
        marks = sorted({*others, self._mark})
        self.partition = Partition(marks.index(self._mark), len(marks))
        self._view = sha256("\n".join(marks).encode()).hexdigest()[:16]
        # One of the version before shares nothing, and would never agree.
        self.is_agreed = all(row["view"] == self._view for row in others.values() if "view" in row)
        self._late = frozenset(key for row in others.values() for key in _server_keys(row.get("over")))
        servers = tuple(self._servers())
        self._shares = {key: self._shares.get(key, 0) for key, _, _ in servers}
        for key, concurrency, server in servers:
            server.set_limit(self.of(key, concurrency), self.is_agreed)

    def of(self, key: str, concurrency: int) -> int:
        """The share of a server: as of now where it is settled, else what it was, or less."""
        share = self.partition.of(concurrency)
        if not self.is_agreed or key in self._late:
            share = min(share, self._shares.get(key, 0))
        self._shares[key] = share
        return share


def _server_keys(over: object) -> Collection[str]:
    return [key for key in over if isinstance(key, str)] if isinstance(over, list) else []


class Replicas:
    """Those of a fleet that live, as the store said a moment ago. An id of a replica's session begins with its mark,
    `NAME.START.`, where START is another one for each start."""

    def __init__(
        self, name: str, url: str | None, stale: float | None = None, log: str = "",
        rings: Mapping[str, KeyRing] | None = None,
    ) -> None:  # fmt: skip
        """`stale`: the seconds after which a replica serves nothing that has no word from the store. `log`: the writer
        of its audit log. `rings`: keys of the config by which others read what is sealed here."""
        self.name, self.url, self.stale, self.log = name, url, stale, log
        self._rings = rings or {}
        self.foreign: list[str] = []
        """The rings of which some other replica has no key."""
        self.start = token_hex(4)
        self._knows, self._blocks, self._policy = 0, "", ""
        self.on_change: list[Callable[[Collection[str]], None]] = []
        """Told the marks of the others that live, again and again."""
        self._heard = self._taken = self._patient = time.monotonic()
        self._found: dict[str, dict[str, Any]] = {}
        self._seen: list[dict[str, Any]] = []
        self.mark = f"{name}.{self.start}."
        self._urls: dict[str, str] = {}
        self._logs: list[str] = [log]
        self._policies: set[str] = set()
        self._agreed = time.monotonic()
        self._ahead, self._is_timed = time.time() - time.monotonic(), False
        self._writers: set[str] = set()
        self.watch = Watch(_PATIENCE)
        self.shares = ConcurrencyShares(self.mark)

    def learned(self, revoked: int, blocks: str, policy: str, since: float) -> None:
        """All keys that were revoked before that moment of the monotonic clock are refused here from now on, and the
        blocks of this version and the policy of this revision are in force."""
        self._knows, self._blocks = revoked, blocks
        self.heard(policy, since)

    def heard(self, policy: str, since: float) -> None:
        """Nothing of that has changed before that moment."""
        self._policy, self._heard = policy, since

    def take(self, rows: Iterable[bytes]) -> None:
        """What the store has of all of them, by now."""
        found = {f"{row['name']}.{row['start']}.": row for row in _read(rows)}
        found.pop(self.mark, None)
        found = self._found = {**self._may_live(found), **found}
        self._urls = {mark: row["url"] for mark, row in found.items() if self._is_safe(row["url"])}
        self._logs = [self.log, *(str(row.get("log", "")) for row in found.values())]
        self._policies = {self._policy, *(str(row.get("policy", "")) for row in found.values())} - {""}
        if len(self._policies) < 2:
            self._agreed = time.monotonic()
        self.foreign = [name for name, ring in self._rings.items() if not ring.agree(_keys(name, found.values()))]
        for name, ring in self._rings.items():  # one that cannot reach the store serves on, and comes back as it was
            ring.agree(_keys(name, [*found.values(), *self._seen]))
        self.shares.see(found)
        for tell in self.on_change:
            tell(self._urls.keys())

    def _is_safe(self, url: object) -> bool:
        """Credentials of clients go there: where replicas show certificates, no row of the store leads elsewhere."""
        return isinstance(url, str) and url.startswith("https:" if (self.url or "").startswith("https:") else "http")

    def _may_live(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Those of before that may live although their leases are over: while the store did not answer here, others
        could not renew theirs either, and they have as long to do so."""
        before, self._taken = self._taken, time.monotonic()
        if self._taken - before > LASTS / 2:
            self._patient = self._taken + LASTS
        names = {row["name"] for row in found.values()} if self._taken < self._patient else None
        return {} if names is None else {mark: row for mark, row in self._found.items() if row["name"] not in names}

    @property
    def problem(self) -> str:
        """Why nothing is served; empty as long as the store is heard of."""
        if self.stale is None or time.monotonic() - self._heard <= self.stale:
            return ""
        return f"the database has not answered for {self.stale:g} s: keys may be revoked, and nothing is served"

    async def look(self, store: Store) -> None:
        """At what changes seldom. Raises `StoreFailed`."""
        before = time.monotonic()
        self._time(await store.now(), before)
        await self.look_around(store)

    def _time(self, there: float, before: float) -> None:
        """What the store's time was, some time after this moment of the monotonic clock."""
        after = time.monotonic()
        if after - before < _PROMPT or not self._is_timed:  # one that waited for a connection says little of the time
            self._ahead, self._is_timed = there - (before + after) / 2, True

    def take_answer(self, polled: Polled, since: float) -> None:
        """The answer to what was asked at this moment of the monotonic clock."""
        self._time(polled.now, since)
        self.watch.tell(polled.marks, since)

    async def look_around(self, store: Store) -> None:
        """At those that may still serve, and at the audit logs of all. Raises `StoreFailed`."""
        await self.look_back(store)
        heads = audit_heads.read((await store.scan(audit_heads.HEADS)).values())
        self._writers = {head.writer for head in heads}

    @property
    def _silent(self) -> list[str]:
        unknown = "" in self._logs  # one of an older version does not say which log it writes
        return [] if unknown else sorted(self._writers.difference(self._logs))

    async def look_back(self, store: Store) -> None:
        """At those that may still serve, although their leases are over. Raises `StoreFailed`."""
        self._seen = [*_read((await store.scan(SEEN)).values())]

    def now(self) -> float:
        """The store's time, as Unix time: what replicas agree on, whatever the clocks of their machines say."""
        return time.monotonic() + self._ahead

    @property
    def _offset(self) -> float:
        return self.now() - time.time()

    def notes(self) -> list[str]:
        """What an operator should know although this replica is ready."""
        notes = [f"no replica writes the audit log {one}: see `sluice audit verify --fleet`" for one in self._silent]
        if time.monotonic() - self._agreed > _DIFFER_FOR:
            notes.append(f"replicas have different policies in force: {', '.join(sorted(self._policies))}")
        if abs(self._offset) > _SKEWED:
            notes.append(f"the clock of this machine is {-self._offset:+.1f} s off that of the database")
        return notes

    def row(self) -> Json:
        about = {"name": self.name, "start": self.start, "url": self.url, "knows": self._knows, "blocks": self._blocks,
                 "policy": self._policy, "log": self.log,
                 "keys": {name: ring.ids() for name, ring in self._rings.items()}}  # fmt: skip
        return {**about, **self.shares.row()}

    def owner(self, id: str) -> tuple[str, str] | None:
        """Mark and URL of another replica that gave out this id; None where it is ours, or that one has ended."""
        mark = id[: id.find(".", id.find(".") + 1) + 1]
        url = self._urls.get(mark)
        return None if url is None else (mark, url)

    def samples(self) -> Iterator[Sample]:
        yield "sluice_fleet_replicas", (), len(self._logs)
        yield "sluice_fleet_revisions", (), max(1, len(self._policies))
        yield "sluice_fleet_silent_logs", (), len(self._silent)
        yield "sluice_state_stale_seconds", (), time.monotonic() - self._heard
        yield "sluice_clock_offset_seconds", (), self._offset


class MarkingSealer:
    """Tokens that say who sealed them: what they are about may be in that process alone."""

    def __init__(self, mark: str, sealer: Sealer) -> None:
        self._mark, self._sealer = mark, sealer

    def seal(self, purpose: str, payload: Json, bound: str) -> str:
        return self._mark + self._sealer.seal(purpose, payload, bound)

    def unseal(self, purpose: str, token: str, bound: str) -> Json | None:
        """Also one of a replica that has ended, which may be good here as well."""
        return self._sealer.unseal(purpose, token.rpartition(".")[2] if isinstance(token, str) else token, bound)


def _read(values: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for value in values:
        with suppress(ValueError):
            row = json.loads(value)
            if isinstance(row, dict) and {"name", "start", "url"} <= row.keys():
                yield row


async def clock(config: Config, store: Store) -> Callable[[], float]:
    """The replicas' clock, which is the database's, for a command that runs beside them. Raises `StoreFailed`."""
    ahead = 0.0 if config.fleet is None else await store.now() - time.time()
    return lambda: time.time() + ahead


async def agree(store: Store, name: str, ring: KeyRing) -> KeyRing:
    """That ring, for a command beside replicas: it makes with the newest key that all of them have."""
    rows = [*(await store.scan(REPLICA)).values(), *(await store.scan(SEEN)).values()]
    ring.agree(_keys(name, _read(rows)))
    return ring


def _keys(ring: str, rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """What each says of its keys; one of an older version says nothing."""
    every = [row["keys"][ring] for row in rows if isinstance(row.get("keys"), dict) and ring in row["keys"]]
    return [ids for ids in every if isinstance(ids, list)]


@asynccontextmanager
async def join(
    config: Config, store: Store, rings: Mapping[str, KeyRing] | None = None
) -> AsyncIterator[Replicas | None]:
    """A lease is held within, where several machines could use the store. `rings` are those of the config whose keys
    all replicas have. Raises `StoreFailed` where another Sluice is in the way."""
    if config.state.url is None:
        yield None
        return
    fleet, ours = config.fleet, None
    if fleet is not None:
        ours = Replicas(fleet.name, fleet.peer.url if fleet.peer is not None else None, config.state.stale,
                        settings.audit(config).path.stem, rings)  # fmt: skip
    lease = _Lease(store, ours)
    await lease.claim()
    if ours is not None:
        await ours.look(store)
    beat = asyncio.create_task(telemetry.supervise("lease", lease.renew))
    try:
        yield ours
    finally:
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat
        with anyio.CancelScope(shield=True), suppress(StoreFailed):
            await lease.end()


async def refuse_beside(config: Config, store: Store) -> None:
    """A command changes nothing beside a Sluice that runs on another machine, whose log would know nothing of it.
    Raises `StoreFailed`."""
    if config.state.url is None:
        return
    for found in (await store.get(LEASE), *(await store.scan(REPLICA)).values()):
        if found is not None:
            raise StoreFailed(f"a Sluice runs on this database ({_named(found)}): change it there")


async def unconfirmed(store: Store) -> list[str]:
    """The names of replicas that may not know all revoked keys and blocks yet, after a moment in which they can learn
    of them. Raises `StoreFailed`."""
    count = len(await store.scan(REVOKED))

    async def late(prefix: str) -> list[str]:
        version = (await blocks.read(store)).version
        rows = _read((await store.scan(prefix)).values())
        return [row["name"] for row in rows if row.get("knows", 0) < count or row.get("blocks", "") != version]

    with anyio.move_on_after(CONFIRM_WITHIN):
        while await late(REPLICA):  # noqa: ASYNC110 - other machines tell nothing
            await anyio.sleep(BEAT / 2)
    return sorted(set(await late(SEEN)))


class _Lease:
    """The row of this process: of the only one, or of a replica."""

    def __init__(self, store: Store, ours: Replicas | None) -> None:
        self._store, self._ours = store, ours
        self._key = LEASE if ours is None else REPLICA + ours.name
        self._id = token_hex(8)
        self._about: Json = {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__, "id": self._id}
        self._looked = -LOOK_EVERY
        self._looked_at: tuple[str, ...] | None = None
        self._perhaps: list[bytes] = []
        """What may be stored there: the last row, and those since of which nobody knows whether they were written."""

    async def claim(self) -> None:
        until = anyio.current_time() + LASTS + BEAT
        logged = None
        while (found := await self._taken()) is not None:
            holder = _named(found)
            if anyio.current_time() > until:
                raise StoreFailed(f"another Sluice runs on this database: {holder}")
            if logged != holder:
                log.info("waiting for the lease of another Sluice", extra={"holder": holder})
            logged = holder
            await anyio.sleep(BEAT)
        if self._ours is not None:
            if self._ours.foreign:
                await self.end()
                raise StoreFailed(f"a replica that runs has none of the keys of state.keys.{self._ours.foreign[0]}")
            # Others make room first, for a moment: until they have, calls and lists wait for a share of each server.
            with anyio.move_on_after(AGREED_WITHIN * BEAT):
                while not self._ours.shares.is_agreed:
                    await anyio.sleep(BEAT / 5)
                    self._ours.take((await self._store.scan(REPLICA)).values())
                    await self._tell()

    async def _taken(self) -> bytes | None:
        """Takes the lease, and returns None; or the one that is in the way."""
        if not await self._write():
            return await self._store.get(self._key) or b"{}"
        replicas = await self._store.scan(REPLICA)
        if self._ours is not None:
            found = await self._store.get(LEASE)
            await self._ours.look_back(self._store)
            self._ours.take(replicas.values())
            await self._tell()
        else:
            found = next(iter(replicas.values()), None)
        if found is not None:
            await self.end()
        return found

    async def renew(self) -> None:
        while True:
            await anyio.sleep(BEAT)
            with suppress(StoreFailed):
                rows = await self._poll()
                if rows is None and not await self._write():
                    log.error("another Sluice has the lease of this one, which ends")
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                if self._ours is not None:
                    self._ours.take((await self._store.scan(REPLICA)).values() if rows is None else rows)
                    await self._tell()
                    mark = self._ours.watch.mark(SEEN, audit_heads.HEADS)
                    is_known = mark is not None and mark == self._looked_at
                    if not is_known and time.monotonic() - self._looked >= LOOK_EVERY:
                        await self._ours.look_around(self._store)
                        self._looked_at, self._looked = mark, time.monotonic()

    async def _poll(self) -> list[bytes] | None:
        """Renews a lease that says what it has to, and asks what moved, in one. The rows of all, or None where the
        lease has to be written. Raises `StoreFailed`."""
        ours, row = self._ours, self._row()
        if ours is None or not isinstance(self._store, Polls):
            return None
        since = time.monotonic()
        polled = await self._store.poll(
            (self._key, LASTS), (SEEN + ours.mark, self._seen_for(ours)), row if self._perhaps == [row] else None,
            REPLICA, ours.watch.prefixes,
        )
        ours.take_answer(polled, since)
        return polled.rows if polled.is_renewed else None

    @staticmethod
    def _seen_for(ours: Replicas) -> float:
        return _SEEN_FOR if ours.stale is None else ours.stale + LASTS

    async def end(self) -> None:
        seen = [] if self._ours is None else [Write(SEEN + self._ours.mark)]
        for row in self._perhaps:
            await self._store.swap(self._key, row, [Write(self._key), *seen])

    async def _tell(self) -> None:
        """Others wait for what has changed here by what is known of them."""
        if self._row() not in self._perhaps:
            await self._write()

    def _row(self) -> bytes:
        return dump({**self._about, **({} if self._ours is None else self._ours.row())})

    async def _write(self) -> bool:
        """Whether the lease is ours now. It may have been over, and nobody's."""
        row = self._row()
        writes = [Write(self._key, row, LASTS)]
        if self._ours is not None:
            writes.append(Write(SEEN + self._ours.mark, row, self._seen_for(self._ours)))
        expected = [*self._perhaps, None]
        self._perhaps = list(dict.fromkeys([*self._perhaps, row]))
        for one in expected:
            if await self._store.swap(self._key, one, writes):
                self._perhaps = [row]
                return True
        found = await self._store.get(self._key)  # a database that failed over may have an earlier one
        if found is None or self._id.encode() not in found or not await self._store.swap(self._key, found, writes):
            return False
        self._perhaps = [row]
        return True


def _named(lease: bytes) -> str:
    try:
        found = json.loads(lease)
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return "one that has just ended"
