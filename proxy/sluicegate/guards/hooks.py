"""call_hooks, result_hooks: services of the operator are asked about a call, and about what a server answered.

The first stands behind the rates and before `approve`: a hook may refuse a call, or want a person asked, and changes
nothing of it. The second stands innermost: what it leaves of an answer is inspected as the server's own words are.
Rounds of a call that has begun keep what was said when it came. Before an approval is used, hooks are asked once more.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sluicegate.audit.record import is_small
from sluicegate.guards import settled
from sluicegate.guards.approve import CHANGED, Renew
from sluicegate.guards.enforce import Decide
from sluicegate.guards.inspect import TASK_STATE
from sluicegate.hooks import messages
from sluicegate.hooks.asker import Hooks
from sluicegate.hooks.messages import NoVerdict
from sluicegate.hooks.settings import HookSettings
from sluicegate.policy.hooked import HookVerdict, combine, hook_of, noted, verdicts_of
from sluicegate.protocol import union_members
from sluicegate.protocol.jsonrpc import Json, Malformed, dump
from sluicegate.protocol.methods import ABOUT_A_TASK, TARGET_KINDS
from sluicegate.protocol.model import (
    Call,
    Client,
    Decision,
    Failure,
    Guard,
    Handler,
    Outcome,
    Result,
    Target,
    TaskStarted,
    Verdict,
    refuse,
)
from sluicegate.protocol.reserved_keys import defined
from sluicegate.runtime.loop_budget import budget_of

_WITHHELD: Final = "This was executed, but its answer is withheld: {}."
_NOTHING: Final = Result({"completion": {"values": [], "hasMore": False}})
_SHORT: Final = 64 * 1024  # bytes of a result that is redacted in the event loop
REDACTED: Final = "dev.sluice/redacted"
"""In `_meta` of a result: each hook with the JSON pointers of what it took out."""


def call_hooks(hooks: Hooks) -> Guard:
    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        target, trail = call.target, call.trail
        if target is None or target.is_part:
            return inner(call)
        due = hooks.due("call", call.client, target)
        if call.method == "completion/complete":
            return settled(_NOTHING) if due or hooks.due("result", call.client, target) else inner(call)
        if due:
            call = _as_shown(call)
        if call.method not in TARGET_KINDS:
            return inner(call)
        asked = _asked_before(call, hooks)
        if not asked and (trail.has_begun or not due):
            return inner(call)
        return _ask(call, target, () if trail.has_begun else due, asked, inner, hooks)

    return guard


def _as_shown(call: Call) -> Call:
    """Without what no hook is shown: other members of `_meta`, and answers in a first round, for which no server
    asked."""
    params = call.params
    if call.trail.round is None and "inputResponses" in params and call.method in TARGET_KINDS:
        params = {name: value for name, value in params.items() if name != "inputResponses"}
    return replace(call, params=params, meta=defined(call.meta))


async def _ask(
    call: Call, target: Target, due: Sequence[HookSettings], asked: tuple[HookVerdict, ...], inner: Handler,
    hooks: Hooks,
) -> Outcome:  # fmt: skip
    verdicts = asked + (await hooks.about_call(call, target, due) if due else ())
    ruling = combine(call.trail.decisions[-1], verdicts, hooks.profiles)
    call.trail.add(ruling)
    if ruling.verdict is Verdict.DENY:
        if call.trail.has_begun:
            return refuse(call.method, "approval_denied", CHANGED)
        return refuse(call.method, "denied", f"NOT EXECUTED: {ruling.reason}.")
    return await inner(call)


def _asked_before(call: Call, hooks: Hooks) -> tuple[HookVerdict, ...]:
    """What the hook said whose approval this round goes on with, or answers: it stands in the round's sealed state."""
    ref = call.trail.approval_ref
    name = "" if ref is None or ref.is_login else hook_of(ref.rule)
    if ref is None or not hooks.is_known(name):
        return ()
    return (HookVerdict(name, "call", "ask", profile=ref.profile),)


def with_hooks(hooks: Hooks, decide: Decide) -> Decide:
    """The decision as it is now, together with what hooks have said of this call: what `approve` decides again by."""

    def again(call: Call, target: Target) -> Decision:
        decision, verdicts = decide(call, target), verdicts_of(call.trail.decisions)
        return combine(decision, verdicts, hooks.profiles) if verdicts else decision

    return again


def watching(hooks: Hooks, decide: Decide) -> Decide:
    """The decision on a subscription. What rows allow and a hook is asked about is an ask."""

    def watched(call: Call, target: Target) -> Decision:
        decision = decide(call, target)
        if call.method != "resources/read" or decision.verdict is not Verdict.ALLOW:
            return decision
        due = hooks.due("call", call.client, target)
        return Decision(Verdict.ASK, f"hook {due[0].name}", "nobody subscribes to it") if due else decision

    return watched


def asking_again(hooks: Hooks, renew: Renew) -> Renew:
    """Asks once more before an approval is used: hours may have gone by."""

    async def renewed(call: Call, target: Target) -> Target | None:
        found = await renew(call, target)
        if found is not None and (due := hooks.due("call", call.client, found)):
            call.trail.add(noted(call.trail.decisions[-1], await hooks.about_call(call, found, due)))
        return found

    return renewed


