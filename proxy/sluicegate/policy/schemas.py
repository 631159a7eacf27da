"""JSON Schemas of tools: rules for arguments, compiled once and checked in a microsecond, and what a tool promised to
answer, its `outputSchema` against the `structuredContent` of a result.

jsonschema-rs has its only home here. No regular expression backtracks, nothing is fetched, and nothing is compiled
that is not within `schema_cost`. The schemas of rules are the operator's. Those of outputs come from the server as the
values do, so both are hostile, and the work of one check is bounded, too: what may be evaluated at one place of the
value, times the places. A schema or a value beyond that is not used, and the result says so.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import jsonschema_rs

from sluicegate.policy.memo import Memo
from sluicegate.policy.pattern_cost import (
    ESCAPED,
    MAX_LETTERS,
    costly_part,
    counted_patterns,
    patterns_of,
)
from sluicegate.policy.schema_cost import DIALECT, MAX_EVALUATIONS, SchemaRefused, check_bounds, children
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.protocol.parameter_names import look_alike

_MAX_PATTERN: Final = 256 * 1024  # bytes of a compiled pattern
_MAX_TEXT: Final = 200
_MAX_NAME: Final = 64
_EXPLAINED: Final = 200
_EXPLAINED_TEXT: Final = 64 * 1024
_END_OF_WORD: Final = re.compile(r"\(\?-u:(\\{1,2}[bB])\)")
_SMALLEST_INTEGER: Final = -(2**63)
_LARGEST_INTEGER: Final = 2**64 - 1
_MAX_DIVIDED: Final = 2.0**63
_MIN_DIVIDED: Final = 1e-15
"""A division of smaller or larger numbers is one of long integers, and takes up to 780 us."""
_MAX_DIVISIONS: Final = 1_000
_MAX_FOLLOWED: Final = 132_000_000
"""What patterns may cost for all letters of a text, in parts of an evaluation: up to 82 ms, and mostly half of that."""
_EXACT: Final = 2**53
"""Larger integers share a float with others, and jsonschema-rs looks for equal items by the floats of numbers."""
_MAX_PAIRS: Final = 40_000
"""Items that are compared with one another, half a microsecond each."""


@dataclass(frozen=True, slots=True)
class Violation:
    """`path` is a JSON Pointer into the value ("" is the whole of it). Neither holds a value."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path or '(all)'}: {self.message}"


def _with_ends_of_words(schema: Any) -> Any:
    """The schema in which `\\b` and `\\B` mean what they do in ECMA-262 (2020-12 core 6.4): words are ASCII, as the
    engine has it for `\\w`. It takes a letter such as `\xe9` for one of a word, which takes 20 times as long."""
    copy = deepcopy(schema)
    left = [copy]
    while left:
        node = left.pop()
        if not isinstance(node, dict):
            continue
        left += [child for child, _, _ in children(node)]
        if isinstance(pattern := node.get("pattern"), str):
            node["pattern"] = ESCAPED.sub(_end_of_word, pattern)
        if isinstance(named := node.get("patternProperties"), dict):
            node["patternProperties"] = {ESCAPED.sub(_end_of_word, name): child for name, child in named.items()}
    return copy


def _end_of_word(escaped: re.Match[str]) -> str:
    return f"(?-u:{escaped[0]})" if escaped[0] in ("\\b", "\\B") else escaped[0]


