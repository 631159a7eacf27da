"""Everything that decides about a target, in its order: blocks, the server's own tool lists, its class, the policy's
rows.

One frozen object, so that a reload swaps all of it at once and no request is judged half by the old and half by the
new. Sync, without I/O; who accepted a definition is told by whoever keeps the pins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from sluicegate.policy.blocks import NOTHING_BLOCKED, Blocks
from sluicegate.policy.classes import Classes, Classified
from sluicegate.policy.explain import Explanation, explain
from sluicegate.policy.facts import Candidate, Facts
from sluicegate.policy.globs import matches_folded
from sluicegate.policy.memo import Memo
from sluicegate.policy.rules import PolicyRules
from sluicegate.policy.schemas import NO_RULES, ArgumentRules, Violation
from sluicegate.policy.toolsets import OUTSIDE, Toolsets
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Decision, Kind, Target, Verdict
from sluicegate.protocol.shape import Shape

MAX_MEMO: Final = 20_000

# Names are compared as they are (`fnmatchcase`). A name that its server has not listed is also denied in other letters,
# which the server could still understand.
_ANY: Final = Decision(Verdict.ALLOW, "", "")
_NOT_A_TOOL: Final = Decision(Verdict.ALLOW, "policy.use: open", "the open policy allows it")


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Globs over a server's own tool names."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()


def allowlist(servers: Mapping[str, ToolRules]) -> Callable[[Client, Target], Decision]:
    """`decide` for lists of tools; prompts and resources of a configured server are allowed. A server that is not
    configured is denied. Memoised for tools: the answer depends on server and own name alone, and there are as many
    of them as there are tools, where of resources there may be a million."""
    memo: Memo[tuple[str, str], Decision] = Memo(MAX_MEMO)

    def decide(client: Client, target: Target) -> Decision:
        if target.kind != "tool" and target.server in servers:
            return _NOT_A_TOOL
        key = (target.server, target.own)
        decision = None if target.is_unlisted else memo.get(key)
        if decision is None:
            decision = _decide(servers.get(target.server), target)
            if not target.is_unlisted:
                memo.keep(key, decision)
        return decision

    return decide


def _decide(rules: ToolRules | None, target: Target) -> Decision:
    if rules is None:
        return Decision(Verdict.DENY, "default", f"no server {target.server} is configured")
    where = f"servers.{target.server}.tools"
    for glob in rules.deny:
        if fnmatchcase(target.own, glob) or (target.is_unlisted and matches_folded(target.own, glob)):
            return Decision(Verdict.DENY, f"{where}.deny: {glob}", f"{target.own} is on the deny list")
    for glob in rules.allow:
        if fnmatchcase(target.own, glob):
            return Decision(Verdict.ALLOW, f"{where}.allow: {glob}", f"{target.own} is on the allow list")
    return Decision(Verdict.DENY, f"{where}.allow", f"{target.own} is not on the allow list")


Decide = Callable[[Client, Target], Decision]


def nobody_accepted(target: Target) -> bool:
    """Used as long as no person has accepted a definition."""
    return False


@dataclass(frozen=True, slots=True)
class Rulebook:
    """`lists` are the servers' allow and deny lists: they and `blocks` deny before any row allows, in shadow mode, too.
    """

    policy: PolicyRules
    classes: Classes
    lists: Decide
    arguments: ArgumentRules = NO_RULES
    is_accepted: Callable[[Target], bool] = nobody_accepted
    blocks: Blocks = NOTHING_BLOCKED
    toolsets: Toolsets | None = None
    shapes: Mapping[tuple[str, Kind, str], Shape] = field(default_factory=dict)

    def _barred(self, client: Client, target: Target) -> Decision | None:
        """The denial of a block or of the server's own lists."""
        listed = (self.blocks.rows and self.blocks.deny(client, target)) or self.lists(client, target)
        return listed if listed.verdict is Verdict.DENY else None

    def classify(self, target: Target) -> Classified:
        return self.classes.of(target, self.is_accepted(target))

    def decide(self, client: Client, target: Target) -> Decision:
        """The answer for lists, calls, gets, reads, completions, subscriptions and notifications alike. Hooks may
        refuse more."""
        if (barred := self._barred(client, target)) is not None:
            return barred
        act = self.classify(target).name
        may_be_alike = target.is_unlisted or target.kind == "res"
        alike = self.policy.decide_alike(client, target, act) if may_be_alike else None
        found = alike or self.policy.decide(client, target, act)
        return self._narrowed(client, target, found) if client.toolset else found

    def _narrowed(self, client: Client, target: Target, found: Decision, is_template: bool = False) -> Decision:
        """What lies outside of the client's toolset is that and nothing more, though a row denies it."""
        if not client.toolset:
            return found
        if self.toolsets is None:
            return Decision(Verdict.DENY, OUTSIDE + client.toolset, "there are no toolsets")
        return self.toolsets.deny(client, target, is_template) or found

    def may_see(self, client: Client, server: str) -> bool:
        """Whether a client has any right on a server: on one without, not even its name is shown."""
        if not self.policy.may_see(client, server):
            return False
        return not client.toolset or (self.toolsets is not None and self.toolsets.may_see(client, server))

    def decide_remembered(self, client: Client, target: Target, act: str) -> Decision:
        """Of a tool whose definition is not at hand: `act` is the class that it had."""
        if (barred := self._barred(client, target)) is not None:
            return barred
        return self._narrowed(client, target, self.policy.decide(client, target, self.classes.written(target) or act))

    def decide_template(self, client: Client, target: Target) -> Decision:
        """For resources/templates/list, and for completions of a template's variables."""
        if (barred := self._barred(client, target)) is not None:
            return barred
        return self._narrowed(client, target, self.policy.decide_template(client, target), is_template=True)

    def check_arguments(self, target: Target, arguments: Json | None) -> Violation | None:
        """Why a tool that may be called may not be called with these: `invalid_arguments`."""
        if target.kind != "tool":
            return None
        rules = self.arguments
        if not target.is_unlisted:
            return rules.check(target.server, target.own, arguments)
        names = rules.named_like(target.server, target.own)
        return next((wrong for name in names if (wrong := rules.check(target.server, name, arguments))), None)

    def explain(self, client: Client, target: Target, arguments: Json | None = None) -> Explanation | Decision:
        """The whole explanation, or the decision of a block or a server's tool list, which no row can change."""
        if (barred := self._barred(client, target)) is not None:
            return barred
        found = self.classify(target)
        may_be_alike = target.is_unlisted or target.kind == "res"
        if may_be_alike and (alike := self.policy.decide_alike(client, target, found.name)) is not None:
            return alike
        if client.toolset and (outside := self._narrowed(client, target, _ANY)) is not _ANY:
            return outside
        return explain(self.policy, client, target, found, self.arguments, arguments)

    def explain_by(
        self, facts: Facts, client: Client, kind: Kind, arguments: Json | None = None
    ) -> Explanation | Decision:
        """The same for what a name means by these facts: the first candidate that is not denied, else the first. A
        thread may ask, while requests are decided."""
        if facts.problem:
            return Decision(Verdict.DENY, "policy_error", facts.problem)
        policy = self.policy.apart()
        toolsets = None if self.toolsets is None else self.toolsets.beside(policy)
        book = replace(self, policy=policy, toolsets=toolsets, blocks=Blocks(facts.blocks))
        explained = [book._explain_one(one, client, kind, arguments) for one in facts.candidates]
        nothing = Decision(Verdict.DENY, "catalog", "no server is known to have anything of this name")
        allowed = (one for one in explained if one.verdict is not Verdict.DENY)
        return next(allowed, explained[0] if explained else nothing)

    def _explain_one(
        self, found: Candidate, client: Client, kind: Kind, arguments: Json | None
    ) -> Explanation | Decision:
        item: Json = {} if found.annotations is None else {"annotations": found.annotations}
        target = Target(found.server, kind, found.own, found.own, item, is_unlisted=found.unlisted)
        shape = self.shapes.get((found.server, kind, found.own))
        filled = arguments if shape is None or arguments is None else shape.filled(arguments)
        explained = replace(self, is_accepted=lambda target: found.accepted).explain(client, target, filled)
        if not isinstance(explained, Explanation):
            return explained
        refused = shape.refused(arguments) if shape is not None else ""
        if refused and explained.verdict is not Verdict.DENY:
            rule = f"servers.{found.server}.{kind}s.shape.{found.own}"
            return Decision(Verdict.DENY, rule, f"clients may not give the argument {refused}")
        asked = explained.ruling
        granted = (one for one in found.grants if one.covers(asked.rule, asked.profile, asked.act))
        return replace(explained, absent=_absent(found, kind), granted=next(granted, None))


def _absent(found: Candidate, kind: Kind) -> str:
    """Returns why nobody can use the target, whatever the rows say."""
    if found.state == "withheld":
        return f"the definition of {found.own} waits for a person: see `sluice pins diff {found.server}`"
    if found.state == "missing" and kind == "res":
        return "this URI is not found: another spelling of it is the one that rules and servers read alike"
    if found.state == "missing":
        return f"{found.server} lists no {kind} {found.own}" + (f"; did you mean {found.near}?" if found.near else "")
    return ""
