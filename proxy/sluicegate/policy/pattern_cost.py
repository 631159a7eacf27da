"""What regular expressions of JSON Schemas cost: to compile them, and for each byte of a text.

The engine of jsonschema-rs does not backtrack. For each byte it follows all places of a pattern in which a text may be;
where these are few it keeps each combination that it meets, and follows one. Knows no schema but for its patterns.
"""

import math
import re
from typing import Final, NamedTuple

from sluicegate.policy.schema_cost import SchemaRefused
from sluicegate.protocol.jsonrpc import Json

MAX_LETTERS: Final = 4_000
"""Of all patterns, each as often as it is repeated, some 350 ns to compile. No other thread runs meanwhile."""
_CLASS_LETTERS: Final = 10
"""What a class of letters counts for, such as `\\w`."""
_STATE: Final = 20
"""What a place in a pattern costs, if the engine has to follow each of many for each byte of a text."""
_FEW: Final = 9
"""Of so many places the engine keeps each combination that it meets, and follows one combination for each byte."""
_FOREIGN: Final = 4
"""So many places is a class of letters with some that are not ASCII: it has more for the bytes within a letter."""
_FOREIGN_CLASS: Final = re.compile(r"\\[pPu]|[^\x00-\x7f]")
_TOKEN: Final = re.compile(
    r"(?P<open>\((?!\?)|\(\?[imsU-]*:|\(\?P?<\w+>)|(?P<close>\))|(?P<count>\{\d*,?\d*\}|[*+?])|(?P<end>\$)|(?P<or>\|)"
    r"|(?P<class>\\[pP]\{\w+\}|\\.|\.|\[\^?(?:\\.|\[:\^?\w+:\]|[^\[\]\\])+\])|(?P<letter>[^\\\[()])",
    re.DOTALL,
)
MAX_REPEATED: Final = 100
"""Times that a pattern may ask for something by a number: each is a state in which every letter is looked at."""
_MAX_DIGITS: Final = 9
_COUNTS: Final = re.compile(r"\{(?:\d*,)?(\d+)")
_ODD_COUNT: Final = re.compile(r"\{(?=[\s\d,#])(?!\d*(?:,\d*)?\})")
"""The engine reads spaces in a count, and comments after `(?x)`."""
_BY_NUMBER: Final = re.compile(r"\\[uUxpP]\{\w+\}|\\.", re.DOTALL)
_CLASS: Final = re.compile(r"\[[^\[\]]+\]")
_OTHER_GROUP: Final = re.compile(r"\(\?(?![imsuU-]*[:)]|P?<\w+>)")
"""What stands between `[` and `]` may be no class: these are letters of comments after `(?x)` and of groups' names."""
ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_BEGINNING: Final = re.compile(r"\A\^(?![?{])(?:[^*+|{}(]|\{\d+(?:,\d+)?\})*")
"""What a pattern looks for at the beginning of a text alone: in so many letters as its counts allow."""
_REPEATED: Final = re.compile(r"(?:(?<!\\)\.|\[\^(?:\\.|[^\]\\])*\]|\\[DPSW][^\]{]*\]?)\{(?:\d*,\s*)?(\d+)")
"""A part that most letters match, so often. Every place of a text where it may begin is a state for so many letters."""
_MANY: Final = 20
_FLAGS: Final = re.compile(r"\A\(\?[is]+\)")


def patterns_of(node: Json) -> list[str]:
    named, pattern = node.get("patternProperties"), node.get("pattern")
    return [*(named if isinstance(named, dict) else ()), *([pattern] if isinstance(pattern, str) else ())]


class PatternPart(NamedTuple):
    """A part of a pattern: its letters and places, each as often as it is repeated, and how often that is at most.
    Texts that match a fixed part have one length, and each place of it has one distance from its beginning."""

    letters: int
    places: int = 1
    times: int = 1
    is_fixed: bool = True
    is_one_way: bool = True
    """The engine meets one combination of its places for each length of a text: of a letter, a class, or words to
    choose from."""
    is_word: bool = False
    cost: int = 0
    """Of a whole pattern, for a byte of a text."""


def counted_patterns(node: Json) -> list[PatternPart]:
    parts = []
    for text in patterns_of(node):
        parts.append(whole_part(text))
        if has_odd_count(text) or parts[-1].times > MAX_REPEATED:
            raise SchemaRefused("too-costly", "a pattern repeats something too often to be checked")
    return parts


