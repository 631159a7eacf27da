"""What a changed policy would have decided on calls that were made: `sluice policy diff OTHER --replay AUDIT`.

Pure: records arrive as decoded lines of the audit log. A call is its one closing record (`type` outcome) with a
target: `principal`, `roles`, `groups`, `server`, `kind`, `own` and `class`; intents, lists and all other records are
passed over. Redacted or digested arguments cannot be judged again, so a tool whose argument rule changed is named as
undecidable, never guessed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from sluicegate.policy.classes import CLASSES
from sluicegate.policy.csv_rows import Row
from sluicegate.policy.roles import is_principal
from sluicegate.policy.rules import PolicyRules
from sluicegate.policy.schemas import NO_RULES, ArgumentRules
from sluicegate.policy.target import printable
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Kind, Target

KEYS: Final = ("principal", "roles", "groups", "server", "kind", "own", "class")
MAX_ROLES: Final = 64  # more are not recorded
# How the log writes a name that it may not hold, or not whole.
_CHANGED: Final = re.compile(r"\[redacted:[0-9a-f]+\]|\.\.\.\(\d+ more\)$")
MAX_EXAMPLES: Final = 20
MAX_REASONS: Final = 100


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two policies."""

    policy: PolicyRules
    arguments: ArgumentRules = NO_RULES


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """One kind of call that is decided otherwise: `kind` is `allow->deny`; a change of profile is `ask->ask`."""

    kind: str
    principal: str
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kind:12} {printable(self.principal)} {printable(self.what)}  {self.before} -> {self.after}"


@dataclass(slots=True)
class ReplayReport:
    """`changes` counts calls by what changes for them, `undecidable` by why nothing can be said."""

    calls: int = 0
    changes: Counter[DecisionChange] = field(default_factory=Counter)
    undecidable: Counter[str] = field(default_factory=Counter)

    @property
    def kinds(self) -> Counter[str]:
        kinds: Counter[str] = Counter()
        for change, times in self.changes.items():
            kinds[change.kind] += times
        return kinds

    def as_json(self) -> Json:
        return {
            "calls": self.calls,
            "changes": dict(self.kinds),
            "examples": [
                {"kind": change.kind, "principal": change.principal, "what": change.what, "calls": times,
                 "before": change.before, "after": change.after}
                for change, times in self.changes.most_common()
            ],
            "undecidable": dict(self.undecidable),
        }  # fmt: skip


def compare(old: Side, new: Side, records: Iterable[Mapping[str, Any]]) -> ReplayReport:
    """Every recorded call, decided by both. Shadow mode of either counts as enforced: the rows are compared."""
    report = ReplayReport()
    old, new = _enforced(old), _enforced(new)
    for record in records:
        if record.get("type") != "outcome" or "server" not in record:
            continue
        report.calls += 1
        question = _read(record)
        if isinstance(question, str):
            report.undecidable[_short(report.undecidable, question)] += 1
            continue
        _compare_one(old, new, *question, report)
    return report


def _enforced(side: Side) -> Side:
    return Side(side.policy.with_shadow(False), side.arguments)


def _compare_one(old: Side, new: Side, client: Client, target: Target, act: str, report: ReplayReport) -> None:
    before, after = old.policy.decide(client, target, act), new.policy.decide(client, target, act)
    what = f"{target.server}/{target.own} [{act}]"
    if (before.verdict, before.profile) != (after.verdict, after.profile):
        kind = f"{before.verdict.value}->{after.verdict.value}"
        names = [f"{ruling.rule} {ruling.profile}".rstrip() for ruling in (before, after)]
        report.changes[DecisionChange(kind, client.principal, what, *names)] += 1
    elif old.arguments.digest(target.server, target.own) != new.arguments.digest(target.server, target.own):
        reason = f"the argument rule of {target.server}/{target.own} changed, and recorded arguments are not whole"
        report.undecidable[_short(report.undecidable, reason)] += 1


def _short(reasons: Counter[str], reason: str) -> str:
    return reason if reason in reasons or len(reasons) < MAX_REASONS else "other reasons"


def _read(record: Mapping[str, Any]) -> tuple[Client, Target, str] | str:
    """Returns the decision that a record is about, or why it has none."""
    missing = [key for key in KEYS if key not in record]
    if missing:
        return f"no {', '.join(missing)} in the record"
    principal, roles, groups, server, kind, own, act = (record[key] for key in KEYS)
    texts = isinstance(principal, str) and isinstance(server, str) and isinstance(own, str)
    if not (texts and _are_texts(roles) and _are_texts(groups)):
        return "a record whose fields are of another type"
    if kind not in get_args(Kind) or act not in CLASSES or not is_principal(principal):
        return "a principal, kind or class that no policy speaks of"
    if any(_CHANGED.search(text) for text in (principal, own, *roles, *groups)):
        return "a name that was redacted or cut in the record"
    if len(roles) + len(groups) >= MAX_ROLES:
        return "more roles than a record holds"
    return Client(principal, (*roles, *groups)), Target(server, kind, own, own), act


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def render(report: ReplayReport) -> str:
    """`18,204 calls: 31 allow->deny, 6 allow->ask`, the commonest changes, and what could not be decided."""
    kinds = ", ".join(f"{times:,} {kind}" for kind, times in report.kinds.most_common())
    lines = [f"{report.calls:,} call{'s' * (report.calls != 1)}: {kinds or 'all decided as before'}"]
    lines += [f"  {times:>6,} x {change}" for change, times in report.changes.most_common(MAX_EXAMPLES)]
    if len(report.changes) > MAX_EXAMPLES:
        lines.append(f"  and {len(report.changes) - MAX_EXAMPLES:,} more")
    lines += [f"  {times:>6,} x undecidable: {printable(reason)}" for reason, times in report.undecidable.most_common()]
    return "\n".join(lines)


def compare_rows(old: Sequence[Row], new: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(rows that are gone, rows that are new), whatever their order and their comments."""
    before, after = {(row.kind, row.fields) for row in old}, {(row.kind, row.fields) for row in new}
    gone = [row for row in old if (row.kind, row.fields) not in after]
    return gone, [row for row in new if (row.kind, row.fields) not in before]
