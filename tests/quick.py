"""Which tests `--quick` runs: those of files that start no process and do not compute for long, on one event loop."""

from functools import cache
from pathlib import Path

from under_load import TESTS, that_start_processes

LONG = {TESTS / "audit" / "test_audit_redact_work.py"}
"""Half a minute of computing."""


def is_quick(path: Path) -> bool:
    return path not in LONG and path not in _starting()


@cache
def _starting() -> frozenset[Path]:
    return frozenset(that_start_processes(TESTS.rglob("test_*.py")))
