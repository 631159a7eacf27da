"""approve: a call that the policy wants a human to agree to waits here, and passes with what they said, once.

It stands behind the decision, which says what to ask for, and before anything that reaches a server. Who asked is
asked themselves where the profile says so and their client can show a question; else the call is held for a while and
then answered as pending, and the same call again goes on with the same approval. What was decided is decided again
before it is used. All other calls pass it without a wait.
"""

import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import anyio

from sluicegate.approval import messages, presentation
from sluicegate.approval.eligibility import VoteRefused
from sluicegate.approval.grants import Grant
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import FINISHED, Approval, CallBinding, bind
from sluicegate.approval.validity import GONE
from sluicegate.audit.redact import Redactor
from sluicegate.guards.approval_tasks import ApprovalTasks
from sluicegate.guards.enforce import CheckArguments, refused_arguments
from sluicegate.policy.hooked import hook_of
from sluicegate.policy.profiles import ApprovalProfile
from sluicegate.policy.rules import Ruling
from sluicegate.protocol.input_forms import InputRefusal
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import (
    ApprovalRef,
    ApprovalUse,
    Call,
    Client,
    Decision,
    Guard,
    Handler,
    InputRequired,
    Outcome,
    Target,
    Verdict,
    not_found,
    refuse,
)
from sluicegate.protocol.reserved_keys import defined
from sluicegate.runtime.loop_budget import LoopBudget

PROGRESS_EVERY: Final = 5.0
# So that whatever a server counts afterwards is more.
_STEP: Final = 1e-6

_RESHAPED: Final = "NOT EXECUTED: how this tool is called has changed meanwhile. List the tools, and call it again."
_USED: Final = "The approval {} was used: this call has been executed, or may have been. Look before you make it anew."
CHANGED: Final = "NOT EXECUTED any further: what the policy asks for has changed since this call began. Call again."


Renew = Callable[[Call, Target], Awaitable[Target | None]]
"""(call, target) -> that target as it is by now; None where it is not there, or is refused."""


@dataclass(frozen=True, slots=True)
class ApproveDeps:
    """What the guard asks others: `decide`, `check_arguments` and `renew` before an approval is used, `current` for a
    client's rights as they are now (None: it cannot come in), `review` for what people have said of the tool's
    definition, `elicits` for how a client can show a question, `page_url` for one where that is by a link, `command`
    for how a person types one about an approval."""

    decide: Callable[[Call, Target], Decision]
    check_arguments: CheckArguments
    renew: Renew
    current: Callable[[Client], Client | None]
    classify: Callable[[Target], str]
    review: Callable[[Target], str]
    elicits: Callable[[Client], Literal["form", "url", ""]]
    page_url: Callable[[Approval], str]
    command: Callable[[str, Approval], str]
    redactor: Redactor


def approve(
    queue: ApprovalQueue, deps: ApproveDeps, approval_tasks: ApprovalTasks | None = None, is_task: bool = False
) -> Guard:
    """`approval_tasks` takes calls whose clients are answered later. `is_task`: those are the ones that come here, and
    wait as long as their approvals do."""

    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        trail = call.trail
        decisions = trail.decisions
        if call.target is None or not decisions:
            return inner(call)
        if decisions[-1].verdict is not Verdict.ASK:
            # A call with a reference was asked about, and the policy has come to need nobody meanwhile.
            return inner(call if trail.approval_ref is None else _without_answers(call))
        return _ApprovalFlow(queue, deps, inner, call, call.target, decisions[-1], approval_tasks, is_task).handle()

    return guard


def _without_answers(call: Call) -> Call:
    """Answers that no server asked for: to our own question, or to none. Nobody agreed to them."""
    asked = call.trail.approval_ref
    if asked is not None and (not asked.key or asked.is_login):
        return call
    return replace(call, params={name: value for name, value in call.params.items() if name != "inputResponses"})


