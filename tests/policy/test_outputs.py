"""Promises of tools: kept, broken, or not worth checking. Both sides of each check are hostile."""

from typing import Any

import pytest

from sluicegate.policy.schema_cost import check_bounds
from sluicegate.policy.schemas import MAX_KNOWN, MAX_PATTERNS, Outputs

ROWS = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    "required": ["rows"],
    "$defs": {"row": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
}
TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}}


def check(schema: Any, content: Any, **more: Any) -> str | None:
    judged = Outputs().check("s", "t", schema, {"content": [], "structuredContent": content, **more})
    return judged.flag if judged else None


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (ROWS, {"rows": [{"id": 1}, {"id": 2}]}),
        (ROWS, {"rows": [{"id": number, "more": "x" * 50} for number in range(10_000)]}),
        (TREE, {"v": 1, "kids": [{"v": 2, "kids": []}]}),
        ({"type": "array"}, [1, 2]),
        ({"type": ["string", "null"]}, None),
        ({"type": "object", "properties": {"result": {"type": "string"}}}, {"result": "x" * 8_000_000}),
        ({"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"}, {}),
        ({"type": "object", "default": {"$ref": "#/nowhere"}}, {}),
        ({"properties": {"$ref": {"type": "string"}, "pattern": {"pattern": "^a"}}}, {"$ref": "x", "pattern": "ab"}),
        (True, 1),
    ],
)
def test_a_result_that_keeps_the_promise_is_not_marked(schema: Any, content: Any) -> None:
    assert check(schema, content) is None


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (ROWS, {"rows": [{"id": 1}, {"id": "2"}]}),
        (ROWS, {}),
        (ROWS, None),
        (TREE, {"kids": [{"kids": [{"v": "x"}]}]}),
        ({"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"}, []),
        (False, {}),
    ],
)
def test_a_result_that_breaks_it_is(schema: Any, content: Any) -> None:
    assert check(schema, content) == "output_schema"


def test_a_result_without_structured_content_breaks_it_and_an_error_promises_nothing() -> None:
    outputs = Outputs()
    missing = outputs.check("s", "t", ROWS, {"content": []})
    assert missing is not None and missing.flag == "output_schema"
    assert outputs.check("s", "t", ROWS, {"content": [], "isError": True}) is None
    assert check(ROWS, {"error": "no such row"}, isError=True) is None


HOSTILE = {
    "no schema": 7,
    "not a schema inside": {"type": "objekt"},
    "from the network": {"$ref": "https://evil.example.com/schema.json"},
    "from a file": {"$ref": "file:///etc/passwd"},
    "too large": {"description": "x" * 70_000},
    "too many": {"allOf": [True] * 1_001},
    "multiplying": {
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)} | {"d30": {}},
        "$ref": "#/$defs/d0",
    },
    "an endless reference": {"$ref": "#"},
    "long lists again and again": {
        "$defs": {"e": {"enum": [{"a": n} for n in range(1000)]}}, "allOf": [{"$ref": "#/$defs/e"}] * 100,
    },
    "many expressions": {"properties": {f"p{n}": {"pattern": f"(a{{1,30}}b{{1,30}}){{1,9}}{n}"} for n in range(100)}},
    "many named expressions": {"patternProperties": {f"p{n}": True for n in range(MAX_PATTERNS + 1)}},
    "a count of many digits": {"properties": {"a": {"pattern": f"a{{{'1' * 5_000}}}"}}},
    "a range of many digits": {"patternProperties": {f"a{{1,{'1' * 5_000}}}": True}},
    "a count of many digits of another script": {"pattern": f"a{{{'١' * 5_000}}}"},
    "an expression that cannot be linear": {"pattern": r"(a+)+\1"},
    "by anchor": {"$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"},
    "another dialect": {"$schema": "http://json-schema.org/draft-04/schema#"},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_not_used_and_the_result_says_so(name: str) -> None:
    assert check(HOSTILE[name], {"a": 1}) == "output_schema_unused"


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        ({"items": {"allOf": [{"minimum": -n} for n in range(900)]}}, list(range(100_000))),
        ({"items": {"enum": [{"a": n} for n in range(1000)]}}, [{"a": 999}] * 10_000),
        (TREE, {"kids": [{"v": 1}] * 100_000}),
        ({"allOf": [{"pattern": f"(a|b|ab)*{n}"} for n in range(10)]}, "ab" * 4_000_000),
        ({"propertyNames": {"pattern": "^(a|b|ab)*$"}}, {"ab" * 1_000_000 + str(n): n for n in range(8)}),
    ],
    ids=["many rules for many values", "long lists", "recursion", "expressions", "expressions over names"],
)
def test_a_result_that_would_take_too_long_is_not_checked(schema: Any, content: Any) -> None:
    assert check(schema, content) == "output_schema_unused"


