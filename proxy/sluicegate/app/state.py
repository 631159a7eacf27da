"""Where state is kept: in files of `state.dir`, or in PostgreSQL with key rings from the config.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

from sluicegate.app.settings import DATABASE, KEYS
from sluicegate.config import Config
from sluicegate.store import Store, StoreFailed, sqlite
from sluicegate.store.keys import KeyRing
from sluicegate.store.revoked import Revoked
from sluicegate.store.sqlite import SqliteStore

POSTGRES: Final = "sluicegate.store.postgres"
REVOKED: Final = "revoked/"


def ring(config: Config, name: str) -> KeyRing:
    """The ring `seal`, `digest` or `sign`. Raises what `KeyRing.load` raises."""
    if config.state.keys is None:
        return KeyRing.load(Path(config.state.dir) / KEYS, name)
    return KeyRing.parse(config.state.keys.text(name))


def is_given(config: Config, name: str) -> bool:
    """Whether the config itself has the ring: so have other machines."""
    return getattr(config.state.keys, name, None) is not None


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


async def migrate(config: Config, role: str | None) -> tuple[int, int]:
    """The version of the database's tables before and now. Raises `StoreFailed`."""
    versions: tuple[int, int] = await import_module(POSTGRES).migrate(*_address(config), role)
    return versions


def bring(
    config: Config, marker: str, items: Sequence[tuple[str, bytes, float | None]],
    spent: Sequence[tuple[str, float | None]],
) -> tuple[list[str], list[str]] | None:
    """What another store kept, into the database: see `postgres.bring`. Raises `StoreFailed`."""
    found: tuple[list[str], list[str]] | None = import_module(POSTGRES).bring(*_address(config), marker, items, spent)
    return found


def read(config: Config, prefixes: Sequence[str]) -> dict[str, bytes]:
    """Everything whose key begins with one of these, for a command; nothing where no store is. Raises `StoreFailed`."""
    if config.state.url is None:
        return sqlite.peek(Path(config.state.dir) / DATABASE, prefixes)
    found: dict[str, bytes] = import_module(POSTGRES).peek(*_address(config), prefixes)
    return found


def now(config: Config) -> float:
    """The time that decides whether what is kept has ended: in a fleet the database's. Raises `StoreFailed`."""
    found: float = time.time() if config.fleet is None else import_module(POSTGRES).now(*_address(config))
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


def revoked(config: Config) -> Revoked:
    """What is revoked now, for a command. Raises `StoreFailed`."""
    try:
        ended_keys = Revoked(Path(config.state.dir))
    except OSError as error:
        raise StoreFailed(str(error)) from None
    if config.state.url is not None:
        ended_keys.take(map(named, read(config, [REVOKED])))
    return ended_keys


def named(key: str) -> tuple[str, str | None]:
    """Name and hash of `revoked_key`: the row counts whatever is in it."""
    name, _, hash = key.removeprefix(REVOKED).rpartition("/")
    return name, hash or None


def revoked_key(name: str, hash: str | None) -> str:
    return f"{REVOKED}{name}/{hash or ''}"