class Schema:
    """A compiled schema. Raises `SchemaRefused` for one that may not be used."""

    __slots__ = ("_validator",)

    def __init__(self, schema: Any, is_bounded: bool = False) -> None:
        if not is_bounded:
            check_bounds(schema)
        try:
            patterns = jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN, dfa_size_limit=_MAX_PATTERN)
            self._validator = jsonschema_rs.Draft202012Validator(
                _with_ends_of_words(schema), pattern_options=patterns, offline=True, validate_formats=False,
                mask="the value",
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            text = str(error).partition("\n")[0]
            raise SchemaRefused("bad-schema", text[:_MAX_TEXT]) from None

    def check(self, value: Any) -> Violation | None:
        """The first thing that is wrong; None if nothing is. What is wrong in a large value is not searched for: that
        takes a hundred times as long as to know that something is."""
        if self._validator.is_valid(value):
            return None
        if _is_large(value):
            return Violation("", "the value breaks the rule, and is too large to say where")
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            as_written = _END_OF_WORD.sub(lambda end: end[1], error.message)
            return Violation(_pointer(error.instance_path), as_written[:_MAX_TEXT])
        return None


class ArgumentSchema(Schema):
    """A rule for arguments. No member, at any depth, may have a name that is another spelling of one that the rule
    names: the rule did not judge it, and some parsers read it as that name (CVE-2026-27896). Numbers that take long to
    be judged are violations."""

    __slots__ = ("_costs", "_divisions", "_is_unique", "_named", "_written")

    def __init__(self, schema: Any) -> None:
        super().__init__(schema)
        self._written = schema
        self._costs = _costs(schema)
        self._named = frozenset(_named(schema))
        text = dump(schema)
        self._divisions, self._is_unique = text.count(b'"multipleOf"'), b'"uniqueItems"' in text

    def __reduce__(self) -> tuple[type["ArgumentSchema"], tuple[Any]]:
        return ArgumentSchema, (self._written,)  # compiled anew: what is compiled cannot go to another process

    def check(self, value: Any) -> Violation | None:
        names, integers, fractions = _names_and_numbers(value)
        if not are_short(integers):
            return Violation("", "an integer has more than 64 bits")
        if self._divisions and (text := self._cannot_divide(integers, fractions)):
            return Violation("", text)
        if self._is_unique and compared_pairs(value) > _MAX_PAIRS:
            return Violation("", "a list has too many items for a rule with uniqueItems")
        if self._costs and _followed(value, self._costs) > _MAX_FOLLOWED:
            return Violation("", "it has too much text for the patterns of the rule")
        if (violation := super().check(value)) is not None:
            return violation
        if (key := look_alike(names, self._named)) is None:
            return None
        return Violation("", f"the name {key[:_MAX_NAME]!a} is too like one that the rule names")

    def _cannot_divide(self, integers: list[int], fractions: list[float]) -> str:
        if self._divisions * (len(integers) + len(fractions)) > _MAX_DIVISIONS:
            return "it has too many numbers for a rule with multipleOf"
        if all(number == 0 or _MIN_DIVIDED <= abs(number) <= _MAX_DIVIDED for number in fractions):
            return ""
        return "a number is too large or too small for a rule with multipleOf"


def _costs(schema: Any) -> dict[str, int]:
    """What a letter costs in the members of each name for which the schema has patterns, and in all ("") for others."""
    costs, left = Counter[str](), [(schema, "")]
    has_references = b'"$ref"' in dump(schema)  # what they lead to may be for other members than where it stands
    while left:
        node, name = left.pop()
        if not isinstance(node, dict):
            continue
        costs["" if has_references else name] += sum(map(costly_part, patterns_of(node)))
        for child, _, part in children(node):
            member = part[1] if part and part[0] == "object" else None
            left.append((child, name or member or ""))
    return {name: cost for name, cost in costs.items() if cost}


def _followed(value: Any, costs: dict[str, int]) -> int:
    """What the patterns may cost for all letters of the value."""
    followed, left = 0, [(value, costs.get("", 0))]
    while left:
        part, cost = left.pop()
        if isinstance(part, str):
            followed += _bytes(part) * cost
        elif isinstance(part, dict):
            followed += sum(map(_bytes, part)) * cost
            left += [(inner, cost + (costs.get(name, 0) if name else 0)) for name, inner in part.items()]
        elif isinstance(part, list):
            left += [(inner, cost) for inner in part]
    return followed


def are_short(integers: list[int]) -> bool:
    """Longer ones are compared as texts, and those of a list that must be unique each with each other."""
    return not integers or (min(integers) >= _SMALLEST_INTEGER and max(integers) <= _LARGEST_INTEGER)


def compared_pairs(value: Any) -> int:
    """How many pairs of items `uniqueItems` compares at most. Items that are lists, objects or large integers can be
    written so that all of them have one hash. Then each is compared with each."""
    pairs, left = 0, [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            alike = sum(isinstance(item, _HOLDERS) or (type(item) is int and abs(item) > _EXACT) for item in part)
            pairs += alike * alike // 2
            left += part
    return pairs


def _names_and_numbers(value: Any) -> tuple[dict[str, None], list[int], list[float]]:
    """All names of members, at any depth, and the numbers."""
    names: dict[str, None] = {}
    integers: list[int] = []
    fractions: list[float] = []
    left: list[Any] = [value]
    while left:
        part = left.pop()
        if type(part) is dict:
            names.update(dict.fromkeys(part))
            left += part.values()
        elif type(part) is list:
            left += part
        elif type(part) is int:
            integers.append(part)
        elif type(part) is float:
            fractions.append(part)
    return names, integers, fractions


def _is_large(value: Any) -> bool:
    """Whether it has more values, or longer texts, than an explanation of what is wrong with it is worth."""
    values, text, left = 0, 0, [value]
    while left and values <= _EXPLAINED and text <= _EXPLAINED_TEXT:
        part = left.pop()
        values += 1
        if isinstance(part, str):
            text += len(part)
        elif isinstance(part, dict):
            text += sum(map(len, part))
            left += part.values()
        elif isinstance(part, list):
            left += part
    return bool(left) or values > _EXPLAINED or text > _EXPLAINED_TEXT


_NAMING: Final = ("properties", "required", "dependentRequired", "dependentSchemas", "dependencies")


def _named(schema: Any) -> Iterator[str]:
    """The names of members that a schema gives word by word. Those that it gives by a pattern are not among them."""
    if isinstance(schema, dict):
        names = schema.get("propertyNames")
        for part in (*map(schema.get, _NAMING), names.get("enum") if isinstance(names, dict) else None):
            if isinstance(part, dict | list):
                yield from (name for name in part if isinstance(name, str))
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for part in inner:
        yield from _named(part)


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


@dataclass(frozen=True, slots=True)
class ArgumentRules:
    """(server key, own tool name) -> what its arguments must be, and which version of that rule this is."""

    schemas: Mapping[tuple[str, str], "ArgumentSchema"]
    digests: Mapping[tuple[str, str], str]

    def check(self, server: str, tool: str, arguments: Json | None) -> Violation | None:
        schema = self.schemas.get((server, tool))
        return schema.check({} if arguments is None else arguments) if schema else None

    def named_like(self, server: str, tool: str) -> list[str]:
        """The tools with a rule whose names differ from that in case at most."""
        return [name for key, name in self.schemas if key == server and name.lower() == tool.lower()]

    def digest(self, server: str, tool: str) -> str:
        """Equal for two sets of rules that say the same about this tool; "" where they say nothing."""
        return self.digests.get((server, tool), "")


NO_RULES: Final = ArgumentRules({}, {})


Flag = Literal["output_schema", "output_schema_unused"]

MAX_WORK: Final = 1_000_000
"""Evaluations at places of a value, about 25 ns each."""
MAX_WEIGHT: Final = 10_000
MAX_PATTERNS: Final = 16
"""Compiling one may take a millisecond and half a megabyte."""
_EVALUATION: Final = 40
"""What a pattern costs for a byte of a text is counted in such parts of an evaluation."""
_FOLLOWED: Final = 5
"""What each pattern counts for in any case."""
MULTIPLE_OF: Final = 30_000
"""What a division of one number counts for: of numbers with large exponents it is one of long integers."""
COMPARISON: Final = 25
"""What it counts for that two items of a list are compared, for `uniqueItems`."""
MAX_KNOWN: Final = 256
_HOLDERS: Final = (dict, list)
# What most servers write with an older generator; what differs in it for their schemas is refused by the compiler.
_ALSO: Final = ("http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-07/schema")


class Judged(NamedTuple):
    """A flag for the result, and why, for the log: the words may be the server's."""

    flag: Flag
    text: str


@dataclass(frozen=True, slots=True)
class _CompiledSchema:
    """The schema object that was compiled, and what became of it. `weight` bounds the evaluations at one place, and
    `patterns` is what a letter costs, in parts of an evaluation."""

    source: Any
    schema: Schema | None
    weight: int = 0
    patterns: int = 0
    is_unique: bool = False
    refused: str = ""


class Outputs:
    """Schemas are compiled at their first use and kept by tool: at most `MAX_KNOWN`."""

    def __init__(self) -> None:
        self._compiled: Memo[tuple[str, str], _CompiledSchema] = Memo(MAX_KNOWN)

    def check(self, server: str, tool: str, schema: Any, result: Json) -> Judged | None:
        """Returns None for a result that matches its schema. Errors need not match it."""
        if result.get("isError") is True:
            return None
        if "structuredContent" not in result:
            # 2026-07-28 server/tools#output-schema: servers MUST provide structured results that conform
            return Judged("output_schema", "structuredContent is missing")
        compiled = self._find(server, tool, schema) or self._compiled.keep((server, tool), _compile(schema))
        return _check(compiled, result["structuredContent"])

    def prepare(self, server: str, tool: str, schema: Any) -> Callable[[], object] | None:
        """What a thread should do before the first check: a large schema takes some 20 ms. None where the schema is
        compiled."""
        if self._find(server, tool, schema) is not None:
            return None
        return lambda: self._compiled.keep((server, tool), _compile(schema))

    def _find(self, server: str, tool: str, schema: Any) -> _CompiledSchema | None:
        compiled = self._compiled.get((server, tool))
        # The very object in nearly all cases; another of equal content where clients have snapshots of their own.
        return compiled if compiled is not None and (compiled.source is schema or compiled.source == schema) else None


def _check(compiled: _CompiledSchema, value: Any) -> Judged | None:
    if compiled.schema is None:
        return Judged("output_schema_unused", compiled.refused)
    places, letters = _size(value, MAX_WORK // compiled.weight)
    work = places * compiled.weight + letters * compiled.patterns // _EVALUATION
    if work <= MAX_WORK and compiled.is_unique:
        work += COMPARISON * compared_pairs(value)
    if work > MAX_WORK:
        return Judged("output_schema_unused", "the result is too large to be checked against it")
    violation = compiled.schema.check(value)
    return None if violation is None else Judged("output_schema", str(violation))


def _compile(source: Any) -> _CompiledSchema:
    schema = source
    if isinstance(source, dict) and source.get("$schema") in _ALSO:
        schema = {**source, "$schema": DIALECT}
    try:
        check_bounds(schema)
        weight, patterns = _weigh(schema)
        is_unique = b'"uniqueItems"' in dump(schema)
        return _CompiledSchema(source, Schema(schema, is_bounded=True), weight, patterns, is_unique)
    except SchemaRefused as refusal:
        return _CompiledSchema(source, None, refused=f"{refusal.code}: {refusal.text}")


def _weigh(schema: Any) -> tuple[int, int]:
    """How many evaluations one place may cost, and what its regular expressions cost for a letter: every object and
    every item of a list in the schema counts, references followed wherever they stand. One that leads back to itself
    counts as much as `check_bounds` lets one place cost."""
    weight = patterns = letters = followed_letters = endless = divisions = 0
    todo: list[tuple[Any, frozenset[str]]] = [(schema, frozenset())] if isinstance(schema, dict) else []
    while todo:
        node, followed = todo.pop()
        inner = node.values() if isinstance(node, dict) else node
        # A subschema may be `true`, which `dependentSchemas` looks for at each place all the same.
        weight += 1 + (len(node) if isinstance(node, list) else sum(isinstance(part, bool) for part in inner))
        divisions += "multipleOf" in node
        todo += [(part, followed) for part in inner if isinstance(part, _HOLDERS)]
        ref = node.get("$ref") if isinstance(node, dict) else None
        if isinstance(node, dict):
            found = counted_patterns(node)
            patterns += len(found)
            letters += sum(part.letters for part in found)
            followed_letters += sum(part.cost for part in found)
        if isinstance(ref, str):
            endless = MAX_EVALUATIONS if ref in followed else endless
            todo += [(_referred(schema, ref), followed | {ref})] if ref not in followed else []
        if weight > MAX_WEIGHT or patterns > MAX_PATTERNS or letters > MAX_LETTERS:
            raise SchemaRefused("too-costly", "some results would take too long to check")
    return 1 + weight + endless + MULTIPLE_OF * divisions, _FOLLOWED * patterns + followed_letters


def _referred(schema: Any, ref: str) -> Any:
    """`check_bounds` has seen that every reference leads to a subschema; what leads nowhere only looks like one."""
    if ref != "#" and not ref.startswith("#/"):
        raise SchemaRefused("anchor-ref", "a $ref by the name of an anchor is not used")
    try:
        for part in unquote(ref[1:]).split("/")[1:]:
            step = part.replace("~1", "/").replace("~0", "~")
            schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    except (LookupError, ValueError, TypeError):
        return {}
    return schema if isinstance(schema, _HOLDERS) else {}


def _bytes(text: str) -> int:
    """The engine looks at each byte of UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _size(value: Any, most: int) -> tuple[int, int]:
    """Places of the value, names of fields included, and bytes of its texts; counted up to `most` places and a little.
    A long integer is more than that."""
    places, letters, todo = 1, 0, [[value]]
    while todo and places <= most:
        parts = todo.pop()
        kinds = set(map(type, parts))  # a list of numbers is looked at as a whole
        if int in kinds and not are_short(parts if len(kinds) == 1 else [one for one in parts if type(one) is int]):
            return most + 1, letters
        if str in kinds:
            letters += sum(_bytes(one) for one in parts if type(one) is str)
        for node in parts if dict in kinds or list in kinds else ():
            if type(node) is dict:
                places += 2 * len(node)
                letters += sum(map(_bytes, node))
                if node:
                    todo.append(list(node.values()))
            elif type(node) is list:
                places += len(node)
                if node:
                    todo.append(node)
    return places, letters
