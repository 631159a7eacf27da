"""A real Sluice whose log cannot be written: calls are refused, nothing reaches the server, service returns by itself.

The log is on a file system of its own, one MiB in memory. Mounting needs root, as a container has it; without it this
is skipped, and says so on the terminal. What needs no file system is in `test_audit_writer`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from audit_sluice import Sluice, start

from sluicegate.audit.recover import list_files


@contextmanager
def mounted(place: Path, *how: str) -> Iterator[None]:
    done = subprocess.run(["mount", *how, str(place)], capture_output=True, text=True)
    if done.returncode:
        reason = f"DISK FAULTS ARE NOT TESTED: mounting is not permitted here ({done.stderr.strip()})"
        print(f"\n{reason}", file=sys.__stderr__)
        pytest.skip(reason)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def sluice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    """The tests here wear it out in their order."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "audit").mkdir()
    with mounted(folder / "audit", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"):
        found = start(folder, audit={"rotate": {"size": "32KiB"}})
        try:
            yield found
        finally:
            found.process.kill()
            found.process.wait(30)


def passes(sluice: Sluice, text: str = "") -> bool:
    """Whether a call is executed; one that is not says why, and has not reached the server."""
    before = len(sluice.seen())
    result = sluice.call("rec__note", {"text": text}).json()["result"]
    executed = not result.get("isError")
    assert len(sluice.seen()) == before + executed
    if not executed:
        assert result["_meta"]["dev.sluice/reason"] == "audit_unavailable"
        assert "NOT EXECUTED" in result["content"][0]["text"]
    return executed


def until_refused(sluice: Sluice) -> None:
    assert any(not passes(sluice, "x" * 3_000) for _ in range(400))
    assert not passes(sluice) or not passes(sluice, "x" * 3_000)
    sluice.wait("/readyz", 503)
    assert "the audit log cannot be written" in sluice.get("/readyz").text


def test_a_full_disk_refuses_calls_until_there_is_space(sluice: Sluice) -> None:
    assert passes(sluice)
    filler = sluice.log.parent / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 1_024)
    until_refused(sluice)
    assert "space" in sluice.get("/readyz").text.lower()
    filler.unlink()
    sluice.wait("/readyz", 200)
    assert passes(sluice)


def test_a_read_only_directory_refuses_calls_when_a_new_segment_is_due(sluice: Sluice) -> None:
    """A file that is open stays writable, so that what is in it is kept; the next one cannot be made."""
    audit = sluice.log.parent
    with mounted(audit, "--bind", str(audit)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(audit)], check=True)
        until_refused(sluice)
        assert "read-only" in sluice.get("/readyz").text.lower()
    sluice.wait("/readyz", 200)
    assert passes(sluice)
    done = sluice.run("audit", "verify")
    assert done.returncode == 0, done.stdout


def test_a_removed_log_refuses_calls_until_a_new_one_says_what_is_lost(sluice: Sluice) -> None:
    for _ in range(10):  # it looks by itself, too, and may have a new one before the call comes
        (newest,) = [file for file in list_files(sluice.log.parent) if file.path == sluice.log]
        sluice.log.unlink()
        if is_refused := not passes(sluice):
            break
    assert is_refused
    sluice.wait("/readyz", 200)
    assert passes(sluice)
    opening = json.loads(sluice.log.read_bytes().splitlines()[0])
    assert opening["why"] == "failure" and "removed" in opening["loss"]["reason"]
    assert 'sluice_audit_records_total{result="refused",sink="file"}' in sluice.get("/metrics").text
    sluice.stop()
    done = sluice.run("audit", "verify")
    assert done.returncode == 1 and f"record {newest.seq}" in done.stdout and "removed or renamed" in done.stdout
