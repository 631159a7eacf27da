"""A legacy client (2024-11-05 to 2025-11-25) is at the other end: it opened a session with `initialize`.

Its requests become the middle's, and outcomes become results that its revision knows: what a revision does
not have is left out or said in words. What servers ask it stands in `input_requests_client`. What needs the session's
state (level, in-flight requests) is the listener's; this file is pure.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from sluicegate.protocol import downgrade, input_requests_server, jsonrpc, tasks
from sluicegate.protocol.canonical_json import canonical, is_longer
from sluicegate.protocol.jsonrpc import (
    Json,
    ListResponse,
    Malformed,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
)
from sluicegate.protocol.methods import CALL_RESULTS, LISTS, ROUTED, TASK_METHODS
from sluicegate.protocol.model import (
    HEADER_MISMATCH,
    LOG_LEVEL,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Failure,
    InputRequired,
    Outcome,
    Result,
    TaskStarted,
)
from sluicegate.protocol.modern_client import (
    MAX_DESCRIPTION,
    TOO_LARGE,
    Parsed,
    capability_key,
    is_modern,
    name_and_version,
)
from sluicegate.protocol.parameter_names import check, is_token
from sluicegate.protocol.revisions import LEGACY, LOG_LEVELS, META, NEWEST_LEGACY, REVISIONS, Revision

# <= 2025-11-25 server/utilities/logging: before the first setLevel the server decides
DEFAULT_LEVEL: Final = "info"
# 2025-11-25 client/elicitation: that revision has it alone
ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
_MODERN_ONLY_CODES: Final = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
# Of the newest revision: here they are ours to fill in, in the rounds of a call
_ROUND: Final = frozenset({"inputResponses", "requestState"})
_CACHING: Final = frozenset({"ttlMs", "cacheScope"})
_CAPABILITIES: Final = ("completions", "logging", "prompts", "resources", "tools")


@dataclass(frozen=True, slots=True)
class Handshake:
    """What `initialize` settled for the life of the session. `capabilities` are those that the revision has."""

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
        return Failure(jsonrpc.INVALID_PARAMS, "initialize needs protocolVersion, capabilities and clientInfo")
    key = capability_key(capabilities)
    if not key or is_longer(info, MAX_DESCRIPTION) or len(canonical(info)) > MAX_DESCRIPTION:
        return Failure(jsonrpc.INVALID_PARAMS, f"{'clientInfo' if key else 'capabilities'} {TOO_LARGE}")
    revision = version if version in LEGACY else NEWEST_LEGACY
    capabilities = input_requests_server.as_legacy(capabilities, REVISIONS[revision])
    return Handshake(revision, name_and_version(info), capabilities, key)


def initialize_result(handshake: Handshake, discovered: Outcome, server_info: Json) -> Outcome:
    """An InitializeResult from the outcome of `server/discover`."""
    if not isinstance(discovered, Result):
        return discovered if isinstance(discovered, Failure) else _cannot_ask()
    capabilities = discovered.value.get("capabilities", {})
    shown = {key: capabilities[key] for key in _CAPABILITIES if key in capabilities}
    # `extensions` is of 2026-07-28, but SEP-1865 negotiates its own in older handshakes, too
    shown |= tasks.without_extension(input_requests_server.carried_extensions(capabilities))
    if not REVISIONS[handshake.revision].completions:
        shown.pop("completions", None)
    if REVISIONS[handshake.revision].tasks and "tasks" in capabilities:
        shown["tasks"] = capabilities["tasks"]
    value: Json = {"protocolVersion": handshake.revision, "capabilities": shown}
    value["serverInfo"] = downgrade.about(server_info, REVISIONS[handshake.revision])
    if discovered.value.get("instructions"):
        value["instructions"] = discovered.value["instructions"]
    return Result(value)


def parse(request: Request, revision: str, level: str | None) -> Parsed | Outcome:
    """The request in the middle's words, or the answer where no server is needed for it."""
    if request.method == "ping":
        return Result({})
    if request.method not in ROUTED[revision]:
        return Failure(jsonrpc.METHOD_NOT_FOUND, "Method not found")
    params = request.params.copy()
    meta = params.pop("_meta", {})
    if (problem := check(request.method, params)) is not None:
        return Failure(jsonrpc.INVALID_PARAMS, f"Invalid params: {problem}")
    if not isinstance(meta, dict):
        return Failure(jsonrpc.INVALID_PARAMS, "_meta must be an object")
    if "progressToken" in meta and not is_token(meta["progressToken"]):
        return Failure(jsonrpc.INVALID_PARAMS, "progressToken must be a string or an integer")
    own_meta = {key: value for key, value in meta.items() if not key.startswith(META)} if meta else {}
    own_meta[LOG_LEVEL] = level or DEFAULT_LEVEL
    if not _ROUND.isdisjoint(params):
        params = jsonrpc.without(params, _ROUND)
    if "task" in params and not (REVISIONS[revision].tasks and request.method == "tools/call"):
        del params["task"]
    return Parsed(
        method=request.method, params=params, meta=own_meta, revision=revision, info={}, capabilities={},
        capability_key="{}", mirrored=None,
    )  # fmt: skip


