"""A debugging aid: steps of the event loop that take longer than 5 ms, with the place where each ended.

Off unless `SLUICE_SLOW_TURNS` is set, and then it costs nothing: it puts a clock around asyncio's own handles, so the
command that it is set for runs on asyncio's loop instead of uvloop.
"""

import asyncio
import logging
import os
import sysconfig
import time
from typing import Any, Final

VARIABLE: Final = "SLUICE_SLOW_TURNS"
"""`1` logs each slow step; a path has a line for each, `MILLISECONDS FILE:LINE`, appended."""
SLOW: Final = 0.005
_LIBRARIES: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))

log = logging.getLogger(__name__)


def watch() -> bool:
    """Begins to report slow steps where the variable is set; returns whether it is."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return False
    handles: Any = asyncio.Handle
    run = handles._run

    def timed(handle: Any) -> None:
        callback, began = handle._callback, time.perf_counter()
        run(handle)
        if (took := time.perf_counter() - began) > SLOW:
            _tell(wanted, took, location(callback))

    handles._run = timed
    return True


def location(callback: Any) -> str:
    """`FILE:LINE` where a task waits now or has ended, outside of libraries, or of the function that was called."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine: Any = owner.get_coro()
        where = _of(getattr(coroutine, "cr_code", None))
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            if not frame.f_code.co_filename.startswith(_LIBRARIES):
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            coroutine = coroutine.cr_await
        return where
    while hasattr(callback, "func"):
        callback = callback.func
    return _of(getattr(callback, "__code__", None)) if hasattr(callback, "__code__") else repr(callback)[:200]


def _of(code: Any) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "unknown"


def _tell(wanted: str, took: float, where: str) -> None:
    if os.sep not in wanted:
        log.warning("a slow step of the event loop", extra={"milliseconds": round(took * 1000, 1), "place": where})
        return
    with open(wanted, "a") as file:
        file.write(f"{took * 1000:.1f} {where}\n")
