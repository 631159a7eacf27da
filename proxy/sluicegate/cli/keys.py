"""`keys new`, `list` and `revoke` for the keys of clients, and `keys rotate` for the keys of Sluice itself.

A client's key is printed once and the config holds its hash. It can be revoked at any time, even while the config has
errors. Older keys of Sluice itself stay, so that nothing is lost.
"""

import json
import os
import re
import secrets
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer

from sluicegate import config
from sluicegate.app import replicas, state
from sluicegate.app.services import open_audit
from sluicegate.app.settings import KEYS
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, count, give, info, load, stop, table
from sluicegate.policy.lint import suggest
from sluicegate.protocol.jsonrpc import inside
from sluicegate.store import StoreFailed
from sluicegate.store.keys import KeyRing
from sluicegate.store.private import Exposed
from sluicegate.store.revoked import Revoked, entry
from sluicegate.store.revoked import revoke as take_back

RINGS: Final = {
    "sign": "checkpoints of the audit log; the old key introduces the new one there",
    "digest": "marks and digests in the audit log: equal values of before and after can no longer be told to be equal",
    "seal": "cursors and questions that clients hold; those of before stay good",
}
_DAYS = re.compile(r"([1-9][0-9]{0,4})d")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_HEAD = ["NAME", "STATE", "ROLES", "OWNER", "EXPIRES"]
_BAD_NAME = "a key's name is 1 to 64 of a-z, 0-9, . _ and -, and does not begin with . _ or -"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the client: a-z, 0-9, . _ and -.")],
    roles: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="A role for the key; may be repeated.")
    ] = None,
    owner: Annotated[
        str, typer.Option("--owner", metavar="OWNER", help="The person or team that is responsible for it.")
    ] = "",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="WHEN",
                     help="When the key expires: a date (2030-01-31), or days from now (90d)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key for a client. Prints the key, once, and its line for the config."""
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
    """Show the keys in the config and whether each is still valid."""
    _, loaded = load(config_file, quietly=True)
    try:
        revoked = state.revoked(loaded)
    except StoreFailed as error:
        stop(Code.UNREACHABLE, f"which keys are revoked is not known: {error}")
    rows = [_row(name, key, revoked) for name, key in loaded.clients.keys.items()]
    give(as_json, {"keys": rows}, [table([_HEAD, *map(_cells, rows)], state="STATE")] if rows else [])
    if not rows:
        info("the config has no keys: `sluice keys new NAME` makes one")


def _row(name: str, key: config.Key, revoked: Revoked) -> dict[str, Any]:
    """Returns the row of a key, without its hash, which is shown nowhere."""
    is_over = key.expires is not None and key.expires <= datetime.now(UTC)
    state = "revoked" if revoked.has(name, key.hash.get_secret_value()) else "expired" if is_over else "good"
    expires = key.expires.isoformat() if key.expires else None
    return {"name": name, "state": state, "roles": list(key.roles), "owner": key.owner, "expires": expires}


