"""An answer with a long list is decoded in pieces, and has the value that it has in one step, whatever it says."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol import long_lists, reserved_keys
from sluicegate.protocol.jsonrpc import Malformed, OutOfRange, decode_fast
from sluicegate.protocol.long_lists import PIECE, decode_in_pieces
from sluicegate.protocol.pieces import in_one_step

SCHEMA = {"type": "object", "anyOf": [{"name": "inner"}, {"name": "other"}]}
TOOLS = [{"name": f"t{n}", "description": 'says "}, {\\"name\\": 1" [é]', "inputSchema": SCHEMA} for n in range(2_000)]


def answer(tools: Any = None, **more: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 7, "result": {"ttlMs": 0, "tools": TOOLS if tools is None else tools, **more}}


def read(data: bytes) -> Any:
    return in_one_step(decode_in_pieces(data, reserved_keys.from_server, reserved_keys.from_part))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each step has decoded."""
    sizes = list[int]()

    def count(data: bytes, is_in_range: bool) -> Any:
        sizes.append(len(data))
        return decode_fast(data, is_in_range)

    monkeypatch.setattr(long_lists, "decode_fast", count)
    return sizes


@pytest.mark.parametrize("layout", [{"separators": (",", ":")}, {}, {"indent": 2}, {"ensure_ascii": False}])
@pytest.mark.parametrize("more", [{}, {"nextCursor": "]}", "_meta": {"a": [1, {"name": 2}]}}])
def test_a_long_list_is_decoded_in_pieces(layout: Any, more: Any, decoded: list[int]) -> None:
    data = json.dumps(answer(**more), **layout).encode()
    assert read(data) == answer(**more)
    assert max(decoded) < 1.5 * PIECE and len(decoded) >= len(data) // (1.5 * PIECE)


ODD = {
    "a list of texts": answer(['{"name', '},{"name"'] * 10_000),
    "another key first in each": answer([{("name", "title")[n % 2]: "x" * 50} for n in range(4_000)]),
    "no result": {"jsonrpc": "2.0", "id": 7, "tools": TOOLS},
    "elsewhere": {"result": {"inner": {"tools": TOOLS}}},
    "in a text": answer([], text=json.dumps(answer())),
    "one long definition": answer([{"name": "a", "parts": [{"name": n} for n in range(10_000)]}]),
    "lists in it": answer([{"name": "a", "tools": [{"name": n} for n in range(100)]} for _ in range(100)]),
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
def test_what_looks_like_one_is_read_as_it_is(value: Any, decoded: list[int]) -> None:
    data = json.dumps(value).encode()
    assert len(data) > 2 * PIECE and read(data) == value
    assert sum(decoded) < 3 * len(data), "wrong guesses are few"


def test_of_two_lists_of_one_name_the_last_counts() -> None:
    first, last = json.dumps(TOOLS), json.dumps(TOOLS[1_000:])
    data = f'{{"id":7,"result":{{"tools":{first},"tools":{last}}}}}'.encode()
    assert read(data) == decode_fast(data) == {"id": 7, "result": {"tools": TOOLS[1_000:]}}


def test_what_is_no_json_is_no_json_in_pieces() -> None:
    data = json.dumps(answer()).encode()
    at = data.index(b'{"name": "t1000"')
    before, after = data[: at - 2], data[at:]  # without the comma
    bad_ones = [before + more + after for more in (b"", b",,", b",x", b"],[", b"]],[[", b"]]],[[[")]
    for bad in (*bad_ones, data[:-1]):
        with pytest.raises(Malformed):
            read(bad)


def test_a_server_cannot_say_that_a_list_begins_where_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that knew the word: the elements would have to be where the word is."""
    monkeypatch.setattr(long_lists.secrets, "token_hex", lambda size: "word")
    value = answer(["word", *TOOLS])
    assert read(json.dumps(value).encode()) == value


@given(st.data(), st.sampled_from(list(b'{}[],:"\\a1 ')))
def test_a_changed_byte_changes_what_is_read_in_the_same_way(data: st.DataObject, byte: int) -> None:
    whole = bytearray(json.dumps(answer(TOOLS[:40])).encode())
    whole[data.draw(st.integers(0, len(whole) - 1))] = byte
    text = bytes(whole)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(long_lists, "PIECE", 300)
        try:
            expected = reserved_keys.from_server(decode_fast(text), text)
        except Malformed:
            with pytest.raises(Malformed):
                read(text)
        else:
            assert read(text) == expected


def test_names_of_sluice_are_taken_out_of_each_part() -> None:
    tools = [{"name": f"t{n}", "_meta": {"dev.sluice/x": 1, "y": "z" * 50}} for n in range(2_000)]
    kept = [{"name": f"t{n}", "_meta": {"y": "z" * 50}} for n in range(2_000)]
    assert read(json.dumps(answer(tools, _meta={"dev.sluice/x": 1})).encode()) == answer(kept, _meta={})


@pytest.mark.parametrize("more", [["1e999 " * 4_000], [1] * 10_000], ids=["few values", "many values"])
def test_a_number_out_of_range_is_found_in_a_large_message(more: Any) -> None:
    data = json.dumps({"id": 7, "result": {"more": more, "x": 0}}).encode()
    assert read(data)["result"]["x"] == 0
    with pytest.raises(OutOfRange):
        read(data.replace(b'"x": 0', b'"x": 1e999'))
