"""Finding things in the log: filters, the times that people write, search over all writers in order of time, and who
approved what.

Reads what is there and proves nothing: whether it can be believed says `verify`.
"""

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from sluicegate.audit.chain import Link
from sluicegate.audit.follow import Follower, lines, writers
from sluicegate.audit.recover import load_sound

Record = dict[str, Any]
_COLUMNS: Final = ("id", "state", "principal", "server", "tool", "profile", "digest")


@dataclass(frozen=True, slots=True)
class Filter:
    """Empty fields say nothing. `tool` is a glob over `server/own`, the own or the public name; `since` and
    `until` are times as the log writes them (see `read_time`)."""

    since: str = ""
    until: str = ""
    type: str = ""
    principal: str = ""
    tool: str = ""
    outcome: str = ""
    call: str = ""

    def may_match(self, link: Link) -> bool:
        """What can be told from the first part of a line, which is most of what is not wanted."""
        if (self.type and link.type != self.type) or (self.call and link.call != self.call):
            return False
        return link.time >= self.since and (not self.until or link.time < self.until)

    def matches(self, record: Record) -> bool:
        if self.principal and self.principal not in _people(record):
            return False
        if self.outcome and self.outcome not in (record.get("outcome"), record.get("reason")):
            return False
        return not self.tool or any(fnmatchcase(name, self.tool) for name in names_of(record))


def _people(record: Record) -> list[str]:
    """Who called, approved, or did something to Sluice itself."""
    approval = record.get("approval")
    approver = approval.get("approver") if isinstance(approval, dict) else None
    return [name for name in (record.get("principal"), record.get("by"), approver) if name and isinstance(name, str)]


def names_of(record: Record) -> list[str]:
    own, public, server = record.get("own"), record.get("public"), record.get("server")
    names = [f"{server}/{own}", own, public, record.get("asked")]
    return [name for name in names if isinstance(name, str)]


def search(directory: Path, wanted: Filter) -> Iterator[Record]:
    """All records that match, of all writers, in order of time."""
    chains = [lines(directory, writer) for writer in writers(directory)]
    for link, line in heapq.merge(*chains, key=lambda entry: entry[0].time):
        if wanted.may_match(link) and (record := load_sound(line)) and wanted.matches(record):
            yield record


def principals(directory: Path) -> set[str]:
    """Everybody who called, approved, or did something to Sluice itself."""
    found: set[str] = set()
    for record in search(directory, Filter()):
        found.update(_people(record))
    return found


class LogTail:
    """The end of a log that grows: `read` gives what has come since the last time."""

    def __init__(self, directory: Path, wanted: Filter) -> None:
        self._directory, self._wanted = directory, wanted
        self._followers: dict[str, Follower] = {}

    def read(self) -> list[Record]:
        for writer in writers(self._directory):
            self._followers.setdefault(writer, Follower(self._directory, writer))
        found = [entry for follower in self._followers.values() for entry in _all(follower)]
        found.sort(key=lambda entry: entry[0].time)
        fitting = [load_sound(line) for link, line in found if self._wanted.may_match(link)]
        return [record for record in fitting if record and self._wanted.matches(record)]

    def close(self) -> None:
        for follower in self._followers.values():
            follower.close()


def _all(follower: Follower) -> Iterator[tuple[Link, bytes]]:
    while batch := follower.read():
        yield from batch


def approvals(records: Iterable[Record]) -> list[Record]:
    """Who approved what: one row an approval, with everybody who decided and what became of the call."""
    rows: dict[str, Record] = {}
    calls: dict[str, str] = {}
    for record in records:
        approval = record.get("approval")
        if isinstance(approval, dict) and isinstance(approval.get("id"), str):
            row = rows.setdefault(approval["id"], {"id": approval["id"], "decisions": [], "asked_at": record["time"]})
            _add_approval(row, approval, record)
            if record["type"] == "intent":
                calls[record["call"]] = approval["id"]
        elif record.get("type") == "outcome" and record.get("call") in calls:
            rows[calls[record["call"]]]["outcome"] = record.get("outcome")
    return list(rows.values())


def _add_approval(row: Record, approval: Record, record: Record) -> None:
    row |= {name: approval[name] for name in _COLUMNS if name in approval}
    row |= {name: record[name] for name in ("principal", "server") if name in record and name not in row}
    if "own" in record:
        row.setdefault("tool", record["own"])
    if "void" in approval:
        row["decisions"] = _without_effect(row["decisions"], approval)
    elif "approver" in approval and record["type"] == "approval":
        wanted = ("approver", "channel", "state", "comment", "scope")
        fields = {name: approval[name] for name in wanted if name in approval}
        row["decisions"] = [*row["decisions"], {"time": record["time"], **fields}]


def _without_effect(decisions: list[Record], void: Record) -> list[Record]:
    """Marks the newest decision that this record calls void: something else took effect in its place."""
    meant = (void.get("approver"), void["void"])
    same = [at for at, one in enumerate(decisions) if (one["approver"], one.get("state")) == meant]
    return [{**one, "is_void": True} if at in same[-1:] else one for at, one in enumerate(decisions)]


FORMS: Final = "1h, 30m, 2d (back from now), today, yesterday, 2026-10-01, 2026-10-01T12:30, 2026-10-01T12:30:00+02:00"

_BACK: Final = re.compile(r"(\d{1,6})(s|m|h|d|w)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_POINT: Final = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d\d)(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(\.\d{1,9})?)?)? ?([Zz]|[+-]\d\d:?\d\d)?)?)?"
)


def read_time(text: str, now: datetime) -> str:
    """The time that `text` means, as the log writes times: a duration back from `now`, a day, or RFC 3339 of which the
    end may be missing. A time without an offset is UTC. Raises `ValueError` for anything else."""
    text = text.strip()
    try:
        if (found := _read(text, now)) is not None:
            return found
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time that exists") from None
    raise ValueError(f"{text[:40]!r} is no time; write {FORMS}")


def _read(text: str, now: datetime) -> str | None:
    if back := _BACK.fullmatch(text):
        return _written(now - timedelta(**{_UNITS[back[2]]: int(back[1])}))
    if text == "now":
        return _written(now)
    if text in ("today", "yesterday"):
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return _written(midnight - timedelta(days=text == "yesterday"))
    point = _POINT.fullmatch(text)
    return None if point is None else _read_point(point)


def _read_point(point: re.Match[str]) -> str:
    year, month, day, hour, minute, second, fraction, offset = point.groups()
    date = int(year), int(month), int(day or 1)
    given = datetime(*date, int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC)
    ahead = timedelta(0)
    if offset and offset not in "Zz":
        hours, minutes = int(offset[1:3]), int(offset[-2:])
        if hours > 23 or minutes > 59:
            raise ValueError("no such offset")
        ahead = timedelta(hours=hours, minutes=minutes) * (-1 if offset[0] == "-" else 1)
    return _written(given - ahead, (fraction or ".")[1:])


def _written(time: datetime, fraction: str | None = None) -> str:
    digits = f"{time.microsecond:06d}" if fraction is None else fraction
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{digits:0<9}Z"
