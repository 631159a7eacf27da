"""All stores keep the same promises; the one on disk keeps them beyond the process."""

import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

import anyio
import pytest
from peers.engine_clock import Clock, EngineClock
from peers.postgres import Cluster, postgres

from sluicegate.store import Store, StoreFailed, Write, sqlite
from sluicegate.store.memory import PURGE_EVERY, MemoryStore
from sluicegate.store.postgres import open_postgres
from sluicegate.store.private import Exposed
from sluicegate.store.sqlite import SqliteStore

_schemas = count()


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock:
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("store") != "postgres":
        return Clock()
    return EngineClock(request.getfixturevalue("engine"), f"s{next(_schemas)}")


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    clock = request.getfixturevalue("clock")
    store: Store
    if request.param == "postgres":
        store = await open_postgres(clock.url)
    else:
        store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "s" / "db", clock)
    yield store
    await store.close()


async def test_its_time_is_the_one_by_which_things_are_over(store: Store, clock: Clock) -> None:
    assert await store.now() == clock.now
    clock.now += 5
    assert await store.now() == clock.now


async def test_a_value_is_kept_replaced_and_deleted(store: Store) -> None:
    assert await store.get("a") is None
    await store.put("a", b"\x00one")
    await store.put("a", b"two")
    assert await store.get("a") == b"two"
    await store.put("empty", b"")
    assert await store.get("empty") == b""
    await store.delete("a")
    await store.delete("a")
    assert await store.get("a") is None


async def test_a_value_ends_with_its_time(store: Store, clock: Clock) -> None:
    await store.put("short", b"x", ttl=10)
    await store.put("long", b"x")
    clock.now += 9.9
    assert await store.get("short") == b"x"
    clock.now += 0.1
    assert await store.get("short") is None
    assert await store.get("long") == b"x"
    await store.put("short", b"again")
    clock.now += 1e9
    assert await store.get("short") == b"again"


async def test_several_values_are_read_at_once(store: Store, clock: Clock) -> None:
    await store.put("a", b"1")
    await store.put("b", b"2", 10)
    await store.put("c", b"3")
    await store.spend("d", None)
    assert await store.get_all(["a", "b", "d", "none", "\x00", "\u00e4"]) == {"a": b"1", "b": b"2"}
    clock.now += 10
    assert await store.get_all(["a", "b", *(f"x{number}" for number in range(2_000))]) == {"a": b"1"}
    assert await store.get_all([]) == {}


async def test_a_key_is_spent_once(store: Store, clock: Clock) -> None:
    assert await store.spend("k", 10) is True
    assert await store.spend("k", 10) is False
    assert await store.spend("other", 10) is True
    clock.now += 10
    assert await store.spend("k", 10) is True
    assert await store.spend("for ever", None) is True
    clock.now += 1e12
    assert await store.spend("for ever", None) is False


async def test_values_and_spent_keys_do_not_meet(store: Store) -> None:
    assert await store.spend("k", 10)
    assert await store.get("k") is None
    await store.put("k", b"v")
    await store.delete("k")
    assert not await store.spend("k", 10)


async def test_of_many_who_spend_at_once_one_succeeds(store: Store) -> None:
    won: list[bool] = []

    async def spend() -> None:
        won.append(await store.spend("k", 60))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(200):
                group.start_soon(spend)
    assert (len(won), sum(won)) == (200, 1)


async def test_memory_purges_what_is_over(clock: Clock) -> None:
    store = MemoryStore(clock)
    for number in range(PURGE_EVERY - 1):
        await store.put(str(number), b"x", ttl=1) if number % 2 else await store.spend(str(number), 1)
    clock.now += 2
    await store.put("last", b"x")
    assert await store.scan("") == {"last": b"x"} and not store._spent


# ---------------------------------------------------------------- on disk


