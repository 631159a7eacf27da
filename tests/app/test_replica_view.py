"""What a replica sees of the others, and of the store, as metrics and notes."""

import time

import anyio
import pytest

from sluicegate.app import replicas
from sluicegate.app.audit_heads import HEADS
from sluicegate.app.replicas import SEEN, Replicas, agree
from sluicegate.audit.checkpoint import Checkpoint
from sluicegate.protocol.jsonrpc import dump
from sluicegate.store.keys import KeyRing
from sluicegate.store.memory import MemoryStore


def of(one: Replicas) -> dict[str, float]:
    return {name: value for name, _, value in one.samples()}


def rows(*those: Replicas) -> list[bytes]:
    return [dump(one.row()) for one in those]


@pytest.fixture
def pair() -> tuple[Replicas, Replicas]:
    return Replicas("a", None, 60, "sluice-a"), Replicas("b", None, 60, "sluice-b")


def test_policies_that_differ_are_counted_at_once_and_noted_when_they_stay_so(
    pair: tuple[Replicas, Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    here.learned(0, "", "one", time.monotonic())
    there.learned(0, "", "one", time.monotonic())
    here.take(rows(here, there))
    assert of(here)["sluice_fleet_replicas"] == 2 and of(here)["sluice_fleet_revisions"] == 1
    there.learned(0, "", "two", time.monotonic())
    here.take(rows(here, there))
    assert of(here)["sluice_fleet_revisions"] == 2 and here.notes() == []
    monkeypatch.setattr(replicas, "_DIFFER_FOR", -1.0)
    assert here.notes() == ["replicas have different policies in force: one, two"]


async def test_a_clock_that_differs_from_the_store_s_is_told(pair: tuple[Replicas, Replicas]) -> None:
    here, _ = pair
    await here.look(MemoryStore())
    assert abs(of(here)["sluice_clock_offset_seconds"]) < 1 and here.notes() == []
    await here.look(MemoryStore(lambda: time.time() + 120))
    assert 119 < of(here)["sluice_clock_offset_seconds"] < 121
    assert here.notes() == ["the clock of this machine is -120.0 s off that of the database"]


async def test_a_log_that_no_living_replica_writes_is_named(pair: tuple[Replicas, Replicas]) -> None:
    here, there = pair
    store = MemoryStore()
    for writer in ("sluice-a", "sluice-b", "sluice-gone"):
        head = Checkpoint(writer, 1, 7, "0" * 64, "2026-01-01T00:00:00Z", "0" * 16, "c2ln")
        await store.put(HEADS + writer, head.dump())
    here.take(rows(here, there))
    await here.look(store)
    assert of(here)["sluice_fleet_silent_logs"] == 1
    assert here.notes() == ["no replica writes the audit log sluice-gone: see `sluice audit verify --fleet`"]
    here.take(rows(here))
    await here.look(store)
    assert of(here)["sluice_fleet_silent_logs"] == 2
    older = {key: value for key, value in there.row().items() if key not in ("log", "policy")}
    here.take([dump(here.row()), dump(older)])
    await here.look(store)
    assert of(here)["sluice_fleet_silent_logs"] == 0, "an older version does not say which log it writes"
    assert of(here)["sluice_fleet_revisions"] == 1


def test_others_live_on_for_as_long_as_they_need_to_renew_after_the_store_was_silent(
    pair: tuple[Replicas, Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    told: list[list[str]] = []
    here.on_change.append(lambda marks: told.append(list(marks)))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    other = Replicas("b", "http://b")
    other.take(rows(here, other))
    here.take(rows(here, other))
    now += replicas.BEAT
    here.take(rows(here))
    assert here.shares.partition.count == 1 and told[-1] == [], "it was heard all the time, and that one not"
    here.take(rows(here, other))
    now += 3 * replicas.LASTS
    here.take(rows(here))
    assert here.shares.partition.count == 2 and here.owner(f"{other.mark}x") and told[-1] == [other.mark]
    assert here.shares.is_agreed
    now += replicas.LASTS / 2
    here.take(rows(here, there))
    assert here.shares.partition.count == 2 and not here.owner(f"{other.mark}x"), "another one has its name by now"
    now += replicas.LASTS / 2
    here.take(rows(here))
    assert here.shares.partition.count == 1


def test_what_others_have_to_read_is_sealed_with_the_newest_key_that_all_of_them_have() -> None:
    old, new, newer, odd = (KeyRing([bytes([number]) * 32]) for number in range(4))

    def one(name: str, *rings: KeyRing) -> Replicas:
        return Replicas(name, None, rings={"seal": KeyRing([ring.newest for ring in rings])})

    here, there, third = one("a", old, new, newer), one("b", old), one("c", old, new)
    ring = here._rings["seal"]
    assert ring.newest_id == newer.newest_id
    here.take(rows(here, there, third))
    assert ring.newest_id == old.newest_id and ring.newest == old.newest and here.foreign == []
    here.take(rows(here, third))
    assert ring.newest_id == new.newest_id
    older = {key: value for key, value in there.row().items() if key != "keys"}
    here.take([dump(here.row()), dump(older)])
    assert ring.newest_id == newer.newest_id, "one of an older version does not say which keys it has"
    here.take(rows(here, third, one("d", odd)))
    assert here.foreign == ["seal"] and ring.newest_id == newer.newest_id
    here.take([dump({**there.row(), "keys": {"seal": 7}}), dump({**third.row(), "keys": []})])
    assert here.foreign == [] and ring.newest_id == newer.newest_id


async def test_what_is_sealed_can_be_read_by_who_is_cut_off_and_comes_back() -> None:
    """It has no lease any more, and serves until it is stale."""
    old, new = (KeyRing([bytes([number]) * 32]) for number in range(2))
    ours = KeyRing([old.newest, new.newest])
    here = Replicas("a", None, rings={"seal": ours})
    there = Replicas("b", None, rings={"seal": KeyRing([old.newest])})
    gone = Replicas("c", None, rings={"seal": KeyRing([bytes(32)[:31] + b"x"])})
    store = MemoryStore()
    await store.put(f"{SEEN}{there.mark}", dump(there.row()))
    await here.look_back(store)
    here.take(rows(here))
    assert ours.newest_id == old.newest_id and here.foreign == []
    beside = KeyRing([old.newest, new.newest])
    assert (await agree(store, "seal", beside)).newest_id == old.newest_id, "so does a command beside them"
    await store.delete(f"{SEEN}{there.mark}")
    await store.put(f"{SEEN}{gone.mark}", dump(gone.row()))
    await here.look_back(store)
    here.take(rows(here))
    assert ours.newest_id == new.newest_id and here.foreign == [], "one that is gone keeps nobody from starting"


def test_how_long_the_store_was_silent_is_told(pair: tuple[Replicas, Replicas]) -> None:
    here, _ = pair
    here.learned(0, "", "one", time.monotonic() - 30)
    assert 30 <= of(here)["sluice_state_stale_seconds"] < 40


class SlowClock(MemoryStore):
    """A store whose answer about the time waited for a connection."""

    waits, ahead = 0.0, 0.0

    async def now(self) -> float:
        await anyio.sleep(self.waits)
        return time.time() + self.ahead


async def test_an_answer_that_came_late_says_nothing_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one, store = Replicas("a", None, 60, "sluice-a"), SlowClock()
    store.ahead = 100.0
    await one.look(store)
    assert one.now() - time.time() == pytest.approx(100, abs=5)
    monkeypatch.setattr(replicas, "_PROMPT", 0.01)
    store.waits, store.ahead = 0.05, 500.0
    await one.look(store)
    assert one.now() - time.time() == pytest.approx(100, abs=5)
    store.waits = 0.0
    monkeypatch.setattr(replicas, "_PROMPT", 0.5)
    await one.look(store)
    assert one.now() - time.time() == pytest.approx(500, abs=5)


def test_where_replicas_show_certificates_no_row_of_the_store_leads_past_them() -> None:
    here, there = Replicas("a", "https://a.test:7413", 60), Replicas("b", "http://b.test:7413", 60)
    here.take(rows(here, there))
    there.take(rows(here, there))
    assert here.owner(f"{there.mark}x") is None
    assert there.owner(f"{here.mark}x") == (here.mark, "https://a.test:7413")
    there.url = "https://b.test:7413"
    here.take(rows(here, there))
    assert here.owner(f"{there.mark}x") == (there.mark, there.url)
