"""Whether a JSON Schema may be used at all: small, self-contained, and cheap for every value it will ever meet.

Pure. A schema of a server is hostile input, one of an operator is judged against hostile values. Linear regular
expressions do not help against `allOf: [{$ref: x}, {$ref: x}]` nested thirty times: four kilobytes of schema, a
billion evaluations. So the evaluations that one place of a value can cost are counted before anything is compiled.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final
from urllib.parse import unquote

from sluicegate.protocol.jsonrpc import MAX_DEPTH, Json, Malformed, dump

MAX_BYTES: Final = 64 * 1024
MAX_SUBSCHEMAS: Final = 1_000
MAX_EVALUATIONS: Final = 2_000
"""Of subschemas at one place of a value."""
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

MAX_WORK: Final = 50_000
"""Of the count itself."""

# 2020-12 core 10 and 11: which keywords hold schemas, and whether those look at the same value or at a part of it.
_HERE_ONE: Final = ("not", "if", "then", "else")
_HERE_MANY: Final = ("allOf", "anyOf", "oneOf")
_HERE_NAMED: Final = ("dependentSchemas", "dependencies")
_PART_ONE: Final = {
    "additionalProperties": "object", "unevaluatedProperties": "object", "propertyNames": "name",
    "items": "array", "unevaluatedItems": "array", "additionalItems": "array", "contains": "array",
}  # fmt: skip
_UNUSED_NAMED: Final = ("$defs", "definitions")
_NOT_USED: Final = ("$dynamicRef", "$recursiveRef")
# To know what is left over, the validator evaluates its neighbours again (measured: 2.6 times as much a level).
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_AGAIN: Final = 3


class SchemaRefused(ValueError):
    """`code` says which bound; the text is for a person."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


Part = tuple[str, str | None]
"""Of what kind the value is, and which of its parts: None is every one."""


@dataclass(slots=True)
class _Node:
    """A subschema: what else is evaluated on the same value (each as often as `weight`), and on parts of it."""

    here: list[int] = field(default_factory=list)
    parts: list[tuple[Part, int]] = field(default_factory=list)
    ref: str | None = None
    weight: int = 1


def check_bounds(schema: Any) -> None:
    """Raises `SchemaRefused`."""
    if not isinstance(schema, dict | bool):
        raise SchemaRefused("not-a-schema", "a schema is an object, true or false")
    try:
        size = len(dump(schema))
    except Malformed as error:
        raise SchemaRefused("not-a-schema", error.text) from None
    if size > MAX_BYTES:
        raise SchemaRefused("too-large", f"{size} bytes, more than {MAX_BYTES}")
    if isinstance(schema, dict) and str(schema.get("$schema", DIALECT)).rstrip("#") != DIALECT:
        raise SchemaRefused("other-dialect", f"$schema is not {DIALECT}")
    nodes, places = _read(schema)
    _resolve(nodes, places)
    _count(nodes)


# 2020-12 validation 6 and 9, core 8 and 10.3.1; `dependencies` and `definitions` are of older ones.
_CHECKED: Final = frozenset(
    "type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern maxItems "
    "minItems uniqueItems maxContains minContains maxProperties minProperties required dependentRequired".split()
)
_TOLD: Final = frozenset(
    "$id $schema $ref $anchor $dynamicAnchor $comment $vocabulary title description default deprecated readOnly "
    "writeOnly examples".split()
)
_OTHER_MAPS: Final = ("patternProperties", "properties", "prefixItems")
_SCHEMAS: Final = frozenset((*_HERE_ONE, *_HERE_MANY, *_HERE_NAMED, *_PART_ONE, *_UNUSED_NAMED, *_OTHER_MAPS))
KEYWORDS: Final = (_CHECKED | _TOLD | _SCHEMAS) - {"additionalItems"}  # that one is not judged
NOT_CHECKED: Final = frozenset(("format", "contentEncoding", "contentMediaType", "contentSchema"))
"""2020-12 validation 7 and 8: these need not be judged, and are not."""


