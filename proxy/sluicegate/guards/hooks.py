"""call_hooks, result_hooks: services of the operator are asked about a call, and about what a server answered.

The first stands behind the rates and before `approve`: a hook may refuse a call, or want a person asked, and changes
nothing of it. The second stands innermost: what it leaves of an answer is inspected as the server's own words are.
Later rounds of a call were asked about when it came, and keep what was said; a task that waited is asked about anew.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio.to_thread

from sluicegate.guards.enforce import Decide
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
    Decision,
    Failure,
    Guard,
    Handler,
    Outcome,
    Result,
    Target,
    Verdict,
    refuse,
)

_SHORT: Final = 64 * 1024  # bytes of a result that is redacted in the event loop
REDACTED: Final = "dev.sluice/redacted"
"""In `_meta` of a result: each hook with the JSON pointers of what it took out."""


def call_hooks(hooks: Hooks) -> Guard:
    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        target, trail = call.target, call.trail
        if target is None or call.method not in TARGET_KINDS or target.is_part:
            return inner(call)
        if trail.round is not None:
            _restore(call, hooks)
            return inner(call)
        due = hooks.due("call", call.client, target)
        return _ask(call, target, due, inner, hooks) if due else inner(call)

    return guard


async def _ask(call: Call, target: Target, due: Sequence[HookSettings], inner: Handler, hooks: Hooks) -> Outcome:
    verdicts = await hooks.about_call(call, target, due)
    ruling = combine(call.trail.decisions[-1], verdicts, hooks.profiles())
    call.trail.add(ruling)
    if ruling.verdict is Verdict.DENY:
        return refuse(call.method, "denied", f"NOT EXECUTED: {ruling.reason}.")
    return await inner(call)


def _restore(call: Call, hooks: Hooks) -> None:
    """The approval that this round goes on with was asked for by a hook. That stands in the round's sealed state."""
    ref = call.trail.approval_ref
    name = "" if ref is None else hook_of(ref.rule)
    if ref is not None and name and hooks.is_known(name):
        verdict = HookVerdict(name, "call", "ask", profile=ref.profile)
        call.trail.add(combine(call.trail.decisions[-1], (verdict,), hooks.profiles()))


def with_hooks(hooks: Hooks, decide: Decide) -> Decide:
    """The decision as it is now, together with what hooks have said of this call: what `approve` decides again by."""

    def again(call: Call, target: Target) -> Decision:
        decision, verdicts = decide(call, target), verdicts_of(call.trail.decisions)
        return combine(decision, verdicts, hooks.profiles()) if verdicts else decision

    return again


def result_hooks(hooks: Hooks) -> Guard:
    """Judges results, errors of servers, and the results that a task's state carries."""

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
    except Malformed:  # JSON cannot say it: who would send it says so
        return outcome


async def _judged(
    call: Call, target: Target, due: Sequence[HookSettings], hooks: Hooks, outcome: Outcome
) -> Outcome:  # fmt: skip
    if isinstance(outcome, Result) and outcome.reason is None:
        value, inside_task = outcome.value, None
        if call.method in ABOUT_A_TASK and isinstance(inside := value.get("result"), dict):
            value, inside_task = inside, value
        elif call.method in ABOUT_A_TASK and call.method != "tasks/result":
            return outcome
        text = outcome.text if inside_task is None else await anyio.to_thread.run_sync(dump, value)
        judged = await _result(call, target, due, hooks, value, text)
        if not isinstance(judged, dict):
            return judged
        if judged is value:
            return outcome
        return Result(judged if inside_task is None else {**inside_task, "result": judged})
    if isinstance(outcome, Failure) and outcome.reason is None:
        value = {"error": {"code": outcome.code, "message": outcome.message, "data": outcome.data}}
        judged = await _result(call, target, due, hooks, value, await anyio.to_thread.run_sync(dump, value))
        if not isinstance(judged, dict):
            return judged
        error = judged["error"]
        return replace(outcome, message=str(error["message"]), data=error["data"])
    return outcome


async def _result(
    call: Call, target: Target, due: Sequence[HookSettings], hooks: Hooks, value: Json, text: bytes
) -> Json | Outcome:
    """What is left of it; the refusal where it is withheld."""
    verdicts = await hooks.about_result(call, target, due, value, text)
    left, marks = value, dict[str, list[str]]()
    said = list(verdicts)
    for at, verdict in enumerate(verdicts):
        if verdict.word != "redact":
            continue
        try:
            work = partial(messages.redacted, left, verdict)
            left = work() if len(text) <= _SHORT else await anyio.to_thread.run_sync(work)
            marks[verdict.hook] = list(verdict.pointers)
        except NoVerdict as error:  # what it wanted gone is not known: then nothing of it may pass
            said[at] = replace(verdict, word="withhold", reason=str(error))
    _record(call, tuple(said))
    refusing = next((one for one in said if one.refuses), None)
    if refusing is not None:
        return refuse(call.method, "result_withheld", f"This was executed, but its answer is withheld: {refusing}.")
    if not marks:
        return value
    if "error" not in value or "content" in value:
        left = union_members.result("tools/call" if call.method in ABOUT_A_TASK else call.method, left)
    meta = left.get("_meta")
    return {**left, "_meta": {**(meta if isinstance(meta, dict) else {}), REDACTED: marks}}


def _record(call: Call, verdicts: tuple[HookVerdict, ...]) -> None:
    decisions = call.trail.decisions
    if decisions:
        call.trail.add(noted(decisions[-1], (*verdicts_of(decisions), *verdicts)))


