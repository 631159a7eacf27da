"""`detector`: a hook that comes along. It finds secrets in arguments and results, and needs nothing of a Sluice."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from sluicegate.cli.output import Code, info, stop
from sluicegate.cli.run import run_loop
from sluicegate.config.names import check_webhook_secret
from sluicegate.config.units import Address, read_address
from sluicegate.detector import DetectorService
from sluicegate.detector.secrets import NoLibrary, Scanner
from sluicegate.hooks.asker import AT_ONCE
from sluicegate.listen.asgi import asgi
from sluicegate.listen.server import AddressServer, CannotListen
from sluicegate.listen.settings import ConnectionLimits

SECRET_VARIABLE: Final = "SLUICE_DETECTOR_SECRET"


def detector(
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where it listens.")] = "127.0.0.1:7412",
    secret_file: Annotated[
        Path | None,
        typer.Option("--secret-file", metavar="FILE", show_default=False,
                     help="Holds the hook's `secret`; default: $SLUICE_DETECTOR_SECRET, or no signature is asked for."),
    ] = None,
    withhold: Annotated[
        bool, typer.Option("--withhold", help="Withhold a result with a secret whole, instead of redacting it.")
    ] = False,
) -> None:
    """Serve a hook that finds secrets in calls and results.

    Arguments with a secret are denied, and results are redacted. It needs the extra `detector`. The first start
    compiles the library's rules, which takes half a minute. It runs until Ctrl-C.
    """  # fmt: skip
    try:
        address = read_address(listen)
    except ValueError as error:
        stop(Code.USAGE, f"--listen: {error}")
    secret = _secret(secret_file)
    if not address.is_loopback and not secret:
        stop(Code.USAGE, "other machines can reach this address: a secret is needed, in --secret-file")
    try:
        scanner = Scanner()
    except NoLibrary:
        stop(Code.USAGE, "the detector's library is not installed: install sluicegate[detector]")
    service = DetectorService(scanner, secret, withhold, os.cpu_count() or 1)
    try:
        run_loop(partial(_serve, service, address))
    except CannotListen as error:
        stop(Code.USAGE, f"--listen: {address}: {error.strerror}")


def _secret(file: Path | None) -> str:
    """Empty where there is none."""
    try:
        secret = os.environ.get(SECRET_VARIABLE, "") if file is None else file.read_text("latin-1").strip()
        if secret or file is not None:
            check_webhook_secret(secret)
    except OSError as error:
        stop(Code.USAGE, f"--secret-file: {file}: {error.strerror}")
    except ValueError as error:
        stop(Code.USAGE, f"{file or SECRET_VARIABLE}: {error}")
    return secret


async def _serve(service: DetectorService, address: Address) -> None:
    limits = ConnectionLimits(connections=AT_ONCE)
    server = AddressServer(asgi(service), address.host, address.port, limits, drain=2.0)
    port = server.bind()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            await group.start(server.run)
            info(f"the detector listens on http://{Address(address.host, port)}/")
            await anext(signals)
            server.stop()
