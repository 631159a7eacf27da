"""A store in one SQLite file: survives `kill -9` and power cuts, shared by the processes of one machine.

One thread owns the database. Whatever waits for it is done in one transaction with one commit, so a
hundred concurrent writers cost one sync of the disk and the event loop never waits for it.
"""

import asyncio
import logging
import math
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from sluicegate.store import StoreFailed, Write, private

log = logging.getLogger(__name__)

PURGE_EVERY = 60.0
MAX_BATCH = 256
BUSY_MILLISECONDS = 5_000
TRY_EVERY: Final = 5.0
"""Seconds after which the store is tried, though nobody asks for anything."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS item (key TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS item_expires ON item (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS spent (key TEXT PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spent_expires ON spent (expires);
"""
_GET: Final = "SELECT value FROM item WHERE key = ? AND (expires IS NULL OR expires > ?)"
_PUT: Final = "INSERT OR REPLACE INTO item (key, value, expires) VALUES (?, ?, ?)"
_DELETE: Final = "DELETE FROM item WHERE key = ?"
_SCAN: Final = (
    "SELECT key, value FROM item WHERE key >= ? AND key < ? AND (expires IS NULL OR expires > ?) ORDER BY key"
)
_EXPIRE: Final = "UPDATE item SET expires = ? WHERE key = ? AND (expires IS NULL OR expires > ?)"
_LAST: Final = chr(0x10FFFF)
_SPEND: Final = (
    "INSERT INTO spent (key, expires) VALUES (:key, :expires)"
    " ON CONFLICT (key) DO UPDATE SET expires = :expires WHERE expires <= :now"
)

_MOVED: Final = "moved"

