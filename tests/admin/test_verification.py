"""The proof of the whole log runs beside the loop, one at a time, and says what `sluice audit verify` says."""

import json
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from audit.audit_kit import check, one_call, open_audit, segments, settings, settled

from sluicegate.admin import verification
from sluicegate.admin.verification import Verification
from sluicegate.audit.log import AuditLog
from sluicegate.audit.settings import Checkpointing


async def ended(job: Verification) -> dict[str, Any]:
    with anyio.fail_after(30):
        while (status := job.status())["state"] == "running":  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return status


async def filled(audit: AuditLog) -> None:
    for number in range(6):
        await one_call(audit, f"c{number}")
    await settled(audit)


async def test_a_log_that_is_being_written_is_proved_up_to_its_newest_checkpoint(tmp_path: Path) -> None:
    async with open_audit(tmp_path, checkpoints=Checkpointing(records=5)) as audit:
        await filled(audit)
        job = Verification(audit.settings, audit.public_keys)
        assert job.status() == {"state": "none", "records": 0, "bytes": 0, "of_bytes": 0}
        assert job.start()["state"] in ("running", "done")
        status = await ended(job)
        (writer,) = status["writers"]
        assert status["state"] == "done" and status["ok"] and not writer["findings"]
        assert writer["signed"] > 0 and writer["records"] == status["records"] == writer["last"]
        assert status["bytes"] == status["of_bytes"] == segments(tmp_path)[0].stat().st_size


async def test_a_record_that_was_changed_is_named(tmp_path: Path) -> None:
    async with open_audit(tmp_path, checkpoints=Checkpointing(records=5)) as audit:
        await filled(audit)
        keys = audit.public_keys()
    path = segments(tmp_path)[0]
    path.write_bytes(path.read_bytes().replace(b'"call":"c2"', b'"call":"c7"', 1))
    job = Verification(settings(tmp_path), lambda: keys)
    job.start()
    status = await ended(job)
    found = [report.to_json() for report in check(tmp_path)]
    assert status["state"] == "done" and not status["ok"] and json.dumps(status["writers"]) == json.dumps(found)
    assert status["writers"][0]["findings"][0]["file"] == path.name and status["writers"][0]["findings"][0]["line"] > 1


async def test_records_that_were_cut_off_are_missed_by_the_published_checkpoint(tmp_path: Path) -> None:
    async with open_audit(tmp_path, checkpoints=Checkpointing(records=5)) as audit:
        await filled(audit)
        keys = audit.public_keys()
    path = segments(tmp_path)[0]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    job = Verification(settings(tmp_path), lambda: keys)
    job.start()
    assert "are cut off" in (await ended(job))["writers"][0]["findings"][0]["text"]


async def test_one_proof_runs_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, begun = threading.Event(), list[object]()

    def waits(*given: object) -> list[Any]:
        begun.append(given)
        goes_on.wait(30)
        return []

    monkeypatch.setattr(verification, "verify", waits)
    job = Verification(settings(tmp_path), dict)
    settings(tmp_path).path.parent.mkdir(parents=True, exist_ok=True)
    first = job.start()
    assert job.start() == first | {"of_bytes": job.status()["of_bytes"]} and job.status()["state"] == "running"
    goes_on.set()
    assert (await ended(job))["state"] == "done" and len(begun) == 1


async def test_a_log_that_cannot_be_read_is_no_proof(tmp_path: Path) -> None:
    job = Verification(settings(tmp_path), dict)
    job.start()
    status = await ended(job)
    assert status["state"] == "failed" and "No such file" in status["error"] and str(tmp_path) not in status["error"]
    job.start()
    assert (await ended(job))["state"] == "failed", "it can be asked for again"
