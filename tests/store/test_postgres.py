"""What PostgreSQL does where a commit is unclear, a standby hangs or a primary dies: an operation that was not
confirmed is never a yes."""

import signal
import socket
from collections.abc import AsyncIterator, Iterator

import anyio
import anyio.lowlevel
import pytest
from peers.postgres import Cluster, pair, postgres
from waiting import until

from sluicegate.store import StoreFailed, Write
from sluicegate.store import postgres as postgres_store
from sluicegate.store.postgres import CONNECTIONS, PostgresStore, open_postgres


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    with pair() as both:
        yield both


@pytest.fixture
async def replicated(clusters: tuple[Cluster, Cluster]) -> tuple[Cluster, Cluster]:
    """A primary and its standby. Commits of an earlier test are confirmed: they would be counted with those here."""
    await until(lambda: not waiting(clusters[0]))
    return clusters


@pytest.fixture
async def store(replicated: tuple[Cluster, Cluster]) -> AsyncIterator[PostgresStore]:
    store = await open_postgres(replicated[0].url)
    yield store
    await store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.store.postgres.ANSWER_WITHIN", 1.0)


def waiting(engine: Cluster) -> list[int]:
    """The engine's processes whose commit waits for a standby."""
    return [int(str(row[0])) for row in engine.ask("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")]


# ---------------------------------------------------------------- replication


async def test_whether_a_commit_can_be_lost_is_known_at_the_start(engine: Cluster, store: PostgresStore) -> None:
    assert store.warning == ""
    alone = await open_postgres(engine.url)
    assert alone.warning.endswith(": synchronous_standby_names is empty there")
    await alone.close()


async def test_and_so_is_a_setting_of_one_role(replicated: tuple[Cluster, Cluster]) -> None:
    hasty = await open_postgres(f"{replicated[0].url}?options=-csynchronous_commit%3Dlocal")
    assert hasty.warning.endswith(": synchronous_commit is local there")
    await hasty.close()


@pytest.mark.parametrize("settings", ["", "?options=-cstatement_timeout%3D200"])
async def test_what_waits_for_a_standby_that_hangs_has_failed_and_is_spent(
    replicated: tuple[Cluster, Cluster], impatient: None, settings: str
) -> None:
    """A timeout of the engine does not end that wait. The row is there: a second attempt must not succeed either."""
    primary, standby = replicated
    store = await open_postgres(primary.url + settings)
    key = f"hangs{settings}"
    standby.pause()
    try:
        with pytest.raises(StoreFailed, match="no answer within"):
            await store.spend(key, None)
        assert store.problem
    finally:
        standby.resume()
    assert not await store.spend(key, None)
    assert store.problem == ""
    await store.close()


async def test_a_commit_that_the_engine_was_told_to_stop_waiting_for_is_no_yes(
    replicated: tuple[Cluster, Cluster], store: PostgresStore
) -> None:
    """`pg_cancel_backend` turns the wait into a success, with a warning."""
    primary, standby = replicated
    await store.put("before", b"1")
    failed: list[str] = []

    async def attempt(work: str) -> None:
        try:
            await (store.spend("told", None) if work == "spend" else store.swap("told", None, [Write("told", b"1")]))
        except StoreFailed as error:
            failed.append(str(error))

    standby.pause()
    try:
        async with anyio.create_task_group() as group:
            for work in ("spend", "swap"):
                group.start_soon(attempt, work)
            await until(lambda: len(waiting(primary)) == 2)
            for pid in waiting(primary):
                primary.ask(f"SELECT pg_cancel_backend({pid})")
    finally:
        standby.resume()
    assert len(failed) == 2 and all("canceling wait for synchronous replication" in one for one in failed), failed
    assert not await store.spend("told", None) and not await store.swap("told", None, [Write("told", b"2")])


async def test_who_gives_up_does_not_turn_a_wait_into_a_success(
    replicated: tuple[Cluster, Cluster], store: PostgresStore, impatient: None
) -> None:
    """libpq's own way to give up is to ask the engine to cancel, which ends the wait for the standby."""
    primary, standby = replicated
    standby.pause()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(store.spend, "given up", None)
            await until(lambda: bool(waiting(primary)))
            group.cancel_scope.cancel()
        assert waiting(primary)
    finally:
        standby.resume()
    assert not await store.spend("given up", None)


