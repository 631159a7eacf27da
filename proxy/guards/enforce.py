"""enforce: the decision on what a call is about, and then whether its mirrored headers say what its body says.

Lists, discover and listen have no target: the router judges their items one by one with the same decision, so that
what is listed and what works never differ. A denied target looks exactly like an unknown one, unless the operator
chose `on_deny: explain`; the trail has the truth either way.
"""

from collections.abc import Callable

from proxy.call import Call, Client, Decision, Failure, Guard, Handler, Outcome, Target, Verdict, not_found, refuse
from proxy.era.headers import check_mirrored

Decide = Callable[[Client, Target], Decision]


def enforce(decide: Decide, explain: bool) -> Guard:
    async def guard(call: Call, inner: Handler) -> Outcome:
        target = call.target
        if target is None:
            return await inner(call)
        call.trail.aim(target)
        decision = decide(call.client, target)
        call.trail.add(decision)
        if decision.verdict is not Verdict.ALLOW:
            return _denied(call, decision, explain)
        return _check_headers(call, target) or await inner(call)

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
