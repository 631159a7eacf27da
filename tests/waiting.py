"""Waits for a state that gives no event, because another thread, another process or the disk brings it about."""

import time
from collections.abc import Callable

import anyio

PAUSE = 0.01


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event
            await anyio.sleep(PAUSE)


def until_so(
    condition: Callable[[], object], seconds: float = 60, describe: Callable[[], object] = lambda: "in vain"
) -> None:
    """The same for a test without an event loop, or a condition that blocks. `describe` says what was there instead."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, describe()
        time.sleep(PAUSE)
