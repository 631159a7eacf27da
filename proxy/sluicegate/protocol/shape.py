"""A tool or prompt in the operator's words: another name, title or description, and arguments that are fixed. Pure.

A fixed argument is in no list and comes from no client; the server gets it with each call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluicegate.protocol.jsonrpc import Json, inside
from sluicegate.protocol.parameter_names import look_alike

# Of JSON Schema 2020-12: what has its members by an argument's name, what holds arguments, and parts that are about
# the same object.
_BY_NAME: Final = ("properties", "dependentRequired", "dependentSchemas", "dependencies")
_VALUES: Final = ("examples", "default")
_PARTS: Final = ("allOf", "anyOf", "oneOf", "then", "else")
_MAX_DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """`texts` replace members of the definition. `fixed` are arguments with their values, `hidden` the names of those
    and of others that no client may give."""

    name: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def shown(self, item: Json) -> Json:
        """The definition as clients see it, but for its name: of a tool with an `inputSchema`, or of a prompt with
        `arguments`."""
        shown = {**item, **self.texts}
        if "title" in self.texts and isinstance(inside(item, "annotations", "title"), str):
            shown["annotations"] = {**item["annotations"], "title": self.texts["title"]}
        if not self.hidden:
            return shown
        if isinstance(item.get("inputSchema"), dict):
            shown["inputSchema"] = self._schema(item["inputSchema"])
        if isinstance(item.get("arguments"), list):
            shown["arguments"] = [one for one in item["arguments"] if inside(one, "name") not in self.hidden]
        return shown

    def _schema(self, schema: Json, depth: int = 0) -> Json:
        """The schema without the hidden arguments, also where it has parts that are about the same object. What stands
        in `if` and `not` stays: without a name it would say something else."""
        shown = {**schema}
        for word in _BY_NAME:
            if isinstance(named := schema.get(word), dict):
                shown[word] = {name: self._bare(one) for name, one in named.items() if name not in self.hidden}
        if isinstance(required := self._bare(schema.get("required")), list):
            shown["required"] = required
            if not required:  # JSON Schema draft 4 takes no empty list
                del shown["required"]
        for word in _VALUES:
            if word in schema:
                shown[word] = self._without(schema[word])
        for word in _PARTS if depth < _MAX_DEPTH else ():
            if word in shown:
                shown[word] = self._part(shown[word], depth + 1)
        if isinstance(parts := shown.get("dependentSchemas"), dict) and depth < _MAX_DEPTH:
            shown["dependentSchemas"] = {name: self._part(one, depth + 1) for name, one in parts.items()}
        return shown

    def _part(self, part: Any, depth: int) -> Any:
        if isinstance(part, list):
            return [self._part(one, depth) for one in part]
        return self._schema(part, depth) if isinstance(part, dict) else part

    def _bare(self, names: Any) -> Any:
        """A list of names without those; anything else as it is."""
        if not isinstance(names, list):
            return names
        return [name for name in names if not isinstance(name, str) or name not in self.hidden]

    def _without(self, value: Any) -> Any:
        """Arguments, or examples of them, without those."""
        if isinstance(value, list):
            return [self._without(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if name not in self.hidden}

    def refused(self, arguments: object) -> str:
        """The first argument that a client gave and that is hidden, or that a server could take for a hidden one, or ""
        for none."""
        given = arguments if self.hidden and isinstance(arguments, dict) else {}
        return next((name for name in given if name in self.hidden), look_alike(given, self.hidden) or "")

    def filled(self, arguments: Json | None) -> Json:
        """The client's arguments with those that are fixed."""
        return {**(arguments or {}), **self.fixed}
