"""What a tool promised to answer: its `outputSchema` against the `structuredContent` of a result.

The schema and the value both come from the server, so both are hostile. Beyond `bounds`, which every schema keeps, the
work of one check is bounded here: what may be evaluated at one place of the value, times the places. A schema or a
value beyond that is not used, and the result says so.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from sluicegate.policy.arguments import Schema, are_short, compared_pairs
from sluicegate.policy.schema_cost import DIALECT, MAX_EVALUATIONS, SchemaRefused, check_bounds
from sluicegate.protocol.jsonrpc import Json, dump

Flag = Literal["output_schema", "output_schema_unused"]

MAX_WORK: Final = 1_000_000
"""Evaluations at places of a value, about 25 ns each."""
MAX_WEIGHT: Final = 10_000
MAX_PATTERNS: Final = 16
"""Compiling one may take a millisecond and half a megabyte."""
MAX_LETTERS: Final = 4_000
"""Of all patterns, each as often as it is repeated, some 350 ns to compile. No other thread runs meanwhile."""
_CLASS_LETTERS: Final = 10
"""What a class of letters counts for, such as `\\w`."""
MAX_REPEATED: Final = 100
"""Times that a pattern may ask for something by a number: each is a state in which every letter is looked at."""
_MAX_DIGITS: Final = 9
MULTIPLE_OF: Final = 30_000
"""What a division of one number counts for: of numbers with large exponents it is one of long integers."""
COMPARISON: Final = 25
"""What it counts for that two items of a list are compared, for `uniqueItems`."""
MAX_KNOWN: Final = 256
_COUNTS: Final = re.compile(r"\{(?:\d*,)?(\d+)")
_HOLDERS: Final = (dict, list)
# What most servers write with an older generator; what differs in it for their schemas is refused by the compiler.
_ALSO: Final = ("http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-07/schema")


class Judged(NamedTuple):
    """A flag for the result, and why, for the log: the words may be the server's."""

    flag: Flag
    text: str


@dataclass(frozen=True, slots=True)
class _CompiledSchema:
    """The schema object that was compiled, and what became of it. `weight` bounds the evaluations at one place."""

    source: Any
    schema: Schema | None
    weight: int = 0
    patterns: int = 0
    is_unique: bool = False
    refused: str = ""


class Outputs:
    """Schemas are compiled at their first use and kept by tool: at most `MAX_KNOWN`, then all begin anew."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str], _CompiledSchema] = {}

    def check(self, server: str, tool: str, schema: Any, result: Json) -> Judged | None:
        """Returns None for a result that matches its schema. Errors need not match it."""
        if result.get("isError") is True:
            return None
        if "structuredContent" not in result:
            # 2026-07-28 server/tools#output-schema: servers MUST provide structured results that conform
            return Judged("output_schema", "structuredContent is missing")
        compiled = self._find(server, tool, schema) or self._keep(server, tool, _compile(schema))
        return _check(compiled, result["structuredContent"])

    def prepare(self, server: str, tool: str, schema: Any) -> Callable[[], object] | None:
        """What a thread should do before the first check: a large schema takes some 20 ms. None where the schema is
        compiled."""
        if self._find(server, tool, schema) is not None:
            return None
        return lambda: self._keep(server, tool, _compile(schema))

    def _find(self, server: str, tool: str, schema: Any) -> _CompiledSchema | None:
        compiled = self._compiled.get((server, tool))
        # The very object in nearly all cases; another of equal content where clients have snapshots of their own.
        return compiled if compiled is not None and (compiled.source is schema or compiled.source == schema) else None

    def _keep(self, server: str, tool: str, compiled: _CompiledSchema) -> _CompiledSchema:
        if len(self._compiled) >= MAX_KNOWN:
            self._compiled.clear()
        self._compiled[server, tool] = compiled
        return compiled


def _check(compiled: _CompiledSchema, value: Any) -> Judged | None:
    if compiled.schema is None:
        return Judged("output_schema_unused", compiled.refused)
    places, letters = _size(value, MAX_WORK // compiled.weight)
    work = places * compiled.weight + letters * compiled.patterns // 8
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
    """How many evaluations one place may cost, and of how many regular expressions: every object and every item of a
    list in the schema counts, references followed wherever they stand. One that leads back to itself counts as much
    as `bounds` lets one place cost."""
    weight = patterns = letters = endless = divisions = 0
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
            found = _patterns(node)
            patterns += len(found)
            letters += sum(map(_letters, found))
        if isinstance(ref, str):
            endless = MAX_EVALUATIONS if ref in followed else endless
            todo += [(_referred(schema, ref), followed | {ref})] if ref not in followed else []
        if weight > MAX_WEIGHT or patterns > MAX_PATTERNS or letters > MAX_LETTERS:
            raise SchemaRefused("too-costly", "some results would take too long to check")
    return 1 + weight + endless + MULTIPLE_OF * divisions, patterns


def _referred(schema: Any, ref: str) -> Any:
    """`bounds` has seen that every reference leads to a subschema; what leads nowhere is data that looks like one."""
    if ref != "#" and not ref.startswith("#/"):
        raise SchemaRefused("anchor-ref", "a $ref by the name of an anchor is not used")
    try:
        for part in unquote(ref[1:]).split("/")[1:]:
            step = part.replace("~1", "/").replace("~0", "~")
            schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    except (LookupError, ValueError, TypeError):
        return {}
    return schema if isinstance(schema, _HOLDERS) else {}


def _patterns(node: Json) -> list[str]:
    named, pattern = node.get("patternProperties"), node.get("pattern")
    found: list[str] = [*(named if isinstance(named, dict) else ()), *([pattern] if isinstance(pattern, str) else ())]
    for text in found:
        if math.prod(max(1, count) for count in _counts(text)) > MAX_REPEATED:
            raise SchemaRefused("too-costly", "a pattern repeats something too often to be checked")
    return found


def _counts(pattern: str) -> list[int]:
    """How often a pattern repeats something. Of a long number Python makes none, so that it counts as too many."""
    return [int(digits) if len(digits) <= _MAX_DIGITS else MAX_REPEATED + 1 for digits in _COUNTS.findall(pattern)]


def _letters(pattern: str) -> int:
    """Counts the letters of a pattern, its classes of letters included."""
    classes = pattern.count("\\") + pattern.count(".") + pattern.count("[")
    return (len(pattern) + _CLASS_LETTERS * classes) * max(_counts(pattern), default=1)


def _size(value: Any, most: int) -> tuple[int, int]:
    """Places of the value, names of fields included, and letters in it; counted up to `most` places and a little. A
    long integer is more than that."""
    places, letters, todo = 1, 0, [[value]]
    while todo and places <= most:
        parts = todo.pop()
        kinds = set(map(type, parts))  # a list of numbers is looked at as a whole
        if int in kinds and not are_short(parts if len(kinds) == 1 else [one for one in parts if type(one) is int]):
            return most + 1, letters
        if str in kinds:
            letters += sum(len(one) for one in parts if type(one) is str)
        for node in parts if dict in kinds or list in kinds else ():
            if type(node) is dict:
                places += 2 * len(node)
                letters += sum(map(len, node))
                if node:
                    todo.append(list(node.values()))
            elif type(node) is list:
                places += len(node)
                if node:
                    todo.append(node)
    return places, letters