class _ApprovalFlow:
    """One call that needs a human."""

    def __init__(
        self, queue: ApprovalQueue, deps: ApproveDeps, inner: Handler, call: Call, target: Target, decision: Decision,
        approval_tasks: ApprovalTasks | None, is_task: bool,
    ) -> None:  # fmt: skip
        self.queue, self.deps, self.inner = queue, deps, inner
        self.approval_tasks, self.is_task = approval_tasks, is_task
        self.answers: Json = call.params.get("inputResponses") or {}
        self.call, self.target, self.decision = _without_answers(call), target, decision
        self.until = math.inf if is_task else time.monotonic() + queue.settings.hold_for

    def terms(self) -> ApprovalProfile | None:
        return self.queue.settings.profiles.get(self.decision.profile) if isinstance(self.decision, Ruling) else None

    async def binding(self, terms: ApprovalProfile) -> CallBinding:
        call = self.call
        identity = self.queue.identity_of(self.target.server)
        rule, class_ = self.decision.rule, self.deps.classify(self.target)
        work = bind(call.client, call.method, self.target, call.params, rule, terms, identity, class_)
        return replace(await LoopBudget().in_pieces(work), setup=self.queue.setup_of(self.target.server))

    def refuse(self, text: str) -> Outcome:
        return refuse(self.call.method, "approval_denied", f"NOT EXECUTED: {text}")

    async def handle(self) -> Outcome:
        trail, terms = self.call.trail, self.terms()
        if terms is None and trail.has_begun:
            return refuse(self.call.method, "approval_denied", CHANGED)
        if terms is None:
            return self.refuse(f"{self.target.public} needs an approval of which nothing is known.")
        binding = await self.binding(terms)
        if trail.has_begun:
            return await self._go_on(binding, trail.approval_ref)
        grant = self.queue.find_grant(binding, self.call.client)
        # An approval of this very call is used up first: it must not outlive its grant.
        if grant is not None and not await self.queue.is_approved(binding):
            return await self._let_through(_ByGrant(self.queue, grant), grant.approval, binding)
        if self.approval_tasks is not None and "task" in self.call.params:
            unfit = await self.approval_tasks.unfit(self.call, self.target)
            if unfit is not None:
                return unfit
        return await self._ask(binding)

    async def _ask(self, binding: CallBinding) -> Outcome:
        """Round and round until there is an answer: what was waited for may have become another binding."""
        answered = self._answered()
        if answered is not None and (spent := await self._spent(answered, binding)) is not None:
            return spent
        while True:
            approval = await self.queue.ask(self.call, binding, self._shown)
            if isinstance(approval, VoteRefused):
                return self._cannot_ask(approval)
            if answered is not None and approval.id != answered.id:  # used while this one looked
                return self._used(answered.id)
            self.queue.keep_whole(approval, presentation.arguments_of(self.call))
            if approval.is_waiting and (asked := await self._question(approval)) is not None:
                return asked
            if approval.is_waiting and (task := await self._as_task(approval)) is not None:
                return task
            approval = await self._hold(approval)
            if approval.state != "approved":
                return self._not_approved(approval)
            settled = await self._decide_again(approval)
            if settled is not None:
                return settled
            terms = self.terms()
            if terms is None:
                return self.refuse(f"{self.target.public} needs an approval of which nothing is known.")
            again = await self.binding(terms)
            if again == approval.binding:
                return await self._use(approval)
            await self.queue.end(approval.id, "superseded")
            if answered is not None:
                return refuse(self.call.method, "approval_denied", CHANGED)
            binding = again

    def _answered(self) -> ApprovalRef | None:
        """Our own question that this round answers."""
        asked = self.call.trail.approval_ref
        return asked if asked is not None and asked.is_question else None

    async def _spent(self, answered: ApprovalRef, binding: CallBinding) -> Outcome | None:
        """How a round ends whose approval is over. Rates count a call and its rounds once: a round that is sent again
        and got a new question would be a call that nothing counted."""
        if (answered.digest, answered.rule, answered.profile) != (binding.digest, binding.rule, binding.terms.name):
            return refuse(self.call.method, "approval_denied", CHANGED)
        asked = await self.queue.get(answered.id)
        if asked is None or asked.state == "consumed":
            return self._used(answered.id)
        return self._not_approved(asked) if asked.state in FINISHED else None

    def _used(self, id: str) -> Outcome:
        return refuse(self.call.method, "outcome_unknown", _USED.format(id))

    def _shown(self) -> Json:
        return presentation.take(self.call, self.deps.redactor, self.deps.review(self.target))

    def _cannot_ask(self, why: VoteRefused) -> Outcome:
        reason: Any = "audit_unavailable" if why.status == 503 else "rate_limited"
        return refuse(self.call.method, reason, f"NOT EXECUTED: it needs an approval, and {why.text}.")

    def _not_approved(self, approval: Approval) -> Outcome:
        method = self.call.method
        if approval.state == "consumed" and self._answered() is not None:  # the same round, sent twice
            return self._used(approval.id)
        if approval.is_waiting:
            text = messages.pending(approval, self.deps.command("approve", approval))
            return messages.answer(method, "approval_pending", text, approval)
        if approval.state == "expired":
            return messages.answer(method, "approval_expired", messages.expired(approval), approval)
        text = messages.denied(approval) if approval.state == "denied" else messages.ended(approval)
        return messages.answer(method, "approval_denied", text, approval)

    async def _question(self, approval: Approval) -> Outcome | None:
        """The question to put, or how the call ends; None where it is for others to decide, or decided now."""
        terms, asked = approval.binding.terms, self.call.trail.approval_ref
        is_theirs = terms.tier == "self" and "elicitation" in terms.via and not self.is_task
        how = self.deps.elicits(self.call.client) if is_theirs else ""
        if not how or (how == "url" and not self.deps.page_url(approval)):
            return None
        answer = self.answers.get(asked.key) if asked is not None and asked.id == approval.id else None
        if asked is None or answer is None:
            return await self._put(approval, how)
        self.answers = {}
        if isinstance(answer, InputRefusal):  # it could not be put: others may decide, as where nobody can be asked
            return None
        if how == "url":
            is_accepted = isinstance(answer, dict) and answer.get("action") == "accept"
            return None if is_accepted else await self._closed(approval)
        vote = messages.read_vote(approval, answer)
        if vote is None:
            return await self._closed(approval)
        decided = await self.queue.decide(approval.id, self.call.client, vote, "elicitation")
        if not isinstance(decided, VoteRefused):
            return None
        if decided.status == 503:
            return self._cannot_ask(decided)
        # Decided elsewhere meanwhile, that counts; but a no that is said here is one, whatever was said there.
        return None if decided.status == 409 and vote.word == "approve" else await self._closed(approval)

    async def _put(self, approval: Approval, how: str) -> Outcome:
        details = await self.queue.book.shown(approval.id)
        show = self.deps.command("approvals show", approval)
        url = how == "url" and self.deps.page_url(approval)
        ask = messages.visit(approval, details, show, url) if url else messages.form(approval, details, show)
        binding, key = approval.binding, f"approve-{secrets.token_hex(8)}"
        approval_ref = ApprovalRef(approval.id, binding.digest, binding.rule, binding.terms.name, key)
        return InputRequired({key: ask}, approval_ref=approval_ref)

    async def _closed(self, approval: Approval) -> Outcome:
        """Answers a call whose question was closed without a choice."""
        by, why = self.call.client.principal, "the question was closed without a yes"
        ended = await self.queue.end(approval.id, "cancelled", by, why, "elicitation")
        return self._not_approved(ended or approval)

    async def _as_task(self, approval: Approval) -> Outcome | None:
        return None if self.approval_tasks is None else await self.approval_tasks.hold(self.call, self.target, approval)

    async def _hold(self, approval: Approval) -> Approval:
        left = self.until - time.monotonic()
        if not approval.is_waiting or left <= 0:
            return await self.queue.get(approval.id) or approval
        self.call.trail.awaits = approval.id
        async with anyio.create_task_group() as group:
            if "progressToken" in self.call.meta:
                group.start_soon(self._tell_progress, approval)
            started = time.monotonic()
            held = await self.queue.wait(approval, left, self.is_task)
            self.call.trail.wait_seconds += time.monotonic() - started
            group.cancel_scope.cancel()
        return held

    async def _tell_progress(self, approval: Approval) -> None:
        """So that a client whose patience is renewed by progress stays (2026-07-28 basic/patterns/progress)."""
        token, terms = self.call.meta["progressToken"], approval.binding.terms
        text = f"waiting for approval {approval.id} by {terms.describe()}"
        meta = {messages.APPROVAL: messages.about(approval)}  # no server may write it: the text alone could be its own
        for count in range(1, 100_000):
            params = {"progressToken": token, "progress": count * _STEP, "message": text, "_meta": meta}
            await self.call.emit(Notification("notifications/progress", params))
            await anyio.sleep(PROGRESS_EVERY)

    async def _decide_again(self, approval: Approval) -> Outcome | None:
        """The same question as at the beginning, to the policy as it is now. None: a human is still needed."""
        client = self.deps.current(self.call.client)
        if client is None:
            ended = await self.queue.end(approval.id, "cancelled", comment=GONE)
            return self._not_approved(ended or approval)
        self.call = replace(self.call, client=client)
        target = await self.deps.renew(self.call, self.target)
        decision = None if target is None else self.deps.decide(self.call, target)
        if target is not None and decision is not None:
            if decision != self.decision:
                self.call.trail.add(decision)
            if decision.verdict is not Verdict.DENY:
                # The rules for arguments may be others, too, than when the call came.
                refusal = self._reshaped(target) or refused_arguments(self.call, target, self.deps.check_arguments)
                if refusal is not None:
                    await self.queue.end(approval.id, "superseded")
                    return refusal
            if decision.verdict is Verdict.ASK:
                self.call, self.target, self.decision = replace(self.call, target=target), target, decision
                return None
        await self.queue.end(approval.id, "superseded")
        if decision is not None and decision.verdict is Verdict.DENY and hook_of(decision.rule):
            return refuse(self.call.method, "denied", f"NOT EXECUTED: {decision.reason}.")
        if target is None or decision is None or decision.verdict is Verdict.DENY:
            return not_found(self.call.method, self.call.params)
        return await self.inner(replace(self.call, target=target))

    def _reshaped(self, target: Target) -> Outcome | None:
        """The arguments were filled in by the shape that was in force when the call came."""
        if target.shape == self.target.shape:
            return None
        return refuse(self.call.method, "invalid_arguments", _RESHAPED)

    async def _use(self, approval: Approval) -> Outcome:
        with self.queue.claim(approval.id) as is_first:
            if is_first:
                return await self._let_through(_ByApproval(self.queue, approval), approval.id, approval.binding)
        if self._answered() is not None:  # the same round, sent twice: the first one is on its way
            return self._used(approval.id)
        return self.refuse(f"{approval.id} is being used by another call. The same call again asks for another.")

    async def _go_on(self, binding: CallBinding, approval_ref: ApprovalRef | None) -> Outcome:
        """Continues a later round: an approval covers its own call to the end."""
        now = binding.digest, binding.rule, binding.terms.name
        if approval_ref is None or (approval_ref.digest, approval_ref.rule, approval_ref.profile) != now:
            return refuse(self.call.method, "approval_denied", CHANGED)
        return await self._let_through(_Covered(approval_ref), approval_ref.id, binding)

    async def _let_through(self, use: ApprovalUse, id: str, binding: CallBinding) -> Outcome:
        self.call.trail.approval_use = use
        # `commit` looks again: until there, another server may take the place of the one that was agreed to.
        self.call.trail.identity = binding.identity
        outcome = await self.inner(replace(self.call, meta=defined(self.call.meta)))
        if isinstance(outcome, InputRequired) and not outcome.is_ours:  # a login is asked for before it is used
            return replace(outcome, approval_ref=ApprovalRef(id, binding.digest, binding.rule, binding.terms.name))
        return outcome


