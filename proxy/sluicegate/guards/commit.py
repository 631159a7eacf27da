"""commit: the last step before a server is reached. What may happen only once is made sure of here.

A round of a sealed retry is spent by compare-and-set: two retries of the same round, on whatever connection, reach
the server once. Then the intent is made durable: no record, no call. Then the approval, if the call needed one, is
used up. In this order, for a retry that was spent before is no intent; and an intent whose call then does not take
place says so in its closing record.
"""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

from sluicegate.policy.hooked import HookedRuling
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json
from sluicegate.protocol.model import (
    ROUND_SECONDS,
    Call,
    Decision,
    Failure,
    Guard,
    Handler,
    Outcome,
    Reason,
    Trail,
    Verdict,
    refuse,
)

Identify = Callable[[str], str]
"""Which program or address has a server's key now."""
Spend = Callable[[str, float | None], Awaitable[bool]]
"""(key, seconds to remember it) -> whether this was the first time."""
Intend = Callable[[Call, Json | None], Awaitable[bool]]
"""Takes the call and what is to be said of its approval. Returns when its intent is kept: True. False: it is not, and
the call must not take place."""

USED = "NOT EXECUTED: the approval was used, or withdrawn, at this very moment. The same call again asks for another."
USED_PERHAPS = "The approval was used, or withdrawn, at this very moment: this call may have been executed."
UNAVAILABLE = "NOT EXECUTED: the audit log or its sink cannot be written, and no call passes unrecorded. Try later."
BEGUN = "This call began at a server whose place another one has taken: it may or may not have been executed."
REPLACED = "NOT EXECUTED: another server took the place of this one at this very moment. Call again."
LATER = "The audit log or its sink cannot be written, so the server did not get your answer."
WITHDRAWN = "NOT EXECUTED: whoever sent this call may not make it any more."
ENDED = "This call began in an earlier round, and may or may not have been executed. Its client may not go on with it."
_LONG: Final = 0.1
"""Seconds for an intent to be kept. In a longer wait rights may have changed."""


def commit(
    spend: Spend, intend: Intend | None = None, identity: Identify = str,
    may_still: Callable[[Call], bool] = lambda call: True,
) -> Guard:  # fmt: skip
    """`intend` is None where there is no audit log. `may_still` judges a call by the rights of now."""

    async def guard(call: Call, inner: Handler) -> Outcome:
        # Step 8 of docs/explanation/performance.md
        trail = call.trail
        round, approval_use = trail.round, trail.approval_use
        if round is not None and not await spend(f"round:{round[0]}:{round[1]}", ROUND_SECONDS):
            return Failure(INVALID_PARAMS, "This requestState was used before")
        if intend is not None:
            started = perf_counter()
            is_kept = await intend(call, None if approval_use is None else approval_use.note)
            trail.audit_seconds += perf_counter() - started
            if not is_kept:
                return refuse(call.method, "audit_unavailable", LATER if trail.has_begun else UNAVAILABLE)
        if approval_use is not None and not await approval_use.redeem():
            if trail.approval_ref is not None and trail.approval_ref.is_question:  # the same round, sent twice
                return refuse(call.method, "outcome_unknown", USED_PERHAPS)
            return refuse(call.method, "approval_denied", USED)
        # All of that took time. From here on there is no wait until the server under this key is called.
        if trail.identity is not None and call.target is not None and trail.identity != identity(call.target.server):
            if trail.has_begun:
                return refuse(call.method, "outcome_unknown", BEGUN)
            return refuse(call.method, "approval_denied", REPLACED)
        if _has_waited(trail) and not may_still(call):
            trail.add(Decision(Verdict.DENY, trail.decisions[-1].rule, "rights changed while the call waited"))
            reason: Reason = "outcome_unknown" if trail.has_begun else "denied"
            return refuse(call.method, reason, ENDED if trail.has_begun else WITHDRAWN)
        trail.is_sent = True
        return await inner(call)

    return guard


def _has_waited(trail: Trail) -> bool:
    """Whether rights may be others by now: the store or a hook was asked, or the disk or a sink took its time."""
    is_late = trail.audit_seconds > _LONG or trail.round is not None or trail.approval_use is not None
    return bool(trail.decisions) and (is_late or type(trail.decisions[-1]) is HookedRuling)