def has_odd_count(pattern: str) -> bool:
    """Whether a count may be in the pattern that `whole_part` does not read. In a class `{` is a letter."""
    left = _BY_NUMBER.sub("a", pattern)
    return _ODD_COUNT.search(left if _OTHER_GROUP.search(left) else _CLASS.sub("a", left)) is not None


def whole_part(pattern: str) -> PatternPart:
    """The whole pattern as one part. A text is in one place at a time of what begins with `^` and is fixed."""
    pattern = _FLAGS.sub("", pattern)
    groups: list[list[PatternPart]] = [[]]
    tokens = list(_TOKEN.finditer(pattern[:MAX_LETTERS]))
    for token in tokens:
        kind, text, parts = token.lastgroup, token[0], groups[-1]
        if kind == "open":
            groups.append([])
        elif kind == "close" and len(groups) > 1:
            groups[-2].append(_together(groups.pop()))
        elif kind == "count" and parts:
            parts[-1] = _repeated(parts[-1], text)
        elif kind == "or":
            parts.append(PatternPart(1, places=0, is_fixed=False, is_one_way=False, is_word=True))
        elif kind == "end" or (text == "^" and token.end() == 1):
            parts.append(PatternPart(1, places=0, is_one_way=False))
        elif kind == "class":
            places = _FOREIGN if _FOREIGN_CLASS.search(text) else 1
            parts.append(PatternPart(len(text) + _CLASS_LETTERS, places, is_one_way=places == 1))
        else:
            parts.append(PatternPart(1, is_word=True))
    parts = groups[0]
    whole = _together(parts)
    if len(groups) > 1 or sum(len(token[0]) for token in tokens) < len(pattern):  # flags, or a class in a class
        times = math.prod(max(1, count) for count in _counts(pattern))
        return PatternPart(_letters(pattern, times), times=times, cost=_STATE * len(pattern) * times)
    if pattern.startswith("^"):
        first = next((number for number, part in enumerate(parts) if not part.is_fixed), len(parts))
        parts = parts[first:]
    if parts and pattern.endswith("$") and parts[-1].places == 0:
        parts = parts[:-1]
    places = sum(part.places for part in parts)
    if pattern.startswith("^") and len(parts) == 1 and parts[0].is_one_way:
        return whole
    return whole._replace(cost=places if places <= _FEW else _STATE * places)


def _together(parts: list[PatternPart]) -> PatternPart:
    """The parts as one. Words to choose from share their beginnings."""
    if len(parts) == 1:
        return parts[0]
    is_word = all(part.is_word for part in parts)
    return PatternPart(
        sum(part.letters for part in parts) + 2, sum(part.places for part in parts),
        max((part.times for part in parts), default=1), all(part.is_fixed for part in parts), is_word, is_word,
    )  # fmt: skip


def _repeated(part: PatternPart, count: str) -> PatternPart:
    """A part so often. The engine keeps the places of a longer loop in the order in which a text led to them, and there
    are many such orders: they count twice."""
    times = max(_counts(count), default=1) or 1 if part.times <= MAX_REPEATED else 1
    is_fixed = part.is_fixed and part.places > 0 and count[1:-1].isdigit()
    is_one_way = part.is_one_way and part.places == part.times
    is_loop = not is_one_way and (count in "*+" or count[-2:-1] == ",")
    letters, places = (part.letters + len(count)) * times, part.places * times
    return PatternPart(letters, places * (1 + is_loop), part.times * times, is_fixed, is_one_way)


def _counts(pattern: str) -> list[int]:
    """How often a pattern repeats something. Of a long number Python makes none, so that it counts as too many."""
    return [int(digits) if len(digits) <= _MAX_DIGITS else MAX_REPEATED + 1 for digits in _COUNTS.findall(pattern)]


def _letters(pattern: str, times: int) -> int:
    """Counts the letters of a pattern whose parts are not known, its classes of letters included."""
    classes = pattern.count("\\") + pattern.count(".") + pattern.count("[")
    return (len(pattern) + _CLASS_LETTERS * classes) * times


def costly_part(pattern: str) -> int:
    """What a letter costs in a rule for arguments, if most texts are in many places of the pattern at once, and else 0.
    A pattern that costs as much for few texts alone is the operator's: `key[a-z]{0,100}value`."""
    repeated = _REPEATED.findall(_BEGINNING.sub("", pattern))
    often = max((int(count[-_MAX_DIGITS:]) for count in repeated), default=0)
    if often < _MANY:
        return 0
    return min(whole_part(pattern).cost, _STATE * len(pattern) * often)  # parts that cannot be read are few
