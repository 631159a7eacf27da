"""`audit verify`, `retire`, `tail`, `search`, `export` and `approvals`: the audit log, read where it lies.

`verify` works on any machine, with the log and the public keys alone; without arguments all of them read what the
config names.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from sluicegate.app import audit_heads, settings, state
from sluicegate.app.services import act_durably, open_audit
from sluicegate.audit import export as formats
from sluicegate.audit.checkpoint import Checkpoint, PublicKeys, read_publics
from sluicegate.audit.log import PUBLIC_KEYS
from sluicegate.audit.read import Filter, LogTail, Record, principals, read_time
from sluicegate.audit.read import approvals as list_approvals
from sluicegate.audit.read import search as find
from sluicegate.audit.record import TYPES
from sluicegate.audit.settings import AuditSettings, is_segment
from sluicegate.audit.verify import VerifyReport, read_kept, read_published, thin
from sluicegate.audit.verify import verify as check
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import (
    Code,
    coloured,
    give,
    info,
    load,
    load_sound,
    print_out,
    printable,
    progress,
    stop,
    table,
    with_first_word,
)
from sluicegate.config import Config
from sluicegate.downstream.failures import LOCAL
from sluicegate.outcomes import ENDINGS
from sluicegate.protocol.jsonrpc import inside
from sluicegate.store import StoreFailed

FORMATS: Final[dict[str, Callable[[Record], Record]]] = {"jsonl": dict, "ocsf": formats.ocsf, "ecs": formats.ecs}
_POLL: Final = 0.25

Where = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", show_default=False,
                 help="The directory of the log; default: the one in the config."),
]
Since = Annotated[
    str, typer.Option("--since", metavar="TIME", help="Records from this time on: 1h (ago), yesterday, 2026-10-01T12.")
]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="Records before this time.")]
Kind = Annotated[
    str, typer.Option("--type", metavar="TYPE", help="Records of this type: intent, outcome, approval, admin, ...")
]
Who = Annotated[
    str, typer.Option("--principal", metavar="ID", help="The client that called, or approved, such as key:laptop.")
]
Tool = Annotated[
    str, typer.Option("--tool", metavar="GLOB", help="A glob over SERVER/NAME, the own or the public name.")
]
How = Annotated[
    str,
    typer.Option("--outcome", metavar="WORD", help="The outcome of calls: ok, denied, tool_error, ..., or a reason."),
]
CallId = Annotated[str, typer.Option("--call", metavar="ID", help="The id of one call.")]


def verify(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Files or directories of the log; default: the one in the config."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="A file of public keys (sign.pub).", show_default=False)
    ] = None,
    checkpoints: Annotated[
        list[Path] | None,
        typer.Option("--checkpoint", metavar="FILE", show_default=False,
                     help="A file of checkpoints that you stored outside the log."),
    ] = None,
    fleet: Annotated[
        bool,
        typer.Option("--fleet", help="Verify the logs of all replicas, by their newest checkpoints in the database."),
    ] = False,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Verify that the log is complete and unchanged. If not, names the first bad record and exits 1."""
    settings = _settings(config_file) if not paths or key is None else None
    registered = _registered(config_file) if fleet else []
    places = paths or ([settings.path.parent] if settings else [])
    files = _segments(places)
    keys = _keys(key or (settings.state / PUBLIC_KEYS if settings else Path()))
    try:
        outside = [one for path in checkpoints or () for one in thin(read_kept(path))]
        outside += read_published(settings) if settings is not None and not paths else ()
        outside += registered
        with progress("verifying", sum(file.stat().st_size for file in files)) as advance:
            reports = check(places, keys, outside, advance)
    except (OSError, ValueError) as error:
        stop(Code.USAGE, str(error))
    if not reports:
        stop(Code.NEGATIVE, "there is no audit log")
    is_ok = all(report.ok for report in reports)
    lines = map(with_first_word, _lines(reports))
    give(as_json, {"ok": is_ok, "writers": [report.to_json() for report in reports]}, lines)
    if not is_ok:
        raise typer.Exit(Code.NEGATIVE)


def _lines(reports: Iterable[VerifyReport]) -> Iterator[str]:
    for report in reports:
        for finding in report.findings:
            yield printable(f"BAD  {finding}")
        for note in report.notes:
            info(printable(f"note: {report.writer}: {note}" if report.writer else f"note: {note}"))
        if report.writer and report.ok:
            signed = f"signed up to {report.signed} at {report.signed_at}" if report.signed else "no checkpoint yet"
            span = f"records {report.first} to {report.last}" if report.records else "no records"
            yield f"ok   {report.writer}: {span}, {signed}; {report.tail} behind the newest checkpoint"


