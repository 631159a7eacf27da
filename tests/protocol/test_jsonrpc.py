"""JSON-RPC in and out: one strict reading of what a client sends."""

import json
import math
import re
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from sluicegate.protocol import jsonrpc
from sluicegate.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MAX_KEPT,
    MAX_RESULT_NODES,
    PARSE_ERROR,
    ListResponse,
    Malformed,
    Notification,
    OutOfRange,
    Request,
    Response,
    SharedList,
    TooMany,
    check_in_pieces,
    check_nodes,
    decode,
    decode_fast,
    decode_weighed,
    digest_but_id,
    dump,
    encode,
    encode_result,
    id_unread,
    in_range,
    read,
    to_value,
    weigh,
)
from sluicegate.protocol.pieces import in_one_step

UNPARSABLE = {
    "not JSON": b"{",
    "nothing": b"",
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":-Infinity}',
    "a number out of range": b'{"a":1e999}',
    "an integer over 4,300 digits": b"1" * 5000,
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-16 without a mark": '{"a":1}'.encode("utf-16-le"),
    "Latin-1": b'{"a":"\xe9"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a lone surrogate": b'{"a":"\\ud800"}',
    "a trailing comma": b'{"a":1,}',
    "two values": b"{}{}",
    "a raw control character": b'{"a":"\n"}',
}


@pytest.mark.parametrize("body", UNPARSABLE.values(), ids=UNPARSABLE.keys())
def test_what_is_no_json_is_a_parse_error(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        decode(body)
    assert caught.value.code == PARSE_ERROR
    assert caught.value.text == ("number out of range" if b"1e999" in body else "not valid UTF-8 JSON")


@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b'{"p":{"name":"ok","name":"bad"}}', b'[{"\\u0061":1,"a":2}]'])
def test_duplicate_keys_are_refused_however_they_are_spelt(body: bytes) -> None:
    with pytest.raises(Malformed, match="duplicate") as caught:
        decode(body)
    assert caught.value.code == INVALID_REQUEST


# What could make the fast reading and the strict one differ: equal keys in other spellings, colons anywhere, numbers at
# the edges of what is one, and whatever is no JSON at all.
PIECES = st.sampled_from(
    [b"{", b"}", b"[", b"]", b",", b":", b'"a":', b'"a" :', b'"\\u0061":', b'"\\u003a":', b'":":', b'"a:":', b'"',
     b'"a"', b'":"', b'"\\""', b'"\\\\"', b'"\\ud800"', b"1", b"-0", b"1e999", b"-1e999", b"1e308", b"0.1", b"01",
     b"9" * 400 + b".0", b"9" * 4300, b"9" * 4301, b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b" ", b"\n",
     b"\t", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\0"]
)  # fmt: skip
HOSTILE = st.lists(PIECES, max_size=14).map(b"".join)
KEY = st.sampled_from([b'"a"', b'"b"', b'":"', b'"a:b"', b'"\\u0061"', b'"\\u003a"', b'""'])
VALUE: st.SearchStrategy[bytes] = st.recursive(
    st.sampled_from([b"1", b'":"', b'"x:y"', b"1e999", b"-0.0", b"null", b'"\\u003a"', b"9" * 4301]),
    lambda inner: (
        st.lists(st.tuples(KEY, st.sampled_from([b":", b" :", b": "]), inner).map(b"".join), max_size=4).map(
            lambda pairs: b"{" + b",".join(pairs) + b"}"
        )
        | st.lists(inner, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]")
    ),
    max_leaves=12,
)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise Malformed(INVALID_REQUEST, "duplicate key")
    return dict(pairs)


def strictly(body: bytes) -> Any:
    """The reading of another parser, which says of each object whether it has a key twice."""

    def never(text: str) -> Any:
        raise ValueError(text)

    def finite(text: str) -> float:
        return float(text) if math.isfinite(float(text)) else never(text)

    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_float=finite, parse_constant=never)
    value = decoder.decode(body.decode("utf-8"))
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # no lone surrogates
    return value


