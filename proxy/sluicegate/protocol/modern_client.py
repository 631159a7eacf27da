"""A modern client (2026-07-28) is at the other end: its requests in, our outcomes out.

Every request describes its sender in `_meta`, and over HTTP says method, name and revision in headers too,
so that intermediaries can route it. This file is the ladder that checks both before anything else looks.
It knows no transport: headers come as raw pairs, statuses go as numbers, and stdio has no headers at all.
Pages: 2026-07-28 basic/index#meta, basic/transports/streamable-http#server-validation, basic/versioning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from sluicegate.protocol import downgrade, input_requests_server, jsonrpc
from sluicegate.protocol.canonical_json import canonical, is_longer
from sluicegate.protocol.jsonrpc import Json, ListResponse, Notification, Request, RequestId, Response
from sluicegate.protocol.methods import CACHEABLE, LISTS, MIRRORED, MULTI_ROUND, OF_A_CALL, ROUTED
from sluicegate.protocol.mirrored_headers import decode_value
from sluicegate.protocol.model import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    MODERN,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Failure,
    InputRequired,
    Outcome,
    Result,
)
from sluicegate.protocol.parameter_names import check, is_token
from sluicegate.protocol.revisions import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    PROTOCOL_VERSION,
    REVISIONS,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    SUPPORTED,
)

Headers = Sequence[tuple[bytes, bytes]]

MAX_DESCRIPTION: Final = 16 * 1024
"""Characters of a client's capabilities, and as many of its `clientInfo`."""
TOO_LARGE: Final = f"has more than {MAX_DESCRIPTION} characters"
_MAX_NAME: Final = 128
_SHORT_KEY: Final = 256

_ROUTING: Final = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name"})
_PARAM: Final = b"mcp-param-"
_METHODS: Final = ROUTED[MODERN]
_STATUS: Final = {
    HEADER_MISMATCH: 400, MISSING_CAPABILITY: 400, UNSUPPORTED_VERSION: 400, jsonrpc.METHOD_NOT_FOUND: 404,
}  # fmt: skip


