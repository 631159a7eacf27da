"""`pins list`, `diff`, `accept`, `export`: definitions that changed since they were accepted.

Asks the Sluice that runs; where none answers, the pins in the state directory are looked at and accepted there, and a
Sluice on it follows within seconds.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import anyio
import typer

from sluicegate import config
from sluicegate.app import replicas, settings, state
from sluicegate.app.services import note_pin, open_audit
from sluicegate.audit.log import AuditLog
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.cli.admin import Admin, Unreachable, answer, asks_running
from sluicegate.cli.options import AsJson
from sluicegate.cli.output import Code, count, give, info, print_out, printable, stop, table
from sluicegate.policy import pins
from sluicegate.policy.display import diff as compare
from sluicegate.policy.display import lines, summary, visible
from sluicegate.policy.pins import Wanted

T = TypeVar("T")
Row = dict[str, Any]

SHORT: Final = 16  # hex digits of a fingerprint, where people read it
_KINDS: Final = {word: kind for kind, word in pins.WORDS.items()}

Server = Annotated[str | None, typer.Argument(metavar="SERVER", help="Only of this server.", show_default=False)]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Names of the definitions, as the server has them.", show_default=False),
]


@asks_running
def list_(
    admin: Admin,
    server: Server = None,
    all_: Annotated[bool, typer.Option("--all", help="Show accepted definitions as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the definitions that a person has to review."""
    found = _rows(admin, server)
    rows = found if all_ else [row for row in found if _waits(row)]
    head = ["SERVER", "ERA", "KIND", "NAME", "STATE", "SERVED", "FINGERPRINT", "HIDDEN", "SINCE", "BY"]
    give(as_json, {"pins": rows}, [table([head, *map(_cells, rows)], state="STATE")] if rows else [])
    waiting = sum(map(_waits, found))
    look = f": see `{admin.command('pins diff')}`" if waiting else ""
    info(f"{len(found)} pinned, {waiting} wait{'s' * (waiting == 1)}{look}")
    for name, number in Counter(row["server"] for row in found if row["replaced_at"] and _waits(row)).items():
        info(f"{name}: {pins.notice(number, is_replaced=True)}")


def _cells(row: Row) -> list[str]:
    served, when = "no" if row["withheld"] else "yes", row["since"] or row["at"]
    hidden = ",".join(dict.fromkeys(flag.split(" ")[0] for flag in row["flags"])) or "-"
    shown = f" (shown as {row['shown_as']})" if row["shown_as"] else ""
    identity = [row["server"], row["era"], row["kind"], visible(row["name"]) + shown, row["state"]]
    return [*identity, served, row["current"][:SHORT], hidden, when, row["by"] or "-"]


@asks_running
def diff(admin: Admin, server: Server = None, names: Names = None, as_json: AsJson = False) -> None:
    """Show what changed, with hidden characters made visible. A NAME that did not change is shown whole."""
    found = _rows(admin, server, definitions=True)
    rows = _named(found, names) if names else [row for row in found if _waits(row)]
    give(as_json, {"pins": rows}, (
        line for row in rows
        for line in (summary(row), f"  fingerprint {row['current']}", *(f"  {line}" for line in _shown(row)))
    ))  # fmt: skip
    if not rows:
        info("nothing waits")


def _shown(row: Row) -> list[str]:
    accepted, waiting = row["accepted_text"], row["waiting_text"]
    if waiting == "" and row["state"] == "changed":
        return []  # what is known of it is among its flags
    return compare(accepted, waiting) if waiting else [f"  {line}" for line in lines(json.loads(accepted))]


