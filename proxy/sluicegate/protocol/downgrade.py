"""What revisions before 2026-07-28 lack: left out of definitions and answers, or said in what they have.

A client of an old revision tolerates most keys it does not know, but not all clients do, and none can use them. Unknown
types of content it does not tolerate: those become text. A schema without an object at its root becomes the `result`
of one that has, and so does what it describes. Copy on write: what lacks nothing is the very same object. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from sluicegate.protocol import tasks
from sluicegate.protocol.derived_cache import DerivedCache
from sluicegate.protocol.jsonrpc import Json, SharedList, dump, inside, without
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Outcome, Result
from sluicegate.protocol.revisions import REVISIONS, Revision


def _lacking(revision: Revision, method: str) -> frozenset[str]:
    """Keys of that list's items which came later (schema.ts of each revision)."""
    keys = set() if revision.icons else {"icons"}
    if not revision.structured:
        keys |= {"title", "_meta", "outputSchema"}
    if not revision.annotations and method == "tools/list":
        keys.add("annotations")
    return frozenset(keys)


_LACKING: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    (revision.name, method): _lacking(revision, method) for revision in REVISIONS.values() for method in LISTS
}
_TITLE: Final = frozenset({"title"})
_META: Final = frozenset({"_meta"})


def items(method: str, listed: list[Any], revision: Revision) -> list[Any]:
    """The items of a list as this revision has them; made once of those that many are told."""
    if isinstance(listed, SharedList):
        return listed.form(revision.name, lambda own: _items(method, own, revision))
    return _items(method, listed, revision)


def _items(method: str, listed: list[Any], revision: Revision) -> list[Any]:
    if method == "tools/list":
        listed = [_performed(tool, revision) for tool in listed]
    if lacking := _LACKING[revision.name, method]:
        listed = [without(item, lacking) for item in listed]
    if method == "tools/list" and not revision.any_output_schema:
        listed = [_with_object(tool) for tool in listed]
    if method == "prompts/list" and not revision.structured:
        listed = [_prompt(prompt) for prompt in listed]
    return listed


def _performed(tool: Any, revision: Revision) -> Any:
    """What a server does as a task only, Sluice also does for who waits: some clients do not call what says that it
    is required."""
    if not isinstance(tool, dict) or "execution" not in tool:
        return tool
    if not revision.tasks:
        return tasks.without_execution(tool)
    if tasks.support(tool) == "required":
        return {**tool, "execution": {**tool["execution"], "taskSupport": "optional"}}
    return tool


def _prompt(prompt: Any) -> Any:
    arguments = inside(prompt, "arguments")
    if not isinstance(arguments, list):
        return prompt
    return {**prompt, "arguments": [without(argument, _TITLE) for argument in arguments]}


def about(info: Json, revision: Revision) -> Json:
    """Our `serverInfo` for this revision."""
    shown: Json = without(info, frozenset() if revision.icons else frozenset({"icons", "description", "websiteUrl"}))
    return shown if revision.structured else without(shown, _TITLE)


# Where a schema holds values, not schemas
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
_PLACE: Final = "#/properties/result"


def is_wrapped(schema: Any) -> TypeGuard[Json]:
    """Whether that outputSchema is one of 2026-07-28 alone: until then an object stood at the root
    (2025-11-25 server/tools#output-schema)."""
    return isinstance(schema, dict) and schema.get("type") != "object"


def prepare(method: str, item: Any, revision: Revision) -> None:
    """Does what of one item's form takes long, so that `items` does not do it for all of them in one step."""
    if method == "tools/list" and revision.structured and not revision.any_output_schema:
        _with_object(item)


def _with_object(tool: Any) -> Any:
    schema = inside(tool, "outputSchema")
    return {**tool, "outputSchema": _wrapped.of(schema)} if is_wrapped(schema) else tool