async def test_what_was_confirmed_is_still_spent_at_the_standby_that_takes_over(impatient: None) -> None:
    with pair() as (primary, standby):
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        store = await open_postgres(f"postgresql://postgres@{hosts}/postgres")
        won: set[str] = set()

        async def spend(key: str) -> None:
            try:
                if await store.spend(key, None):
                    assert key not in won, "spent twice"
                    won.add(key)
            except StoreFailed:
                pass  # unclear

        for number in range(20):
            await spend(f"early {number}")
        standby.pause()
        async with anyio.create_task_group() as group:
            for number in range(CONNECTIONS):
                group.start_soon(spend, f"late {number}")
        assert len(won) == 20
        primary.stop(signal.SIGKILL)
        standby.resume()
        standby.ask("ALTER SYSTEM SET synchronous_standby_names = ''; ")
        standby.ask("SELECT pg_promote()")
        await until(lambda: standby.ask("SELECT pg_is_in_recovery()") == [(False,)])
        with anyio.fail_after(30):
            while not await works(store):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.05)
        for number in range(20):
            await spend(f"early {number}")
        assert len(won) == 20
        await store.close()


async def works(store: PostgresStore) -> bool:
    try:
        await store.put("works", b"1")
    except StoreFailed:
        return False
    return True


async def reads(store: PostgresStore) -> bool:
    try:
        return await store.get("free") is None
    except StoreFailed:
        return False


# ---------------------------------------------------------------- an engine that is not there


async def test_an_engine_that_hangs_is_waited_for_no_longer_and_found_again(engine: Cluster, impatient: None) -> None:
    store = await open_postgres(engine.url)
    await store.put("a", b"1")
    engine.pause()
    try:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(3 * CONNECTIONS):
                    group.start_soon(gives_up, store)
        assert store.problem == "no answer within 1 s"
    finally:
        engine.resume()
    assert await store.get("a") == b"1"
    await store.put("a", b"2")
    assert store.problem == ""
    await store.close()


async def gives_up(store: PostgresStore) -> None:
    with pytest.raises(StoreFailed, match="no answer within 1 s"):
        await store.get("a")


async def test_connections_that_the_engine_ended_cost_one_operation_and_are_made_anew(engine: Cluster) -> None:
    store = await open_postgres(engine.url)
    async with anyio.create_task_group() as group:
        for number in range(CONNECTIONS):
            group.start_soon(store.put, f"n{number}", b"1")
    engine.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice'")
    with pytest.raises(StoreFailed):
        await store.get("n0")
    assert await store.get("n0") == b"1"
    await store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://127.0.0.1:1/none", "refused"),
        ("http://127.0.0.1/", "not a URL"),
        ("postgresql://a b/c", "not a URL"),
    ],
)
async def test_an_engine_that_cannot_be_used_is_an_error_with_its_reason(url: str, said: str) -> None:
    with pytest.raises(StoreFailed, match=said):
        await open_postgres(url)


async def test_an_error_does_not_have_the_password(engine: Cluster) -> None:
    url = engine.url.replace("postgres@", "nobody:hunter2secret@")
    with pytest.raises(StoreFailed, match="nobody") as failed:
        await open_postgres(url)
    assert "hunter2" not in str(failed.value)
    with pytest.raises(StoreFailed) as failed:
        await open_postgres(engine.url.replace("postgres@", "nobody@"), "hunter2secret")
    assert "hunter2" not in str(failed.value)


async def test_a_standby_is_not_written_to(replicated: tuple[Cluster, Cluster]) -> None:
    with pytest.raises(StoreFailed, match="read-only"):
        await open_postgres(replicated[1].url)


# ---------------------------------------------------------------- several, and rights


async def test_of_several_sluices_one_spends_a_key_and_one_swaps_a_value(engine: Cluster) -> None:
    stores = [await open_postgres(engine.url) for _ in range(3)]
    won: list[str] = []

    async def both(store: PostgresStore, number: int) -> None:
        if await store.spend(f"race {number}", 60):
            won.append(f"spend {number}")
        if await store.swap(f"race {number}", None, [Write(f"race {number}", b"1"), Write(f"with {number}", b"1")]):
            won.append(f"swap {number}")

    async with anyio.create_task_group() as group:
        for number in range(100):
            for store in stores:
                group.start_soon(both, store, number)
                group.start_soon(store.put, f"with {number}", b"2")
    assert sorted(won) == sorted(f"{what} {number}" for what in ("spend", "swap") for number in range(100))
    for store in stores:
        await store.close()


