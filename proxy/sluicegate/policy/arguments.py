"""Rules for arguments: one JSON Schema 2020-12 per tool, compiled once, checked in a microsecond.

jsonschema-rs has its only home here. No regular expression backtracks, nothing is fetched, and nothing is compiled
that is not within `bounds`. The same bounded compile serves a server's `outputSchema`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs

from sluicegate.policy.schema_cost import SchemaRefused, check_bounds
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.protocol.parameter_names import look_alike

_MAX_PATTERN: Final = 256 * 1024  # bytes of a compiled pattern
_MAX_TEXT: Final = 200
_MAX_NAME: Final = 64
_EXPLAINED: Final = 200
_EXPLAINED_TEXT: Final = 64 * 1024
_SMALLEST_INTEGER: Final = -(2**63)
_LARGEST_INTEGER: Final = 2**64 - 1
_MAX_DIVIDED: Final = 2.0**63
_MIN_DIVIDED: Final = 1e-15
"""A division of smaller or larger numbers is one of long integers, and takes up to 780 us."""
_MAX_DIVISIONS: Final = 1_000
_HOLDERS: Final = (dict, list)
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


class Schema:
    """A compiled schema. Raises `SchemaRefused` for one that may not be used."""

    __slots__ = ("_validator",)

    def __init__(self, schema: Any, is_bounded: bool = False) -> None:
        if not is_bounded:
            check_bounds(schema)
        try:
            patterns = jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN, dfa_size_limit=_MAX_PATTERN)
            self._validator = jsonschema_rs.Draft202012Validator(
                schema, pattern_options=patterns, offline=True, validate_formats=False, mask="the value"
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
            return Violation(_pointer(error.instance_path), error.message[:_MAX_TEXT])
        return None


class ArgumentSchema(Schema):
    """A rule for arguments. No member, at any depth, may have a name that is another spelling of one that the rule
    names: the rule did not judge it, and some parsers read it as that name (CVE-2026-27896). Numbers that take long to
    be judged are violations."""

    __slots__ = ("_divisions", "_is_unique", "_named", "_written")

    def __init__(self, schema: Any) -> None:
        super().__init__(schema)
        self._written = schema
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
