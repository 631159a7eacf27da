"""A legacy client (2024-11-05 to 2025-11-25) is at the other end: it opened a session with `initialize`.

Its requests become the middle's, and outcomes become results that its revision knows: what a revision does
not have is left out or said in words. What needs the session's state (level, in-flight requests) is the
listener's; this file is pure.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from proxy.call import (
    HEADER_MISMATCH,
    LOG_LEVEL,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Failure,
    InputRequired,
    Outcome,
    Result,
)
from proxy.era.modern_client import Parsed, capability_key
from proxy.era.revisions import LEGACY, LISTS, META, MODERN_METHODS, NEWEST_LEGACY, REVISIONS, Revision
from proxy.message import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Json,
    Notification,
    Request,
    RequestId,
    Response,
)

# <= 2025-11-25 server/utilities/logging: before the first setLevel the server decides
DEFAULT_LEVEL: Final = "info"
_METHODS: Final = MODERN_METHODS - {"server/discover", "subscriptions/listen"}
_MODERN_ONLY_CODES: Final = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
_CAPABILITIES: Final = ("completions", "logging", "prompts", "resources", "tools", "experimental")


@dataclass(frozen=True, slots=True)
class Handshake:
    """What `initialize` settled for the life of the session."""

    revision: str
    info: Json
    capabilities: Json
    capability_key: str


def initialize(params: Json) -> Handshake | Failure:
    """basic/lifecycle#version-negotiation: the client's revision if we speak it, else our newest of this era.
    2026-07-28 is never negotiated this way."""
    version, capabilities = params.get("protocolVersion"), params.get("capabilities", {})
    info = params.get("clientInfo", {})
    if not isinstance(version, str) or not isinstance(capabilities, dict) or not isinstance(info, dict):
        return Failure(INVALID_PARAMS, "initialize needs protocolVersion, capabilities and clientInfo")
    revision = version if version in LEGACY else NEWEST_LEGACY
    return Handshake(revision, info, capabilities, capability_key(capabilities))


def initialize_result(handshake: Handshake, discovered: Outcome, server_info: Json) -> Outcome:
    """An InitializeResult from the outcome of `server/discover`."""
    if not isinstance(discovered, Result):
        return discovered if isinstance(discovered, Failure) else _cannot_ask()
    capabilities = discovered.value.get("capabilities", {})
    shown = {key: capabilities[key] for key in _CAPABILITIES if key in capabilities}
    if not REVISIONS[handshake.revision].completions:
        shown.pop("completions", None)
    value: Json = {"protocolVersion": handshake.revision, "capabilities": shown, "serverInfo": server_info}
    if discovered.value.get("instructions"):
        value["instructions"] = discovered.value["instructions"]
    return Result(value)


def parse(request: Request, revision: str, level: str | None) -> Parsed | Outcome:
    """The request in the middle's words, or the answer where no server is needed for it."""
    if request.method == "ping":
        return Result({})
    if request.method not in _METHODS:
        return Failure(METHOD_NOT_FOUND, "Method not found")
    meta = request.params.get("_meta", {})
    if not isinstance(meta, dict):
        return Failure(INVALID_PARAMS, "_meta must be an object")
    token = meta.get("progressToken", "")
    if not isinstance(token, str | int) or isinstance(token, bool):
        return Failure(INVALID_PARAMS, "progressToken must be a string or an integer")
    kept = {key: value for key, value in meta.items() if not key.startswith(META)}
    kept[LOG_LEVEL] = level or DEFAULT_LEVEL
    return Parsed(
        method=request.method,
        params={key: value for key, value in request.params.items() if key != "_meta"},
        meta=kept,
        revision=revision,
        info={},
        capabilities={},
        capability_key="{}",
        mirrored=None,
    )


# ---------------------------------------------------------------- outwards


