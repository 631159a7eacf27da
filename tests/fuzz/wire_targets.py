"""What clients and servers send, read by Sluice in one piece and in many: each target says what must hold.

Where another reader of the same format is at hand, both say the same.
"""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from random import Random
from typing import Any, Final
from zlib import crc32

import h11
import httptools
import httpx
from http1_talk import Talk, talk
from httpx_sse import EventSource

from sluicegate.downstream.transport.stdio_transport import Lines
from sluicegate.http.sse import EventParser, EventTooLarge, StreamPosition
from sluicegate.listen import stdio
from sluicegate.listen.http_exchange import event
from sluicegate.listen.line_streams import lines
from sluicegate.protocol import jsonrpc
from sluicegate.protocol.jsonrpc import Malformed, decode, decode_fast, dump, encode, read
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result
from sluicegate.runtime.spool import Spool, SpoolFull, Spools

Json = dict[str, Any]
LOOP = asyncio.new_event_loop()
PIPELINED: Final = 8
"""Requests that may wait for the one before: how many waited when one more came depends on how the bytes came."""

# ---------------------------------------------------------------- bytes in pieces


def ways(data: bytes) -> list[list[bytes]]:
    """How the bytes may be cut on their way, the same each time: at random places, and behind each byte."""
    random = Random(crc32(data))
    found = [[data[start:end] for start, end in pairwise(sorted({0, len(data), *edges}))] for edges in (
        [random.randrange(len(data) + 1)], [random.randrange(len(data) + 1) for _ in range(6)])]  # fmt: skip
    return [*found, [data[at : at + 1] for at in range(len(data))]] if len(data) <= 100 else found


# ---------------------------------------------------------------- HTTP/1


def http1(data: bytes) -> None:
    """One reading of a request, however it came; a second parser has the same; every answer can be read."""
    LOOP.run_until_complete(_http1(data))


async def _http1(data: bytes) -> None:
    whole = await talk([data])
    for pieces in ways(data):
        cut = await talk(pieces)
        if min(len(cut.served), len(whole.served)) > PIPELINED:  # the connection ends where too many wait at once
            assert all(one == other for one, other in zip(cut.served, whole.served, strict=False)), (pieces, cut, whole)
        else:
            assert (cut.served, cut.is_over) == (whole.served, whole.is_over), (pieces, cut, whole)
    _check_requests(whole, len(data))
    _check_answers(whole)
    if whole.served:
        _check_first_request(whole, data)
        if not whole.is_over:
            thrice, joined = await talk([data] * 3, True), await talk([data * 3])  # the third is not parsed anew
            assert thrice.served == joined.served or len(joined.served) > PIPELINED, (thrice, joined)
            _check_answers(thrice)


_TOKEN = re.compile(rb"[!#$%&'*+.^`|~0-9a-z-]+")


def _check_requests(found: Talk, size: int) -> None:
    assert sum(len(body) for *_, body in found.served) <= size
    for _, path, _, headers, _ in found.served:
        names = [name for name, _ in headers]
        assert names.count(b"host") == 1 and path.startswith("/") and "#" not in path and "\\" not in path
        assert not (b"transfer-encoding" in names and b"content-length" in names)
        assert len(headers) <= 128
        for name, value in headers:
            assert _TOKEN.fullmatch(name), name
            assert value.isascii() and not re.search(rb"[\r\n\0]", value), value


class _Answers:
    def __init__(self) -> None:
        self.count = 0

    def on_message_complete(self) -> None:
        self.count += 1


def _check_answers(found: Talk) -> None:
    """One for each request, and perhaps one for what was refused."""
    text, interim = found.sent, b"HTTP/1.1 100 Continue\r\n\r\n"
    answers = _Answers()
    text = text.replace(interim, b"")
    # A client reads no further than the answer that ends the connection.
    httptools.HttpResponseParser(answers).feed_data(text)
    assert len(re.findall(rb"HTTP/1\.1 [0-9]{3} ", text)) == answers.count >= len(found.served), text


