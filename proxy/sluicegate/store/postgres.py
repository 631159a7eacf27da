"""A store in PostgreSQL, for a Sluice whose machine may be lost: what is kept survives it.

A few connections, each operation a transaction of its own. Time is the engine's, so that clocks of machines do not
matter. Whether a commit took place can be unclear: an operation that was not confirmed in time has failed for whoever
asked, is never tried again, and costs its connection. Needs the extra `postgres`.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, IsolationLevel, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic, InsufficientPrivilege, LockNotAvailable

from sluicegate.policy.leases import LeaseGrant, LeaseReport
from sluicegate.store import StoreFailed, Write
from sluicegate.store import postgres_statements as statements
from sluicegate.store.watch import Polled

log = logging.getLogger(__name__)

CONNECTIONS: Final = 4
CONNECT_WITHIN: Final = 3
"""Seconds for each host of the URL."""
ANSWER_WITHIN: Final = 5.0
"""Seconds for an operation, with its wait for a connection."""
PURGE_EVERY: Final = 60.0
PROVE_EVERY: Final = 10.0
"""Seconds until a replica that has nothing to write finds out whether it could: its polls wait for no standby."""
TRY_EVERY: Final = 2.0
IDLE_FOR: Final = 60.0
"""Seconds. What stands between may forget a connection that is idle for longer, and tells nobody."""
SETTLED_AT_ONCE: Final = 200
"""Keys of rates: each is locked, and the engine has room for some thousand locks."""

_MIGRATING: Final = 7411  # an advisory lock: of those that start together one makes the tables
_TOO_NEW: Final = (
    "its tables are of version {}, which needs a Sluice that knows version {}; this one knows {}: install a newer one"
)
_NO_RIGHTS: Final = (
    "its tables are of version {}, this Sluice needs {}, and its role may not make them: run "
    "`sluice state migrate --as ROLE` with a role that may"
)
_PROBE: Final = "probe"
_MAY_LOSE: Final = "PostgreSQL may lose what it has confirmed when a standby takes over: {} there"
_WHERE: Final = "PostgreSQL (state.url)"
_LONGEST: Final = 3e9  # seconds: what lasts longer than a century has no end
_SEED: Final = secrets.randbits(63)
"""Nobody can find two values of one hash that does not know it."""

Result = TypeVar("Result")
Connection = AsyncConnection[tuple[Any, ...]]
_Row = tuple[bytes, bytes | None, float | None]
"""A key, its value, and seconds."""
Work = Callable[[Connection], Awaitable[Result]]


class PostgresStore:
    """`Store` in tables of the database that a libpq URL names. `open_postgres` makes one."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._idle: list[_Open] = []
        self._connecting: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._running: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._closed = self._is_recovering = False
        self._purged = self._proved = time.monotonic()
        self.problem = self.warning = ""

    async def get(self, key: str) -> bytes | None:
        name = key.encode()
        return await self._do(lambda connection: _get(connection, name))

    async def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        return _decoded(await self._rows(statements.GET_ALL, ([key.encode() for key in keys],)))

    async def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
        await self._write([Write(key, value, ttl)])

    async def delete(self, key: str) -> None:
        await self._write([Write(key)])

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        return await self._write(writes, (key.encode(), expected))

    async def _write(self, writes: Sequence[Write], if_found: tuple[bytes, bytes | None] | None = None) -> bool:
        rows = [(write.key.encode(), write.value, _seconds(write.ttl)) for write in writes]
        return await self._do(lambda connection: _write(connection, rows, if_found), is_write=True)

    async def scan(self, prefix: str) -> dict[str, bytes]:
        return _decoded(await self._rows(statements.SCAN, statements.span(prefix)))

    async def expire(self, key: str, ttl: float) -> None:
        row = _seconds(ttl), key.encode()
        await self._do(lambda connection: _change(connection, statements.EXPIRE, row), is_write=True)

    async def spend(self, key: str, ttl: float | None) -> bool:
        row = key.encode(), _seconds(ttl)
        return await self._do(lambda connection: _change(connection, statements.SPEND, row), is_write=True) == 1

    async def now(self) -> float:
        return float((await self._rows(statements.NOW, ()))[0][0])

    async def settle(self, holder: str, reports: Sequence[LeaseReport]) -> list[LeaseGrant]:
        """One answer to each. Where it fails, those of some keys may have been counted: they may be sent again, as
        parts of later ones."""
        grants: list[LeaseGrant] = []
        for at in range(0, len(reports), SETTLED_AT_ONCE):
            some = reports[at : at + SETTLED_AT_ONCE]
            found = await self._do(partial(_settle, holder=holder, reports=some))
            if found is None:  # the database is well: others have that key just now
                raise StoreFailed("another replica settles the same rates")
            grants += found
        return grants

    async def poll(
        self, lease: tuple[str, float], seen: tuple[str, float], row: bytes | None, others: str,
        prefixes: Sequence[str],
    ) -> Polled:  # fmt: skip
        if time.monotonic() - self._proved >= PROVE_EVERY:
            self._proved = time.monotonic()
            self._start(self._prove())
        (low, high), spans = statements.span(others), [statements.span(prefix) for prefix in prefixes]
        asked = {
            "lease": lease[0].encode(), "lasts": lease[1], "seen": seen[0].encode(), "seen_for": seen[1], "row": row,
            "low": low, "high": high, "lows": [one for one, _ in spans], "highs": [one for _, one in spans],
            "seed": _SEED,
        }  # fmt: skip
        found = (await self._rows(statements.POLL, asked))[0]
        return Polled(found[0], found[1], found[2], dict(zip(prefixes, found[3], strict=True)))

    async def _rows(self, statement: str, values: Sequence[Any] | dict[str, Any]) -> list[tuple[Any, ...]]:
        async def work(connection: Connection) -> list[tuple[Any, ...]]:
            return await (await connection.execute(statement.encode(), values)).fetchall()

        return await self._do(work)

    async def close(self) -> None:
        """Waits for what was begun, no longer than each operation may take."""
        self._closed = True
        background = [*self._background, *([self._connecting] if self._connecting else ())]
        for task in background:
            task.cancel()
        if tasks := [*background, *self._running]:
            await asyncio.wait(tasks)
        for one in self._idle:
            await one.connection.close()
        self._idle.clear()

    async def _do(self, work: Work[Result], is_write: bool = False) -> Result:
        """In a task of its own: who gives up an operation does not stop it, as libpq would by asking the engine to
        cancel it. A commit that waits for a standby would succeed by that, with a warning."""
        if self._closed:
            raise RuntimeError("the store is closed")
        if time.monotonic() - self._purged >= PURGE_EVERY:
            self._purged = time.monotonic()
            self._start(self._purge())
        attempt = _Attempt()
        task = asyncio.ensure_future(self._attempt(attempt, work, is_write))
        timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN, attempt.give_up, task)
        self._running.add(task)
        task.add_done_callback(lambda done: self._settled(done, timer))
        await asyncio.wait({task})
        if attempt.is_over:
            raise self._failed(f"no answer within {ANSWER_WITHIN:.0f} s")
        return task.result()

    async def _attempt(self, attempt: "_Attempt", work: Work[Result], is_write: bool) -> Result:
        try:
            async with self._slots, self._connection(attempt) as one:
                result = await work(one.connection)
                if one.warning:
                    raise self._failed(f"the engine does not vouch for a commit: {one.warning}")
        except psycopg.Error as error:
            if attempt.is_over:
                raise StoreFailed("given up") from None
            raise self._failed(_text_of(error)) from None
        except OSError as error:
            raise error if isinstance(error, StoreFailed) else self._failed(str(error)) from None
        if is_write:  # that reads succeed does not say that writes do
            self.problem, self._proved = "", time.monotonic()
        return result

    def _failed(self, why: str) -> StoreFailed:
        if self.problem != why:
            log.error("store cannot write", extra={"error": why})
        self.problem = why
        if not self._is_recovering and not self._closed:
            self._start(self._recover())
        return StoreFailed(why)

    async def _recover(self) -> None:
        """Tries to write, until something could be written: nobody else may want to for hours."""
        self._is_recovering = True
        while self.problem:
            await asyncio.sleep(TRY_EVERY)
            await self._prove()
        self._is_recovering = False

    async def _prove(self) -> None:
        with suppress(StoreFailed):
            await self.put(_PROBE, b"", 60)

    async def _purge(self) -> None:
        for statement in statements.PURGE:
            with suppress(StoreFailed):
                while await self._do(partial(_change, statement=statement, row=())) == statements.PURGE_AT_ONCE:
                    pass

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _settled(self, task: "asyncio.Task[Any]", timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._running.discard(task)
        _retrieve(task)

    @asynccontextmanager
    async def _connection(self, attempt: "_Attempt") -> "AsyncIterator[_Open]":
        """One that nobody else uses. It is kept only where all went well, and with it those that are idle: where one
        is broken they are too, most of the time."""
        one = await self._take()
        attempt.connection = one.connection
        try:
            one.warning = ""
            yield one
        except BaseException:
            self._drop([one, *self._idle])
            raise
        finally:
            attempt.connection = None
        one.used = time.monotonic()
        self._idle.append(one)

    async def _take(self) -> "_Open":
        """Whoever waits for a new connection may give up: it is made all the same, for the next one. The first address
        of several may take longer than an operation has."""
        self._drop([one for one in self._idle if time.monotonic() - one.used > IDLE_FOR])
        while not self._idle:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._connect())
                self._connecting.add_done_callback(_retrieve)
            await asyncio.shield(self._connecting)
        return self._idle.pop()

    def _drop(self, those: "list[_Open]") -> None:
        for one in those:
            one.connection.pgconn.finish()
        self._idle = [one for one in self._idle if one not in those]

    async def _connect(self) -> None:
        connection = await AsyncConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN, _cut, connection)  # it may say nothing after that
        try:
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)  # a lock comes before what is read
            self.warning = _doubt(await (await connection.execute(statements.REPLICATION)).fetchone())
        except BaseException:
            connection.pgconn.finish()
            raise
        finally:
            timer.cancel()
        self._idle.append(_Open(connection))

    async def prepare(self, reader: str | None = None, schema: str = "") -> tuple[int, int]:
        """Makes the tables, or what they lack. Returns their version before and now; `reader` is a role that may use
        them, and finds them in `schema`. Raises `StoreFailed`, also where they are too new for this Sluice."""

        async def work(connection: Connection) -> tuple[int, int]:
            async with connection.transaction():
                if schema:
                    await connection.execute("SELECT set_config('search_path', %s, true)", (schema,))
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
                before = 0
                if await (await connection.execute(statements.IS_THERE)).fetchone() != (None,):
                    before = _version(await (await connection.execute(statements.FIND_VERSION)).fetchone())
                try:
                    for statement in statements.after(before):
                        await connection.execute(statement.encode())
                except InsufficientPrivilege:
                    raise StoreFailed(_NO_RIGHTS.format(before, statements.VERSION)) from None
                if reader is not None:
                    for grant in statements.GRANTS:
                        await connection.execute(sql.SQL(grant).format(sql.Identifier(reader)))
            return before, max(before, statements.VERSION)

        return await self._do(work, is_write=True)


