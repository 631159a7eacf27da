"""Everything that decides about a target, in its order: the server's own tool lists, its class, the policy's rows.

One frozen object, so that a reload swaps all of it at once and no request is judged half by the old and half by the
new. Sync, without I/O; who accepted a definition is told by whoever keeps the pins.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sluicegate.call import Client, Decision, Target, Verdict
from sluicegate.message import Json
from sluicegate.policy.arguments import NO_RULES, ArgumentRules, Violation
from sluicegate.policy.classes import Classes, Classified
from sluicegate.policy.explain import Explanation, explain
from sluicegate.policy.rules import SLICE, Policy

Decide = Callable[[Client, Target], Decision]


def nobody_accepted(target: Target) -> bool:
    """For as long as no definition was accepted by a person."""
    return False


@dataclass(frozen=True, slots=True)
class Rulebook:
    """`lists` are the servers' allow and deny lists: they deny before any row allows, in shadow mode, too."""

    policy: Policy
    classes: Classes
    lists: Decide
    arguments: ArgumentRules = NO_RULES
    is_accepted: Callable[[Target], bool] = nobody_accepted

    def classify(self, target: Target) -> Classified:
        return self.classes.of(target, self.is_accepted(target))

    def decide(self, client: Client, target: Target) -> Decision:
        """The answer for lists, calls, gets, reads, completions, subscriptions and notifications alike."""
        listed = self.lists(client, target)
        if listed.verdict is Verdict.DENY:
            return listed
        act = self.classify(target).name
        alike = self.policy.decide_alike(client, target, act) if target.is_unlisted else None
        return alike or self.policy.decide(client, target, act)

    def decide_template(self, client: Client, target: Target) -> Decision:
        """For resources/templates/list, and for completions of a template's variables."""
        listed = self.lists(client, target)
        return listed if listed.verdict is Verdict.DENY else self.policy.decide_template(client, target)

    def warm(self, client: Client, targets: Iterable[Target], seconds: float = SLICE) -> Iterator[None]:
        """Decides on every target ahead of a list, and hands over after every `seconds` of work."""
        wanted = ((target, self.classify(target).name) for target in targets)
        for _ in self.policy.decide_many(client, wanted, seconds):
            yield

    def check_arguments(self, target: Target, arguments: Json | None) -> Violation | None:
        """Why a tool that may be called may not be called with these: `invalid_arguments`."""
        if target.kind != "tool":
            return None
        rules = self.arguments
        names = rules.named_like(target.server, target.own) if target.is_unlisted else [target.own]
        return next((wrong for name in names if (wrong := rules.check(target.server, name, arguments))), None)

    def explain(self, client: Client, target: Target, arguments: Json | None = None) -> Explanation | Decision:
        """The whole explanation, or the decision of a server's tool list, which no row can change."""
        listed = self.lists(client, target)
        if listed.verdict is Verdict.DENY:
            return listed
        found = self.classify(target)
        if target.is_unlisted and (alike := self.policy.decide_alike(client, target, found.name)) is not None:
            return alike
        return explain(self.policy, client, target, found, self.arguments, arguments)
