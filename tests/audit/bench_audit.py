"""What a record costs: CPU per call (two records) in the whole process and in the event loop's thread, and latency.

Run it alone: `python tests/audit/bench_audit.py [directory]`; the directory decides which disk is synced.
"""

import asyncio
import os
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import uvloop
from audit_kit import OK, make_call, settings

from sluicegate.audit.log import AuditLog
from sluicegate.audit.settings import AuditSettings

SECONDS = 3.0
ARGUMENTS = {"title": "A bug in the thing", "body": "Some text that is a bit longer than usual", "labels": ["a", "b"]}


async def measure(made: AuditSettings | None, concurrency: int) -> dict[str, float]:
    audit = AuditLog(made, b"d" * 32, [b"s" * 32]) if made is not None else None
    if audit is not None:
        await audit.start()
    numbers, waits = count(), []
    until = time.perf_counter() + SECONDS

    async def client() -> None:
        while time.perf_counter() < until:
            call = make_call(f"{next(numbers):016x}", ARGUMENTS)
            started = time.perf_counter()
            if audit is not None:
                assert await audit.intent(call)
                waits.append(time.perf_counter() - started)
                audit.outcome(call, OK, 0.001)
            else:
                await asyncio.sleep(0)

    process, loop = time.process_time(), time.thread_time()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    calls = next(numbers)
    found = {"calls/s": calls / SECONDS, "us/call": (time.process_time() - process) / calls * 1e6,
             "loop us/call": (time.thread_time() - loop) / calls * 1e6}  # fmt: skip
    if audit is not None:
        waits.sort()
        found |= {"p50 us": waits[len(waits) // 2] * 1e6, "p99 us": waits[len(waits) * 99 // 100] * 1e6}
        assert audit._writer is not None
        found["batches/s"] = audit._writer.counts.batches / SECONDS
        await audit.stop()
    return found


def disk(directory: Path) -> float:
    """Microseconds of one append and fdatasync: what no program can take away."""
    fd = os.open(directory / "probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started, rounds = time.perf_counter(), 300
    for _ in range(rounds):
        os.write(fd, b"x" * 800)
        os.fdatasync(fd)
    os.close(fd)
    return (time.perf_counter() - started) / rounds * 1e6


def main() -> None:
    place = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        print(f"disk: {disk(Path(name)):.0f} us an append with fdatasync")
        for concurrency in (1, 16, 64):
            empty: dict[str, float] = {}
            for how in ("none", "write", "fsync"):
                directory = Path(name) / f"{how}{concurrency}"
                changes: dict[str, Any] = {"durability": how}
                made = settings(directory, **changes) if how != "none" else None
                found = uvloop.run(measure(made, concurrency))
                empty = empty or found
                net = {"net us/call": found["us/call"] - empty["us/call"]}
                shown = "  ".join(f"{key} {value:8.1f}" for key, value in {**found, **net}.items())
                print(f"{how:>6} x{concurrency:<3} {shown}")


if __name__ == "__main__":
    main()
