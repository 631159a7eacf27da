"""commit: the last step before a server is reached. What may happen only once is made sure of here.

A round of a sealed retry is spent by compare-and-set: two retries of the same round, on whatever connection, reach
the server once.
"""

from collections.abc import Awaitable, Callable

from proxy.call import Call, Failure, Guard, Handler, Outcome
from proxy.message import INVALID_PARAMS

Spend = Callable[[str, float | None], Awaitable[bool]]
"""(key, seconds to remember it) -> whether this was the first time."""


def commit(spend: Spend, ttl: float = 600.0) -> Guard:
    async def guard(call: Call, inner: Handler) -> Outcome:
        round = call.trail.round
        if round is not None and not await spend(f"round:{round[0]}:{round[1]}", ttl):
            return Failure(INVALID_PARAMS, "This requestState was used before")
        return await inner(call)

    return guard
