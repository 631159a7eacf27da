"""Questions of legacy servers: as the middle has them, and a client's answers as those servers expect them.

A legacy server sends requests to its client (<= 2025-11-25 client/elicitation, client/sampling, client/roots); in
the middle the same question is an entry of `inputRequests` and its answer a bare result in `inputResponses`
(2026-07-28 basic/patterns/mrtr). Here is also what may be asked at all: what the client declared and Sluice can
carry. Pure: it knows no connection, and not how long anybody waits.
"""

from collections.abc import Mapping
from typing import Any, Final

from sluicegate.protocol import input_forms, jsonrpc, tasks, union_members
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.protocol.input_forms import ELICIT, ROOTS, SAMPLE, InputRefusal
from sluicegate.protocol.jsonrpc import Json, Request, RequestId, Response
from sluicegate.protocol.model import MISSING_CAPABILITY, Client, Failure
from sluicegate.protocol.revisions import META, NEWEST_LEGACY, REVISIONS, Revision

MAX_REQUESTS: Final = 32
"""Questions of one answer: each is judged, signed and sealed, and shown to a person."""
MAX_KEY: Final = 1024
"""Characters of what a question is called: the sealed state has it, and each round of a task."""
# What must be declared before a server may send such a request.
_CAPABILITY: Final = {ELICIT: "elicitation", SAMPLE: "sampling", ROOTS: "roots"}
_ASKING: Final = frozenset(_CAPABILITY.values())
# Extensions that pass through Sluice as they are; others are dropped both ways.
APPS: Final = "io.modelcontextprotocol/ui"
APP: Final = "text/html;profile=mcp-app"
"""The one type of content that MCP Apps define (SEP-1865)."""
CARRIED_EXTENSIONS: Final = frozenset({APPS, tasks.EXTENSION})
# What these promise is known to those who made them alone.
_UNKNOWN: Final = frozenset({"extensions", "experimental"})
NO_PAGES: Final = OwnUrls()
# What only the other kind of the same question has: of both, a client could read the one that was not judged.
_FOREIGN: Final = {"form": frozenset({"url", "elicitationId"}), "url": frozenset({"requestedSchema"})}
# From 2025-11-25 on elicitation has modes, and sampling has tools and context.
_PARTS: Final = {"elicitation": ("form", "url"), "sampling": ("tools", "context")}


def for_modern_server(client: Client) -> Json:
    """A modern client's capabilities exactly, without unknown extensions."""
    declared = client.capabilities
    if client.era == "legacy":
        return _without_changes(declared)
    defined: Json = jsonrpc.without(declared, _UNKNOWN)
    return declared if defined is declared else defined | carried_extensions(declared)


def for_legacy_server(client: Client) -> Json:
    """What `initialize` declares. Only that a legacy client tells of changed roots has a way to its servers:
    nothing that a modern one sends says so (2026-07-28 client/roots has no listChanged)."""
    declared = client.capabilities
    return declared if client.era == "legacy" else _without_changes(as_legacy(declared, REVISIONS[client.revision]))


def as_legacy(declared: Json, revision: Revision) -> Json:
    """The declared capabilities that this revision defines, and that Sluice can pass on."""
    made: Json = {}
    for name in ("elicitation", "sampling"):
        parts = declared.get(name)
        if isinstance(parts, dict) and (name != "elicitation" or revision.elicitation):
            modes = _PARTS[name] if revision.name >= NEWEST_LEGACY else ()
            made[name] = {part: {} for part in modes if isinstance(parts.get(part), dict)}
    if isinstance(roots := declared.get("roots"), dict):
        made["roots"] = {"listChanged": True} if roots.get("listChanged") is True else {}
    # SEP-2663, Backward Compatibility: in these revisions the extension is not defined
    return tasks.without_extension(made | _plain_extensions(carried_extensions(declared)))


def _plain_extensions(extensions: Json) -> Json:
    """Only what is defined for them: each other value would be a connection of its own, and a process."""
    listed = extensions.get("extensions", {})
    apps = listed.get(APPS)
    if isinstance(apps, dict):
        types = apps.get("mimeTypes")
        listed = {**listed, APPS: {"mimeTypes": [APP]} if isinstance(types, list) and APP in types else {}}
    return {"extensions": listed} if listed else {}


def _without_changes(capabilities: Json) -> Json:
    return {**capabilities, "roots": {}} if "roots" in capabilities else capabilities


def carried_extensions(declared: Json) -> Json:
    """The extensions among capabilities that are relayed, whoever declares them."""
    extensions = declared.get("extensions")
    entries = extensions.items() if isinstance(extensions, dict) else ()
    remaining = {name: value for name, value in entries if name in CARRIED_EXTENSIONS}
    return {"extensions": remaining} if remaining else {}