def respond(id: RequestId, method: str, outcome: Outcome, revision: str) -> Response:
    """The response as this revision knows it."""
    if isinstance(outcome, InputRequired):
        outcome = _cannot_ask()
    if isinstance(outcome, Failure):
        return Response(id, error=_error(method, outcome))
    return Response(id, _result(method, outcome.value, REVISIONS[revision]))


def _cannot_ask() -> Failure:
    """`input_required` must never reach a legacy client, and a state of it must not be lost in silence."""
    return Failure(INTERNAL_ERROR, "the server asks for input, which cannot be relayed to a client of this revision")


def _error(method: str, failure: Failure) -> Json:
    code, message = failure.code, failure.message
    if code in _MODERN_ONLY_CODES:
        code, message = INTERNAL_ERROR, f"the server refused the relayed request: {message}"
    elif method == "resources/read" and code == INVALID_PARAMS and _names_uri(failure.data):
        code = RESOURCE_NOT_FOUND  # <= 2025-11-25 server/resources#error-handling
    error: Json = {"code": code, "message": message}
    if failure.data is not None:
        error["data"] = failure.data
    return error


def _names_uri(data: Any) -> bool:
    return isinstance(data, dict) and "uri" in data


def _result(method: str, value: Json, revision: Revision) -> Json:
    """Copy on write: most results of most revisions go out as they are."""
    if "ttlMs" in value or "cacheScope" in value:
        value = {key: part for key, part in value.items() if key not in ("ttlMs", "cacheScope")}
    if method == "tools/list":
        return {**value, "tools": [_tool(tool) for tool in value.get("tools", [])]}
    if method == "tools/call":
        return _call_result(value, revision)
    if method == "prompts/get" and not (revision.structured and revision.audio):
        messages = value.get("messages", [])
        return {**value, "messages": [{**m, "content": _content(m.get("content"), revision)} for m in messages]}
    return value


def _call_result(value: Json, revision: Revision) -> Json:
    structured = value.get("structuredContent")
    if structured is not None and not revision.any_output_schema and not isinstance(structured, dict):
        value = {**value, "structuredContent": {"result": structured}}
    if revision.structured:
        return value
    value = {key: part for key, part in value.items() if key != "structuredContent"}
    content = [_content(item, revision) for item in value.get("content", [])]
    if not content and structured is not None:
        content = [{"type": "text", "text": json.dumps(structured, ensure_ascii=False)}]
    return {**value, "content": content}


def _content(item: Any, revision: Revision) -> Any:
    """Unknown keys are tolerated by old clients, unknown content types are not: those become text."""
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "resource_link" and not revision.structured:
        return {"type": "text", "text": f"{item.get('title') or item.get('name') or 'resource'}: {item.get('uri')}"}
    if kind == "audio" and not revision.audio:
        return {"type": "text", "text": f"[audio {item.get('mimeType', '')} left out: this client cannot take it]"}
    return item


def _tool(tool: Json) -> Json:
    """Before 2026-07-28 an outputSchema has an object at its root: another one is wrapped, as the results are."""
    schema = tool.get("outputSchema")
    if not isinstance(schema, dict) or schema.get("type") == "object":
        return tool
    inner = {key: part for key, part in schema.items() if key not in ("$schema", "$defs", "$id")}
    wrapped: Json = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    wrapped.update({key: schema[key] for key in ("$schema", "$defs") if key in schema})
    return {**tool, "outputSchema": wrapped}


def notification(note: Notification, revision: str) -> Notification | None:
    """A notification as this revision knows it; None where it knows none such."""
    if note.method == "notifications/progress":
        if not REVISIONS[revision].progress_message and "message" in note.params:
            return Notification(note.method, {key: v for key, v in note.params.items() if key != "message"})
        return note
    if note.method in _RELAYED:
        return note
    return None


_RELAYED: Final = frozenset(
    {"notifications/message", "notifications/resources/updated", *(entry.changed for entry in LISTS.values())}
)
