"""The one word for how a call ended. Knows calls and outcomes, and no series."""

from typing import Final, get_args

from proxy.call import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    REASON,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Call,
    Failure,
    InputRequired,
    Outcome,
    Reason,
    Result,
    TaskStarted,
    Verdict,
    not_found,
)

REASONS: Final = frozenset(get_args(Reason))
# JSON-RPC's own, and those of MCP's revisions: a server can answer with any number, but it cannot make series of them.
CODES: Final = frozenset({
    -32700, -32600, -32601, -32602, -32603, -32042, RESOURCE_NOT_FOUND, HEADER_MISMATCH, MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
})  # fmt: skip


def describe(outcome: Outcome | None, call: Call) -> str:
    """The one word for how a call ended; None is a cancelled one. Reasons count only if they are of ours: a
    server can write into `_meta`, but it cannot invent words."""
    if outcome is None:
        return "cancelled"
    if isinstance(outcome, InputRequired | TaskStarted):
        return "ok"
    if isinstance(outcome, Result):
        return _describe_result(outcome) if "isError" in outcome.value else "ok"
    return _describe_failure(outcome, call)


def status_code(outcome: Outcome | None) -> str:
    """`rpc.response.status_code`: empty where there is no error."""
    if not isinstance(outcome, Failure):
        return ""
    return str(outcome.code) if outcome.code in CODES else "_other"


def _describe_result(outcome: Result) -> str:
    if outcome.value["isError"] is not True:
        return "ok"
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
