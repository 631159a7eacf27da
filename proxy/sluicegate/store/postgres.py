"""A store in PostgreSQL, for a Sluice whose machine may be lost: what is kept survives it.

A few connections, each operation a transaction of its own. Time is the engine's, so that clocks of machines do not
matter. Whether a commit took place can be unclear: an operation that was not confirmed in time has failed for whoever
asked, is never tried again, and costs its connection. Needs the extra `postgres`.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic

from sluicegate.store import StoreFailed, Write

log = logging.getLogger(__name__)

CONNECTIONS: Final = 4
CONNECT_WITHIN: Final = 3
"""Seconds for each host of the URL."""
ANSWER_WITHIN: Final = 5.0
"""Seconds for an operation, with its wait for a connection."""
PURGE_EVERY: Final = 60.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sluice_item (key bytea PRIMARY KEY, value bytea NOT NULL, expires timestamptz);
CREATE INDEX IF NOT EXISTS sluice_item_expires ON sluice_item (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS sluice_spent (key bytea PRIMARY KEY, expires timestamptz NOT NULL);
CREATE INDEX IF NOT EXISTS sluice_spent_expires ON sluice_spent (expires);
"""
_IS_THERE: Final = "SELECT to_regclass('sluice_spent')"
_MIGRATING: Final = 7411  # an advisory lock: of those that start together one makes the tables
# Whoever writes a key holds its lock until the commit. In the order of the locks, so that no two wait for each other.
_LOCK: Final = """
SELECT pg_advisory_xact_lock(of.key) FROM
(SELECT DISTINCT hashtextextended(encode(name, 'hex'), 7410) AS key FROM unnest(%s::bytea[]) AS name ORDER BY key) AS of
"""
_THERE: Final = "(expires IS NULL OR expires > clock_timestamp())"
_ENDS: Final = "clock_timestamp() + make_interval(secs => %s)"  # NULL, and so never, of no time
_GET: Final = f"SELECT value FROM sluice_item WHERE key = %s AND {_THERE}"
_PUT: Final = f"""
INSERT INTO sluice_item (key, value, expires) VALUES (%s, %s, {_ENDS})
ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires = excluded.expires
"""
_DELETE: Final = "DELETE FROM sluice_item WHERE key = %s"
_SCAN: Final = f"SELECT key, value FROM sluice_item WHERE key >= %s AND key < %s AND {_THERE} ORDER BY key"
_EXPIRE: Final = f"UPDATE sluice_item SET expires = {_ENDS} WHERE key = %s AND {_THERE}"
_SPEND: Final = f"""
INSERT INTO sluice_spent AS old (key, expires) VALUES (%s, coalesce({_ENDS}, 'infinity'))
ON CONFLICT (key) DO UPDATE SET expires = excluded.expires WHERE old.expires <= clock_timestamp()
"""
_PURGE: Final = tuple(
    f"DELETE FROM {table} WHERE expires <= clock_timestamp()" for table in ("sluice_item", "sluice_spent")
)
_REPLICATION: Final = "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')"
_MAY_LOSE: Final = "PostgreSQL may lose what it has confirmed when a standby takes over: {} there"
_WHERE: Final = "PostgreSQL (state.url)"
_LAST: Final = chr(0x10FFFF)
_LONGEST: Final = 3e9  # seconds: what lasts longer than a century has no end

Connection = AsyncConnection[tuple[Any, ...]]
Result = TypeVar("Result")
_Row = tuple[bytes, bytes | None, float | None]
"""A key, its value, and seconds."""
Work = Callable[[Connection], Awaitable[Result]]


