"""`secret set`, `list` and `remove`: secrets in the keyring of the operating system. And how other commands move them
out of the config: into the keyring, else into files that only their owner can read."""

import re
import sys
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sluicegate.cli.config_file import config_path, config_text
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, give, info, printable, stop, table
from sluicegate.config import os_keyring
from sluicegate.desktop.variables import as_text, is_secret, options
from sluicegate.store import private

FOLDER: Final = "secrets"  # in `state.dir`
_NAMED: Final = re.compile(rf"\$\{{secret:({os_keyring.IS_NAME.pattern})\}}")

Json = dict[str, Any]
SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="As the config names it: ${secret:NAME}.", show_default=False)
]


@dataclass
class MovedSecrets:
    """Secrets that were taken out of sections of servers. `keep` puts them where their references look for them."""

    folder: Path
    texts: dict[str, str] = field(default_factory=dict, repr=False)
    """By the reference, `${...}`, that stands in the section now."""
    plain: dict[str, Json] = field(default_factory=dict, repr=False)
    """The sections by key, as they may start before `keep`: their secrets are text, in which no `${...}` is read."""

    @cached_property
    def has_keyring(self) -> bool:
        return not os_keyring.why_none()

    def move(self, key: str, server: Json, secrets: Collection[str] = ()) -> None:
        """Puts a reference in place of each of these secrets, and of what looks like one."""
        self.texts |= (texts := self._moved(key, server, secrets, None))
        self.plain[key] = deepcopy(server)
        _change(self.plain[key], lambda text, name, hint: as_text(texts[text]) if text in texts else text)

    def is_same(self, key: str, server: Json, other: Json) -> bool:
        """Whether `other`, the section of `key`, is that server, also with its secrets moved, with classes and with
        another timeout."""
        other, server = ({name: part for name, part in one.items() if name != "timeout"} for one in (other, server))
        other = _without_classes(other)
        if other == server:
            return True
        for in_keyring in (True, False):
            copy = deepcopy(server)
            texts = self._moved(key, copy, (), in_keyring)
            if copy == other:
                return all(self._value(reference) == text for reference, text in texts.items())
        return False

    def _moved(self, key: str, server: Json, secrets: Collection[str], in_keyring: bool | None) -> dict[str, str]:
        texts: dict[str, str] = {}

        def moved(text: str, name: str, hint: str) -> str:
            if text not in secrets and not is_secret(text, hint):
                return text
            own = f"{key}.{re.sub(r'[^A-Za-z0-9_-]', '_', name)}"
            is_there = self.has_keyring if in_keyring is None else in_keyring
            reference = f"${{secret:{own}}}" if is_there else f"${{file:{self.folder / own}}}"
            texts[reference] = text
            return reference

        _change(server, moved)
        return texts

    def _value(self, reference: str) -> str | None:
        if reference in self.texts:
            return self.texts[reference]
        kind, _, name = reference[2:-1].partition(":")
        try:
            return os_keyring.get(name) if kind == "secret" else Path(name).read_text("utf-8")
        except (os_keyring.NoKeyring, OSError, ValueError):
            return None

    def notes(self) -> list[str]:
        """Where each secret goes, for the person."""
        return [f"a secret goes to {_where(reference)}" for reference in self.texts]

    def keep(self) -> None:
        """All or none. Exits where a secret of that name is there already: somebody may need it."""
        stored: list[str] = []
        try:
            for reference, text in self.texts.items():
                _keep(reference, text)
                stored.append(reference)
        except (OSError, os_keyring.NoKeyring) as error:
            self.drop(stored)
            why = getattr(error, "strerror", None) or str(error)
            stop(Code.NEGATIVE, f"cannot write {_where(reference)}: {why}", "nothing was changed")

    def drop(self, stored: Collection[str] | None = None) -> None:
        for reference in self.texts if stored is None else stored:
            drop(reference)


def _change(server: Json, one: Callable[[str, str, str], str]) -> None:
    """Changes each value that may hold a secret. `one` gets it, a name for it, and what its name says of it."""
    for section in ("env", "headers"):
        if section in server:
            server[section] = {name: one(text, name, name) for name, text in server[section].items()}
    if "args" in server:
        named = zip(server["args"], options(server["args"]), strict=True)
        server["args"] = [one(text, f"argument-{at}", option) for at, (text, option) in enumerate(named, 1)]
    if "url" in server:
        server["url"] = one(server["url"], "url", "")


