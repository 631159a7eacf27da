"""The names that belong to Sluice: what a peer writes under them is taken out where its message comes in. Pure.

`dev.sluice/` begins every key of ours in `_meta`; in the data of an error `reason` is ours where it is a `Reason`, and
`approval` where it is an object.
Clients and operators believe what stands there, so nobody else may write it, in no case of letters: some readers of
JSON take them for the same.
"""

import re
from typing import Any, Final, get_args

from sluicegate.protocol.jsonrpc import BYTES_A_VALUE, Json, inside, without
from sluicegate.protocol.model import LOG_LEVEL, REASON, Reason
from sluicegate.protocol.revisions import HOP_META, LOG_LEVELS

PREFIX: Final = "dev.sluice/"
# W3C Trace Context, traceparent; in `_meta` by SEP-414. `tracestate` and `baggage` may hold any text.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_LONG_S: Final = "\u017f".encode()  # the only character beside ASCII that `casefold` makes a letter of the prefix of
_LONG: Final = 4 * 1024  # bytes; in a longer message its values are walked before its bytes are searched
_MOST: Final = 2_000  # values; of a message with more, the bytes are searched
_VERY_LONG, _FEW = 256 * 1024, 1_000  # bytes and colons of a list of long texts, whose keys are walked at once
REASONS: Final = frozenset(get_args(Reason))


def from_server(value: Any, data: bytes | bytearray) -> Any:
    """`value`, which `data` was read as, without what only Sluice may say. It is changed in place."""
    from_part(value, data)
    # A message has two places for it, which are looked at sooner than a long text is searched. A batch has many.
    if not isinstance(value, list) or b"error" in data or b"\\u" in data:
        for message in value if isinstance(value, list) else (value,):
            if isinstance(message, dict):
                for holder in (message, message.get("result")):  # a task that failed (SEP-2663)
                    if isinstance(holder, dict) and "error" in holder:
                        _forget_reason(holder)
    return value


def from_part(value: Any, data: bytes | bytearray) -> None:
    """The same of a part that is no message of its own."""
    if _may_hold(value, data):
        _remove(value)


def strip(value: Any) -> Any:
    """What of a part of a message became a word of Sluice when its texts were changed. Changed in place."""
    _forget_reason(value)
    return value


def from_client(value: Any, data: bytes | bytearray) -> Any:
    """The same of what a client sends, but for the reason that the agent gives for a request: it is for approvers, who
    see it as the agent's words."""
    if not _may_hold(value, data):
        return value
    given = [
        (meta, meta[REASON])
        for message in (value if isinstance(value, list) else (value,))
        if (meta := _meta(message)) is not None and isinstance(meta.get(REASON), str)
    ]
    _remove(value)
    for meta, reason in given:
        meta[REASON] = reason
    return value


def without_hop(value: Json) -> Json:
    """A result, a task or params of a notification without what its sender says of this hop."""
    meta = value.get("_meta")
    if not isinstance(meta, dict) or HOP_META.isdisjoint(meta):
        return value
    made = value.copy()  # most servers of 2026-07-28 say this of each result: it is on the way of every call
    if HOP_META.issuperset(meta):
        del made["_meta"]
    else:
        made["_meta"] = without(meta, HOP_META)
    return made


def for_server(meta: Json) -> Json:
    """The `_meta` of a client's request as a server may see it."""
    return {key: value for key, value in meta.items() if key != REASON} if REASON in meta else meta


def defined(meta: Json) -> Json:
    """The members of a request's `_meta` that MCP or Sluice defines, in their form: the token of progress, the parent
    of a trace, the level of log messages. Any other text is no part of what an approver saw, and may differ from one
    call to the next."""
    return {key: value for key, value in meta.items() if key.startswith(PREFIX) or _is_defined(key, value)}


def _is_defined(key: str, value: Any) -> bool:
    if key == "traceparent":
        return isinstance(value, str) and _TRACEPARENT.fullmatch(value) is not None
    return key == "progressToken" or (key == LOG_LEVEL and value in LOG_LEVELS)


def _may_hold(value: Any, data: bytes | bytearray) -> bool:
    """Each letter of a key may be written as an escape. With escapes all keys are walked: a search of the bytes for
    every spelling takes longer. In a long message with few values, walking the values is quickest."""
    if len(data) > _LONG and (found := _holds(value, min(len(data) // BYTES_A_VALUE, _MOST))) is not None:
        return found
    if len(data) > _VERY_LONG and data.count(b":") < _FEW:  # a list of long texts
        return True
    return PREFIX.encode() in data.lower() or _LONG_S in data or (
        b"\\" in data and (b"u00" in data or b"u017" in data or b"\\/" in data)
    )


def _holds(value: Any, most: int) -> bool | None:
    """Whether a reserved key stands in it; None where it has more values than `most`."""
    todo: list[Any] = [value]
    for item in todo:  # which grows meanwhile
        kind = type(item)
        if kind is not dict and kind is not list:
            continue
        if len(todo) + len(item) > most:
            return None
        if kind is dict and any(key[: len(PREFIX)].casefold() == PREFIX for key in item):
            return True
        todo += item.values() if kind is dict else item
    return False


def _remove(value: Any) -> None:
    left = [value]
    while left:
        item = left.pop()
        if type(item) is dict:
            for key in [key for key in item if key[: len(PREFIX)].casefold() == PREFIX]:
                del item[key]
            left.extend(inner for inner in item.values() if type(inner) in (dict, list))
        elif type(item) is list:
            left.extend(inner for inner in item if type(inner) in (dict, list))


def _forget_reason(holder: Any) -> None:
    data = inside(holder, "error", "data")
    if isinstance(data, dict):
        for key, value in list(data.items()):
            name = key.casefold()
            is_reason = name == "reason" and isinstance(value, str) and value.casefold() in REASONS
            if is_reason or (name == "approval" and isinstance(value, dict)):
                del data[key]


def _meta(message: Any) -> Json | None:
    meta = inside(message, "params", "_meta")
    return meta if isinstance(meta, dict) else None