def verdict(read: Any, body: bytes) -> Any:
    try:
        return repr(read(body))  # so that 1, 1.0 and True differ
    except ValueError:
        return "refused"


@settings(max_examples=10 * settings.default.max_examples)
@given(HOSTILE | VALUE)
@example(b'{"a":1,"a":":"}')
@example(b'{"a":{"b":1},"a":":::"}')
@example(b'{"a":1,"\\u0061":"\\u003a"}')
@example(b'{"a":1e999}')
@example(b"[" + b"9" * 309 + b".0]")
def test_the_fast_reading_is_the_strict_one_or_none(body: bytes) -> None:
    assert verdict(decode, body) == verdict(strictly, body)
    assert verdict(lambda data: decode_weighed(data, weigh(data, 64, 20_000)), body) == verdict(strictly, body)


def test_a_usual_call_is_read_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonrpc, "_pairs", None)
    for text in ("hello", "http://example.com:80/", ":", "é"):
        value = {"jsonrpc": "2.0", "id": 1, "params": {"name": "a:b", "arguments": {"text:": [text, 1.5, -0.0]}}}
        assert decode(dump(value)) == value


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


OBJECT = st.dictionaries(TEXT, JSON, max_size=4)


@given(TEXT | st.integers(), OBJECT, OBJECT)
def test_a_result_that_was_encoded_before_makes_the_same_response(id: str | int, value: Any, more: Any) -> None:
    added = {name: part for name, part in more.items() if name not in value}
    assert encode_result(id, dump(value)) == encode(Response(id, value))
    assert encode_result(id, dump(value), added) == encode(Response(id, {**value, **added}))


@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
@pytest.mark.parametrize("closed", [True, False])
def test_depth_is_bounded_before_the_parser_recurses(depth: int, closed: bool) -> None:
    with pytest.raises(Malformed) as caught:
        decode(b"[" * depth + b"]" * (depth if closed else 0))
    assert caught.value.code == INVALID_REQUEST
    assert caught.value.text == (
        "nested deeper than 64 levels" if depth <= 20_000 else "more than 20000 values in a message"
    )


def test_brackets_in_strings_are_no_depth() -> None:
    assert decode(b'["' + b"[" * 100 + b'", "\\"{{{{"]') == ["[" * 100, '"{{{{']
    assert decode(b"[" * 64 + b"]" * 64)
    assert len(decode(b"[" + b",".join([b"[]"] * 500) + b"]")) == 500
    assert decode(b'{"a":[' * 32 + b"1" + b"]}" * 32)


@pytest.mark.parametrize("body", [b"]" * 100, b"[}" * 100, b"[]" * 50 + b"[["])
def test_brackets_that_are_no_json_are_a_parse_error_and_no_depth(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        decode(body)
    assert caught.value.code == PARSE_ERROR


@given(st.recursive(st.just(0), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)))
def test_the_depth_that_is_counted_is_the_depth_there_is(value: Any) -> None:
    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return (1 + max(map(depth, inner), default=0)) if isinstance(value, dict | list) else 0

    deep, padding = depth(value), [[]] * 80
    assert decode(dump([value, padding]), max_depth=max(deep, 2) + 1)
    if deep > 2:
        with pytest.raises(Malformed, match="deeper"):
            decode(dump([value, padding]), max_depth=deep)


def nodes(value: Any) -> int:
    """All values and names, but for the first."""
    if isinstance(value, dict):
        return sum(2 + nodes(inner) for inner in value.values()) + (not value)
    return (sum(1 + nodes(inner) for inner in value) or 1) if isinstance(value, list) else 0


@given(JSON)
def test_the_values_that_are_counted_on_the_bytes_are_the_values_there_are(value: Any) -> None:
    for data in (dump(value), json.dumps(value, indent=1).encode(), json.dumps(value).encode()):
        for most in (nodes(value), nodes(value) + 1_000):  # at most the digits of some long numbers are more
            try:
                weigh(data, 64, most)
            except TooMany:
                assert re.search(rb"[0-9]{32}", data), (data, most)
        if nodes(value):
            with pytest.raises(TooMany):
                weigh(data, 64, nodes(value) - 1)