Work = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True, eq=False)
class _Job:
    work: Work
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        """On the event loop: hand the outcome to whoever still waits for it."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class SqliteStore:
    """`Store` in the file `path`, made 0600 (and its directory 0700) when it is not there."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Opens the file at once: a store that cannot be used is an error at start. Raises `OSError`."""
        self._path, self._clock = path, clock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self.problem = self.warning = ""
        self._purged = clock()
        self._connection = _open(path)
        try:
            self._connection.execute("DELETE FROM item WHERE expires <= ?", (self._purged,))
            self._connection.execute("DELETE FROM spent WHERE expires <= ?", (self._purged,))
        except sqlite3.Error as error:
            self._connection.close()
            raise StoreFailed(f"{path} cannot be used as a store: {error}") from error
        files = (path.with_name(path.name + end) for end in ("", "-wal", "-shm"))
        self._files = {file: found for file in files if (found := _identity(file)) is not None}
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def get(self, key: str) -> bytes | None:
        now = self._clock()
        value = await self._do(lambda connection: connection.execute(_GET, (key, now)).fetchone())
        return None if value is None else _blob(key, value[0])

    async def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        now = self._clock()

        def work(connection: sqlite3.Connection) -> dict[str, bytes]:
            found = ((key, connection.execute(_GET, (key, now)).fetchone()) for key in keys)
            return {key: _blob(key, row[0]) for key, row in found if row is not None}

        return dict(await self._do(work))

    async def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
        expires = None if ttl is None else self._clock() + ttl
        await self._do(lambda connection: connection.execute(_PUT, (key, value, expires)).rowcount)

    async def delete(self, key: str) -> None:
        await self._do(lambda connection: connection.execute(_DELETE, (key,)).rowcount)

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        now = self._clock()

        def work(connection: sqlite3.Connection) -> bool:
            found = connection.execute(_GET, (key, now)).fetchone()
            if (None if found is None else _blob(key, found[0])) != expected:
                return False
            with _all_or_nothing(connection):
                for write in writes:
                    if write.value is None:
                        connection.execute(_DELETE, (write.key,))
                    else:
                        expires = None if write.ttl is None else now + write.ttl
                        connection.execute(_PUT, (write.key, write.value, expires))
            return True

        return bool(await self._do(work))

    async def scan(self, prefix: str) -> dict[str, bytes]:
        row = (prefix, prefix + _LAST, self._clock())
        found = await self._do(lambda connection: connection.execute(_SCAN, row).fetchall())
        return {key: _blob(key, value) for key, value in found}

    async def expire(self, key: str, ttl: float) -> None:
        now = self._clock()
        await self._do(lambda connection: connection.execute(_EXPIRE, (now + ttl, key, now)).rowcount)

    async def spend(self, key: str, ttl: float | None) -> bool:
        now = self._clock()
        row = {"key": key, "now": now, "expires": math.inf if ttl is None else now + ttl}
        return bool(await self._do(lambda connection: connection.execute(_SPEND, row).rowcount == 1))

    async def now(self) -> float:
        return self._clock()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _do(self, work: Work) -> Any:
        if self._closed:
            raise RuntimeError("the store is closed")
        loop = asyncio.get_running_loop()
        job = _Job(work, loop, loop.create_future())
        self._jobs.put(job)
        return await job.future

    def _run(self) -> None:
        open_ended = True
        while open_ended:
            try:
                jobs, open_ended = self._next()
            except queue.Empty:
                jobs = []
            if jobs or open_ended:
                self._transact(jobs)
                _settle(jobs)
        self._connection.close()

    def _next(self) -> tuple[list[_Job], bool]:
        """Collects waiting work up to a bound; returns False at the end of all work. Raises `queue.Empty` when the
        store has to be tried."""
        jobs: list[_Job] = []
        entry = self._jobs.get(timeout=TRY_EVERY)
        while entry is not None:
            jobs.append(entry)
            if len(jobs) == MAX_BATCH or self._jobs.empty():
                return jobs, True
            entry = self._jobs.get()
        return jobs, False

    def _transact(self, jobs: list[_Job]) -> None:
        """All jobs in one transaction. One that fails fails alone; a commit that fails fails all of them."""
        try:
            self._check()
            self._connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._work(job)
            self._purge()
            self._connection.execute("COMMIT")
            self._check()
            self.problem = ""
        except Exception as error:  # noqa: BLE001 - without its thread every call would wait for the store for ever
            if self.problem != str(error):
                log.error("store cannot write", extra={"path": str(self._path), "error": str(error)})
            self.problem = str(error)
            for job in jobs:
                job.error = StoreFailed(str(error))
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _check(self) -> None:
        """What was written can be found by others: a file without its name could be read here, and by nobody else."""
        for file, found in self._files.items():
            if _identity(file) != found:
                raise StoreFailed(f"{file} was removed or replaced while it was in use")

    def _work(self, job: _Job) -> None:
        try:
            job.value = job.work(self._connection)
        except sqlite3.Error as error:  # a full disk
            job.error = StoreFailed(str(error))
        except Exception as error:  # noqa: BLE001 - a key that SQLite cannot hold, a row that is damaged: it fails alone
            job.error = error

    def _purge(self) -> None:
        now = self._clock()
        if now - self._purged < PURGE_EVERY:
            return
        self._purged = now
        self._connection.execute("DELETE FROM item WHERE expires <= ?", (now,))
        self._connection.execute("DELETE FROM spent WHERE expires <= ?", (now,))


def peek(path: Path, prefixes: Sequence[str]) -> dict[str, bytes]:
    """Everything whose key begins with one of these. No file is made or changed, and nobody is waited for long; nothing
    is there where no store is, or one that cannot be read."""
    try:
        is_open = all(path.with_name(path.name + end).exists() for end in ("-wal", "-shm"))
        # Where nobody has it open, reading it as a file that nobody changes leaves no -wal and -shm behind.
        uri = f"{path.absolute().as_uri()}?mode=ro{'' if is_open else '&immutable=1'}"
        with closing(sqlite3.connect(uri, uri=True, timeout=0.5)) as connection:
            rows = [row for prefix in prefixes
                    for row in connection.execute(_SCAN, (prefix, prefix + _LAST, time.time()))]  # fmt: skip
            return {key: _blob(key, value) for key, value in rows}
    except (sqlite3.Error, OSError):
        return {}