@dataclass(frozen=True, slots=True)
class _ByApproval:
    queue: ApprovalQueue
    approval: Approval

    @property
    def note(self) -> Json:
        approval = self.approval
        fields = {"id": approval.id, "state": "consumed", "digest": approval.binding.digest}
        return {**fields, "profile": approval.binding.terms.name, "approver": _names(approval)}

    async def redeem(self) -> bool:
        return await self.queue.consume(self.approval.id)


@dataclass(frozen=True, slots=True)
class _ByGrant:
    queue: ApprovalQueue
    grant: Grant

    @property
    def note(self) -> Json:
        grant = self.grant
        fields = {"id": grant.approval, "grant": grant.id, "scope": grant.scope}
        return {**fields, "profile": grant.binding.terms.name, "approver": grant.by}

    async def redeem(self) -> bool:
        return await self.queue.use_grant(self.grant)


@dataclass(frozen=True, slots=True)
class _Covered:
    approval_ref: ApprovalRef

    @property
    def note(self) -> Json:
        return {"id": self.approval_ref.id, "digest": self.approval_ref.digest, "profile": self.approval_ref.profile}

    async def redeem(self) -> bool:
        """The first round has used the approval up; that this is a round of the same call is sealed."""
        return True


def _names(approval: Approval) -> str:
    return ", ".join(vote.principal for vote in approval.votes)
