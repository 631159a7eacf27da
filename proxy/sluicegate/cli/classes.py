"""`classes`: classes for tools of servers that are in the config file already, and listed none when they came."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sluicegate import config
from sluicegate.cli.add import hints
from sluicegate.cli.admin import running_servers
from sluicegate.cli.check import stored_definitions
from sluicegate.cli.config_file import checked, config_text, document_of, write_config
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, info, load, print_json, print_out, printable, stop
from sluicegate.cli.proposed_classes import Proposal, proposal_of, propose_for, show_classes
from sluicegate.cli.template import with_classes

_WAITS: Final = "the Sluice that runs has no list of it"


def classes(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Servers; default: all whose tools have no class.",
                                         show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Propose classes for tools that have none. Takes the lists that Sluice knows. Where it knows none and does not
    run, the server is started once. Writes the classes that you take into the config file."""
    path = config.find_config(config_file).absolute()
    before = config_text(path)
    _, loaded = load(path, quietly=True)
    chosen = _chosen(path, loaded, names or [])
    if not yes and not sys.stdin.isatty():
        stop(Code.USAGE, "nothing was changed: --yes writes classes without a question")
    found = _proposals(path, loaded, chosen)
    if not as_json:
        show_classes(found, config_file)
    wanted = {key: one.classes for key, one in found.items() if one.classes}
    if wanted and not yes and not typer.confirm("Write these classes?", default=True, err=True):
        stop(Code.NEGATIVE, "nothing was changed")
    after, by_hand = _edited(before, wanted)
    if after != before:
        checked(path, after)
        write_config(path, after, before)
    notes = [f"Sluice cannot edit {key}: write its tools.classes by hand" for key in by_hand]
    written = {key: own for key, own in wanted.items() if key not in by_hand}
    if as_json:
        print_json({"config": str(path), "classes": written, "notes": notes})
        return
    print_out(f"classes of {', '.join(written)}: {path}" if written else f"no classes were written: {path}")
    for line in hints(path, config_file, notes) if written else notes:
        info(line)


def _chosen(path: Path, loaded: config.Config, names: list[str]) -> list[str]:
    for name in names:
        if name not in loaded.servers:
            stop(Code.NEGATIVE, f"{printable(name)} is no server of {path}: {', '.join(loaded.servers)}")
        if not loaded.servers[name].enabled:
            stop(Code.NEGATIVE, f"{name} is disabled: set servers.{name}.enabled in {path}")
        if loaded.servers[name].tools.classes:
            stop(Code.NEGATIVE, f"tools of {name} have classes already: edit servers.{name}.tools.classes in {path}")
    without = [key for key, one in loaded.servers.items() if one.enabled and not one.tools.classes]
    return list(dict.fromkeys(names)) or without


def _proposals(path: Path, loaded: config.Config, chosen: list[str]) -> dict[str, Proposal]:
    stored = stored_definitions(loaded)
    found = {key: proposal_of([*stored[key].values()]) for key in chosen if stored.get(key)}
    unknown = [key for key in chosen if key not in found]
    if unknown and running_servers(path) is not None:  # a second process could disturb the first one
        return {key: found.get(key) or Proposal(None, _WAITS) for key in chosen}
    started = propose_for(loaded, unknown)
    return {key: found.get(key) or started[key] for key in chosen}


def _edited(text: str, wanted: dict[str, dict[str, str]]) -> tuple[str, list[str]]:
    """The text with these classes, and the servers whose form does not allow such an edit."""
    by_hand = []
    for key, own in wanted.items():
        after = with_classes(text, key, own)
        if document_of(after) == _with(document_of(text), key, own):
            text = after
        else:
            by_hand.append(key)
    return text, by_hand


def _with(document: Any, key: str, own: dict[str, str]) -> Any:
    server = document["servers"][key]
    changed = server | {"tools": (server.get("tools") or {}) | {"classes": own}}
    return document | {"servers": document["servers"] | {key: changed}}
