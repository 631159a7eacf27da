"""What PostgreSQL grants of rates that replicas share: the same as the ledger by which the bound is proved, whoever
asks at once, and without a wait for a standby."""

import random
from collections.abc import Iterator
from itertools import count

import anyio
import psycopg
import pytest
from peers.engine_clock import EngineClock
from peers.postgres import Cluster, pair, postgres
from rate_ledger import Clock, Ledger

from sluicegate.policy.leases import LeaseGrant, LeaseReport
from sluicegate.store import StoreFailed
from sluicegate.store.postgres import SETTLED_AT_ONCE, open_postgres

_schemas = count()


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


def report(key: bytes = b"k", *, base: int = 0, total: int = 0, held: int = 0, want: int = 0, amount: int = 20,
           step: float = 1.0, steps: int = 60, is_over: bool = False) -> LeaseReport:  # fmt: skip
    return LeaseReport(key, base, total, held, want, amount, step, steps, is_over)


@pytest.mark.parametrize("seed", range(4))
async def test_it_grants_what_the_ledger_of_the_bound_grants(engine: Cluster, seed: int) -> None:
    """Also where answers are lost, after the report was counted or before, or holders die."""
    clock, drawn = EngineClock(engine, f"r{next(_schemas)}"), random.Random(seed)
    ours, store = Clock(), await open_postgres(clock.url)
    model = Ledger(ours)
    bases = {(holder, key): 0 for holder in "abc" for key in (b"one", b"two", b"three")}
    granted = 0
    for _ in range(60):
        ours.now += drawn.choice([0.0, 0.5, 0.5, 2.0, 11.0, 70.0])
        clock.now = ours.now
        holder = drawn.choice("abc")
        reports = []
        for key in drawn.sample([b"one", b"two", b"three"], drawn.randint(1, 3)):
            base, is_over = bases[holder, key], drawn.random() < 0.2
            more = {} if is_over else {"held": drawn.randrange(4), "want": drawn.randrange(6)}
            reports.append(report(key, base=base, total=base + drawn.randrange(5), is_over=is_over, **more))
        expected = model.settle(holder, reports)
        found = await store.settle(holder, reports)
        assert sorted(found) == [
            LeaseGrant(one.key, one.granted, one.is_open, pytest.approx(one.frees)) for one in sorted(expected)
        ]
        granted += sum(one.granted for one in found)
        if drawn.random() < 0.8:  # else the answer is lost
            bases.update({(holder, one.key): one.total for one in reports})
    assert granted > 50
    await store.close()


async def test_replicas_that_ask_at_once_never_get_more_than_there_is(engine: Cluster) -> None:
    database = f"{engine.url}?options=-csearch_path%3Dpublic"
    stores = [await open_postgres(database) for _ in range(3)]
    keys = [f"at once {number}".encode() for number in range(450)]
    assert len(keys) > 2 * SETTLED_AT_ONCE
    got: list[LeaseGrant] = []

    async def ask(place: int) -> None:
        got.extend(await stores[place].settle(f"r{place}", [report(key, want=9) for key in keys]))

    async with anyio.create_task_group() as group:
        for place in range(3):
            group.start_soon(ask, place)
    granted = {key: sorted(one.granted for one in got if one.key == key) for key in keys}
    assert set(map(tuple, granted.values())) == {(2, 9, 9)}
    for store in stores:
        await store.close()


async def test_what_is_over_is_purged(engine: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_postgres(engine.url)
    await store.settle("r0", [report(b"purged", total=3, want=1, step=0.001)])
    engine.ask("UPDATE sluice_leased SET expires = clock_timestamp()")
    monkeypatch.setattr("sluicegate.store.postgres.PURGE_EVERY", 0.2)
    with anyio.fail_after(10):
        while engine.ask("SELECT 1 FROM sluice_used WHERE key = 'purged' UNION SELECT 2 FROM sluice_leased"):
            await store.get("anything")
    await store.close()


async def test_a_key_that_is_settled_elsewhere_is_not_waited_for_long(engine: Cluster) -> None:
    store = await open_postgres(engine.url)
    idle = list(store._idle)
    with psycopg.connect(engine.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended(encode('held', 'hex'), 7410))")
        with anyio.fail_after(4), pytest.raises(StoreFailed, match="settles the same rates"):
            await store.settle("r0", [report(b"held", want=1)])
        assert store.problem == "" and store._idle == idle, "a busy key is no broken database"
        assert await store.get("anything") is None
    assert (await store.settle("r0", [report(b"held", want=1)]))[0].granted == 1
    await store.close()


async def test_a_standby_that_hangs_holds_up_no_rates() -> None:
    with pair() as (primary, standby):
        store = await open_postgres(primary.url)
        standby.pause()
        try:
            assert (await store.settle("r0", [report(want=1)]))[0].granted == 1
            assert (await store.settle("r1", [report(want=99)]))[0].granted == 19
            assert store.problem == ""
        finally:
            standby.resume()
        await store.close()