def _without_classes(server: Json) -> Json:
    tools = server.get("tools")
    if not isinstance(tools, dict) or "classes" not in tools:
        return server
    rest = {name: value for name, value in tools.items() if name != "classes"}
    return {name: value for name, value in server.items() if name != "tools"} | ({"tools": rest} if rest else {})


def _where(reference: str) -> str:
    kind, _, name = reference[2:-1].partition(":")
    return f"your keyring, as {name}" if kind == "secret" else f"{name}, which only you can read"


def _keep(reference: str, text: str) -> None:
    kind, _, name = reference[2:-1].partition(":")
    if kind == "secret":
        if os_keyring.get(name) is not None:
            raise os_keyring.NoKeyring(f"it exists; `sluice secret remove {name}` deletes it if nothing needs it")
        return os_keyring.put(name, text)
    file = Path(name)
    private.make_directory(file.parent)
    if not private.write(file, text.encode("utf-8"), replace=False):
        raise FileExistsError(0, "it exists; delete it if nothing needs it")


def drop(reference: str) -> str:
    """Deletes what a reference names. Returns what was done."""
    kind, _, name = reference[2:-1].partition(":")
    if kind == "secret":
        try:
            os_keyring.delete(name)
        except os_keyring.NoKeyring as error:
            return f"the secret {name} was not deleted: {error}"
        return f"the secret {name} is deleted from your keyring"
    Path(name).unlink(missing_ok=True)
    return f"{name} is deleted"


def own_references(key: str, folder: Path, text: str) -> list[str]:
    """The references in a config file to secrets that were moved for one server."""
    named = [f"${{secret:{name}}}" for name in _NAMED.findall(text) if name.startswith(f"{key}.")]
    return [*named, *(f"${{file:{file}}}" for file in sorted(folder.glob(f"{key}.*")) if str(file) in text)]


def ask(name: str) -> str:
    """A secret never stands among the arguments, which other users can see and shells remember."""
    if sys.stdin.isatty():
        return str(typer.prompt(name, hide_input=True, err=True))
    value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        stop(Code.USAGE, f"stdin has no line with the value of {printable(name)}")
    return value


def set_(name: SecretName, as_json: AsJson = False) -> None:
    """Store a secret in the keyring. Its value is asked, or read from a line of stdin. A Sluice that runs uses it after
    its next start, or after the next change of its config."""
    _require(name)
    value = ask(name)
    try:
        is_new = os_keyring.get(name) is None
        os_keyring.put(name, value)
    except os_keyring.NoKeyring as error:
        stop(Code.NEGATIVE, str(error), "${file:PATH} takes a secret from a file, ${env:NAME} from the environment")
    done = "added" if is_new else "replaced"
    give(as_json, {"secret": name, "done": done}, [f"{done} {name}; the config names it ${{secret:{name}}}"])


def list_(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show which secrets the config names. And whether the keyring has them; their values are never shown."""
    path = config_path(config_file)
    names = sorted(set(_NAMED.findall(config_text(path))))
    try:
        rows = [{"name": name, "there": os_keyring.get(name) is not None} for name in names]
    except os_keyring.NoKeyring as error:
        stop(Code.NEGATIVE, str(error))
    if as_json or rows:
        cells = [[row["name"], "ok" if row["there"] else "absent"] for row in rows]
        give(as_json, {"config": str(path), "secrets": rows}, [table([["NAME", "STATE"], *cells], state="STATE")])
    else:
        info(f"{path} names no secret")


def remove(name: SecretName, as_json: AsJson = False) -> None:
    """Delete a secret from the keyring."""
    _require(name)
    try:
        if os_keyring.get(name) is None:
            stop(Code.NEGATIVE, f"the keyring has no secret {name}")
        os_keyring.delete(name)
    except os_keyring.NoKeyring as error:
        stop(Code.NEGATIVE, str(error))
    give(as_json, {"secret": name, "done": "removed"}, [f"removed {name}"])


def _require(name: str) -> None:
    if not os_keyring.IS_NAME.fullmatch(name):
        stop(Code.USAGE, f"{printable(name)} is no name of a secret: up to 100 letters, digits, `_`, `-` and `.`, a "
                         "letter or digit first")  # fmt: skip