def verdict_of(check: Callable[[], Any]) -> str:
    try:
        check()
    except Malformed as bad:
        return bad.text
    return ""


ESCAPED = st.text(alphabet='\\"[]{},:1 a').map(lambda text: text.encode())


@given(ESCAPED | JSON.map(dump), st.integers(1, 9), st.integers(0, 30))
def test_a_message_that_is_checked_in_pieces_is_judged_as_in_one(data: bytes, piece: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jsonrpc, "_PIECE", piece)
        pieces = verdict_of(lambda: [*check_in_pieces(data, most)])
    assert pieces == verdict_of(lambda: check_nodes(data, most))


@given(st.lists(st.sampled_from([b"1", b"0", b"9" * 31, b"1" * 32, b"12" * 17, b"-", b".", b"e", b",", b" "])))
def test_the_digits_of_long_numbers_are_those_of_runs_of_32_and_more(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert jsonrpc._long_digits(data, len(data) + 1) == sum(map(len, re.findall(rb"[0-9]{32,}", data)))


WIDE = {
    "numbers": b"[" + b"1," * 20_001 + b"1]",
    "texts": b"[" + b'"",' * 20_001 + b"1]",
    "lists": b"[" + b"[]," * 10_001 + b"1]",
    "objects": b"[" + b"{}," * 10_001 + b"1]",
    "pairs": b"{" + b",".join(b'"%d":1' % number for number in range(10_001)) + b"}",
    "long names": b"{" + b",".join(b'"%0100d":1' % number for number in range(10_001)) + b"}",
    "escapes": b"[" + b'"\\u0061\\\\\\"",' * 20_001 + b"1]",
    "astral characters": b"[" + '"\U0001f600",'.encode() * 20_001 + b"1]",
    "two million": b"[" + b"1," * 2_000_000 + b"1]",
    "long numbers": b"[" + b"9" * 4300 + (b"," + b"9" * 4300) * 20 + b"]",
    "a long text before": b'["' + b"," * 1_000_000 + b'"' + b",1" * 20_001 + b"]",
}


@pytest.mark.parametrize("body", WIDE.values(), ids=WIDE.keys())
def test_what_has_more_values_than_it_may_is_refused_before_it_is_decoded(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonrpc, "from_json", None)
    for read_it in (decode, lambda data: check_nodes(data, 20_000), lambda data: [*check_in_pieces(data, 20_000)]):
        with pytest.raises(TooMany) as caught:
            read_it(body)
        assert (caught.value.code, caught.value.text) == (INVALID_REQUEST, "more than 20000 values in a message")


@pytest.mark.parametrize(
    ("numbers", "looked_at"),
    [
        ([b"9" * 33] * 250_000, 0),
        ([b"9" * 31] * 90_000, 0),
        ([b"9" * 31] * 90_000 + [b"9" * 32], 1),
        ([b"9" * 32] * 90_000, 1_251),  # 90,000 other values leave 4 * 10,001 digits, and 32 are read at a time
    ],
)
def test_long_numbers_are_looked_at_until_there_are_too_many_and_short_ones_never(
    numbers: list[bytes], looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen, run = b"[" + b",".join(numbers) + b"]", list[int](), jsonrpc._RUN

    class Counted:
        def match(self, digits: bytes, at: int) -> Any:
            seen.append(at)
            return run.match(digits, at)

    monkeypatch.setattr(jsonrpc, "_RUN", Counted())
    verdict_of(lambda: weigh(data, 64, 100_000))
    assert len(seen) == looked_at


@pytest.mark.parametrize(
    "text", [",[{:" * 250_000, '"' * 250_000, "\\" * 250_000, '\\",' * 250_000, "\U0001f600" * 250_000]
)
def test_a_long_text_of_whatever_characters_is_one_value(text: str) -> None:
    for data in (dump({"a": [text, text]}), json.dumps({"a": [text, text]}).encode()):
        check_nodes(data, 1_000)
        assert len([*check_in_pieces(data, 1_000)]) <= 2 + len(data) // jsonrpc._PIECE
        assert decode(data) == decode_fast(data) == {"a": [text, text]}


def test_duplicate_keys_of_a_large_message_are_refused() -> None:
    for twice in (b'"a":1,"a":2', b'"a":1,"\\u0061":2', b'":":1,":":2'):
        with pytest.raises(Malformed, match=r"^duplicate key in a JSON object$") as caught:
            decode(b'{"text":"' + b":" * 30_000 + b'\\"",' + twice + b"}")
        assert caught.value.code == INVALID_REQUEST


@pytest.mark.parametrize(
    ("body", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{}}', 7),
        (b'{ "id": "a-b", "jsonrpc": "2.0", "result": {}}', "a-b"),
        (b'{"result":{"id":8},"jsonrpc":"2.0","id":7}\n', 7),
        (b'{"result":{"id":8},"id":7,"jsonrpc":"2.0"}', 7),
        (b'{"jsonrpc":"2.0","result":{"a":1,"id":7}}', None),
        (b'{"jsonrpc":"2.0","result":{"x":"{\\"id\\":7,"}}', None),
        (b'{"id":007,"result":{}}', None),
        (b'{"id":"\\u0061","result":{}}', None),
        (b'{"id":null,"result":{}}', None),
        (b"[" * 1_000, None),
    ],
)
def test_an_id_is_read_at_the_ends_of_a_message_alone(body: bytes, id: str | int | None) -> None:
    assert id_unread(body) == id


@pytest.mark.parametrize("number", ["100.0", "-0.0", "1e2", "12345678901234567890123", "0.1"])
def test_numbers_keep_their_type_and_value(number: str) -> None:
    strict, fast = decode(number.encode()), decode_fast(number.encode())
    assert type(strict) is type(fast) and strict == fast == (float(number) if set(number) & set(".e") else int(number))


LONG = st.integers(1, 420).map(lambda count: "9" * count)
NUMBERS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]), st.one_of(st.sampled_from(["0", "1", "12345"]), LONG),
        st.one_of(st.just(""), LONG.map(lambda digits: f".{digits}")),
        st.one_of(st.just(""), st.builds("{}{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]),
                                         st.sampled_from(["", "0", "000"]), st.integers(0, 1_200))),
    ),
)  # fmt: skip


