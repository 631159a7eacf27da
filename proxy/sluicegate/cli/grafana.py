"""`grafana export`: the dashboard and the alert rules, which every installed Sluice carries."""

from pathlib import Path
from typing import Annotated, Final

import typer

from sluicegate.cli.options import AsJson
from sluicegate.cli.output import Code, give, stop
from sluicegate.policy.files import bundled_root

_FOLDERS: Final = ("dashboards", "prometheus", "provisioning")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write to, made where it is missing.")]


def export(
    folder: Folder,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the dashboard and the alert rules into a folder. The rules' tests, and what to do about each alert, are
    beside them. If one of the files is there and differs, nothing is written."""
    source = bundled_root().with_name("grafana")
    contents = {folder / path.relative_to(source): path.read_bytes() for path in _exported(source)}
    try:
        changed = [path for path, content in contents.items() if path.exists() and path.read_bytes() != content]
        if changed and not force:
            stop(Code.NEGATIVE, *(f"{path} is there and differs; --force replaces it" for path in changed))
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        stop(Code.NEGATIVE, f"{error.filename or folder}: {error.strerror}")
    written = list(map(str, contents))
    give(as_json, {"files": written}, written)


def _exported(source: Path) -> list[Path]:
    """Not the sources of the dashboard, which only a checkout has."""
    files = [path for name in _FOLDERS for path in (source / name).rglob("*") if path.is_file()]
    return [source / "README.md", *sorted(files)]
