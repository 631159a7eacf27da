"""One Sluice at a time runs on a database: who starts waits for the lease of another, and who has lost it ends."""

import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from peers.postgres import Cluster, postgres

from sluicegate import config
from sluicegate.app import replicas, state
from sluicegate.config import Config
from sluicegate.store import StoreFailed, Write


@pytest.fixture(scope="module")
def engine() -> Iterator[Cluster]:
    with postgres("fsync=off") as cluster:
        yield cluster


@pytest.fixture
def shared(engine: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(replicas, "LASTS", 1.0)
    monkeypatch.setattr(replicas, "BEAT", 0.2)
    ring = "A" * 43
    rings = {"seal": ring, "digest": ring, "sign": ring}
    section = {"dir": str(tmp_path / "state"), "url": engine.url, "keys": rings}
    return config.make({"policy": {"use": "team"}, "state": section}, tmp_path)


async def test_one_that_runs_keeps_another_from_starting(shared: Config) -> None:
    async with state.open_store(shared) as first, state.open_store(shared) as second:
        async with replicas.join(shared, first):
            with pytest.raises(StoreFailed, match=r"another Sluice runs on this database: process \d+ on "):
                async with replicas.join(shared, second):
                    pytest.fail("two at once")
        with anyio.fail_after(0.9):  # given back: nobody waits until it is over
            async with replicas.join(shared, second):
                pass


async def test_one_that_died_is_waited_for_until_its_lease_is_over(shared: Config) -> None:
    async with state.open_store(shared) as store:
        await store.put(replicas.LEASE, b"of one that died", 0.7)
        began = anyio.current_time()
        async with replicas.join(shared, store):
            assert anyio.current_time() - began >= 0.5


async def test_one_whose_lease_another_has_ends(shared: Config) -> None:
    """As a machine does that was paused for longer than the lease lasts."""
    async with state.open_store(shared) as store:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async with replicas.join(shared, store):
                await store.put(replicas.LEASE, b"of another", 60)
                with anyio.fail_after(30):
                    async for received in signals:
                        assert received == signal.SIGTERM
                        break
        assert await store.get(replicas.LEASE) == b"of another", "it is not given back by who has lost it"
        await store.delete(replicas.LEASE)


async def test_one_whose_lease_was_over_and_nobody_s_goes_on(shared: Config) -> None:
    async with state.open_store(shared) as store, replicas.join(shared, store):
        mine = await store.get(replicas.LEASE)
        assert mine is not None and await store.swap(replicas.LEASE, mine, [Write(replicas.LEASE)])
        with anyio.fail_after(30):
            while await store.get(replicas.LEASE) != mine:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.05)
