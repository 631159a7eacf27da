"""The file's JSON Schema, and pydantic's errors as problems that a person can act on. Keys are
repeated, values never: they may be secrets."""

import ast
import difflib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ModelSchema

from sluicegate.config.finding import Path, Problem
from sluicegate.config.models import Config, HttpServer, ImageServer, StdioServer
from sluicegate.config.section import Section

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class DocumentedSchema(GenerateJsonSchema):
    """Adds to each property what its docstring says."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, text in _docstrings(schema["cls"]).items():
            if name in made.get("properties", {}):
                made["properties"][name].setdefault("description", text)
        return made


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Of a section's fields, those of the sections it is made of included."""
    found: dict[str, str] = {}
    for part in (one for one in reversed(model.__mro__) if one is not BaseModel and issubclass(one, BaseModel)):
        (node,) = ast.parse(inspect.getsource(part)).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                    name = field.target.id
                    known = part.model_fields.get(name)
                    found[(known.alias if known else None) or name] = inspect.cleandoc(text.value.value)
    return found


def schema() -> dict[str, Any]:
    """The JSON Schema of the file. What a key means is the docstring below it, which is read when somebody asks:
    pydantic's `use_attribute_docstrings` would parse the source of every section at every start."""
    return {"$schema": _DIALECT, **Config.model_json_schema(schema_generator=DocumentedSchema)}


def _sections(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    yield path, section
    for name, field in section.model_fields.items():
        for inner, below in _inside(field.annotation, (*path, name)):
            yield from _sections(below, inner)


def _inside(annotation: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    """The sections that a field of this type holds; pydantic adds the kind of a server to a path, by its tag."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None and isinstance(annotation, type) and issubclass(annotation, Section):
        yield path, annotation
    elif origin is Annotated:
        yield from _inside(parts[0], (*path, *(one.tag for one in parts[1:] if isinstance(one, Tag))))
    elif origin in (dict, tuple):
        yield from _inside(parts[1 if origin is dict else 0], (*path, "*"))
    elif origin in (Union, UnionType):
        for part in parts:
            yield from _inside(part, path)


SECTIONS: Final = dict(_sections(Config))
"""Path -> section, where `*` stands for a key or a position."""

EXPECTED: Final = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "string_type": "text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
}
POLICY_HINT: Final = "add the line `policy: {use: personal}`, or {use: open} for development"
# What people write where, and what they mean
_MEANT: Final = {
    "args": "write a list: [-y, PACKAGE]",
    "env": "write NAME: value for each variable",
    "headers": "write Name: value for each header",
    "servers": "write each server under its key, such as files: {command: npx}",
    "classes": "write NAME: read, write or destroy for each tool",
    "policy": POLICY_HINT,
}
_OTHER_NAMES: Final = {
    "mcpServers": "servers", "mcp_servers": "servers", "context_servers": "servers", "httpUrl": "url",
    "serverUrl": "url", "uri": "url", "cmd": "command", "envs": "env", "type": "transport",
    "disabled": "enabled: false", "includeTools": "tools", "excludeTools": "tools", "port": "mcp", "host": "mcp",
}  # fmt: skip
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "or more"),
    "less_than_equal": ("le", "or less"),
}


def explain(error: ErrorDetails) -> Problem:
    """One of pydantic's errors in our words. Its path has the kind of a server in it, ours has not."""
    problem = _explain(error)
    path = problem.path
    return replace(problem, path=path[:2] + path[3:]) if path[:1] == ("servers",) and len(path) > 2 else problem


def _explain(error: ErrorDetails) -> Problem:
    path: Path = error["loc"]
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind == "missing":
        return _missing(path)
    if kind in EXPECTED:
        return _wrong_type(path, EXPECTED[kind], error["input"])
    if kind == "literal_error":
        return _wrong_word(path, str(context["expected"]), error["input"])
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return Problem(path, "wrong-value", f"must be {context[bound]} {words}")
    if kind in ("string_too_short", "too_short"):
        return Problem(path, "wrong-value", "must not be empty")
    if "text" in context:  # one of our own validators
        return Problem(path, kind, str(context["text"]), at_key=path[-1] == "[key]")
    return Problem(path, "wrong-value", "not a valid value")


def section_at(path: Path) -> type[Section] | None:
    """The section that stands at a path as pydantic writes it (with the kind of a server in it)."""
    for pattern, section in SECTIONS.items():
        if len(pattern) == len(path) and all(p in ("*", part) for p, part in zip(pattern, path, strict=True)):
            return section
    return None


def _unknown(path: Path) -> Problem:
    key, section = str(path[-1]), section_at(path[:-1])
    if section and key in section.later:
        message = f'"{key}" is not supported in this version'
        return Problem(path, "not-in-this-version", message, "remove it", at_key=True)
    if section in (StdioServer, ImageServer, HttpServer):
        other = ImageServer if section is HttpServer else HttpServer
        if key in other.model_fields:
            kind = "starts by command" if section is HttpServer else "reaches by url"
            message = f'"{key}" is for a server that Sluice {kind}'
            return Problem(path, "unknown-key", message, "a server has a command or a url", at_key=True)
    keys = [field.alias or name for name, field in section.model_fields.items()] if section else []
    theirs = _OTHER_NAMES.get(key, "")
    near = [theirs] if theirs.partition(":")[0] in keys else difflib.get_close_matches(key, keys, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"its keys are {', '.join(keys)}" if keys else ""
    return Problem(path, "unknown-key", f'"{key}" is no key of this section', hint, at_key=True)


def _missing(path: Path) -> Problem:
    key = str(path[-1])
    if path == ("policy",):
        return Problem((), "missing-key", "there is no policy, and nothing is allowed without one", POLICY_HINT)
    if key == "command":
        message = 'a server needs a "command" (to start it) or a "url" (to reach it)'
        return Problem(path, "missing-key", message)
    return Problem(path, "missing-key", f'"{key}" is missing')


def _wrong_type(path: Path, expected: str, value: Any) -> Problem:
    quotable = expected == "text" and isinstance(value, bool | int | float)
    if value is None:
        hint = "write a value, or remove the key"
    else:
        hint = "put it in quotes" if quotable else _MEANT.get(str(path[-1]), "") if path else ""
    return Problem(path, "wrong-type", f"expected {expected}, found {_name(value)}", hint)


def _name(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a fraction", dict: "a mapping", list: "a list"}
    return "nothing" if value is None else names.get(type(value), "text")


def _wrong_word(path: Path, expected: str, value: Any) -> Problem:
    words = expected.replace("'", "")
    choices = re.findall(r"'([^']+)'", expected)
    near = difflib.get_close_matches(value.lower(), choices, n=1) if isinstance(value, str) else []
    return Problem(path, "wrong-value", f"must be {words}", f'did you mean "{near[0]}"?' if near else "")
