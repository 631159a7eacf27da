"""Mirrored parameters: which annotations count, how values travel, when header and body agree."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.mirrored_headers import (
    MAX_ANNOTATIONS,
    annotations,
    check_mirrored,
    decode_value,
    encode_value,
)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_travels_as_visible_ascii_and_comes_back(text: str) -> None:
    header = encode_value(text)
    assert header.isascii() and (header.isprintable() or not header)
    assert decode_value(header) == text


def prop(kind: str, name: Any = "Region") -> Any:
    return {"type": kind, "x-mcp-header": name}


GOOD = {"type": "object", "properties": {"a": prop("string"), "b": {"type": "object", "properties": {
    "c": prop("integer", "Count"), "x-mcp-header": {"type": "string"}}}}}  # fmt: skip

BAD = {
    "empty": {"properties": {"a": prop("string", "")}},
    "a line break": {"properties": {"a": prop("string", "X\r\nY")}},
    "a blank": {"properties": {"a": prop("string", "X Y")}},
    "no string": {"properties": {"a": prop("string", 1)}},
    "on a number": {"properties": {"a": prop("number")}},
    "on an object": {"properties": {"a": prop("object")}},
    "under items": {"properties": {"a": {"items": prop("string")}}},
    "under oneOf": {"oneOf": [{"properties": {"a": prop("string")}}]},
    "in a definition": {"$defs": {"a": prop("string")}},
    "at the root": prop("string"),
    "twice but for case": {"properties": {"a": prop("string", "X"), "b": prop("string", "x")}},
}


def test_annotations_are_found_along_properties_only() -> None:
    assert annotations(GOOD) == {("a",): "Region", ("b", "c"): "Count"}
    assert annotations({}) == annotations(True) == {}


def test_a_tool_asks_for_so_many_headers() -> None:
    most = {f"p{number}": prop("string", f"h{number}") for number in range(MAX_ANNOTATIONS)}
    deep: Any = {"properties": most}
    for _ in range(90):
        deep = {"properties": {"a": deep}}
    assert annotations(deep).keys() == {("a",) * 90 + (name,) for name in most}
    with pytest.raises(ValueError, match="more than 64 x-mcp-header"):
        annotations({"properties": most | {"one": prop("string", "more")}})
    assert annotations({"properties": {"x-mcp-header": {"properties": {"a": prop("string")}}}}) == {
        ("x-mcp-header", "a"): "Region"
    }


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD.keys())
def test_a_bad_annotation_makes_the_definition_invalid(schema: Any) -> None:
    with pytest.raises(ValueError, match="x-mcp-header"):
        annotations(schema)


@pytest.mark.parametrize(
    ("arguments", "mirrored", "agrees"),
    [
        ({"a": "eu"}, {"region": "eu"}, True),
        ({"a": "eu"}, {"region": "=?base64?ZXU=?="}, True),
        ({"b": {"c": 7}}, {"count": "007"}, True),
        ({}, {}, True),
        ({"a": None}, {}, True),
        ({"a": "eu"}, {"region": "eu", "other": "x"}, True),
        ({"a": "eu"}, {}, False),
        ({"a": "eu"}, {"region": "us"}, False),
        ({"a": "eu"}, {"region": "EU"}, False),
        ({"a": "eu"}, {"region": "=?base64?!!?="}, False),
        ({"a": "eu"}, {"region": "=?base64?ZXV=?="}, False),  # bits that stand for nothing
        ({"a": "eu"}, {"region": "=?base64?ZXU?="}, False),
        ({"a": "eu"}, {"region": "=?base64?ZXU==?="}, False),
        ({}, {"region": "eu"}, False),
        ({"b": {"c": 7}}, {"count": "7.0"}, False),
        ({"b": {"c": True}}, {"count": "1"}, False),
    ],
)
def test_header_and_body_must_agree(arguments: Any, mirrored: Any, agrees: bool) -> None:
    failure = check_mirrored({"inputSchema": GOOD}, arguments, mirrored)
    assert (failure is None) is agrees
    assert failure is None or failure.code == -32020
