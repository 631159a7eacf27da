"""A YAML file as plain values, each with its line and column; `${...}` in values is replaced.

YAML 1.2 core schema (`yes` is text, a date is text), no tags, no anchors, no duplicate keys: every line means what
it says. Knows nothing of the keys that Sluice understands.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml import events as yaml_events
from ruamel.yaml.error import MarkedYAMLError, StreamMark, YAMLError
from ruamel.yaml.reader import ReaderError

from sluicegate.config import os_keyring
from sluicegate.config.finding import ConfigError, ConfigFinding, Problem
from sluicegate.config.finding import Path as TreePath
from sluicegate.config.units import Expanded

MAX_DEPTH: Final = 32
MAX_INCLUDED: Final = 64 * 1024  # characters of a ${file:...}

# YAML 1.2.2, 10.3.2 core schema
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_FLAGS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_AROUND: Final = (yaml_events.StreamStartEvent, yaml_events.StreamEndEvent, yaml_events.DocumentEndEvent)
# part of what ruamel says -> what is wrong, and what to do
_NO_COLON: Final = "could not find expected ':'"
_BAD_YAML: Final = {
    "mapping values are not allowed": (
        "a key cannot stand here", "look for a missing colon or other indentation above; quote a text that has a colon"
    ),
    _NO_COLON: ("there is no colon behind this", "a key ends with one, such as `time:`; quote a text of several lines"),
    "expected ',' or": (
        "a comma or the closing bracket is missing, or a quotation mark is too many",
        "the bracket is opened in line {line}",
    ),
    "expected <block end>": ("this does not belong to the lines above", "keys of one section begin in the same column"),
    "found character '\\t'": ("a tab cannot indent", "use spaces"),
    "found character": ("a text cannot begin with this character", "put it in quotes"),
    "found unexpected end of stream": ("a quotation mark is not closed", "it is opened in line {line}"),
    "escape": ("this is no escape, and a backslash in double quotes begins one", "use single quotes"),
    "expected the node content": ("a value is missing here", ""),
    "chomping or indentation": ("a text cannot begin with this character", "put it in quotes"),
    "expected alphabetic": ("a text cannot begin with & or *", "put it in quotes"),
}  # fmt: skip
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(:-(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Where a value stands, and the key (or list position) that it belongs to."""

    key: tuple[int, int]
    value: tuple[int, int]


@dataclass(slots=True)
class Source:
    """The values of the file, and the findings about its form."""

    file: str
    base: Path
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    value: Any = field(default=None, repr=False)
    places: dict[TreePath, SourcePosition] = field(default_factory=dict, repr=False)
    findings: list[ConfigFinding] = field(default_factory=list)
    included: list[Path] = field(default_factory=list)  # what ${file:...} named
    missing: dict[tuple[int, int], str] = field(default_factory=dict)  # where a ${...} has no value, and why

    def locate(self, problem: Problem) -> ConfigFinding:
        """The problem at its place. Parts of the path that the file does not have are left out; if the last one is
        among them, the key of what is there is the place."""
        path: TreePath = ()
        for part in problem.path:
            path = (*path, part) if (*path, part) in self.places else path
        position = self.places.get(path, SourcePosition((1, 1), (1, 1)))
        at_key = problem.at_key or path[-1:] != problem.path[-1:]
        line, column = position.key if at_key else position.value
        return ConfigFinding(self.file, line, column, problem.code, problem.message, problem.hint, problem.severity)

    def report(self, mark: tuple[int, int], code: str, message: str, hint: str = "") -> None:
        self.findings.append(ConfigFinding(self.file, *mark, code, message, hint))

    def miss(self, mark: tuple[int, int], code: str, message: str, hint: str, why: str) -> None:
        """A `${...}` is well written, and what it names is not there."""
        self.report(mark, code, message, hint)
        self.missing[mark] = f"{self.missing[mark]}, {why}" if mark in self.missing else why


