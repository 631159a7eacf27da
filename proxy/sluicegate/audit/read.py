"""Finding things in the log: filters, search over all writers in order of time, and who approved what.

Reads what is there and proves nothing: whether it can be believed says `verify`.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    `until` are times as the log writes them (`when.read_time`)."""

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
    return [name for name in (record.get("principal"), record.get("by"), approver) if isinstance(name, str)]


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
