"""The config file: found, read, checked whole, and given out as one frozen `Config`. Its JSON Schema, and pydantic's
errors as problems that a person can act on.

Only `app` and `cli` know this room; every other one gets the slice that it needs. No value of the file stands in
a finding or in a repr: it may be a secret.
"""

import ast
import difflib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ModelSchema

from sluicegate.config.audit import State
from sluicegate.config.clients import Key
from sluicegate.config.finding import ConfigError, ConfigFinding, Problem
from sluicegate.config.finding import Path as TreePath
from sluicegate.config.models import AnyServer, Config, HttpServer, ImageServer, Limits, Server, StdioServer, Tools
from sluicegate.config.names import RESERVED, is_key_name, is_server_key
from sluicegate.config.rules import broken_rules, named_files, nobody_gets_in
from sluicegate.config.sandbox import SYSTEM, SandboxSection
from sluicegate.config.section import Section
from sluicegate.config.source import Source, parse, read
from sluicegate.config.units import Address, Rate

NO_VALUE: Final = frozenset({"unset-variable", "unset-secret", "unreadable-file"})
"""Codes of a `${...}` that is well written and has no value."""
_OFF: Final = (False, "false")  # the text is what a `${...}` brought in


@dataclass(slots=True)
class Missing:
    """Servers whose section names a variable or a file that is not there. `sections` hold the rest of each;
    `disabled` says why, of those that the file enables."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    disabled: dict[str, str] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)  # line and column of the value -> server

    def is_about(self, finding: ConfigFinding) -> bool:
        return (finding.line, finding.column) in self.owners

    def is_tolerable(self, finding: ConfigFinding) -> bool:
        """Whether the finding is about a missing variable or file of a server, and nothing else."""
        return finding.code in NO_VALUE and self.is_about(finding)

    def judge(self, finding: ConfigFinding) -> ConfigFinding:
        if not self.is_tolerable(finding):
            return finding
        key = self.owners[finding.line, finding.column]
        if key not in self.disabled:
            return replace(finding, severity="warning")
        return replace(finding, message=f"the server {key} is disabled: {finding.message}")


def _section(value: Any, key: Any) -> dict[str, Any] | None:
    """Returns the section of that server; None where it is none."""
    servers = value.get("servers") if isinstance(value, dict) else None
    section = servers.get(key) if isinstance(servers, dict) else None
    return section if isinstance(section, dict) else None


def missing_in_servers(source: Source) -> Missing:
    found = Missing()
    for path, position in source.places.items():
        if path[0] != "servers" or len(path) < 3 or (why := source.missing.get(position.value)) is None:
            continue
        key, section = str(path[1]), _section(source.value, path[1])
        if section is None:
            continue  # it has another shape, which is an error of its own
        found.owners[position.value] = key
        given = found.sections.setdefault(key, _common_keys(section))
        if path[2] in Server.model_fields:
            given.pop(str(path[2]), None)
        if given.get("enabled") not in _OFF:
            found.disabled[key] = f"{found.disabled[key]}, {why}" if key in found.disabled else why
    return found


def _common_keys(section: dict[str, Any]) -> dict[str, Any]:
    """The keys that every kind of server has. How it is reached is left out: it is not going to be."""
    common = {key: value for key, value in section.items() if key in Server.model_fields}
    return {**common, "command": "disabled"}


__all__ = [
    "NO_VALUE", "RESERVED", "SYSTEM", "Address", "AnyServer", "Checked", "Config", "ConfigError", "ConfigFinding",
    "HttpServer", "ImageServer", "Key", "Limits", "Problem", "Rate", "SandboxSection", "Server", "Source",
    "StdioServer", "Tools", "check", "check_text", "draft", "find_config", "finding_at", "is_key_name", "is_server_key",
    "load", "locate", "make", "nobody_gets_in", "places", "schema", "sound_part", "state_dir_of", "state_of",
    "without_servers",
]  # fmt: skip

NAME = "sluice.yaml"
_STATE: Final = re.compile(r"""^\s*"?state"?:\s*\{?\s*"?dir"?:\s*["']?([^"'\s,}#]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Checked:
    """Every finding of a file, in its order, and the config if it can be used: without errors, but for a `${...}` that
    has no value inside an enabled server, which is disabled then. `files` are those that it depends on."""

    config: Config | None
    findings: list[ConfigFinding]
    files: tuple[Path, ...] = ()

    @property
    def errors(self) -> list[ConfigFinding]:
        return [finding for finding in self.findings if finding.severity == "error"]


def load(path: Path) -> Config:
    """The config of a file. Raises `ConfigError` with every finding if it cannot be used."""
    checked = check(path)
    if checked.config is None:
        raise ConfigError(checked.findings)
    return checked.config


def make(value: Mapping[str, Any], base: Path) -> Config:
    """A config that no file holds: the same keys, the same checks, paths relative to `base`."""
    checked = _checked(Source("(built in)", base, value=deepcopy(dict(value))))
    if checked.config is None:
        raise ConfigError(checked.findings)
    return checked.config


def check(path: Path) -> Checked:
    try:
        source = read(path)
    except ConfigError as error:
        return Checked(None, error.findings, (path,))
    checked = _checked(source)
    return replace(checked, files=(path, *source.included, *checked.files))


def draft(path: Path) -> Source | None:
    """What the file says, whatever is wrong with it: nothing of it may be relied on. None where it is no YAML."""
    try:
        return read(path)
    except ConfigError:
        return None


def state_of(source: Source) -> Path | None:
    """Where a file puts its state, whatever else is wrong with it; None where that cannot be told, such as for a
    variable that is not set."""
    state = source.value.get("state") or {} if isinstance(source.value, dict) else None
    position = source.places.get(("state", "dir")) or source.places.get(("state",))
    if not isinstance(state, dict) or (position and any(_at(finding) == position.value for finding in source.findings)):
        return None
    try:
        given = {key: value for key, value in state.items() if key == "dir"}
        return State.model_validate(given, context={"base": source.base}).dir
    except ValidationError:
        return None


def state_dir_of(path: Path) -> Path | None:
    """Where a file that cannot be used seems to have its state: good for looking whether a Sluice runs there."""
    source = draft(path)
    if source is None:  # no YAML: what its lines say
        try:
            found = _STATE.search(path.read_text("utf-8", "replace"))
        except OSError:
            found = None
        named = {"state": {"dir": found[1]}} if found else {}
        source = Source(str(path), path.absolute().parent, value=named)
    return state_of(source)


def without_servers(sections: Mapping[str, Any], base: Path) -> Config:
    """For whoever looks for a Sluice, or for what it keeps. Raises `ConfigError`."""
    return make({"version": 1, "servers": {}, "policy": {"use": "team"}, **sections}, base)


def sound_part(path: Path) -> Config | None:
    """What a file that has errors says of where its Sluice is, and its audit log. None where that cannot be told: it is
    no YAML, or one of those sections has an error."""
    source = draft(path)
    if source is None:
        return None
    value = source.value if isinstance(source.value, dict) else {}
    sections = {key: value[key] for key in ("state", "listen", "console", "audit") if key in value}
    try:
        return without_servers(sections, path.parent)
    except ConfigError:
        return None


def check_text(text: str, file: str, base: Path, environ: Mapping[str, str]) -> Checked:
    """Like `check`, for a text that is not on disk."""
    try:
        return _checked(parse(text, Source(file, base, environ)))
    except ConfigError as error:
        return Checked(None, error.findings)


def finding_at(path: Path, position: TreePath, code: str, message: str, hint: str = "") -> ConfigFinding:
    """A finding about something that shows only when the config is used, at the line that asks for it."""
    return locate(path, [Problem(position, code, message, hint, at_key=True)])[0]


def locate(path: Path, problems: Iterable[Problem]) -> list[ConfigFinding]:
    """Problems of a config as findings in its file."""
    try:
        source = read(path)
    except ConfigError:
        source = Source(str(path), Path())
    return [source.locate(problem) for problem in problems]


def places(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where a config file is looked for, in this order, when none is named."""
    if named := environ.get("SLUICE_CONFIG"):
        return [Path(named)]
    if sys.platform == "win32":
        home = Path(environ.get("APPDATA") or Path.home())
    else:
        home = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [Path(NAME), home / "sluice" / NAME]


def find_config(named: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The config file: the named one, $SLUICE_CONFIG, ./sluice.yaml or the user's. Raises `ConfigError`."""
    if named is not None:
        return named
    candidates = places(environ)
    found = candidates[0] if len(candidates) == 1 else next((path for path in candidates if path.is_file()), None)
    if found is None:
        looked = " and ".join(map(str, candidates))
        hint = "`sluice install` or `sluice init` writes one; -c FILE names one"
        raise ConfigError(
            [ConfigFinding(NAME, 1, 1, "no-config", f"there is no config file; looked at {looked}", hint)]
        )
    return found


_MISSES: Final[Mapping[str, TreePath]] = {
    "no-end": ("policy",), "unknown-server": ("servers",), "unknown-key-name": ("clients", "keys"),
    "unknown-profile": ("approvals", "profiles"), "unknown-sink": ("audit", "sinks"), "no-database": ("state",),
    "no-servers": ("servers",), "no-clients": ("clients",), "no-peer": ("fleet",), "no-delay": ("fleet",),
}  # fmt: skip
"""Of findings that something is not there: the section in which it should stand."""


def _checked(source: Source) -> Checked:
    """All findings at once: what is wrong in itself is left out, so that the rules still see the rest."""
    value, missing = _without_empty_sections(source.value), missing_in_servers(source)
    reported = {(finding.line, finding.column) for finding in source.findings}  # one finding about one place is enough
    config, problems = _validate(value, source)
    meant = {(*problem.path[:-1], problem.meant) for problem in problems if problem.meant}
    problems = [one for one in problems if one.code != "missing-key" or one.path not in meant]
    rest, others = config, problems
    if rest is None:
        others = [problem for problem in problems if not missing.is_about(source.locate(problem))]
        rest, _ = _validate(_without(_with_servers(value, missing.sections), others), source)
    if rest is not None:  # what was left out for its mistakes is not missing
        said = {problem.path for problem in others} | meant
        faulty = said | {path[:depth] for path in said for depth in range(1, len(path))}
        problems += [one for one in broken_rules(rest) if one.path not in said and _missing_from(one) not in faulty]
    located = [finding for problem in problems if _at(finding := source.locate(problem)) not in reported]
    findings = sorted([*map(missing.judge, source.findings), *located], key=_at)
    files = tuple(file for _, file in named_files(rest)) if rest is not None else ()
    if any(finding.severity == "error" and not missing.is_tolerable(finding) for finding in findings):
        return Checked(None, findings, files)
    if missing.sections:
        off = {key: {**section, "enabled": False} for key, section in missing.sections.items()}
        config, _ = _validate(_with_servers(value, off), source, missing.disabled)
    return Checked(config, findings, files)


def _missing_from(problem: Problem) -> TreePath | None:
    """The section in which a rule misses something; None if it misses nothing."""
    if problem.code == "missing-key":
        return problem.path if problem.at_key else problem.path[:-1]
    return _MISSES.get(problem.code)


def _at(finding: ConfigFinding) -> tuple[int, int]:
    return finding.line, finding.column


def _without_empty_sections(value: Any) -> Any:
    """A section whose lines are all commented out counts as left out."""
    if isinstance(value, dict):
        return {key: section for key, section in value.items() if section is not None}
    return {} if value is None else value


def _with_servers(value: Any, sections: Mapping[str, Any]) -> Any:
    return {**value, "servers": {**value["servers"], **sections}} if sections else value


def _validate(
    value: Any, source: Source, disabled: Mapping[str, str] | None = None
) -> tuple[Config | None, list[Problem]]:
    files = (source.base / Path(source.file).name, *source.included)
    context = {"base": source.base, "disabled": disabled or {}, "files": files}
    try:
        return Config.model_validate(value, context=context), []
    except ValidationError as error:
        return None, [explain(details) for details in error.errors(include_url=False)]


def _without(value: Any, problems: list[Problem]) -> Any:
    """The value without the servers, the toolsets, the keys and the single settings that the problems are about."""
    rest = deepcopy(value)
    for problem in problems:
        depth = 2 if problem.path[:1] in (("servers",), ("toolsets",)) else 3
        section, path = rest, problem.path[:depth]
        for part in path[:-1]:
            section = section.get(part) if isinstance(section, dict) else None
        if path and isinstance(section, dict):
            section.pop(path[-1], None)
    return rest


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
    """The docstrings of a section's fields, inherited ones included."""
    found: dict[str, str] = {}
    for part in (one for one in reversed(model.__mro__) if one is not BaseModel and issubclass(one, BaseModel)):
        (node,) = ast.parse(inspect.getsource(part)).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for member, text in pairwise(body):
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and isinstance(text, ast.Expr):
                if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                    name = member.target.id
                    model_field = part.model_fields.get(name)
                    found[(model_field.alias if model_field else None) or name] = inspect.cleandoc(text.value.value)
    return found


def schema() -> dict[str, Any]:
    """The JSON Schema of the file. What a key means is the docstring below it, which is read when somebody asks:
    pydantic's `use_attribute_docstrings` would parse the source of every section at every start."""
    return {"$schema": _DIALECT, **Config.model_json_schema(schema_generator=DocumentedSchema)}


def _sections(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    yield path, section
    for name, info in section.model_fields.items():
        for inner, below in _inside(info.annotation, (*path, name)):
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
    "files": "write a list: [policy.csv]",
    "env": "write NAME: value for each variable",
    "headers": "write Name: value for each header",
    "servers": "write each server under its key, such as files: {command: npx}",
    "classes": "write NAME: read, write or destroy for each tool",
    "policy": POLICY_HINT,
}
_OTHER_NAMES: Final = {
    "mcpServers": "servers", "mcp_servers": "servers", "context_servers": "servers", "httpUrl": "url",
    "serverUrl": "url", "uri": "url", "cmd": "command", "envs": "env", "environment": "env",
    "type": "transport",
    "disabled": "enabled: false", "includeTools": "tools", "excludeTools": "tools", "port": "mcp", "host": "mcp",
}  # fmt: skip
_SERVERS: Final = (StdioServer, ImageServer, HttpServer)
_BOUNDS: Final = {"greater_than_equal": ("ge", "or more"), "less_than_equal": ("le", "or less")}


def explain(error: ErrorDetails) -> Problem:
    """One of pydantic's errors in our words. Its path has the kind of a server in it, which is left out here."""
    problem = _explain(error)
    path = problem.path
    return replace(problem, path=path[:2] + path[3:]) if path[:1] == ("servers",) and len(path) > 2 else problem


def _explain(error: ErrorDetails) -> Problem:
    path: TreePath = error["loc"]
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


def section_at(path: TreePath) -> type[Section] | None:
    """The section that stands at a path as pydantic writes it (with the kind of a server in it)."""
    for pattern, section in SECTIONS.items():
        if len(pattern) == len(path) and all(p in ("*", part) for p, part in zip(pattern, path, strict=True)):
            return section
    return None


def _unknown(path: TreePath) -> Problem:
    key, section = str(path[-1]), section_at(path[:-1])
    if section and key in section.later:
        message = f'"{key}" is not supported in this version'
        return Problem(path, "not-in-this-version", message, "remove it", at_key=True)
    known = keys = _keys(section) if section else []
    message = f'"{key}" is no key of this section'
    if section in _SERVERS:
        other = ImageServer if section is HttpServer else HttpServer
        if key in other.model_fields:
            kind = "starts by command" if section is HttpServer else "reaches by url"
            message = f'"{key}" is for a server that Sluice {kind}'
            return Problem(path, "unknown-key", message, "a server has a command or a url", at_key=True)
        if key == "type" and section is not HttpServer:
            return Problem(path, "unknown-key", message, "leave it out", at_key=True)
        known = _keys(*_SERVERS)
    names = [*known, *(name for name, theirs in _OTHER_NAMES.items() if theirs.partition(":")[0] in known)]
    near = difflib.get_close_matches(key, names, n=1)
    meant = _OTHER_NAMES.get(near[0], near[0]) if near else ""
    hint = f'did you mean "{meant}"?' if meant else f"its keys are {', '.join(keys)}" if keys else ""
    if section in _SERVERS and meant in ("url", "image"):
        meant = "command"  # it is what a server without any of them lacks
    return Problem(path, "unknown-key", message, hint, at_key=True, meant=meant)


def _keys(*sections: type[Section]) -> list[str]:
    fields = (one for section in sections for one in section.model_fields.items())
    return list(dict.fromkeys(field.alias or name for name, field in fields))


def _missing(path: TreePath) -> Problem:
    key = str(path[-1])
    if path == ("policy",):
        message = "there is no policy, and nothing is allowed without one"
        return Problem(path, "missing-key", message, POLICY_HINT, at_key=True)
    if key == "command":
        message = 'a server needs a "command" (to start it) or a "url" (to reach it)'
        return Problem(path, "missing-key", message)
    return Problem(path, "missing-key", f'"{key}" is missing')


def _wrong_type(path: TreePath, expected: str, value: Any) -> Problem:
    quotable = expected == "text" and isinstance(value, bool | int | float)
    if value is None:
        hint = "write a value, or remove the key"
    else:
        hint = "put it in quotes" if quotable else _MEANT.get(str(path[-1]), "") if path else ""
    return Problem(path, "wrong-type", f"expected {expected}, found {_name(value)}", hint)


def _name(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a fraction", dict: "a mapping", list: "a list"}
    return "nothing" if value is None else names.get(type(value), "text")


def _wrong_word(path: TreePath, expected: str, value: Any) -> Problem:
    words = expected.replace("'", "")
    choices = re.findall(r"'([^']+)'", expected)
    near = difflib.get_close_matches(value.lower(), choices, n=1) if isinstance(value, str) else []
    return Problem(path, "wrong-value", f"must be {words}", f'did you mean "{near[0]}"?' if near else "")
