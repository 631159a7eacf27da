"""enforce: the decision on what a call is about, then whether its mirrored headers say what its body says, and
whether its arguments are those that the policy wants.

Lists, discover and listen have no target: the router judges their items one by one with the same decision, so that
what is listed and what works never differ. A denied target looks exactly like an unknown one, unless the operator
chose `on_deny: explain`; the trail has the truth either way. Where the decision is to ask a human the call passes:
that is the next guard's business.
"""

import logging
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from typing import Final

from sluicegate.catalog.uris import MAX_URI, expansions, has_dot_segment, spellings, variables
from sluicegate.guards import settled
from sluicegate.policy.rules import Ruling
from sluicegate.policy.schemas import Violation
from sluicegate.policy.toolsets import OUTSIDE
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Json, inside
from sluicegate.protocol.methods import METHODS, WITHOUT_TARGET
from sluicegate.protocol.mirrored_headers import check_mirrored
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
    not_found,
    refuse,
)
from sluicegate.runtime.loop_budget import client_budgets

Decide = Callable[[Call, Target], Decision]
CheckArguments = Callable[[Target, Json | None], Violation | None]

_MAX_VALUES: Final = 100
"""Of a completion (2026-07-28 schema, CompleteResult)."""
_NO_VARIABLE: Final = "argument, context.arguments: a name that the template or prompt does not have, or no text"

log = logging.getLogger(__name__)


def enforce(decide: Decide, check_arguments: CheckArguments, explains: Callable[[], bool]) -> Guard:
    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        # Step 7 of docs/explanation/performance.md
        target, trail = call.target, call.trail
        if target is None:
            return inner(call) if call.method in WITHOUT_TARGET else settled(_unjudged(call))
        trail.set_target(target)
        decision = decide(call, target)
        trail.add(decision)
        if decision.verdict is Verdict.DENY:
            return settled(_denied(call, decision, explains()))
        if isinstance(decision, Ruling) and decision.would_deny:
            log.info("would deny %s %s for %s by %s", call.method, target.public, call.client.principal, decision.rule)
        refusal = _check_headers(call, target) or refused_arguments(call, target, check_arguments)
        if refusal is not None:
            return settled(refusal)
        if call.method == "completion/complete":
            return _complete(call, target, inner, decide)
        return inner(call)

    return guard


def _unjudged(call: Call) -> Outcome:
    """Nobody has decided about such a call: its method does not exist, or no row says what judges it."""
    row = METHODS.get(call.method)
    if row is None or not row.is_routed:
        return Failure(METHOD_NOT_FOUND, "Method not found")
    log.error("refused %s: nothing says what judges it, or its target was not resolved", call.method)
    return refuse(call.method, "denied", f"Denied: no rule can be about {call.method}.")


async def _complete(call: Call, target: Target, inner: Handler, decide: Decide) -> Outcome:
    """Values that would make a URI which the client may not read are left out (2026-07-28 server/utilities/completion,
    Security Considerations). So a server is told of no variable that it may take for another one than is judged."""
    name, given = inside(call.params, "argument", "name"), _given(call.params.get("context"))
    names = variables(target.own) if target.kind == "res" else _arguments(target)
    if given is None or not isinstance(name, str) or (names is not None and not names.issuperset((name, *given))):
        return Failure(INVALID_PARAMS, _NO_VARIABLE)
    if target.shape is not None and not target.shape.hidden.isdisjoint((name, *given)):
        return Failure(INVALID_PARAMS, _NO_VARIABLE)
    others = {key: text for key, text in given.items() if key != name}
    if target.kind == "res" and sum(map(len, others.values())) > MAX_URI:
        return Failure(INVALID_PARAMS, f"context.arguments: more than {MAX_URI} characters")
    outcome = await inner(call)
    completion = outcome.value.get("completion") if isinstance(outcome, Result) else None
    values = inside(completion, "values")
    if target.kind != "res" or not isinstance(outcome, Result) or not isinstance(completion, dict):
        return outcome
    if not isinstance(values, list):
        return outcome
    read, spelled = replace(call, method="resources/read"), spellings(others)

    def readable() -> Generator[None, None, list[str]]:
        left = []
        for value in values[:_MAX_VALUES]:
            uris = expansions(target.own, {name: value}, spelled) if isinstance(value, str) else set[str]()
            may_read = bool(uris) and not has_dot_segment(value)  # what has one is not found
            for uri in uris:
                yield
                may_read = may_read and decide(read, Target(target.server, "res", uri, uri)).verdict is not Verdict.DENY
            if may_read:
                left.append(value)
        return left

    left = await client_budgets()[call.client.principal].large(readable())
    if left == values:
        return outcome
    shown = {key: part for key, part in completion.items() if key != "total"}  # which would count them
    return Result({**outcome.value, "completion": {**shown, "values": left}}, reason=outcome.reason)


def _given(context: object) -> dict[str, str] | None:
    """The values that other variables have already; None for what is no such thing."""
    given = inside(context, "arguments")
    if given is None:
        return {}
    is_text = isinstance(given, dict) and all(isinstance(value, str) for value in given.values())
    return given if is_text else None


def _arguments(prompt: Target) -> frozenset[str] | None:
    """The names of a prompt's arguments, where it says any."""
    shown = prompt.item if prompt.shape is None or prompt.item is None else prompt.shape.shown(prompt.item)
    listed = inside(shown, "arguments")
    return frozenset(map(str, (inside(one, "name") for one in listed))) if isinstance(listed, list) else None


def _denied(call: Call, decision: Decision, explain: bool) -> Outcome:
    """In own names: the name guard says an unknown and a denied one with the same words."""
    if explain and not decision.rule.startswith(OUTSIDE):
        return refuse(call.method, "denied", f"Denied: {decision.reason} ({decision.rule}).")
    return not_found(call.method, call.params)


def _check_headers(call: Call, target: Target) -> Failure | None:
    """`Mcp-Param-*` needs the tool's schema, so it comes after the decision: else it would tell that a tool exists."""
    if call.mirrored is None or call.method != "tools/call" or target.item is None:
        return None
    item = target.item if target.shape is None else target.shape.shown(target.item)
    return check_mirrored(item, call.params.get("arguments") or {}, call.mirrored)


def refused_arguments(call: Call, target: Target, check: CheckArguments) -> Outcome | None:
    """How a call ends whose arguments the policy does not take; None where it takes them. Only for what the client may
    know of; the path says where, nothing repeats a value."""
    if call.trail.refused_argument:
        text = f"Invalid arguments, not executed: {call.trail.refused_argument!r:.80} is not one of its arguments."
        if call.method == "tools/call":
            return refuse(call.method, "invalid_arguments", text)
        return Failure(INVALID_PARAMS, text, {"reason": "invalid_arguments"}, "invalid_arguments")
    if call.method != "tools/call":
        return None
    violation = check(target, call.params.get("arguments"))
    if violation is None:
        return None
    call.trail.add(Decision(Verdict.DENY, f"arguments of {target.server}/{target.own}", str(violation)))
    how = "not executed any further" if call.trail.has_begun else "not executed"
    return refuse(call.method, "invalid_arguments", f"Invalid arguments, {how}: {violation}.")
