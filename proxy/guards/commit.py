"""commit: the last step before a server is reached. What may happen only once is made sure of here.

A round of a sealed retry is spent by compare-and-set: two retries of the same round, on whatever connection, reach
the server once. Then the intent is made durable: no record, no call. In this order, for a retry that was spent
before is no intent; and an intent whose call then does not take place says so in its closing record.
"""

from collections.abc import Awaitable, Callable

from proxy.call import Call, Failure, Guard, Handler, Outcome, refuse
from proxy.message import INVALID_PARAMS

Spend = Callable[[str, float | None], Awaitable[bool]]
"""(key, seconds to remember it) -> whether this was the first time."""
Intend = Callable[[Call], Awaitable[bool]]
"""Returns when the call's intent is kept: True. False: it is not, and the call must not take place."""

UNAVAILABLE = "NOT EXECUTED: the audit log cannot be written, and no call may pass unrecorded. Try again later."


def commit(spend: Spend, intend: Intend | None = None, ttl: float = 600.0) -> Guard:
    """`intend` is None where there is no audit log."""

    async def guard(call: Call, inner: Handler) -> Outcome:
        round = call.trail.round
        if round is not None and not await spend(f"round:{round[0]}:{round[1]}", ttl):
            return Failure(INVALID_PARAMS, "This requestState was used before")
        if intend is not None and not await intend(call):
            return refuse(call.method, "audit_unavailable", UNAVAILABLE)
        return await inner(call)

    return guard
