"""How a call ended, for each kind of outcome: what audit and metrics say of it."""

import pytest

from sluicegate.outcomes import ENDINGS, OUTCOMES, Ending, classify, label
from sluicegate.protocol.model import (
    Call,
    Client,
    Decision,
    Failure,
    InputRequired,
    Outcome,
    Result,
    Target,
    TaskStarted,
    Verdict,
    refuse,
)

REASONS = {
    "denied": "denied", "invalid_arguments": "denied", "approval_denied": "denied", "approval_pending": "waiting",
    "approval_expired": "denied", "rate_limited": "denied", "server_unavailable": "tool_error", "timeout": "timeout",
    "result_too_large": "tool_error", "result_withheld": "tool_error", "outcome_unknown": "unknown",
    "audit_unavailable": "denied",
    "store_unavailable": "denied",
}  # fmt: skip


def call(method: str = "tools/call", *verdicts: Verdict) -> Call:
    made = Call(Client("key:a"), method, {"name": "push"})
    for verdict in verdicts:
        made.trail.add(Decision(verdict, "rule", "because"))
    return made


@pytest.mark.parametrize(("reason", "outcome"), REASONS.items())
def test_what_sluice_refused_has_its_reason(reason: str, outcome: str) -> None:
    for method, code in (("tools/call", None), ("prompts/get", -32603)):
        refused = refuse(method, reason, "text")  # type: ignore[arg-type]
        assert classify(refused, call(method)) == Ending(outcome, reason, code)
        assert label(refused, call(method)) == (reason, "" if code is None else "-32603")


@pytest.mark.parametrize(
    ("outcome", "ending", "labels"),
    [
        (Result({}), Ending("ok"), ("ok", "")), (Result({"isError": False}), Ending("ok"), ("ok", "")),
        (Result({"isError": True}), Ending("tool_error"), ("tool_error", "")),
        (Result({"isError": 1}), Ending("ok"), ("ok", "")), (None, Ending("cancelled"), ("cancelled", "")),
        (InputRequired({}), Ending("ok", "input_required"), ("ok", "")),
        (TaskStarted({}), Ending("ok", "task"), ("ok", "")),
        (Failure(-32603, "m"), Ending("protocol_error", "", -32603), ("protocol_error", "-32603")),
        (Failure(-32602, "m"), Ending("protocol_error", "", -32602), ("protocol_error", "-32602")),
        (Failure(4711, "m", {"reason": "denied"}), Ending("protocol_error", "", 4711), ("protocol_error", "_other")),
        (Failure(-32602, "Unknown tool: push"), Ending("protocol_error", "not_found", -32602), ("unknown", "-32602")),
    ],
)  # fmt: skip
def test_what_others_answered_goes_by_its_type(outcome: Outcome | None, ending: Ending, labels: object) -> None:
    assert classify(outcome, call()) == ending
    assert label(outcome, call()) == labels
    assert ending.outcome in OUTCOMES and (not ending.reason or ending.reason in ENDINGS)


def test_what_is_hidden_by_policy_is_a_denial_here() -> None:
    hidden = Failure(-32602, "Unknown tool: push")
    assert classify(hidden, call("tools/call", Verdict.ALLOW, Verdict.DENY)) == Ending("denied", "denied", -32602)
    assert label(hidden, call("tools/call", Verdict.DENY)) == ("denied", "-32602")
    for other in (call("tools/call", Verdict.DENY, Verdict.ALLOW), call("tools/call", Verdict.ASK)):
        assert classify(hidden, other) == Ending("protocol_error", "not_found", -32602)
    prompt, get = Failure(-32602, "Unknown prompt: push"), call("prompts/get")
    assert classify(prompt, get).reason == "not_found" and classify(prompt, call()).reason == ""
    get.trail.set_target(Target("s", "prompt", "push", "s__push"))
    assert classify(prompt, get).reason == ""
    assert classify(Failure(-32603, "x"), call("tools/call", Verdict.DENY)) == Ending("protocol_error", "", -32603)
