"""How a command that serves runs its event loop."""

import sys

from sluicegate.cli import run


async def interval() -> float:
    return sys.getswitchinterval()


def test_threads_let_the_event_loop_go_on_after_a_millisecond() -> None:
    before = sys.getswitchinterval()
    try:
        assert run.run_loop(interval) == 0.001
    finally:
        sys.setswitchinterval(before)
