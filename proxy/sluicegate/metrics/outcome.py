"""How a call ended, in one word and a code. Knows calls and outcomes, and no series."""

from typing import Final, get_args

from sluicegate.call import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    REASON,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Call,
    Failure,
    Outcome,
    Reason,
    Result,
    Verdict,
    not_found,
)

Ending = tuple[str, str]
"""The one word for it, and `rpc.response.status_code`, which is empty where there is no error."""

_OK: Final[Ending] = ("ok", "")
REASONS: Final = frozenset(get_args(Reason))
# JSON-RPC's own, and those of MCP's revisions: a server can answer with any number, but it cannot make series of them.
CODES: Final = frozenset({
    -32700, -32600, -32601, -32602, -32603, -32042, RESOURCE_NOT_FOUND, HEADER_MISMATCH, MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
})  # fmt: skip


def describe(outcome: Outcome | None, call: Call) -> Ending:
    """How a call ended; None is a cancelled one. Reasons count only if they are of ours: a server can write into
    `_meta`, but it cannot invent words."""
    if isinstance(outcome, Result):
        return _OK if outcome.value.get("isError") is not True else (_describe_error(outcome), "")
    if isinstance(outcome, Failure):
        return _describe_failure(outcome, call), str(outcome.code) if outcome.code in CODES else "_other"
    return _OK if outcome is not None else ("cancelled", "")


def _describe_error(outcome: Result) -> str:
    meta = outcome.value.get("_meta")
    return _reason(meta.get(REASON) if isinstance(meta, dict) else None) or "tool_error"


def _describe_failure(outcome: Failure, call: Call) -> str:
    reason = _reason(outcome.data.get("reason")) if isinstance(outcome.data, dict) else None
    if reason is not None:
        return reason
    if outcome != not_found(call.method, call.params):
        return "protocol_error"
    # To the client both look the same; here the truth is told.
    decisions = call.trail.decisions
    return "denied" if decisions and decisions[-1].verdict is Verdict.DENY else "unknown"


def _reason(value: object) -> str | None:
    return value if isinstance(value, str) and value in REASONS else None
