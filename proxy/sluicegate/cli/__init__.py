"""The command `sluice`: one file per group of commands, each a thin shell around the package.

This file puts the commands together and is the last resort for errors: a bad config is answered with its
findings, anything unforeseen with a trace.
"""

import traceback
from typing import Annotated, Final

import typer
from typer.core import TyperArgument

from sluicegate import __version__
from sluicegate.cli import approvals, audit, pins, policy
from sluicegate.cli.admin import Unreachable, servers, tools
from sluicegate.cli.check import check, schema
from sluicegate.cli.explain import explain
from sluicegate.cli.init import init
from sluicegate.cli.keys import list_, new, revoke, rotate
from sluicegate.cli.output import Code, info, print_out
from sluicegate.cli.run import demo_, serve, stdio
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
keys_app = typer.Typer(help="Keys of clients.", no_args_is_help=True)
pins_app = typer.Typer(help="Definitions that changed since they were accepted.", no_args_is_help=True)
approvals_app = typer.Typer(help="Calls that wait for a person.", no_args_is_help=True)
audit_app = typer.Typer(help="The audit log: proved, read, exported.", no_args_is_help=True)
policy_app = typer.Typer(help="The policy, before it is in force.", no_args_is_help=True)
config_app = typer.Typer(help="The format of the config file.", no_args_is_help=True)
keys_app.command("new")(new)
keys_app.command("list")(list_)
keys_app.command("revoke")(revoke)
keys_app.command("rotate")(rotate)
config_app.command("schema")(schema)
audit_app.command("verify")(audit.verify)
audit_app.command("tail")(audit.tail)
audit_app.command("search")(audit.search)
audit_app.command("export")(audit.export)
audit_app.command("approvals")(audit.approvals)
approvals_app.command("list")(approvals.list_)
approvals_app.command("show")(approvals.show)
approvals_app.command("watch")(approvals.watch)
approvals_app.command("grants")(approvals.grants)
approvals_app.command("revoke")(approvals.revoke)
pins_app.command("list")(pins.list_)
pins_app.command("diff")(pins.diff)
pins_app.command("accept")(pins.accept)
pins_app.command("export")(pins.export)

policy_app.command("test")(policy.test)
policy_app.command("diff")(policy.diff)

app.command("init")(init)
app.command("serve")(serve)
app.command("stdio")(stdio)
app.command("demo")(demo_)
app.command("check")(check)
app.command("explain")(explain)
app.command("servers")(servers)
app.command("tools")(tools)
app.command("approve")(approvals.approve)
app.command("deny")(approvals.deny)
app.add_typer(approvals_app, name="approvals")
app.add_typer(keys_app, name="keys")
app.add_typer(pins_app, name="pins")
app.add_typer(audit_app, name="audit")
app.add_typer(policy_app, name="policy")
app.add_typer(config_app, name="config")


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
