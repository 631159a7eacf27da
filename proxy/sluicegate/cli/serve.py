"""`serve`: Sluice over HTTP, in one process or in several. Everything it does is in `app`."""

import errno
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from sluicegate import config
from sluicegate.app.serve import serve as serve_http
from sluicegate.app.workers import read_task, serve_worker, serve_workers
from sluicegate.cli.options import ConfigFile
from sluicegate.cli.output import Code, count, info, load, stop
from sluicegate.cli.run import cannot_start, config_problems, run_loop
from sluicegate.listen.server import CannotListen

MAX_WORKERS: Final = 64
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
        typer.Option("--workers", metavar="N", min=1, max=MAX_WORKERS,
                     help="The number of worker processes. Not on Windows."),
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
    with config_problems(path, partial(_why, addresses=loaded.addresses)):
        if workers > 1 and loaded.listen.tls is not None:
            stop(Code.USAGE, "--workers: workers pass connections on, and a TLS connection cannot be; use a proxy")
        if workers > 1 and loaded.fleet is not None:
            stop(Code.USAGE, "--workers: a replica of a fleet is one process; start more replicas")
        if workers == 1:
            run_loop(partial(serve_http, loaded, announce=info, file=path))
            return
        if few := _too_few(path, loaded, workers):
            raise config.ConfigError(few)
        code = run_loop(partial(serve_workers, loaded, workers, announce=info, file=path))
    raise typer.Exit(code)


def _serve_as_worker(orders: int) -> None:
    """Runs one of several workers; `serve` starts it."""
    theirs = socket.socket(fileno=orders)
    task = read_task(theirs)
    with config_problems(task.file, partial(_why, addresses=task.config.addresses)):
        run_loop(partial(serve_worker, task, theirs, info))


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


def _why(error: OSError, path: Path, addresses: dict[tuple[str, ...], config.Address]) -> config.ConfigFinding:
    """The line of the config that asks for what the system refuses."""
    if not isinstance(error, CannotListen):
        return cannot_start(error, path)
    address = config.Address(error.host, error.port)
    key_path = next((key_path for key_path, one in addresses.items() if one == address), ("listen", "admin"))
    key = ".".join(key_path)
    hint = _LISTEN_HINTS.get(error.errno or 0, _LISTEN_HINT).format(key=key, port=error.port)
    message = f"cannot listen on {address} ({key}): {error.strerror}"
    return config.finding_at(path, key_path, "cannot-listen", message, hint)
