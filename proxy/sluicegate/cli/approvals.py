"""`approvals list`, `show`, `watch`, `grants` and `revoke`, `approve` and `deny`: calls that wait for a person.

Asks the Sluice that runs; where none answers, the queue in the state directory is looked at and decided there, and a
Sluice on it follows within a second.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import anyio
import httpx
import typer

from sluicegate import config
from sluicegate.admin.paging import MAX_ROWS
from sluicegate.app import state
from sluicegate.app.approvals_api import at_rest
from sluicegate.approval.record import WAITING
from sluicegate.cli.admin import Admin, Unreachable, answer, asks_running
from sluicegate.cli.options import AsJson
from sluicegate.cli.output import Code, Stopped, count, give, info, leaves, located, print_out, printable, stop, table
from sluicegate.policy.display import cut
from sluicegate.policy.finding import PolicyError
from sluicegate.protocol.model import Client

Row = dict[str, Any]
_COUNTING: Final = WAITING | {"approved", "denied"}  # states that mean something until they expire
_ENDED_UNUSED: Final = frozenset({"expired", "cancelled", "superseded"})
_REVIEWS: Final = {
    "accepted": "accepted by a person", "first_use": "as at its first use; no person has accepted it",
    "changed": "CHANGED since it was looked at: see {diff}", "unpinned": "not pinned",
}  # fmt: skip
_DECIDING: Final = "deciding needs admin:approvals write, too: a row with * in place of read gives both"
_NONE: Final = " that you may decide or requested; --key-file FILE asks as another client"
_TRIES: Final = 120  # to find the successor of a Sluice that ended
_PAUSE: Final = 0.5
WIDTH: Final = 60

Id = Annotated[str, typer.Argument(metavar="ID", help="The approval's id.", show_default=False)]
Comment = Annotated[
    str, typer.Option("-m", "--comment", metavar="TEXT", help="The reason. The model that made the call can read it.")
]


@asks_running
def list_(
    admin: Admin,
    state: Annotated[
        str, typer.Option("--state", metavar="STATE", help="Show approvals in this state, or `all`.")
    ] = "pending",
    server: Annotated[str, typer.Option("--server", metavar="SERVER", help="Show only those of this server.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the calls that wait for a person. You see those that you may decide, and those that you requested."""
    params = ({"state": state} if state != "all" else {}) | ({"server": server} if server else {})
    body = _ask_all(admin, "approvals", params)
    head = ["ID", "STATE", "WHO", "TOOL", "PROFILE", "UNTIL", "ARGUMENTS"]
    give(as_json, body, [table([head, *map(_cells, body["approvals"])], state="STATE")] if body["approvals"] else [])
    info(count(len(body["approvals"]), "approval") + ("" if body["approvals"] else _NONE))
    for why in body.get("incomplete", ()):
        info(f"incomplete: {why}")


def _cells(row: Row) -> list[str]:
    target = f"{row['server']}/{row['tool']}"
    return [row["id"], row["state"], row["principal"], target, row["profile"], row["expires_at"], _short(row)]


def _short(row: Row) -> str:
    text = row["arguments"] if row.get("cut") else json.dumps(row["arguments"], ensure_ascii=False)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