@given(NUMBERS, st.sampled_from(["{}", "[1,{}]", '{{"a":{{"b":[{}]}}}}', '{{"e":"1e999 text","b":{}}}']))
@example("1e999", "{}")
@example("9" * 210 + "e99", "[1,{}]")
@example("0.1E+0309", "{}")
def test_a_number_is_out_of_range_exactly_if_it_would_be_an_infinity(number: str, shape: str) -> None:
    data = shape.format(number).encode()
    is_float = not number.lstrip("-").isdigit()
    if is_float and math.isinf(float(number)):
        with pytest.raises(OutOfRange):
            decode_fast(data)
        assert not ended(in_range(data))
    else:
        assert decode_fast(data) == json.loads(data)


def ended(work: Generator[None, None, bool]) -> bool:
    with pytest.raises(StopIteration) as end:
        while True:
            next(work)
    return bool(end.value.value)


def test_the_digest_of_a_message_but_for_its_id() -> None:
    def digest(text: str, id: int) -> bytes:
        return in_one_step(digest_but_id(text.encode(), id))

    first, last = '{{"jsonrpc":"2.0","id":{},"result":{}}}', '{{"result":{1},"jsonrpc":"2.0","id":{0}}}'
    for shape in (first, last):
        assert digest(shape.format(7, '{"a":1}'), 7) == digest(shape.format(123, '{"a":1}'), 123) != b""
        assert digest(shape.format(7, '{"a":1}'), 7) != digest(shape.format(7, '{"a":2}'), 7)
        assert digest(shape.format(7, '{"a":1}'), 8) == b"" == digest(shape.format('"7"', "{}"), 7)
    assert digest('{"result":{"id":7},"x":1}', 7) == b""
    assert digest('{"id":1,"a":"x"}', 1) != digest('{"id":1,"b":"x"}', 1)


