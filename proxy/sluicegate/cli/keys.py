"""`keys new`, `list` and `revoke`: a client's key is printed once, the config holds its hash, and it can be revoked at
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
from sluicegate.cli.output import AsJson, Code, ConfigFile, give, info, load, stop, table
from sluicegate.store.revoked import Revoked
from sluicegate.store.revoked import revoke as take_back

_DAYS = re.compile(r"([1-9][0-9]{0,4})d")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_HEAD = ["NAME", "STATE", "ROLES", "OWNER", "EXPIRES"]
_BAD_NAME = "a key's name is 1 to 64 of a-z, 0-9, . _ and -, and does not begin with . _ or -"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who uses it: a-z, 0-9, . _ and -.")],
    roles: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="A role that the key has; may be repeated.")
    ] = None,
    owner: Annotated[str, typer.Option("--owner", metavar="OWNER", help="Who answers for it: a person or team.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="When it ends: 2030-01-31, or 90d from now.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key for a client. Prints it, once, and its line for the config."""
    if not config.is_key_name(name):
        stop(Code.USAGE, _BAD_NAME)
    key = f"slc_{secrets.token_urlsafe(32)}"
    entry: dict[str, Any] = {"hash": f"sha256:{sha256(key.encode()).hexdigest()}"}
    entry["roles"] = [role if role.startswith("role:") else f"role:{role}" for role in roles or ()]
    entry |= {"owner": owner} if owner else {}
    entry |= {"expires": _moment(expires)} if expires else {}
    _check(name, entry)
    line = f"{name}: {{{', '.join(f'{word}: {json.dumps(value)}' for word, value in entry.items())}}}"
    give(as_json, {"name": name, "key": key, **entry}, [key, line])
    if as_json:
        return
    info("The first line is the key: give it to the client, it is not stored and not shown again.")
    info("The second line belongs into the config, under clients.keys.")


def _moment(text: str) -> str:
    """A whole day, so that nobody has to read seconds."""
    days = _DAYS.fullmatch(text)
    return text if days is None else (datetime.now(UTC) + timedelta(days=int(days[1]))).date().isoformat()


def _check(name: str, entry: dict[str, Any]) -> None:
    try:
        config.make({"policy": {"use": "team"}, "clients": {"keys": {name: entry}}}, Path())
    except config.ConfigError as error:
        stop(Code.USAGE, *(finding.message for finding in error.findings if finding.severity == "error"))


def list_(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show the keys of the config, and which are still good."""
    _, loaded = load(config_file, quietly=True)
    revoked = Revoked(loaded.state.dir)
    rows = [_row(name, key, revoked) for name, key in loaded.clients.keys.items()]
    give(as_json, {"keys": rows}, [table([_HEAD, *map(_cells, rows)])] if rows else [])
    if not rows:
        info("the config has no keys: `sluice keys new NAME` makes one")


def _row(name: str, key: config.Key, revoked: Revoked) -> dict[str, Any]:
    """Nothing of its hash, which is shown nowhere."""
    is_over = key.expires is not None and key.expires <= datetime.now(UTC)
    state = "revoked" if revoked.has(name, key.hash.get_secret_value()) else "expired" if is_over else "good"
    expires = key.expires.isoformat() if key.expires else None
    return {"name": name, "state": state, "roles": list(key.roles), "owner": key.owner, "expires": expires}


def _cells(row: dict[str, Any]) -> list[str]:
    roles = " ".join(row["roles"])
    return [row["name"], row["state"], roles or "-", row["owner"] or "-", row["expires"] or "never"]


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As it stands under clients.keys.")],
    config_file: ConfigFile = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", metavar="DIR", help="Where state.dir is, if the config cannot tell.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key for good. A running Sluice refuses it within seconds, without a restart."""
    if not config.is_key_name(name):
        stop(Code.USAGE, _BAD_NAME)
    path = config.find_config(config_file)
    said = config.draft(path)
    entry = _at(said and said.value, "clients", "keys", name)
    if entry is None and config.check(path).config is not None:
        stop(Code.NEGATIVE, f"{path} has no key {name} under clients.keys")
    directory = state_dir or (config.state_of(said) if said else None)
    if directory is None:
        problems = config.check(path).errors
        stop(Code.CONFIG, *map(str, problems), "nothing was revoked: say where state.dir is, with --state-dir DIR")
    hash = _at(entry, "hash")
    known = hash if isinstance(hash, str) and _HASH.fullmatch(hash) else None
    has_been = Revoked(directory).has(name, known or "")
    if not has_been:
        take_back(directory, name, known)
    give(as_json, {"name": name, "state": "revoked", "by": "name" if known is None else "hash"}, [])
    if has_been:
        info(f"{name} is revoked already")
        return
    info(f"{name} is revoked; its sessions and streams end within seconds. Remove its line from the config.")
    if known is None:
        info(f"{path} does not tell its hash: the name {name} is revoked. Give the next key another name.")


def _at(value: Any, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value