class _Open:
    """A connection, and what the engine warned of in its last operation."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.used = connection, time.monotonic()
        self.warning = ""
        connection.add_notice_handler(self._notice)

    def _notice(self, warnings: Diagnostic) -> None:
        if warnings.severity_nonlocalized == "WARNING":  # "canceling wait for synchronous replication": perhaps lost
            self.warning = warnings.message_primary or "a warning"


class _Attempt:
    """An operation that is under way. `is_over` once its time is."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.is_over = False

    def give_up(self, task: "asyncio.Task[Any]") -> None:
        """Ends its connection under it, without a word to the engine."""
        if task.done():
            return
        self.is_over = True
        if self.connection is None:
            task.cancel()
            return
        _cut(self.connection)


def _cut(connection: Connection) -> None:
    """Ends what goes on there. To cancel the task instead would ask the engine to cancel, and wait for its answer."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)


async def open_postgres(url: str, password: str | None = None) -> PostgresStore:
    """Raises `StoreFailed` where the URL is none, or the database cannot be used."""
    store = PostgresStore(_conninfo(url, password))
    await _prepared(store)
    return store


async def migrate(url: str, password: str | None, role: str | None) -> tuple[int, int]:
    """The version of the tables before and now. `role` makes them for the one of the URL, with the password that libpq
    finds for it. Raises `StoreFailed`."""
    user = conninfo_to_dict(_conninfo(url, password)).get("user")
    if role is not None and user is None:
        raise StoreFailed(f"{_WHERE}: the URL names no role that the tables would be for")
    store = PostgresStore(_conninfo(url, password, role))
    versions = await _prepared(store) if role is None else await _prepared(store, str(user), _schema(url, password))
    await store.close()
    return versions


async def _prepared(store: PostgresStore, reader: str | None = None, schema: str = "") -> tuple[int, int]:
    try:
        return await store.prepare(reader, schema)
    except StoreFailed as error:
        await store.close()
        raise StoreFailed(f"{_WHERE}: {error}") from None
    except BaseException:
        await store.close()
        raise


def _version(row: tuple[Any, ...] | None) -> int:
    """Raises `StoreFailed` where this Sluice would not understand what is there."""
    version, needed = row or (0, 0)
    if needed > statements.VERSION:
        raise StoreFailed(_TOO_NEW.format(version, needed, statements.VERSION))
    return int(version)


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Whoever asked may have gone, and nobody is to be told of what failed."""
    if not task.cancelled():
        task.exception()


