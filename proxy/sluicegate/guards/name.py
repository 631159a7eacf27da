"""The name guard: clients see public names and URIs, everything inside sees the server's own.

Inwards it resolves what a call is about to a `Target`; what cannot be resolved is answered as a denial is.
Outwards it makes the URIs of the answer public and says which server asks. Lists, discover and listen pass:
their names are changed where snapshots are made. It knows no server and no catalog: both come as functions.
Nothing emitted within these calls carries a URI (progress and log messages do not), so `emit` is never wrapped.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from sluicegate.catalog import uri_fields
from sluicegate.catalog.uris import Rewriting, is_clean
from sluicegate.protocol.input_forms import CONTEXT, page_of
from sluicegate.protocol.jsonrpc import Json, Malformed, without
from sluicegate.protocol.legacy_server import URL_ELICITATION_REQUIRED
from sluicegate.protocol.methods import JUDGED_BY_NAME
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    Guard,
    Handler,
    InputRequired,
    Outcome,
    Result,
    Target,
    TaskStarted,
    not_found,
    refuse,
)

Resolve = Callable[[Call], Awaitable[Target | Outcome | None]]
"""The target of a call; None for what does not exist, an outcome where more than that is to be said."""

Current = Callable[[Client], Client | None]

_AT_ONCE: Final = 0.05  # seconds

GONE: Final = "NOT EXECUTED: whoever sent this call can no longer come in."

# The members of each type of reference (2026-07-28 schema: PromptReference, ResourceTemplateReference).
_REFS: Final = {"ref/prompt": frozenset({"type", "name", "title"}), "ref/resource": frozenset({"type", "uri"})}


def name(
    resolve: Resolve, rewriting: Callable[[str], Rewriting | None],
    find: Callable[[Call], Target | None] = lambda call: None,
    begun: Callable[[Call], Outcome | None] = lambda call: None, current: Current = lambda client: client,
) -> Guard:  # fmt: skip
    """`resolve` finds the target that the public name, URI or ref of a call stands for, `find` the same where it need
    not wait, or None; `begun` gives the end of a call that has begun and whose target is gone, or None; `rewriting`
    says how a server's URIs are shown, None in transparent mode, where nothing is renamed. `current` gives a client
    with the rights of now, None for one that cannot come in any more."""

    async def guard(call: Call, inner: Handler) -> Outcome:
        # Step 6 of docs/explanation/performance.md
        field = JUDGED_BY_NAME.get(call.method)
        if field is None:
            return await inner(call)
        target: Target | Outcome | None = None
        if _names_something(call, field):
            target = find(call)
            if target is None:
                call, target = await _waited(call, resolve, current)
        if not isinstance(target, Target):
            return begun(call) or target or not_found(call.method, call.params)
        if target.is_part:  # its URI is Sluice's own, and so is that of its contents
            return await inner(replace(call, target=target))
        if call.method == "resources/read" and not is_clean(target.own):
            return not_found(call.method, call.params)
        rewrite = rewriting(target.server)
        own_call = _inwards(call, field, target, rewrite)
        return _outwards(call, own_call, await inner(own_call), target, rewrite)

    return guard


async def _waited(call: Call, resolve: Resolve, current: Current) -> tuple[Call, Target | Outcome | None]:
    """The target, and the call as its client may make it by then: the first list of a server can take seconds."""
    while True:
        began, target = monotonic(), await resolve(call)
        if monotonic() - began <= _AT_ONCE:
            return call, target
        client = current(call.client)
        if client is None:
            return call, refuse(call.method, "denied", GONE)
        if (client.roles, client.owner) == (call.client.roles, call.client.owner):
            return call, target
        call = replace(call, client=client)  # what a name stands for may depend on who says it


def _names_something(call: Call, field: str) -> bool:
    value = call.params.get(field)
    if field != "ref":
        return isinstance(value, str)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str) or value["type"] not in _REFS:
        return False
    return isinstance(value.get(_ref_field(value)), str)


def _ref_field(ref: Json) -> str:
    return "name" if ref["type"] == "ref/prompt" else "uri"


def _inwards(call: Call, field: str, target: Target, rewrite: Rewriting | None) -> Call:
    params = _own_params(call.params, field, target.own)
    if target.shape is not None and field == "name":
        given = params.get("arguments")
        call.trail.refused_argument = target.shape.refused(given)
        if target.shape.fixed and isinstance(given, dict | None):  # what is no object its server judges
            params = {**params, "arguments": target.shape.filled(given)}
    if rewrite is not None and isinstance(params.get("inputResponses"), dict):
        params = {**params, "inputResponses": uri_fields.answers(params["inputResponses"], rewrite.own)}
    # Spelled out, for every call comes through here and `replace` takes twice as long.
    return Call(call.client, call.method, params, call.meta, target, call.mirrored, call.emit, call.trail)


def _own_params(params: Json, field: str, own: str) -> Json:
    value: Any = params[field]
    if field == "taskId":  # the id of one that is known here; its target is the tool that it runs
        return params
    if field == "ref":
        # Only what this type has: with the members of both a server could read the one that was not judged.
        part = _ref_field(value)
        owned = {key: member for key, member in value.items() if key in _REFS[value["type"]]}
        return {**params, "ref": {**owned, part: own}}
    return params if value == own else {**params, field: own}


def _outwards(call: Call, own_call: Call, outcome: Outcome, target: Target, rewrite: Rewriting | None) -> Outcome:
    if isinstance(outcome, Failure) and outcome == not_found(call.method, own_call.params):
        # Said inside, in own names. Word for word what an unknown name gets, or a denial could be told from it.
        return not_found(call.method, call.params)
    if isinstance(outcome, Result) and call.method == "tools/call" and (rewrite is None or _holds_no_uri(outcome)):
        return outcome
    if call.trail.parts is not None:  # how to read an answer that Sluice keeps
        return outcome
    change = _public(call, target, rewrite)
    if isinstance(outcome, Result):
        value = uri_fields.result(call.method, outcome.value, change)
        if call.method == "tasks/get" and isinstance(requests := value.get("inputRequests"), dict):
            value = {**value, "inputRequests": _signed(requests, target.server, rewrite is None)}
        return outcome if value is outcome.value else Result(value, reason=outcome.reason)
    if isinstance(outcome, TaskStarted):
        return outcome
    if isinstance(outcome, InputRequired):
        if outcome.is_ours:  # says itself who asks, and names no URI that could be followed
            return outcome
        requests = _signed(uri_fields.asks(outcome.requests, change), target.server, rewrite is None)
        return replace(outcome, requests=requests, server=target.server)
    data = uri_fields.error_data(outcome.data, change)
    if outcome.code == URL_ELICITATION_REQUIRED and outcome.reason is None:  # a server's: it was judged before
        data = {**data, "elicitations": [_shown(one, target.server, rewrite is None) for one in data["elicitations"]]}
    return outcome if data is outcome.data else Failure(outcome.code, outcome.message, data, outcome.reason)


def _public(call: Call, target: Target, rewrite: Rewriting | None) -> uri_fields.Change:
    """How the server's URIs are shown. In transparent mode they stay, but forms and pages say there, too, whose they
    are: Sluice asks its own questions of the same client."""
    if rewrite is None:
        return lambda uri: uri
    if call.method != "resources/read":
        return rewrite.public
    # What a client asked for comes back in its own spelling: it may have used the plain URI, or a prefix on one that
    # is shown without.
    return lambda uri: call.params["uri"] if uri == target.own else rewrite.public(uri)


def _holds_no_uri(outcome: Result) -> bool:
    try:
        return not uri_fields.may_hold(outcome.text)
    except Malformed:  # who sends it will say so
        return False


def _signed(requests: Json, server: str, is_alone: bool) -> Json:
    """2026-07-28 client/elicitation: clients must show which server asks, and to a client we are the server."""
    return {key: signed(ask, server, is_alone) for key, ask in requests.items()}


def signed(ask: Any, server: str, is_alone: bool) -> Any:
    """The same for one question, also where it belongs to no call and so passes no guard. `is_alone`: in
    transparent mode. Else `thisServer` means all servers to a client, and one would read what the others have said."""
    params = ask.get("params") if isinstance(ask, dict) else None
    if not isinstance(params, dict):
        return ask
    if ask.get("method") == "sampling/createMessage" and not is_alone and "includeContext" in params:
        return {**ask, "params": without(params, CONTEXT)}
    if ask.get("method") != "elicitation/create" or not isinstance(params.get("message"), str):
        return ask
    return {**ask, "params": _shown(params, server, is_alone)}


def _shown(elicitation: Json, server: str, is_alone: bool) -> Json:
    made = {**elicitation, "message": f"[{server}] {elicitation['message']}"}
    if not is_alone and isinstance(id := elicitation.get("elicitationId"), str):
        made["elicitationId"] = page_of(server, id)
    return made
