"""seal: the envelope around a server's `requestState`, which travels through the client and is hostile on return.

Outwards an `InputRequired` leaves with a state of ours in which the server's own state is sealed, together with
everything the retry must match, and the approval that it hangs on, if any. Inwards that state is opened and the server
gets its own back, byte for byte.
Whatever does not fit is an error, never a fresh start (2026-07-28 basic/patterns/mrtr#security-considerations).
A retry without a state cannot be ours and passes as it is: a modern server asks again.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json
from sluicegate.protocol.model import (
    ApprovalRef,
    Call,
    Failure,
    Guard,
    Handler,
    InputRequired,
    Outcome,
    OwnState,
    Target,
)

Seal = Callable[[str, Json, str], str]
Unseal = Callable[[str, str, str], Json | None]
"""(purpose, payload or token, what it is bound to)."""

PURPOSE: Final = "round"
MAX_ROUNDS: Final = 10
_RETRY_KEYS: Final = frozenset({"requestState", "inputResponses"})


def seal(
    seal: Seal, unseal: Unseal, judged: Callable[[Call, Outcome], Outcome], ttl: float = 600.0,
    clock: Callable[[], float] = time.time,
) -> Guard:  # fmt: skip
    """`judged` gives what a client may be asked, or what it gets in place of a question."""

    async def guard(call: Call, inner: Handler) -> Outcome:
        target = call.target
        if target is None:
            return await inner(call)
        round = 0
        if "requestState" in call.params:
            envelope = _open(call, target, unseal, clock())
            if envelope is None:
                return Failure(INVALID_PARAMS, "Invalid or expired requestState")
            round = envelope["round"]
            call.trail.resume(
                envelope["id"], round, ApprovalRef(**envelope["leave"]) if envelope.get("leave") else None
            )
            state = envelope["state"]
            own = OwnState(state) if envelope.get("is_own") else state
            call = replace(call, params=_restored(call.params, own))
        outcome = judged(call, await inner(call))
        if not isinstance(outcome, InputRequired):
            return outcome
        if round >= MAX_ROUNDS and not outcome.is_held:
            return Failure(INVALID_PARAMS, f"the server asked for input more than {MAX_ROUNDS} times")
        return replace(outcome, state=_close(call, target, outcome, round + 1, clock() + ttl, seal))

    return guard


def _close(call: Call, target: Target, outcome: InputRequired, round: int, expires: float, seal: Seal) -> str:
    first = call.trail.round[0] if call.trail.round else call.trail.id
    of = _fingerprint(call, target)
    payload: Json = {"id": first, "round": round, "expires": expires, "state": outcome.state, "of": of,
                     "is_own": isinstance(outcome.state, OwnState)}  # fmt: skip
    if outcome.approval_ref is not None:
        payload["leave"] = asdict(outcome.approval_ref)
    return seal(PURPOSE, payload, call.client.principal)


def _open(call: Call, target: Target, unseal: Unseal, now: float) -> Json | None:
    token = call.params["requestState"]
    envelope = unseal(PURPOSE, token, call.client.principal) if isinstance(token, str) else None
    if envelope is None or envelope["expires"] < now or envelope["of"] != _fingerprint(call, target):
        return None
    return envelope


def _fingerprint(call: Call, target: Target) -> str:
    """What a retry must share with the call it continues: server, method, target and every parameter."""
    params = {key: value for key, value in call.params.items() if key not in _RETRY_KEYS}
    text = json.dumps([target.server, call.method, target.kind, target.own, params], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _restored(params: Json, state: Any) -> Json:
    """The empty string is a state; None means that the server gave none, so it gets none back."""
    if state is None:
        return {key: value for key, value in params.items() if key != "requestState"}
    return {**params, "requestState": state}
