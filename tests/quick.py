"""Which tests `--quick` runs: those of files that start no process, on one event loop."""

from functools import cache
from pathlib import Path

from under_load import TESTS, that_start_processes


def is_quick(path: Path) -> bool:
    return path not in _starting()


@cache
def _starting() -> frozenset[Path]:
    return frozenset(that_start_processes(TESTS.rglob("test_*.py")))
