"""throttle: how many requests a client may send, of whatever kind, before anything else is looked at.

Keyed by principal: a new session, another connection or another name in `clientInfo` starts nothing anew. It stands
before names are resolved and looks at none, so that its answer can tell nothing about them.
"""

from collections.abc import Awaitable

from sluicegate.guards import settled
from sluicegate.policy.rates import Windows
from sluicegate.protocol.model import Call, Guard, Handler, Outcome, refuse


def throttle(windows: Windows) -> Guard:
    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        wait = windows.hit(call.client.principal)
        if wait and not _is_our_round(call):
            what = "the call waits on" if "requestState" in call.params else "this one was not executed"
            text = f"Too many requests, {what}: {windows.describe(wait)}."
            return settled(refuse(call.method, "rate_limited", text))
        return inner(call)

    return guard


def _is_our_round(call: Call) -> bool:
    """A legacy client sent one request, and an answer to a question. The rounds between them are made here."""
    return call.client.era == "legacy" and "requestState" in call.params