def test_a_schema_is_compiled_once_until_it_changes() -> None:
    outputs = Outputs()
    schema: dict[str, Any] = {"type": "object"}
    assert outputs.check("s", "t", schema, {"structuredContent": {}}) is None
    first = outputs._compiled["s", "t"]
    assert outputs.check("s", "t", {"type": "object"}, {"structuredContent": {}}) is None
    assert outputs._compiled["s", "t"] is first
    assert outputs.check("s", "t", {"type": "array"}, {"structuredContent": {}}) is not None
    assert outputs.check("other", "t", schema, {"structuredContent": {}}) is None


def test_a_schema_is_bounded_and_compiled_once_before_its_first_check(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded: list[Any] = []

    def counted(schema: Any) -> None:
        bounded.append(schema)
        check_bounds(schema)

    monkeypatch.setattr("sluicegate.policy.schemas.check_bounds", counted)
    outputs = Outputs()
    preparing = outputs.prepare("s", "t", ROWS)
    assert preparing is not None and bounded == []
    preparing()
    assert outputs.prepare("s", "t", ROWS) is None
    assert outputs.check("s", "t", ROWS, {"structuredContent": {"rows": []}}) is None
    assert bounded == [ROWS]
    changed = outputs.prepare("s", "t", {"type": "array"})
    assert changed is not None
    changed()
    assert outputs.check("s", "t", {"type": "array"}, {"structuredContent": {}}) is not None


def test_so_many_are_kept_and_no_more() -> None:
    outputs = Outputs()
    for number in range(MAX_KNOWN + 5):
        assert outputs.check("s", f"t{number}", {"type": "object"}, {"structuredContent": {}}) is None
    assert len(outputs._compiled) <= MAX_KNOWN


def test_what_one_place_costs_much_is_checked_at_few_places() -> None:
    """A counted repetition is as many states for each letter, a division one of long integers."""
    many = {"properties": {"a": {"type": "string", "pattern": "[ab]*a[ab]{1000}c"}}}
    nested = {"patternProperties": {"(a{20}){20}": {}}}
    assert check(many, {"a": "x"}) == check(nested, {"a": 1}) == "output_schema_unused"
    assert check({"properties": {"a": {"pattern": "^[0-9a-f]{64}$"}}}, {"a": "0" * 64}) is None
    halves = {"properties": {"a": {"items": {"multipleOf": 0.5}}}}
    assert check(halves, {"a": [1.5] * 20}) is None and check(halves, {"a": [1.25]}) == "output_schema"
    assert check(halves, {"a": [1e300] * 1_000}) == "output_schema_unused"


@pytest.mark.parametrize("pattern", [
    "a[ab]{ 90}c", "a[ab]{0, 90}c", "a[ab]{90,\t91 }c", "(?x)a[ab]{#\n90}c", "(?x)a[ab]{90#}\n}c",
    "(?x)a[ab]{0#\n,90}c", "\\\\{ 90}a", "(?x)# [\na{ 90}# ]", "(?P<a[>b{ 90})(?P<b]>a)", "[b[c]]{ 90}", r"[\]b]{ 90}",
])  # fmt: skip
def test_a_count_with_spaces_or_comments_is_not_used(pattern: str) -> None:
    """The engine reads it, but it was not counted. Seven million letters took 4.8 s."""
    assert check({"properties": {"a": {"not": {"pattern": pattern}}}}, {"a": "b"}) == "output_schema_unused"
    assert check({"properties": {"a": {"pattern": r"^\{ 9\}[a-z]{1,}\p{L}{2,3}$"}}}, {"a": "{ 9}aaa"}) is None


@pytest.mark.parametrize("pattern", [
    r"^\u{1F600}$", r"^[\u{1F300}-\u{1F64F}]+$", "^[^{ ]+$", r"^[^{,\]]$", r"^\p{L}|[{ ]",
    "^(?<key>[^{ ]+)=x$", "^(?i-s:[^{ ]+)$",
])  # fmt: skip
def test_braces_that_are_no_counts_are_used(pattern: str) -> None:
    schema = {"properties": {"a": {"pattern": pattern}}}
    assert check(schema, {"b": 1}) is None and check(schema, {"a": ""}) == "output_schema"


_TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$"
HONEST = {
    "name": r"^[a-z0-9_-]{1,64}$",
    "commit": "^[0-9a-f]{7,40}$",
    "commit in a group": "^([0-9a-f]{7,40})$",
    "digest": "^sha256:[0-9a-f]{64}$",
    "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "short uuid": "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "date-time": _TIME,
    "date-time, each digit": _TIME.replace(r"\d{4}", r"\d\d\d\d").replace(r"\d{2}", "[0-9][0-9]"),
    "semver": r"^v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$",
    "hex": "^(0x)?[0-9a-f]+$",
    "slug": "^[a-z0-9]+(?:-[a-z0-9]+)*$",
    "e-mail": r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
    "another e-mail": r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$",
    "choice": "^(?:created|updated|deleted|archived|restored|transferred)$",
    "web page": "^https?://",
    "letters": r"^\p{L}+$",
}


@pytest.mark.parametrize("name", HONEST)
def test_a_pattern_that_follows_few_states_is_checked_in_long_results(name: str) -> None:
    schema = {"properties": {"a": {"pattern": HONEST[name]}}}
    assert check(schema, {"b": "x" * 1_048_576}) is None
    assert check(schema, {"a": "?", "b": "x" * 1_048_576}) == "output_schema"


@pytest.mark.parametrize("pattern", [
    "a[ab]{90}c", "a" + "[ab]" * 90 + "c", "^{0}a[ab]{90}c", "a(?:(?:[ab]{5}){5}){4}c", "^*a[ab]{90}c", "^x|a[ab]{90}c",
    "x{0}a" + "[ab]" * 90 + "c", "x{0}a" + "[ab]" * 90 + "[ab]{0,}c",
    "^[ab]*a[ab]{90}c", "^([ab]+a)?[ab]{90}c", "^(a|[ab]){90}c", "^(ab|[ab]a){45}", "(?i)^a|[ab]{90}c",
    "^[a[b]]+a[ab]{50}c", "(?:a[ab]{7}){1,}" + "[ab]" * 70, r"^\(|a[ab]{90}c", "^[(]*a[ab]{90}c", r"^[\]]*a[ab]{90}c",
])  # fmt: skip
def test_long_texts_are_not_checked_against_a_pattern_of_many_states(pattern: str) -> None:
    """Seven million letters took 2.4 s, in which nobody else had the interpreter."""
    schema = {"properties": {"a": {"not": {"pattern": pattern}}, "b": {"pattern": "^[0-9a-f]{64}$"}}}
    assert check(schema, {"a": "a" * 1_000_000}) == check(schema, {"a" * 1_000_000: 1}) == "output_schema_unused"
    assert check(schema, {"a": "c" * 1_000}) is None
    del schema["properties"]["a"]
    assert check(schema, {"a": "a" * 4_000_000, "b": "0" * 64}) is None


def test_a_letter_counts_for_each_byte_of_it() -> None:
    schema = {"properties": {"a": {"not": {"pattern": "a[^c]{90}c"}}}}
    assert check(schema, {"a": "b" * 20_000}) is None
    assert check(schema, {"a": "\U0001f600" * 20_000}) == "output_schema_unused"
    assert check(schema, {"\U0001f600" * 20_000: 1}) == "output_schema_unused"


def test_integers_of_more_than_64_bits_are_not_checked() -> None:
    unique = {"properties": {"a": {"uniqueItems": True}}}
    assert check(unique, {"a": [10**25 + n for n in range(2_000)]}) == "output_schema_unused"
    assert check(unique, {"a": [2**63 + n for n in range(200)]}) is None


@pytest.mark.parametrize("items", [
    [2**63 + n for n in range(2_000)], [-(2**63) + n for n in range(2_000)], [{"a": n} for n in range(2_000)],
    [[n] for n in range(2_000)],
])  # fmt: skip
def test_items_that_can_share_a_hash_are_looked_through_in_short_lists_alone(items: list[Any]) -> None:
    """20,000 neighbours of 2**63 were compared for 9 s: they are one float. Hashes of objects can be foreseen."""
    unique = {"properties": {"a": {"uniqueItems": True}}}
    assert check(unique, {"a": items}) == check(unique, {"a": {"b": [items]}}) == "output_schema_unused"
    assert check(unique, {"a": items[:200]}) is None and check(unique, {"a": items[:1] * 2}) == "output_schema"
    assert check({"type": "object"}, {"a": items}) is None
    usual = {"a": [str(n) for n in range(10_000)], "b": list(range(10_000)), "c": [n / 7 for n in range(10_000)]}
    assert check(unique, usual) is None


@pytest.mark.parametrize("keyword", ["dependentSchemas", "properties", "$defs"])
def test_subschemas_that_are_true_have_a_weight(keyword: str) -> None:
    """990 of them in `dependentSchemas` took 370 ms of 48,000 empty objects."""
    many = {"properties": {"a": {"items": {keyword: {f"k{n}": True for n in range(500)}}}}}
    assert check(many, {"a": [{}] * 10_000}) == "output_schema_unused" and check(many, {"a": [{}] * 1_000}) is None


@pytest.mark.parametrize("pattern", ["(a|b|c)" * 500, r"\w" * 60, ".{90}", "[^a]{90}"])
def test_patterns_that_take_long_to_compile_are_not_used(pattern: str) -> None:
    many = {"properties": {f"p{n}": {"pattern": f"{pattern}{n}"} for n in range(16)}}
    assert check(many, {}) == "output_schema_unused"