def retire(
    writer: Annotated[str, typer.Argument(metavar="WRITER", help="The log, as `verify --fleet` names it.")],
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget the log of a replica that is gone for good. `verify --fleet` does not expect it any more."""
    if writer not in {one.writer for one in _registered(config_file)}:
        stop(Code.NEGATIVE, printable(f"the database has no checkpoint of a log {writer[:80]!r}"))
    _, loaded = load(config_file, quietly=True)
    try:
        is_done = anyio.run(partial(_retire, loaded, writer))
    except StoreFailed as error:
        stop(Code.UNREACHABLE, f"{writer} is not retired: PostgreSQL cannot be used: {error}")
    if not is_done:
        stop(Code.NEGATIVE, f"{writer} is not retired: the audit log cannot be written")
    give(as_json, {"log": writer, "state": "retired"}, [f"{writer} is retired"])


async def _retire(loaded: Config, writer: str) -> bool:
    """It is in the log of this machine, or is not done. Raises `StoreFailed`."""
    async with state.open_store(loaded) as store, open_audit(loaded, "http") as audit:
        if is_recorded := await act_durably(audit, "log_retired", log=writer, by=LOCAL):
            await audit_heads.retire(store, writer)
        return is_recorded


def tail(
    count: Annotated[int, typer.Option("-n", metavar="N", help="The number of newest records to show first.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep showing new records.")] = False, kind: Kind = "",
    principal: Who = "", tool: Tool = "", outcome: How = "", where: Where = None, config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show the newest records, and new ones with -f. With --json, each record is one line of JSON."""
    wanted = _filter(kind=kind, principal=principal, tool=tool, outcome=outcome)
    directory, found = _directory(where, config_file), False
    with closing(LogTail(directory, wanted)) as reader:
        for record in reader.read()[-count:] if count > 0 else []:
            found = True
            _tell(record, as_json)
        if not found and not follow:
            _check_principal(directory, principal)
        while follow:
            for record in reader.read():
                _tell(record, as_json)
            time.sleep(_POLL)


def search(
    since: Since = "",
    until: Until = "",
    kind: Kind = "",
    principal: Who = "",
    tool: Tool = "",
    outcome: How = "",
    call: CallId = "",
    results: Annotated[
        bool,
        typer.Option("--results",
                     help="Show only calls with a stored result, and the result (audit.results: redacted)."),
    ] = False,
    where: Where = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Find records by time, type, principal, tool, outcome or call. Exits 1 if there are none. With --json, each record
    is one line of JSON."""
    wanted = _filter(since, until, kind, principal, tool, outcome, call)
    directory, found = _directory(where, config_file), False
    for record in find(directory, wanted):
        if results and "result" not in record:
            continue
        found = True
        _tell(record, as_json)
        if results and not as_json:
            cut = " (cut)" if "result_cut" in record else ""
            print_out(f"    {printable(json.dumps(record['result'], ensure_ascii=False))}{cut}")
    if not found:
        _check_principal(directory, principal)
        hint = " has a result; audit.results: redacted keeps them" if results else ""
        stop(Code.NEGATIVE, f"no such record{hint}")


def export(
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="jsonl, ocsf (API Activity) or ecs.")
    ] = "jsonl",
    since: Since = "",
    until: Until = "",
    kind: Kind = "",
    where: Where = None,
    config_file: ConfigFile = None,
) -> None:
    """Print records as JSON lines. --format prints them in the format of a SIEM."""
    change = FORMATS.get(format)
    if change is None:
        stop(Code.USAGE, f"a format is one of {', '.join(FORMATS)}")
    for record in find(_directory(where, config_file), _filter(since, until, kind)):
        sys.stdout.write(json.dumps(change(record), separators=(",", ":")) + "\n")
    sys.stdout.flush()  # not at the end of the process, where a reader that has left would be an error


def approvals(
    since: Since = "", until: Until = "", where: Where = None, config_file: ConfigFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Report who approved which calls, and how they ended."""
    rows = list_approvals(find(_directory(where, config_file), _filter(since, until)))
    head = ["APPROVAL", "ASKED", "BY", "TOOL", "STATE", "DECIDED BY", "OUTCOME"]
    give(as_json, rows, [table([head, *map(_approval, rows)], state="STATE")])


def _approval(row: Record) -> list[str]:
    deciders = ", ".join(map(_decision, row["decisions"]))
    what = f"{row.get('server', '')}/{row.get('tool', '')}"
    cells = [row["id"], row["asked_at"][:19], row.get("principal", ""), what, row.get("state", "")]
    return [str(cell) for cell in (*cells, deciders or "-", row.get("outcome", "-"))]


def _decision(decision: Record) -> str:
    too_late = ", too late" if "is_void" in decision else ""
    return f"{decision['approver']} ({decision.get('state', '')}{too_late})"


def _filter(
    since: str = "", until: str = "", kind: str = "", principal: str = "", tool: str = "", outcome: str = "",
    call: str = "",
) -> Filter:  # fmt: skip
    """Exits 2 for a time, type or outcome that there is not."""
    if kind and kind not in TYPES:
        stop(Code.USAGE, f"--type {kind[:40]!r} is none; write one of {', '.join(TYPES)}")
    if outcome and outcome not in ENDINGS:
        stop(Code.USAGE, f"--outcome {outcome[:40]!r} is none; write one of {', '.join(sorted(ENDINGS))}")
    now = datetime.now(UTC)
    try:
        since, until = (time and read_time(time, now) for time in (since, until))
    except ValueError as error:
        stop(Code.USAGE, str(error))
    if since and until and since >= until:
        stop(Code.USAGE, f"--since ({since}) is not before --until ({until})")
    return Filter(since, until, kind, principal, tool, outcome, call)


def _check_principal(directory: Path, name: str) -> None:
    """Exits 1 where the log has nobody of that name."""
    names = principals(directory) if name else set()
    if name and name not in names:
        near = [one for one in sorted(names) if name in one] or get_close_matches(name, names) or sorted(names)
        hint = f"; the log has {', '.join(near[:10])}" if near else ""
        stop(Code.NEGATIVE, printable(f"no record is of --principal {name[:80]!r}{hint}"))


def _settings(config_file: Path | None) -> AuditSettings:
    _, loaded, broken = load_sound(config_file)
    for finding in broken.findings if broken is not None else ():
        info(str(finding))
    return settings.audit(loaded)


def _directory(where: Path | None, config_file: Path | None) -> Path:
    directory = where or _settings(config_file).path.parent
    if not directory.is_dir():
        stop(Code.NEGATIVE, f"there is no audit log in {directory}")
    return directory


def _registered(config_file: Path | None) -> list[Checkpoint]:
    """The newest checkpoint of each replica that has ever run on the database."""
    _, loaded = load(config_file, quietly=True)
    if loaded.fleet is None:
        stop(Code.USAGE, "--fleet is for replicas: the config has no fleet")
    try:
        return audit_heads.read(state.read(loaded, [audit_heads.HEADS]).values())
    except StoreFailed as error:
        stop(Code.UNREACHABLE, f"which logs there are is in PostgreSQL, which cannot be used: {error}")


def _segments(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += [inside for inside in sorted(path.iterdir()) if is_segment(inside)]
        elif path.is_file():
            found.append(path)
        else:
            stop(Code.NEGATIVE, f"there is no {path}")
    return found


def _keys(path: Path) -> PublicKeys:
    try:
        return read_publics(path.read_text("ascii"))
    except FileNotFoundError:
        stop(Code.USAGE, f"there are no public keys in {path}; give them with --key")
    except (OSError, ValueError) as error:
        stop(Code.USAGE, f"{path}: {error}")


def _about(record: Record) -> str:
    """What a record is about that is about no call."""
    approval = record.get("approval")
    about = record | (approval if isinstance(approval, dict) else {})
    words = [about[name] for name in ("server", "name", "object", "act", "what", "log", "id", "state") if name in about]
    if "approver" in about:
        words.append(f"by {about['approver']}")
    if isinstance(reasons := record.get("reasons"), dict):
        words.append("refused: " + ", ".join(f"{reason} {times}" for reason, times in reasons.items()))
    if record["type"] == "decision" and inside(record, "decision", "verdict") == "deny":
        words.append(f"denied: {inside(record, 'decision', 'rule')}")
    if not words and "call" in record:  # one that a crash interrupted: its intent says what it was
        words = ["call", record["call"]]
    return " ".join(map(str, words))


def _tell(record: Record, as_json: bool) -> None:
    if as_json:
        print_out(json.dumps(record, separators=(",", ":")))
        return
    what = record.get("public") or record.get("asked") or record.get("method") or _about(record)
    ending = " ".join(coloured(printable(str(record[name]))) for name in ("outcome", "reason") if name in record)
    if "seconds" in record:
        ending += f" {record['seconds']:.3f}s"
    rule = inside(record, "decision", "rule")
    # Limits, argument rules and approvals deny what that row allows or asks about.
    if rule and record.get("outcome") == "denied" and inside(record, "decision", "verdict") == "deny":
        ending += f" by {printable(str(rule))}"
    who = str(record.get("principal") or record.get("address") or record.get("by") or "-")
    about = printable(f"{record['time'][:23]} {record['type']:<10} {who:<20} {what}".rstrip())
    print_out(f"{about} {ending}" if ending else about)