@asks_running
def accept(
    admin: Admin,
    server: Annotated[str, typer.Argument(metavar="SERVER", help="The server's key.")],
    names: Names = None,
    all_: Annotated[bool, typer.Option("--all", help="Accept all definitions that nobody has accepted yet.")] = False,
    seen: Annotated[
        str,
        typer.Option("--seen", metavar="FINGERPRINT",
                     help="Accept only if the fingerprint begins like this; `diff` shows it."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Accept definitions as the server last sent them. Clients see them from now on."""
    if bool(names) == all_:
        stop(Code.USAGE, f"give names or --all; `{admin.command('pins list')}` shows what waits")
    rows = _rows(admin, server)
    rows = _named(rows, names) if names else [row for row in rows if row["state"] != "accepted"]
    if changed := [row["name"] for row in rows if not row["current"].startswith(seen.removeprefix("sha256:"))]:
        stop(Code.NEGATIVE, f"{', '.join(map(visible, changed))}: it has another fingerprint by now")
    wanted = {(row["kind"], row["name"], row["current"]) for row in rows}
    taken = _accept(admin, server, sorted(wanted)) if wanted else []
    give(as_json, {"pins": taken}, (
        f"accepted {row['kind']} {visible(row['name'])} ({row['era']}) {row['fingerprint'][:SHORT]}" for row in taken
    ))  # fmt: skip
    if not taken:
        info("nothing waits")


@asks_running
def export(
    admin: Admin,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="LOCKFILE", help="Compare with this lock file; exits 1 if something differs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a lock file of all definitions. Or compare them with one."""
    rows = _rows(admin, None)
    if check is None:
        print_out(json.dumps(pins.lock(rows), indent=2, sort_keys=True))
        return
    locked = _lock_file(check)
    found = pins.breaches(locked, rows)
    unseen = pins.unseen(locked, rows)
    data = {"ok": bool(rows) and not found, "definitions": len(rows), "differences": found, "unseen": unseen}
    give(as_json, data, map(printable, found))
    info(f"{count(len(rows), 'definition')}, {len(found)} not as locked; locked but not seen: {unseen}")
    if found or not rows:
        raise typer.Exit(Code.NEGATIVE)


def _lock_file(path: Path) -> Row:
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict) or value.get("version") != 1:
            raise ValueError
        pins.unseen(value, [])
    except OSError as error:
        stop(Code.USAGE, f"{path}: {error.strerror}")
    except (ValueError, AttributeError, TypeError):
        stop(Code.USAGE, f"{path} is no lock file: `sluice pins export` writes one")
    return value


def _waits(row: Row) -> bool:
    return row["state"] in ("new", "changed", "returned")


def _named(rows: list[Row], names: list[str]) -> list[Row]:
    if missing := set(names) - {row["name"] for row in rows}:
        stop(Code.NEGATIVE, f"not among the pins: {', '.join(map(visible, sorted(missing)))}")
    return [row for row in rows if row["name"] in names]


def _rows(admin: Admin, server: str | None, definitions: bool = False) -> list[Row]:
    if server is not None and not admin.is_broken and server not in admin.config.servers:
        stop(Code.NEGATIVE, f"no server {printable(server)} is configured")
    params = ({"server": server} if server else {}) | ({"definitions": "1"} if definitions else {})
    try:
        rows: list[Row] = answer(admin.exchange("pins", params))["pins"]
        return rows
    except Unreachable:
        if not _may_read_store(admin):
            raise

        async def read(board: DefinitionPins) -> list[Row]:
            return board.rows(server, definitions)

        return _at_rest(admin, read)


def _accept(admin: Admin, server: str, wanted: list[tuple[str, str, str]]) -> list[Row]:
    """Accepts all of the definitions or none."""
    items = [{"kind": kind, "name": name, "fingerprint": mark} for kind, name, mark in wanted]
    outcome: list[Row] | str
    try:
        response = admin.exchange("pins", body={"server": server, "accept": items})
        outcome = response.json()["error"] if response.status_code == 409 else answer(response)["pins"]
    except Unreachable:
        if not _may_read_store(admin):
            raise
        seen = [Wanted(_KINDS[kind], "" if kind == "instructions" else name, mark) for kind, name, mark in wanted]
        outcome = _at_rest(admin, lambda board: board.accept(server, seen, "local"), noted=True)
    if isinstance(outcome, str):
        stop(Code.NEGATIVE, printable(outcome))
    return outcome


def _may_read_store(admin: Admin) -> bool:
    """Whoever may write the state directory is its operator."""
    return admin.is_operator and state.exists(admin.config)


def _at_rest(admin: Admin, use: Callable[[DefinitionPins], Awaitable[T]], noted: bool = False) -> T:
    """The pins in the state directory, where no Sluice answers. A change that is `noted` is in the audit log, or is not
    made."""
    loaded = admin.config
    try:
        return anyio.run(partial(_with_log, loaded, use) if noted else partial(_with_board, loaded, use))
    except OSError as error:
        stop(Code.CONFIG, f"the pins in {state.where(loaded)} cannot be used: {error}")


async def _with_log(loaded: config.Config, use: Callable[[DefinitionPins], Awaitable[T]]) -> T:
    async with open_audit(loaded, "http") as audit:
        if audit is not None and audit.problem is not None and loaded.audit.on_failure == "deny":
            raise OSError(f"the audit log cannot be written: {audit.problem}")
        return await _with_board(loaded, use, audit, is_change=True)


async def _with_board(
    loaded: config.Config, use: Callable[[DefinitionPins], Awaitable[T]], audit: AuditLog | None = None,
    is_change: bool = False,
) -> T:  # fmt: skip
    async with state.open_store(loaded) as store:
        if is_change:
            await replicas.refuse_beside(loaded, store)
        board = DefinitionPins(settings.pins(loaded), store, partial(note_pin, audit))
        await board.books.load()
        return await use(board)
