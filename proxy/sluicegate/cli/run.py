"""A config file that is served on stdin and stdout, and the event loop of all commands that run Sluice.

Imports nothing that one of its commands alone needs, and not typer: a desktop client waits for it."""

import asyncio
import logging
import os
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio

from sluicegate import config
from sluicegate.app.stdio import join_stdio, serve_stdio
from sluicegate.cli.output import Code, info, leaves, located, stop, with_config
from sluicegate.downstream.transport import stray_processes
from sluicegate.policy.finding import PolicyError

# A debugging aid. Off, it costs nothing. On, it puts a clock around asyncio's own handles, so that a command runs on
# asyncio's loop instead of uvloop.
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


T = TypeVar("T")
# Seconds until a thread that computes lets the event loop go on (sys.setswitchinterval; Python's own is 5 ms). Threads
# search large arguments for secrets, and the loop waits for each of them after every read and write.
_SWITCH_INTERVAL: Final = 0.001


def cannot_start(error: OSError, path: Path) -> config.ConfigFinding:
    key_path = ("state", "url") if "(state.url)" in str(error) else ("state", "dir")
    if not error.strerror:
        return config.finding_at(path, key_path, "cannot-start", f"cannot start: {error}")
    why = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error.filename, str) and _is_of_audit(Path(error.filename), path):
        key_path = ("audit", "path")
    look = with_config("sluice doctor", path)
    hint = f"`{look}` looks at state.dir and audit.path, and says what to do"
    return config.finding_at(path, key_path, "cannot-start", f"cannot start: {why}", hint)


def _is_of_audit(file: Path, path: Path) -> bool:
    """Whether the audit log that the config names needs this file or folder, and the state does not."""
    drafted, loaded = config.draft(path), config.check(path).config
    if loaded is None or drafted is None or ("audit", "path") not in drafted.places:
        return False
    log, state = loaded.audit.path.parent, loaded.state.dir
    return (log.is_relative_to(file) or file.is_relative_to(log)) and not (
        state.is_relative_to(file) or file.is_relative_to(state)
    )


@contextmanager
def config_problems(path: Path, why: Callable[[OSError, Path], config.ConfigFinding] = cannot_start) -> Iterator[None]:
    """What cannot be started says where its config is wrong, and exits with that code. `why` names the line that asks
    for what the system refuses."""
    try:
        yield
    except PolicyError as error:
        raise config.ConfigError(located(path, error.findings)) from None
    except OSError as error:
        stop(Code.CONFIG, str(why(error, path)))


def serve_file(config_file: Path | None, toolset: str = "") -> Code:
    """Serves one client on stdin and stdout with a config file, or goes along with the Sluice that runs with it."""
    path = config.find_config(config_file)
    checked = config.check(path)
    for finding in checked.errors if checked.config else checked.findings:
        info(str(finding))
    with config_problems(path):
        if checked.config is not None:
            if toolset and toolset not in checked.config.toolsets:
                names = ", ".join(checked.config.toolsets) or "none"
                stop(Code.USAGE, f"--toolset: {path} has no toolset of this name; it has {names}")
            run_loop(partial(serve_stdio, checked.config, file=path, toolset=toolset))
        elif (state := config.state_dir_of(path)) is None or not run_loop(partial(join_stdio, path, state, toolset)):
            return Code.CONFIG
    return Code.OK


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """The one event loop of a command. uvloop is not made for Windows, and shows nobody its steps."""
    use_uvloop = not watch() and sys.platform != "win32"
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        with stray_processes.adopting():
            return anyio.run(main, backend_options={"use_uvloop": use_uvloop})
    except BaseExceptionGroup as group:  # task groups wrap what ended them: main has an exit code for the error itself
        found = list(leaves(group))
        raise (found[0] if len(found) == 1 else group) from None
