"""quota: how often one client may call one tool.

It stands behind the decision, so that a hidden tool never answers with a limit. A later round of a call that was
counted is the same call: the seal has proved that, `approve` refuses an answer whose approval is over, and `commit`
lets each round through once.
"""

from collections.abc import Awaitable

from sluicegate.guards import settled
from sluicegate.policy.rates import Windows
from sluicegate.protocol.model import Call, Guard, Handler, Outcome, Target, refuse


def quota(windows: Windows) -> Guard:
    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        target = call.target
        if call.method != "tools/call" or target is None or call.trail.round is not None:
            return inner(call)
        wait = windows.hit((call.client.principal, target.server, _name(target)))
        if wait:
            text = f"Too many calls of {target.public}, this one was not executed: {windows.describe(wait)}."
            return settled(refuse(call.method, "rate_limited", text))
        return inner(call)

    return guard


def _name(target: Target) -> str | None:
    """Names that no server listed are the client's own inventions, and share one window."""
    return target.own if target.item is not None else None