def _cells(row: dict[str, Any]) -> list[str]:
    roles = " ".join(row["roles"])
    return [row["name"], row["state"], roles or "-", row["owner"] or "-", row["expires"] or "never"]


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key under clients.keys.")],
    config_file: ConfigFile = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", help="The path of state.dir, if the config cannot be read."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key for good. A running Sluice refuses it within seconds, without a restart."""
    if not config.is_key_name(name):
        stop(Code.USAGE, _BAD_NAME)
    path = config.find_config(config_file)
    drafted = config.draft(path)
    keys = inside(drafted and drafted.value, "clients", "keys")
    entry = inside(keys, name)
    sound = config.check(path).config
    if entry is None and sound is not None:
        stop(Code.NEGATIVE, f"{path} has no key {name} under clients.keys")
    directory = state_dir or (config.state_of(drafted) if drafted else None)
    if directory is None:
        problems = config.check(path).errors
        stop(Code.CONFIG, *map(str, problems), "nothing was revoked: say where state.dir is, with --state-dir DIR")
    shared = sound if sound is not None and sound.state.url is not None else None
    done = _done(path, name, keys, directory, shared is not None)
    hash = inside(entry, "hash")
    valid_hash = hash if isinstance(hash, str) and _HASH.fullmatch(hash) else None
    try:
        if not (has_been := _is_revoked(directory, name, valid_hash or "")):
            take_back(directory, name, valid_hash)
    except OSError as error:
        stop(Code.NEGATIVE, f"{name} is NOT revoked: cannot write in {directory}: {error.strerror or error}",
             "take its line out of the config, which a running Sluice follows")  # fmt: skip
    if sound is None and inside(drafted and drafted.value, "state", "url") is not None:
        stop(Code.UNREACHABLE, f"{name} is revoked on this machine alone: the config has errors, and the database that "
             "it names was not told", *map(str, config.check(path).errors))  # fmt: skip
    if shared is not None:
        try:
            late = anyio.run(_revoke_everywhere, shared, name, valid_hash)
        except StoreFailed as error:
            stop(Code.UNREACHABLE, f"{name} is revoked on this machine alone: PostgreSQL cannot be used: {error}",
                 "revoke it again, or take its line out of the config")  # fmt: skip
        if late:
            stale = "never" if shared.state.stale is None else f"after {shared.state.stale:g} s"
            stop(Code.UNREACHABLE, f"{name} is revoked, and not confirmed by {', '.join(late)}",
                 f"a replica that has not ended is cut off from the database, and stops serving {stale} (state.stale)",
            )  # fmt: skip
    give(as_json, {"name": name, "state": "revoked", "by": "name" if valid_hash is None else "hash"}, [])
    if has_been:
        info(f"{name} is revoked already")
        return
    info(done)
    if valid_hash is None:
        info(f"{path} does not tell its hash: the name {name} is revoked. Give the next key another name.")


def _is_revoked(directory: Path, name: str, hash: str) -> bool:
    """False, too, where a line cannot be read: it may be the key's, and another line revokes it. Raises `Exposed`."""
    try:
        return Revoked(directory).has(name, hash)
    except Exposed:
        raise
    except OSError:
        return False


def _done(path: Path, name: str, keys: object, directory: Path, is_shared: bool) -> str:
    """What a revocation does, or why the key that somebody means may still be good. Where the config cannot be checked,
    a word may be mistyped. Where the state is shared, this machine may have none yet."""
    found = []
    if not isinstance(keys, dict):
        found.append(f"note: nothing in {path} says whether there is a key {name}")
    elif name not in keys:
        found.append(f"note: {path} has no key {name}; {suggest(name, keys)}".removesuffix("; "))
    if not is_shared and not os.path.exists(directory):  # which says no, too, where it may not look
        found.append(f"note: there was no folder {directory}: a Sluice that runs has another state.dir")
    if found:
        return "\n".join((f"{name} is revoked in {directory}", *found))
    return f"{name} is revoked; its sessions and streams end within seconds. Remove its line from the config."


async def _revoke_everywhere(loaded: config.Config, name: str, hash: str | None) -> list[str]:
    """The names of replicas that may not know of it. Raises `StoreFailed`."""
    async with state.open_store(loaded) as store:
        await store.put(state.revoked_key(name, hash), entry(name, hash))
        return await replicas.unconfirmed(store)


def rotate(
    ring: Annotated[str, typer.Argument(metavar="RING", help="Which keys: sign, digest or seal.")],
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a new key for Sluice itself. Sluice uses it from its next start on."""
    if ring not in RINGS:
        stop(Code.USAGE, f"a ring is one of {', '.join(RINGS)}")
    _, loaded = load(config_file, quietly=True)
    if loaded.state.keys is not None:
        stop(Code.CONFIG, f"state.keys has the keys: add a new one as the last line of state.keys.{ring}")
    try:
        keys = anyio.run(partial(_rotate, loaded, ring))
    except (OSError, ValueError) as error:
        stop(Code.CONFIG, f"nothing was rotated: {error}")
    text = f"{ring}: {count(len(keys.keys), 'key')}; the newest is used from the next start on"
    give(as_json, {"ring": ring, "keys": len(keys.keys), "newest": keys.newest_id.hex()}, [text])
    info(f"It is for {RINGS[ring]}.")


async def _rotate(loaded: config.Config, ring: str) -> KeyRing:
    async with open_audit(loaded, "http") as audit:
        if audit is not None and not await audit.note_durably("admin", {"act": "key_rotated", "ring": ring}):
            raise OSError(f"the audit log cannot be written: {audit.problem}")
        return KeyRing.rotate(Path(loaded.state.dir) / KEYS, ring)
