"""What an older revision lacks is left out or said in what it has; schemas of any root become schemas of objects."""

from typing import Any

import jsonschema
import pytest
from frames.rules import problems

from sluicegate.protocol import downgrade
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.legacy_client import respond
from sluicegate.protocol.model import Call, Client, Outcome, Result, Target, Trail
from sluicegate.protocol.revisions import LEGACY, REVISIONS

ICONS = [{"src": "data:image/png;base64,AA=="}]
META: Json = {"ui": {"resourceUri": "ui://a"}}
NOTES: Json = {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"}
TOOL: Json = {
    "name": "t", "title": "T", "description": "d", "icons": ICONS, "_meta": META, "annotations": {"readOnlyHint": True},
    "inputSchema": {"type": "object"}, "outputSchema": {"anyOf": [{"type": "object"}, {"type": "array"}]},
}  # fmt: skip
PROMPT: Json = {
    "name": "p", "title": "P", "icons": ICONS, "_meta": META, "arguments": [{"name": "a", "title": "A"}],
}  # fmt: skip
RESOURCE: Json = {"uri": "a:b", "name": "r", "title": "R", "icons": ICONS, "_meta": META, "size": 1}
TEMPLATE: Json = {"uriTemplate": "a:{b}", "name": "r", "title": "R", "icons": ICONS, "_meta": META}
CONTENTS: Json = {"uri": "a:b", "text": "t", "_meta": META}
BLOCKS: list[Json] = [
    {"type": "text", "text": "t", "_meta": META, "annotations": NOTES},
    {"type": "image", "data": "AA==", "mimeType": "image/png", "_meta": META},
    {"type": "audio", "data": "AA==", "mimeType": "audio/wav", "_meta": META},
    {"type": "resource", "resource": CONTENTS, "_meta": META},
    {**RESOURCE, "type": "resource_link"},
]
CACHED: Json = {"ttlMs": 5, "cacheScope": "private"}
ANSWERS: dict[str, Json] = {
    "tools/list": {"tools": [TOOL], **CACHED},
    "prompts/list": {"prompts": [PROMPT], **CACHED},
    "resources/list": {"resources": [RESOURCE], **CACHED},
    "resources/templates/list": {"resourceTemplates": [TEMPLATE], **CACHED},
    "resources/read": {"contents": [CONTENTS], **CACHED},
    "tools/call": {"content": BLOCKS, "structuredContent": [1], "_meta": {"vendor": 1}},
    "prompts/get": {"messages": [{"role": "user", "content": block} for block in BLOCKS]},
}


@pytest.mark.parametrize("method", ANSWERS)
@pytest.mark.parametrize("revision", LEGACY)
def test_every_answer_is_one_of_its_revision(revision: str, method: str) -> None:
    outcome = downgrade.shaped(call(None, method), Result(ANSWERS[method]))
    response = respond(1, method, outcome, revision)
    assert problems({"jsonrpc": "2.0", "id": 1, "result": response.result}, revision, [method]) == []


def test_who_serves_is_said_in_what_the_revision_has() -> None:
    info: Json = {"name": "n", "version": "1", "title": "N", "icons": ICONS, "description": "d", "websiteUrl": "u"}
    said = {name: downgrade.about(info, REVISIONS[name]).keys() - {"name", "version"} for name in LEGACY}
    assert said == {
        "2024-11-05": set(), "2025-03-26": set(), "2025-06-18": {"title"},
        "2025-11-25": {"title", "icons", "description", "websiteUrl"},
    }  # fmt: skip


def test_the_newest_legacy_revision_loses_nothing_but_what_it_has_not() -> None:
    newest = REVISIONS["2025-11-25"]
    assert downgrade.items("prompts/list", [PROMPT], newest) == [PROMPT]
    assert downgrade.called({"content": BLOCKS}, newest)["content"] is BLOCKS
    (tool,) = downgrade.items("tools/list", [TOOL], newest)
    assert {**tool, "outputSchema": TOOL["outputSchema"]} == TOOL


def call(schema: Json | None, method: str = "tools/call") -> Call:
    trail = Trail("c")
    item: Json = {"name": "t", "inputSchema": {}, **({} if schema is None else {"outputSchema": schema})}
    trail.set_target(Target("s", "tool", "t", "s__t", item))
    return Call(Client("local", revision="2025-11-25"), method, {}, trail=trail)


def structured(schema: Json | None, value: Any) -> Any:
    outcome: Outcome = downgrade.shaped(call(schema), Result({"content": [], "structuredContent": value}))
    assert isinstance(outcome, Result)
    return outcome.value["structuredContent"]


TREE: Json = {
    "$id": "https://a.example/tree",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "anyOf": [{"type": "integer"}, {"$ref": "#/$defs/pair"}],
    "$defs": {"pair": {"type": "array", "maxItems": 2, "items": {"$ref": "#"}}, "far": {"$ref": "other"}},
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": "integer"}}}, [1, 2], ["a"]),
        (TREE, [1, [2, 3]], [1, [2, "3"]]),
        ({"type": ["string", "null"]}, None, 1),
        ({"anyOf": [{"type": "object"}, {"type": "array"}]}, {"a": 1}, "a"),
        ({"const": {"$ref": "#"}}, {"$ref": "#"}, {"$ref": "#/properties/result"}),
        ({"$ref": "#/$defs/o", "$defs": {"o": {"type": "object", "required": ["a"]}}}, {"a": 1}, {"b": 1}),
    ],
)
def test_a_schema_of_any_root_is_wrapped_and_so_is_what_it_describes(schema: Json, good: Any, bad: Any) -> None:
    ((tool),) = downgrade.items("tools/list", [{**TOOL, "outputSchema": schema}], REVISIONS["2025-11-25"])
    wrapped = tool["outputSchema"]
    assert wrapped["type"] == "object" and wrapped.get("$schema") == schema.get("$schema")
    judge = jsonschema.Draft202012Validator(wrapped)
    assert judge.is_valid(structured(schema, good)) and not judge.is_valid(structured(schema, bad))
    assert downgrade.items("tools/list", [{**TOOL, "outputSchema": schema}], REVISIONS["2025-11-25"])[0] == tool


