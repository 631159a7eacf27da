"""How a command that serves runs its event loop."""

import errno
import sys
from pathlib import Path

from sluicegate.cli import run


async def interval() -> float:
    return sys.getswitchinterval()


def test_threads_let_the_event_loop_go_on_after_a_millisecond() -> None:
    before = sys.getswitchinterval()
    try:
        assert run.run_loop(interval) == 0.001
    finally:
        sys.setswitchinterval(before)


def test_a_fault_of_a_file_that_is_known_by_its_number_alone_is_told(tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text("version: 1\nstate: {dir: state}\naudit: {path: audit/log.jsonl}\n")
    found = run.cannot_start(OSError(errno.ENOSPC, "No space left on device", 7), file)
    assert "cannot start: No space left on device: 7" in str(found)
