"""The initialize era's dialect towards a server (2024-11-05 to 2025-11-25): requests down, answers up.

Pure. May not know how bytes travel nor when the handshake happens; it says what is in its messages. Answers
are lifted to the form of the newest revision, so that the middle never sees a legacy result.
"""

from typing import Any, Final

from proxy.call import RESOURCE_NOT_FOUND, Call, Failure, Outcome, Result
from proxy.era.modern_server import not_found
from proxy.era.revisions import CACHEABLE, LISTS, META, NEWEST_LEGACY, REVISIONS, Revision
from proxy.message import INTERNAL_ERROR, Json, Response

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


def params(call: Call, token: int) -> Json:
    """The params of the request that `call` becomes; `token` stands in for the client's progress token."""
    meta = {key: value for key, value in call.meta.items() if not key.startswith(META)}
    if "progressToken" in meta:
        meta["progressToken"] = token
    own = call.params
    if not _RETRY.isdisjoint(own):  # answers that this server never asked for: it is a new call
        own = {key: value for key, value in own.items() if key not in _RETRY}
    return {**own, "_meta": meta} if meta else own


def outcome(call: Call, response: Response) -> Outcome:
    if response.error is not None:
        return failure(call, response.error)
    return Result(lifted(call.method, response.result or {}))


def lifted(method: str, value: Json) -> Json:
    """A legacy result in the form of the newest revision."""
    if method not in CACHEABLE:
        return value
    made = {**value, "ttlMs": 0, "cacheScope": "private"}  # nothing was promised: no cache may keep it
    if method in LISTS and made.get("nextCursor", "") is None:
        del made["nextCursor"]  # null is no cursor; the empty string is one
    if method == "tools/list" and isinstance(tools := made.get("tools"), list):
        made["tools"] = [_without_execution(tool) for tool in tools]
    return made


def _without_execution(tool: Any) -> Any:
    """`execution` is about the tasks of 2025-11-25, which are not relayed; it is gone in 2026-07-28."""
    if not isinstance(tool, dict) or "execution" not in tool:
        return tool
    return {key: value for key, value in tool.items() if key != "execution"}


def failure(call: Call, error: Json) -> Failure:
    code, text, data = error.get("code"), str(error.get("message") or "Error"), error.get("data")
    if not isinstance(code, int) or isinstance(code, bool):
        return Failure(INTERNAL_ERROR, text, data)
    if code == RESOURCE_NOT_FOUND and call.method == "resources/read":
        return not_found(call, text, data)
    if code == URL_ELICITATION_REQUIRED and call.client.revision != NEWEST_LEGACY:
        return Failure(INTERNAL_ERROR, text, data)
    return Failure(code, text, data)


def discovered(result: Json) -> Json:
    """An InitializeResult as the value of `server/discover` in the middle."""
    capabilities = result.get("capabilities")
    made: Json = {
        "supportedVersions": [result.get("protocolVersion")],
        # The tasks of 2025-11-25 are not relayed, and the extension of the same name is another protocol.
        "capabilities": {key: value for key, value in capabilities.items() if key != "tasks"}
        if isinstance(capabilities, dict)
        else {},
        "ttlMs": 0,
        "cacheScope": "private",
    }
    if isinstance(result.get("instructions"), str):
        made["instructions"] = result["instructions"]
    if isinstance(result.get("serverInfo"), dict):
        made["serverInfo"] = result["serverInfo"]
    return made
