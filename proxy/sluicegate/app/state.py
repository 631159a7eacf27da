"""Where state is kept: in files of `state.dir`, or in PostgreSQL with key rings from the config.

With `state.url` one Sluice at a time runs on a database. One that starts waits until the lease of another is over.
"""

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import anyio

from sluicegate import telemetry
from sluicegate.app.settings import DATABASE, KEYS
from sluicegate.config import Config
from sluicegate.protocol.jsonrpc import dump
from sluicegate.store import Store, StoreFailed, Write, sqlite
from sluicegate.store.keys import KeyRing
from sluicegate.store.revoked import Revoked, entry
from sluicegate.store.sqlite import SqliteStore

POSTGRES: Final = "sluicegate.store.postgres"
REVOKED: Final = "revoked/"
LEASE: Final = "lease/sluice"
LASTS: Final = 10.0
BEAT: Final = 2.0
"""Seconds. A Sluice that could not renew its lease for so long may have been replaced."""

log = logging.getLogger(__name__)


def ring(config: Config, name: str) -> KeyRing:
    """The ring `seal`, `digest` or `sign`. Raises what `KeyRing.load` raises."""
    if config.state.keys is None:
        return KeyRing.load(Path(config.state.dir) / KEYS, name)
    return KeyRing.parse(config.state.keys.text(name))


@asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[Store]:
    """Raises `StoreFailed` where it cannot be used."""
    store: Store
    if config.state.url is None:
        store = SqliteStore(Path(config.state.dir) / DATABASE)
    else:
        store = await import_module(POSTGRES).open_postgres(*_address(config))
    try:
        yield store
    finally:
        await store.close()


def _address(config: Config) -> tuple[str, str | None]:
    state = config.state
    assert state.url is not None
    return state.url.get_secret_value(), None if state.password is None else state.password.get_secret_value()


def read(config: Config, prefixes: Sequence[str]) -> dict[str, bytes]:
    """Everything whose key begins with one of these, for a command; nothing where no store is. Raises `StoreFailed`."""
    if config.state.url is None:
        return sqlite.peek(Path(config.state.dir) / DATABASE, prefixes)
    found: dict[str, bytes] = import_module(POSTGRES).peek(*_address(config), prefixes)
    return found


def doubt(config: Config) -> str:
    """Why the database may lose what it confirmed. Raises `StoreFailed` where it cannot be used."""
    found: str = import_module(POSTGRES).look(*_address(config))
    return "" if config.state.replicated else found


def peek(config: Config, prefixes: Sequence[str]) -> dict[str, bytes]:
    """The same where it may as well be nothing."""
    try:
        return read(config, prefixes)
    except StoreFailed:
        return {}


def where(config: Config) -> str:
    """For people: the file, or the engine. A URL may have a password."""
    return str(Path(config.state.dir) / DATABASE) if config.state.url is None else "PostgreSQL"


def exists(config: Config) -> bool:
    """Whether some Sluice may have kept something."""
    return config.state.url is not None or (Path(config.state.dir) / DATABASE).exists()


# ---------------------------------------------------------------- revoked keys


def revoked(config: Config) -> Revoked:
    """What is revoked now, for a command. Raises `StoreFailed`, and `Exposed` as `Revoked`."""
    known = Revoked(Path(config.state.dir))
    if config.state.url is not None:
        known.take(read(config, [REVOKED]).values())
    return known


async def revoke_everywhere(config: Config, name: str, hash: str | None) -> None:
    """For Sluices on other machines. Raises `StoreFailed`."""
    async with open_store(config) as store:
        await store.put(f"{REVOKED}{name}/{hash or ''}", entry(name, hash))


# ---------------------------------------------------------------- one at a time


@asynccontextmanager
async def lease(config: Config, store: Store) -> AsyncIterator[None]:
    """Held within, where several machines could use the store. Raises `StoreFailed` where another Sluice keeps it."""
    if config.state.url is None:
        yield
        return
    mine = dump({"host": socket.gethostname(), "pid": os.getpid(), "id": os.urandom(8).hex()})
    await _claim(store, mine)
    beat = asyncio.create_task(telemetry.supervise("lease", partial(_beat, store, mine)))
    try:
        yield
    finally:
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat
        with anyio.CancelScope(shield=True), suppress(StoreFailed):
            await store.swap(LEASE, mine, [Write(LEASE)])


async def refuse_beside(config: Config, store: Store) -> None:
    """A command changes nothing beside a Sluice that runs on another machine, whose log would know nothing of it.
    Raises `StoreFailed`."""
    if config.state.url is not None and (found := await store.get(LEASE)) is not None:
        raise StoreFailed(f"a Sluice runs on this database ({_named(found)}): change it there")


async def _claim(store: Store, mine: bytes) -> None:
    until = anyio.current_time() + LASTS + BEAT
    said = None
    while not await store.swap(LEASE, None, [Write(LEASE, mine, LASTS)]):
        holder = _named(await store.get(LEASE) or b"{}")
        if anyio.current_time() > until:
            raise StoreFailed(f"another Sluice runs on this database: {holder}")
        if said != holder:
            log.info("waiting for the lease of another Sluice", extra={"holder": holder})
        said = holder
        await anyio.sleep(BEAT / 2)


def _named(lease: bytes) -> str:
    try:
        found = json.loads(lease)
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return "one that has just ended"


async def _beat(store: Store, mine: bytes) -> None:
    while True:
        await anyio.sleep(BEAT)
        with suppress(StoreFailed):
            if await store.swap(LEASE, mine, [Write(LEASE, mine, LASTS)]):
                continue
            if await store.swap(LEASE, None, [Write(LEASE, mine, LASTS)]):
                continue  # it was over, and nobody had taken it
            log.error("another Sluice runs on this database now: this one ends")
            os.kill(os.getpid(), signal.SIGTERM)
            return
