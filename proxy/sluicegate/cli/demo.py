"""`demo`: what Sluice does, in front of real servers. Everything it does is in the package of that name."""

import sys
from functools import partial
from typing import Annotated

import typer

from sluicegate.cli.output import Code, info, stop
from sluicegate.cli.run import run_loop
from sluicegate.demo import DemoFailed, run


def demo(
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
    try:
        raise typer.Exit(run_loop(partial(run, once, not no_browser and sys.stderr.isatty(), info)))
    except DemoFailed as error:
        stop(Code.NEGATIVE, str(error))
