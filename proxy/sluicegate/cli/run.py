"""A config file that is served on stdin and stdout, and the event loop of all commands that run Sluice.

Imports nothing that one of its commands alone needs, and not typer: a desktop client waits for it."""

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio

from sluicegate import config
from sluicegate.app import slow_turns
from sluicegate.app.stdio import join_stdio, serve_stdio
from sluicegate.cli.output import Code, info, leaves, located, stop
from sluicegate.downstream.transport import stray_processes
from sluicegate.policy.finding import PolicyError

T = TypeVar("T")
# Seconds until a thread that computes lets the event loop go on (sys.setswitchinterval; Python's own is 5 ms). Threads
# search large arguments for secrets, and the loop waits for each of them after every read and write.
_SWITCH_INTERVAL: Final = 0.001


def cannot_start(error: OSError, path: Path) -> config.ConfigFinding:
    place = ("state", "url") if "(state.url)" in str(error) else ("state", "dir")
    return config.finding_at(path, place, "cannot-start", f"cannot start: {error}")


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
    use_uvloop = not slow_turns.watch() and sys.platform != "win32"
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        with stray_processes.adopting():
            return anyio.run(main, backend_options={"use_uvloop": use_uvloop})
    except BaseExceptionGroup as group:  # task groups wrap what ended them: main has an exit code for the error itself
        found = list(leaves(group))
        raise (found[0] if len(found) == 1 else group) from None
