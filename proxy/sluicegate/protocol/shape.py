"""A tool or prompt in the operator's words: another name, title or description, and arguments that are fixed. Pure.

A fixed argument is in no list and comes from no client; the server gets it with each call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluicegate.protocol.jsonrpc import Json, inside
from sluicegate.protocol.parameter_names import look_alike


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

    def _schema(self, schema: Json) -> Json:
        shown = {**schema}
        if isinstance(properties := schema.get("properties"), dict):
            shown["properties"] = {name: one for name, one in properties.items() if name not in self.hidden}
        if isinstance(required := schema.get("required"), list):
            shown["required"] = [name for name in required if name not in self.hidden]
            if not shown["required"]:  # JSON Schema draft 4 takes no empty list
                del shown["required"]
        return shown

    def refused(self, arguments: object) -> str:
        """The first argument that a client gave and that is hidden, or that a server could take for a hidden one, or ""
        for none."""
        given = arguments if self.hidden and isinstance(arguments, dict) else {}
        return next((name for name in given if name in self.hidden), look_alike(given, self.hidden) or "")

    def filled(self, arguments: Json | None) -> Json:
        """The client's arguments with those that are fixed."""
        return {**(arguments or {}), **self.fixed}
