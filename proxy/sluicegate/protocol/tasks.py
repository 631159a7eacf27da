"""Calls that a server answers later: what a task says, and how both forms of it are written.

2025-11-25 has tasks in its core (basic/utilities/tasks: the client asks for one, `tasks/result` waits), 2026-07-28 as
the extension `io.modelcontextprotocol/tasks` (SEP-2663: the server decides, `tasks/get` has the result). They are not
wire compatible; in the middle a task is written as the extension does, flat, with `ttlMs` and `pollIntervalMs`. Pure:
it knows no task that exists, only what may be said of one. Bounds are milliseconds, as they are on the wire.
"""

from typing import Any, Final, Literal

from sluicegate.protocol import reserved_keys, union_members
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, error_text, inside, without
from sluicegate.protocol.methods import TASK_SHOWN
from sluicegate.protocol.model import MISSING_CAPABILITY, Client, Failure, Outcome, Result
from sluicegate.protocol.parameter_names import may_pose
from sluicegate.protocol.revisions import META, RELATED_TASK, REVISIONS

EXTENSION: Final = META + "tasks"
RELATED: Final = RELATED_TASK
_PAGES_REQUIRED: Final = -32042  # 2025-11-25 schema: URL_ELICITATION_REQUIRED, which no task can end with
STATUS: Final = "notifications/tasks/status"  # 2025-11-25
CHANGED: Final = "notifications/tasks"  # the extension

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]
Support = Literal["forbidden", "optional", "required"]
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
_STATUSES: Final = TERMINAL | {"working", "input_required"}

_EXECUTION: Final = frozenset({"execution"})

MAX_TTL: Final = 24 * 3600 * 1000
MIN_POLL: Final = 20
MAX_POLL: Final = 60 * 1000
MAX_TEXT: Final = 4096
MAX_ID: Final = 1024
_MAX_TIME: Final = 64
_PARTS: Final = frozenset({"result", "error", "inputRequests", "requestState"})
"""What `tasks/get` of the extension says beside the task, by its status (SEP-2663)."""
_STATE: Final = frozenset(
    {"taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
)
"""What a task says wherever it is shown. Each of them is bounded, so that it can be kept as long as the task is."""

# How the two forms call the same; what stands in neither is the server's own and passes, unless it can be read as what
# is judged.
_MODERN_NAMES: Final[dict[str, str]] = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}
_UNFINISHED: Final = frozenset({"resultType", "task"})
_KNOWN: Final = _PARTS | _STATE | _MODERN_NAMES.keys() | {"_meta"}
_LEGACY_NAMES: Final[dict[str, str]] = {modern: legacy for legacy, modern in _MODERN_NAMES.items()}


def owner(client: Client) -> str:
    return client.holder


def is_nobody(client: Client) -> bool:
    """Whether clients with that name may be anybody: each has the tasks of its own session alone (2025-11-25
    basic/utilities/tasks#task-isolation-and-access-control)."""
    return client.principal == "anonymous"


def takes(client: Client) -> bool:
    """Whether this client can be answered with a task that it did not ask for (SEP-2663, Capability Negotiation).
    A legacy client asks for each (`params.task`), and the extension is not defined for its revisions."""
    return client.era == "modern" and isinstance(inside(client.capabilities, "extensions", EXTENSION), dict)


def knows(client: Client) -> bool:
    """Whether the client's revision has any form of tasks."""
    return client.era == "modern" or REVISIONS[client.revision].tasks


def offered(capabilities: Json) -> Json | None:
    """What a server declares of its tasks; None where it has none that tools may be called with. The value is that of
    2025-11-25 (`list`, `cancel`), empty for the extension, which has no parts."""
    if isinstance(inside(capabilities, "extensions", EXTENSION), dict):
        return {}
    if not isinstance(inside(capabilities, "tasks", "requests", "tools", "call"), dict):
        return None
    return {part: {} for part in ("list", "cancel") if isinstance(capabilities["tasks"].get(part), dict)}


def support(item: Json | None) -> Support:
    """Whether a tool may be called as a task (2025-11-25 basic/utilities/tasks#tool-level-negotiation)."""
    entry = inside(item, "execution", "taskSupport") if item and "execution" in item else None
    return entry if entry in ("optional", "required") else "forbidden"


def without_execution(tool: Any) -> Any:
    """A tool as it is shown where the tasks of 2025-11-25 are not known."""
    return without(tool, _EXECUTION)


def without_extension(capabilities: Json) -> Json:
    """Capabilities without the extension, of a peer with whom it means nothing."""
    extensions = capabilities.get("extensions")
    if not isinstance(extensions, dict) or EXTENSION not in extensions:
        return capabilities
    rest = {name: value for name, value in extensions.items() if name != EXTENSION}
    bare = {name: value for name, value in capabilities.items() if name != "extensions"}
    return {**bare, "extensions": rest} if rest else bare


def undeclared() -> Failure:
    """SEP-2663, Capability Negotiation: the answer to who did not declare the extension."""
    data: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return Failure(MISSING_CAPABILITY, "Missing required client capability", data)


def wants_extension(error: Json | None) -> bool:
    """Whether a server refused only because nobody declared the extension to it. Nothing was executed then."""
    required = inside(error, "data", "requiredCapabilities")
    extensions = inside(required, "extensions")
    is_alone = isinstance(extensions, dict) and list(required) == ["extensions"] and list(extensions) == [EXTENSION]
    return is_alone and inside(error, "code") == MISSING_CAPABILITY


