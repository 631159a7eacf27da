"""approve: a call that the policy wants a human to agree to. Nobody can in this version, so it is refused.

It stands behind the decision, which says what to ask for, and before anything that reaches a server.
"""

from proxy.call import Call, Guard, Handler, Outcome, Verdict, refuse
from proxy.policy.rules import Ruling


def approve() -> Guard:
    async def guard(call: Call, inner: Handler) -> Outcome:
        decisions = call.trail.decisions
        if call.target is None or not decisions or decisions[-1].verdict is not Verdict.ASK:
            return await inner(call)
        decision = decisions[-1]
        profile = decision.profile if isinstance(decision, Ruling) else "a human"
        what = f"Not executed: {call.target.public} needs approval by {profile} ({decision.rule})"
        return refuse(call.method, "approval_denied", f"{what}, and nobody can approve in this version.")

    return guard
