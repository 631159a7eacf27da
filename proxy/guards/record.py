"""record: one closing line for every call, refused and cancelled ones included.

The audit log gets it all. The developers' log gets refusals at info, so that an operator sees them, and the rest at
debug.
"""

import logging
import time
from collections.abc import Callable

from proxy.call import Call, Failure, Guard, Handler, Outcome, Verdict

log = logging.getLogger(__name__)

Close = Callable[[Call, Outcome | None, float], None]
"""(call, outcome, seconds); an outcome of None means that the call was cancelled. Never waits."""


def record(close: Close | None = None, clock: Callable[[], float] = time.perf_counter) -> Guard:
    """`close` writes the audit log's record; None where there is no audit log."""

    async def guard(call: Call, inner: Handler) -> Outcome:
        started = clock()
        outcome: Outcome | None = None
        try:
            outcome = await inner(call)
            return outcome
        finally:
            if close is not None:
                close(call, outcome, clock() - started)
            _tell(call, outcome)

    return guard


def _tell(call: Call, outcome: Outcome | None) -> None:
    denied = next((d for d in call.trail.decisions if d.verdict is Verdict.DENY), None)
    if denied is not None and call.trail.target is not None:
        log.info("denied %s %s for %s by %s", call.method, call.trail.target.public, call.client.principal, denied.rule)
    elif log.isEnabledFor(logging.DEBUG):
        word = "cancelled" if outcome is None else "failed" if isinstance(outcome, Failure) else "done"
        log.debug("%s %s for %s (%s)", word, call.method, call.client.principal, call.trail.id)
