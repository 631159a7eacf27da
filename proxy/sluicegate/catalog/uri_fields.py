"""Every place in a message where a resource URI can stand, as one table, and the functions that rewrite them.

Knows the shapes of the newest revision's messages and nothing of what a rewritten URI looks like: that is `f`.
Copy on write: the input is never mutated, what does not change is shared, and where nothing changes the very
same object comes back. What has another shape than the schema says passes as it is. Text, structuredContent,
tool arguments, icons and the roots of a client hold no resource URI of a server and are never looked at.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sluicegate.protocol.jsonrpc import Json

LONG: Final = 4096

Change = Callable[[str], str]
_Lens = Callable[[Any, Change], Any]


def _uri(value: Any, f: Change) -> Any:
    if not isinstance(value, str):
        return value
    changed = f(value)
    return value if changed == value else changed


def _fields(lenses: Mapping[str, _Lens]) -> _Lens:
    """An object: each named field that is there, through its lens."""
    entries = tuple(lenses.items())

    def change(value: Any, f: Change) -> Any:
        if not isinstance(value, dict):
            return value
        copy = value
        for key, lens in entries:
            if key in value and (changed := lens(value[key], f)) is not value[key]:
                if copy is value:
                    copy = {**value}
                copy[key] = changed
        return copy

    return change


def _each(lens: _Lens) -> _Lens:
    """A list: every element."""

    def change(value: Any, f: Change) -> Any:
        if not isinstance(value, list):
            return value
        copy = value
        for index, old in enumerate(value):
            if (changed := lens(old, f)) is not old:
                if copy is value:
                    copy = [*value]
                copy[index] = changed
        return copy

    return change


def _by(key: str, lenses: Mapping[str, _Lens]) -> _Lens:
    """An object whose field `key` says which lens it takes, if any."""

    def change(value: Any, f: Change) -> Any:
        kind = value.get(key) if isinstance(value, dict) else None
        lens = lenses.get(kind) if isinstance(kind, str) else None
        return value if lens is None else lens(value, f)

    return change


def _values(lens: _Lens) -> _Lens:
    """An object of which every value takes the lens."""
    return lambda value, f: _fields(dict.fromkeys(value, lens))(value, f) if isinstance(value, dict) else value


def _one_or_each(lens: _Lens) -> _Lens:
    """One element or a list of them."""
    each = _each(lens)
    return lambda value, f: each(value, f) if isinstance(value, list) else lens(value, f)


_HAS_URI: Final = _fields({"uri": _uri})

# MCP Apps (SEP-1865): the ui:// resource of a tool; the flat key is the older spelling, which hosts still read
_APP: Final = _fields({"ui": _fields({"resourceUri": _uri}), "ui/resourceUri": _uri})

# 2026-07-28 server/tools#tool-result
_BLOCKS: Final[Mapping[str, _Lens]] = {"resource_link": _HAS_URI, "resource": _fields({"resource": _HAS_URI})}
_BLOCK: Final = _by("type", _BLOCKS)
# 2026-07-28 client/sampling: a message holds one block or several, and blocks may be results of tools
_SAMPLED: Final = _one_or_each(_by("type", {**_BLOCKS, "tool_result": _fields({"content": _each(_BLOCK)})}))
_MESSAGE: Final = _fields({"content": _SAMPLED})

_ITEMS: Final[Mapping[str, _Lens]] = {
    "tools/list": _fields({"_meta": _APP}),
    "resources/list": _HAS_URI,
    "resources/templates/list": _fields({"uriTemplate": _uri}),
}

_ASK: Final = _by("method", {"sampling/createMessage": _fields({"params": _fields({"messages": _each(_MESSAGE)})})})
_CALLED: Final = _fields({"content": _each(_BLOCK), "_meta": _APP})

_RESULTS: Final[Mapping[str, _Lens]] = {
    "tools/call": _CALLED,
    "tasks/result": _CALLED,
    # SEP-2663, Task Polling: what the call would have been answered, or what its server asks meanwhile
    "tasks/get": _fields({"result": _CALLED, "error": _fields({"data": _HAS_URI}), "inputRequests": _values(_ASK)}),
    "prompts/get": _fields({"messages": _each(_fields({"content": _one_or_each(_BLOCK)}))}),
    "resources/read": _fields({"contents": _each(_HAS_URI)}),
}


def items(list_method: str, item: Json, f: Change) -> Json:
    """One item of a list: a tool, prompt, resource or template."""
    return _through(_ITEMS, list_method, item, f)


def result(method: str, value: Json, f: Change) -> Json:
    return _through(_RESULTS, method, value, f)


def may_hold(data: bytes) -> bool:
    """Whether a URI may stand in a result, given as JSON without blanks: in most there is none, and no need to look for
    its place. A no is sure; long texts are not read for it, which takes longer than a look at the few places."""
    return len(data) > LONG or b'uri":' in data or b'Uri":' in data


def asks(requests: Json, f: Change) -> Json:
    """What a server asks the client (`inputRequests`): messages to sample from."""
    return _each_value(_ASK, requests, f)


def answers(responses: Json, f: Change) -> Json:
    """What a client answered (`inputResponses`). Only sampled messages have a role; the `content` of an
    elicitation is the user's own form, whatever its fields are called."""
    return _each_value(_answer, responses, f)


def error_data(data: Any, f: Change) -> Any:
    """`data` of an error: the URI that was not found (2026-07-28 server/resources#error-handling)."""
    return _HAS_URI(data, f)


def _answer(value: Any, f: Change) -> Any:
    return _MESSAGE(value, f) if isinstance(value, dict) and "role" in value else value


def _through(table: Mapping[str, _Lens], key: str, value: Json, f: Change) -> Json:
    lens = table.get(key)
    if lens is None:
        return value
    changed: Json = lens(value, f)
    return changed


def _each_value(lens: _Lens, value: Json, f: Change) -> Json:
    changed: Json = _fields(dict.fromkeys(value, lens))(value, f)
    return changed
