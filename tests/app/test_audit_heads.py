"""The newest checkpoint of a log in the database of a fleet, by logs that are deleted, cut and begun anew."""

import re
import shutil
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from audit.audit_kit import DIGEST_KEY, SEED, lines, settings

from sluicegate.app import audit_heads
from sluicegate.app.settings import MAX_STEM, replica_log
from sluicegate.audit.checkpoint import read_publics
from sluicegate.audit.log import PUBLIC_KEYS, AuditLog
from sluicegate.audit.verify import verify
from sluicegate.store import StoreFailed
from sluicegate.store.memory import MemoryStore


async def run(folder: Path, store: MemoryStore, records: int) -> None:
    """A Sluice that writes some records and ends."""
    audit = AuditLog(settings(folder), DIGEST_KEY, (SEED,))
    async with audit_heads.registering(audit, store):
        await audit.start()
        for number in range(records):
            assert await audit.note_durably("admin", {"act": f"act{number}"}, signed=number % 2 == 0)
        await audit.stop()


async def heads(store: MemoryStore) -> list[tuple[int, int]]:
    found = audit_heads.read((await store.scan(audit_heads.HEADS)).values())
    return sorted((one.epoch, one.seq) for one in found)


async def verified(folder: Path, store: MemoryStore) -> list[str]:
    known = audit_heads.read((await store.scan(audit_heads.HEADS)).values())
    keys = read_publics((folder / "state" / PUBLIC_KEYS).read_text())
    return [finding.text for report in verify([folder / "audit"], keys, known) for finding in report.findings]


async def test_the_head_of_a_log_that_goes_on_replaces_the_one_before(tmp_path: Path) -> None:
    store, folder = MemoryStore(), tmp_path / "a"
    for records in (3, 1, 7):
        await run(folder, store, records)
        assert len(await heads(store)) == 1 and not await verified(folder, store)
    audit_lines = sum(1 for _ in lines(folder))
    assert audit_lines - (await heads(store))[0][1] <= 1  # its own record is behind it


async def test_a_head_that_others_always_overtake_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = MemoryStore(), MemoryStore()
    await run(tmp_path, store, 3)
    (head,) = audit_heads.read((await store.scan(audit_heads.HEADS)).values())

    async def overtaken(*change: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(other, "swap", overtaken)
        with anyio.fail_after(20), pytest.raises(StoreFailed, match="other processes write all the time"):
            await audit_heads.keep(other, head, tmp_path / "audit")
    assert await audit_heads.keep(other, head, tmp_path / "audit")


@pytest.mark.parametrize("records", [1, 3, 4, 5, 30])
@pytest.mark.parametrize("is_all_gone", [False, True])
async def test_a_log_that_began_anew_does_not_hide_the_one_that_is_gone(
    tmp_path: Path, records: int, is_all_gone: bool
) -> None:
    store, folder = MemoryStore(), tmp_path / "a"
    await run(folder, store, 4)
    (before,) = await heads(store)
    shutil.rmtree(folder if is_all_gone else folder / "audit")  # its epochs begin anew as well, or go on
    await run(folder, store, records)
    await run(folder, store, 30)
    assert before in await heads(store) and len(await heads(store)) == 2
    assert await verified(folder, store)


async def test_a_log_that_was_cut_and_goes_on_is_named(tmp_path: Path) -> None:
    store, folder = MemoryStore(), tmp_path / "a"
    await run(folder, store, 9)
    (file,) = (folder / "audit").glob("*.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]))
    shutil.rmtree(folder / "state")
    await run(folder, store, 30)
    assert len(await heads(store)) == 2 and await verified(folder, store)


async def test_a_log_that_is_retired_is_expected_no_more(tmp_path: Path) -> None:
    store = MemoryStore()
    for name in ("a", "b"):
        await run(tmp_path / name, store, 3)  # the log of the first is gone for the second
    assert len(await heads(store)) == 2 and await verified(tmp_path / "b", store)
    await audit_heads.retire(store, "another")
    assert len(await heads(store)) == 2
    await audit_heads.retire(store, "sluice")
    assert await heads(store) == [] and not await verified(tmp_path / "b", store)


@pytest.mark.parametrize("name", ["r0", "sluice-0", "R0", "r_0", "r-0", "_", "a" * 63, "a" * 62 + "b", "A" * 63])
def test_each_replica_has_a_log_that_a_writer_can_have(name: str) -> None:
    for log in ("sluice.jsonl", f"{'l' * MAX_STEM}.jsonl"):
        stem = replica_log(log, name).removesuffix(".jsonl")
        assert re.fullmatch("[a-z0-9][a-z0-9-]{0,39}", f"{stem}-99") and not re.search("--|-$", stem)


def test_names_that_look_alike_have_logs_of_their_own() -> None:
    names = ["r0", "R0", "r_0", "r-0", "_", "-", "a" * 63, "a" * 62 + "b"]
    assert len({replica_log("sluice.jsonl", name) for name in names}) == len(names)
    assert replica_log("sluice.jsonl", "r0") == "sluice-r0.jsonl"
