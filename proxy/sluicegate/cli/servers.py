"""`servers`, `logs`, `tools`, `prompts` and `resources`: what is behind a running Sluice."""

import json
import re
import sys
import time
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from sluicegate.cli.admin import FROM_ALL_WORKERS, Admin, Unreachable, answer, asks_running, reasons
from sluicegate.cli.options import AsJson
from sluicegate.cli.output import Code, give, info, print_json, print_out, printable, stop, table

WIDTH: Final = 60  # of a column on a terminal
LOOK_EVERY: Final = 1.0
MAX_ROWS: Final = 10_000
_FIRST: Final = frozenset({"key", "name", "uri", "uriTemplate"})
_LAST: Final = frozenset({"description", "last_error"})  # texts of any length, with which no other cell is aligned
_DETAILS: Final = frozenset({"connections", "processes"})
_NOTHING: Final = ("", 0, False, "closed")
_TRIES: Final = 60  # to find the successor of a Sluice that ended
_SERVER_KEY: Final = re.compile(r"[a-z][a-z0-9-]{0,19}")

AsClient = Annotated[
    str | None, typer.Option("--as", metavar="ID", help="Show them as this client sees them; NAME means key:NAME.")
]


class ServerAction(StrEnum):
    """What `sluice servers ACTION KEY` does."""

    RESTART = "restart"
    RECONNECT = "reconnect"
    ENABLE = "enable"
    DISABLE = "disable"


_DONE: Final = {
    ServerAction.RESTART: "restarted", ServerAction.RECONNECT: "reconnected",
    ServerAction.ENABLE: "enabled", ServerAction.DISABLE: "disabled",
}  # fmt: skip


