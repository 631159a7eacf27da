"""record: one closing line for every call, refused and cancelled ones included.

The line goes to the developers' log: refusals at info, so that an operator sees them, the rest at debug.
"""

import logging

from proxy.call import Call, Failure, Guard, Handler, Outcome, Verdict

log = logging.getLogger(__name__)


def record() -> Guard:
    async def guard(call: Call, inner: Handler) -> Outcome:
        outcome: Outcome | None = None
        try:
            outcome = await inner(call)
            return outcome
        finally:
            _close(call, outcome)

    return guard


def _close(call: Call, outcome: Outcome | None) -> None:
    denied = next((d for d in call.trail.decisions if d.verdict is Verdict.DENY), None)
    if denied is not None and call.trail.target is not None:
        log.info(
            "denied %s %s for %s by %s", call.method, call.trail.target.public, call.client.principal, denied.rule
        )
    elif log.isEnabledFor(logging.DEBUG):
        word = "cancelled" if outcome is None else "failed" if isinstance(outcome, Failure) else "done"
        log.debug("%s %s for %s (%s)", word, call.method, call.client.principal, call.trail.id)