def rows(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        count = connection.execute("SELECT (SELECT count(*) FROM item) + (SELECT count(*) FROM spent)").fetchone()[0]
    connection.close()
    return int(count)


async def test_sqlite_purges_what_is_over_while_it_runs_and_when_it_opens(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "s" / "db"
    store = SqliteStore(path, clock)
    await store.put("a", b"x", ttl=1)
    await store.spend("b", 1)
    assert rows(path) == 2
    clock.now += 100
    await store.put("c", b"x", ttl=1)
    assert rows(path) == 1
    await store.close()
    clock.now += 100
    await SqliteStore(path, clock).close()
    assert rows(path) == 0


async def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state" / "db")
    await store.put("a", b"x")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()}
    assert modes == {"db": 0o600, "db-wal": 0o600, "db-shm": 0o600}
    await store.close()


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.touch(0o644)
    path.chmod(0o644)
    with pytest.raises(Exposed, match="chmod 0600"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(b"not a database, " * 200)
    path.chmod(0o600)
    with pytest.raises(OSError, match="db cannot be used as a store"):
        SqliteStore(path)


_WRITER = """
import asyncio, pathlib, sys
from sluicegate.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(pathlib.Path(sys.argv[1]))
    number = 0
    while True:
        await asyncio.gather(store.put(f"v{number}", b"x" * 1000), store.spend(f"s{number}", 1e6))
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


def write_until_killed(path: Path) -> int:
    """The last number that a writer acknowledged before it was killed."""
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= 20:
            break
    child.kill()
    last = max(int(number) for number in [*child.stdout.read().split(), "20"])
    child.wait()
    child.stdout.close()
    return last


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "s" / "db"
    last = await anyio.to_thread.run_sync(write_until_killed, path)
    store = SqliteStore(path)
    with anyio.fail_after(60):
        for number in range(last + 1):
            assert await store.get(f"v{number}") == b"x" * 1000
            assert not await store.spend(f"s{number}", 1e6)
        assert await store.spend("fresh", 1)
        await store.close()


_SPENDER = """
import asyncio, pathlib, sys
from sluicegate.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(pathlib.Path(sys.argv[1]))
    print(sum(await asyncio.gather(*(store.spend(f"k{n}", 1e6) for n in range(300)))))
    await store.close()

asyncio.run(main())
"""


def test_several_can_be_the_first_to_open_a_file(tmp_path: Path) -> None:
    """As desktop clients do that start at once. SQLite waits for nobody where two make the same file their own."""
    with ThreadPoolExecutor(6) as pool:
        for number in range(150):
            together, path = threading.Barrier(6), tmp_path / f"{number}.db"

            def open_one(together: threading.Barrier = together, path: Path = path) -> None:
                together.wait()
                sqlite._open(path).close()

            for opened in [pool.submit(open_one) for _ in range(6)]:
                opened.result(30)


def test_processes_that_share_the_file_spend_each_key_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SPENDER, str(tmp_path / "s" / "db")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sum(int(child.communicate(timeout=60)[0]) for child in children) == 300


async def test_a_caller_that_gives_up_harms_nobody(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s" / "db")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(store.put, "a", b"x")
            group.cancel_scope.cancel()
        await store.put("b", b"y")
        assert await store.get("b") == b"y"
        await store.close()
        await store.close()
    with pytest.raises(RuntimeError, match="closed"):
        await store.get("b")


async def test_a_key_that_cannot_be_stored_fails_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s" / "db")
    with anyio.fail_after(60):
        with pytest.raises(ValueError):
            await store.put("\ud800", b"x")
        await store.put("a", b"x")
        assert await store.get("a") == b"x"
        await store.close()


async def test_a_swap_makes_all_its_writes_or_none(store: Store, clock: Clock) -> None:
    assert await store.swap("a", None, [Write("a", b"1"), Write("b", b"2", ttl=10)])
    assert not await store.swap("a", None, [Write("a", b"x"), Write("c", b"x")])
    assert not await store.swap("a", b"other", [Write("a"), Write("c", b"x")])
    assert (await store.get("a"), await store.get("b"), await store.get("c")) == (b"1", b"2", None)
    assert await store.swap("a", b"1", [Write("a"), Write("c", b"3")])
    assert (await store.get("a"), await store.get("c")) == (None, b"3")
    clock.now += 10
    assert await store.swap("b", None, [Write("b", b"again")]), "what is over is nothing"


async def test_of_many_swaps_of_one_value_one_is_made(store: Store) -> None:
    made: list[bool] = []

    async def swap(number: int) -> None:
        made.append(await store.swap("a", None, [Write("a", b"%d" % number)]))

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(swap, number)
    assert made.count(True) == 1


async def test_a_scan_gives_what_begins_so_and_is_not_over(store: Store, clock: Clock) -> None:
    for key in ("p/b", "p/a", "p", "q/a", "p/\U0010fffe"):
        await store.put(key, key.encode())
    await store.put("p/short", b"x", ttl=5)
    clock.now += 5
    assert list(await store.scan("p/")) == ["p/a", "p/b", "p/\U0010fffe"]
    assert await store.scan("none") == {}


async def test_a_value_is_kept_for_so_long_from_now_on(store: Store, clock: Clock) -> None:
    await store.put("a", b"x")
    await store.expire("a", 10)
    await store.expire("nothing", 10)
    clock.now += 9
    assert await store.get("a") == b"x" and await store.get("nothing") is None
    clock.now += 1
    assert await store.get("a") is None


async def test_a_damaged_row_fails_alone_and_is_not_taken_for_one_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "private" / "sluice.db"
    store = SqliteStore(path)
    await store.put("a/text", b"1")
    await store.put("b/number", b"2")
    await store.put("c", b"3")
    with sqlite3.connect(path) as other:
        other.execute("UPDATE item SET value = 'x' WHERE key = 'a/text'")
        other.execute("UPDATE item SET value = 400000000 WHERE key = 'b/number'")
    other.close()
    for key in ("a/text", "b/number"):
        for work in (store.get(key), store.swap(key, b"1", [Write("c", b"4")]), store.scan(key[:2])):
            with pytest.raises(StoreFailed, match=f"row '{key}' of the store is damaged"):
                await work
    assert await store.get("c") == b"3" and store.problem == ""
    await store.put("a/text", b"4")
    assert await store.get("a/text") == b"4"
    await store.close()


async def test_a_store_that_another_program_locks_says_so_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.store.sqlite.BUSY_MILLISECONDS", 1)
    monkeypatch.setattr("sluicegate.store.sqlite.TRY_EVERY", 0.01)
    path = tmp_path / "private" / "sluice.db"
    store = SqliteStore(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreFailed, match="locked"):
            await store.put("a", b"1")
        assert "locked" in store.problem
        other.execute("ROLLBACK")
        with anyio.fail_after(30):
            while store.problem:  # noqa: ASYNC110 - its thread tells nobody
                await anyio.sleep(0.01)
    await store.put("a", b"1")
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open stays there")
@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_is_taken_away_is_noticed_before_a_key_is_spent_in_it(
    tmp_path: Path, end: str, is_replaced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is spent in it, another process could spend again."""
    path = tmp_path / "private" / "sluice.db"
    store = SqliteStore(path)
    assert await store.spend("first", None)
    file = path.with_name(path.name + end)
    kept = file.rename(tmp_path / "kept")
    if is_replaced:
        file.write_bytes(kept.read_bytes())
    for work in (store.spend("a", None), store.get("a"), store.spend("a", None)):
        with pytest.raises(StoreFailed, match=f"{file.name} was removed or replaced"):
            await work
    assert f"{file.name} was removed or replaced" in store.problem
    assert sum("store cannot" in record.message for record in caplog.records) == 1
    kept.rename(file)
    await store.put("a", b"1")
    assert store.problem == ""
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open stays there")
async def test_it_is_noticed_though_nobody_asks_for_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.store.sqlite.TRY_EVERY", 0.01)
    store = SqliteStore(tmp_path / "private" / "sluice.db")
    shutil.rmtree(tmp_path / "private")
    with anyio.fail_after(30):
        while not store.problem:  # noqa: ASYNC110 - its thread tells nobody
            await anyio.sleep(0.01)
    await store.close()


def test_a_file_that_another_program_locks_is_an_error_with_its_name_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.store.sqlite.BUSY_MILLISECONDS", 1)
    path = tmp_path / "private" / "sluice.db"
    SqliteStore(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreFailed, match=r"sluice\.db cannot be used as a store: database is locked"):
            SqliteStore(path)
