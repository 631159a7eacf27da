"""Why: the decision, the row that made it, every other row that speaks of it, and the ways by which they apply.

Sync; data first, text second. What is said here is found without casbin and without the shards that a decision uses,
so that an explanation is a second opinion: tests hold that both always agree.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluicegate.policy.classes import Classified
from sluicegate.policy.csv_rows import Row
from sluicegate.policy.facts import GrantFact
from sluicegate.policy.profiles import Need, find_need
from sluicegate.policy.roles import BUILT_IN, chains, origins
from sluicegate.policy.rules import DEFAULT_RULE, Matches, PolicyRules, Ruling
from sluicegate.policy.schemas import NO_RULES, ArgumentRules, Violation
from sluicegate.policy.target import printable
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Target, Verdict

EXIT: Final = {Verdict.ALLOW: 0, Verdict.DENY: 1, Verdict.ASK: 10}


@dataclass(frozen=True, slots=True)
class Explanation:
    """`violation` is why these arguments would be refused although the tool is not. `absent` is why no client can use
    the target, whatever the rows say; with the grant `granted` nobody is asked."""

    ruling: Ruling
    client: Client
    target: Target
    classified: Classified
    found: Matches
    need: Need
    role_paths: tuple[tuple[str, ...], ...]
    revision: str
    violation: Violation | None = None
    absent: str = ""
    granted: GrantFact | None = None

    @property
    def verdict(self) -> Verdict:
        if self.violation or self.absent:
            return Verdict.DENY
        return Verdict.ALLOW if self.granted else self.ruling.verdict

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def as_json(self) -> Json:
        need, violation = self.need, self.violation
        return {
            "verdict": self.verdict.value,
            "rule": self.ruling.rule,
            "reason": self.ruling.reason,
            "would_deny": self.ruling.would_deny,
            "principal": self.client.principal,
            "server": self.target.server,
            "object": f"{self.target.kind}:{self.target.own}",
            "class": self.classified.name,
            "class_from": self.classified.source,
            "rows": [{"at": row.where, "says": says, "row": str(row)} for says, row in _rows(self)],
            "roles": [list(path) for path in self.role_paths],
            "approval": need.profile.name if need.profile else "none" if need.exempt else None,
            "arguments": {"path": violation.path, "message": violation.message} if violation else None,
            "absent": self.absent or None,
            "grant": self.granted.id if self.granted else None,
            "revision": self.revision,
        }


def explain(
    policy: PolicyRules, client: Client, target: Target, classified: Classified, rules: ArgumentRules = NO_RULES,
    arguments: Json | None = None,
) -> Explanation:  # fmt: skip
    """Explains a decision. `arguments` None: rules on arguments are not evaluated."""
    act = classified.name
    found = policy.matches(client, target.server, f"{target.kind}:{target.own}", act)
    ruling = policy.conclude(found, target.server, act)
    checked = target.kind == "tool" and arguments is not None and ruling.verdict is not Verdict.DENY
    names = rules.named_like(target.server, target.own) if target.is_unlisted else [target.own]
    wrong = (rules.check(target.server, name, arguments) for name in names if checked)
    violation = next(filter(None, wrong), None)
    need = find_need(found.approvals, policy.profiles)
    role_paths = _longest(chains(origins(client), policy.grants).values())
    return Explanation(ruling, client, target, classified, found, need, role_paths, policy.revision, violation)


def _longest(role_paths: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Without those that another one continues, and what everybody holds last."""
    every = list(role_paths)
    begun = {path[:-1] for path in every}
    return tuple(sorted((path for path in every if path not in begun), key=lambda path: path[-1] in BUILT_IN))


def _rows(explanation: Explanation) -> list[tuple[str, Row]]:
    """(what it says, row), the deciding row first."""
    found = explanation.found
    says = [("deny", row) for row in found.denies] + [("allow", row) for row in found.allows]
    says += [("exempt" if row.last == "none" else "ask", row) for row in found.approvals]
    return sorted(says, key=lambda pair: pair[1].where != explanation.ruling.rule)


def render(explanation: Explanation) -> str:
    """The explanation as text, without a line break at the end."""
    lines = [_head(explanation), *_row_lines(explanation)]
    lines += [f"  roles   {' -> '.join(printable(name) for name in path)}" for path in explanation.role_paths]
    need = explanation.need
    if need.profile and need.row and explanation.ruling.verdict is Verdict.DENY:
        lines.append(f"  approval, if allowed: {need.profile.name} ({need.row.where})")
    if explanation.absent:
        lines.insert(1, f"  catalog  {printable(explanation.absent)}  <- decides")
    elif explanation.violation:
        lines.append(f"  arguments  {printable(str(explanation.violation))}  <- decides (invalid_arguments)")
    elif explanation.granted:
        lines.append(f"  grant   {explanation.granted.id}: nobody is asked while it lasts  <- decides")
    return "\n".join(lines)


def _head(explanation: Explanation) -> str:
    target, classified = explanation.target, explanation.classified
    name = printable(f"{target.server}/{target.own}")
    shadow = "  (shadow mode: would be denied)" if explanation.ruling.would_deny else ""
    return (
        f"{explanation.verdict.value.upper():5} {name} [class {classified.name}: {printable(classified.source)}]"
        f"  for {printable(explanation.client.principal)}{shadow}"
        f"  policy rev {explanation.revision}  exit {explanation.exit_code}"
    )


def _row_lines(explanation: Explanation) -> list[str]:
    rows = _rows(explanation)
    width = max((len(row.where) for _, row in rows), default=0)
    longest = max((len(str(row)) for _, row in rows), default=0)
    lines = []
    for says, row in rows:
        mark = _mark(explanation, says, row)
        lines.append(f"  {says:6}  {row.where:{width}}  {row!s:{longest if mark else 0}}{mark}")
    if explanation.ruling.rule == DEFAULT_RULE:
        lines.insert(0, "  default  no row allows it" + ("" if explanation.absent else "  <- decides"))
    return lines


def _mark(explanation: Explanation, says: str, row: Row) -> str:
    if explanation.violation or explanation.absent or explanation.granted or row.where != explanation.ruling.rule:
        return ""
    if says == "deny":
        return "  <- decides (deny overrides)"
    if says == "ask" and explanation.need.profile is None:
        return "  <- decides (as strict as another, with other approvers)"
    several = says == "ask" and len(explanation.found.approvals) > 1
    return "  <- decides (the strictest)" if several else "  <- decides"
