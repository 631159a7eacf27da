"""`add` and `remove`: servers in the config file. Everything else in it stays as it is, to the byte."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sluicegate import config
from sluicegate.cli.config_file import checked, config_path, config_text, server_keys, state_folder, write_config
from sluicegate.cli.output import AsJson, Code, ConfigFile, info, print_json, print_out, printable, stop
from sluicegate.cli.programs import make_absolute
from sluicegate.cli.template import new_file, with_server_last, without_server
from sluicegate.desktop.read import NotAClientConfig, parse
from sluicegate.desktop.variables import is_secret
from sluicegate.store import private

FOLDER: Final = "secrets"  # in `state.dir`
_HOW: Final = "sluice add NAME -- COMMAND..., or sluice add NAME URL"

Json = dict[str, Any]


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its key in the config file.", show_default=False)],
    target: Annotated[
        list[str] | None, typer.Argument(metavar="URL | -- COMMAND...", help="Where it is, or what starts it.",
                                         show_default=False)
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME[=VALUE]", show_default=False,
                                       help="A variable of the command. Without a value it is ${env:NAME}.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="'NAME: VALUE'", help="A header for the URL.",
                                       show_default=False)
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option("--secret", metavar="NAME", show_default=False,
                                       help="A variable, or a header of the URL, whose value is asked, or read from a "
                                            "line of stdin.")
    ] = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Add a server to the config file. Secrets go into files that only you can read. A running Sluice starts it."""
    server = _server(name, target or [], env or [], header or [])
    path = config_path(config_file)
    before = config_text(path)
    if name in server_keys(before):
        stop(Code.NEGATIVE, f"{name} is a server of {path} already; sluice remove {name} takes it out")
    notes = list(make_absolute(server))
    section = "env" if "command" in server else "headers"
    for one in secret or []:
        server.setdefault(section, {})[one] = _ask(one)
    files = _move_secrets(name, server, set(secret or []), state_folder(path) / FOLDER)
    after = with_server_last(before, name, server) if before.strip() else new_file({name: server}, use="personal")
    if before.strip():
        _require(path, before, after, _servers(before) | {name: server})
    _write_secrets(files)
    try:
        problems = _checked(path, after)
        write_config(path, after, before)
    except BaseException:
        for file in files:
            file.unlink()
        raise
    notes += [f"a secret is in {file}, which only you can read" for file in files]
    _show(as_json, path, "added", name, notes, problems)


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its key in the config file.", show_default=False)],
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Take a server out of the config file. The secrets that `sluice add` wrote for it are deleted. A running Sluice
    stops it."""
    path = config.find_config(config_file).absolute()
    before = config_text(path)
    servers = _servers(before)
    if name not in servers:
        names = ", ".join(map(printable, map(str, servers))) or "it has none"
        stop(Code.NEGATIVE, f"{printable(name)} is no server of {path}: {names}")
    after = without_server(before, name)
    _require(path, before, after, {key: server for key, server in servers.items() if key != name})
    problems = _checked(path, after)
    write_config(path, after, before)
    folder = state_folder(path) / FOLDER
    files = [file for file in sorted(folder.glob(f"{name}.*")) if str(file) in before and str(file) not in after]
    for file in files:
        file.unlink()
    _show(as_json, path, "removed", name, [f"{file} is deleted" for file in files], problems)


def _server(name: str, target: list[str], env: list[str], headers: list[str]) -> Json:
    """What the words describe. Exits where they are no server."""
    if name == config.RESERVED:
        stop(Code.USAGE, f"{name} is the name of Sluice itself: give the server another one")
    if not config.is_server_key(name):
        stop(Code.USAGE, f"{printable(name)} cannot be a server's name: 1 to 20 of a-z, 0-9 and -, a letter first")
    if not target or not target[0]:
        stop(Code.USAGE, f"this is no server yet: {_HOW}")
    if "://" not in target[0]:
        if headers:
            stop(Code.USAGE, "--header belongs to a URL; a command takes --env")
        server: Json = {"command": target[0]}
        if os.path.dirname(target[0]) and not target[0].startswith("~"):
            server["command"] = str(Path(target[0]).absolute())
        if target[1:]:
            server["args"] = target[1:]
        if any(_is_relative(word) for word in target[1:]):
            server["cwd"] = str(Path.cwd())
        return server | ({"env": dict(map(_variable, env))} if env else {})
    if len(target) > 1 or env:
        stop(Code.USAGE, "a URL stands alone, and takes --header, not --env: sluice add NAME URL")
    if not target[0].startswith(("http://", "https://")):
        stop(Code.USAGE, f"a URL begins with https:// or http://; {_HOW}")
    return {"url": target[0]} | ({"headers": dict(map(_header, headers))} if headers else {})


def _is_relative(word: str) -> bool:
    """Whether an argument names something in the current folder: it means something else in another."""
    return bool(word) and not word.startswith("-") and not os.path.isabs(word) and os.path.exists(word)


def _variable(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    return name, value if has_value else f"${{env:{name}}}"


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition(":")
    if not found:
        stop(Code.USAGE, "a header is written 'NAME: VALUE'")
    return name.strip(), value.strip()


def _ask(name: str) -> str:
    """A secret never stands among the arguments, which other users can see and shells remember."""
    if sys.stdin.isatty():
        return str(typer.prompt(name, hide_input=True, err=True))
    value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        stop(Code.USAGE, f"stdin has no line with the value of {printable(name)}")
    return value


def _move_secrets(key: str, server: Json, asked: set[str], folder: Path) -> dict[Path, str]:
    """Puts `${file:...}` in place of each secret. The files that have to be written, and their texts."""
    files: dict[Path, str] = {}

    def moved(text: str, name: str, hint: str = "") -> str:
        if name not in asked and not is_secret(text, hint):
            return text
        file = folder / f"{key}.{re.sub(r'[^A-Za-z0-9_-]', '_', name)}"
        files[file] = text
        return f"${{file:{file}}}"

    for section in ("env", "headers"):
        if section in server:
            server[section] = {name: moved(text, name, name) for name, text in server[section].items()}
    if "args" in server:
        server["args"] = [moved(text, f"argument-{at}") for at, text in enumerate(server["args"], 1)]
    if "url" in server:
        server["url"] = moved(server["url"], "url")
    return files


def _write_secrets(files: dict[Path, str]) -> None:
    written: list[Path] = []
    try:
        for file, text in files.items():
            private.make_directory(file.parent)
            if not private.write(file, text.encode("utf-8"), replace=False):
                raise FileExistsError(0, "it exists; delete it if nothing needs it")
            written.append(file)
    except OSError as error:
        for one in written:
            one.unlink()
        stop(Code.NEGATIVE, f"cannot write {file}: {error.strerror or error}", "nothing was changed")


def _servers(text: str) -> Json:
    document = _document(text)
    found = document.get("servers") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _document(text: str) -> Any:
    try:
        return parse(text.encode("utf-8"), ".yaml")
    except NotAClientConfig:
        return None


def _require(path: Path, before: str, after: str, servers: Json) -> None:
    """Exits unless the edited text is the one before with exactly these servers, in this order."""
    document = _document(before)
    if not isinstance(document, dict | None) or document is None:
        checked(path, before)
    changed = _document(after)
    found = _servers(after)
    rest = [{key: value for key, value in (one or {}).items() if key != "servers"} for one in (document, changed)]
    if list(found.items()) != list(servers.items()) or rest[0] != rest[1]:
        stop(Code.NEGATIVE, f"Sluice cannot edit {path}: write `servers:` with one server below another",
             "nothing was changed")  # fmt: skip


def _checked(path: Path, text: str) -> list[str]:
    try:
        return [str(one) for one in checked(path, text)]
    except config.ConfigError:
        info(f"nothing was changed: this is what would be wrong with {path}")
        raise


def _show(as_json: bool, path: Path, done: str, name: str, notes: list[str], problems: list[str]) -> None:
    if as_json:
        print_json({"config": str(path), done: name, "notes": notes, "problems": problems})
        return
    print_out(f"{done} {name}: {path}")
    for line in _hints(path, notes, problems):
        info(line)


def _hints(path: Path, notes: list[str], problems: list[str]) -> Iterator[str]:
    yield from (f"note  {printable(one)}" for one in [*notes, *problems])
    loaded = config.check(path).config
    if loaded is not None and not loaded.policy.watch:
        yield "next: send SIGHUP to a running Sluice, because `policy.watch` is false; then sluice servers"
    else:
        yield "a running Sluice follows within five seconds: sluice servers"
