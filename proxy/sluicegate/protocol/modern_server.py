"""The 2026-07-28 dialect towards a server: a Call as its request, the answer as an Outcome.

Pure. May not know how bytes travel, nor anything of sessions: every request stands alone. The HTTP headers
that mirror the body are made here too, because what they must say is protocol, not transport.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, TypeGuard

from sluicegate.protocol import tasks, union_members
from sluicegate.protocol.canonical_json import is_longer
from sluicegate.protocol.input_requests_server import MAX_REQUESTS, for_modern_server, listing
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Json, Response, error_text, inside, without
from sluicegate.protocol.methods import ABOUT_A_TASK, CACHEABLE, LISTS, MIRRORED, MULTI_ROUND, SEEN_BY_ALL
from sluicegate.protocol.mirrored_headers import annotations, annotations_of, encode_value
from sluicegate.protocol.model import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    MODERN,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Call,
    Failure,
    InputRequired,
    Outcome,
    Result,
    TaskStarted,
)
from sluicegate.protocol.reserved_keys import for_server, without_hop
from sluicegate.protocol.revisions import CLIENT_CAPABILITIES, CLIENT_INFO, HOP_META, PROTOCOL_VERSION, REVISIONS
from sluicegate.protocol.union_members import with_required_fields

Headers = list[tuple[bytes, bytes]]
Annotations = Mapping[tuple[str, ...], str]
_MAX_CODE: Final = 2**31
MAX_ABOUT: Final = 16 * 1024
"""Characters of a server's capabilities, and of its instructions."""
_MAX_PART: Final = 1024
_ABOUT_A_TASK: Final = ABOUT_A_TASK - {"tasks/result"}  # which 2025-11-25 alone has
_TOOLS: Final = 100  # that are looked at in one step
# 2025-11-25 and 2026-07-28 schema: ServerCapabilities
CAPABILITIES: Final = ("completions", "experimental", "extensions", "logging", "prompts", "resources", "tasks", "tools")


def envelope(client_info: Json, capabilities: Json) -> Json:
    """The `_meta` that every request carries (2026-07-28 basic/index#meta)."""
    return {PROTOCOL_VERSION: MODERN, CLIENT_INFO: client_info, CLIENT_CAPABILITIES: capabilities}


def declared(call: Call, is_shared: bool, with_tasks: bool = False) -> Json:
    """What the server is told that the client can do. `with_tasks`: Sluice takes the task on its behalf."""
    made = {} if is_shared else for_modern_server(call.client)
    if call.method in SEEN_BY_ALL:
        made = listing(made)
    return {**made, "extensions": {**made.get("extensions", {}), tasks.EXTENSION: {}}} if with_tasks else made


def params(call: Call, token: int, client_info: Json, is_shared: bool = False, with_tasks: bool = False,
           to_sluice: bool = False) -> Json:  # fmt: skip
    """The params of the request that `call` becomes; `token` stands in for the client's progress token.

    The client's capabilities are mirrored exactly: with fewer the server cannot ask, with more it asks what nobody
    answers. A list is asked for with those that all of its scope have. Nothing is declared to a shared server: its
    lists are the same for all.
    """
    given = call.meta if to_sluice else without(for_server(call.meta), HOP_META)
    meta = {**given, **envelope(client_info, declared(call, is_shared, with_tasks))}
    if "progressToken" in meta:
        meta["progressToken"] = token
    return {**call.params, "_meta": meta}


def headers(method: str, params: Json, annotated: Annotations | None = None) -> Headers:
    """What HTTP mirrors of a request's body; `annotated` is what the called tool's schema asks for."""
    made = [(b"Mcp-Method", method.encode())]
    name = params.get(MIRRORED.get(method, ""))
    if isinstance(name, str):
        made.append((b"Mcp-Name", encode_value(name).encode()))
    if annotated:
        arguments = params.get("arguments")
        made += [
            (f"Mcp-Param-{name}".encode(), text.encode())
            for path, name in annotated.items()
            if (text := _mirror(arguments, path)) is not None
        ]
    return made


def _mirror(arguments: Any, path: tuple[str, ...]) -> str | None:
    value = inside(arguments, *path)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON Schema takes 42.0 for an integer, and so does the receiver
    return encode_value(value) if isinstance(value, str | int) else None


def asked_for(item: Json | None) -> Annotations:
    """Which parameters of a tool are mirrored; none where its definition is invalid: its server judges then."""
    return (annotations_of(item) if item is not None else None) or {}


def offerable(tools: list[Any], over_http: bool) -> Generator[None, None, tuple[list[Any], dict[str, str]]]:
    """The tools as the middle has them, made in pieces, and those that HTTP may not offer: one bad tool does not hide
    the rest (2026-07-28 basic/transports/streamable-http#schema-extension)."""
    offered: list[Any] = []
    dropped: dict[str, str] = {}
    for number, tool in enumerate(tools, 1):
        try:
            if over_http:
                annotations(inside(tool, "inputSchema"))
            offered.append(tasks.without_execution(tool))
        except ValueError as why:
            name = tool.get("name")
            dropped[name if isinstance(name, str) else "no name"] = str(why)
        if number % _TOOLS == 0:
            yield
    return offered, dropped


def outcome(call: Call, response: Response) -> Outcome:
    if response.error is not None:
        return failure(call, response.error)
    return result(call.method, response.result or {})