def read(value: Any) -> Json | None:
    """A task as the middle has it, out of either form; None for what is none. Times are bounded: nobody is told of a
    task that is kept longer than it is, nor to ask in a rhythm that harms."""
    id = value.get("taskId") if isinstance(value, dict) else None
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID:
        return None
    status = value.get("status")
    if not isinstance(status, str) or status not in _STATUSES or not isinstance(value.get("createdAt"), str):
        return None
    is_odd = may_pose(value, _PARTS | _UNFINISHED)
    passed = [key for key in value if (key in _KNOWN if is_odd else key not in _UNFINISHED)]
    named = {_MODERN_NAMES.get(key, key): value[key] for key in passed}
    made = reserved_keys.without_hop(named)
    if not isinstance(made.get("lastUpdatedAt"), str):
        made["lastUpdatedAt"] = made["createdAt"]
    made |= {key: made[key][:_MAX_TIME] for key in ("createdAt", "lastUpdatedAt")}
    made["ttlMs"] = bounded(made.get("ttlMs"), 1, MAX_TTL, MAX_TTL)
    if "pollIntervalMs" in made:
        made["pollIntervalMs"] = bounded(made["pollIntervalMs"], MIN_POLL, MAX_POLL, 1000)
    text = made.get("statusMessage")
    if isinstance(text, str):
        made["statusMessage"] = text[:MAX_TEXT]
    elif "statusMessage" in made:
        del made["statusMessage"]
    return made


def state(task: Json) -> Json:
    """What of a task is remembered: a server may write megabytes beside it."""
    return {key: value for key, value in task.items() if key in _STATE}


def bounded(value: Any, least: int, most: int, otherwise: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return otherwise
    return int(min(max(value, least), most))


def created(value: Json) -> Json | None:
    """The task of a CreateTaskResult of 2025-11-25, with its `_meta` (model-immediate-response); None if it is none."""
    task = read(value.get("task"))
    if task is None:
        return None
    about = reserved_keys.without_hop(value)
    return begun({**state(task), **({"_meta": about["_meta"]} if "_meta" in about else {})})


def begun(task: Json) -> Json:
    """What a server says of a task when it makes it: the task has no result and no question yet."""
    made = state(task)
    return {**made, "_meta": task["_meta"]} if isinstance(task.get("_meta"), dict) else made


def shown(value: Json) -> Json | None:
    """What `tasks/get` and `tasks/cancel` of 2025-11-25 say: the task alone, for `tasks/result` has its result."""
    task = read(value)
    return None if task is None else without(task, _PARTS)


def detailed(value: Json) -> Json | None:
    """What `tasks/get` of the extension says: with the part that its status promises, and without those of others."""
    task = read(value)
    if task is None:
        return None
    promised = {"completed": "result", "failed": "error", "input_required": "inputRequests"}.get(task["status"])
    if promised is not None and not isinstance(task.get(promised), dict):
        return None
    others = _PARTS - {promised}
    made: Json = {key: inner for key, inner in task.items() if key not in others}
    if isinstance(made.get("result"), dict):
        made["result"] = union_members.result("tools/call", made["result"])
    if isinstance(error := made.get("error"), dict):
        code = INTERNAL_ERROR if error.get("code") == _PAGES_REQUIRED else error.get("code")
        data = {"data": union_members.without_pages(error["data"])} if "data" in error else {}
        made["error"] = {"code": code, "message": error_text(error), **data}
    if isinstance(made.get("result"), dict):
        made["result"] = reserved_keys.without_hop(made["result"])
    return made


def related(value: Json, task_id: str | None) -> Json:
    """Params or a result with that task's id in `_meta`, in the place of whatever stood there; None is no task."""
    meta = value.get("_meta")
    own_meta = {**without(meta, frozenset({RELATED}))} if isinstance(meta, dict) else {}
    if task_id is not None:
        own_meta[RELATED] = {"taskId": task_id}
    bare = {key: inner for key, inner in value.items() if key != "_meta"}
    return {**bare, "_meta": own_meta} if own_meta else bare


def relation(value: Json) -> str | None:
    """The task that a message belongs to, as its sender says."""
    id = inside(value, "_meta", RELATED, "taskId")
    return id if isinstance(id, str) else None


def refused(outcome: Outcome) -> Outcome:
    """Who wanted a task takes a task or an error (2025-11-25 basic/utilities/tasks#result-retrieval): so a refusal of
    ours, which a model could read otherwise, is an error. A server that has no tasks answers at once, which stands."""
    return or_error(outcome) if isinstance(outcome, Result) and outcome.reason is not None else outcome


def or_error(outcome: Outcome) -> Outcome:
    """The same for every answer at once, where a task was promised."""
    if not isinstance(outcome, Result):
        return outcome
    content, reason = outcome.value.get("content"), outcome.reason
    texts = [block.get("text") for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    text = next((text for text in texts if isinstance(text, str)), "No task was made of this call")
    return Failure(INTERNAL_ERROR, text, None if reason is None else {"reason": reason}, reason)


def to_legacy(task: Json) -> Json:
    return {_LEGACY_NAMES.get(key, key): inner for key, inner in task.items()}


def created_legacy(task: Json) -> Json:
    """A CreateTaskResult of 2025-11-25."""
    bare = {key: inner for key, inner in task.items() if key != "_meta"}
    made: Json = {"task": to_legacy(bare)}
    return {**made, "_meta": task["_meta"]} if task.get("_meta") else made


def answer_legacy(method: str, value: Json) -> Json:
    """The result of a request about tasks."""
    if method == "tasks/list":
        return {**value, "tasks": [to_legacy(task) for task in value["tasks"]]}
    return to_legacy(value) if method in TASK_SHOWN else value


def asked_ttl(value: Any) -> Json:
    """The `task` of a call, as a server may be asked."""
    ttl = inside(value, "ttl")
    return {} if ttl is None else {"ttl": bounded(ttl, 1, MAX_TTL, MAX_TTL)}