def test_an_infinity_is_found_across_the_pieces_of_a_large_message() -> None:
    size = jsonrpc._PIECE
    for offset in range(-8, 3):
        data = b"[" + b" " * (size - 1 + offset) + b"1e999]"
        assert not ended(in_range(data)), offset


def test_a_message_that_is_out_of_range_says_whose_it_is() -> None:
    with pytest.raises(OutOfRange) as caught:
        decode_fast(b'{"id":7,"method":"ping","params":{"x":1e999}}')
    assert (caught.value.id, caught.value.method) == (7, "ping")


@pytest.mark.parametrize("id", ["1e999", '{"a":1}', "[1]", "true", "1.5", "null"])
@pytest.mark.parametrize("padding", [0, 30_000])
def test_no_id_that_is_none_is_taken_from_what_is_out_of_range(id: str, padding: int) -> None:
    data = f'{{"id":{id},"method":"ping","params":{{"x":-1e999,"y":"{"z" * padding}"}}}}'.encode()
    for parse in (decode, decode_fast):
        with pytest.raises(Malformed) as caught:
            parse(data)
        assert caught.value.id is None and caught.value.code == PARSE_ERROR


@given(JSON)
def test_what_is_encoded_is_read_back_the_same_by_both_parsers(value: Any) -> None:
    assert decode(dump(value)) == value == decode_fast(dump(value))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "\ud800"])
def test_what_json_cannot_say_is_refused_on_the_way_out(value: Any) -> None:
    with pytest.raises(Malformed) as caught:
        dump({"a": [value]})
    kind = "value" if isinstance(value, str) else "number"
    assert (caught.value.code, caught.value.text) == (INTERNAL_ERROR, f"a {kind} that JSON cannot say")
    assert dump("Infinity NaN") == b'"Infinity NaN"'


class Unread(bytes):
    """In which nobody may look for a word: that takes 2 ms a MiB, and more where its letters are frequent."""

    def __contains__(self, part: object) -> bool:
        assert isinstance(part, bytes) and len(part) == 1, "a long text is searched"
        return super().__contains__(part)


def test_a_long_text_is_not_searched_for_numbers_that_json_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"_meta": {"io.test/I": "aN" * 2_000_000}}
    monkeypatch.setattr(jsonrpc, "to_json", lambda value: Unread(to_json(value)))
    assert dump(long) == to_json(long)
    for number in (float("inf"), float("nan")):
        with pytest.raises(Malformed):
            dump({**long, "n": [{"a": number}]})


def test_of_many_values_a_number_that_json_cannot_say_is_found_by_its_word() -> None:
    many: list[Any] = [["x" * 20]] * 2 * MAX_RESULT_NODES
    assert dump([*many, "Infinity NaN"])[-15:] == b'"Infinity NaN"]'
    with pytest.raises(Malformed):
        dump([*many, float("inf")])