@jsonrpc.light
@dataclass(frozen=True, slots=True)
class Parsed:
    """A request in the middle's words: what `Client` and `Call` are made of. `mirrored` has the `Mcp-Param-*`
    headers, lower-cased and without that prefix; None where the transport has no headers."""

    method: str
    params: Json
    meta: Json
    revision: str
    info: Json
    capabilities: Json
    capability_key: str
    mirrored: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that is refused for its form: the HTTP status, and the JSON-RPC error for the body."""

    status: int
    response: Response


class Routing(NamedTuple):
    """What a request's headers say of it (2026-07-28 basic/transports/streamable-http): `mirrored` are its
    `Mcp-Param-*`, `problem` is that one came twice."""

    version: str | None
    method: str | None
    name: str | None
    mirrored: Mapping[str, str]
    problem: str | None


def is_modern(message: Request | Notification) -> bool:
    """Whether the body itself says so (basic/versioning): the era is decided per request."""
    meta = message.params.get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION in meta


def parse(request: Request, routing: Routing | None, is_large: bool = True) -> Parsed | Rejection:
    """The ladder: `_meta` whole, headers (None where there are none, as in a pipe) equal to the body, revision spoken,
    method known. `is_large`: it may have more than `MAX_DESCRIPTION` bytes."""
    # Copied, and what is not the call's taken out: to filter key by key takes three times as long.
    params = request.params.copy()
    envelope = params.pop("_meta", None)
    if not isinstance(envelope, dict):
        return _reject(request, jsonrpc.INVALID_PARAMS, "Invalid params: _meta is required")
    meta = envelope.copy()
    version, info = meta.pop(PROTOCOL_VERSION, None), meta.pop(CLIENT_INFO, {})
    capabilities = meta.pop(CLIENT_CAPABILITIES, None)
    problem = _check_meta(meta, version, info, capabilities)
    if problem is not None:
        return _reject(request, jsonrpc.INVALID_PARAMS, f"Invalid params: {problem}")
    if routing is not None:
        problem = _check_headers(request, version, routing)
        if problem is not None:
            return _reject(request, HEADER_MISMATCH, f"Header mismatch: {problem}")
    if version != MODERN:
        data = {"supported": list(SUPPORTED), "requested": version}
        return _reject(request, UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    if request.method not in _METHODS:
        return _reject(request, jsonrpc.METHOD_NOT_FOUND, "Method not found")
    key = capability_key(capabilities)
    if not key:
        return _reject(request, jsonrpc.INVALID_PARAMS, f"Invalid params: {CLIENT_CAPABILITIES} {TOO_LARGE}")
    if is_large and is_longer(info, MAX_DESCRIPTION):
        return _reject(request, jsonrpc.INVALID_PARAMS, f"Invalid params: {CLIENT_INFO} {TOO_LARGE}")
    if (problem := check(request.method, params)) is not None:
        return _reject(request, jsonrpc.INVALID_PARAMS, f"Invalid params: {problem}")
    if "inputResponses" in params and not input_requests_server.are_answers(params["inputResponses"]):
        return _reject(request, jsonrpc.INVALID_PARAMS, "Invalid params: inputResponses")
    params.pop("task", None)  # SEP-2663, Backward Compatibility: a wish of 2025-11-25, to be ignored
    return Parsed(
        method=request.method, params=params, meta=meta, revision=version, info=name_and_version(info),
        capabilities=capabilities, capability_key=key, mirrored=None if routing is None else routing.mirrored,
    )  # fmt: skip


def name_and_version(info: Json) -> Json:
    """The members of `clientInfo` that anybody reads. Sessions and tasks keep them alone: 16 KiB of empty lists would
    take 350 KiB of memory."""
    return {key: text[:_MAX_NAME] for key in ("name", "version") if isinstance(text := info.get(key), str)}


def _reject(request: Request, code: int, text: str, data: Any = None) -> Rejection:
    return Rejection(_STATUS.get(code, 400), _error(request.id, Failure(code, text, data)))


def capability_key(capabilities: Json) -> str:
    """Canonical text, or what stands for a long one; empty for capabilities that are too large to be kept."""
    if not capabilities:
        return "{}"
    if is_longer(capabilities, MAX_DESCRIPTION):
        return ""
    text = canonical(capabilities)
    if len(text) <= _SHORT_KEY:
        return text
    return sha256(text.encode()).hexdigest() if len(text) <= MAX_DESCRIPTION else ""


def _check_meta(meta: Json, version: Any, info: Any, capabilities: Any) -> str | None:
    """What is wrong with how a request describes its sender; `meta` is the rest of it."""
    if not isinstance(version, str):
        return f"_meta must have {PROTOCOL_VERSION}"
    if not isinstance(capabilities, dict):
        return f"_meta must have {CLIENT_CAPABILITIES}"
    if not isinstance(info, dict):
        return f"{CLIENT_INFO} must be an object"
    if "progressToken" in meta and not is_token(meta["progressToken"]):
        return "progressToken must be a string or an integer"
    return None


def routing(headers: Headers) -> Routing:
    """What the headers say of the request. The same lines mean the same, so that it can be kept."""
    routed: dict[bytes, str] = {}
    mirrored: dict[str, str] = {}
    problem: str | None = None
    for name, raw in headers:
        if name in _ROUTING:
            if name in routed:
                problem = problem or f"{name.decode()} is given twice"
            routed[name] = raw.decode("latin-1").strip(" \t")
        elif name.startswith(_PARAM):
            key = name[len(_PARAM) :].decode("latin-1")
            if key in mirrored:
                problem = problem or f"Mcp-Param-{key} is given twice"
            mirrored[key] = raw.decode("latin-1").strip(" \t")
    own = routed.get(b"mcp-name")
    return Routing(
        routed.get(b"mcp-protocol-version"), routed.get(b"mcp-method"), None if own is None else decode_value(own),
        mirrored, problem,
    )  # fmt: skip


def _check_headers(request: Request, version: str, routing: Routing) -> str | None:
    """The first disagreement between headers and body."""
    if routing.problem is not None:
        return routing.problem
    if routing.version != version:
        return "MCP-Protocol-Version is missing or does not say what _meta says"
    if routing.method != request.method:
        return "Mcp-Method is missing or does not say what the body says"
    return _check_name(request, routing.name)


def _check_name(request: Request, header: str | None) -> str | None:
    key = MIRRORED.get(request.method)
    if key is None:
        return None
    if header is None:
        return "Mcp-Name is missing"
    if header != request.params.get(key):
        return "Mcp-Name does not say what the body says"
    return None


def respond(id: RequestId, method: str, outcome: Outcome, server_info: Json) -> tuple[int, Response]:
    """HTTP status and message for an outcome. Errors that come from a handler keep 200, because clients took
    any 400 on a call for a dead server; only the statuses that the revision fixes differ."""
    if isinstance(outcome, Result):
        return 200, _complete(id, method, outcome.value, server_info)
    if isinstance(outcome, Failure):
        if outcome.code == RESOURCE_NOT_FOUND:  # server/resources#error-handling: never emitted in this revision
            outcome = replace(outcome, code=jsonrpc.INVALID_PARAMS)
        return _STATUS.get(outcome.code, 200), _error(id, outcome)
    if isinstance(outcome, InputRequired):
        if method not in MULTI_ROUND:
            return 200, _error(id, Failure(jsonrpc.INTERNAL_ERROR, f"the server asked for input during {method}"))
        return 200, Response(id, _input_required(outcome, server_info))
    meta = {**_meta_of(outcome.task), SERVER_INFO: server_info}
    return 200, Response(id, {**outcome.task, "resultType": "task", "_meta": meta})


def _complete(id: RequestId, method: str, value: Json, server_info: Json) -> Response:
    result = {**value, **added(id, method, value, server_info)}
    return ListResponse(id, result, key=LISTS[method].key) if method in LISTS else Response(id, result)


def _meta_of(value: Json) -> Json:
    """Nothing where a server has put something else in its place: what it executed is answered all the same."""
    meta = value.get("_meta")
    return meta if isinstance(meta, dict) else {}


def added(id: RequestId, method: str, value: Json, server_info: Json) -> Json:
    """What a complete result says besides the value, or in the place of what that says."""
    meta: Json = {**_meta_of(value), SERVER_INFO: server_info} if "_meta" in value else {SERVER_INFO: server_info}
    if method == "subscriptions/listen":
        meta[SUBSCRIPTION_ID] = id
    made: Json = {"resultType": "complete", "_meta": meta}
    if method in CACHEABLE:
        made |= {"ttlMs": value.get("ttlMs", 0), "cacheScope": value.get("cacheScope", "private")}
    if method in LISTS:
        key = LISTS[method].key
        made[key] = downgrade.items(method, value[key], REVISIONS[MODERN])
    return made


def _input_required(outcome: InputRequired, server_info: Json) -> Json:
    """basic/patterns/mrtr: at least one of inputRequests and requestState; an absent state stays absent."""
    result: Json = {"resultType": "input_required", "_meta": {SERVER_INFO: server_info}}
    if outcome.requests:
        result["inputRequests"] = outcome.requests
    if outcome.state is not None:
        result["requestState"] = outcome.state
    return result


def notification(note: Notification, method: str, id: RequestId) -> Notification | None:
    """What belongs to a call, as this client may see it: a listen stream carries its subscription's id on every
    message and neither progress nor log messages (basic/patterns/subscriptions)."""
    belongs_to_call = note.method in OF_A_CALL
    if method != "subscriptions/listen":
        return note if belongs_to_call else None
    if belongs_to_call:
        return None
    meta = {**note.params.get("_meta", {}), SUBSCRIPTION_ID: id}
    return Notification(note.method, {**note.params, "_meta": meta})


def _error(id: RequestId, failure: Failure) -> Response:
    error: Json = {"code": failure.code, "message": failure.message}
    if failure.data is not None:
        error["data"] = failure.data
    return Response(id, error=error)