def read(file: Path) -> Source:
    """Raises `ConfigError` for a file that cannot be read at all."""
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError([ConfigFinding(str(file), 1, 1, "not-utf-8", "the file is not UTF-8 text")]) from None
    except OSError as error:
        hint = "`sluice init` writes one" if isinstance(error, FileNotFoundError) else ""
        reason = f"cannot read the file: {error.strerror}"
        raise ConfigError([ConfigFinding(str(file), 1, 1, "unreadable-file", reason, hint)]) from None
    return parse(text, Source(str(file), file.absolute().parent))


def parse(text: str, source: Source) -> Source:
    """Fills `source`. Raises `ConfigError` where the text is no YAML: what follows could mean anything."""
    try:
        source.value = _document(iter(YAML(typ="safe", pure=True).parse(io.StringIO(text))), source)
    except MarkedYAMLError as error:
        mark = error.context_mark if error.problem == _NO_COLON else error.problem_mark
        source.report(_at(mark), "bad-yaml", *_explain(error))
        raise ConfigError(source.findings) from None
    except ReaderError as error:
        before = text[: error.position]
        mark = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        source.report(mark, "bad-yaml", "a character that YAML does not allow")
        raise ConfigError(source.findings) from None
    except YAMLError:
        source.report((1, 1), "bad-yaml", "this is not YAML")
        raise ConfigError(source.findings) from None
    return source


def _explain(error: MarkedYAMLError) -> tuple[str, str]:
    """What is wrong, and what to do, in place of what the parser was about to do."""
    reported = error.problem or ""
    message, hint = next((words for part, words in _BAD_YAML.items() if part in reported), ("this is not YAML", ""))
    opened = error.context_mark.line + 1 if error.context_mark else 1
    return message, hint.format(line=opened)


def _at(mark: StreamMark | None) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _document(events: Iterator[yaml_events.Event], source: Source) -> Any:
    value: Any = None
    documents = 0
    for event in events:
        if isinstance(event, yaml_events.DocumentStartEvent):
            documents += 1
            if documents > 1:
                source.report(_at(event.start_mark), "bad-yaml", "a second document; the file holds one")
                break
        elif not isinstance(event, _AROUND):
            value = _value(event, events, source, ())
    return value


def _value(event: yaml_events.Event, events: Iterator[yaml_events.Event], source: Source, path: TreePath) -> Any:
    mark = _at(event.start_mark)
    if isinstance(event, yaml_events.AliasEvent) or getattr(event, "anchor", None):
        source.report(mark, "anchor", "anchors and aliases are not part of this format", "write the value out")
    elif getattr(event, "ctag", None):
        source.report(mark, "tag", "YAML tags are not part of this format", "write the plain value")
    if len(path) > MAX_DEPTH:
        source.report(mark, "too-deep", "nested too deep")
        raise ConfigError(source.findings)
    if isinstance(event, yaml_events.MappingStartEvent):
        return _mapping(events, source, path)
    if isinstance(event, yaml_events.SequenceStartEvent):
        return _sequence(events, source, path)
    return _scalar(event, source, mark) if isinstance(event, yaml_events.ScalarEvent) else None


def _mapping(events: Iterator[yaml_events.Event], source: Source, path: TreePath) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for event in events:
        if isinstance(event, yaml_events.MappingEndEvent):
            break
        key, mark = _key(event, events, source, path), _at(event.start_mark)
        content = next(events)
        if key is None or key in mapping:
            if key is not None:
                first = source.places[(*path, key)].key[0]
                source.report(mark, "duplicate-key", f'"{key}" is here twice', f"the first is in line {first}")
            _value(content, events, Source(source.file, source.base, source.environ), path)
            continue
        source.places[(*path, key)] = SourcePosition(mark, _place_of(content, event))
        mapping[key] = _value(content, events, source, (*path, key))
    return mapping


