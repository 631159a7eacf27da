"""enforce: the decision on what a call is about, then whether its mirrored headers say what its body says, and
whether its arguments are those that the policy wants.

Lists, discover and listen have no target: the router judges their items one by one with the same decision, so that
what is listed and what works never differ. A denied target looks exactly like an unknown one, unless the operator
chose `on_deny: explain`; the trail has the truth either way. Where the decision is to ask a human the call passes:
that is the next guard's business.
"""

import logging
from collections.abc import Awaitable, Callable

from sluicegate.call import Call, Decision, Failure, Guard, Handler, Outcome, Target, Verdict, not_found, refuse
from sluicegate.era.headers import check_mirrored
from sluicegate.guards import settled
from sluicegate.message import Json
from sluicegate.policy.arguments import Violation
from sluicegate.policy.rules import Ruling

Decide = Callable[[Call, Target], Decision]
CheckArguments = Callable[[Target, Json | None], Violation | None]

log = logging.getLogger(__name__)


def enforce(decide: Decide, check_arguments: CheckArguments, explains: Callable[[], bool]) -> Guard:
    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        target, trail = call.target, call.trail
        if target is None:
            return inner(call)
        trail.aim(target)
        decision = decide(call, target)
        trail.add(decision)
        if decision.verdict is Verdict.DENY:
            return settled(_denied(call, decision, explains()))
        if isinstance(decision, Ruling) and decision.would_deny:
            log.info("would deny %s %s for %s by %s", call.method, target.public, call.client.principal, decision.rule)
        refusal = _check_headers(call, target) or _check_arguments(call, target, check_arguments)
        return inner(call) if refusal is None else settled(refusal)

    return guard


def _denied(call: Call, decision: Decision, explain: bool) -> Outcome:
    """In own names: the name guard says an unknown and a denied one with the same words."""
    if explain:
        return refuse(call.method, "denied", f"Denied: {decision.reason} ({decision.rule}).")
    return not_found(call.method, call.params)


def _check_headers(call: Call, target: Target) -> Failure | None:
    """`Mcp-Param-*` needs the tool's schema, so it comes after the decision: else it would tell that a tool exists."""
    if call.mirrored is None or call.method != "tools/call" or target.item is None:
        return None
    return check_mirrored(target.item, call.params.get("arguments") or {}, call.mirrored)


def _check_arguments(call: Call, target: Target, check: CheckArguments) -> Outcome | None:
    """Only for what the client may know of; the path says where, nothing repeats a value."""
    if call.method != "tools/call":
        return None
    violation = check(target, call.params.get("arguments"))
    if violation is None:
        return None
    call.trail.add(Decision(Verdict.DENY, f"arguments of {target.server}/{target.own}", str(violation)))
    return refuse(call.method, "invalid_arguments", f"Invalid arguments, not executed: {violation}.")