def capability_set(declared: Json) -> str:
    """Which capabilities a server may choose its definitions by, of those that it is told of. They are few: whatever
    else a client writes into its capabilities makes no other set, so that there are at most 32."""
    elicitation, extensions = declared.get("elicitation"), declared.get("extensions")
    words = {mode: isinstance(elicitation, dict) and _has_mode(elicitation, mode) for mode in _PARTS["elicitation"]} | {
        "sampling": isinstance(declared.get("sampling"), dict),
        "roots": isinstance(declared.get("roots"), dict),
        "tasks": isinstance(extensions, dict) and tasks.EXTENSION in extensions,
    }  # fmt: skip
    return " ".join(word for word, is_declared in words.items() if is_declared)


def listing(declared: Json) -> Json:
    """What a server is told of a client where it lists: one value for each capability set, and another for who can show
    apps, as some servers list their pages to no others (SEP-1865). Each value has lists and stored rows of its own."""
    words = capability_set(declared).split()
    modes: Json = {mode: {} for mode in _PARTS["elicitation"] if mode in words}
    made: Json = {"elicitation": modes} if modes else {}
    made |= {name: {} for name in ("sampling", "roots") if name in words}
    extensions: Json = {tasks.EXTENSION: {}} if "tasks" in words else {}
    types = jsonrpc.inside(declared, "extensions", APPS, "mimeTypes")
    if isinstance(types, list) and APP in types:
        extensions[APPS] = {"mimeTypes": [APP]}
    return made | ({"extensions": extensions} if extensions else {})


def may_ask(capabilities: Json) -> bool:
    """Whether a server to which that was declared may ask anything."""
    return not _ASKING.isdisjoint(capabilities)


def opens_pages(client: Client) -> bool:
    return isinstance(jsonrpc.inside(client.capabilities, "elicitation", "url"), dict)


def objection(request: Request, declared: Json, own: OwnUrls = NO_PAGES) -> Json | None:
    """The JSON-RPC error for a request that nobody answers, None for one that may go on to a client. This is the one
    gate for questions, whatever the era of the server and of the client. `own` are the pages that Sluice serves."""
    method, params = request.method, request.params
    capability = declared.get(_CAPABILITY.get(method, ""))
    if not isinstance(capability, dict):
        return _error(jsonrpc.METHOD_NOT_FOUND, f"{method} is not supported")
    if input_forms.problem(method, params):
        return _error(jsonrpc.INVALID_PARAMS, f"malformed {method}")
    if method == ELICIT and not _has_mode(capability, params.get("mode", "form")):
        # 2025-11-25 client/elicitation#error-handling
        return _error(jsonrpc.INVALID_PARAMS, "elicitation in that mode was not declared")
    if method == ELICIT and params.get("url") in own:
        return _error(jsonrpc.INVALID_PARAMS, "the page to open is one of Sluice's own")
    if method == SAMPLE and "tools" not in capability and input_forms.wants_tools(params):
        # 2025-11-25 client/sampling#capabilities
        return _error(jsonrpc.INVALID_PARAMS, "sampling with tools was not declared")
    return None


def judged(requests: Json, client: Client, own: OwnUrls) -> Json | Failure:
    """The `inputRequests` of a server as this client may be asked them, or why it may not."""
    if len(requests) > MAX_REQUESTS:
        return Failure(jsonrpc.INVALID_PARAMS, f"The server asked more than {MAX_REQUESTS} questions at once")
    if any(len(key) > MAX_KEY for key in requests):
        return Failure(jsonrpc.INVALID_PARAMS, "The server asked for input under a name that is too long")
    declared = for_modern_server(client)
    made: Json = {}
    for key, ask in requests.items():
        method, params = (ask.get("method"), ask.get("params", {})) if isinstance(ask, dict) else (None, None)
        if not isinstance(method, str) or not isinstance(params, dict):
            return Failure(jsonrpc.INVALID_PARAMS, "The server asked for input in a form that is not known")
        request = Request(0, method, params)
        if (error := objection(request, declared, own)) is not None:
            text = f"The server asked for input that this client cannot be asked for: {error['message']}"
            needed = missing(request, client) if client.era == "modern" else None
            return Failure(error["code"], text) if needed is None else lacking(text, needed)
        foreign = _FOREIGN[params.get("mode", "form")] if method == ELICIT else frozenset()  # others may have any mode
        own_params = jsonrpc.without(params, foreign)
        if method == SAMPLE:
            own_params = {**own_params, "messages": list(map(union_members.message, params["messages"]))}
            if client.revision >= NEWEST_LEGACY and "context" not in declared["sampling"]:
                own_params = jsonrpc.without(own_params, input_forms.CONTEXT)  # 2025-11-25 client/sampling#capabilities
        made[key] = {"method": method, "params": own_params} if "params" in ask else {"method": method}
    return made


def lacking(text: str, capabilities: Json) -> Failure:
    """2026-07-28 basic/index#error-codes: what the client would have to declare."""
    return Failure(MISSING_CAPABILITY, text, {"requiredCapabilities": capabilities})