def _doubt(row: tuple[Any, ...] | None) -> str:
    names, commit = row or ("", "")
    if not names:
        return _MAY_LOSE.format("synchronous_standby_names is empty")
    return _MAY_LOSE.format(f"synchronous_commit is {commit}") if commit in ("off", "local") else ""


def _conninfo(url: str, password: str | None, role: str | None = None) -> str:
    own: dict[str, Any] = {
        "connect_timeout": CONNECT_WITHIN, "application_name": "sluice", "target_session_attrs": "read-write",
        "keepalives_idle": 30, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 10_000,
    }  # fmt: skip
    named: dict[str, Any] = {} if password is None else {"password": password}
    if role is not None:
        named = {"user": role, "password": None}  # which is not that of the other
    try:
        return make_conninfo(**{**own, **conninfo_to_dict(url), **named})
    except (psycopg.Error, UnicodeError):  # libpq's own words quote the URL, and so a password
        hint = "write postgresql://USER@HOST/DATABASE, with special characters as %XX"
        raise StoreFailed(f"{_WHERE}: not a URL of a database: {hint}") from None


async def _get(connection: Connection, key: bytes) -> bytes | None:
    row = await (await connection.execute(statements.GET, (key,))).fetchone()
    return None if row is None else row[0]


async def _change(connection: Connection, statement: str, row: tuple[Any, ...]) -> int:
    """How many rows it changed."""
    async with connection.transaction():
        await connection.execute(statements.PATIENCE)
        return (await connection.execute(statement.encode(), row)).rowcount