def unused_keywords(schema: Any) -> list[str]:
    """Words of a schema within `check_bounds` by which nothing is judged: a typing mistake in one is a rule less."""
    found, left = dict[str, None](), [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            found |= dict.fromkeys(word for word in value if word not in KEYWORDS and not word.startswith("x-"))
            left += [child for child, _, _ in children(value)]
    return sorted(found)


_Child = tuple[Any, str, Part | None]
"""A subschema, the path to it, and which part it is for (_HERE: the value itself; None: nothing, a definition)."""
_HERE: Final[Part] = ("here", None)


def _read(schema: Any) -> tuple[list[_Node], dict[str, int]]:
    """All subschemas, and where each can be referred to."""
    nodes: list[_Node] = []
    places: dict[str, int] = {}
    todo: list[tuple[Any, str, _Node, Part | None]] = [(schema, "#", _Node(), None)]
    while todo:
        value, pointer, parent, part = todo.pop()
        number, node = len(nodes), _Node()
        nodes.append(node)
        places[pointer] = number
        if part == _HERE:
            parent.here.append(number)
        elif part:
            parent.parts.append((part, number))
        if len(nodes) > MAX_SUBSCHEMAS:
            raise SchemaRefused("too-many", f"more than {MAX_SUBSCHEMAS} subschemas")
        if isinstance(value, dict):
            _read_words(value, pointer, node, number, places)
            todo += [(child, pointer + path, node, whose) for child, path, whose in children(value)]
    return nodes, places


def _read_words(value: Json, pointer: str, node: _Node, number: int, places: dict[str, int]) -> None:
    if pointer != "#" and ("$id" in value or "$schema" in value):
        raise SchemaRefused("nested-id", "$id or $schema below the top")
    if any(word in value for word in _NOT_USED):
        raise SchemaRefused("dynamic-ref", "$dynamicRef and $recursiveRef are not used")
    for word in ("$anchor", "$dynamicAnchor"):
        if isinstance(value.get(word), str):
            places[f"#{value[word]}"] = number
    if any(word in value for word in _UNEVALUATED):
        node.weight = _AGAIN
    if "$ref" in value:
        node.ref = str(value["$ref"])
        if not node.ref.startswith("#"):
            raise SchemaRefused("outside-ref", "$ref to somewhere else is never fetched")


def children(value: Json) -> Iterator[_Child]:
    for word in _HERE_ONE:
        if word in value:
            yield value[word], f"/{word}", _HERE
    for word in _HERE_MANY:
        yield from ((child, path, _HERE) for child, path, _ in _list(value, word))
    for word in _HERE_NAMED:
        yield from ((child, path, _HERE) for child, path, _ in _map(value, word))
    for word, kind in _PART_ONE.items():
        if word in value:
            yield value[word], f"/{word}", (kind, None)
    yield from ((child, path, ("object", None)) for child, path, _ in _map(value, "patternProperties"))
    yield from ((child, path, ("object", name)) for child, path, name in _map(value, "properties"))
    yield from ((child, path, ("array", name)) for child, path, name in _list(value, "prefixItems"))
    for word in _UNUSED_NAMED:
        yield from ((child, path, None) for child, path, _ in _map(value, word))


def _list(value: Json, word: str) -> Iterator[tuple[Any, str, str]]:
    found = value.get(word)
    for number, child in enumerate(found if isinstance(found, list) else ()):
        yield child, f"/{word}/{number}", str(number)


def _map(value: Json, word: str) -> Iterator[tuple[Any, str, str]]:
    found = value.get(word)
    for name, child in (found if isinstance(found, dict) else {}).items():
        yield child, f"/{word}/{name.replace('~', '~0').replace('/', '~1')}", name


def _resolve(nodes: list[_Node], places: Mapping[str, int]) -> None:
    for node in nodes:
        if node.ref is not None:
            target = places.get(unquote(node.ref))
            if target is None:
                raise SchemaRefused("unknown-ref", f"$ref {node.ref[:80]!r} leads to no subschema of this schema")
            node.here.append(target)


class _Work:
    """Counts what counting costs, because the schema that is counted is hostile, too."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def add(self, total: Counter[int], more: Counter[int], times: int) -> None:
        self._left -= len(more)
        for number, often in more.items():
            total[number] += often * times
        if self._left < 0 or total.total() > MAX_EVALUATIONS:
            raise SchemaRefused("too-costly", "subschemas that multiply: some values would take too long to check")


def _count(nodes: list[_Node]) -> None:
    """Walks down a value as deep as a message may be, with the worst that a value can do at each step: how often is
    each subschema evaluated at one place? Different parts are different places, so the largest one counts."""
    work = _Work()
    alone = _evaluate_alone(nodes, work)
    there = alone[0]
    for _ in range(MAX_DEPTH):
        below: Counter[int] = Counter()
        for part in _descend(nodes, there):
            total: Counter[int] = Counter()
            for number, times in part.items():
                work.add(total, alone[number], times)
            for number, times in total.items():  # the larger one for each subschema: an upper bound for every part
                below[number] = max(below[number], times)
        if below in (there, Counter()):
            return
        there = below


def _evaluate_alone(nodes: list[_Node], work: _Work) -> dict[int, Counter[int]]:
    """What evaluating one subschema evaluates on the same value, itself included."""
    alone: dict[int, Counter[int]] = {}
    try:
        order = list(TopologicalSorter({number: node.here for number, node in enumerate(nodes)}).static_order())
    except CycleError:
        raise SchemaRefused("endless-ref", "a $ref that leads back to itself on the same value") from None
    for number in order:
        alone[number] = Counter({number: 1})
        for child in nodes[number].here:
            work.add(alone[number], alone[child], nodes[number].weight)
    return alone


def _descend(nodes: list[_Node], there: Counter[int]) -> list[Counter[int]]:
    """The subschemas that each kind of part begins with."""
    parts: dict[Part, Counter[int]] = {}
    for number, times in there.items():
        for part, child in nodes[number].parts:
            parts.setdefault(part, Counter())[child] += times
    every = {kind: counter for (kind, name), counter in parts.items() if name is None}
    return [
        counter if name is None else counter + every.get(kind, Counter()) for (kind, name), counter in parts.items()
    ]
