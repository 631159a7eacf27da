"""`keys new` and `keys revoke`: a client's key is printed once, the config holds its hash, and it can be taken back at
any time, also while the config is broken."""

import json
import re
import secrets
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from sluicegate import config
from sluicegate.cli.talk import AsJson, Code, ConfigFile, say, stop, tell, tell_json
from sluicegate.store.revoked import Revoked
from sluicegate.store.revoked import revoke as take_back

_DAYS = re.compile(r"([1-9][0-9]{0,4})d")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_BAD_NAME = "a key's name is 1 to 64 of a-z, 0-9, . _ and -, and does not begin with . _ or -"


def new(
    name: Annotated[str, typer.Argument(help="Who uses it: a-z, 0-9, . _ and -.")],
    roles: Annotated[
        list[str] | None, typer.Option("--role", help="A role it has, role:NAME; may be repeated.")
    ] = None,
    owner: Annotated[str, typer.Option("--owner", help="The person or team that answers for it.")] = "",
    expires: Annotated[str | None, typer.Option("--expires", help="2030-01-31, or 90d from now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key for a client and print it, once, and its line for the config."""
    if not config.is_key_name(name):
        stop(Code.USAGE, _BAD_NAME)
    key = f"slc_{secrets.token_urlsafe(32)}"
    entry: dict[str, Any] = {"hash": f"sha256:{sha256(key.encode()).hexdigest()}"}
    entry["roles"] = [role if role.startswith("role:") else f"role:{role}" for role in roles or ()]
    entry |= {"owner": owner} if owner else {}
    entry |= {"expires": _moment(expires)} if expires else {}
    _check(name, entry)
    if as_json:
        tell_json({"name": name, "key": key, **entry})
        return
    tell(key)
    tell(f"{name}: {{{', '.join(f'{word}: {json.dumps(value)}' for word, value in entry.items())}}}")
    say("The first line is the key: give it to the client, it is not stored and not shown again.")
    say("The second line belongs into the config, under clients.keys.")


def _moment(text: str) -> str:
    """A whole day, so that nobody has to read seconds."""
    days = _DAYS.fullmatch(text)
    return text if days is None else (datetime.now(UTC) + timedelta(days=int(days[1]))).date().isoformat()


def _check(name: str, entry: dict[str, Any]) -> None:
    try:
        config.make({"policy": {"use": "team"}, "clients": {"keys": {name: entry}}}, Path())
    except config.ConfigError as error:
        stop(Code.USAGE, *(finding.message for finding in error.findings if finding.severity == "error"))


def revoke(
    name: Annotated[str, typer.Argument(help="As it stands under clients.keys.")],
    config_file: ConfigFile = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Where state.dir is, if the config cannot tell.")
    ] = None,
) -> None:
    """Take a key back, for good: a running Sluice refuses it within seconds, without a restart."""
    if not config.is_key_name(name):
        stop(Code.USAGE, _BAD_NAME)
    path = config.find_config(config_file)
    said = config.draft(path)
    entry = _at(said, "clients", "keys", name)
    if entry is None and config.check(path).config is not None:
        stop(Code.NEGATIVE, f"{path} has no key {name} under clients.keys")
    directory = state_dir or _state(path, said)
    if directory is None:
        stop(Code.CONFIG, f"{path} cannot be read; say where its state.dir is: --state-dir DIR")
    hash = _at(entry, "hash")
    known = hash if isinstance(hash, str) and _HASH.fullmatch(hash) else None
    if Revoked(directory).has(name, known or ""):
        say(f"{name} is revoked already")
        return
    take_back(directory, name, known)
    say(f"{name} is revoked; its sessions and streams end within seconds. Remove its line from the config.")
    if known is None:
        say(f"{path} does not tell its hash: the name {name} is revoked. Give the next key another name.")


def _at(value: Any, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _state(path: Path, said: Any) -> Path | None:
    """Where the config puts its state, whatever else is wrong with it."""
    if not isinstance(said, dict):
        return None
    named = _at(said, "state", "dir")
    if isinstance(named, str):
        return path.absolute().parent / Path(named).expanduser()
    return config.default_state() if "state" not in said else None
