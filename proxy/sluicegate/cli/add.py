"""`add` and `remove`: servers in the config file. Everything else in it stays as it is, to the byte."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sluicegate import config
from sluicegate.cli import registry
from sluicegate.cli.config_file import (
    checked,
    config_path,
    config_text,
    document_of,
    require_yaml,
    servers_in,
    state_folder,
    write_config,
)
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, info, print_json, print_out, printable, stop, with_config
from sluicegate.cli.programs import make_absolute
from sluicegate.cli.proposed_classes import Proposals, propose, set_classes, show_classes
from sluicegate.cli.secret import FOLDER, MovedSecrets, ask, drop, own_references
from sluicegate.cli.template import new_file, with_server_last, without_server
from sluicegate.desktop.read import key_of

_HOW: Final = "sluice add NAME -- COMMAND..., or sluice add NAME URL"

Json = dict[str, Any]


def add(
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False,
                            help="Its key in the config file; or a name of the MCP registry, such as io.github.x/y.")
    ],
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
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", show_default=False,
                                 help="The key in the config file of a server of the registry.")
    ] = None,
    registry_url: Annotated[
        str, typer.Option("--registry", metavar="URL", help="The registry to ask.", envvar="SLUICE_REGISTRY")
    ] = registry.BASE,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Do not start the server to propose classes of its tools.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Ask nothing: add a server of the registry, take the proposed classes.")
    ] = False,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Add a server to the config file. Secrets go into your keyring, else into files that only you can read. Where you
    can be asked, the server is started once, and classes of its tools are proposed. A running Sluice starts it."""
    path = config_path(config_file)
    before = config_text(path)
    is_registered = registry.is_name(name)
    wanted, name = name, (key or key_of(name.partition("@")[0].rpartition("/")[2], {})) if is_registered else name
    _require_name(name)
    if name in servers_in(before):
        hint = "--key gives it another" if is_registered else f"sluice remove {name} takes it out"
        stop(Code.NEGATIVE, f"{name} is a server of {path} already; {hint}")
    notes: list[str] = []
    if is_registered:
        given = dict(map(_variable, env or [])) | dict(map(_header, header or []))
        given |= {one: ask(one) for one in secret or []}
        found = _registered(wanted, registry_url, given, secret or [], target or [])
        server, secrets, notes = found.server, found.secrets, found.notes if as_json else []
        _confirm(found, yes)
    else:
        server = _server(target or [], env or [], header or [])
        asked = {one: ask(one) for one in secret or []}
        if asked:
            server.setdefault("env" if "command" in server else "headers", {}).update(asked)
        secrets = set(asked.values())
    notes += make_absolute(server)
    moved = MovedSecrets(state_folder(path) / FOLDER)
    moved.move(name, server, secrets)
    classes = {} if no_start else _classes(path, config_file, before, moved.plain, yes, as_json)
    set_classes({name: server}, classes)
    after = with_server_last(before, name, server) if before.strip() else new_file({name: server}, use="personal")
    if before.strip():
        _require(path, before, after, servers_in(before) | {name: server})
    moved.keep()
    try:
        problems = _checked(path, after)
        write_config(path, after, before)
    except BaseException:  # also an interrupt: the secrets of a server that was not added do not stay
        moved.drop()
        raise
    taken = classes[name].classes if classes else {}
    _show(as_json, path, config_file, {"added": name, "classes": taken}, notes + moved.notes(), problems)


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its key in the config file.", show_default=False)],
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Take a server out of the config file. The secrets that `sluice add` wrote for it are deleted. A running Sluice
    stops it."""
    path = config.find_config(config_file).absolute()
    before = config_text(path)
    require_yaml(path, before)
    servers = servers_in(before)
    if name not in servers:
        names = ", ".join(map(printable, map(str, servers))) or "it has none"
        stop(Code.NEGATIVE, f"{printable(name)} is no server of {path}: {names}")
    after = without_server(before, name)
    _require(path, before, after, {key: server for key, server in servers.items() if key != name})
    problems = _checked(path, after)
    write_config(path, after, before)
    folder = state_folder(path) / FOLDER
    unused = [one for one in own_references(name, folder, before) if one[2:-1].partition(":")[2] not in after]
    _show(as_json, path, config_file, {"removed": name}, [drop(one) for one in unused], problems)


def _require_name(name: str) -> None:
    if name == config.RESERVED:
        stop(Code.USAGE, f"{name} is the name of Sluice itself: give the server another one")
    if not config.is_server_key(name):
        stop(Code.USAGE, f"{printable(name)} cannot be a server's name: 1 to 20 of a-z, 0-9 and -, a letter first")


def _registered(
    text: str, base: str, given: dict[str, str], secrets: list[str], words: list[str]
) -> registry.RegistryEntry:
    """The server of the registry. Exits where it cannot be used here. `secrets` are the names of given values."""

    def ask(question: registry.RegistryQuestion) -> str:
        name = registry.shown(question.name)
        if not sys.stdin.isatty():
            stop(Code.USAGE, f"{text} needs a value for {name}: give it with --env, --header or --secret; what it "
                             "takes as an argument follows --")  # fmt: skip
        for about in (question.about, *question.choices):
            info(f"  {registry.shown(about)}")
        return str(typer.prompt(name, hide_input=question.is_secret, err=True))

    try:
        return registry.entry(registry.find(base, text), given, words, ask, secrets)
    except registry.Unusable as error:
        stop(Code.NEGATIVE, f"{text} cannot be added: {registry.shown(str(error))}",
             f"its own documentation says how to start it: {_HOW}")  # fmt: skip


def _masked(value: str, found: registry.RegistryEntry) -> str:
    return found.masked.get(value, "***") if value in found.secrets else value


def _confirm(found: registry.RegistryEntry, yes: bool) -> None:
    """What a stranger published runs on this machine: the person sees all of it first."""
    server = found.server
    words = [server["url"]] if "url" in server else [server["command"], *server["args"]]
    info(f"{found.name} {registry.shown(found.version)}" + "".join(f"; {registry.shown(one)}" for one in found.notes))
    info("  " + printable(shlex.join(_masked(word, found) for word in words)))
    for section in ("env", "headers"):
        for name, value in server.get(section, {}).items():
            info(f"  {section}: {printable(name)}={printable(_masked(value, found))}")
    if yes:
        return
    if not sys.stdin.isatty():
        stop(Code.USAGE, "nothing was changed: --yes adds it without a question")
    if not typer.confirm("Add it?", err=True):
        stop(Code.NEGATIVE, "nothing was changed")


def _classes(path: Path, named: Path | None, before: str, new: Json, yes: bool, as_json: bool) -> Proposals:
    """The proposed classes, if the person takes them. Nobody is asked without a terminal."""
    if not yes and (as_json or not sys.stdin.isatty()):
        return {}
    classes = propose(path, before, new)
    if not as_json:
        show_classes(classes, named)
    is_nothing = not any(one.classes for one in classes.values())
    if yes or is_nothing or typer.confirm("Take these classes of its tools?", default=True, err=True):
        return classes
    return {}


def _server(target: list[str], env: list[str], headers: list[str]) -> Json:
    """What the words describe. Exits where they are no server."""
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
        # What names something in the current folder means something else in another.
        if any(word and word[0] != "-" and not os.path.isabs(word) and os.path.exists(word) for word in target[1:]):
            server["cwd"] = str(Path.cwd())
        return server | ({"env": dict(map(_variable, env))} if env else {})
    if len(target) > 1 or env:
        stop(Code.USAGE, "a URL stands alone, and takes --header, not --env: sluice add NAME URL")
    if not target[0].startswith(("http://", "https://")):
        stop(Code.USAGE, f"a URL begins with https:// or http://; {_HOW}")
    return {"url": target[0]} | ({"headers": dict(map(_header, headers))} if headers else {})


def _variable(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    return name, value if has_value else f"${{env:{name}}}"


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition(":")
    if not found:
        stop(Code.USAGE, "a header is written 'NAME: VALUE'")
    return name.strip(), value.strip()


def _require(path: Path, before: str, after: str, servers: Json) -> None:
    """Exits unless the edited text is the one before with exactly these servers, in this order."""
    document = document_of(before)
    if not isinstance(document, dict | None) or document is None:
        checked(path, before)
    changed = document_of(after)
    found = servers_in(after)
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


def _show(as_json: bool, path: Path, named: Path | None, done: Json, notes: list[str], problems: list[str]) -> None:
    if as_json:
        print_json({"config": str(path), **done, "notes": notes, "problems": problems})
        return
    verb, name = next(iter(done.items()))
    print_out(f"{verb} {name}: {path}")
    for line in hints(path, named, [*notes, *problems]):
        info(line)


def hints(path: Path, named: Path | None, notes: list[str]) -> Iterator[str]:
    yield from (f"note  {printable(one)}" for one in notes)
    loaded, look = config.check(path).config, with_config("sluice servers", named)
    if loaded is not None and not loaded.policy.watch:
        yield f"next: send SIGHUP to a running Sluice, because `policy.watch` is false; then {look}"
    else:
        yield f"a running Sluice follows within five seconds: {look}"
