"""Which tests `--quick` runs: those of files that start no process and do not compute for long, on one event loop, with
fewer examples of Hypothesis."""

from functools import cache
from pathlib import Path

from under_load import TESTS, that_start_processes

LONG = {TESTS / "audit" / "test_audit_redact_work.py"}
"""Half a minute of computing."""
STARTING_NONE = {
    TESTS / name
    for name in (
        "approval/test_approval_lifetimes.py", "downstream/test_downstream_circles.py",
        "downstream/test_infinite_numbers.py", "downstream/test_wire.py", "downstream/test_wire_tunnel.py",
        "fuzz/test_fuzz.py", "listen/test_large_requests.py", "listen/test_listen_stdio.py",
        "login/test_device_logins.py", "login/test_logging_in.py",
    )
}  # fmt: skip
"""What these import could start processes, for others. Their edits need them at once, and they take little time."""
EXAMPLES = 25
"""Of Hypothesis for each property, where the whole suite draws a hundred. Those of a run are always the same."""


def is_quick(path: Path) -> bool:
    return path in STARTING_NONE or (path not in LONG and path not in _starting())


@cache
def _starting() -> frozenset[Path]:
    return frozenset(that_start_processes(TESTS.rglob("test_*.py")))
