"""Values that a modern client mirrors from the body into HTTP headers, both ways.

2026-07-28 basic/transports/streamable-http#value-encoding and #custom-headers-from-tool-parameters.
Pure text: knows nothing of HTTP libraries or of where a header came from.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

from sluicegate.protocol.derived_cache import DerivedCache
from sluicegate.protocol.jsonrpc import Json, inside
from sluicegate.protocol.model import HEADER_MISMATCH, Failure

_SENTINEL = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
# Visible ASCII, with blanks inside only, that is not read as the sentinel.
_PLAIN = re.compile(r"(?!=\?base64\?.*\?=\Z)(?:[!-~](?:[ -~]*[!-~])?)?")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SAFE_INTEGER = 2**53 - 1

_HEADER: Final = "x-mcp-header"
_HOLDERS: Final = (dict, list)
MAX_ANNOTATIONS: Final = 64
"""Of one tool: each is looked for in the arguments of each call."""

Annotations = Mapping[tuple[str, ...], str]
"""Property path -> header name."""


def encode_value(value: str | int | bool) -> str:
    """A parameter as a header value: plain where that is unambiguous, else in the base64 sentinel."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decode_value(value: str) -> str | None:
    """The text a header value stands for; None where its sentinel holds no base64 of UTF-8, or holds it in another
    spelling than the one that encoding gives (RFC 4648 3.5): decoders differ about bits that stand for nothing."""
    sentinel = _SENTINEL.fullmatch(value)
    if sentinel is None:
        return value
    try:
        data = base64.b64decode(sentinel[1], validate=True)
        return data.decode() if base64.b64encode(data).decode() == sentinel[1] else None
    except (binascii.Error, ValueError):
        return None


def annotations(schema: Any) -> dict[tuple[str, ...], str]:
    """Property path -> header name for each `x-mcp-header` of an inputSchema.

    Raises `ValueError` with the reason where one breaks the constraints of the page above: the tool
    definition as a whole is invalid then.
    """
    found, count = _found(schema)
    if count != len(found):
        raise ValueError("x-mcp-header where no chain of `properties` leads")
    names = [name.lower() for name in found.values()]
    if len(set(names)) != len(names):
        raise ValueError("two x-mcp-header values differ only in case")
    return found


def annotations_of(tool: Json) -> Annotations | None:
    """Those of a tool's definition, None where they are invalid. Walking a schema costs more than relaying a
    call, so it is walked once."""
    return _valid.of(tool)


def _read(tool: Json) -> Annotations | None:
    try:
        return annotations(tool.get("inputSchema"))
    except ValueError:
        return None


_valid: Final = DerivedCache(_read)

_Path = tuple[Any, str] | None
"""The path to what holds it, and its own name; None for the whole."""


def _found(schema: Any) -> tuple[dict[tuple[str, ...], str], int]:
    """Those along chains of `properties`, and how many stand anywhere; a *property* of that name is none."""
    found: dict[tuple[str, ...], str] = {}
    count = 0
    # A value, where it stands, whether a chain leads there, and whether its members are properties.
    todo: list[tuple[Any, _Path, bool, bool]] = [(schema, None, True, False)] if isinstance(schema, _HOLDERS) else []
    while todo:
        value, path, is_chained, is_map = todo.pop()
        if isinstance(value, list):
            todo += [(inner, None, False, False) for inner in value if inner and isinstance(inner, _HOLDERS)]
            continue
        if not is_map and _HEADER in value:
            count += 1
            if count > MAX_ANNOTATIONS:
                raise ValueError(f"more than {MAX_ANNOTATIONS} x-mcp-header")
            if is_chained and path is not None:
                found[_whole(path)] = _checked(value[_HEADER], value.get("type"))
        for key, inner in value.items():
            if inner and isinstance(inner, _HOLDERS):
                is_properties = key == "properties" and not is_map
                position = path if is_properties else (path, key)
                todo.append((inner, position, is_chained and (is_map or is_properties), is_properties))
    return found, count


def _whole(path: _Path) -> tuple[str, ...]:
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(name)
    return tuple(reversed(names))


def _checked(name: Any, kind: Any) -> str:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError("x-mcp-header is not a header name")
    if kind not in ("string", "integer", "boolean"):
        raise ValueError("x-mcp-header on a parameter that is no string, integer or boolean")
    return name


def check_mirrored(tool: Json, arguments: Json, mirrored: Mapping[str, str]) -> Failure | None:
    """Whether the client's `Mcp-Param-*` headers (lower-cased, without that prefix) say what the body says
    (#server-validation). Headers that no annotation asks for are ignored, and so are invalid annotations: such a
    tool is not listed over HTTP, and its server judges."""
    for path, name in (annotations_of(tool) or {}).items():
        value, header = inside(arguments, *path), mirrored.get(name.lower())
        if header is None:
            if value is not None:
                return _mismatch(f"Mcp-Param-{name} is missing")
        elif value is None or not _same(decode_value(header), value):
            return _mismatch(f"Mcp-Param-{name} does not say what the body says")
    return None


def _same(header: str | None, value: Any) -> bool:
    if header is None:
        return False
    if isinstance(value, bool):
        return header == ("true" if value else "false")
    if isinstance(value, int):
        return bool(re.fullmatch(r"-?[0-9]{1,16}", header)) and int(header) == value and abs(value) <= _SAFE_INTEGER
    return bool(header == value)


def _mismatch(text: str) -> Failure:
    return Failure(HEADER_MISMATCH, f"Header mismatch: {text}")