def test_a_schema_of_objects_and_its_results_stay_as_they_are() -> None:
    schema: Json = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    tool = {**TOOL, "outputSchema": schema}
    assert downgrade.items("tools/list", [tool], REVISIONS["2025-11-25"])[0] is tool
    assert structured(schema, {"a": {}}) == {"a": {}}
    assert structured(None, {"a": 1}) == {"a": 1} and structured(None, [1]) == {"result": [1]}
    untouched = Result({"content": []})
    assert downgrade.shaped(call(schema), untouched) is untouched


def test_what_a_client_cannot_take_is_said_in_words() -> None:
    response = respond(1, "tools/call", Result({"content": BLOCKS}), "2024-11-05")
    assert response.result is not None
    texts = [block.get("text") for block in response.result["content"]]
    assert texts == ["t", None, "[audio audio/wav left out: this client cannot take it]", None, "R: a:b"]
    only = respond(1, "tools/call", Result({"content": [], "structuredContent": {"a": 1}}), "2025-03-26").result
    assert only == {"content": [{"type": "text", "text": '{"a":1}'}]}


@pytest.mark.parametrize("member", ["title", "name", "uri", "mimeType"])
def test_what_is_no_text_is_not_written_out(member: str) -> None:
    """A list of 99,000 numbers would take 80 ms, in one step."""
    blocks = [{"type": kind, member: [1.5, 2.5]} for kind in ("resource_link", "audio")]
    response = respond(1, "tools/call", Result({"content": blocks}), "2024-11-05")
    assert response.result is not None
    texts = [block["text"] for block in response.result["content"]]
    assert texts == ["resource: ", "[audio  left out: this client cannot take it]"]