class WholeStore:
    """Everything that a file keeps, for whoever takes it elsewhere. `alone` gives one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._now = time.time()

    def items(self) -> list[tuple[str, bytes, float | None]]:
        """Keys, values, and the seconds that each has still; None is no end."""
        rows = self._connection.execute("SELECT key, value, expires FROM item WHERE key != ? ORDER BY key", (_MOVED,))
        return [(key, _blob(key, value), None if expires is None else expires - self._now)
                for key, value, expires in rows if expires is None or expires > self._now]  # fmt: skip

    def spent(self) -> list[tuple[str, float | None]]:
        rows = self._connection.execute("SELECT key, expires FROM spent WHERE expires > ?", (self._now,))
        return [(key, None if math.isinf(expires) else expires - self._now) for key, expires in rows]

    def close_down(self) -> str:
        """From now on no `SqliteStore` opens it: what may happen once would happen here and there. Returns the mark of
        this file, the same one each time."""
        self._connection.execute("INSERT OR IGNORE INTO item (key, value) VALUES (?, ?)",
                                 (_MOVED, token_hex(8).encode("ascii")))  # fmt: skip
        mark = self._connection.execute("SELECT value FROM item WHERE key = ?", (_MOVED,)).fetchone()[0]
        return _blob(_MOVED, mark).decode("ascii")

    def open_again(self) -> None:
        self._connection.execute("DELETE FROM item WHERE key = ?", (_MOVED,))


@contextmanager
def alone(path: Path) -> Iterator[WholeStore]:
    """Nobody else can open the file within. Raises `StoreFailed` where there is none, or somebody has it open."""
    if not path.exists():
        raise StoreFailed(f"there is no {path}")
    private.check(path.parent, private.DIRECTORY)
    private.check(path, private.FILE)
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0.5)) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # refused as long as somebody else has the file open
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
            yield WholeStore(connection)
    except sqlite3.Error as error:
        is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        raise StoreFailed(f"a Sluice has {path} open: stop it first" if is_busy else f"{path}: {error}") from None


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _blob(key: str, value: object) -> bytes:
    """A row whose value is none of ours is an error, and never one that is not there: what is pinned would be new."""
    if not isinstance(value, bytes):
        raise StoreFailed(f"the row {key!a} of the store is damaged")
    return value


@contextmanager
def _all_or_nothing(connection: sqlite3.Connection) -> Iterator[None]:
    """For a job of several writes: jobs share a transaction, and one that fails must leave nothing of itself."""
    connection.execute("SAVEPOINT job")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO job")
        raise
    finally:
        connection.execute("RELEASE job")


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        try:
            job.loop.call_soon_threadsafe(job.settle)
        except RuntimeError:  # that loop is closed: nobody waits any more
            log.debug("a store answer came too late")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Lets processes share the file. Where several open a new one, SQLite does not wait for the one that was first."""
    until = time.monotonic() + BUSY_MILLISECONDS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _open(path: Path) -> sqlite3.Connection:
    private.make_directory(path.parent)
    private.check(path.parent, private.DIRECTORY)  # who may rename in it may replace what is in it
    try:
        # SQLite gives its -wal and -shm files the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, private.FILE))
        private.check(path, private.FILE)
        with ExitStack() as unless_usable:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            unless_usable.callback(connection.close)
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")  # a spent key must stay spent after a power cut, too
            connection.executescript(_SCHEMA)
            if connection.execute("SELECT value FROM item WHERE key = ?", (_MOVED,)).fetchone() is not None:
                raise StoreFailed(f"{path} was brought into PostgreSQL by `sluice state import`: set state.url")
            unless_usable.pop_all()
    except sqlite3.Error as error:
        raise StoreFailed(f"{path} cannot be used as a store: {error}") from error
    return connection