def result(method: str, value: Json) -> Outcome:
    kind = value.get("resultType", "complete")  # absent: an older server (2026-07-28 basic/index#resulttype)
    if method in _ABOUT_A_TASK and kind in ("complete", "task"):  # some examples of SEP-2663 say `task`
        if method != "tasks/get":  # the others say nothing of the task, and nobody has judged what else they say
            return Result({})
        kind, detailed = "complete", tasks.detailed(value)
        if detailed is None:
            return Failure(INTERNAL_ERROR, "The server said of a task what cannot be said of one")
        value = detailed
    if kind == "complete":
        return with_required_fields(method, complete(method, value))
    if kind == "task" and method == "tools/call" and (task := tasks.read(value)) is not None:
        return TaskStarted(tasks.begun(task))  # SEP-2663, Task Creation
    if kind == "input_required" and method in MULTI_ROUND:
        return _input_required(value)
    return Failure(INTERNAL_ERROR, "The server sent a result of a kind that is not known")


def _input_required(value: Json) -> Outcome:
    requests, state = value.get("inputRequests"), value.get("requestState")
    requests = {} if requests is None else requests
    is_valid = isinstance(requests, dict) and (state is None or isinstance(state, str))
    # 2026-07-28 basic/patterns/mrtr: at least one of the two
    if not is_valid or (not requests and state is None) or len(requests) > MAX_REQUESTS:
        return Failure(INTERNAL_ERROR, "The server asked for input in a form that is not known")
    return InputRequired(requests, state)


def complete(method: str, value: Json) -> Json:
    """A complete result as the middle has it: without what describes the hop, with valid caching hints. The tools of a
    list are still as the server sent them (`offerable`)."""
    made = without_hop(value)
    made = made.copy() if made is value else made
    made.pop("resultType", None)
    if method not in CACHEABLE:
        return made
    made.update(caching(value))
    if method in LISTS and made.get("nextCursor", "") is None:
        del made["nextCursor"]  # null is no cursor; the empty string is one
    return made


def caching(value: Mapping[str, Any]) -> Json:
    """2026-07-28 server/utilities/caching: absent or negative is 0. Whatever its server says, no cache may hand it to
    others: policy decides who gets it."""
    return {"ttlMs": time_to_live(value), "cacheScope": "private"}


def time_to_live(value: Mapping[str, Any]) -> int:
    """Milliseconds that a list counts as new, at most a day's: one of hundreds of digits cannot be added to a time."""
    return tasks.bounded(value.get("ttlMs"), 0, tasks.MAX_TTL, 0)


def failure(call: Call, error: Json) -> Failure:
    """A server's error as the client may see it."""
    code, text, data = error.get("code"), error_text(error), error.get("data")
    if not is_code(code):
        return Failure(INTERNAL_ERROR, text, union_members.without_pages(data))
    if code in (HEADER_MISMATCH, UNSUPPORTED_VERSION):
        return Failure(INTERNAL_ERROR, f"The server refused how it was asked: {text}")  # our fault, not the client's
    if code == MISSING_CAPABILITY and call.client.era == "legacy":
        return Failure(INTERNAL_ERROR, f"The server needs a client with {_required(data)}: {text}")
    if code == RESOURCE_NOT_FOUND and call.method == "resources/read":
        return not_found(call, text, data)
    if is_reserved(code) and code != MISSING_CAPABILITY:
        return Failure(INTERNAL_ERROR, text, union_members.without_pages(data))
    return Failure(code, text, union_members.without_pages(data))


def is_code(code: object) -> TypeGuard[int]:
    """Whether a client can read it as the code of an error: JSON-RPC 2.0 wants an integer, and says not how large."""
    return type(code) is int and abs(code) < _MAX_CODE


def is_reserved(code: int) -> bool:
    """2026-07-28 basic/index#error-codes: nobody may send these but as that revision defines them."""
    return -32099 <= code <= -32020


def _required(data: Any) -> str:
    """The capabilities that are missing, by name."""
    required = inside(data, "requiredCapabilities")
    if not isinstance(required, dict) or not required:
        return "capabilities that this one lacks"
    named = (f"{name} ({', '.join(parts)})" if isinstance(parts, dict) and parts else name
             for name, parts in required.items())  # fmt: skip
    return ", ".join(map(str, named))


def not_found(call: Call, text: str, data: Any) -> Failure:
    """2026-07-28 server/resources#error-handling: -32602 with data.uri instead of the legacy -32002."""
    inner = data if isinstance(data, dict) else {}
    return Failure(INVALID_PARAMS, text, {**inner, "uri": inner.get("uri", call.params.get("uri"))})


def discovered(value: Json) -> Json:
    """A DiscoverResult as the value of `server/discover` in the middle."""
    spoken = [version for version in versions(value.get("supportedVersions")) if version in REVISIONS]
    return {"supportedVersions": list(dict.fromkeys(spoken)), **caching(value), **about(value)}


def about(value: Json) -> Json:
    """What a server says of itself, in either era, within bounds: each of its connections keeps it, and the store. Its
    name is not used. Of capabilities that are too long those that are defined stay, without what is long in them."""
    capabilities, text = value.get("capabilities"), value.get("instructions")
    declared = capabilities if isinstance(capabilities, dict) else {}
    if is_longer(declared, MAX_ABOUT):
        parts = {name: declared[name] for name in CAPABILITIES if name in declared}
        declared = {name: {} if is_longer(part, _MAX_PART) else part for name, part in parts.items()}
    return {"capabilities": declared} | ({"instructions": text[:MAX_ABOUT]} if isinstance(text, str) else {})


def versions(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
