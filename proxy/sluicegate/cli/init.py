"""`init`: a new config file, commented, or made from what a desktop client has."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from sluicegate import config
from sluicegate.cli.output import Code, count, info, printable, stop
from sluicegate.cli.programs import at_home, make_absolute
from sluicegate.cli.template import new_file
from sluicegate.desktop.clients import CLIENTS, client_of
from sluicegate.desktop.edit import snippet
from sluicegate.desktop.read import Imported, NotAClientConfig, read
from sluicegate.store import private


def init(
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="The config file of a desktop client, to import its servers.",
                     show_default=False),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="CLIENT", show_default=False,
                     help=f"The client to print a snippet for, else that of --from: {', '.join(CLIENTS)}."),
    ] = None,
    config_file: Annotated[Path, typer.Option("-c", "--config", metavar="FILE", help="The file to write.")] = Path(
        "sluice.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a new config file. --from imports the servers of a desktop client."""
    if for_ is not None and for_ not in CLIENTS:
        stop(Code.USAGE, f"{for_} is not a client that Sluice knows; --for takes one of {', '.join(CLIENTS)}")
    imported = _import(from_) if from_ else Imported()
    for key, server in imported.servers.items():
        imported.notes += [f"{key}: {note}" for note in (*at_home(server), *make_absolute(server))]
    for note in imported.notes:
        info(f"note  {printable(note)}")
    if from_ and not imported.servers:
        stop(Code.NEGATIVE, f"Sluice cannot import any server of {from_}; it wrote no file")
    _write(config_file, new_file(imported.servers), force)
    info(f"wrote {config_file}" + (f" with {count(len(imported.servers), 'server')}" if from_ else ""))
    for finding in config.check(config_file).findings:
        info(str(finding))
    client = for_ or (client_of(from_, imported.root) if from_ else "claude-desktop")
    info(f"next: sluice check -c {config_file}; then add this to the config of your client ({client}):")
    about, (command, args) = CLIENTS[client], sluice_command(config_file)
    info(snippet(Path(about.linux[0]).suffix, about.root, {"sluice": about.sluice(command, args)}))
    if client == "claude-code":
        info(f"or run: {shlex.join(['claude', 'mcp', 'add', '--scope', 'user', 'sluice', '--', command, *args])}")


def _import(path: Path) -> Imported:
    try:
        return read(path.read_bytes(), path.suffix.lower())
    except OSError as error:
        stop(Code.USAGE, f"cannot read {path}: {error.strerror}")
    except NotAClientConfig as error:
        stop(Code.CONFIG, f"{path}:{error}")


def _write(path: Path, text: str, force: bool) -> None:
    """Readable for the owner alone: what was imported may hold secrets. Replaced in one step, never half."""
    if path.exists() and not force:
        stop(Code.NEGATIVE, f"{path} exists; --force overwrites it")
    try:
        private.write(path, text.encode("utf-8"), replace=True)
    except OSError as error:
        stop(Code.USAGE, f"cannot write {path}: {error.strerror}")


def sluice_command(path: Path) -> tuple[str, list[str]]:
    """How a client starts us: a program and its arguments, by absolute paths."""
    sluice = shutil.which("sluice", path=str(Path(sys.executable).parent)) or shutil.which("sluice")
    command = [str(Path(sluice).absolute())] if sluice else [sys.executable, "-m", "sluicegate"]
    return command[0], [*command[1:], "stdio", "-c", str(path.absolute())]
