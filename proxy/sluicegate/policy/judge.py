"""Whoever is asked for decisions: what is in force now, and what a question means for each method.

Holds one `PolicyInForce`, which a reload swaps as a whole; no request is judged half by the old and half by the new.
Fails closed: a decision that raises is a deny, and while a question of which the answer is known goes wrong, everything
is. Sync and without I/O; `app.services` swaps what is in force.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final

from sluicegate.policy.blocks import NOTHING_BLOCKED, Blocks
from sluicegate.policy.rulebook import Rulebook
from sluicegate.policy.schemas import Violation
from sluicegate.policy.toolsets import NO_SEARCH, Search
from sluicegate.protocol.derived_cache import DerivedCache
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.methods import ABOUT_A_TASK
from sluicegate.protocol.model import Call, Client, Decision, Target, Verdict

ERROR: Final = "policy_error"
CANNOT: Final = "the policy cannot decide"
UNREAD: Final = "the store cannot be read: nobody knows what is blocked"
MAX_ACCEPTED: Final = 50_000
MAX_BYTES: Final = 32 * 1024 * 1024
"""Of one generation of the definitions of which it is remembered, as JSON; two are kept."""

_RAISED: Final = Decision(Verdict.DENY, ERROR, "the decision failed")
_BROKEN: Final = Decision(Verdict.DENY, ERROR, CANNOT)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """What is in force. `explains`: a denial says so; `until`: the second at which shadow mode is over."""

    rulebook: Rulebook
    explains: bool = False
    until: float | None = None

    @property
    def is_shadow(self) -> bool:
        return self.rulebook.policy.shadow


class PolicyEngine:
    """`errors` counts decisions that raised; `problem` says why nothing can be decided, if so."""

    def __init__(self, in_force: PolicyInForce) -> None:
        self._changes = 0
        self.blocks = NOTHING_BLOCKED
        self._is_unread = False
        self.in_force = in_force
        self.errors = 0
        self.problem = ""

    @property
    def in_force(self) -> PolicyInForce:
        return self._in_force

    @in_force.setter
    def in_force(self, in_force: PolicyInForce) -> None:
        self._in_force = replace(in_force, rulebook=replace(in_force.rulebook, blocks=self.blocks))
        self.has_toolsets = bool(in_force.rulebook.toolsets)
        self.renew()

    def block(self, blocks: Blocks, now: float) -> bool:
        """These are in force until the next ones are, each as long as it lasts; whether that changes anything."""
        was_unread, self._is_unread = self._is_unread, False
        if was_unread:
            self.problem = self._why_not()
            log.error(self.problem or "the blocks can be read again: the policy decides")
        return self._take(blocks.at(now)) or was_unread

    def await_blocks(self) -> None:
        """Denies everything until the first blocks are read."""
        self._is_unread = True
        self.problem = self._why_not()
        log.error(self.problem)

    def _take(self, left: Blocks) -> bool:
        if left.rows == self.blocks.rows:
            return False
        self.blocks = left
        self.in_force = self._in_force
        return True

    def renew(self) -> None:
        """Notes that decisions may differ from now on."""
        self._changes += 1

    def permission_key(self, call: Call) -> tuple[Hashable, Hashable] | None:
        """What decisions for this client go by: as long as it is equal, so are they, on the same definition. None where
        that cannot be said. Clients that differ in nothing that counts have the same. The first part is one for all."""
        is_judged_alone = self.problem or self.blocks.has_principal(call.client.principal)
        held = None if is_judged_alone else self._held_by(call.client)
        return None if held is None else ((self._changes, self.errors), (held, call.client.toolset))

    def _held_by(self, client: Client) -> frozenset[str] | None:
        try:
            return self.in_force.rulebook.policy.held(client)
        except ValueError:  # a principal that is none
            return None

    def decide(self, call: Call, target: Target) -> Decision:
        """What is called, read or got. A completion tells what a prompt or a template would, without anybody having
        been asked: there an ask is a deny. Of a task, and of an answer that is kept, it is an allow: who was asked
        agreed to the call that began it."""
        decision = self._decide(call, target)
        if decision.verdict is not Verdict.ASK:
            return decision
        if call.method in ABOUT_A_TASK or target.is_part:
            return replace(decision, verdict=Verdict.ALLOW)
        return replace(decision, verdict=Verdict.DENY) if call.method == "completion/complete" else decision

    def may_list(self, call: Call, server: str, target: Target) -> bool:
        """In lists and for notifications an ask is an allow: it can be called."""
        return self._decide(call, target).verdict is not Verdict.DENY

    def may_still_call(self, client: Client, target: Target, class_: str) -> bool:
        """Whether a call that a person was asked about could be made now. `class_` is that of a tool whose definition
        is not at hand: it counts where no operator has written another."""

        def is_allowed() -> bool:
            rulebook = self.in_force.rulebook
            if target.kind == "tool" and target.item is None and not target.is_unlisted:
                return rulebook.decide_remembered(client, target, class_).verdict is not Verdict.DENY
            return rulebook.decide(client, target).verdict is not Verdict.DENY

        return self._is_sure(is_allowed, f"{target.kind} {target.own} on {target.server} for {client.principal}")

    def may_see(self, call: Call, server: str) -> bool:
        rulebook, client = self.in_force.rulebook, call.client
        if self.blocks.has_server(server) or self.blocks.has_principal(client.principal):
            return False
        return self._is_sure(lambda: rulebook.may_see(client, server), f"{server} for {client.principal}")

    def enter(self, client: Client, toolset: str) -> str | None:
        """The toolset that a client has where it names this one, or none (""); None for one that is not there for it.
        """
        toolsets = self._in_force.rulebook.toolsets
        if not self.has_toolsets or toolsets is None:
            return None if toolset else ""
        try:
            return toolsets.enter(client, toolset)
        except ValueError:  # a principal that is none
            return None

    def search_of(self, client: Client) -> Search:
        """Whether, and when, this client finds tools by a search."""
        toolsets = self._in_force.rulebook.toolsets
        return NO_SEARCH if toolsets is None else toolsets.search_of(client)

    def is_pinned(self, client: Client, target: Target) -> bool:
        toolsets = self._in_force.rulebook.toolsets
        return toolsets is not None and toolsets.is_pinned(client, target)

    def check_arguments(self, target: Target, arguments: Json | None) -> Violation | None:
        return self._in_force.rulebook.check_arguments(target, arguments)

    def explains(self) -> bool:
        return self.in_force.explains

    def revision(self) -> str:
        return self._in_force.rulebook.policy.revision

    def _decide(self, call: Call, target: Target) -> Decision:
        if self.problem:
            return _BROKEN
        rulebook = self._in_force.rulebook
        try:
            if _is_template(call, target):
                return rulebook.decide_template(call.client, target)
            return rulebook.decide(call.client, target)
        except Exception:  # noqa: BLE001 - one of the named boundaries: what cannot be decided is denied
            self._raised(f"{call.method} of {target.kind} {target.own} on {target.server} for {call.client.principal}")
            return _RAISED

    def _is_sure(self, question: Callable[[], bool], about: str) -> bool:
        try:
            return not self.problem and question()
        except Exception:  # noqa: BLE001 - one of the named boundaries
            self._raised(about)
            return False

    def _raised(self, what: str) -> None:
        self.errors += 1
        log.exception("denied: the decision failed", extra={"decision": what})

    def may_administer(self, client: Client, area: str, act: str) -> bool:
        policy = self.in_force.rulebook.policy

        def is_allowed() -> bool:
            return not self._is_barred(client) and policy.decide_admin(client, area, act).verdict is Verdict.ALLOW

        return self._is_sure(is_allowed, f"{act} {area} for {client.principal}")

    def _is_barred(self, client: Client) -> bool:
        """Whether it is blocked. Whoever runs Sluice is not: they could not unblock themselves."""
        return client.principal != "local" and self.blocks.has_principal(client.principal)

    def roles_of(self, client: Client) -> frozenset[str]:
        """Returns all roles of a client; none where the policy fails, or where it is blocked."""
        return frozenset() if self._is_barred(client) else self.roles_by_policy(client)

    def roles_by_policy(self, client: Client) -> frozenset[str]:
        """The same, blocked or not: what is judged of a client is judged on, whatever is blocked meanwhile."""
        try:
            return self.in_force.rulebook.policy.roles_of(client)
        except ValueError:  # a principal that is none
            return frozenset()

    def row_text(self, rule: str, revision: str) -> str:
        """The row that a decision by that revision names, as it is written; "" where another revision is in force."""
        policy = self.in_force.rulebook.policy
        row = policy.row_at(rule) if policy.revision == revision else None
        return "" if row is None else ", ".join((row.kind, *row.fields))

    def classify(self, target: Target) -> str:
        return self.in_force.rulebook.classify(target).name

    def check(self, now: float) -> bool:
        """Asks the question whose answer is known, and ends shadow mode and blocks in time. True if that changed
        anything."""
        before = self.problem, self.in_force
        self._take(self.blocks.at(now))
        self.problem = self._why_not()
        if self.in_force.is_shadow and self.in_force.until is not None and now >= self.in_force.until:
            policy = self.in_force.rulebook.policy.with_shadow(False)
            self.in_force = replace(self.in_force, rulebook=replace(self.in_force.rulebook, policy=policy))
            log.warning("shadow mode is over: the policy is enforced")
        if self.problem != before[0]:
            log.error(self.problem or "the policy can decide again")
        return before != (self.problem, self.in_force)

    def _why_not(self) -> str:
        if self._is_unread:
            return UNREAD
        return "" if self._can_decide() else CANNOT

    def _can_decide(self) -> bool:
        try:
            return self.in_force.rulebook.policy.probe()
        except Exception:  # noqa: BLE001 - one of the named boundaries
            return False


def _is_template(call: Call, target: Target) -> bool:
    """Something that is expanded before it is read. A resource may look like one in its list, and is none."""
    if target.kind != "res" or target.item is None or call.method == "resources/list":
        return False
    return target.item.get("uriTemplate") == target.own


class AcceptedDefinitions:
    """Whether a person accepted a definition, remembered for as long as it is the same object: it is asked at every
    call, and comparing definitions takes longer than the whole decision."""

    def __init__(self, ask: Callable[[Target], bool]) -> None:
        self.ask = ask
        self._cached = DerivedCache[dict[tuple[str, str, str], bool]](lambda definition: {}, MAX_ACCEPTED, MAX_BYTES)

    def __call__(self, target: Target) -> bool:
        if target.item is None:
            return False
        answers, key = self._cached.of(target.item), (target.server, target.kind, target.own)
        if (answer := answers.get(key)) is None:
            answer = answers[key] = self.ask(target)
        return answer

    def forget(self) -> None:
        self._cached.clear()
