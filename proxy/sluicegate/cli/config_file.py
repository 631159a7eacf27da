"""The config file that a command changes: found, read as it is, checked as it will be, and replaced in one step."""

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from sluicegate import config
from sluicegate.cli.output import Code, stop
from sluicegate.desktop import changes
from sluicegate.desktop.read import NotAClientConfig, parse
from sluicegate.store import private


def config_path(named: Path | None) -> Path:
    """The config that is in use; without one, where the user's will be."""
    try:
        return config.find_config(named).absolute()
    except config.ConfigError:
        return config.places()[-1].absolute()


def config_text(path: Path) -> str:
    """Its text with the line ends that it has; empty where there is no file."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        stop(Code.CONFIG, f"{path}: the file is not UTF-8 text")
    except OSError as error:
        stop(Code.CONFIG, f"cannot read {path}: {error.strerror}")


def servers_of(path: Path) -> dict[str, Any]:
    try:
        document = parse(path.read_bytes(), ".yaml") if path.is_file() else None
    except NotAClientConfig as error:
        stop(Code.CONFIG, f"{path}:{error}")
    return _section(document)


def servers_in(text: str) -> dict[str, Any]:
    """The servers of a config file's text; none where it is no YAML."""
    return _section(document_of(text))


def _section(document: Any) -> dict[str, Any]:
    found = document.get("servers") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def find_state(path: Path) -> Path | None:
    """`state.dir`, also where the config is about to be written."""
    draft = config.draft(path) if path.is_file() else config.Source(str(path), path.parent, value={})
    return None if draft is None else config.state_of(draft)


def state_folder(path: Path) -> Path:
    if found := find_state(path):
        return found
    errors = [*map(str, config.check(path).errors)]
    stop(Code.CONFIG, *errors or [f"{path} does not say where its state is, which Sluice needs for this command"])


def require_yaml(path: Path, text: str) -> None:
    """Exits with the mistake where the file is no YAML: nothing else can be said of it."""
    try:
        parse(text.encode("utf-8"), ".yaml")
    except NotAClientConfig:
        stop(Code.CONFIG, *map(str, config.check(path).errors))


def checked(path: Path, text: str) -> list[config.ConfigFinding]:
    """The errors of a text that a server may have: what it lacks now; the others run without it. Raises `ConfigError`
    with all others."""
    errors = config.check_text(text.removeprefix("\ufeff"), str(path), path.parent, os.environ).errors
    if bad := [one for one in errors if one.code not in config.NO_VALUE]:
        raise config.ConfigError(bad)
    return errors


def write_value(path: Path, key_path: tuple[str | int, ...], before: str, after: str) -> None:
    """Writes a text in place of another one, and changes no other byte of the file. Exits if it cannot."""
    text = config_text(path)
    found = config.locate(path, [config.Problem(key_path, "", "")])[0]
    lines = text.split("\n")
    line, at = lines[found.line - 1], found.column - 1
    old = next((one for one in (before, f'"{before}"', f"'{before}'") if line.startswith(one, at)), "")
    lines[found.line - 1] = line[:at] + json.dumps(after, ensure_ascii=False) + line[at + len(old) :]
    edited = "\n".join(lines)
    wanted = section = deepcopy(document_of(text))
    for part in key_path[:-1]:
        section = section[part]
    section[key_path[-1]] = after
    if not old or document_of(edited) != wanted:
        stop(Code.NEGATIVE, f"Sluice cannot edit {path}:{found.line}: write the value by hand", "nothing was changed")
    checked(path, edited)
    write_config(path, edited, text)


def document_of(text: str) -> Any:
    try:
        return parse(text.encode("utf-8"), ".yaml")
    except NotAClientConfig:
        return None


def write_config(path: Path, text: str, before: str) -> None:
    try:
        if config_text(path) != before:
            stop(Code.NEGATIVE, f"{path} was changed meanwhile: run the command again")
        private.make_directory(path.parent)
        changes.replace(path, text.encode("utf-8"), changes.mode_of(path))
    except (OSError, changes.Changed) as error:
        stop(Code.NEGATIVE, f"cannot write {path}: {error}")