def result_hooks(hooks: Hooks) -> Guard:
    """Judges results and errors of servers, and those that a task's state carries. Of the state itself only what has a
    form of its own is left."""

    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        target = call.target
        if target is None or (call.method not in TARGET_KINDS and call.method not in ABOUT_A_TASK):
            return inner(call)
        due = hooks.due("result", call.client, target)
        return _judge(call, target, due, inner, hooks) if due else inner(call)

    return guard


async def _judge(call: Call, target: Target, due: Sequence[HookSettings], inner: Handler, hooks: Hooks) -> Outcome:
    outcome = await inner(call)
    try:
        return await _judged(call, target, due, hooks, outcome)
    except Malformed:  # JSON cannot say it, so no hook can look at it
        return refuse(call.method, "result_withheld", "This was executed, but its answer is no JSON: it is withheld.")


async def _judged(call: Call, target: Target, due: Sequence[HookSettings], hooks: Hooks, outcome: Outcome) -> Outcome:
    if isinstance(outcome, TaskStarted):
        return TaskStarted(_state(outcome.task))
    if isinstance(outcome, Result) and outcome.reason is None:
        if call.method in ABOUT_A_TASK and call.method != "tasks/result":
            return await _task(call, target, due, hooks, outcome.value)
        judged = await _result(call, target, due, hooks, outcome.value, outcome.text)
        return outcome if judged is outcome.value else Result(judged) if isinstance(judged, dict) else judged
    if isinstance(outcome, Failure) and outcome.reason is None:
        judged = await _error(
            call, target, due, hooks, {"code": outcome.code, "message": outcome.message, "data": outcome.data}
        )
        if not isinstance(judged, dict):
            return judged
        return replace(outcome, message=str(judged["message"]), data=judged["data"])
    return outcome


async def _task(call: Call, target: Target, due: Sequence[HookSettings], hooks: Hooks, task: Json) -> Outcome:
    """A task with what hooks leave of its result or error. A refusal is its result: the client follows the task."""
    shown = _state(task)
    for name, judging in (("result", _whole), ("error", _error)):
        if not isinstance(part := task.get(name), dict):
            continue
        judged = await judging(call, target, due, hooks, part)
        if isinstance(judged, dict):
            shown[name] = judged
        else:
            withheld = refuse("tools/call", "result_withheld", judged.message if isinstance(judged, Failure) else "")
            assert isinstance(withheld, Result)
            return Result({**shown, "status": "completed", "result": withheld.value}, reason=withheld.reason)
    if isinstance(requests := task.get("inputRequests"), dict):
        shown["inputRequests"] = requests  # questions to a client, which hooks do not judge
    return Result(shown)


def shown_task(hooks: Hooks) -> Callable[[Client, Target, Json], Json]:
    """What is left of a task's state that comes without an answer about it: as much as `tasks/get` shows."""
    return lambda client, target, task: _state(task) if hooks.due("result", client, target) else task


def _state(task: Json) -> Json:
    return {key: part for key, part in task.items() if key in TASK_STATE}


async def _whole(call: Call, target: Target, due: Sequence[HookSettings], hooks: Hooks, value: Json) -> Json | Outcome:
    work = partial(dump, value)
    text = work() if is_small(value) else await budget_of(target.server).apart(hooks.masking, work)
    return await _result(call, target, due, hooks, value, text)


async def _error(call: Call, target: Target, due: Sequence[HookSettings], hooks: Hooks, error: Json) -> Json | Outcome:
    judged = await _whole(call, target, due, hooks, {"error": error})
    return judged["error"] if isinstance(judged, dict) else judged


async def _result(
    call: Call, target: Target, due: Sequence[HookSettings], hooks: Hooks, value: Json, text: bytes
) -> Json | Outcome:
    """What is left of it; the refusal where it is withheld."""
    verdicts = await hooks.about_result(call, target, due, value, text)
    left, marks = value, dict[str, list[str]]()
    judged_ones = list(verdicts)
    for at, verdict in enumerate(verdicts):
        if verdict.word != "redact":
            continue
        try:
            work = partial(messages.redacted, left, verdict)
            left = work() if len(text) <= _SHORT else await budget_of(target.server).apart(hooks.masking, work)
            marks[verdict.hook] = list(verdict.pointers)
        except NoVerdict as error:  # what it wanted gone is not known: then nothing of it may pass
            judged_ones[at] = replace(verdict, word="failed", reason=str(error), pointers=(), passes=False)
    _record(call, tuple(judged_ones))
    refusing = next((one for one in judged_ones if one.refuses), None)
    if refusing is not None:
        return refuse(call.method, "result_withheld", _WITHHELD.format(refusing))
    if not marks:
        return value
    if value.keys() == {"error"}:  # as `_error` wraps one
        return left
    left = union_members.result("tools/call" if call.method in ABOUT_A_TASK else call.method, left)
    meta = left.get("_meta")
    return {**left, "_meta": {**(meta if isinstance(meta, dict) else {}), REDACTED: marks}}


def _record(call: Call, verdicts: tuple[HookVerdict, ...]) -> None:
    decisions = call.trail.decisions
    if decisions:
        call.trail.add(noted(decisions[-1], (*verdicts_of(decisions), *verdicts)))