@pytest.mark.parametrize("body", [b"NaN", b"[" * 300 + b"]" * 300, b'"\\ud800"', b"", b"\xff"])
def test_a_servers_garbage_is_malformed_too(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        decode_fast(body)
    assert (caught.value.code, caught.value.text) == (PARSE_ERROR, "not valid UTF-8 JSON")


MESSAGES = [
    Request(1, "tools/list", {}),
    Request("1", "tools/call", {"name": "x"}),
    Request(0, "a", {"b": None}),
    Notification("notifications/x", {}),
    Notification("notifications/x", {"a": 1}),
    Response(1, {"ok": True}),
    Response("", error={"code": 1, "message": "m"}),
    Response(None, error={"code": -32700, "message": "m"}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_messages_survive_the_wire(message: Any) -> None:
    assert read(decode(encode(message))) == message
    assert b"\n" not in encode(message)


VERSION, ID = 'jsonrpc must be "2.0"', "id must be a string or an integer"
NOTHING = "neither a request, a notification nor a response"
BAD: dict[str, tuple[Any, str, Any]] = {
    "an array": ([], "a message is a JSON object", None),
    "no version": ({"id": 1, "method": "x"}, VERSION, 1),
    "another version": ({"jsonrpc": "1.0", "id": "a", "method": "x"}, VERSION, "a"),
    "id null": ({"jsonrpc": "2.0", "id": None, "method": "x"}, ID, None),
    "id true": ({"jsonrpc": "2.0", "id": True, "method": "x"}, ID, None),
    "id a float": ({"jsonrpc": "2.0", "id": 1.5, "method": "x"}, ID, None),
    "id an object": ({"jsonrpc": "2.0", "id": {}, "method": "x"}, ID, None),
    "a huge id": ({"jsonrpc": "2.0", "id": "x" * 1025, "method": "x"}, ID, None),
    "method a number": ({"jsonrpc": "2.0", "id": 1, "method": 7}, "method must be a string", 1),
    "params an array": ({"jsonrpc": "2.0", "id": 1, "method": "x", "params": []}, "params must be an object", 1),
    "result and error": ({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}}, NOTHING, 1),
    "result no object": ({"jsonrpc": "2.0", "id": 1, "result": 1}, NOTHING, 1),
    "a result without id": ({"jsonrpc": "2.0", "result": {}}, NOTHING, None),
    "nothing of all": ({"jsonrpc": "2.0", "id": 1}, NOTHING, 1),
    "keys in another case": ({"jsonrpc": "2.0", "id": 1, "Method": "x"}, NOTHING, 1),
}


@pytest.mark.parametrize(("value", "text", "id"), BAD.values(), ids=BAD.keys())
def test_what_is_no_message_is_an_invalid_request_that_says_why(value: Any, text: str, id: Any) -> None:
    with pytest.raises(Malformed) as caught:
        read(value)
    assert (caught.value.code, caught.value.text, caught.value.id) == (INVALID_REQUEST, text, id)
    assert str(caught.value) == text


def test_the_longest_id_is_read() -> None:
    assert read({"jsonrpc": "2.0", "id": "x" * 1024, "method": "m"}) == Request("x" * 1024, "m", {})


def test_each_form_of_a_shared_list_is_made_once_and_its_json_is_kept_while_it_is_small() -> None:
    shared, calls = SharedList([1, 2]), list[str]()

    def make(name: str) -> Any:
        return lambda items: calls.append(name) or (items if name == "same" else [*items, name])

    for _ in range(2):
        assert shared.form("same", make("same")) is shared
        assert shared.form("a", make("a")) == [1, 2, "a"] and shared.form("b", make("b")) == [1, 2, "b"]
    assert calls == ["same", "a", "b"] and type(shared.form("a", make("a"))) is SharedList
    assert shared.json() is shared.json() and shared.json() == b"[1,2]"
    largest, larger = SharedList(["x" * (MAX_KEPT - 4)]), SharedList(["x" * (MAX_KEPT - 3)])
    assert largest.json() is largest.json() and larger.json() is not larger.json() == dump(list(larger))


def test_a_shared_list_is_encoded_as_any_other_alone_in_its_result_or_not() -> None:
    items = SharedList([{"name": "é", "n": [1, "\\"]}, {}])
    for result in ({"tools": items}, {"nextCursor": "x", "tools": items, "ttlMs": 0}):
        message = ListResponse(7, result, key="tools")
        assert decode(encode(message)) == to_value(Response(7, result))
        assert decode(dump([to_value(message), to_value(message)])) == [to_value(Response(7, result))] * 2
    encode(message)
    items.append("not in the JSON that is kept")
    assert "not in" not in encode(message).decode() and "not in" in encode(Response(7, result)).decode()
    assert encode(ListResponse(7, {}, key="tools")) == encode(Response(7, {}))


def test_what_a_shared_list_cannot_say_in_json_is_refused_as_in_any_other() -> None:
    with pytest.raises(Malformed):
        encode(ListResponse(7, {"tools": SharedList([float("inf")])}, key="tools"))
