"""What the tests of approvals share: a desk with people around it, and the guard in front of a server that counts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from sluicegate.approval import record
from sluicegate.approval.eligibility import VoteRefused, VoteRequest
from sluicegate.approval.queue import ApprovalQueue, ApprovalSettings
from sluicegate.approval.record import Approval, CallBinding
from sluicegate.approval.validity import ApprovalDeps
from sluicegate.audit.redact import Redactor
from sluicegate.guards.approve import ApproveDeps, approve
from sluicegate.policy.profiles import BUILT_IN, ApprovalProfile
from sluicegate.policy.rules import Ruling
from sluicegate.policy.schemas import ArgumentSchema
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, Client, Decision, Outcome, Result, Target, Trail, Verdict
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

TOOL = Target("bank", "tool", "pay", "b__pay", {"name": "pay", "description": "Pays.", "inputSchema": {}})
ANN = Client("key:ann", ("role:dev",), "ann")
LEA, LEO = Client("key:lea", ("role:lead",), "lea"), Client("key:leo", ("role:lead",), "leo")
CAREFUL = {**BUILT_IN, "brief": ApprovalProfile("brief", "other", 1, ("role:lead",), expires=5.0)}


def bind(*args: Any) -> CallBinding:
    work = record.bind(*args)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Town:
    """Everybody and everything around a desk. `told` is what the audit log got, in order with what took effect."""

    store: Store = field(default_factory=MemoryStore)
    profile: str = "one-of-leads"
    hold_for: float = 0.0
    per_client: int = 20
    how: Literal["form", "url", ""] = ""
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.people = {one.principal: one for one in (ANN, LEA, LEO)}
        self.told: list[Json] = []
        self.tokens: dict[str, float] = {}
        self.review = "accepted"
        self.identity = "pay-1"  # of the server
        self.class_ = "write"
        self.may_call = True
        self.keeps = True
        self.policy = "rev1"
        self.rule = "policy.csv:7"
        self.verdict = Verdict.ASK
        self.argument_rule: ArgumentSchema | None = None
        self.target: Target | None = TOOL
        self.seen: list[Call] = []
        self.progress: list[Notification] = []
        self.outcomes: list[Outcome] = [Result({"content": []})]
        self.intents: list[Json | None] = []
        self.desk = self.new_desk()

    def new_desk(self) -> ApprovalQueue:
        """Another process on the same store."""
        settings = ApprovalSettings(self.hold_for, CAREFUL, self.per_client)
        return ApprovalQueue(self.store, settings, self.world(), self.clock)

    def world(self) -> ApprovalDeps:
        async def tell(fields: Json) -> bool:
            if self.keeps:
                self.told.append(fields)
            return self.keeps

        return ApprovalDeps(
            roles_of=lambda who: frozenset(who.roles),
            client_of=lambda principal, roles, is_operator: self.people.get(principal),
            is_gone=lambda principal: principal not in self.people,
            token_end=lambda principal, roles: self.tokens.get(principal),
            revision=lambda: self.policy,
            tell=tell,
            identity_of=lambda server: self.identity,
            may_call=lambda binding, target: self.may_call,
        )

    def ruling(self) -> Decision:
        return Ruling(self.verdict, self.rule, "because", "write", self.profile if self.verdict is Verdict.ASK else "")

    def means(self, page: Callable[[Approval], str] = lambda approval: "") -> ApproveDeps:
        async def renew(call: Call, target: Target) -> Target | None:
            return self.target

        return ApproveDeps(
            decide=lambda call, target: self.ruling(),
            check_arguments=lambda target, arguments: self.argument_rule and self.argument_rule.check(arguments or {}),
            renew=renew,
            current=lambda client: self.people.get(client.principal, client),
            classify=lambda target: self.class_,
            review=lambda target: self.review,
            elicits=lambda client: self.how,
            page_url=page,
            command=lambda words, approval: f"sluice {words} {approval.id}",
            redactor=Redactor(b"k" * 32),
        )

    async def server(self, call: Call) -> Outcome:
        """Behind the guard: redeems as `commit` does, and counts."""
        approval_use = call.trail.approval_use
        self.intents.append(None if approval_use is None else approval_use.note)
        if approval_use is not None and not await approval_use.redeem():
            return Result({"isError": True, "lost": True})
        self.seen.append(call)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def call(self, who: Client = ANN, trail: Trail | None = None, **arguments: Any) -> Call:
        async def emit(notification: Notification) -> None:
            self.progress.append(notification)

        trail = trail or Trail("c1")
        trail.add(self.ruling())
        params = {"name": "pay", "arguments": arguments}
        return Call(who, "tools/call", params, {}, self.target, emit=emit, trail=trail)

    async def run(self, call: Call | None = None, desk: ApprovalQueue | None = None, **arguments: Any) -> Outcome:
        return await approve(desk or self.desk, self.means())(call or self.call(**arguments), self.server)

    async def pending(self, **arguments: Any) -> Approval:
        """The approval that such a call waits for."""
        outcome = await self.run(**arguments)
        assert reason(outcome) == "approval_pending", outcome
        return await self.get(about(outcome)["id"])

    async def get(self, id: str) -> Approval:
        found = await self.desk.get(id)
        assert found is not None
        return found

    async def decide(
        self, approval: Approval, who: Client = LEA, word: Literal["approve", "deny"] = "approve", **ballot: Any
    ) -> Approval | VoteRefused:
        seen = {"seen": approval.binding.digest} | ballot
        return await self.desk.decide(approval.id, who, VoteRequest(word, **seen), "api")


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Result), outcome
    return str(outcome.value.get("_meta", {}).get("dev.sluice/reason", ""))


def about(outcome: Outcome) -> Json:
    assert isinstance(outcome, Result), outcome
    return dict(outcome.value["_meta"]["dev.sluice/approval"])


def text(outcome: Outcome) -> str:
    assert isinstance(outcome, Result), outcome
    return str(outcome.value["content"][0]["text"])
