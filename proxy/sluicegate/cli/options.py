"""Options that many commands have."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", show_default=False,
                 help="The config file; default: $SLUICE_CONFIG, ./sluice.yaml, or the one in your config directory."),
]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def with_config(command: str, named: Path | None) -> str:
    """A command that a hint shows, for the config file of this one."""
    return command if named is None else f"{command} -c {shlex.quote(str(named.absolute()))}"