async def _settle(connection: Connection, holder: str, reports: Sequence[LeaseReport]) -> list[LeaseGrant] | None:
    """None where a key is busy for longer than rates may wait."""
    columns = dict(zip(LeaseReport._fields, map(list, zip(*reports, strict=True)), strict=True))
    try:
        async with connection.transaction():
            await connection.execute(statements.HASTE)
            await connection.execute(statements.LOCK, (columns["key"],))
            rows = await connection.execute(statements.SETTLE, {**columns, "holder": holder})
            return [LeaseGrant(*row) for row in await rows.fetchall()]
    except LockNotAvailable:
        return None


def _decoded(rows: Sequence[tuple[Any, ...]]) -> dict[str, bytes]:
    try:
        return {key.decode(): value for key, value in rows}
    except UnicodeDecodeError:
        raise StoreFailed("a key of the store is damaged: it is no UTF-8") from None


async def _write(connection: Connection, rows: Sequence[_Row], if_found: tuple[bytes, bytes | None] | None) -> bool:
    """All rows, or none where something else is found under a key."""
    names = {name for name, _, _ in rows}
    async with connection.transaction():
        await connection.execute(statements.PATIENCE)
        await connection.execute(statements.LOCK, ([*names, *((if_found[0],) if if_found else ())],))
        if if_found is not None and await _get(connection, if_found[0]) != if_found[1]:
            return False
        async with connection.pipeline():
            for name, value, seconds in rows:
                if value is None:
                    await connection.execute(statements.DELETE, (name,))
                else:
                    await connection.execute(statements.PUT, (name, value, seconds))
    return True


