"""Definitions for human eyes: what servers wrote, so that nothing in it hides, steers a terminal or poses as ours.

Pure. Every character that a person would not see as itself becomes ⟨U+XXXX⟩, each line of a text stands behind a bar,
and lines are cut where a terminal would wrap them: a text cannot begin a line that looks like one of the diff.
"""

import difflib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from sluicegate.protocol.canonical_json import PART
from sluicegate.protocol.jsonrpc import Json

WIDTH: Final = 110
MAX_COMPARED: Final = 1_000  # lines: two texts without a line in common take the square of them, 40 ms
MAX_PATH: Final = 240  # characters
CONTEXT: Final = 2

_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# Drawn as nothing or as a blank, though Unicode calls them letters, marks or symbols.
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_CONTINUED: Final = "    \u2026 "
_MARK: Final = re.compile("\u27e8path [0-9]+\u27e9")
_MARK_IS: Final = re.compile("(\u27e8path [0-9]+\u27e9) is ")
_OURS: Final = frozenset("\u27e8\u27e9")
_OF_EMOJI: Final = frozenset("\u200d\ufe0f")
_encoded: Final = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make an encoder for each value


def is_hidden(char: str) -> bool:
    """Whether a person would not see it: controls, tags, bidirectional marks, variation selectors, fillers."""
    if char.isascii():
        return not char.isprintable()
    if unicodedata.category(char) in _CATEGORIES or char in _BLANK:
        return True
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def visible(text: str, leave: str = "") -> str:
    """The text with everything hidden in it named, but for the characters to `leave`. Ours are named too, so that they
    cannot be forged."""
    if text.isascii() and text.isprintable():
        return text
    found = [char for char in set(text).difference(leave) if is_hidden(char) or char in _OURS]
    named = {ord(char): f"\u27e8U+{ord(char):04X}\u27e9" for char in found}
    return text.translate(named) if named else text


def hidden(value: Any) -> int:
    """How many hidden characters stand in a JSON value, keys included. Line ends and tabs, and what emoji are joined
    by, are not meant to hide anything."""
    if isinstance(value, str):
        counts = Counter[str]()  # each character is judged once: a text of a million has some thousands
        for at in range(0, len(value), PART):  # no other thread runs while one part is counted
            part = value[at : at + PART]
            if not (part.isascii() and part.isprintable()):
                counts.update(part)
        return sum(counts[char] for char in counts.keys() - _OF_EMOJI - set("\n\r\t") if is_hidden(char))
    if isinstance(value, dict):
        return sum(hidden(key) + hidden(item) for key, item in value.items())
    return sum(map(hidden, value)) if isinstance(value, list) else 0


def lines(value: Any) -> list[str]:
    """A JSON value as `path: value` lines, in the order of the keys."""
    return list(each_line(value))


def each_line(value: Any) -> Iterator[str]:
    """The same as an iterator. A long path is written once, and a short mark stands for it in front of its values."""
    marks = 0
    todo = [("", value)]
    while todo:
        path, one = todo.pop()
        if isinstance(one, dict | list) and one and len(path) > MAX_PATH:
            marks += 1
            mark = f"\u27e8path {marks}\u27e9"
            yield from cut(f"{mark} is {path}")
            path = mark
        if isinstance(one, dict) and one:
            todo += [(_below(path, key), one[key]) for key in sorted(one, reverse=True)]
        elif isinstance(one, list) and one:
            todo += [(f"{path}[{index}]", one[index]) for index in reversed(range(len(one)))]
        elif isinstance(one, str) and "\n" in one:
            yield from cut(f"{path}:")
            for line in one.split("\n"):
                yield from cut(f"    | {visible(line)}")
        else:
            yield from cut(f"{path}: {visible(_encoded(one))}".removeprefix(": "))


def _below(path: str, key: str) -> str:
    return f"{path}.{_key(key)}" if path else _key(key)


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else visible(_encoded(key))


def cut(line: str) -> Iterator[str]:
    """The line in parts that no terminal wraps; those behind the first one begin with a mark."""
    yield line[:WIDTH]
    for start in range(WIDTH, len(line), WIDTH):
        yield f"{_CONTINUED}{line[start : start + WIDTH]}"


def diff(old: str | None, new: str | None) -> list[str]:
    """Two canonical texts compared, line by line: `- ` was accepted, `+ ` is now. None is nothing."""
    before, after = ([] if text is None else lines(json.loads(text)) for text in (old, new))
    if len(before) + len(after) > MAX_COMPARED or not (before and after):
        return [*(f"- {line}" for line in before), *(f"+ {line}" for line in after)]
    found = difflib.unified_diff(before, after, n=CONTEXT, lineterm="")
    shown = [f"{line[0]} {line[1:]}" if line[0] in "+- " else "  ..." for line in list(found)[3:]]
    return _meant(shown, _marked(before), _marked(after)) + shown


def _marked(shown: list[str]) -> dict[str, list[str]]:
    """The lines that say which path each mark stands for."""
    marked: dict[str, list[str]] = {}
    current: list[str] = []
    for line in shown:
        if (is_one := _MARK_IS.match(line)) is not None:
            current = marked[is_one[1]] = [line]
        elif current and line.startswith(_CONTINUED):
            current.append(line)
        else:
            current = []
    return marked


def _meant(shown: list[str], before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """What the marks in some lines of a comparison stand for, on either side."""
    found = dict.fromkeys(mark for line in shown for mark in _MARK.findall(line))
    described: list[str] = []
    todo = list(found)
    for mark in todo:  # which grows meanwhile: a path may begin with another mark
        old, new = before.get(mark, []), after.get(mark, [])
        described += [f"  {line}" for line in old] if old == new else [
            *(f"- {line}" for line in old), *(f"+ {line}" for line in new)
        ]
        further = dict.fromkeys(one for line in (*old, *new) for one in _MARK.findall(line))
        todo += [one for one in further if one not in todo]
    return described


def summary(row: Json) -> str:
    """One line about a pin, and what is hidden in it."""
    words = [row["state"], *row["flags"]]
    shown = f" (shown as {row['shown_as']})" if row.get("shown_as") else ""
    return f"{row['server']} ({row['era']}): {row['kind']} {visible(row['name'])}{shown}: {visible(', '.join(words))}"
