"""Toolsets: the part of what policy allows that is there at one endpoint. They take away, and give nothing.

A toolset's globs are rows of a policy of its own, so that names and URIs are compared as everywhere else. Pure.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sluicegate.policy.csv_rows import Row
from sluicegate.policy.memo import Memo
from sluicegate.policy.rules import PolicyRules
from sluicegate.protocol.model import Client, Decision, Target, Verdict

MAX_CLIENTS: Final = 10_000
OUTSIDE: Final = "toolset "
"""How the rule of a decision begins that a toolset made."""


@dataclass(frozen=True, slots=True)
class Search:
    """Whether tools are found by `find_tools`, and not listed: `auto` where a list has more than `budget` tokens. There
    is a warning of a list that has more all the same."""

    mode: Literal["off", "on", "auto"] = "off"
    budget: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class Toolset:
    """`globs` are `SERVER/GLOB` over own names and URIs by kind, with `!` in front for what is left out. `audience` are
    the roles that may use it, all if there are none; those of `default_for` have it where no toolset is named. `pinned`
    are globs of the tools that are listed though others are searched for. The one without a name is what there is where
    a client has no toolset."""

    name: str
    globs: Mapping[str, tuple[str, ...]]
    audience: frozenset[str] = frozenset()
    default_for: frozenset[str] = frozenset()
    search: Search = Search()
    pinned: tuple[str, ...] = ()


def split(glob: str) -> tuple[bool, str, str]:
    """Whether it takes away, the glob of servers, and that of names."""
    server, _, own = glob.removeprefix("!").partition("/")
    return glob.startswith("!"), server, own


NO_SEARCH: Final = Search()


class Toolsets:
    """All of a config, beside the policy that says which roles a client has."""

    def __init__(self, those: Iterable[Toolset], policy: PolicyRules) -> None:
        self._those = {one.name: one for one in those}
        self._policy = policy
        self._pinned = {
            one.name: policy.beside([*_rows(one.name, "tool", "pinned", one.pinned)], one.name)
            for one in self._those.values() if one.pinned
        }  # fmt: skip
        self._rules = {one.name: policy.beside([*_all_rows(one)], one.name) for one in self._those.values()}
        self._entered: Memo[tuple[str, tuple[str, ...], str], tuple[str | None]] = Memo(MAX_CLIENTS)

    def __reduce__(self) -> tuple[type["Toolsets"], tuple[object, ...]]:
        """In another process it decides the same, and remembers nothing."""
        return Toolsets, (tuple(self._those.values()), self._policy)

    def beside(self, policy: PolicyRules) -> "Toolsets":
        """The same beside another policy, whose engine they ask."""
        return Toolsets(self._those.values(), policy)

    def __bool__(self) -> bool:
        return any(self._those)

    def enter(self, client: Client, name: str) -> str | None:
        """The toolset that this client has where it names that one, or none (""): "" for all that policy allows, None
        for one that is not there for it."""
        key = client.principal, client.roles, name
        found = self._entered.get(key)
        return (found or self._entered.keep(key, (self._enter(client, name),)))[0]

    def _enter(self, client: Client, name: str) -> str | None:
        roles = self._policy.roles_of(client)
        if name:
            one = self._those.get(name)
            is_there = one is not None and (not one.audience or bool((one.audience | one.default_for) & roles))
            return name if is_there else None
        return next((one.name for one in self._those.values() if one.name and one.default_for & roles), "")

    def deny(self, client: Client, target: Target, is_template: bool = False) -> Decision | None:
        """Why this target is not in the client's toolset; None where it is, and for who has no toolset."""
        rules = self._rules.get(client.toolset)
        if rules is None or self.enter(client, client.toolset) is None:
            return Decision(Verdict.DENY, OUTSIDE + client.toolset, "this toolset is not there for this client")
        if is_template:
            found: Decision = rules.decide_template(client, target)
        else:
            may_be_alike = target.is_unlisted or target.kind == "res"
            alike = rules.decide_alike(client, target, "read") if may_be_alike else None
            found = alike or rules.decide(client, target, "read")
        if found.verdict is not Verdict.DENY:
            return None
        rule = found.rule if found.rule.startswith(OUTSIDE) else OUTSIDE + client.toolset
        return Decision(Verdict.DENY, rule, f"{target.own} is not in the toolset {client.toolset}")

    def search_of(self, client: Client) -> Search:
        one = self._those.get(client.toolset)
        return NO_SEARCH if one is None else one.search

    def is_pinned(self, client: Client, target: Target) -> bool:
        """Whether the tool is listed where others are searched for."""
        pinned = self._pinned.get(client.toolset)
        return pinned is not None and pinned.decide(client, target, "read").verdict is not Verdict.DENY

    def may_see(self, client: Client, server: str) -> bool:
        """Whether the client's toolset has anything of that server."""
        rules = self._rules.get(client.toolset)
        return rules is not None and self.enter(client, client.toolset) is not None and rules.may_see(client, server)


def _all_rows(one: Toolset) -> Iterable[Row]:
    for kind, globs in one.globs.items():
        yield from _rows(one.name, kind, _KEYS[kind], globs)


def _rows(name: str, kind: str, key: str, globs: tuple[str, ...]) -> Iterable[Row]:
    where = f"{OUTSIDE}{name}.{key}"
    if globs and all(split(glob)[0] for glob in globs):  # all but these
        yield Row(where, 0, "p", ("*", "*", f"{kind}:*", "*", "allow"), ())
    for number, glob in enumerate(globs, 1):
        takes_away, server, own = split(glob)
        fields = ("*", server, f"{kind}:{own}", "*", "deny" if takes_away else "allow")
        yield Row(where, number, "p", fields, ())


_KEYS: Final = {"tool": "tools", "prompt": "prompts", "res": "resources"}