def respond(id: RequestId, method: str, outcome: Outcome, revision: str) -> Response:
    if isinstance(outcome, Result):
        result = _result(method, outcome.value, REVISIONS[revision])
        return ListResponse(id, result, key=LISTS[method].key) if method in LISTS else Response(id, result)
    if isinstance(outcome, TaskStarted):
        return Response(id, tasks.created_legacy(outcome.task))
    failure = _cannot_ask() if isinstance(outcome, InputRequired) else outcome
    return Response(id, error=_error(method, failure))


def _cannot_ask() -> Failure:
    """`input_required` must never reach a legacy client, and a state of it must not be lost in silence."""
    why = "the server asks for input, which cannot be relayed to a client of this revision"
    return Failure(jsonrpc.INTERNAL_ERROR, why)


def _error(method: str, failure: Failure) -> Json:
    code, message = failure.code, failure.message
    if code in _MODERN_ONLY_CODES:
        code, message = jsonrpc.INTERNAL_ERROR, f"the server refused the relayed request: {message}"
    elif method == "resources/read" and code == jsonrpc.INVALID_PARAMS:
        if isinstance(failure.data, dict) and "uri" in failure.data:
            code = RESOURCE_NOT_FOUND  # <= 2025-11-25 server/resources#error-handling
    error: Json = {"code": code, "message": message}
    if failure.data is not None:
        error["data"] = failure.data
    return error


def _result(method: str, value: Json, revision: Revision) -> Json:
    """Copy on write: most results of most revisions go out as they are."""
    if method in TASK_METHODS and method != "tasks/result":
        return tasks.answer_legacy(method, value)
    if not _CACHING.isdisjoint(value):
        value = jsonrpc.without(value, _CACHING)
    if method in LISTS:
        listed = value.get(key := LISTS[method].key)
        return {**value, key: downgrade.items(method, listed, revision)} if isinstance(listed, list) else value
    if method in CALL_RESULTS:
        return downgrade.called(value, revision)
    if method == "prompts/get":
        return downgrade.prompted(value, revision)
    return downgrade.read(value, revision) if method == "resources/read" else value


def notification(note: Notification, revision: str, level: str | None = None) -> Notification | None:
    """A notification as this revision knows it; None where it knows none such, or where it is a log message
    below the session's level."""
    rules = REVISIONS[revision]
    if note.method == "notifications/progress":
        if not rules.progress_message and "message" in note.params:
            return Notification(note.method, {key: v for key, v in note.params.items() if key != "message"})
        return note
    if note.method == "notifications/message":
        return note if _severity(note.params.get("level")) >= _severity(level or DEFAULT_LEVEL) else None
    if note.method == tasks.STATUS:
        return replace(note, params=tasks.to_legacy(note.params)) if rules.tasks else None
    if note.method in _RELAYED or (note.method == ELICITATION_COMPLETE and rules.url_elicitation):
        return note
    return None


def _severity(level: Any) -> int:
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else -1


class Rising:
    """Lets progress through while it increases (basic/utilities/progress, every revision: MUST): in each round of a
    call that asks, a modern server counts from the start again."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = -inf

    def admits(self, note: Notification) -> bool:
        if note.method != "notifications/progress":
            return True
        value = note.params.get("progress")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= self._last:
            return False
        self._last = value
        return True


_RELAYED: Final = frozenset({"notifications/resources/updated", *(entry.changed for entry in LISTS.values())})


def read_batch(values: list[Any], limit: int) -> list[Message]:
    """The messages of a batch, all of them or none, on every transport (2025-03-26 basic/index#batching). Raises
    `Malformed`, without an id: it is about the whole."""
    if not 0 < len(values) <= limit:
        raise Malformed(jsonrpc.INVALID_REQUEST, f"a batch has 1 to {limit} messages")
    try:
        messages = [jsonrpc.read(value) for value in values]
    except Malformed as bad:
        raise Malformed(bad.code, bad.text) from None
    requests = [message for message in messages if isinstance(message, Request)]
    if any(request.method == "initialize" for request in requests):  # 2025-03-26 basic/lifecycle#initialization
        raise Malformed(jsonrpc.INVALID_REQUEST, "initialize must not be part of a batch")
    if any(is_modern(request) for request in requests):
        raise Malformed(jsonrpc.INVALID_REQUEST, "a request of a later revision must not be part of a batch")
    # 2025-03-26 basic/index#requests: an id is used once in a session. Two answers with one id cannot be told apart.
    if len({request.id for request in requests}) != len(requests):
        raise Malformed(jsonrpc.INVALID_REQUEST, "an id is used twice in a batch")
    return messages