@asks_running
def servers(
    admin: Admin,
    action: Annotated[
        ServerAction | None, typer.Argument(metavar="ACTION", help="restart, reconnect, enable or disable a server.")
    ] = None,
    server: Annotated[str | None, typer.Argument(metavar="SERVER", help="Its key in the config file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the servers of a running Sluice and their health. Or restart, reconnect, enable or disable one."""
    if action is not None:
        _change_server(admin, action, server, as_json)
        return
    body = answer(admin.exchange("servers"))
    _show(body, "servers", as_json)
    for row in () if as_json else body.get("servers", []):
        if row.get("status") != "up" and row.get("stderr"):
            print_out(f"\n{row['key']} is {row['status']}. The last lines that it wrote to stderr:")
            for line in row["stderr"]:
                print_out(f"  | {printable(line)}")


def _change_server(admin: Admin, action: ServerAction, key: str | None, as_json: bool) -> None:
    if key is None or not _SERVER_KEY.fullmatch(key):
        stop(Code.USAGE, f"sluice servers {action} takes the key of a server")
    response = admin.exchange(f"servers/{key}/{action}", body={}, within=FROM_ALL_WORKERS)
    if response.status_code in (404, 409, 503):
        admin.stop(Code.NEGATIVE, *reasons(response))
    body = answer(response)
    ended = f"; calls that were open there: {body['open_calls']}" if body["open_calls"] else ""
    give(as_json, body, [f"{key}: {_DONE[action]}{ended}"])


@asks_running
def logs(
    admin: Admin,
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its key in the config file.", show_default=False)],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep showing new lines. Ctrl-C ends it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the last lines that a server wrote to stderr. Secrets are masked and hidden characters visible. With --json
    and -f, each answer with new lines is one line of JSON."""
    if not _SERVER_KEY.fullmatch(server):
        stop(Code.USAGE, f"{printable(server)} is no key of a server; `{admin.command('servers')}` shows them")
    body = _output(admin, server, "")
    if follow and as_json:
        print_out(json.dumps(body))
    else:
        give(as_json, body, map(printable, body["lines"]))
    if not body["lines"]:
        info(_why_no_lines(body))
    failures = 0
    while follow:
        time.sleep(LOOK_EVERY)
        try:
            body, failures = _output(admin, server, body["position"]), 0
        except Unreachable:  # it may be about to be started again
            if (failures := failures + 1) > _TRIES:
                raise
            continue
        if body["lines"] and as_json:
            print_out(json.dumps(body))
        else:
            give(False, None, map(printable, body["lines"]))


def _output(admin: Admin, server: str, after: str) -> Any:
    return answer(admin.exchange(f"servers/{server}/log", {"after": after} if after else {}))


def _why_no_lines(body: Any) -> str:
    error = f": {printable(body['last_error'])}" if body["last_error"] else ""
    if body["transport"] not in ("stdio", "-"):
        return f"{body['server']} is reached by its URL, so that its stderr is elsewhere; it is {body['status']}{error}"
    is_up = body["status"] == "up"
    since = " since it was connected, and what it wrote before is not kept" if is_up else ""
    return f"{body['server']} is {body['status']}{error}; it has written nothing to stderr{since}"


@asks_running
def tools(
    admin: Admin,
    as_: AsClient = None,
    cost: Annotated[bool, typer.Option("--cost", help="Show about how many tokens each definition takes.")] = False,
    toolset: Annotated[
        str, typer.Option("--toolset", metavar="NAME", help="With --cost: at this toolset; else that of its roles.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show the tools of all servers of a running Sluice."""
    if toolset and not cost:
        stop(Code.USAGE, "--toolset: only with --cost")
    if cost:
        asked = _seen_by(as_) | ({"toolset": toolset} if toolset else {})
        _show_cost(answer(admin.exchange("tools/cost", asked)), as_json)
    else:
        _list(admin, "tools", as_, as_json)


def _show_cost(body: dict[str, Any], as_json: bool) -> None:
    _show(body, "tools", as_json)
    if as_json:
        return
    where = f" at {body['toolset']}" if body["toolset"] else ""
    listed = f"{body['as']} gets a list of about {body['list']:,} tokens{where}"
    if body["is_searched"]:
        listed += f", and finds tools of {body['all']:,} by a search"
    info(f"{listed}; the budget is {body['budget']:,}")
    if body["list"] > body["budget"]:
        info("it is over the budget: write a toolset, or search: auto (docs/how-to/toolsets.md)")


@asks_running
def prompts(admin: Admin, as_: AsClient = None, as_json: AsJson = False) -> None:
    """Show the prompts of all servers of a running Sluice."""
    _list(admin, "prompts", as_, as_json)


def _list(admin: Admin, what: str, as_: str | None, as_json: bool) -> None:
    body = answer(admin.exchange(what, _seen_by(as_)))
    _show(body, what, as_json)
    if not body[what]:
        _say_none(admin, body, what)


@asks_running
def resources(admin: Admin, as_: AsClient = None, as_json: AsJson = False) -> None:
    """Show the resources of all servers of a running Sluice. And the templates of their URIs."""
    body = answer(admin.exchange("resources", _seen_by(as_)))
    list_page = body
    while "next" in list_page and len(body["resources"]) < MAX_ROWS:
        list_page = answer(admin.exchange("resources", {"as": body["as"], "cursor": list_page["next"]}))
        body["resources"] += list_page["resources"]
    is_whole = "next" not in list_page
    if is_whole:
        body.pop("next", None)
    else:
        body["next"] = list_page["next"]
    _show(body, "resources", as_json)
    if not as_json and body["templates"]:
        print_out("\nTemplates of URIs:" if body["resources"] else "Templates of URIs:")
        _show(body, "templates", as_json)
    if not body["resources"] and not body["templates"]:
        _say_none(admin, body, "resources")
    if not is_whole:
        info(f"these are the first {len(body['resources']):,}; GET /api/v1/resources goes on from a cursor")


def _say_none(admin: Admin, body: Any, what: str) -> None:
    shows, who = admin.command("servers"), admin.command("explain")
    info(f"{body['as']} sees no {what}; `{shows}` shows the servers, `{who}` who may use what")


def _seen_by(id: str | None) -> dict[str, str]:
    if id is None:
        return {}
    return {"as": id if ":" in id or id in ("local", "anonymous") else f"key:{id}"}


def _show(body: Any, what: str, as_json: bool) -> None:
    """A table of what is plain text or a number and says something of a row; everything is in the JSON."""
    if as_json:
        print_json(body)
        return
    rows: list[dict[str, Any]] = body.get(what, [])
    columns = list(dict.fromkeys(name for row in rows for name, cell in row.items() if _is_told(name, cell)))
    columns.sort(key=lambda name: (name not in _FIRST, name in _LAST))  # first what tells the rows apart
    if rows:
        cells = [[_cell(row.get(name), name) for name in columns] for row in rows]
        print_out(table([[name.upper() for name in columns], *cells], state="STATUS"))


def _is_told(name: str, cell: Any) -> bool:
    return _is_short(cell) and (name in _FIRST or (name not in _DETAILS and cell not in _NOTHING))


def _is_short(cell: Any) -> bool:
    return isinstance(cell, str | int | float)


def _cell(value: Any, name: str) -> str:
    if name == "memory" and isinstance(value, int):
        return f"{value / (1 << 20):.1f} MiB" if value else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = " ".join(str(value).split()) if _is_short(value) else "-"
    is_whole = len(text) <= WIDTH or not sys.stdout.isatty()
    return text if is_whole else f"{text[: WIDTH - 1]}…"
