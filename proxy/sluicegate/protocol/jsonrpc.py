"""JSON-RPC 2.0 messages: bytes to message and back, with limits.

Knows JSON-RPC and nothing of MCP: no method name, no revision, no transport stands here.
Two ways in, because two peers are trusted differently: `decode` for what a client sends (strict: one
reading only, so that no second parser can see another message than the one that was judged) and
`decode_fast` for what a configured server answers (one pass in Rust, last duplicate key wins).
"""

import json
import math
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, fields, make_dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError, from_json, to_json

Json = dict[str, Any]
RequestId = str | int

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_RESULT_NODES = 100_000
MAX_ID_CHARS = 1024
# Digits, signs and exponents: an infinity has an exponent of three digits, or of two behind two hundred.
_NUMBERS = bytes(b"0e "[0 if char in b"0123456789+" else 1 if char in b"eE" else 2] for char in range(256))
_EXPONENT = b"0e000"
_MANY_DIGITS = b"0" * 200
MAX_KEPT = 2 * 1024 * 1024  # bytes of a list's JSON that is kept


T = TypeVar("T")


def light(cls: type[T]) -> type[T]:
    """Makes instances of a frozen dataclass as cheaply as those of an ordinary one, which calls no `object.__setattr__`
    for each field. Writing to a field is then an error of mypy alone, and none at run time."""
    declared: Any = cls
    parts = [
        (f.name, f.type, field(default=f.default, default_factory=f.default_factory, kw_only=f.kw_only))
        for f in fields(declared)
    ]
    declared.__init__ = make_dataclass(cls.__name__, parts).__init__  # type: ignore[misc]  # of the class just made
    del cls.__setattr__, cls.__delattr__
    return cls


@light
@dataclass(frozen=True, slots=True)
class Notification:
    """`source` is who says it, where that is told apart; it is not part of the message."""

    method: str
    params: Json
    source: str = field(default="", compare=False, kw_only=True)


@light
@dataclass(frozen=True, slots=True)
class Request:
    id: RequestId
    method: str
    params: Json


@light
@dataclass(frozen=True, slots=True)
class Response:
    """`error` is the JSON-RPC error object; where it is set, `result` is not. `id` is None for an
    error about a message whose id could not be read."""

    id: RequestId | None
    result: Json | None = None
    error: Json | None = None


class SharedList(list[Any]):
    """Is sent to many and never changed: each form of it, and the JSON of each form, is made once."""

    __slots__ = ("_forms", "_json")

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self._forms: dict[str, SharedList] = {}
        self._json: bytes | None = None

    def has_form(self, name: str) -> bool:
        return name in self._forms

    def form(self, name: str, make: Callable[[list[Any]], list[Any]]) -> "SharedList":
        cached = self._forms.get(name)
        if cached is None:
            made = make(self)
            cached = self._forms[name] = self if made is self else SharedList(made)
        return cached

    def json(self) -> bytes:
        """Raises `Malformed` as `dump` does."""
        cached = self._json
        if cached is None:
            cached = dump(self)
            if len(cached) <= MAX_KEPT:
                self._json = cached
        return cached


@light
@dataclass(frozen=True, slots=True)
class ListResponse(Response):
    """`result[key]` is a list, and perhaps a `SharedList`."""

    key: str = ""


Message = Request | Notification | Response