def _moved(schema: Json) -> Json:
    """`$schema` is of the root alone; without its `$id` all references of the moved schema are to the new root."""
    base = schema.get("$id")
    inner = {key: part for key, part in schema.items() if key not in ("$schema", "$id")}
    result = _rebased(inner, base if isinstance(base, str) else "")
    wrapped: Json = {"type": "object", "properties": {"result": result}, "required": ["result"]}
    return {"$schema": schema["$schema"], **wrapped} if "$schema" in schema else wrapped


_wrapped: Final = DerivedCache(_moved)  # lists are asked for often, and definitions live long


def _rebased(value: Any, base: str) -> Any:
    if isinstance(value, list):
        return [_rebased(part, base) for part in value]
    if not isinstance(value, dict) or isinstance(value.get("$id"), str):
        return value  # below an $id references are relative to that (2020-12 core, 8.2.1)
    return {
        key: _reference(part, base) if key in ("$ref", "$dynamicRef") and isinstance(part, str)
        else part if key in _VALUES else _rebased(part, base)
        for key, part in value.items()
    }  # fmt: skip


def _reference(text: str, base: str) -> str:
    fragment = text[len(base) :] if base and text.startswith(base) else text
    if fragment in ("", "#") or fragment.startswith("#/"):
        return _PLACE + fragment[1:]
    return fragment


def shaped(call: Call, outcome: Outcome) -> Outcome:
    """What a tool's result says in structure, as the schema says it that this client was shown."""
    if "task" in call.params:
        return tasks.refused(outcome)
    if not isinstance(outcome, Result) or "structuredContent" not in outcome.value:
        return outcome
    target, structured = call.trail.target, outcome.value["structuredContent"]
    item = target.item if target is not None else None
    schema = item.get("outputSchema") if item is not None else None
    if isinstance(structured, dict) and not is_wrapped(schema):
        return outcome
    return Result({**outcome.value, "structuredContent": {"result": structured}}, reason=outcome.reason)


def called(value: Json, revision: Revision) -> Json:
    """Downgrades the result of a tool."""
    if revision.icons:
        return value
    content = value.get("content")
    blocks = [block(item, revision) for item in content] if isinstance(content, list) else []
    if revision.structured:
        return {**value, "content": blocks}
    if not blocks and "structuredContent" in value:
        blocks = [{"type": "text", "text": dump(value["structuredContent"]).decode()}]
    return {**without(value, frozenset({"structuredContent"})), "content": blocks}


def prompted(value: Json, revision: Revision) -> Json:
    """Downgrades the messages of a prompt."""
    messages = value.get("messages")
    if revision.icons or not isinstance(messages, list):
        return value
    made = [{**m, "content": block(m.get("content"), revision)} if isinstance(m, dict) else m for m in messages]
    return {**value, "messages": made}


def read(value: Json, revision: Revision) -> Json:
    """Downgrades the contents of a resource."""
    contents = value.get("contents")
    if revision.structured or not isinstance(contents, list):
        return value
    return {**value, "contents": [without(part, _META) for part in contents]}


def block(item: Any, revision: Revision) -> Any:
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if revision.structured:
        return without(item, _LACKING[revision.name, "resources/list"]) if kind == "resource_link" else item
    texts = {key: value for key, value in item.items() if isinstance(value, str)}  # a list takes long to write
    if kind == "resource_link":
        name, uri = texts.get("title") or texts.get("name") or "resource", texts.get("uri", "")
        return {"type": "text", "text": f"{name}: {uri}"}
    if kind == "audio" and not revision.audio:
        return {"type": "text", "text": f"[audio {texts.get('mimeType', '')} left out: this client cannot take it]"}
    if "resource" in item:
        item = {**item, "resource": without(item["resource"], _META)}
    if isinstance(notes := item.get("annotations"), dict) and "lastModified" in notes:
        item = {**item, "annotations": without(notes, frozenset({"lastModified"}))}
    return without(item, _META)