@asks_running
def show(
    admin: Admin,
    id: Id,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show secrets in the arguments as well. The audit log records this.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show everything about one approval."""
    row = _ask(admin, f"approvals/{_word(id)}")
    if reveal:
        row |= _ask(admin, f"approvals/{_word(id)}/reveal", body={})
    give(as_json, row, _screen(row, admin.command))


def _screen(row: Row, command: Callable[[str], str]) -> Iterator[str]:
    """One screen. Lines are cut where a terminal would wrap them: no text begins one that reads like Sluice's own."""
    return (part for line in _about(row, command) for part in cut(printable(line)))


def _about(row: Row, command: Callable[[str], str]) -> Iterator[str]:
    """Who, what, where, and whose words are whose."""
    left = f"  ({row['seconds_left']} s left, until {row['expires_at']})" if row["state"] in _COUNTING else ""
    yield f"{row['id']}  {row['state']}{left}"
    owner = f", owner {row['owner']}" if row["owner"] else ""
    yield f"  who        {row['principal']}{owner}  (its client claims to be: {row['client_claims_to_be'] or '-'})"
    yield f"  what       {row['method']} {row['server']}/{row['tool']}  class {row['class'] or '-'}"
    definition, asked = row["definition"], row["asked_by_row"]
    review = _REVIEWS.get(definition["review"], "unknown").format(diff=command(f"pins diff {row['server']}"))
    yield f"  definition {definition['fingerprint'][:23] or '-'}  {review}"
    yield f"  asked by   {': '.join(filter(None, (asked['rule'], asked['row'])))}  (policy {asked['policy']})"
    yield f"  profile    {row['profile']}: {row['quorum']} of {', '.join(row['approvers']) or 'whoever asked'}"
    yield from (f"  agreed     {vote['principal']} at {vote['at']}: {vote['comment'] or '-'}" for vote in row["votes"])
    if row["decided_by"]:
        yield f"  ended      by {row['decided_by']}: {row['comment'] or '-'}"
    elif row["comment"] and row["state"] in _ENDED_UNUSED:  # what is in the votes is not said again
        yield f"  ended      {row['comment']}"
    if row["description"]["text"]:
        yield f"  the server says: {row['description']['text']}"
    if row["reason"]["text"]:
        yield f"  the agent says:  {row['reason']['text']}"
    if row["aims_at"]:
        yield "  aims at    " + ", ".join(f"{name}={value}" for name, value in row["aims_at"].items())
    yield from _arguments(row)
    for call in row["last_calls"]:
        if "own" not in call:  # a list, or the handshake
            continue
        target = f"{call.get('server', '-')}/{call['own']}"
        yield f"  before     {call.get('time', '')[:19]} {target} {call.get('outcome', '')}"
    yield f"  digest     {row['digest']}" + (f"  trace {row['trace']}" if row["trace"] else "")


def _arguments(row: Row) -> Iterator[str]:
    if row["arguments_erased"]:
        yield "  arguments  erased"
        return
    cut = f", CUT (digest of the whole: {row['arguments_digest']})" if row["arguments_cut"] else ""
    hidden = f", {count(row['hidden_characters'], 'hidden character')} made visible" if row["hidden_characters"] else ""
    yield f"  arguments  {count(row['arguments_size'], 'byte')}{cut}{hidden}"
    yield from (f"    {line}" for line in row["arguments_lines"])
    if row["compared_with_last_approved"]:
        yield "  compared with the last approved call of this tool"
        yield from (f"    {line}" for line in row["compared_with_last_approved"])


@asks_running
def approve(
    admin: Admin,
    id: Id,
    comment: Comment = "",
    scope: Annotated[
        str,
        typer.Option("--for", metavar="SCOPE",
                     help="How long it counts: once, session or 15m, if the profile allows it."),
    ] = "once",
    seen: Annotated[
        str, typer.Option("--seen", metavar="DIGEST", help="Approve only if the digest is still this one.")
    ] = "",
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Approve a call: exactly the one that is shown."""
    try:
        row = _ask(admin, f"approvals/{_word(id)}")
    except Stopped as refused:
        if "lacks the right" in refused.args[-1]:
            refused.args += (_DECIDING,)
        raise
    if not (yes or seen or as_json):
        if row["state"] not in WAITING:
            stop(Code.NEGATIVE, f"{row['id']} is {row['state']}: nobody can approve it any more")
        for line in _screen(row, admin.command):
            info(line)
        if sys.stdin.isatty() and not typer.confirm("Approve it?", err=True):
            stop(Code.NEGATIVE, "not approved")
    body = {"decision": "approve", "seen_digest": seen or row["digest"], "scope": scope, "comment": comment}
    _decided(_ask(admin, f"approvals/{_word(id)}/decisions", body=body), as_json)


@asks_running
def deny(admin: Admin, id: Id, comment: Comment = "", as_json: AsJson = False) -> None:
    """Deny a call. The comment goes back to the model."""
    body = {"decision": "deny", "comment": comment}
    _decided(_ask(admin, f"approvals/{_word(id)}/decisions", body=body), as_json)


def _decided(row: Row, as_json: bool) -> None:
    missing = row["quorum"] - len(row["votes"])
    more = f": {missing} more must agree" if row["state"] == "partially_approved" else ""
    give(as_json, row, [printable(f"{row['id']} {row['state']}{more}")])


@asks_running
def grants(admin: Admin, as_json: AsJson = False) -> None:
    """Show grants: approvals that count for more than one call."""
    body = _ask_all(admin, "grants", {})
    rows = [
        [one["id"], one["principal"], f"{one['server']}/{one['tool']}", one["scope"], one["expires_at"], one["by"]]
        for one in body["grants"]
    ]
    give(as_json, body, [table([["ID", "WHO", "TOOL", "SCOPE", "UNTIL", "BY"], *rows])] if rows else [])
    info(count(len(rows), "grant"))


@asks_running
def revoke(
    admin: Admin,
    id: Annotated[str, typer.Argument(metavar="ID", help="The grant's id.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Revoke a grant."""
    gone = _ask(admin, f"grants/{_word(id)}", method="DELETE")
    give(as_json, gone, [f"{gone['id']} revoked"])


@asks_running
def watch(admin: Admin, as_json: AsJson = False) -> None:
    """Show waiting calls and every change of them. Ctrl-C ends it. With --json, each change is one line of JSON."""
    shown = dict[str, tuple[str, int]]()
    for row in _events(admin):
        if "id" not in row:
            info(f"{count(row['total'], 'approval')} wait, the newest are shown: see {admin.command('approvals list')}")
            continue
        version = (row["state"], len(row["votes"]))
        if shown.get(row["id"]) != version:  # a new stream begins with what waits
            now = time.strftime("%H:%M:%S")
            print_out(json.dumps(row) if as_json else printable("  ".join([now, *_cells(row)])))
        shown[row["id"]] = version


def _events(admin: Admin) -> Iterator[Row]:
    """Server-sent events; when a Sluice ends, those of its successor. Raises `Unreachable` where there is none."""
    failures = _TRIES  # before the first stream nobody has ended
    while True:
        try:
            with admin.client() as client:
                timeout = httpx.Timeout(10.0, read=60.0)
                try:
                    with client.stream("GET", "approvals/events", timeout=timeout) as response:
                        if response.status_code != 200:
                            response.read()
                            admin.check(response)
                            answer(response)
                        admin.tell_broken()
                        failures = 0
                        for line in response.iter_lines():  # ASCII: no line ends but those of the format
                            if line == "event: full":
                                stop(Code.NEGATIVE, "Sluice has too many such streams open: end another one first")
                            if line.startswith("data: ") and (row := json.loads(line[6:])):
                                yield row
                except httpx.HTTPError as error:
                    raise admin.unanswered(client, error) from None
        except Unreachable:
            if (failures := failures + 1) > _TRIES:
                raise
        time.sleep(_PAUSE)


def _ask(admin: Admin, what: str, params: dict[str, str] | None = None, body: Any = None, method: str = "") -> Any:
    """What Sluice says, or the queue itself where none answers; the exit code says why there is nothing."""
    try:
        response = admin.exchange(what, params, body, method)
        status, content = response.status_code, response.json()
    except ValueError:
        stop(Code.UNREACHABLE, "what answers is no Sluice")
    except Unreachable:
        if not (admin.is_operator and state.exists(admin.config)):
            raise
        status, content = _ask_at_rest(admin, tuple(what.split("/")), params or {}, body, method)
    if status != 200:
        why = printable(str(content.get("error", "not found")))
        if why == "no such approval":
            search = admin.command("audit search --type approval")
            admin.stop(Code.NEGATIVE, why + _NONE, f"an old one may be in the audit log alone: `{search}`")
        admin.stop(Code.NEGATIVE, f"{why} with -m" if why.endswith("give a comment") else why)
    return content


def _ask_all(admin: Admin, name: str, params: dict[str, str]) -> Row:
    """All pages as one, the newest row last."""
    whole = body = _ask(admin, name, {**params, "limit": str(MAX_ROWS)})
    older = []
    while "next" in body:
        body = _ask(admin, name, {**params, "limit": str(MAX_ROWS), "before": body["next"]})
        older.append(body[name])
    rows = [row for page in (*reversed(older), whole[name]) for row in page]
    return {name: rows, "total": whole["total"]}


def _ask_at_rest(
    admin: Admin, path: tuple[str, ...], params: dict[str, str], body: Any, method: str
) -> tuple[int, Any]:
    """Whoever may write the state directory is its operator. What only reads changes nothing there."""
    operator = Client("local", admin.config.clients.local.roles)

    async def read() -> tuple[int, Any]:
        async with at_rest(admin.config, read_only=True) as approvals:
            if path[-1] == "reveal":
                return await approvals.post(path, b"{}", "", operator)
            return await approvals.get(path[:2], {name: [value] for name, value in params.items()}, operator)

    async def change() -> tuple[int, Any]:
        async with at_rest(admin.config) as approvals:
            if method == "DELETE":
                return await approvals.delete(path, operator.principal)
            return await approvals.post(path, json.dumps(body).encode("ascii"), "", operator, "cli")

    try:
        found = anyio.run(read)
        is_change = found[0] == 200 and (method == "DELETE" or body is not None)
        return anyio.run(change) if is_change else found
    except PolicyError as error:
        raise config.ConfigError(located(admin.path, error.findings)) from None
    except (OSError, BaseExceptionGroup) as error:  # a group is of what runs beside the queue
        if (first := next((one for one in leaves(error) if isinstance(one, OSError)), None)) is None:
            raise
        stop(Code.CONFIG, f"the approvals in {state.where(admin.config)} cannot be used: {first}")


def _word(id: str) -> str:
    """An id as a part of a path: nothing else may come of what somebody pasted."""
    if not (id.isascii() and id.replace("_", "").isalnum() and len(id) <= 40):
        stop(Code.NEGATIVE, "this is not an id; ids look like apr_7f3k2m9q4x1z")
    return id
