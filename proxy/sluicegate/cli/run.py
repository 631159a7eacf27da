"""`stdio`, and the event loop of all commands that run Sluice. `serve` and `demo` have files of their own, because a
desktop client waits for what this one imports."""

import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import anyio
import typer

from sluicegate import config
from sluicegate.app import slow_turns
from sluicegate.app.stdio import join_stdio, serve_stdio
from sluicegate.cli.admin import GivenKey, key_of
from sluicegate.cli.output import Code, ConfigFile, info, located, stop
from sluicegate.downstream.transport import stray_processes
from sluicegate.policy.finding import PolicyError

T = TypeVar("T")
# Seconds until a thread that computes lets the event loop go on (sys.setswitchinterval; Python's own is 5 ms). Threads
# search large arguments for secrets, and the loop waits for each of them after every read and write.
_SWITCH_INTERVAL: Final = 0.001

_STATE: Final = re.compile(r"""^\s*"?state"?:\s*\{?\s*"?dir"?:\s*["']?([^"'\s,}#]+)""", re.MULTILINE)


def cannot_start(error: OSError, path: Path) -> config.ConfigFinding:
    return config.finding_at(path, ("state", "dir"), "cannot-start", f"cannot start: {error}")


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


def stdio(
    config_file: ConfigFile = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Connect to the Sluice at this URL instead of starting one.")
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --url: a file that holds the client key; else $SLUICE_KEY."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The key itself. Other users of this machine can see it: use --key-file."),
    ] = None,
) -> None:
    """Serve one client on stdin and stdout. Only MCP messages go to stdout."""
    if url:
        shown = key_of(key_file, key, may_read_stdin=False)
        with config_problems(Path(url)):
            run_loop(partial(serve_stdio, _bridge(url, shown), file=None))
        return
    path = config.find_config(config_file)
    checked = config.check(path)
    for finding in checked.errors if checked.config else checked.findings:
        info(str(finding))
    with config_problems(path):
        if checked.config is not None:
            run_loop(partial(serve_stdio, checked.config, file=path))
        elif (state := _state(path)) is None or not run_loop(partial(join_stdio, path, state)):
            raise typer.Exit(Code.CONFIG)


def _state(path: Path) -> Path | None:
    """Where a file that cannot be used seems to have its state: good for looking whether a Sluice runs there."""
    source = config.draft(path)
    if source is None:  # no YAML: what its lines say
        try:
            found = _STATE.search(path.read_text("utf-8", "replace"))
        except OSError:
            found = None
        named = {"state": {"dir": found[1]}} if found else {}
        source = config.Source(str(path), path.absolute().parent, value=named)
    return config.state_of(source)


def _bridge(url: str, key: GivenKey | None) -> config.Config:
    """Transparent mode with one server: the other Sluice."""
    headers = {"Authorization": f"Bearer {key.value}"} if key else {}
    server: dict[str, Any] = {"url": url, "prefix": "", "unlisted": "forward", "headers": headers}
    # What is recorded is recorded there: here is no config file to keep a log beside.
    settings = {"policy": {"use": "open"}, "servers": {"remote": server}, "audit": {"enabled": False}}
    made = config.make(settings, Path())
    remote = made.servers["remote"]
    assert isinstance(remote, config.HttpServer)
    remote.as_sluice()
    return made


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """The one event loop of a command. uvloop is not made for Windows, and shows nobody its steps."""
    use_uvloop = not slow_turns.watch() and sys.platform != "win32"
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        with stray_processes.adopting():
            return anyio.run(main, backend_options={"use_uvloop": use_uvloop})
    except BaseExceptionGroup as group:  # task groups wrap what ended them: main has an exit code for the error itself
        raise _only(group) from None


def _only(error: BaseException) -> BaseException:
    """What task groups wrapped, if it is one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
