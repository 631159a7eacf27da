"""However many threads it has, a Sluice that serves has two heaps of the C library."""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from e2e.sluice_process import sluice
from peers.fleet import FIXTURE

HEAP = 64 * 2**20
"""Address space of a heap that glibc makes for threads: it begins and ends at a multiple of that."""


def heaps(pid: int) -> int:
    """Those that the process has beside the first one."""
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    parts = [(*(int(end, 16) for end in fields[0].split("-")), fields[1]) for fields in maps if len(fields) == 5]
    return sum(
        used == "rw-p" and rest == "---p" and middle == end and begin % HEAP == 0 and begin + HEAP == after
        for (begin, middle, used), (end, after, rest) in pairwise(parts)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_threads_share_two_heaps(tmp_path: Path) -> None:
    with sluice({"servers": {"one": {"command": FIXTURE[0], "args": FIXTURE[1:]}}}, tmp_path) as process:
        with ThreadPoolExecutor(8) as many:
            assert {status for status, _ in many.map(process.get, ["/metrics"] * 32)} == {200}
        threads = len(list(Path(f"/proc/{process.process.pid}/task").iterdir()))
        assert threads > 4 and heaps(process.process.pid) <= 1
