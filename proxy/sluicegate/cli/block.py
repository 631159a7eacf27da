"""`block` and `unblock`: what nobody may use from now on, whatever the policy says, without a change of a file.

Asks the Sluice that runs; where none answers, what is blocked stands in the store, and whoever starts on it obeys.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import anyio
import typer

from sluicegate.admin.blocks import MAX_REASON, MAX_SECONDS, BlocksApi
from sluicegate.admin.paging import StatusAndBody
from sluicegate.app import blocks, explain_facts, replicas, state
from sluicegate.app.blocks_api import blocks_api, rows
from sluicegate.app.services import act_durably, open_audit
from sluicegate.cli.admin import FROM_ALL_WORKERS, Admin, Unreachable, answer, asks_running
from sluicegate.cli.options import AsJson
from sluicegate.cli.output import Code, give, info, printable, stop, table
from sluicegate.cli.policy import load_policy
from sluicegate.config.units import read_duration
from sluicegate.downstream.failures import LOCAL
from sluicegate.policy.facts import Facts
from sluicegate.store import StoreFailed

Row = dict[str, Any]
Use = Callable[[BlocksApi], Awaitable[StatusAndBody]]

_HEAD = ["BLOCKED", "UNTIL", "SINCE", "BY", "REASON"]


@asks_running
def block(
    admin: Admin,
    what: Annotated[
        str | None,
        typer.Argument(metavar="WHAT", show_default=False,
                       help="A server's key, SERVER/TOOL (a glob, too), a tool's name as clients see it, or key:NAME. "
                            "Without it: show what is blocked."),
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long, such as 30m or 1h; else until unblock.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for other operators and the log.")] = "",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Block a client, a server or a tool at once, on all replicas. Calls in flight go on."""
    if what is None:
        if for_ is not None or reason:
            stop(Code.USAGE, "--for and --reason need WHAT to block")
        _list(_rows(admin), as_json)
        return
    seconds = None if for_ is None else _seconds(for_)
    if len(reason) > MAX_REASON:
        stop(Code.USAGE, f"--reason takes at most {MAX_REASON} characters")
    body = {"what": what, "reason": reason} | ({} if seconds is None else {"for": seconds})
    status, found = _do(admin, "POST", "blocks", body, lambda api: api.add(what, seconds, reason, LOCAL))
    if status != 200:
        stop(Code.USAGE if status == 400 else Code.NEGATIVE, printable(str(found.get("error", ""))))
    row = found["block"]
    _tell(found, f"{row['what']} is blocked" + (f" until {row['until']}" if row["until"] else ""), as_json)


@asks_running
def unblock(
    admin: Admin,
    what: Annotated[str, typer.Argument(metavar="WHAT", help="What is blocked, as `sluice block` shows it.")],
    as_json: AsJson = False,
) -> None:
    """End a block. What the policy says counts again."""
    found = _rows(admin)
    row = next((row for row in found if what in (row["what"], row["id"])), None)
    if row is None:
        blocked = ", ".join(row["what"] for row in found) or "nothing"
        stop(Code.NEGATIVE, f"{printable(what)} is not blocked; what is: {printable(blocked)}")
    status, done = _do(admin, "DELETE", f"blocks/{row['id']}", None, lambda api: api.end(row["id"], LOCAL))
    if status != 200:
        stop(Code.NEGATIVE, printable(str(done.get("error", ""))))
    _tell(done, f"{row['what']} is not blocked any more", as_json)


def _list(found: list[Row], as_json: bool) -> None:
    cells = [[row["what"], row["until"] or "unblock", row["at"], row["by"], row["reason"] or "-"] for row in found]
    give(as_json, {"blocks": found}, [table([_HEAD, *cells])] if found else [])
    if not found:
        info("nothing is blocked")


def _tell(found: Row, text: str, as_json: bool) -> None:
    if late := found["unconfirmed"]:
        stop(Code.UNREACHABLE, f"{printable(text)}, and this is not confirmed by {printable(', '.join(late))}",
             "a replica that is cut off from the database does not know it: see state.stale")  # fmt: skip
    give(as_json, found, [printable(text)])
    if found["note"]:
        info(f"note: {printable(found['note'])}")


def _seconds(text: str) -> float:
    try:
        seconds = read_duration(text)
    except ValueError as error:
        stop(Code.USAGE, f"--for: {error}")
    if not 0 < seconds <= MAX_SECONDS:
        stop(Code.USAGE, f"--for takes at most {MAX_SECONDS // 86_400} days, and more than nothing")
    return seconds


def _rows(admin: Admin) -> list[Row]:
    try:
        found: list[Row] = answer(admin.exchange("blocks"))["blocks"]
        return found
    except Unreachable:
        if not admin.is_operator:
            raise
        with _store_of(admin):
            stored = blocks.parse(state.read(admin.config, [blocks.BLOCKS]).get(blocks.BLOCKS))
            return rows(stored, state.now(admin.config))


def _do(admin: Admin, method: str, path: str, body: Row | None, at_rest: Use) -> StatusAndBody:
    try:
        response = admin.exchange(path, body=body, method=method, within=FROM_ALL_WORKERS)
        if response.status_code in (400, 409, 503):
            return response.status_code, response.json()
        return 200, answer(response)
    except Unreachable:
        if not admin.is_operator:
            raise
        with _store_of(admin):
            return anyio.run(partial(_at_rest, admin, at_rest))


@contextmanager
def _store_of(admin: Admin) -> Iterator[None]:
    """Whoever may use the store is its operator."""
    try:
        yield
    except StoreFailed as error:
        stop(Code.UNREACHABLE, f"what is blocked stands in {state.where(admin.config)}, which cannot be used: {error}")


async def _at_rest(admin: Admin, use: Use) -> StatusAndBody:
    """In the store, where no Sluice answers. It is in the audit log, or is not done."""
    loaded = admin.config

    async def resolve(what: str) -> Facts | str:
        rules = load_policy(admin.path, loaded).policy
        try:
            return await explain_facts.at_rest(loaded, rules, LOCAL, "tools/call", what)
        except ValueError as error:
            return str(error)

    async with state.open_store(loaded) as store:
        await replicas.refuse_beside(loaded, store)
        async with open_audit(loaded, "http") as audit:
            act = partial(act_durably, audit)
            late = partial(replicas.unconfirmed, store)
            return await use(blocks_api(store, lambda: loaded, resolve, act, late))
