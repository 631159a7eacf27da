"""measure: the outermost guard. Every outcome and its seconds are counted, whatever happened inside."""

import time
from collections.abc import Callable

from proxy.call import Call, Guard, Handler, Outcome

Observe = Callable[[Call, Outcome | None, float], None]
"""(call, outcome, seconds); an outcome of None means that the call was cancelled."""


def measure(observe: Observe, clock: Callable[[], float] = time.perf_counter) -> Guard:
    async def guard(call: Call, inner: Handler) -> Outcome:
        started = clock()
        outcome: Outcome | None = None
        try:
            outcome = await inner(call)
            return outcome
        finally:
            observe(call, outcome, clock() - started)

    return guard
