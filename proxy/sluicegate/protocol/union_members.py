"""Where a message may be one of several types: the members of the other types are taken out.

Whoever judges reads one member, and whoever gets the message may read another: of a block of text with a `resource`, of
contents with `text` and `blob`, of a complete result with `inputRequests`. What each result must have is added where a
server left it out. Pure; copy on write.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, dump, without
from sluicegate.protocol.methods import RESULTS, TASK_SHOWN
from sluicegate.protocol.model import Failure, Outcome, Result
from sluicegate.protocol.parameter_names import MAX_PARAMS, look_alike, may_pose

# 2026-07-28 schema: ContentBlock, SamplingMessageContentBlock. What all types may have is no matter.
_OWN: Final = {
    "text": frozenset({"text"}), "image": frozenset({"data"}), "audio": frozenset({"data"}),
    "resource": frozenset({"resource"}), "resource_link": frozenset({"uri"}), "tool_use": frozenset({"input"}),
    "tool_result": frozenset({"content", "structuredContent"}),
}  # fmt: skip
_ALL: Final = frozenset().union(*_OWN.values())
_FOREIGN: Final = {kind: _ALL - own for kind, own in _OWN.items()}
# What a result that is complete has not: InputRequiredResult, CreateTaskResult (2025-11-25). Some clients would read it
# under another spelling, too, and ask what nobody judged.
_UNFINISHED: Final = frozenset({"inputRequests", "requestState", "resultType", "task"})
_USUAL: Final = frozenset(
    {"_meta", "cacheScope", "completion", "content", "contents", "description", "isError", "messages", "nextCursor",
     "prompts", "resourceTemplates", "resources", "structuredContent", "tasks", "tools", "ttlMs"}
)  # fmt: skip
_PAGES: Final = frozenset({"elicitations"})
_SMALL: Final = 2  # members of a block that has a type and what it is about


def result(method: str, value: Json) -> Json:
    found = _MEMBERS.get(method)
    if method not in TASK_SHOWN and not _USUAL.issuperset(value):  # on the way of every call: most have no other
        is_odd = may_pose(value, _UNFINISHED)
        value = {key: part for key, part in value.items() if key in _USUAL} if is_odd else without(value, _UNFINISHED)
    if found is None:
        return value
    key, each = found
    is_error = value.get("isError", False)
    if is_error is not False and is_error is not True and key == "content":
        value = _with_plain_error(value, is_error)
    items = value.get(key)
    if not isinstance(items, list):
        return value
    made = [each(item) for item in items]
    return value if made == items else {**value, key: made}  # items that are the same objects are not compared


def _with_plain_error(value: Json, is_error: Any) -> Json:
    """Some clients read "true" and 1 as true. What is not said is no error; whatever else is said is one."""
    return without(value, frozenset({"isError"})) if is_error is None else {**value, "isError": True}


def block(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind in ("resource", "tool_result"):
        return _nested(without(item, _FOREIGN[kind]))
    if len(item) <= _SMALL or not isinstance(kind, str) or kind not in _FOREIGN:
        return item
    return without(item, _FOREIGN[kind])


def _nested(item: Json) -> Json:
    for key, change in (("resource", contents), ("content", blocks)):
        if key in item and (changed := change(item[key])) is not item[key]:
            item = {**item, key: changed}
    return item


def blocks(value: Any) -> Any:
    if not isinstance(value, list):
        return block(value)
    made = [block(item) for item in value]
    return value if made == value else made


def message(item: Any) -> Any:
    """Of a prompt, or for a model."""
    if not isinstance(item, dict) or (changed := blocks(item.get("content"))) is item.get("content"):
        return item
    return {**item, "content": changed}


def contents(item: Any) -> Any:
    """TextResourceContents or BlobResourceContents: text is what most read, and what is judged."""
    return without(item, frozenset({"blob"})) if isinstance(item, dict) and isinstance(item.get("text"), str) else item


def without_pages(data: Any) -> Any:
    """The data of an error without pages to open, which only an error of 2025-11-25 has, and only where they are judged
    (client/elicitation#url-mode-errors)."""
    if not isinstance(data, dict) or not may_pose(data, _PAGES):
        return without(data, _PAGES)
    few = [key for key in data if key.isascii()] if len(data) <= MAX_PARAMS else []
    return {key: data[key] for key in few if key not in _PAGES and look_alike({key: 0}, _PAGES) is None}


_EACH: Final[Mapping[str, Callable[[Any], Any]]] = {"content": block, "messages": message, "contents": contents}
_MEMBERS: Final = {method: (key, _EACH[key]) for method, (key, _) in RESULTS.items() if key in _EACH}
"""Of each method: what its result must have, and how an item of that is read."""


def with_required_fields(method: str, value: Json) -> Outcome:
    """The result; one without what it is about is no answer. Only of a tool less is known to be meant: servers leave
    `content` out where they say all in structure, and clients of every revision take it for granted."""
    value = result(method, value)
    if not isinstance(value.get("_meta", value), dict):
        value = without(value, frozenset({"_meta"}))
    needed = RESULTS.get(method)
    if needed is None or isinstance(value.get(needed[0]), needed[1]):
        return Result(value)
    if needed[0] != "content":
        return Failure(INTERNAL_ERROR, f"The server's answer to {method} has no {needed[0]}")
    # 2025-11-25 server/tools#structured-content: what is said in structure should be said as text, too
    structured = value.get("structuredContent")
    text = [] if structured is None else [{"type": "text", "text": dump(structured).decode()}]
    return Result({**value, "content": text})
