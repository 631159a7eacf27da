"""The newest checkpoint of a log in the database of a fleet: it only rises, and the last one is there at the end."""

import re

import pytest

from sluicegate.app import audit_heads
from sluicegate.app.settings import MAX_STEM, replica_log
from sluicegate.audit.chain import WRITER
from sluicegate.audit.checkpoint import Checkpoint
from sluicegate.store.memory import MemoryStore


def head(epoch: int, seq: int, hash: str = "0" * 64) -> Checkpoint:
    return Checkpoint("sluice-a", epoch, seq, hash, "2026-01-01T00:00:00Z", "k", "s")


async def test_an_older_checkpoint_replaces_none() -> None:
    store = MemoryStore()
    for one, newest in ((head(2, 10), (2, 10)), (head(2, 9), (2, 10)), (head(1, 99), (2, 10)), (head(3, 11), (3, 11))):
        await audit_heads.keep(store, one)
        (found,) = audit_heads.read((await store.scan(audit_heads.HEADS)).values())
        assert (found.epoch, found.seq) == newest


@pytest.mark.parametrize("anew", [head(3, 2), head(3, 10, "1" * 64)])
async def test_a_log_that_began_anew_does_not_hide_the_one_that_is_gone(anew: Checkpoint) -> None:
    store = MemoryStore()
    for one in (head(2, 10), anew, head(3, 20, "2" * 64)):
        await audit_heads.keep(store, one)
    found = audit_heads.read((await store.scan(audit_heads.HEADS)).values())
    assert sorted((one.epoch, one.seq) for one in found) == [(2, 10), (3, 20)]


@pytest.mark.parametrize("name", ["r0", "sluice-0", "R0", "r_0", "r-0", "_", "a" * 63, "a" * 62 + "b", "A" * 63])
def test_each_replica_has_a_log_that_a_writer_can_have(name: str) -> None:
    for log in ("sluice.jsonl", f"{'l' * MAX_STEM}.jsonl"):
        stem = replica_log(log, name).removesuffix(".jsonl")
        assert WRITER.fullmatch(f"{stem}-99") and not re.search("--|-$", stem)


def test_names_that_look_alike_have_logs_of_their_own() -> None:
    names = ["r0", "R0", "r_0", "r-0", "_", "-", "a" * 63, "a" * 62 + "b"]
    assert len({replica_log("sluice.jsonl", name) for name in names}) == len(names)
    assert replica_log("sluice.jsonl", "r0") == "sluice-r0.jsonl"