def _check_first_request(found: Talk, data: bytes) -> None:
    """h11 reads the same, if it reads it at all."""
    method, path, query, headers, body = found.served[0]
    other = h11.Connection(h11.SERVER)
    other.receive_data(data)
    text = b""
    try:
        request = other.next_event()
        while isinstance(part := other.next_event(), h11.Data):
            text += part.data
    except h11.RemoteProtocolError:
        return
    assert isinstance(request, h11.Request) and isinstance(part, h11.EndOfMessage), (request, part)
    target = path.encode() + (b"?" + query if query else b"")
    assert request.method.decode() == method and request.target in (target, target + b"?"), request
    assert body == text, (body, text)
    coding = b"transfer-encoding"  # h11 writes it in lower case
    mine = [(name, value.lower() if name == coding else value) for name, value in headers]
    assert mine == [*request.headers], (mine, request)


# ---------------------------------------------------------------- JSON-RPC


def json_rpc(data: bytes) -> None:
    """What is read has one reading, that of Python's own parser; every reader of ours agrees; bounds hold."""
    for depth, nodes in ((64, 20_000), (6, 24)):
        value = _checked_json(data, depth, nodes)
        if value is not None:
            _check_message(value)
    _check_fast(data)


def attempt(work: Callable[[], Any]) -> tuple[Any, int]:
    """The value, or the code of the error."""
    try:
        return work(), 0
    except Malformed as error:
        return None, error.code


def _checked_json(data: bytes, depth: int, nodes: int) -> Any:
    found = attempt(lambda: decode(data, depth, nodes))
    weighed = attempt(lambda: jsonrpc.decode_weighed(data, jsonrpc.weigh(data, depth, nodes)))
    assert found == weighed or (found[1] and weighed[1]), (found, weighed)
    value, code = found
    expected = by_stdlib(data)
    if code:
        is_small = expected is not NOTHING and _depth(expected) <= depth and len(data) <= nodes
        assert not is_small, ("refused without a reason", code, expected)
        return None
    assert expected is not NOTHING and _same(value, expected), (value, expected)
    assert _depth(value) <= depth and (len(data) <= nodes or _nodes(value) - 1 <= nodes)
    again = dump(value)
    assert _same(decode(again, depth + 1, 10 * len(again) + 10), value)
    id = jsonrpc.id_unread(data)
    assert id is None or (isinstance(value, dict) and value.get("id") == id), (id, value)
    return value


NOTHING = object()


def by_stdlib(data: bytes) -> Any:
    """The value; `NOTHING` for what is no JSON, or has two readings."""

    def once(pairs: list[tuple[str, Any]]) -> Json:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    def refuse(word: str) -> Any:
        raise ValueError(word)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")  # no lone surrogate, no infinity
    except (ValueError, RecursionError):
        return NOTHING
    return value


def _same(one: Any, other: Any) -> bool:
    """Also by type: 1 is not 1.0, and -0.0 is not 0.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and bool(one == other)


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def _nodes(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_nodes, value.values()))
    return 1 + sum(map(_nodes, value)) if isinstance(value, list) else 1


def _check_message(value: Any) -> None:
    message, code = attempt(lambda: read(value))
    if not code:
        assert read(decode(encode(message))) == message


def _check_fast(data: bytes) -> None:
    """The reader of servers' messages, in one piece and in many."""
    fast, code = attempt(lambda: decode_fast(data))
    if not code:
        assert "inf" not in repr(fast).lower() or _same(decode_fast(dump(fast)), fast)
    strict, strict_code = attempt(lambda: decode(data))
    assert strict_code or _same(fast, strict)
    with _pieces_of(3):
        in_pieces = attempt(lambda: _result(jsonrpc.check_in_pieces(data, 24)))
        at_once = attempt(lambda: jsonrpc.check_nodes(data, 24))
        assert in_pieces == at_once, (in_pieces, at_once)
        told = attempt(lambda: decode_fast(data, _result(jsonrpc.in_range(data))))
    assert told[1] == code and _same(told[0], fast)


