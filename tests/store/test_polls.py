"""The poll of a replica: one statement renews its lease and says what moved, whatever else hangs."""

from collections.abc import AsyncIterator, Iterator

import anyio
import anyio.lowlevel
import psycopg
import pytest
from peers.postgres import Cluster, pair
from waiting import until

from sluicegate.store import Write
from sluicegate.store.postgres import PostgresStore, open_postgres
from sluicegate.store.watch import Polled, Polls, Watch

LEASE = "replica/a"
ROW = b"of a"


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    with pair() as both:
        yield both


@pytest.fixture
async def store(clusters: tuple[Cluster, Cluster]) -> AsyncIterator[PostgresStore]:
    store = await open_postgres(clusters[0].url)
    await store.swap("x", None, [Write("x"), Write(LEASE, ROW, 30), Write("seen/a"), Write("k/one")])
    yield store
    await store.close()


async def poll(store: PostgresStore, row: bytes | None = ROW) -> Polled:
    return await store.poll((LEASE, 60), ("seen/a", 90), row, "replica/", ["k/", "l"])


async def test_a_mark_moves_with_each_key_and_value_and_with_nothing_else(store: PostgresStore) -> None:
    marks = [(await poll(store)).marks]
    await store.put("k/one", b"1")
    marks.append((await poll(store)).marks)
    await store.put("k/two", b"1")
    marks.append((await poll(store)).marks)
    await store.put("k/two", b"2", 0.3)
    marks.append((await poll(store)).marks)
    assert len({one["k/"] for one in marks}) == 4 and len({one["l"] for one in marks}) == 1
    await store.put("k/one", b"1")
    await store.put("k.", b"1")
    await store.spend("k/one", 60)
    await until_it_is_over(store, "k/two")
    assert (await poll(store)).marks == marks[1]
    await store.delete("k/one")
    assert (await poll(store)).marks == marks[0]


async def until_it_is_over(store: PostgresStore, key: str) -> None:
    with anyio.fail_after(20):
        while await store.get(key) is not None:
            pass


async def test_a_lease_is_renewed_that_is_still_ours(store: PostgresStore, clusters: tuple[Cluster, Cluster]) -> None:
    ends = f"SELECT key, extract(epoch FROM expires - now()) > 55 FROM sluice_item WHERE key IN ('{LEASE}', 'seen/a')"
    assert isinstance(store, Polls)
    polled = await poll(store)
    assert polled.is_renewed and polled.rows == [ROW]
    assert sorted(clusters[0].ask(ends)) == [(LEASE.encode(), True), (b"seen/a", True)]
    assert await store.get("seen/a") == ROW
    for row in (None, b"of another"):
        assert not (await poll(store, row)).is_renewed
    await store.put(LEASE, b"of another", 60)
    assert not (await poll(store)).is_renewed and await store.get(LEASE) == b"of another"
    await store.put(LEASE, ROW, 0)
    polled = await poll(store)
    assert not polled.is_renewed and polled.rows == [], "it may be anybody's by now"


async def test_whoever_has_the_lease_locked_keeps_no_poll_waiting(
    store: PostgresStore, clusters: tuple[Cluster, Cluster]
) -> None:
    lock = f"SELECT pg_advisory_xact_lock(hashtextextended(encode('{LEASE}', 'hex'), 7410))"
    with psycopg.connect(clusters[0].url) as other:
        other.execute(lock.encode())
        polled = await poll(store)
        assert not polled.is_renewed and polled.rows == [ROW]
    assert (await poll(store)).is_renewed


async def test_a_lease_is_renewed_while_a_standby_hangs_and_that_writes_fail_is_known(
    store: PostgresStore, clusters: tuple[Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.store.postgres.ANSWER_WITHIN", 1.0)
    monkeypatch.setattr("sluicegate.store.postgres.PROVE_EVERY", 0.0)
    clusters[1].pause()
    try:
        assert (await poll(store)).is_renewed and (await poll(store)).is_renewed
        await until(lambda: bool(store.problem))
    finally:
        clusters[1].resume()
    await until(lambda: not store.problem)


async def test_parts_look_for_themselves_where_nobody_polls_in_time() -> None:
    watch = Watch(0.05)
    assert watch.mark("a", "b") is None and watch.prefixes == ("a", "b")
    watch.tell({"a": "1", "b": "2"}, 7.0)
    assert watch.mark("b", "a") == ("2", "1") and watch.since == 7.0
    assert watch.mark("a", "c") is None and watch.prefixes == ("a", "b", "c")
    with anyio.fail_after(20):
        await watch.turn(0.01)
        assert watch.mark("a") is None
        async with anyio.create_task_group() as group:
            group.start_soon(watch.turn, 3600.0)
            await anyio.lowlevel.checkpoint()
            watch.tell({"a": "3"}, 8.0)
    assert watch.mark("a") == ("3",)
