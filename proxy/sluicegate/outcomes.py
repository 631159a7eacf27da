"""How a call ended: one classifier, by which the audit log, metrics and traces say the same.

It goes by types and by what Sluice itself decided. No text that a peer wrote is looked at. Pure.
"""

from typing import Final, NamedTuple, get_args

from sluicegate.protocol.jsonrpc import INVALID_PARAMS
from sluicegate.protocol.model import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Call,
    Failure,
    InputRequired,
    Outcome,
    Reason,
    Result,
    Verdict,
    not_found,
)

OUTCOMES: Final = ("ok", "tool_error", "protocol_error", "denied", "waiting", "timeout", "cancelled", "unknown")

ENDINGS: Final = frozenset({*OUTCOMES, *get_args(Reason), "input_required", "task", "not_found", "interrupted"})
"""Every outcome and reason that stands in the audit log."""


class Ending(NamedTuple):
    """`outcome` is one of OUTCOMES. `reason` says it finer: a `Reason`, or `input_required`, `task`, `not_found`, or
    nothing. `code` is the JSON-RPC error code, None where there is no error."""

    outcome: str
    reason: str = ""
    code: int | None = None


# Reasons whose outcome is not a denial by Sluice.
_BY_REASON: Final[dict[Reason, str]] = {
    "timeout": "timeout", "outcome_unknown": "unknown", "server_unavailable": "tool_error",
    "result_too_large": "tool_error", "result_withheld": "tool_error", "approval_pending": "waiting",
    "login_required": "waiting",
}  # fmt: skip
_WORDS: Final = {"input_required": "ok", "task": "ok", "not_found": "unknown"}
# JSON-RPC's own, and those of MCP's revisions: a server can answer with any number, but it cannot make series of them.
_CODES: Final = frozenset({
    -32700, -32600, -32601, -32602, -32603, -32042, RESOURCE_NOT_FOUND, HEADER_MISMATCH, MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
})  # fmt: skip
LABELS: Final = frozenset({"ok", "tool_error", "protocol_error", "cancelled", *get_args(Reason), *_WORDS.values()})
"""Every first word that `label` gives."""
_OK: Final = Ending("ok")
_CANCELLED: Final = Ending("cancelled")
_TOOL_ERROR: Final = Ending("tool_error")
_INPUT_REQUIRED: Final = Ending("ok", "input_required")
_TASK: Final = Ending("ok", "task")
_OK_LABELS: Final = ("ok", "")


def classify(outcome: Outcome | None, call: Call) -> Ending:
    """How a call ended; None is a cancelled one."""
    if isinstance(outcome, Result):
        if outcome.reason is not None:
            return Ending(_BY_REASON.get(outcome.reason, "denied"), outcome.reason)
        return _TOOL_ERROR if outcome.value.get("isError") is True else _OK
    if isinstance(outcome, Failure):
        return _failed(outcome, call)
    if outcome is None:
        return _CANCELLED
    return _INPUT_REQUIRED if isinstance(outcome, InputRequired) else _TASK


def _failed(failure: Failure, call: Call) -> Ending:
    code, reason = failure.code, failure.reason
    if reason is not None:
        return Ending(_BY_REASON.get(reason, "denied"), reason, code)
    decisions = call.trail.decisions
    if code == INVALID_PARAMS and decisions and decisions[-1].verdict is Verdict.DENY:
        return Ending("denied", "denied", code)  # to the client it looks unknown; here the truth is told
    if call.trail.target is None and failure == not_found(call.method, call.params):
        return Ending("protocol_error", "not_found", code)
    return Ending("protocol_error", "", code)


def label(outcome: Outcome | None, call: Call) -> tuple[str, str]:
    """The same in the words of the metrics: `outcome` of `sluice_calls_total`, and the JSON-RPC error code, which is
    empty where there is no error."""
    ending = classify(outcome, call)
    if ending is _OK:
        return _OK_LABELS
    word = _WORDS.get(ending.reason, ending.reason) or ending.outcome
    code = ending.code
    return word, "" if code is None else str(code) if code in _CODES else "_other"
