"""Argument rules and output schemas: what is compiled, what is refused, what a violation says."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.policy.schema_cost import DIALECT, SchemaRefused, check_bounds
from sluicegate.policy.schemas import NO_RULES, ArgumentRules, ArgumentSchema, Schema

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def nested(times: int, inner: Any, wrap: Any) -> Any:
    for _ in range(times):
        inner = wrap(inner)
    return inner


def doubled(times: int) -> Any:
    """Small to write, 2 to the power of `times` to evaluate."""
    defs: dict[str, Any] = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(times)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{times}": {"type": "object"}}}


NODE_TWICE = {"properties": {"next": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
TREE = {"properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}, "type": "object"}
OPEN_NODE = {"properties": {"x": {"$ref": "#"}}, "patternProperties": {"x": {"$ref": "#"}}}


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ([], "not-a-schema"),
        ("x", "not-a-schema"),
        ({"enum": ["x" * 65_536]}, "too-large"),
        ({"anyOf": [{}] * 1_001}, "too-many"),
        ({"$ref": "http://127.0.0.1:1/x"}, "outside-ref"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "outside-ref"),
        ({"$defs": {"a": {"$ref": "other.json#/a"}}}, "outside-ref"),
        ({"$ref": "#/$defs/none"}, "unknown-ref"),
        ({"$ref": "#"}, "endless-ref"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "endless-ref"),
        ({"$dynamicRef": "#x"}, "dynamic-ref"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "other-dialect"),
        ({"$schema": 5}, "other-dialect"),
        ({"properties": {"a": {"$id": "http://x/"}}}, "nested-id"),
        ({"properties": {"a": {"$schema": DIALECT}}}, "nested-id"),
        (doubled(30), "too-costly"),
        (NODE_TWICE, "too-costly"),
        (OPEN_NODE, "too-costly"),
        (nested(30, {}, lambda inner: {"allOf": [inner], "unevaluatedProperties": False}), "too-costly"),
        ({"pattern": "(?=a)b"}, "bad-schema"),
        ({"pattern": r"(a)\1"}, "bad-schema"),
        ({"pattern": r"\pL{1000}{1000}"}, "bad-schema"),
        ({"type": "strin"}, "bad-schema"),
        ({"properties": 5}, "bad-schema"),
        (nested(300, {}, lambda inner: {"not": inner}), "not-a-schema"),
    ],
)
def test_what_is_large_costly_or_elsewhere_is_refused_before_it_is_compiled(schema: Any, code: str) -> None:
    with pytest.raises(SchemaRefused) as refused:
        Schema(schema)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("schema", "good", "bad", "path"),
    [
        (True, 5, None, ""),
        ({"$schema": DIALECT, "required": ["ns"]}, {"ns": 1}, {}, ""),
        ({"properties": {"ns": {"enum": ["dev"]}}}, {"ns": "dev"}, {"ns": "prod"}, "/ns"),
        ({"properties": {"a/b": {"items": {"type": "integer"}}}}, {"a/b": [1]}, {"a/b": [1, "x"]}, "/a~1b/1"),
        ({"properties": {"a": {"pattern": "^(x+x+)+y$"}}}, {"a": "xxy"}, {"a": "x" * 50_000}, "/a"),
        ({"properties": {"n": {"maximum": 2**70}}}, {"n": 2**70}, {"n": 2**70 + 1}, "/n"),
        ({"$defs": {"p": {"$anchor": "p", "minimum": 1}}, "items": {"$ref": "#p"}}, [1], [0], "/0"),
        (TREE, {"l": {}}, {"l": {"r": 5}}, "/l/r"),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}},
                       {"type": "object", "additionalProperties": {"$ref": "#"}}]},
            {"a": ["b", {"c": "d"}]}, {"a": [5]}, "",
        ),
    ],
)  # fmt: skip
def test_a_violation_names_the_path_and_no_value(schema: Any, good: Any, bad: Any, path: str) -> None:
    compiled = Schema(schema)
    assert compiled.check(good) is None
    if bad is not None:
        violation = compiled.check(bad)
        assert violation and violation.path == path
        assert "prod" not in violation.message and len(violation.message) <= 200


def test_rules_are_for_one_tool_of_one_server_and_missing_arguments_are_none() -> None:
    rules = ArgumentRules({("k8s", "scale"): Schema({"required": ["ns"]})}, {("k8s", "scale"): "d"})
    assert rules.check("k8s", "scale", None)
    assert rules.check("k8s", "scale", {"ns": "dev"}) is None
    assert rules.check("k8s", "other", None) is None and rules.check("git", "scale", None) is None
    assert (rules.digest("k8s", "scale"), NO_RULES.digest("k8s", "scale")) == ("d", "")


@pytest.mark.parametrize(
    "value",
    [{"replicas": 3, "Replicas": 300}, {"REPLICAS": 300}, {"spec": [{"replicas": 1, "repl_icas": 9}]},
     {"Name-Space": "x"}, {"deep": {"er": [[{"\uff52eplicas": 1}]]}}],
)  # fmt: skip
def test_another_spelling_of_a_name_in_a_rule_is_a_violation(value: Any) -> None:
    item = {"properties": {"replicas": {"maximum": 20}}}
    rule = ArgumentSchema({**item, "properties": {**item["properties"], "spec": {"items": item}, "namespace": {}}})
    violation = rule.check(value)
    assert violation and "too like one that the rule names" in violation.message
    for schema in ({"dependentRequired": {"replicas": ["owner"]}}, {"propertyNames": {"enum": ["replicas"]}}):
        found = ArgumentSchema(schema).check({"Replicas": 300})
        assert found is not None
    assert rule.check({"replicas": 3, "spec": [{"replicas": 1, "replica": 2}], "other": {"replicas": [1]}}) is None


def test_names_of_the_whole_value_are_judged_up_to_a_bound() -> None:
    rule = ArgumentSchema({"properties": {"replicas": {}}})
    few, many = ([{chr(0xAC00 + n) * 500: 0} for n in range(count)] for count in (30, 40))
    assert rule.check({"rows": few}) is None and rule.check({"rows": few * 100}) is None
    assert "too like" in str(rule.check({"rows": many}))


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**31, 10**4000])
def test_an_integer_that_is_none_of_the_machine_is_a_violation(number: int) -> None:
    """The validator compares them as texts; 2,000 of them that must be unique take 1.5 s."""
    rule = ArgumentSchema({"properties": {"a": {"uniqueItems": True}}})
    assert "64 bits" in str(rule.check({"a": [1, [{"b": number}]]}))
    assert rule.check({"a": [2**64 - 1, -(2**63), True, 1e300, 0.5]}) is None


def test_a_rule_with_unique_items_takes_so_many_that_can_share_a_hash() -> None:
    rule = ArgumentSchema({"properties": {"a": {"items": {"uniqueItems": True}}}})
    for items in ([2**63 + n for n in range(300)], [{"b": n} for n in range(300)], [[n] for n in range(300)]):
        assert "too many items" in str(rule.check({"a": [items]})) and rule.check({"a": [items[:250]]}) is None
    assert rule.check({"a": [[str(n) for n in range(5_000)], list(range(5_000))]}) is None


def test_a_rule_with_divisions_takes_so_many_numbers_of_a_usual_size() -> None:
    rule = ArgumentSchema({"properties": {"a": {"items": {"multipleOf": 0.01}}}})
    assert rule.check({"a": [0, 0.0, 12.34, -5, 2**62, 1e15] * 100}) is None
    assert "/a/0" in str(rule.check({"a": [0.001]}))
    for odd in (1e300, -1e300, 1e-300, 5e-324):
        assert "too large or too small" in str(rule.check({"a": [], "b": {"c": odd}}))
    assert "too many numbers" in str(rule.check({"a": [1.5] * 1_001}))
    twice = ArgumentSchema({"items": {"multipleOf": 2}, "contains": {"multipleOf": 3}})
    assert "too many numbers" in str(twice.check([6] * 501)) and twice.check([6] * 500) is None
    assert ArgumentSchema({"items": {"minimum": 0}}).check([1e300] * 5_000) is None


@pytest.mark.parametrize("text", ["4111111111111111", "\xe94111111111111111\xe9", "\u0416-4111111111111111,"])
def test_words_end_where_ecma_262_says_so(text: str) -> None:
    """A letter that is not ASCII beside a number took it past a rule, and had the engine take 20 times as long."""
    card = r"\b[0-9]{16}\b"
    rule = ArgumentSchema({"properties": {"q": {"not": {"pattern": card}}}, "patternProperties": {card: False}})
    assert rule.check({"q": text}) is not None and rule.check({text: 1}) is not None
    assert rule.check({"q": "_4111111111111111"}) is None
    inside = ArgumentSchema({"properties": {"q": {"pattern": r"\B1\\b"}, "r": {"const": {"pattern": card}}}})
    assert inside.check({"q": r"a1\b", "r": {"pattern": card}}) is None and inside.check({"q": "\xe91\\b"}) is not None


@pytest.mark.parametrize("schema", [
    {"properties": {"text": {"not": {"pattern": "key.{0,100}value"}}}},
    {"additionalProperties": {"not": {"pattern": "key[^>]{0,100}value"}}},
    {"prefixItems": [{"pattern": "^x"}], "patternProperties": {"^key.*\\D{0,100}value": False}},
    {"properties": {"text": {"$ref": "#/$defs/quiet"}}, "$defs": {"quiet": {"not": {"pattern": "key.{0,100}value"}}}},
])  # fmt: skip
def test_long_texts_are_violations_of_a_rule_with_a_costly_pattern(schema: dict[str, Any]) -> None:
    """The 4 MiB of a request took up to 2 s, in which nobody else had the interpreter."""
    rule = ArgumentSchema(schema)
    found = rule.check({"text": "x" * 200_000})
    assert found is not None and found.message == "it has too much text for the patterns of the rule"
    assert rule.check({"text": ["x" * 200_000]}) == rule.check({"text": {"x" * 200_000: 1}}) == found
    assert rule.check({"text": "x" * 30_000}) is None


@pytest.mark.parametrize("pattern", [
    r"key[^\]]{0,100}value", r"\D{20,30}x", "(?s)key.{0,100}v", r"\b[^x]{60}k", "(?i:key).{0,100}(?i:value)",
    "(?m)^[^x]{60}k", "(?-u:k).{0,50}v",
])  # fmt: skip
def test_a_pattern_that_most_texts_have_to_be_followed_in_takes_no_long_text(pattern: str) -> None:
    found = ArgumentSchema({"properties": {"text": {"not": {"pattern": pattern}}}}).check({"text": "-" * 2_000_000})
    assert found is not None and found.message == "it has too much text for the patterns of the rule"


@pytest.mark.parametrize("pattern", [
    r"^/srv/[^ ]+$", "^.{1,64}/.*$", "(?i)password|passwd|secret|credential|private key", r"\.\./|\.\.\\",
    r"(?i)(password|passwd|secret|token|api[_-]?key)\s*[=:]\s*\S+", r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}",
    r"\b[0-9]{16}\b", r"\b(?:\d{4}[ -]?){3}\d{4}\b", "sk-[A-Za-z0-9]{48}", "AKIA[0-9A-Z]{16}|ghp_[0-9A-Za-z]{36}",
    "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "-----BEGIN [A-Z ]{0,20}PRIVATE KEY",
    "(?m)^[a-z]{1,64}:$", "[[:alpha:]]+ (?i:password|secret) ?= ?[[:alpha:]]+",
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}", r"(?i)\b(drop|delete|truncate|alter)\s+table\b",
    r"(?i:api_key)|AKIA[0-9A-Z]{16}|ghp_[0-9A-Za-z]{36}|xox[bp]-[0-9A-Za-z]{10,48}|AIza[0-9A-Za-z\-_]{35}",
    r"(?i:bearer) [\w-]{20,64}\.[\w-]{20,64}", r"^(?i:https?)://[a-z0-9.-]{1,253}(:\d{1,5})?/.*$",
    "[[:alpha:]]{2,10}-[[:digit:]]{2,10}-[[:alpha:]]{2,10}", r"\[[a-z]{1,20}] [a-z]{1,80}:", "^[^{ ]+ (?<name>[{ ])",
])  # fmt: skip
def test_usual_rules_take_long_texts(pattern: str) -> None:
    rule = ArgumentSchema({"properties": {"a": {"not": {"pattern": pattern}}, "b": {"type": "string"}}})
    assert rule.check({"a": "?" * 1_048_576}) is None


def test_a_text_is_only_as_long_as_the_patterns_for_it_allow() -> None:
    """A file may be large where the rule is about its path, and a pattern may look at few letters in any case."""
    path = {"pattern": "^/data/[a-z]{1,64}/.*$", "not": {"pattern": r"k[\s\S]{0,90}v"}}
    text = {"pattern": "^.{1,64}", "not": {"pattern": "AKIA[0-9A-Z]{16}|ghp_[0-9A-Za-z]{36}"}}
    rule = ArgumentSchema({"properties": {"path": path, "text": text}})
    assert rule.check({"path": "/data/a/b", "text": "x" * 4_000_000}) is None
    assert rule.check({"path": "/data/a/" + "x" * 4_000_000, "text": "x"}) is not None
    listed = ArgumentSchema({"properties": {"0": {"type": "string"}, "a": {"prefixItems": [text["not"], path["not"]]}}})
    assert listed.check({"a": ["x", "x" * 100_000]}) is not None and listed.check({"0": "x" * 100_000}) is None


@pytest.mark.parametrize("pattern", [r"\bfoo\B", r"(?-u:\b)foo", r"\b\\bfoo"])
def test_a_violation_quotes_the_pattern_that_somebody_wrote(pattern: str) -> None:
    rule = ArgumentSchema({"properties": {"q": {"pattern": pattern}, "r": {"not": {"pattern": pattern}}}})
    found = rule.check({"q": "x"})
    assert found is not None and found.message == f'the value does not match "{pattern}"'
    found = rule.check({"r": 1})
    assert found is not None and found.message == f'{{"pattern":{json.dumps(pattern)}}} is not allowed for the value'


def test_patterns_of_names_that_are_alike_are_kept_apart() -> None:
    names = {r"\bx": {"type": "string"}, r"(?-u:\b)x": {"maxLength": 2}, r"(?-u:(?-u:\b))x": {"minLength": 2}}
    rule = ArgumentSchema({"patternProperties": names})
    assert rule.check({"x": "ab"}) is None
    assert all(rule.check({"x": value}) is not None for value in (1, "abc", "a"))


def test_two_hundred_properties_are_no_bomb() -> None:
    check_bounds({"properties": {f"p{n}": {"type": "string", "maxLength": 5} for n in range(200)}})


@settings(deadline=None, max_examples=2 * settings.default.max_examples)
@given(
    st.dictionaries(
        st.sampled_from(["allOf", "not", "properties", "items", "$ref", "$defs", "required", "if", "pattern", "$id",
                         "unevaluatedItems", "patternProperties", "prefixItems", "dependentSchemas", "$schema"]),
        JSON,
    ),
    JSON,
)  # fmt: skip
def test_a_hostile_schema_is_used_or_refused_and_nothing_else(schema: dict[str, Any], value: Any) -> None:
    try:
        Schema(json.loads(json.dumps(schema))).check(value)
    except SchemaRefused as refused:
        assert refused.text


@pytest.mark.parametrize(
    ("name", "ref"), [("a/b", "a~1b"), ("a~b", "a~0b"), ("~1", "~01"), ("a b", "a%20b"), ("%", "%25"), ("é", "%C3%A9")]
)
@pytest.mark.parametrize("word", ["properties", "$defs"])
def test_a_reference_leads_to_a_subschema_with_any_name(word: str, name: str, ref: str) -> None:
    """RFC 6901, sections 3 and 6: what a pointer in a fragment writes another way than the name has it."""
    schema = Schema({word: {name: {"type": "integer"}}, "required": ["x"], "anyOf": [{"properties": {
        "x": {"$ref": f"#/{word}/{ref}"}}}]})  # fmt: skip
    assert schema.check({"x": 1}) is None and schema.check({"x": "1"}) is not None
    with pytest.raises(SchemaRefused, match="leads to no subschema"):
        Schema({word: {name: {}}, "not": {"$ref": f"#/{word}/{ref}x"}})


@pytest.mark.parametrize(
    "value", [[0] * 300, [[0] * 100] * 3, "x" * 70_000, {"k" * 70_000: 0}, {"a": ["x" * 40_000] * 2}]
)
def test_what_is_wrong_in_a_large_value_is_not_searched_for(value: Any) -> None:
    """Each of its parts would be copied into the explanation: 38 KiB of numbers took two seconds."""
    part = {"anyOf": [{"const": 1}, {"type": "object", "maxProperties": 0}]}
    schema = Schema({"anyOf": [{"type": "array", "items": part}, part]})
    violation = schema.check(value)
    assert violation is not None and (violation.path, violation.message) == (
        "",
        "the value breaks the rule, and is too large to say where",
    )
    assert schema.check([1] * 300) is None, "a large value that keeps the rule passes"


def test_what_is_wrong_in_a_small_value_has_its_place() -> None:
    violation = Schema({"properties": {"a": {"items": {"maximum": 3}}}}).check({"a": [0] * 150 + [4]})
    assert violation is not None and violation.path == "/a/150"
