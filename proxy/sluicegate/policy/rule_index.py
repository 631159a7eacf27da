"""The rows that can matter to some clients on one server, ready to be asked about one object after the other.

Pure. What is left out here could not match: a row for a subject that the client is not, for another server, for
another object. A policy has thousands of rows, a question is about a handful of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluicegate.policy.csv_rows import Row
from sluicegate.policy.engine import reaches
from sluicegate.policy.globs import is_glob, matcher


@dataclass(frozen=True, slots=True)
class Rule:
    """A `p` or `p2` row, taken apart once. `order` is its place among all rows."""

    order: int
    row: Row
    sub: str
    srv: str
    obj: str
    act: str
    effect: str  # of a `p2` row: allow, because it grants nothing that a wildcard may not
    matches_obj: Callable[[str], object]

    def matches(self, held: frozenset[str], server: str, obj: str, act: str) -> bool:
        """The sentence of the model file, said again by itself: explanations come from here, verdicts from casbin."""
        about = self.act in ("*", act) and bool(self.matches_obj(obj))
        return about and reaches(server, self.srv, self.effect) and self.sub in held


def read_rules(rows: Iterable[Row], kind: str) -> tuple[Rule, ...]:
    return tuple(_read(order, row) for order, row in enumerate(rows) if row.kind == kind)


def _read(order: int, row: Row) -> Rule:
    sub, srv, obj, act, last = row.fields
    return Rule(order, row, sub, srv, obj, act, last if row.kind == "p" else "allow", matcher(obj))


class RuleIndex:
    """Some rules, found by object: whole names in one step, globs one after the other."""

    __slots__ = ("_globs", "_named", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._globs = tuple(rule for rule in self.rules if is_glob(rule.obj))
        self._named: dict[str, tuple[Rule, ...]] = {}
        for rule in self.rules:
            if not is_glob(rule.obj):
                self._named[rule.obj] = (*self._named.get(rule.obj, ()), rule)

    def about(self, obj: str) -> list[Rule]:
        """In the order of the files."""
        found = [rule for rule in self._globs if rule.matches_obj(obj)]
        named = self._named.get(obj)
        return sorted((*named, *found), key=lambda rule: rule.order) if named else found


def shard(rules: Iterable[Rule], held: frozenset[str], server: str) -> RuleIndex:
    return RuleIndex(rule for rule in rules if rule.sub in held and reaches(server, rule.srv, rule.effect))
