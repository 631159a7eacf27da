"""All commands and groups of the command line, and what typer refuses of it."""

import gc
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer
from typer.core import TyperArgument
from typer.exceptions import TyperException

from sluicegate import __version__
from sluicegate.cli.output import Code, Stopped, print_out

# In a help text an argument has its name alone, as an option has: typer adds Python's type to it, such as <list[Path]>.
setattr(TyperArgument, "display_type_rich", lambda argument, ctx: None)  # noqa: B010 - mypy refuses an assignment

COMMANDS: Final = {
    "init": "init", "install": "install", "uninstall": "install", "status": "install", "add": "add", "remove": "add",
    "classes": "classes",
    "serve": "serve", "stdio": "stdio", "demo": "demo", "check": "check", "doctor": "doctor", "explain": "explain",
    "servers": "servers", "logs": "servers", "tools": "servers", "prompts": "servers", "resources": "servers",
    "login": "login", "logout": "login", "logins": "login",
    "block": "block", "unblock": "block",
    "call": "call", "console": "console", "approve": "approvals", "deny": "approvals",
    "detector": "detector",
}  # fmt: skip
"""The module of this room that has a command's function."""

GROUPS: Final = {
    "approvals": ("Calls that wait for a person.", ("list_", "show", "watch", "grants", "revoke")),
    "keys": ("Keys of clients, and of Sluice itself.", ("new", "list_", "revoke", "rotate")),
    "secret": ("Secrets in the keyring of the operating system.", ("set_", "list_", "remove")),
    "pins": ("Definitions that changed since a person accepted them.", ("list_", "diff", "accept", "export")),
    "audit": (
        "The audit log: verify, read and export it.",
        ("verify", "retire", "tail", "search", "export", "approvals"),
    ),
    "state": ("The database of state.url.", ("migrate", "import_")),
    "policy": ("Test and compare a policy before it is in force.", ("test", "diff")),
    "config": ("The format of the config file.", ("check:schema",)),
    "grafana": ("The dashboard and the alerts.", ("export",)),
}
"""What a group is about, and its functions. Their module has the group's name, or the one before a colon."""


def application(words: Sequence[str] = ()) -> typer.Typer:
    """The command line: whole, or only with the command or group that `words` begin with. To import only that saves
    half a second."""
    app = typer.Typer(
        name="sluice", help="One MCP server in front of many.", no_args_is_help=True, pretty_exceptions_enable=False,
        rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(_options)
    only = words[0] if words and words[0] in COMMANDS | GROUPS else None
    for name, module in COMMANDS.items():
        if only in (None, name):
            _add(app, name, module, name)
    for group, (about, functions) in GROUPS.items():
        if only in (None, group):
            app.add_typer(inner := typer.Typer(help=about, no_args_is_help=True), name=group)
            for source in functions:
                module, _, function = source.rpartition(":")
                _add(inner, function.rstrip("_"), module or group, function)
    return app


def _add(app: typer.Typer, name: str, module: str, function: str) -> None:
    app.command(name)(getattr(import_module(f"sluicegate.cli.{module}"), function))


def _version(wanted: bool) -> None:
    if wanted:
        print_out(f"sluice {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One MCP server in front of many."""


def run_command(words: Sequence[str], *, as_json: bool) -> int:
    """Runs the command that the arguments of this process name, and returns its exit code. Raises `Stopped` for what
    typer refuses."""
    app = application(words)
    gc.freeze()  # what is imported by now stays
    gc.enable()
    try:
        return int(app(standalone_mode=False) or 0)
    except TyperException as error:
        show = getattr(error, "show", None)  # usage errors say more than their message
        if show is None or as_json:
            raise Stopped(Code(error.exit_code), error.format_message()) from None
        show()
        return error.exit_code
    except typer.Abort:
        raise Stopped(Code.NEGATIVE, "Aborted!") from None
