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
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from typing import Any, Final

import anyio

from sluicegate import __version__, telemetry
from sluicegate.config import Config
from sluicegate.metrics import Sample
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.store import Store, StoreFailed, Write
from sluicegate.store.keys import Sealer

LEASE: Final = "lease/sluice"
REPLICA: Final = "replica/"
LASTS: Final = 10.0
"""Seconds. A Sluice that could not renew its lease for so long may have been replaced."""
BEAT: Final = 1.0

log = logging.getLogger(__name__)


class Replicas:
    """Those of a fleet that live, as the store said a moment ago. An id of a replica's session begins with its mark,
    `NAME.START.`, where START is another one for each start."""

    def __init__(self, name: str, url: str | None) -> None:
        self.name, self.url = name, url
        self.start = token_hex(4)
        self.mark = f"{name}.{self.start}."
        self._urls: dict[str, str] = {}
        self._count = 1

    def take(self, rows: Mapping[str, bytes]) -> None:
        """What the store has of all of them."""
        found = {f"{row['name']}.{row['start']}.": row["url"] for row in _read(rows.values())}
        found.pop(self.mark, None)
        self._urls = {mark: url for mark, url in found.items() if isinstance(url, str)}
        self._count = len(found) + 1

    def url_of(self, id: str) -> str | None:
        """Where the requests of another replica's session go; None where it is ours, or its replica has ended."""
        end = id.find(".", id.find(".") + 1) + 1
        return self._urls.get(id[:end]) if end else None

    def marking(self, sealer: Sealer) -> "MarkingSealer":
        return MarkingSealer(self.mark, sealer)

    def samples(self) -> Iterator[Sample]:
        yield "sluice_fleet_replicas", (), self._count


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


@asynccontextmanager
async def join(config: Config, store: Store) -> AsyncIterator[Replicas | None]:
    """A lease is held within, where several machines could use the store. Raises `StoreFailed` where another Sluice is
    in the way."""
    if config.state.url is None:
        yield None
        return
    ours = None
    about: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__}
    if config.fleet is not None:
        ours = Replicas(config.fleet.name, config.fleet.peer.url if config.fleet.peer is not None else None)
        about |= {"name": ours.name, "start": ours.start, "url": ours.url}
    lease = _Lease(store, ours, dump({**about, "id": token_hex(8)}))
    await lease.claim()
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


class _Lease:
    """The row of this process: of the only one, or of a replica."""

    def __init__(self, store: Store, ours: Replicas | None, mine: bytes) -> None:
        self._store, self._ours, self._mine = store, ours, mine
        self._key = LEASE if ours is None else REPLICA + ours.name

    async def claim(self) -> None:
        until = anyio.current_time() + LASTS + BEAT
        said = None
        while (found := await self._taken()) is not None:
            holder = _named(found)
            if anyio.current_time() > until:
                raise StoreFailed(f"another Sluice runs on this database: {holder}")
            if said != holder:
                log.info("waiting for the lease of another Sluice", extra={"holder": holder})
            said = holder
            await anyio.sleep(BEAT)

    async def _taken(self) -> bytes | None:
        """Takes the lease, and returns None; or the one that is in the way."""
        if not await self._swap(None):
            return await self._store.get(self._key) or b"{}"
        replicas = await self._store.scan(REPLICA)
        if self._ours is not None:
            found = await self._store.get(LEASE)
            self._ours.take(replicas)
        else:
            found = next(iter(replicas.values()), None)
        if found is not None:
            await self.end()
        return found

    async def renew(self) -> None:
        while True:
            await anyio.sleep(BEAT)
            with suppress(StoreFailed):
                if not await self._swap(self._mine) and not await self._swap(None):  # it was over, and nobody's
                    log.error("another Sluice has the lease of this one, which ends")
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                if self._ours is not None:
                    self._ours.take(await self._store.scan(REPLICA))

    async def end(self) -> None:
        await self._store.swap(self._key, self._mine, [Write(self._key)])

    async def _swap(self, expected: bytes | None) -> bool:
        return await self._store.swap(self._key, expected, [Write(self._key, self._mine, LASTS)])


def _named(lease: bytes) -> str:
    try:
        found = json.loads(lease)
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return "one that has just ended"
