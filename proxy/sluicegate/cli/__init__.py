"""The command `sluice`: one file per group of commands, each a thin shell around the package.

This file puts the commands together and is the last resort for errors: a bad config is answered with its
findings, anything unforeseen with a trace.
"""

import traceback
from collections.abc import Callable
from typing import Annotated, Final

import typer
from typer.core import TyperArgument

from sluicegate import __version__
from sluicegate.cli import approvals, audit, keys, pins, policy
from sluicegate.cli.admin import Unreachable
from sluicegate.cli.call import call
from sluicegate.cli.check import check, schema
from sluicegate.cli.console import console
from sluicegate.cli.explain import explain
from sluicegate.cli.init import init
from sluicegate.cli.output import Code, info, print_out
from sluicegate.cli.run import demo_, serve, stdio
from sluicegate.cli.servers import logs, prompts, resources, servers, tools
from sluicegate.config import ConfigError

# In a help text an argument has its name alone, as an option has: typer adds Python's type to it, such as <list[Path]>.
setattr(TyperArgument, "display_type_rich", lambda argument, ctx: None)  # noqa: B010

app = typer.Typer(
    name="sluice",
    help="One MCP server in front of many.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "init": init, "serve": serve, "stdio": stdio, "demo": demo_, "check": check, "explain": explain,
    "servers": servers, "logs": logs, "tools": tools, "prompts": prompts, "resources": resources, "call": call,
    "console": console, "approve": approvals.approve, "deny": approvals.deny,
}  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name)(command)

GROUPS: Final[dict[str, tuple[str, dict[str, Callable[..., None]]]]] = {
    "approvals": ("Calls that wait for a person.", {
        "list": approvals.list_, "show": approvals.show, "watch": approvals.watch, "grants": approvals.grants,
        "revoke": approvals.revoke,
    }),
    "keys": ("Keys of clients, and of Sluice itself.", {
        "new": keys.new, "list": keys.list_, "revoke": keys.revoke, "rotate": keys.rotate,
    }),
    "pins": ("Definitions that changed since a person accepted them.", {
        "list": pins.list_, "diff": pins.diff, "accept": pins.accept, "export": pins.export,
    }),
    "audit": ("The audit log: verify, read and export it.", {
        "verify": audit.verify, "tail": audit.tail, "search": audit.search, "export": audit.export,
        "approvals": audit.approvals,
    }),
    "policy": ("Test and compare a policy before it is in force.", {"test": policy.test, "diff": policy.diff}),
    "config": ("The format of the config file.", {"schema": schema}),
}  # fmt: skip
for group, (about, commands) in GROUPS.items():
    app.add_typer(inner := typer.Typer(help=about, no_args_is_help=True), name=group)
    for name, command in commands.items():
        inner.command(name)(command)

EXIT_CODES: Final[dict[type[Exception], Code]] = {ConfigError: Code.CONFIG, Unreachable: Code.UNREACHABLE}
"""Everything else that a command expects to fail ends it by `output.stop`, with a code of its own."""


def _version(wanted: bool) -> None:
    if wanted:
        print_out(f"sluice {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One MCP server in front of many."""


def main() -> None:
    """Runs the command line. An error of the package ends it with the exit code that `EXIT_CODES` has for its type."""
    try:
        app()
    except tuple(EXIT_CODES) as error:
        for reason in error.args:
            info(str(reason))
        raise SystemExit(EXIT_CODES[type(error)]) from None
    except Exception:  # noqa: BLE001 - the last resort: the person who ran the command is shown what failed
        info(f"internal error; please report this with what you did:\n{traceback.format_exc()}")
        raise SystemExit(Code.INTERNAL) from None
