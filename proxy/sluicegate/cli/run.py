"""`serve`, `stdio` and `demo`: the commands that run Sluice. Everything they do is in `app` and `demo`."""

import errno
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import anyio
import typer

from sluicegate import config, demo
from sluicegate.app import slow_turns
from sluicegate.app.serve import Outdated
from sluicegate.app.serve import serve as serve_http
from sluicegate.app.stdio import join_stdio, serve_stdio
from sluicegate.app.workers import supervisor, worker
from sluicegate.cli.admin import GivenKey, key_of
from sluicegate.cli.output import Code, ConfigFile, count, info, load, located, stop
from sluicegate.downstream.transport import stray_processes
from sluicegate.listen.server import CannotListen
from sluicegate.policy.finding import PolicyError

T = TypeVar("T")
MAX_WORKERS: Final = 64
# Seconds until a thread that computes lets the event loop go on (sys.setswitchinterval; Python's own is 5 ms). Threads
# search large arguments for secrets, and the loop waits for each of them after every read and write.
_SWITCH_INTERVAL: Final = 0.001

_STATE: Final = re.compile(r"""^\s*"?state"?:\s*\{?\s*"?dir"?:\s*["']?([^"'\s,}#]+)""", re.MULTILINE)
_LISTEN_HINTS: Final = {
    errno.EADDRINUSE: "another program has this port, perhaps a Sluice that runs already: stop it, or set {key} to a "
                      "free port",
    errno.EACCES: "only the administrator may use this port: set {key} to a port above 1023",
}  # fmt: skip
_LISTEN_HINT: Final = "this machine has no such address: set {key} to one that it has, such as 127.0.0.1:{port}"


def serve(
    config_file: ConfigFile = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", metavar="N", min=1, max=MAX_WORKERS, help="The number of worker processes. Not on Windows."
        ),
    ] = 1,
    orders: Annotated[int, typer.Option("--as-worker", hidden=True)] = -1,
) -> None:
    """Serve clients over HTTP, and the admin port beside it."""
    if workers > 1 and sys.platform == "win32":
        stop(Code.USAGE, "--workers: Windows cannot pass connections between processes; leave it out")
    if orders >= 0:
        _serve_as_worker(orders)
        return
    path, loaded = load(config_file, for_http=True)
    with _config_problems(path, loaded.listen):
        if workers == 1:
            _run(partial(serve_http, loaded, announce=info, file=path))
            return
        if few := _too_few(path, loaded, workers):
            raise config.ConfigError(few)
        code = _run(partial(supervisor.serve_workers, loaded, workers, announce=info, file=path))
    raise typer.Exit(code)


def _serve_as_worker(orders: int) -> None:
    """Runs one of several workers; `serve` starts it."""
    theirs = socket.socket(fileno=orders)
    task = worker.read_task(theirs)
    try:
        with _config_problems(task.file, task.config.listen):
            _run(partial(worker.serve_worker, task, theirs, info))
    except Outdated as error:
        stop(Code.CONFIG, *error.args)


def _too_few(path: Path, loaded: config.Config, workers: int) -> list[config.ConfigFinding]:
    """Servers that get fewer calls at once than there are workers to make them."""
    return [
        config.finding_at(
            path, ("servers", key), "too-few-calls",
            f"{count(server.concurrency, 'call')} at once cannot be shared by {workers} workers",
            "raise its concurrency, or start fewer workers",
        )
        for key, server in loaded.servers.items() if server.enabled and server.concurrency < workers
    ]  # fmt: skip


@contextmanager
def _config_problems(path: Path, listen: config.Listen | None = None) -> Iterator[None]:
    """What cannot be started says where its config is wrong, and exits with that code."""
    try:
        yield
    except PolicyError as error:
        raise config.ConfigError(located(path, error.findings)) from None
    except OSError as error:
        stop(Code.CONFIG, str(_why(error, path, listen or config.Listen())))


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
        with _config_problems(Path(url)):
            _run(partial(serve_stdio, _bridge(url, shown), file=None))
        return
    path = config.find_config(config_file)
    checked = config.check(path)
    for finding in checked.errors if checked.config else checked.findings:
        info(str(finding))
    with _config_problems(path):
        if checked.config is not None:
            _run(partial(serve_stdio, checked.config, file=path))
        elif (state := _state(path)) is None or not _run(partial(join_stdio, path, state)):
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


def demo_(
    once: Annotated[bool, typer.Option("--once", help="Exit at the end of the tour instead of serving.")] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link to the console; do not open it.")
    ] = False,
) -> None:
    """Show what Sluice does, with real servers. Sluice serves them until Ctrl-C.

    At a terminal the console opens in the browser when a call waits for an approval. A mail needs a second person: the
    demo says how to be that one, too.

    The first run downloads three servers from PyPI, and one from npm if `npx` is installed. Everything else is in a
    temporary directory, which is deleted at the end.
    """
    raise typer.Exit(_run(partial(demo.run, once, not no_browser and sys.stderr.isatty(), info)))


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


def _why(error: OSError, path: Path, listen: config.Listen) -> config.ConfigFinding:
    """The line of the config that asks for what the system refuses."""
    if not isinstance(error, CannotListen):
        return config.finding_at(path, ("state", "dir"), "cannot-start", f"cannot start: {error}")
    address = config.Address(error.host, error.port)
    name = "mcp" if address == listen.mcp else "admin"
    hint = _LISTEN_HINTS.get(error.errno or 0, _LISTEN_HINT).format(key=f"listen.{name}", port=error.port)
    message = f"cannot listen on {address} (listen.{name}): {error.strerror}"
    return config.finding_at(path, ("listen", name), "cannot-listen", message, hint)


def _run(main: Callable[[], Awaitable[T]]) -> T:
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
