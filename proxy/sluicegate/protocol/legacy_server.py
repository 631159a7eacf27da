"""The initialize era's dialect towards a server (2024-11-05 to 2025-11-25): requests down, answers up.

Pure. May not know how bytes travel nor when the handshake happens; it says what is in its messages. Answers
are lifted to the form of the newest revision, so that the middle never sees a legacy result.
"""

from typing import Final

from sluicegate.protocol import input_requests_server, tasks
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.protocol.input_requests_client import unanswered
from sluicegate.protocol.input_requests_server import NO_PAGES
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Response, error_text, inside, without
from sluicegate.protocol.methods import CACHEABLE, LISTS, TASK_SHOWN
from sluicegate.protocol.model import (
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    Call,
    Failure,
    Outcome,
    Result,
    TaskStarted,
)
from sluicegate.protocol.modern_server import about, is_code, is_reserved, not_found
from sluicegate.protocol.reserved_keys import for_server, without_hop
from sluicegate.protocol.revisions import META, NEWEST_LEGACY, REVISIONS, Revision
from sluicegate.protocol.union_members import with_required_fields, without_pages

# 2025-11-25 client/elicitation#url-mode-errors; exists in that revision only and is never emitted to a modern client
URL_ELICITATION_REQUIRED: Final = -32042
_RETRY: Final = frozenset({"inputResponses", "requestState"})


def initialize(client_info: Json, capabilities: Json) -> Json:
    """The params of `initialize`. What is declared there is fixed for the life of the session."""
    return {"protocolVersion": NEWEST_LEGACY, "capabilities": capabilities, "clientInfo": client_info}


def negotiated(result: Json) -> Revision | None:
    """The revision that the server chose, None if it cannot be spoken (2025-11-25 basic/lifecycle)."""
    version = result.get("protocolVersion")
    revision = REVISIONS.get(version) if isinstance(version, str) else None
    return revision if revision is not None and revision.era == "legacy" else None


def params(call: Call, token: int, to_sluice: bool = False) -> Json:
    """The params of the request that `call` becomes; `token` stands in for the client's progress token."""
    given = call.meta if to_sluice else for_server(call.meta)
    meta = {key: value for key, value in given.items() if not key.startswith(META)}
    if "progressToken" in meta:
        meta["progressToken"] = token
    own = call.params
    if not _RETRY.isdisjoint(own):  # answers that this server never asked for: it is a new call
        own = without(own, _RETRY)
    return {**own, "_meta": meta} if meta else own


def outcome(call: Call, response: Response, has_tasks: bool = False, own: OwnUrls = NO_PAGES) -> Outcome:
    """`has_tasks`: the server may be asked for tasks, so that what its tools say of them counts. `own` are the pages
    that Sluice serves."""
    if response.error is not None:
        failed = failure(call, response.error, own)
        is_told = response.error.get("code") == URL_ELICITATION_REQUIRED != failed.code
        return unanswered(call.method, failed.message) if is_told else failed
    value = response.result or {}
    if "task" in value and "task" in call.params and (task := tasks.created(value)) is not None:
        return TaskStarted(task)
    if call.method in TASK_SHOWN:
        task = tasks.shown(value)
        return Result(task) if task is not None else Failure(INTERNAL_ERROR, "The server said nothing of the task")
    return with_required_fields(call.method, lifted(call.method, value, has_tasks))


def lifted(method: str, value: Json, has_tasks: bool = False) -> Json:
    """A legacy result in the form of the newest revision."""
    if method not in CACHEABLE:
        return without_hop(value)
    made = {**without_hop(value), "ttlMs": 0, "cacheScope": "private"}  # nothing was promised: no cache may keep it
    if method in LISTS and made.get("nextCursor", "") is None:
        del made["nextCursor"]  # null is no cursor; the empty string is one
    if method == "tools/list" and not has_tasks and isinstance(tools := made.get("tools"), list):
        made["tools"] = [tasks.without_execution(tool) for tool in tools]
    return made


def failure(call: Call, error: Json, own: OwnUrls = NO_PAGES) -> Failure:
    code, text = error.get("code"), error_text(error)
    data = without_pages(error.get("data"))
    if not is_code(code):
        return Failure(INTERNAL_ERROR, text, data)
    if code == RESOURCE_NOT_FOUND and call.method == "resources/read":
        return not_found(call, text, data)
    if code == URL_ELICITATION_REQUIRED:
        can_open = call.client.revision == NEWEST_LEGACY and input_requests_server.opens_pages(call.client)
        if can_open and input_requests_server.pages(error) is not None:
            return Failure(code, text, error["data"])
        return Failure(INTERNAL_ERROR, input_requests_server.visits(error, own))
    # Free for all in these revisions; what the newest one reserved must not be taken for its own. Servers of both eras
    # say in the older, too, what their client lacks.
    is_meant = code == MISSING_CAPABILITY and isinstance(inside(data, "requiredCapabilities"), dict)
    return Failure(INTERNAL_ERROR if is_reserved(code) and not is_meant else code, text, data)


def discovered(result: Json) -> Json:
    """An InitializeResult as the value of `server/discover` in the middle."""
    revision, described = negotiated(result), about(result)
    spoken = [] if revision is None else [revision.name]
    capabilities = described["capabilities"]
    if revision is None or not revision.tasks:
        capabilities = without(capabilities, frozenset({"tasks"}))
    # The extension is not defined before 2026-07-28, whatever a server says (SEP-2663, Backward Compatibility).
    capabilities = tasks.without_extension(capabilities)
    return {**described, "supportedVersions": spoken, "capabilities": capabilities, "ttlMs": 0, "cacheScope": "private"}