class PostgresStore:
    """`Store` in tables of the database that a libpq URL names. `open_postgres` makes one."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._idle: list[_Open] = []
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._purged = time.monotonic()
        self.problem = self.warning = ""

    async def get(self, key: str) -> bytes | None:
        name = key.encode()
        return await self._do(lambda connection: _get(connection, name))

    async def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
        await self._write([Write(key, value, ttl)])

    async def delete(self, key: str) -> None:
        await self._write([Write(key)])

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        return await self._write(writes, (key.encode(), expected))

    async def _write(self, writes: Sequence[Write], if_found: tuple[bytes, bytes | None] | None = None) -> bool:
        rows = [(write.key.encode(), write.value, _seconds(write.ttl)) for write in writes]
        return await self._do(lambda connection: _write(connection, rows, if_found))

    async def scan(self, prefix: str) -> dict[str, bytes]:
        async def work(connection: Connection) -> dict[str, bytes]:
            return {key.decode(): value for key, value in await (await connection.execute(_SCAN, row)).fetchall()}

        row = prefix.encode(), (prefix + _LAST).encode()
        return await self._do(work)

    async def expire(self, key: str, ttl: float) -> None:
        row = _seconds(ttl), key.encode()
        await self._do(lambda connection: connection.execute(_EXPIRE, row))

    async def spend(self, key: str, ttl: float | None) -> bool:
        async def work(connection: Connection) -> bool:
            return (await connection.execute(_SPEND, row)).rowcount == 1

        row = key.encode(), _seconds(ttl)
        return await self._do(work)

    async def close(self) -> None:
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)
        for one in self._idle:
            await one.connection.close()
        self._idle.clear()

    # ------------------------------------------------------------ operations

    async def _do(self, work: Work[Result]) -> Result:
        """In a task of its own: who gives up an operation does not stop it, as libpq would by asking the engine to
        cancel it. A commit that waits for a standby would succeed by that, with a warning."""
        if self._closed:
            raise RuntimeError("the store is closed")
        attempt = _Attempt()
        task = asyncio.ensure_future(self._attempt(attempt, work))
        self._running.add(task)
        task.add_done_callback(self._settled)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_WITHIN)
        if done:
            return task.result()
        attempt.give_up(task)
        raise self._failed(f"no answer within {ANSWER_WITHIN:.0f} s")

    async def _attempt(self, attempt: "_Attempt", work: Work[Result]) -> Result:
        try:
            async with self._slots, self._connection(attempt) as one:
                result = await work(one.connection)
                if one.warning:
                    raise StoreFailed(f"the engine does not vouch for a commit: {one.warning}")
                await self._purge(one.connection)
        except psycopg.Error as error:
            raise self._failed(_said(error)) from None
        except OSError as error:
            raise self._failed(str(error)) from None
        self.problem = ""
        return result

    def _failed(self, why: str) -> StoreFailed:
        if self.problem != why:
            log.error("store cannot write", extra={"error": why})
        self.problem = why
        return StoreFailed(why)

    def _settled(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    @asynccontextmanager
    async def _connection(self, attempt: "_Attempt") -> "AsyncIterator[_Open]":
        """One that nobody else uses. It is kept only where all went well, and with it those that are idle: where one
        is broken they are too, most of the time."""
        one = self._idle.pop() if self._idle else await self._connect()
        attempt.connection = one.connection
        try:
            one.warning = ""
            yield one
        except BaseException:
            for broken in (one, *self._idle):
                broken.connection.pgconn.finish()
            self._idle.clear()
            raise
        finally:
            attempt.connection = None
        self._idle.append(one)

    async def _connect(self) -> "_Open":
        return _Open(await AsyncConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None))

    async def _purge(self, connection: Connection) -> None:
        if time.monotonic() - self._purged >= PURGE_EVERY:
            self._purged = time.monotonic()
            for statement in _PURGE:
                await connection.execute(statement)

    # ------------------------------------------------------------ at the start

    async def prepare(self) -> None:
        """Makes the tables and looks whether the engine keeps what it confirms. Raises `StoreFailed`."""

        async def work(connection: Connection) -> str:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
                if await (await connection.execute(_IS_THERE)).fetchone() == (None,):  # else the role may make none
                    await connection.execute(sql.SQL(_SCHEMA))
            return _doubt(await (await connection.execute(_REPLICATION)).fetchone())

        self.warning = await self._do(work)


class _Open:
    """A connection, and what the engine warned of in its last operation."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.warning = ""
        connection.add_notice_handler(self._notice)

    def _notice(self, said: Diagnostic) -> None:
        if said.severity_nonlocalized == "WARNING":  # "canceling wait for synchronous replication": perhaps lost
            self.warning = said.message_primary or "a warning"


