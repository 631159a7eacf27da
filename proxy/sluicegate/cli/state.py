"""`state migrate` and `import`: the tables of the database that `state.url` names, and what SQLite kept before.

`import` copies what SQLite kept into the database once, while no Sluice runs: all of it or nothing. It also closes the
file for good, because an approval in both could be used twice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from sluicegate.app import replicas, state
from sluicegate.app.services import open_audit
from sluicegate.app.settings import DATABASE, KEYS
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, give, info, load, stop
from sluicegate.config import Config
from sluicegate.store import StoreFailed, sqlite
from sluicegate.store.revoked import entries

_MARK: Final = "import/"
_REVOKED, _SPENT, _PARTS = "revoked keys", "used up", ""
_KINDS: Final = (
    ("approval/open/", "approvals"), ("approval/done/", "approvals"), ("approval/grant/", "grants"),
    ("approval/", _PARTS), ("admin/once/", _PARTS),
    ("login/", "logins to servers"), ("login-client/", _PARTS), ("login-server/", _PARTS),
    ("issuer-grant/", "logins of clients"), ("issuer-", _PARTS),
    ("pins/", "pins"), ("pins-waiting/", _PARTS), ("pins-revision", _PARTS),
    ("policy/blocks", "lists of blocks"), ("task:", "tasks"),
    ("snapshot/", "lists of servers"), ("snapshot-of/", _PARTS), ("hung/", _PARTS), ("eras/", _PARTS),
    (state.REVOKED, _REVOKED),
)  # fmt: skip
"""What keys begin with, and what a person calls it. Parts belong to the rows of another kind, and are not counted."""
_LEFT: Final = (
    replicas.LEASE, replicas.REPLICA, replicas.SEEN, "audit/head/", "login-lease/", "login-flow/", "login-flows/",
    "console/session/", "results", "result:", "part:", "probe",
)  # fmt: skip
"""What ends with its process or is over soon: leases, logins and console sessions under way, parts of large answers."""
_SEALED: Final = (("login/", "login"), ("issuer-grant/", "seal"))
"""The ring whose keys seal it."""

Items = list[tuple[str, bytes, float | None]]


@dataclass(frozen=True, slots=True)
class Brought:
    """`counts`: rows by kind. `left`: how many rows stay behind. `is_again`: all of it was brought before."""

    counts: dict[str, int]
    left: int
    is_again: bool = False


def migrate(
    role: Annotated[
        str | None,
        typer.Option("--as", metavar="ROLE", show_default=False,
                     help="The role that makes them, for the role of state.url. libpq finds its password: in "
                          "~/.pgpass or PGPASSWORD."),
    ] = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make or change the tables, where the role of state.url may not. Replicas go on meanwhile."""
    loaded = _with_database(config_file)
    try:
        before, now = anyio.run(partial(state.migrate, loaded, role))
    except StoreFailed as error:
        stop(Code.UNREACHABLE, f"nothing was changed: {error}")
    text = f"the tables are of version {now}" + (f"; they were of version {before}" if 0 < before < now else "")
    give(as_json, {"before": before, "now": now}, [text])


def import_(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Bring what a Sluice kept in state.dir into the database, once. No Sluice may run meanwhile."""
    loaded = _with_database(config_file)
    try:
        brought = anyio.run(bring, loaded)
    except OSError as error:  # a `StoreFailed`, too
        stop(Code.NEGATIVE, f"nothing was imported: {error}")
    rows = [f"{count} {kind}" for kind, count in brought.counts.items()]
    give(as_json, {"imported": brought.counts, "left": brought.left, "again": brought.is_again}, rows)
    if brought.is_again:
        info("all of it was imported before")
    elif not rows:
        info("there was nothing to import")
    if brought.left:
        info(f"{brought.left} rows stay behind: console sessions, logins under way and parts of large answers")


def _with_database(config_file: ConfigFile) -> Config:
    path, loaded = load(config_file, quietly=True)
    if loaded.state.url is None:
        stop(Code.CONFIG, f"{path} has no state.url: there is no database")
    return loaded


async def bring(config: Config) -> Brought:
    """Raises `StoreFailed` where anything is in the way: then nothing was brought, or nobody knows, and the file stays
    closed down until it is tried again. Raises `Exposed` and `OSError` where files of `state.dir` cannot be used."""
    directory = Path(config.state.dir)
    with sqlite.alone(directory / DATABASE) as whole:
        everything, spent = whole.items(), whole.spent()
        items = [row for row in everything if not row[0].startswith(_LEFT)]
        _check_rings(config, items)
        async with state.open_store(config) as store:
            await replicas.refuse_beside(config, store)
            async with replicas.join(config.model_copy(update={"fleet": None}), store):
                left = len(everything) - len(items)
                listed = await store.scan(state.REVOKED)
                taken_back = {state.revoked_key(name, hash): line for name, hash, line in entries(directory)}
                items += [(key, line, None) for key, line in taken_back.items() if key not in listed]
                await _note(config, len(items))
                mark = whole.close_down()
                found = await anyio.to_thread.run_sync(partial(state.bring, config, _MARK + mark, items, spent))
                if found is None:
                    return Brought({}, left, is_again=True)
                new, others = found
                if others:
                    whole.open_again()
                    counts = Counter(key.partition("/")[0] for key in others)
                    named = ", ".join(f"{kind} ({count})" for kind, count in counts.items())
                    raise StoreFailed(f"other rows stand in the database already: {named}")
    return Brought(_counted(new) | ({_SPENT: len(spent)} if spent else {}), left)


def _check_rings(config: Config, items: Items) -> None:
    """Raises `StoreFailed` for rows that no given key could open afterwards."""
    keys = config.state.keys
    assert keys is not None  # the config has them beside `state.url`
    for prefix, name in _SEALED:
        ring = None if name == "login" and keys.login is None else state.ring(config, name)
        rows = [value for key, value, _ in items if key.startswith(prefix)]
        if any(ring is None or not ring.has_key_of(value) for value in rows):
            raise StoreFailed(
                f"state.keys.{name} lacks the key of {_kind(prefix)}: put the lines of "
                f"{config.state.dir}/{KEYS}/{name} before its own"
            )


async def _note(config: Config, rows: int) -> None:
    """Records the import in the audit log, before anything is imported. Raises `StoreFailed` where it cannot."""
    async with open_audit(config, "http") as audit:
        if audit is not None and not await audit.note_durably("admin", {"act": "state_import", "rows": rows}):
            raise StoreFailed(f"the audit log cannot be written: {audit.problem}")


def _kind(key: str) -> str:
    return next((kind for prefix, kind in _KINDS if key.startswith(prefix)), "others")


def _counted(keys: Sequence[str]) -> dict[str, int]:
    counts = Counter(map(_kind, keys))
    del counts[_PARTS]
    return dict(counts)