def _place_of(content: yaml_events.Event, key: yaml_events.Event) -> tuple[int, int]:
    """ruamel puts a value that is not there at the key below, so its place is behind the colon of its own key."""
    if isinstance(content, yaml_events.ScalarEvent) and not content.value and not content.style:
        line, column = _at(key.end_mark)
        return line, column + 1
    return _at(content.start_mark)


def _key(event: yaml_events.Event, events: Iterator[yaml_events.Event], source: Source, path: TreePath) -> str | None:
    """The key's text; None for what is no text, which is reported and skipped."""
    mark = _at(event.start_mark)
    if not isinstance(event, yaml_events.ScalarEvent):
        _value(event, events, Source(source.file, source.base, source.environ), path)
        source.report(mark, "bad-key", "a key is text")
        return None
    if event.anchor or event.ctag:
        source.report(mark, "bad-key", "a key has no anchor and no tag")
    if "${" in event.value:
        source.report(mark, "bad-key", "${...} stands in values only")
    key: str = event.value
    return key


def _sequence(events: Iterator[yaml_events.Event], source: Source, path: TreePath) -> list[Any]:
    values: list[Any] = []
    for event in events:
        if isinstance(event, yaml_events.SequenceEndEvent):
            break
        here = (*path, len(values))
        mark = _at(event.start_mark)
        source.places[here] = SourcePosition(mark, mark)
        values.append(_value(event, events, source, here))
    return values


def _scalar(event: yaml_events.ScalarEvent, source: Source, mark: tuple[int, int]) -> Any:
    text: str = event.value
    if "${" in text:
        return _expand(text, source, mark)
    return text if event.style else _plain(text)


def _plain(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _FLAGS:
        return _FLAGS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _expand(text: str, source: Source, mark: tuple[int, int]) -> str:
    parts: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        parts.append(_reference(match[1] or "", source, mark))
        return parts[-1]

    expanded = Expanded(_REFERENCE.sub(replace, text))
    expanded.parts = tuple(parts)
    return expanded


def _reference(body: str, source: Source, mark: tuple[int, int]) -> str:
    if body.startswith("file:"):
        return _included(body.removeprefix("file:"), source, mark)
    if body.startswith("secret:"):
        return _secret(body.removeprefix("secret:"), source, mark)
    match = _VARIABLE.fullmatch(body)
    if match is None:
        hint = "write ${env:NAME}, ${env:NAME:-default}, ${file:path} or ${secret:NAME}; $${ is the text itself"
        source.report(mark, "bad-reference", "a ${...} that means nothing here", hint)
        return ""
    name, default = match[1], match[3]
    value = source.environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        hint = f"set it, or write ${{env:{name}:-default}}"
        message = f"the environment variable {name} is not set"
        source.miss(mark, "unset-variable", message, hint, f"variable {name} is not set")
    return value or ""


def _secret(name: str, source: Source, mark: tuple[int, int]) -> str:
    if not os_keyring.IS_NAME.fullmatch(name):
        hint = "up to 100 letters, digits, `_`, `-` and `.`, a letter or digit first"
        source.report(mark, "bad-reference", "this is no name of a secret", hint)
        return ""
    try:
        found, why = os_keyring.get(name), "the keyring does not have it"
    except os_keyring.NoKeyring as error:
        found, why = None, str(error)
    if found is None:
        message = f"there is no secret {name}: {why}"
        source.miss(mark, "unset-secret", message, f"`sluice secret set {name}` asks for it", message)
    return found or ""


def _included(name: str, source: Source, mark: tuple[int, int]) -> str:
    try:
        path = source.base / Path(name).expanduser()
        source.included.append(path)
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_INCLUDED + 1)
    except (OSError, ValueError, RuntimeError):
        message, hint = f"cannot read the file {name}", "paths are relative to this file"
        source.miss(mark, "unreadable-file", message, hint, message)
        return ""
    if len(text) > MAX_INCLUDED:
        message = f"the file {name} is too large for a value"
        source.miss(mark, "unreadable-file", message, "", message)
    return text.removesuffix("\n").removesuffix("\r")
