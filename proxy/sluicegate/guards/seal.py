"""seal: the envelope around a server's `requestState`, which travels through the client and is hostile on return.

Outwards an `InputRequired` leaves with a state of ours in which the server's own state is sealed, together with
everything the retry must match, what was asked, and the approval that it hangs on, if any. Inwards that state is opened
and the server gets its own back, byte for byte, with the answers that it asked for.
Whatever does not fit is an error, never a fresh start (2026-07-28 basic/patterns/mrtr#security-considerations).
A sealed state also proves that the call has begun. However it ends where its server is not reached again, nothing
proves that it was not executed. Where a rule keeps the rest from its server, the server is told that there is none.
A retry without a state cannot be ours and passes as it is: a modern server asks again.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

from sluicegate.protocol import input_requests_server
from sluicegate.protocol.canonical_json import hashed
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json
from sluicegate.protocol.model import (
    ROUND_SECONDS,
    ApprovalRef,
    Call,
    Failure,
    Guard,
    Handler,
    InputRequired,
    Outcome,
    OwnState,
    Result,
    Target,
    Verdict,
    refuse,
    within,
)
from sluicegate.runtime.loop_budget import LoopBudget

Seal = Callable[[str, Json, str], str]
Unseal = Callable[[str, str, str], Json | None]
"""(purpose, payload or token, what it is bound to)."""

PURPOSE: Final = "round"
MAX_ROUNDS: Final = 10
_INVALID: Final = Failure(INVALID_PARAMS, "Invalid or expired requestState")
_BEGUN: Final = "This call began in an earlier round, and may or may not have been executed."
# All other reasons say that nothing was executed, which is true of this round alone. The call still waits where it
# comes too often or a person has to approve it; a denial is told as such to the server.
_TRUE_OF_ALL_ROUNDS: Final = frozenset({
    "outcome_unknown", "timeout", "result_too_large", "result_withheld", "rate_limited", "approval_pending",
    "approval_denied",
})  # fmt: skip
_LOGIN: Final = "Its server wants a login before it goes on."
_RETRY_KEYS: Final = frozenset({"requestState", "inputResponses"})


def seal(
    seal: Seal, unseal: Unseal, judged: Callable[[Call, Outcome], Outcome],
    clock: Callable[[], float] = time.time, identity: Callable[[str], str] = str,
    abandon: Callable[[str, str], None] = lambda server, id: None,
) -> Guard:  # fmt: skip
    """`judged` gives what a client may be asked, or what it gets in place of a question; `identity` which program
    runs under a server's key. No other one gets the rest of the call. `abandon` gives up what waits at a server for
    the rest of a call, by the id of its first round."""

    async def guard(call: Call, inner: Handler) -> Outcome:
        target = call.target
        if target is None:
            return await inner(call)
        round = 0
        if "requestState" in call.params:
            envelope = _unsealed(call, unseal)
            if envelope is None or envelope["of"] != await _fingerprint(call, target):
                return _INVALID
            _resume(call, envelope)
            if not _is_good(call, envelope, clock(), identity(target.server)):
                return _unknown(call, "Nothing waits for this answer any more.") or _INVALID
            call.trail.identity = envelope["identity"]
            round = envelope["round"]
            state = envelope["state"]
            own = OwnState(state) if envelope.get("is_own") else state
            fitting = _with_answers(replace(call, params=_restored(call.params, own)), envelope.get("asked"))
            if isinstance(fitting, Failure):
                return fitting
            call = fitting
        outcome = judged(call, await inner(call))
        if call.trail.round is not None and _is_refused(call, outcome):
            abandon(target.server, call.trail.round[0])
            return _unknown(call, "It does not go on.") or outcome if isinstance(outcome, Failure) else outcome
        if not isinstance(outcome, InputRequired):
            return outcome if round == 0 else _proven(call, outcome)
        if round >= MAX_ROUNDS and not outcome.is_held:
            return Failure(INVALID_PARAMS, f"the server asked for input more than {MAX_ROUNDS} times")
        of, expires = await _fingerprint(call, target), clock() + ROUND_SECONDS
        payload = _envelope(call, target, outcome, round + 1, of, expires, identity(target.server))
        return replace(outcome, state=seal(PURPOSE, payload, _whose(call)))

    return guard


def unresolved(unseal: Unseal) -> Callable[[Call], Outcome | None]:
    """What is said of a round whose tool is there no more, as after its server was removed; None for other calls."""

    def outcome(call: Call) -> Outcome | None:
        envelope = _unsealed(call, unseal) if "requestState" in call.params else None
        if envelope is None or envelope.get("public") != call.params.get("name"):
            return None
        _resume(call, envelope)
        return _unknown(call, "Its server is not to be had any more.")

    return outcome


def _unknown(call: Call, why: str) -> Outcome | None:
    """None where nothing was executed, or it harms nobody twice."""
    if call.method != "tools/call" or not call.trail.has_begun:
        return None
    return refuse(call.method, "outcome_unknown", f"{_BEGUN} {why}")


def _is_refused(call: Call, outcome: Outcome) -> bool:
    """Whether a rule keeps this round from its server. One that was used before, or comes too fast, is none."""
    decisions = call.trail.decisions
    is_denied = bool(decisions) and decisions[-1].verdict is Verdict.DENY
    is_changed = isinstance(outcome, Result) and outcome.reason == "approval_denied"
    return not call.trail.is_sent and (is_denied or is_changed)


def _proven(call: Call, outcome: Outcome) -> Outcome:
    """That this round did not reach the server proves nothing of the rounds before it."""
    if not isinstance(outcome, Result) or outcome.reason is None or outcome.reason in _TRUE_OF_ALL_ROUNDS:
        return outcome
    text = outcome.value["content"][0]["text"].removeprefix("NOT EXECUTED").lstrip(":. ")
    return _unknown(call, _LOGIN if outcome.reason == "login_required" else text) or outcome


def _envelope(
    call: Call, target: Target, outcome: InputRequired, round: int, of: str, expires: float, identity: str
) -> Json:  # fmt: skip
    first = call.trail.round[0] if call.trail.round else call.trail.id
    payload: Json = {"id": first, "round": round, "expires": expires, "state": outcome.state, "of": of,
                     "is_own": isinstance(outcome.state, OwnState), "identity": identity,
                     "credential": call.client.credential, "public": target.public}  # fmt: skip
    if outcome.approval_ref is not None:
        payload["leave"] = asdict(outcome.approval_ref)
    # A call that is open at a legacy server ends with a bad answer, where it waits: its server is told "cancel".
    if not outcome.is_ours and not outcome.takes_errors:
        payload["asked"] = input_requests_server.methods(outcome.requests)
    return payload


def _with_answers(call: Call, asked: Json | None) -> Call | Failure:
    """The call with the answers to what was asked alone, or the error for one of another form: a server need not judge
    them (2026-07-28 basic/patterns/mrtr#security-considerations). Nothing is `asked` where others judge them."""
    answers = call.params.get("inputResponses")
    if asked is None or not isinstance(answers, dict):
        return call
    if (failure := input_requests_server.unfit(asked, answers)) is not None:
        return failure
    own_answers = {key: answers[key] for key in asked if key in answers}
    return replace(call, params={**call.params, "inputResponses": own_answers})


def _unsealed(call: Call, unseal: Unseal) -> Json | None:
    token = call.params["requestState"]
    return unseal(PURPOSE, token, _whose(call)) if isinstance(token, str) else None


def _whose(call: Call) -> str:
    return within(call.client.principal, call.client.toolset)


def _is_good(call: Call, envelope: Json, now: float, identity: str) -> bool:
    """Whether it goes on at the same server, by the same key of its client. An earlier version may not have sealed
    what either was."""
    is_same = envelope.get("identity") == identity and envelope.get("credential") == call.client.credential
    return is_same and bool(envelope.get("expires", now) > now)


def _resume(call: Call, envelope: Json) -> None:
    leave = envelope.get("leave")
    call.trail.resume(envelope["id"], envelope["round"], ApprovalRef(**leave) if leave else None)


async def _fingerprint(call: Call, target: Target) -> str:
    """What a retry must share with the call it continues: server, method, target and every parameter."""
    params = {key: value for key, value in call.params.items() if key not in _RETRY_KEYS}
    return await LoopBudget().in_pieces(hashed([target.server, call.method, target.kind, target.own, params]))


def _restored(params: Json, state: Any) -> Json:
    """The empty string is a state; None means that the server gave none, so it gets none back."""
    if state is None:
        return {key: value for key, value in params.items() if key != "requestState"}
    return {**params, "requestState": state}