_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_NO_TOKEN = bytes(byte for byte in range(256) if byte not in b",:[{")
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
# What takes more digits than this is no number of 64 bits, and is read in time that grows with the square of them.
_LONG = b"0" * 32
_RUN = re.compile(rb"0++")
_VALUE = 64  # bytes of memory
_DIGITS = 4  # of a long number count as one value
_PARSED_DEPTH = 200  # the parser's own
_PIECE = 64 * 1024
# The id of a message where most programs write it: right at its beginning, or last.
_ID = rb'\s*:\s*(0|[1-9][0-9]{0,17}|"[\x20\x21\x23-\x5b\x5d-\x7e]{0,64}")\s*'
_FIRST_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"' + _ID + rb",")
_LAST_ID = re.compile(rb',\s*"id"' + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
_EDGE = 256
_FINITE = frozenset({str, int, bool, type(None)})
BYTES_A_VALUE = 256
"""Bytes. Where a message has more for each value, walking its values is quicker than searching its bytes."""
_SOME = 16  # values; with fewer allowed, the bytes are searched
_WALKED = 2 * 1024 * 1024  # bytes; in a longer message the values are walked unless they are very many


class Malformed(ValueError):
    """What arrived is no message: `code` is the JSON-RPC error code, `id` the request's where it was readable."""

    def __init__(self, code: int, text: str, id: RequestId | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.id = id


class TooMany(Malformed):
    """It has more values than a message may have; nothing of it was decoded."""

    def __init__(self, most: int) -> None:
        super().__init__(INVALID_REQUEST, f"more than {most} values in a message")


class OutOfRange(Malformed):
    """A message with a number that is too large for JSON's readers. `method` and `id` are those of the message."""

    def __init__(self, value: Any) -> None:
        super().__init__(PARSE_ERROR, "number out of range")
        id, self.method = inside(value, "id"), inside(value, "method")
        self.id = id if is_id(id) else None


def decode(data: bytes, max_depth: int = MAX_DEPTH, max_nodes: int = MAX_NODES) -> Any:
    """The JSON value in `data`, read strictly: it has one reading only.

    Raises `Malformed`: -32700 for what is not UTF-8 JSON (NaN, UTF-16, lone surrogates, numbers out of range
    included), -32600 for duplicate keys, for nesting deeper than `max_depth` and for more than `max_nodes`.
    """
    if len(data) > max_nodes:
        return decode_weighed(data, weigh(data, max_depth, max_nodes))
    # More brackets than levels is no proof of depth, but fewer is a proof of the opposite: one count, no walk.
    if data.count(b"{") + data.count(b"[") > max_depth:
        _check_depth(_without_strings(_without_escapes(data), max_nodes), max_depth)
    try:
        value = from_json(data, allow_inf_nan=False, cache_strings="keys")
        # What is written as it was read was read in the only way: clients that write without blanks, as most do, need
        # no walk.
        if to_json(value) == data:
            return value
    except ValueError:
        raise Malformed(PARSE_ERROR, "not valid UTF-8 JSON") from None
    # Of equal keys the parser keeps the last: where no pair is missing, there were none.
    pairs = _pairs([value])
    if pairs != data.count(b":") and pairs != _without_strings(_without_escapes(data), max_nodes).count(b":"):
        raise Malformed(INVALID_REQUEST, "duplicate key in a JSON object")
    return value


def weigh(data: bytes | bytearray, max_depth: int, max_nodes: int) -> int:
    """The pairs in all objects of `data`, counted on the bytes. Raises `Malformed` (-32600) for what has more than
    `max_nodes` values and names of members, and for what is nested deeper than `max_depth`.

    Each but the first stands behind one of four bytes. Those are counted outside of strings, at the speed of memory, so
    that a refusal costs little.
    """
    return _weigh(_without_strings(_without_escapes(data), max_nodes), max_depth, max_nodes)


def _weigh(left: bytes, max_depth: int, max_nodes: int) -> int:
    nodes = len(left.translate(None, _NO_TOKEN))
    if nodes > max_nodes or nodes + _long_digits(left, _DIGITS * (max_nodes - nodes + 1)) // _DIGITS > max_nodes:
        raise TooMany(max_nodes)
    _check_depth(left, max_depth)
    return left.count(b":")


def _long_digits(left: bytes, enough: int) -> int:
    """The digits of all long numbers, counted until there are `enough`. `find` reads each byte once; a regular
    expression for 32 digits tries each of 31 anew."""
    digits, found = left.translate(_ZEROS), 0
    at = digits.find(_LONG)
    while at >= 0 and found < enough:
        run = _RUN.match(digits, at)
        end = run.end() if run else at + len(_LONG)
        found += end - at
        at = digits.find(_LONG, end)
    return found


def decode_weighed(data: bytes, pairs: int) -> Any:
    """The same as `decode` of what `weigh` found to have that many pairs."""
    value = decode_fast(data)
    if _pairs([value]) != pairs:
        raise Malformed(INVALID_REQUEST, "duplicate key in a JSON object")
    return value


def _without_escapes(data: bytes | bytearray) -> bytes | bytearray:
    if b"\\" in data:  # one byte is found ten times as fast as two
        for escape in (b"\\\\", b'\\"'):  # the order matters: an escaped backslash escapes nothing
            if escape in data:
                data = data.replace(escape, b" ")
    return data


def _without_strings(data: bytes | bytearray, max_nodes: int, is_within: int = 0) -> bytes:
    """What stands outside of strings, a blank for each; where it `is_within`, `data` begins in one. Raises `Malformed`
    where there are so many that their list would be long."""
    parts = data.split(b'"', 2 * max_nodes + 3)
    if len(parts) > 2 * max_nodes + 3:
        raise TooMany(max_nodes)
    return b" " * is_within + b" ".join(parts[is_within::2])


def _pairs(values: Iterable[Any]) -> int:
    """The pairs in all objects. Raises `Malformed` for an infinity, which is what the fast parser makes of 1e999."""
    found = 0
    for value in values:
        kind = type(value)
        if kind is dict:
            found += len(value) + _pairs(value.values())
        elif kind is list:
            found += _pairs(value)
        elif kind is float and math.isinf(value):
            raise Malformed(PARSE_ERROR, "number out of range")
    return found


def _check_depth(left: bytes, max_depth: int) -> None:
    """Bracket depth of what stands outside of strings, before the parser recurses on it. Each round takes the innermost
    level away at the speed of C."""
    left = left.translate(_SQUARE, _NO_BRACKET)
    too_deep = b"[" * (max_depth + 1)
    for _ in range(max_depth):
        before, left = len(left), left.replace(b"[]", b"")
        if len(left) == before or too_deep in left:
            break
    if left[:1] == b"]":
        return  # no JSON at all: the parser says so better
    if b"]" in left or len(left) > max_depth:
        raise Malformed(INVALID_REQUEST, f"nested deeper than {max_depth} levels")


def check_nodes(data: bytes | bytearray, max_nodes: int) -> None:
    """Raises `TooMany`, and `Malformed` for what is nested deeper than the parser goes."""
    if len(data) > max_nodes:
        weigh(data, _PARSED_DEPTH, max_nodes)


def check_in_pieces(data: bytes | bytearray, max_nodes: int) -> Generator[None, None, None]:
    """The same of a large message, in many steps."""
    if len(data) <= max_nodes or (yield from _has_few(data, max_nodes)):
        return
    left: list[bytes] = []
    at = quotes = nodes = 0
    while at < len(data):
        piece = data[at : at + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it ends within an escape
            piece = data[at : at + _PIECE + 1]
        at += len(piece)
        piece = _without_escapes(piece)
        left.append(_without_strings(piece, max_nodes, quotes % 2))
        quotes += piece.count(b'"')
        nodes += len(left[-1].translate(None, _NO_TOKEN))
        if quotes > 2 * max_nodes + 2 or nodes > max_nodes:
            raise TooMany(max_nodes)
        yield
    _weigh(b"".join(left), _PARSED_DEPTH, max_nodes)


def _has_few(data: bytes | bytearray, max_nodes: int) -> Generator[None, None, bool]:
    """Whether it has at most `max_nodes` values and no long number, even if its texts are counted as JSON. False proves
    nothing. For a mebibyte of text this takes a fifth of the time of taking the texts out first. The parser bounds the
    depth."""
    tokens = quotes = 0
    for at in range(0, len(data), _PIECE):
        piece = data[at : at + _PIECE + len(_LONG)]
        tokens += len(piece.translate(None, _NO_TOKEN))
        quotes += piece.count(b'"')
        if tokens > max_nodes or quotes > 2 * max_nodes or _LONG in piece.translate(_ZEROS):
            return False
        yield
    return True


def decode_fast(data: bytes | bytearray, is_in_range: bool | None = None) -> Any:
    """The JSON value of a server's answer: one pass, depth bounded by the parser (200). Raises `Malformed`, and
    `OutOfRange` for a number that the parser makes an infinity, such as 1e999. `is_in_range` is what `in_range` has
    said, if it was asked."""
    try:
        value = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        raise Malformed(PARSE_ERROR, "not valid UTF-8 JSON") from None
    if is_in_range is None and (most := len(data) // BYTES_A_VALUE) > _SOME:
        is_in_range = _is_finite(value, most)  # to walk a few values is quicker than to search a long text
    if not (_is_in_range(data) if is_in_range is None else is_in_range):
        _check_range(value)
    return value


def decode_document(data: bytes) -> Any:
    """The JSON value of a document that is no message, and may have a byte order mark. Numbers may be infinite, or
    none. 256 KiB of numbers take 3 ms here, and up to 150 ms in `json`. Raises `Malformed`."""
    try:
        return from_json(data.removeprefix(BOM_UTF8))
    except ValueError:
        raise Malformed(PARSE_ERROR, "not valid UTF-8 JSON") from None


def check_range(value: Any, data: bytes | bytearray) -> Generator[None, None, None]:
    """Raises `OutOfRange` for an infinity in the value that a large message was read as."""
    is_finite = _is_finite(value, min(len(data) // BYTES_A_VALUE, MAX_NODES))
    if not is_finite and (is_finite is False or not (yield from in_range(data))):
        _check_range(value)


def _check_range(value: Any) -> None:
    try:
        _pairs([value])
    except Malformed:
        raise OutOfRange(value) from None


def _is_in_range(data: bytes | bytearray) -> bool:
    """Whether no number in it is an infinity. False is no proof: texts look like numbers, too."""
    shape = data.translate(_NUMBERS)
    return _EXPONENT not in shape and _MANY_DIGITS not in shape


def in_range(data: bytes | bytearray) -> Generator[None, None, bool]:
    """The same of a large message, in many steps."""
    for start in range(0, len(data), _PIECE):
        if not _is_in_range(data[start : start + _PIECE + len(_MANY_DIGITS)]):
            return False
        yield
    return True


def id_unread(data: bytes | bytearray) -> RequestId | None:
    """The id of a message that is not to be decoded, where it stands at one of its ends; else None."""
    found = _FIRST_ID.match(data[:_EDGE]) or _LAST_ID.search(data[-_EDGE:])
    return json.loads(found[1]) if found else None


def digest_but_id(data: bytes, id: int) -> Generator[None, None, bytes]:
    """A digest that is equal for messages that differ only in their id. Empty if `id` is not the id of this message, or
    does not stand near its beginning or end."""
    found, start = _FIRST_ID.match(data[:_EDGE]), 0
    if found is None:
        found, start = _LAST_ID.search(data[-_EDGE:]), max(0, len(data) - _EDGE)
    if found is None or found[1] != b"%d" % id:
        return b""
    state, view = blake2b(b"%d" % (start + found.start(1)), digest_size=32), memoryview(data)
    for part in (view[: start + found.start(1)], view[start + found.end(1) :]):
        for at in range(0, len(part), 4 * _PIECE):
            state.update(part[at : at + 4 * _PIECE])
            yield
    return state.digest()


def inside(value: Any, *names: str) -> Any:
    """What stands at that path of names in nested objects; None where one of them is missing or no object."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def error_text(error: Json) -> str:
    """What an error says. A message that is no text says nothing: written out it would be four times as long."""
    message = error.get("message")
    return message if isinstance(message, str) and message else "Error"


def without(value: Any, names: frozenset[str]) -> Any:
    """An object without these members: the very same object where it has none of them, or is none."""
    if not isinstance(value, dict) or names.isdisjoint(value):
        return value
    return {name: part for name, part in value.items() if name not in names}


def is_id(value: Any) -> bool:
    """MCP ids are strings or integers, never null (basic/index#requests in every revision); a boolean is no integer."""
    return type(value) is int or (type(value) is str and len(value) <= MAX_ID_CHARS)


def read(value: Any) -> Message:
    """One decoded JSON value as a message. Raises `Malformed` (-32600), with the id where it is readable."""
    if not isinstance(value, dict):
        raise Malformed(INVALID_REQUEST, "a message is a JSON object")
    id = value.get("id")
    if not is_id(id):
        id = None
    if value.get("jsonrpc") != "2.0":
        raise Malformed(INVALID_REQUEST, 'jsonrpc must be "2.0"', id)
    method = value.get("method")
    if method is None:
        result, error = value.get("result"), value.get("error")
        if isinstance(error, dict) and "result" not in value:
            return Response(id, error=error)
        if isinstance(result, dict) and "error" not in value and id is not None:
            return Response(id, result=result)
        raise Malformed(INVALID_REQUEST, "neither a request, a notification nor a response", id)
    if not isinstance(method, str):
        raise Malformed(INVALID_REQUEST, "method must be a string", id)
    params = value.get("params")
    if params is None:
        params = {}
    elif not isinstance(params, dict):
        raise Malformed(INVALID_REQUEST, "params must be an object", id)
    if id is not None:
        return Request(id, method, params)
    if "id" in value:
        raise Malformed(INVALID_REQUEST, "id must be a string or an integer")
    return Notification(method, params)


def to_value(message: Message) -> Json:
    """The message as the JSON object that goes on the wire. Empty notification params are left out."""
    if isinstance(message, Response):
        if message.error is not None:
            # An error about an unreadable request carries no id at all (2025-11-25 and later schema: optional).
            head: Json = {"jsonrpc": "2.0"} if message.id is None else {"jsonrpc": "2.0", "id": message.id}
            return {**head, "error": message.error}
        return {"jsonrpc": "2.0", "id": message.id, "result": message.result}
    if isinstance(message, Request):
        return {"jsonrpc": "2.0", "id": message.id, "method": message.method, "params": message.params}
    if message.params:
        return {"jsonrpc": "2.0", "method": message.method, "params": message.params}
    return {"jsonrpc": "2.0", "method": message.method}


def encode(message: Message) -> bytes:
    """One message as UTF-8 JSON without a line break. Raises `Malformed` for what JSON cannot say."""
    return _encode_list(message) if type(message) is ListResponse else dump(to_value(message))


def _encode_list(message: ListResponse) -> bytes:
    result = message.result or {}
    items = result.get(message.key)
    if type(items) is not SharedList:
        return dump(to_value(message))
    rest = {name: value for name, value in result.items() if name != message.key}
    return encode_result(message.id, b"{%b:%b}" % (dump(message.key), items.json()), rest)


def encode_result(id: RequestId | None, text: bytes, added: Json | None = None) -> bytes:
    """The response whose result is `text`, a JSON object, and has besides what was `added`: no member of both. Copied
    once, as each copy of a megabyte takes half a millisecond, and encoding it one and more."""
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % to_json(id)
    if not added:
        return b"%b%b}" % (head, text)
    rest = to_json(added)
    return b"%b%b}" % (head, rest) if text == b"{}" else b"".join((head, memoryview(text)[:-1], b",", rest[1:], b"}"))


def size_of(value: Any) -> int:
    """Bytes of a value as JSON; what JSON cannot say is larger than any bound."""
    try:
        return len(to_json(value))
    except PydanticSerializationError:
        return sys.maxsize


def weight_of(value: Any) -> int:
    """About the bytes that a value takes in memory: those of its JSON, and some for each value, of which a text is one.
    4 MiB of empty lists would be 140 MiB. A value that JSON cannot express weighs more than any bound."""
    try:
        data = to_json(value)
    except PydanticSerializationError:
        return sys.maxsize
    if len(tokens := data.translate(None, _NO_TOKEN)) > _SOME:
        tokens = _without_strings(_without_escapes(data), len(data)).translate(None, _NO_TOKEN)
    return len(data) + _VALUE * len(tokens)


def dump(value: Any) -> bytes:
    """Any JSON value as bytes. Raises `Malformed` for infinities, NaN and lone surrogates."""
    try:
        data = to_json(value)
    except PydanticSerializationError:
        raise Malformed(INTERNAL_ERROR, "a value that JSON cannot say") from None
    if not _is_sayable(value, data):
        raise Malformed(INTERNAL_ERROR, "a number that JSON cannot say")
    return data


def _is_sayable(value: Any, data: bytes) -> bool:
    """Whether no number is infinite or NaN: `to_json` writes these as bare words into `data`. The words are rare, so
    the walk that tells them from text is, too. In a long message the values are walked first."""
    if b"I" not in data and b"N" not in data:
        return True
    most = MAX_RESULT_NODES if len(data) > _WALKED else len(data) // BYTES_A_VALUE
    if most > _SOME and (is_finite := _is_finite(value, most)) is not None:
        return is_finite
    return not (b"Infinity" in data or b"NaN" in data) or bool(_is_finite(value))


def _is_finite(value: Any, most: float = math.inf) -> bool | None:
    """None where it has more values than `most`."""
    found: list[Any] = [value]
    for item in found:  # which grows meanwhile
        if isinstance(item, dict):
            found += item.values()
        elif isinstance(item, list | tuple):
            if len(found) + len(item) > most:
                return None
            found += [part for part in item if type(part) not in _FINITE]
        elif isinstance(item, float) and not math.isfinite(item):
            return False
        if len(found) > most:
            return None
    return True
