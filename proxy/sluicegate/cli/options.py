"""Options that many commands have."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", show_default=False,
                 help="The config file; default: $SLUICE_CONFIG, ./sluice.yaml, or the one in your config directory."),
]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