def missing(request: Request, client: Client) -> Json | None:
    """The capability that a client would need to be asked that; None for one that has it."""
    name, params = _CAPABILITY.get(request.method), request.params
    if name is None or input_forms.problem(request.method, params):
        return None
    if objection(request, for_legacy_server(client)) is None:
        return None
    part = "tools" if name == "sampling" else params.get("mode", "form")
    is_general = name == "roots" or (name == "sampling" and not input_forms.wants_tools(params))
    return {name: {} if is_general else {part: {}}}


def _has_mode(declared: Json, mode: Any) -> bool:
    """An empty object declares forms (2025-11-25 client/elicitation#capabilities)."""
    return mode in declared if declared else mode == "form"


def entry(request: Request, client: Client) -> Json:
    """The question as `inputRequests` has it: without what belongs to the hop or to another revision. `_meta` is gone
    from questions in 2026-07-28; between legacy peers it carries traces."""
    params = {key: value for key, value in request.params.items() if key not in ("_meta", "task")}
    meta = request.params.get("_meta")
    if client.era == "legacy" and isinstance(meta, dict):
        remaining = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(META)}
        params |= {"_meta": remaining} if remaining else {}
    if request.method == ELICIT:
        params["mode"] = params.get("mode", "form")
        if client.era == "modern":  # gone in 2026-07-28; a legacy client is told by it when the page is done with
            params.pop("elicitationId", None)
    return {"method": request.method, "params": params} if params else {"method": request.method}


def visits(error: Json, own: OwnUrls = NO_PAGES) -> str:
    """The pages that a user must visit first, in words: for a client that cannot be asked to open them. `own` are the
    pages that Sluice serves, to which no server may send anybody."""
    listed = [visit["params"] for visit in (pages(error) or {}).values()]
    found = (f"{visit['message']}: {visit['url']}" for visit in listed if visit["url"] not in own)
    return "\n".join((jsonrpc.error_text(error), *found))


def _is_page(item: Json) -> bool:
    return item.get("mode", "url") == "url" and not input_forms.problem(ELICIT, {**item, "mode": "url"})


def pages(error: Json) -> Json | None:
    """The pages that a user must visit first, as `inputRequests` (2025-11-25 client/elicitation#url-mode-errors);
    None where the error names none."""
    listed = jsonrpc.inside(error, "data", "elicitations")
    found = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    if not 0 < len(found) <= MAX_REQUESTS or not all(map(_is_page, found)):
        return None
    return {
        f"page{number}": {"method": ELICIT, "params": {"mode": "url", "message": item["message"], "url": item["url"]}}
        for number, item in enumerate(found, 1)
    }  # fmt: skip


def read_answers(params: Json) -> Json | Failure:
    """The `inputResponses` of a retry; none at all is no mistake: what is missing is asked again."""
    answers = params.get("inputResponses")
    if answers is None:
        return {}
    return answers if isinstance(answers, dict) else Failure(jsonrpc.INVALID_PARAMS, "inputResponses must be an object")


def are_answers(responses: Any) -> bool:
    """Whether that can be `inputResponses` at all: answers by key."""
    return isinstance(responses, dict) and all(isinstance(value, dict) for value in responses.values())


def methods(requests: Json) -> dict[str, str]:
    """What is asked under each key, as far as it is known: what its answer is judged by."""
    entries = ((key, ask.get("method")) for key, ask in requests.items() if isinstance(ask, dict))
    return {key: method for key, method in entries if isinstance(method, str)}


def unfit(asked: Mapping[str, str], answers: Json) -> Failure | None:
    """The error for an answer that is none to its question; None where all fit. `asked` has the method of each key."""
    for key, method in asked.items():
        if key in answers and not input_forms.is_answer(method, answers[key]):
            return Failure(jsonrpc.INVALID_PARAMS, f"inputResponses[{key!r}] is no answer to {method}")
    return None


def answer(request: Request, key: str, value: Any, revision: str) -> Response | Failure:
    """One bare result as the response to the server's own request."""
    if isinstance(value, InputRefusal):
        return Response(request.id, error=dict(value))
    if (failure := unfit({key: request.method}, {key: value})) is not None:
        return failure
    if request.method == SAMPLE and isinstance(value["content"], list) and revision < NEWEST_LEGACY:
        if len(value["content"]) != 1:
            return Failure(jsonrpc.INVALID_PARAMS, f"inputResponses[{key!r}]: the server takes one block of content")
        value = {**value, "content": value["content"][0]}
    made = {name: part for name, part in value.items() if part is not None}
    task = tasks.relation(request.params)  # the answer belongs to the task to which the question belongs
    return Response(request.id, made if task is None else tasks.related(made, task))


def refusal(method: str, id: RequestId, why: str) -> Response:
    """The answer where none will come. Only an elicitation has a form for it that is no error."""
    if method == ELICIT:
        return Response(id, {"action": "cancel"})
    return Response(id, error=_error(jsonrpc.INTERNAL_ERROR, why))


def _error(code: int, text: str) -> Json:
    return {"code": code, "message": text}