def _result(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@contextmanager
def _pieces_of(size: int) -> Iterator[None]:
    """A mebibyte is more than a fuzzer makes."""
    before, jsonrpc._PIECE = jsonrpc._PIECE, size
    try:
        yield
    finally:
        jsonrpc._PIECE = before


# ---------------------------------------------------------------- event streams


def sse(data: bytes) -> None:
    """The events are those of httpx-sse, however the stream was cut; none is over the bound; ours read back."""
    stream = data + b"\n:"  # what follows a CR shows that it ends a line
    for limit, is_kept in ((64, False), (64, True), (10_000, False)):
        found, position = _events([stream], limit, is_kept)
        for pieces in ways(stream):
            cut, place = _events(pieces, limit, is_kept)
            assert place == position and (place is None or cut == found), (pieces, cut, found)
        assert is_kept or all(len(one) <= limit for one in found)
    _check_foreign_events(data)
    text = data.translate(None, b"\r\n")
    if text:
        assert _events([event(text, "1-2")], len(text) + 100)[0] == [text]


def _events(pieces: list[bytes], limit: int, is_kept: bool = False) -> tuple[list[bytes], StreamPosition | None]:
    """What came out, and where the stream is then; no position where an event was too large."""
    spools, position = Spools(200, 1_000_000), StreamPosition()
    parser = EventParser(position, limit, _keeper(spools) if is_kept else lambda data: None, takes_endpoint=True)
    found: list[bytes] = []
    try:
        for piece in pieces:
            found += [_whole(one) for one in parser.feed(piece)]
    except EventTooLarge:
        return found, None
    return found, position


def _keeper(spools: Spools) -> Callable[[bytes], Spool | None]:
    def keep(data: bytes) -> Spool | None:
        try:
            made = spools.spool()
            made.write(data)
        except SpoolFull:
            return None
        return made

    return keep


def _whole(one: bytes | Spool) -> bytes:
    if isinstance(one, bytes):
        return one
    one.file.seek(0)
    text = one.file.read()
    one.close()
    return text


def _check_foreign_events(data: bytes) -> None:
    """As in tests/downstream: an event at the end says which id is in force, and what follows a CR ends a line."""
    stream = data + b"\n\nevent: message\ndata: end\n\n:"
    bare = stream.removeprefix(b"\xef\xbb\xbf")  # which httpx-sse takes for text
    whole = httpx.Response(200, headers={"content-type": "text/event-stream; charset=latin-1"}, content=bare)
    try:
        expected = list(EventSource(whole).iter_sse())
    except ValueError:  # it takes digits that are none for numbers
        return
    mine, position = _events([stream], 10_000)
    assert position is not None
    assert mine == [one.data.encode("latin-1") for one in expected if one.event == "message" and one.data]
    if len(expected[-1].id) < 1000 and not re.search(rb"(?m)^id:.{1000}", stream):
        assert position.id == expected[-1].id.encode("latin-1").decode("utf-8", "replace")


# ---------------------------------------------------------------- lines


def stdio_lines(data: bytes) -> None:
    """Both readers of lines find those that are there, however the bytes were cut; none is over its bound."""
    limit = 24
    *ended, rest = data.split(b"\n")
    whole = [*ended, rest] if rest else ended
    expected = [line if len(line) <= limit else None for line in whole]
    for pieces in [[data], *ways(data)]:
        assert LOOP.run_until_complete(_lines_of(pieces, limit)) == expected, pieces
        found, is_refused = _server_lines(Lines(limit), pieces)
        is_long = any(len(line) > limit for line in whole)
        assert is_refused == is_long and (is_long or found == ended), (pieces, found)
        found, is_refused = _server_lines(Lines(limit, _keeper(Spools(100, 10_000))), pieces)
        is_long = any(len(line) > 100 for line in whole)
        assert is_refused == is_long and (is_long or found == ended), (pieces, found)


def _server_lines(reader: Lines, pieces: list[bytes]) -> tuple[list[bytes], bool]:
    found: list[bytes] = []
    try:
        for piece in pieces:
            found += [_whole(line) for line in reader.feed(piece)]
    except ValueError:
        return found, True
    return found, False


class _Pieces:
    """A stream that gives what it is made of, each piece `turns` of the loop after the one before."""

    def __init__(self, pieces: Sequence[bytes], turns: int = 0) -> None:
        self._left, self._turns = [piece for piece in reversed(pieces) if piece], turns

    async def read(self, n: int) -> bytes:
        for _ in range(self._turns):
            await asyncio.sleep(0)  # what was read before has its turn
        return self._left.pop() if self._left else b""


async def _lines_of(pieces: list[bytes], limit: int) -> list[bytes | None]:
    return [line async for line in lines(_Pieces(pieces), limit)]


class _Written:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        """There is always room."""

    def is_closing(self) -> bool:
        return False


async def _answer(call: Call) -> Outcome:
    if call.method == "server/discover":
        return Result({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
    if call.method == "subscriptions/listen":
        await asyncio.Event().wait()
    if call.method == "tools/call":
        return Result({"content": [{"type": "text", "text": json.dumps(call.params.get("arguments"))}]})
    return Result({"tools": []}) if call.method == "tools/list" else Failure(-32602, "there is none")


def stdio_session(data: bytes) -> None:
    """Every answer is a message, belongs to a request, and is the only one; however the bytes were cut."""
    whole = _session_on([data])
    asked, is_clear = _asked(data)
    answered = Counter[Any]()
    for message in whole:
        assert message.get("jsonrpc") == "2.0" and ("result" in message) != ("error" in message), message
        answered[_key(message.get("id"))] += 1
    for id, number in answered.items():
        assert id is None or number <= asked[id], (id, number, asked, whole)
    if is_clear:
        assert all(answered[id] == number for id, number in asked.items()), (asked, whole)
        for pieces in ways(data):
            assert sorted(map(repr, _session_on(pieces))) == sorted(map(repr, whole)), pieces


def _session_on(pieces: list[bytes]) -> list[Json]:
    out, ended = _Written(), list[str]()

    async def run() -> None:
        await stdio.serve(
            _answer, reader=_Pieces(pieces, 8), writer=out, client=Client("local"), server_info={"name": "s"},
            on_session_end=ended.append, max_line=1024, max_depth=16, max_nodes=200, grace=1.0,
        )  # fmt: skip

    LOOP.run_until_complete(asyncio.wait_for(run(), 10))
    found: list[Json] = []
    for line in out.data.splitlines():
        message = decode(line)
        found += message if isinstance(message, list) else [message]
    return [message for message in found if "method" not in message]


def _key(id: Any) -> Any:
    return None if id is None else (type(id).__name__, id)


def _asked(data: bytes) -> tuple[Counter[Any], bool]:
    """How often each id stands in a message, and whether each of these is answered for certain."""
    found, is_clear = Counter[Any](), not re.search(rb"cancelled|listen|\\u|\"(result|error)\"|\[", data)
    for line in data.split(b"\n"):
        value = attempt(lambda line=line: decode(line, 16, 200))[0] if len(line) <= 1024 else None
        if len(line) > 1024:
            continue
        if value is None:  # a number out of range is refused, and its request is told so
            with suppress(ValueError, RecursionError):
                value, is_clear = json.loads(line), False
        for one in value if isinstance(value, list) else [value]:
            id = one.get("id") if isinstance(one, dict) else None
            if jsonrpc.is_id(id):
                found[_key(id)] += 1
                is_clear = is_clear and not attempt(lambda one=one: read(one))[1]
    return found, is_clear


