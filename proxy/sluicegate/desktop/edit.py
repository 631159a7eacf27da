"""A client's file with other servers in it. Pure: bytes in, bytes out; only the bytes of what changes are written.

The result is read again by a real parser: where it is not exactly what was wanted, nothing comes out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from sluicegate.desktop.read import NotAClientConfig, parse

Json = dict[str, Any]

_BOM: Final = b"\xef\xbb\xbf"
_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_WORD = re.compile(r"[^\s,:\[\]{}/\"]+")
_INDENT = re.compile(r"\n([ \t]+)\S")
_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


class CannotEdit(Exception):
    """The file has a form that an edit would not leave intact."""


def edited(data: bytes, suffix: str, root: str, remove: frozenset[str], add: Mapping[str, Any]) -> bytes:
    """The file without the entries `remove` of its section `root`, and with those of `add`. Raises `CannotEdit`."""
    mark = _BOM if data.startswith(_BOM) else b""
    try:
        text = data[len(mark) :].decode("utf-8")
        before = parse(data, suffix) if text.strip() else {}
    except (UnicodeDecodeError, NotAClientConfig) as error:
        raise CannotEdit(f"it cannot be read: {error}") from None
    if before is None:
        before = {}  # YAML with comments alone
    servers = before.get(root) if isinstance(before, dict) else None
    if not isinstance(before, dict) or not isinstance(servers, dict | None):
        raise CannotEdit(f"its {root} is no section of servers")
    left = {name: entry for name, entry in (servers or {}).items() if name not in remove and name not in add}
    gone = frozenset(servers or {}) - left.keys()
    newline = "\r\n" if "\r\n" in text else "\n"
    plain = text.replace("\r\n", "\n")
    if newline == "\r\n" and plain.count("\n") != text.count("\r\n"):
        raise CannotEdit("it has line ends of both kinds")
    changed = _FORMS.get(suffix, _in_json)(plain, root, gone, add)
    result = mark + changed.replace("\n", newline).encode("utf-8")
    try:
        after = parse(result, suffix)
    except NotAClientConfig as error:
        raise CannotEdit(f"the edited file would not be valid: {error}") from None
    wanted = {**before, root: {**left, **add}}
    if (after or {}) not in (wanted, {key: value for key, value in wanted.items() if key != root or value}):
        raise CannotEdit("its form is one that Sluice cannot edit in place")
    return result


def snippet(suffix: str, root: str, add: Mapping[str, Any]) -> str:
    """What `edited` writes into a file that has nothing else."""
    return _FORMS.get(suffix, _in_json)("", root, frozenset(), add).rstrip("\n")


@dataclass(frozen=True, slots=True)
class _Member:
    """Of an object: where its name and its value begin, and where it ends: `end` is behind its comma, if it has one."""

    name: str
    start: int
    value: int
    value_end: int
    end: int


def _in_json(text: str, root: str, gone: frozenset[str], add: Mapping[str, Any]) -> str:
    found = _INDENT.search(text)
    indent = found[1] if found else "  "
    if not text.strip():
        return text + json.dumps({root: add}, indent=indent, ensure_ascii=False) + "\n"
    start = _skip(text, 0)
    section = next((one for one in _members(text, start) if one.name == root), None)
    if section is None:
        return _insert(text, start, {root: dict(add)}, indent, 1)
    members = list(_members(text, section.value))
    stay = [one for one in members if one.name not in gone]
    cuts = [_span(text, one) for one in members if one.name in gone]
    if stay and members[-1] is not stay[-1] and members[-1].end == members[-1].value_end:
        cuts.append((stay[-1].value_end, stay[-1].end))  # what was not the last is now: no comma follows it
    for start, end in sorted(cuts, reverse=True):
        text = text[:start] + text[end:]
    return _insert(text, section.value, add, indent, 2) if add else text


def _insert(text: str, at: int, add: Mapping[str, Any], indent: str, depth: int) -> str:
    """Puts members in front of the first of the object at `at`."""
    shown = json.dumps(add, indent=indent, ensure_ascii=False)[1:-1].strip("\n")
    lines = "\n".join(indent * (depth - 1) + line for line in shown.split("\n"))
    follows = next(_members(text, at), None)
    rest = text[at + 1 :]
    closes_here = re.match(r"[ \t]*\}", rest)
    end = "\n" + indent * (depth - 1) if closes_here else "" if rest[:1] == "\n" else "\n"
    if closes_here:
        rest = rest.lstrip(" \t")
    return f"{text[: at + 1]}\n{lines}{',' if follows else ''}{end}{rest}"


def _span(text: str, member: _Member) -> tuple[int, int]:
    """What goes with it: the rest of its line in front of it, where that is blank."""
    line = text.rfind("\n", 0, member.start)
    return (line if line >= 0 and not text[line : member.start].strip() else member.start), member.end


def _members(text: str, at: int) -> Iterator[_Member]:
    if text[at : at + 1] != "{":
        raise CannotEdit("an object is missing")
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        name = _STRING.match(text, at)
        assert name is not None  # a parser has read it
        value = _skip(text, _skip(text, name.end()) + 1)
        value_end = _value_end(text, value)
        comma = _skip(text, value_end)
        end = comma + 1 if text[comma : comma + 1] == "," else value_end
        yield _Member(json.loads(name[0]), at, value, value_end, end)
        at = _skip(text, end)


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _value_end(text: str, at: int) -> int:
    depth = 0
    while True:
        at = _skip(text, at)
        char = text[at : at + 1]
        token = _STRING.match(text, at) if char == '"' else None if char in "{[]},:" else _WORD.match(text, at)
        depth += (char in "{[") - (char in "]}") if char else 0
        at = token.end() if token else at + 1
        if depth == 0 or not char:
            return at


def _in_toml(text: str, root: str, gone: frozenset[str], add: Mapping[str, Any]) -> str:
    heads = [found.start() for found in _TABLE.finditer(text)] + [len(text)]
    parts = [text[: heads[0]]]
    for start, end in pairwise(heads):
        name = re.match(rf'[ \t]*\[{root}\.(?:"([^"]+)"|([\w-]+))[.\]]', text[start:end])
        if name is None or (name[1] or name[2]) not in gone:
            parts.append(text[start:end])
    text = "".join(parts)
    for name_, entry in add.items():
        text += "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        text += "\n".join(_toml_table(f"{root}.{_toml_key(name_)}", entry)) + "\n"
    return text


def _toml_table(name: str, entry: Json) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in entry.items():
        if not isinstance(value, dict):
            yield f"{_toml_key(key)} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in entry.items():
        if isinstance(value, dict):
            yield from _toml_table(f"{name}.{_toml_key(key)}", value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def _in_yaml(text: str, root: str, gone: frozenset[str], add: Mapping[str, Any]) -> str:
    """Values of ours are JSON, which YAML reads alike."""
    lines = text.split("\n")
    head = next((at for at, line in enumerate(lines) if re.match(rf"{root}:\s*(\{{\}}|null|~)?\s*(#.*)?$", line)), None)
    if head is None:
        lines[-1:] = [*([lines[-1]] if lines[-1] else []), f"{root}:", ""]
        head = len(lines) - 2
    elif add:
        lines[head] = re.sub(r":\s*(\{\}|null|~)", ":", lines[head], count=1)
    end = next((at for at in range(head + 1, len(lines)) if re.match(r"[^\s#]", lines[at])), len(lines))
    body = lines[head + 1 : end]
    indent = next((found[1] for line in body if (found := re.match(r"( +)[^\s#]", line))), "  ")
    left: list[str] = []
    is_gone = False
    for line in body:
        if re.match(rf"{indent}[^\s#]", line):
            is_gone = _yaml_name(line) in gone
        if not is_gone or not line.strip():
            left.append(line)
    ours = []
    for name, entry in add.items():
        ours.append(f"{indent}{_yaml_key(name)}:")
        values = ((_yaml_key(key), json.dumps(value, ensure_ascii=False)) for key, value in entry.items())
        ours += [f"{indent * 2}{key}: {value}" for key, value in values]
    if not any(re.match(r"\s*[^\s#]", line) for line in ours + left):
        lines[head] += " {}"
    return "\n".join([*lines[: head + 1], *ours, *left, *lines[end:]])


def _yaml_name(line: str) -> str:
    name = re.match(r"""\s*(?:"([^"]*)"|'([^']*)'|([^:#]+?))\s*:""", line)
    return next((part for part in name.groups() if part is not None), "") if name else ""


def _yaml_key(name: str) -> str:
    return name if re.fullmatch(r"[a-z]{2,}", name) and parse(name.encode(), ".yaml") == name else json.dumps(name)


_FORMS: Final = {".toml": _in_toml, ".yaml": _in_yaml, ".yml": _in_yaml}
