"""Durability: what is on the disk before a call may pass, and what happens when it cannot be."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from audit_kit import check_one, lines, make_call, one_call, open_audit, records, segments

from sluicegate.audit.log import AuditLog
from sluicegate.audit.segment import Segment
from sluicegate.audit.settings import Checkpointing, Rotation
from sluicegate.store.private import Exposed

FAST = Checkpointing(every=0.05)


async def until(condition: Callable[[], bool]) -> None:
    """What another thread brings about can only be looked for."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def until_writable(audit: AuditLog) -> None:
    await until(lambda: audit.problem is None)


async def test_an_intent_is_on_disk_when_its_call_may_pass(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        for number in range(10):
            assert await audit.intent(make_call(f"c{number}"))
            assert records(tmp_path)[-1]["call"] == f"c{number}"


def flags_of(file: Path) -> int:
    """With which we have it open."""
    (number,) = [link.name for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link) == str(file)]
    return fcntl.fcntl(int(number), fcntl.F_GETFL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a sync follows each write")
@pytest.mark.parametrize("durability", ["fsync", "write"])
async def test_a_write_ends_on_the_disk_only_where_that_is_wanted(
    tmp_path: Path, durability: Literal["fsync", "write"]
) -> None:
    for _ in ("created", "resumed"):
        async with open_audit(tmp_path, durability=durability):
            assert bool(flags_of(tmp_path / "audit" / "sluice.jsonl") & os.O_DSYNC) is (durability == "fsync")


@pytest.mark.parametrize("durability", ["fsync", "write"])
async def test_without_such_files_a_call_waits_for_a_sync_only_where_that_is_wanted(
    tmp_path: Path, durability: Literal["fsync", "write"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.audit.segment._THROUGH", 0)
    synced: list[str] = []
    sync = Segment.sync

    def watched(segment: Segment) -> None:
        sync(segment)
        synced.append(segment.path.name)

    every = Checkpointing(every=3_600)
    async with open_audit(tmp_path, durability=durability, checkpoints=every) as audit:
        monkeypatch.setattr(Segment, "sync", watched)
        for number in range(3):
            assert await audit.intent(make_call(f"c{number}"))
            assert synced == (["sluice.jsonl"] * (number + 1) if durability == "fsync" else [])
        monkeypatch.undo()


async def test_a_signature_that_somebody_waits_for_is_on_the_disk_whatever_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes what a signed record says. A power cut may not leave the deletion alone."""
    done: list[str] = []
    for name in ("sync", "write"):
        real = getattr(Segment, name)

        def noted(segment: Segment, *data: bytes, real: Any = real, name: str = name) -> None:
            real(segment, *data)
            done.append(name)

        monkeypatch.setattr(Segment, name, noted)
    async with open_audit(tmp_path, durability="write") as audit:
        done.clear()
        about = {"address": "192.0.2.1", "count": 1, "reasons": {"r": 1}, "window": 60.0}
        assert await audit.note_durably("identity", about, signed=True)
        assert done[-1] == "sync"


async def test_concurrent_calls_share_a_sync(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        kept: list[bool] = []

        async def call(number: int) -> None:
            kept.append(await one_call(audit, f"c{number}"))

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(call, number)
        assert audit._writer is not None
        assert audit._writer.counts.batches < 50
    assert kept == [True] * 200
    report = check_one(tmp_path)
    assert report.ok and len(records(tmp_path, "intent")) == len(records(tmp_path, "outcome")) == 200


async def test_lists_need_no_intent_and_leave_one_record(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        assert await one_call(audit, "c1", method="tools/list", target=None)
    assert not records(tmp_path, "intent")
    assert [record["method"] for record in records(tmp_path, "outcome")] == ["tools/list"]


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c1")
        directory = tmp_path / "audit"
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    directory.chmod(0o755)
    with pytest.raises(Exposed):
        async with open_audit(tmp_path):
            pass
    directory.chmod(0o700)
    (directory / "sluice.jsonl").chmod(0o644)
    with pytest.raises(Exposed):
        async with open_audit(tmp_path):
            pass


async def test_the_chain_goes_on_over_restarts(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        async with open_audit(tmp_path) as audit:
            await one_call(audit, f"c{epoch}")
    found = records(tmp_path)
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    assert sorted({record["epoch"] for record in found}) == [1, 2, 3]
    assert len(segments(tmp_path)) == 1 and check_one(tmp_path).ok


async def test_two_processes_on_one_directory_have_a_chain_each(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as one, open_audit(tmp_path) as two:
        await one_call(one, "a")
        await one_call(two, "b")
    names = sorted(path.name for path in (tmp_path / "audit").glob("*.jsonl"))
    assert names == ["sluice-2.jsonl", "sluice.jsonl"]
    assert {record["writer"] for record in records(tmp_path, "intent")} == {"sluice", "sluice-2"}


async def test_segments_rotate_by_size_and_by_age(tmp_path: Path) -> None:
    async with open_audit(tmp_path, rotate=Rotation(size=10_000)) as audit:
        for number in range(60):
            await one_call(audit, f"c{number}")
    by_size = len(segments(tmp_path))
    assert by_size > 3
    async with open_audit(tmp_path, rotate=Rotation(age=0.05)) as audit:
        await one_call(audit, "late")
        await until(lambda: len(segments(tmp_path)) > by_size)
    assert check_one(tmp_path).ok
    for path in segments(tmp_path)[:-1]:
        assert json.loads(path.read_bytes().splitlines()[-1])["type"] == "checkpoint"


async def test_checkpoints_come_with_time_and_are_published(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    async with open_audit(tmp_path, checkpoints=Checkpointing(every=0.05, to=(str(place),))) as audit:
        await one_call(audit, "c1")
        await until(lambda: audit.head() is not None)
    found = [record["checkpoint"] for record in records(tmp_path, "checkpoint")]
    assert json.loads(next((tmp_path / "state").glob("*/sluice.checkpoint")).read_bytes()) == found[-1]
    assert json.loads(place.read_bytes().splitlines()[-1]) == found[-1]


# ---------------------------------------------------------------- when the log cannot be written


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
async def test_a_log_that_is_gone_refuses_until_a_new_one_says_so(tmp_path: Path, how: str) -> None:
    async with open_audit(tmp_path) as audit:
        assert await one_call(audit, "before")
        path = tmp_path / "audit" / "sluice.jsonl"
        if how == "removed":
            path.unlink()
        else:
            path.rename(path.with_name("moved.jsonl"))
        if how == "replaced":
            path.write_bytes(b"")
        assert not await one_call(audit, "refused")
        tally = audit.tally().records
        assert (tally["file", "failed"], tally["file", "refused"]) == (1, 1)
        await until_writable(audit)
        assert await one_call(audit, "after")
    opening = json.loads((tmp_path / "audit" / "sluice.jsonl").read_bytes().splitlines()[0])
    assert opening["why"] == "failure" and "sluice.jsonl was" in opening["loss"]["reason"]
    assert "after" in {record.get("call") for record in records(tmp_path, "intent")}
    report = check_one(tmp_path)
    assert report.ok is (how != "removed"), report.findings
    if how == "removed":
        assert "missing" in report.findings[0].text and "removed" in report.findings[0].text


async def test_a_log_that_somebody_appends_to_is_closed(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c1")
        with (tmp_path / "audit" / "sluice.jsonl").open("ab") as file:
            file.write(b"forged\n")
        assert not await one_call(audit, "refused")
        await until_writable(audit)
        assert await one_call(audit, "c2")
    assert check_one(tmp_path).ok


async def test_allow_and_alarm_lets_calls_pass_and_writes_them_later(tmp_path: Path) -> None:
    async with open_audit(tmp_path, on_failure="allow_and_alarm", queue=8) as audit:
        assert await one_call(audit, "c0")
        directory = tmp_path / "audit"
        directory.rename(tmp_path / "away")
        for number in range(1, 40):
            assert await one_call(audit, f"c{number}")
        assert audit.tally().lost > 0
        (tmp_path / "away").rename(directory)
        await until_writable(audit)
        assert await one_call(audit, "last")
    assert check_one(tmp_path).ok
    said = [record["count"] for record in records(tmp_path, "admin") if record["act"] == "lost"]
    found = [record["call"] for type in ("intent", "outcome") for record in records(tmp_path, type)]
    assert "last" in found and sum(said) <= audit.tally().lost
    assert len(found) == len({*records_of_calls(tmp_path)}) == 2 * 41 - audit.tally().lost, "each is there or counted"


def records_of_calls(directory: Path) -> list[tuple[str, str]]:
    return [(record["type"], record["call"]) for record in records(directory) if "call" in record]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB; needs root, as a container has it."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", disk], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


async def test_a_full_disk_refuses_calls_and_service_returns_with_space(small_disk: Path) -> None:
    async with open_audit(small_disk) as audit:
        assert await one_call(audit, "before")
        filler = small_disk / "filler"
        with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
            while True:
                os.write(file.fileno(), b"x" * 4096)
        refused = 0
        with anyio.fail_after(60):
            while refused < 5:
                refused += not await one_call(audit, f"full{refused}", arguments={"text": "y" * 3_000})
        assert audit.problem is not None and "space" in audit.problem.lower()
        filler.unlink()
        await until_writable(audit)
        assert await one_call(audit, "after")
    report = check_one(small_disk)
    assert report.ok, report.findings
    calls = {record["call"] for record in _believed(small_disk)}
    assert {"before", "after"} <= calls


async def test_a_directory_made_read_only_refuses_calls_until_it_is_not(small_disk: Path) -> None:
    async with open_audit(small_disk, rotate=Rotation(size=2_000)) as audit:
        assert await one_call(audit, "before")
        await anyio.run_process(["mount", "-o", "remount,ro", str(small_disk)], check=False)
        if os.access(small_disk, os.W_OK):
            # Open files keep a file system writable: without write access the next segment cannot be made.
            shutil.move(small_disk / "audit", small_disk / "gone")
        assert not await one_call(audit, "refused")
        assert not await one_call(audit, "refused again")
        if (small_disk / "gone").exists():
            shutil.move(small_disk / "gone", small_disk / "audit")
        else:
            await anyio.run_process(["mount", "-o", "remount,rw", str(small_disk)])
        await until_writable(audit)
        assert await one_call(audit, "after")
    assert check_one(small_disk).ok


def _believed(directory: Path) -> list[dict[str, str]]:
    found = []
    for line in lines(directory):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn where the disk was full
        if record["type"] == "intent":
            found.append(record)
    return found


LIMITED = """
import resource, sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from audit_kit import one_call, open_audit, settled

async def main():
    directory = Path(sys.argv[1])
    async with open_audit(directory) as audit:
        assert await one_call(audit, "before")
        await settled(audit)
        size = (directory / "audit" / "sluice.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, resource.RLIM_INFINITY))
        assert not await one_call(audit, "refused")
        assert audit.tally().records["file", "failed"] > 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with anyio.fail_after(60):
            while audit.problem:
                await anyio.sleep(0.01)
        assert await one_call(audit, "after")

anyio.run(main)
"""


def test_a_write_that_stops_in_the_middle_closes_the_segment(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path), here], check=True, timeout=120)
    report = check_one(tmp_path)
    assert report.ok, report.findings
    first, second = segments(tmp_path)
    assert not first.read_bytes().endswith(b"\n"), "the torn line is left for everybody to see"
    opening = json.loads(second.read_bytes().splitlines()[0])
    assert opening["why"] == "failure" and "too large" in opening["loss"]["reason"].lower()


async def test_a_writer_that_has_ended_refuses_everything(tmp_path: Path) -> None:
    audit: AuditLog
    async with open_audit(tmp_path) as audit:
        assert await one_call(audit, "c1")
    assert not await one_call(audit, "late")
    assert audit.tally().lost == 1


async def test_a_cancelled_wait_hurts_nobody(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await audit.intent(make_call("gone"))
        audit.outcome(make_call("gone"), None, 0.0)
        assert await one_call(audit, "c2")
    assert [r["outcome"] for r in records(tmp_path, "outcome")] == ["cancelled", "ok"]