async def test_what_is_over_is_deleted(engine: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.store.postgres.PURGE_EVERY", 0.2)
    store = await open_postgres(engine.url)
    await store.put("over", b"1", ttl=0)
    many = "SELECT convert_to('many ' || n, 'UTF8'), '', now() FROM generate_series(1, 2500) n"
    engine.ask(f"INSERT INTO sluice_item {many}")
    await store.spend("over", 0)
    await anyio.sleep(0.2)
    await store.get("over")
    for table in ("sluice_item", "sluice_spent"):
        rows = f"SELECT count(*) FROM {table} WHERE key = 'over' OR key LIKE 'many %'"
        await until(lambda rows=rows: engine.ask(rows) == [(0,)])  # type: ignore[misc]
    await store.close()


async def test_who_gives_up_harms_nobody(engine: Cluster) -> None:
    store = await open_postgres(engine.url)
    async with anyio.create_task_group() as group:
        group.start_soon(store.put, "given", b"1")
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    await store.put("b", b"2")
    assert await store.get("b") == b"2"
    await store.close()
    await store.close()
    with pytest.raises(RuntimeError, match="closed"):
        await store.get("b")


# ---------------------------------------------------------------- who gives up, and what stays behind


async def test_operations_whose_callers_have_gone_end_and_the_store_closes(
    replicated: tuple[Cluster, Cluster], impatient: None
) -> None:
    primary, standby = replicated
    store = await open_postgres(primary.url)
    standby.pause()
    try:
        async with anyio.create_task_group() as group:
            for number in range(CONNECTIONS):
                group.start_soon(store.spend, f"gone {number}", None)
            await until(lambda: len(waiting(primary)) >= CONNECTIONS)
            group.cancel_scope.cancel()
        with anyio.fail_after(30):
            while not await reads(store):  # noqa: ASYNC110 - until their places are free again
                await anyio.sleep(0.05)
            await store.close()
    finally:
        standby.resume()


async def test_tries_of_one_key_leave_no_crowd_in_the_engine(
    replicated: tuple[Cluster, Cluster], impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.store.postgres_statements.PATIENCE", "SET LOCAL lock_timeout = '500ms'")
    monkeypatch.setattr("sluicegate.store.postgres.TRY_EVERY", 3600.0)
    primary, standby = replicated
    store = await open_postgres(primary.url)
    standby.pause()
    try:
        for _ in range(6):
            with pytest.raises(StoreFailed):
                await store.put("one key", b"1")
        locked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: primary.ask(locked) == [(0,)])
        assert len(waiting(primary)) == 1
    finally:
        standby.resume()
    await store.close()


async def test_a_write_that_failed_is_told_until_one_succeeds(
    replicated: tuple[Cluster, Cluster], impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.store.postgres.TRY_EVERY", 0.05)
    primary, standby = replicated
    store = await open_postgres(primary.url)
    standby.pause()
    try:
        with pytest.raises(StoreFailed):
            await store.put("told", b"1")
        assert await store.get("nothing") is None
        assert store.problem == "no answer within 1 s", "reads succeed"
    finally:
        standby.resume()
    await until(lambda: store.problem == "")  # by itself
    await store.close()


async def test_the_first_hosts_may_be_silent(engine: Cluster, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take longer than an operation has. The connection is made all the same."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        filler = [socket.create_connection(silent.getsockname()) for _ in range(1)]
        port = silent.getsockname()[1]
        monkeypatch.setattr("sluicegate.store.postgres.CONNECT_WITHIN", 2)
        store = PostgresStore(postgres_store._conninfo(
            f"postgresql://postgres@127.0.0.1:{port},127.0.0.1:{engine.port}/postgres", None))  # fmt: skip
        with pytest.raises(StoreFailed):
            await store.get("silent")
        await until(lambda: bool(store._idle))
        assert await store.get("silent") is None
        await store.close()
        for one in filler:
            one.close()


@pytest.mark.parametrize(
    "url", ["postgresql://sluice:hunter2%zz@db/x", "postgres//sluice:hunter2@db/x", "postgresql://db/x?password=hunter2%z"]
)
async def test_a_url_that_is_none_is_not_quoted(url: str) -> None:
    with pytest.raises(StoreFailed, match="not a URL of a database") as failed:
        await open_postgres(url)
    assert "hunter2" not in str(failed.value)
    with pytest.raises(StoreFailed, match="not a URL"):
        await open_postgres("postgresql://db/x", "hunter2\ud800")


async def test_a_stricter_isolation_of_the_role_does_not_matter(engine: Cluster) -> None:
    stores = [
        await open_postgres(f"{engine.url}?options=-cdefault_transaction_isolation%3Dserializable") for _ in range(2)
    ]
    won: list[bool] = []

    async def swap(store: PostgresStore, number: int) -> None:
        won.append(await store.swap(f"isolated {number}", None, [Write(f"isolated {number}", b"1")]))

    async with anyio.create_task_group() as group:
        for number in range(50):
            for store in stores:
                group.start_soon(swap, store, number)
    assert sum(won) == 50
    for store in stores:
        await store.close()


async def test_a_key_that_is_not_ours_is_an_error(engine: Cluster) -> None:
    store = await open_postgres(engine.url)
    engine.ask("INSERT INTO sluice_item (key, value) VALUES ('\\x41ff', 'x')")
    with pytest.raises(StoreFailed, match="damaged"):
        await store.scan("")
    engine.ask("DELETE FROM sluice_item WHERE key = '\\x41ff'")
    await store.close()