class _Attempt:
    """An operation that is under way."""

    def __init__(self) -> None:
        self.connection: Connection | None = None

    def give_up(self, task: "asyncio.Task[Any]") -> None:
        """Ends its connection under it, without a word to the engine."""
        if self.connection is None:
            task.cancel()
            return
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.connection.fileno())) as one:
            one.shutdown(socket.SHUT_RDWR)


async def open_postgres(url: str, password: str | None = None) -> PostgresStore:
    """Raises `StoreFailed` where the URL is none, or the database cannot be used."""
    store = PostgresStore(_conninfo(url, password))
    try:
        await store.prepare()
    except StoreFailed as error:
        await store.close()
        raise StoreFailed(f"{_WHERE}: {error}") from None
    except BaseException:
        await store.close()
        raise
    return store


def _doubt(row: tuple[Any, ...] | None) -> str:
    names, commit = row or ("", "")
    if not names:
        return _MAY_LOSE.format("synchronous_standby_names is empty")
    return _MAY_LOSE.format(f"synchronous_commit is {commit}") if commit in ("off", "local") else ""


def _conninfo(url: str, password: str | None) -> str:
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error as error:
        raise StoreFailed(f"{_WHERE}: no URL of a database: {_said(error)}") from None
    own: dict[str, Any] = {"connect_timeout": CONNECT_WITHIN, "application_name": "sluice",
                           "target_session_attrs": "read-write"}  # fmt: skip
    named = {} if password is None else {"password": password}
    return make_conninfo(**{**own, **given, **named})


async def _get(connection: Connection, key: bytes) -> bytes | None:
    row = await (await connection.execute(_GET, (key,))).fetchone()
    return None if row is None else row[0]


async def _write(connection: Connection, rows: Sequence[_Row], if_found: tuple[bytes, bytes | None] | None) -> bool:
    """All rows, or none where something else is found under a key."""
    names = {name for name, _, _ in rows}
    async with connection.transaction():
        await connection.execute(_LOCK, ([*names, *((if_found[0],) if if_found else ())],))
        if if_found is not None and await _get(connection, if_found[0]) != if_found[1]:
            return False
        async with connection.pipeline():
            for name, value, seconds in rows:
                if value is None:
                    await connection.execute(_DELETE, (name,))
                else:
                    await connection.execute(_PUT, (name, value, seconds))
    return True


def _seconds(ttl: float | None) -> float | None:
    return None if ttl is None or ttl > _LONGEST else ttl


def _said(error: psycopg.Error) -> str:
    """Its first line: others tell more of the connection than belongs in a log."""
    return (error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__).strip()


def look(url: str, password: str | None) -> str:
    """Returns why it may lose what it confirmed; empty where it does not. Raises `StoreFailed`."""
    with _looking(url, password) as connection:
        return _doubt(connection.execute(_REPLICATION).fetchone())


def peek(url: str, password: str | None, prefixes: Sequence[str]) -> dict[str, bytes]:
    """Everything whose key begins with one of these; nothing where no tables are. Raises `StoreFailed`."""
    with _looking(url, password) as connection:
        if connection.execute(_IS_THERE).fetchone() == (None,):
            return {}
        rows = [row for prefix in prefixes
                for row in connection.execute(_SCAN, (prefix.encode(), (prefix + _LAST).encode()))]  # fmt: skip
        return {key.decode(): value for key, value in rows}


@contextmanager
def _looking(url: str, password: str | None) -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    """For a command, which has nothing else to do."""
    try:
        with psycopg.connect(_conninfo(url, password), autocommit=True, prepare_threshold=None) as connection:
            yield connection
    except psycopg.Error as error:
        raise StoreFailed(f"{_WHERE}: {_said(error)}") from None
