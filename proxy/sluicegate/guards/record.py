"""record: one closing line for every call, refused and cancelled ones included.

The audit log gets it all. The developers' log gets refusals at info, so that an operator sees them, and the rest at
debug.
"""

import logging
from collections.abc import Callable

from sluicegate.audit.record import trace_of
from sluicegate.guards import Observer
from sluicegate.outcomes import classify
from sluicegate.protocol.model import Call, Outcome, Verdict

log = logging.getLogger(__name__)

Close = Callable[[Call, Outcome | None, float], None]
"""(call, outcome, seconds); an outcome of None means that the call was cancelled. Never waits."""


class RecordGuard(Observer):
    """`close` writes the audit log's record; None where there is no audit log."""

    def __init__(self, close: Close | None = None) -> None:
        self._close = close

    def begin(self, call: Call) -> None:
        """Does nothing: a call is logged once it is over."""

    def end(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        # Step 14 of docs/explanation/performance.md
        if self._close is not None:
            self._close(call, outcome, seconds)
        _tell(call, outcome)


def _tell(call: Call, outcome: Outcome | None) -> None:
    decisions, target = call.trail.decisions, call.trail.target
    if decisions and decisions[-1].verdict is Verdict.DENY and target is not None:  # nothing is decided after a denial
        where = call.method, target.public, call.client.principal, decisions[-1].rule
        log.info("denied %s %s for %s by %s", *where, extra=_ids(call))
    elif log.isEnabledFor(logging.DEBUG):
        log.debug("%s %s for %s", classify(outcome, call).outcome, call.method, call.client.principal, extra=_ids(call))


def _ids(call: Call) -> dict[str, str]:
    """By which the audit log, and a trace if there is one, have the same call."""
    trace = trace_of(call)
    return {"call": call.trail.id, **({"trace": trace} if trace else {})}