def _seconds(ttl: float | None) -> float | None:
    return None if ttl is None or ttl > _LONGEST else ttl


def _text_of(error: psycopg.Error) -> str:
    """Its first line: others tell more of the connection than belongs in a log."""
    return (error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__).strip()


def look(url: str, password: str | None) -> str:
    """Returns why it may lose what it confirmed; empty where it does not. Raises `StoreFailed`."""
    with _looking(url, password) as connection:
        _is_made(connection)
        return _doubt(connection.execute(statements.REPLICATION).fetchone())


def peek(url: str, password: str | None, prefixes: Sequence[str]) -> dict[str, bytes]:
    """Everything whose key begins with one of these; nothing where no tables are. Raises `StoreFailed`."""
    with _looking(url, password) as connection:
        if not _is_made(connection):
            return {}
        bounds = [statements.span(prefix) for prefix in prefixes]
        return _decoded([row for bound in bounds for row in connection.execute(statements.SCAN, bound)])


def now(url: str, password: str | None) -> float:
    """By its clock. Raises `StoreFailed`."""
    with _looking(url, password) as connection:
        row = connection.execute(statements.NOW).fetchone()
        return float(row[0]) if row is not None else 0.0


def bring(
    url: str, password: str | None, marker: str, items: Sequence[tuple[str, bytes, float | None]],
    spent: Sequence[tuple[str, float | None]],
) -> tuple[list[str], list[str]] | None:
    """All of another store, in one transaction that may take its time: keys, values and seconds. Returns the keys that
    are new, and those under which something else stands: then nothing was brought. None where all of it was brought
    before, under this `marker`. Raises `StoreFailed`, also where nobody knows whether it was."""
    warnings: list[str] = []
    with _looking(url, password) as connection:
        connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary or "a warning"))
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
            if connection.execute(statements.GET, (marker.encode(),)).fetchone() is not None:
                return None
            names = [key.encode() for key, _, _ in items]
            found = _decoded(connection.execute(statements.GET_ALL, (names,)).fetchall())
            others = [key for key, value, _ in items if found.get(key, value) != value]
            new = [(key.encode(), value, _seconds(ttl)) for key, value, ttl in items if key not in found]
            if not others:
                cursor = connection.cursor()
                cursor.executemany(statements.PUT, [*new, (marker.encode(), b"", None)])
                cursor.executemany(statements.SPENT_TOO, [(key.encode(), _seconds(ttl)) for key, ttl in spent])
        if warnings:
            raise StoreFailed(f"the engine does not vouch for the commit: {warnings[0]}")
    return [key.decode() for key, _, _ in new], others


def _schema(url: str, password: str | None) -> str:
    with _looking(url, password) as connection:
        if (found := connection.execute(statements.SCHEMA).fetchone()) is None or not found[0]:
            raise StoreFailed("its role may use no schema of its search_path")
        return str(found[0])


def _is_made(connection: "psycopg.Connection[tuple[Any, ...]]") -> bool:
    if connection.execute(statements.IS_THERE).fetchone() == (None,):
        return False
    return _version(connection.execute(statements.FIND_VERSION).fetchone()) > 0


@contextmanager
def _looking(url: str, password: str | None) -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    """For a command, which has nothing else to do."""
    conninfo = _conninfo(url, password)
    try:
        with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as connection:
            yield connection
    except psycopg.Error as error:
        raise StoreFailed(f"{_WHERE}: {_text_of(error)}") from None
    except StoreFailed as error:
        raise StoreFailed(f"{_WHERE}: {error}") from None
