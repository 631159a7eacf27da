"""Characters that a person does not see but a terminal or a model obeys: found, named, and the worst taken out.

Pure, and the one place that knows which characters these are. Text that everybody can read passes untouched, at about
a microsecond a KiB. Emoji, joined scripts and the flags of England, Scotland and Wales need some of these characters:
where those stand, they are not meant.
"""

import json
import re
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, Literal

from sluicegate.deferred import deferred_pattern
from sluicegate.protocol.pieces import in_one_step

Kind = Literal["terminal", "tags", "bidi", "invisible"]

FLAGS: Final = "dev.sluice/flags"
"""The key of `_meta` that names what was found."""
MAX_FLAGS: Final = 20

# What a terminal obeys: C0 except tab and line ends, DELETE, C1; whole sequences where they are whole (ECMA-48 5.4
# and 5.6), so that no "[31m" is left over. No repetition runs over what another match may begin with, so that every
# character is read once. Of a longer sequence only the characters that begin and end it go: the rest is text then.
_ORDER: Final = 8 * 1024
_ORDERS: Final = (
    r"(?:\x1b\[|\x9b)[0-?]{0,100}+[ -/]{0,100}+[@-~]"
    rf"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x08\x0a-\x1f\x7f-\x9f]{{0,{_ORDER}}}+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,100}+[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
# Text in characters that nothing shows: tags, and the variation selectors that can carry bytes. Not meant are the
# flags that are spelled in tags, and a selector right behind an ideograph.
_IDEOGRAPH: Final = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_TAGS: Final = f"[\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]+|(?<!{_IDEOGRAPH})[\U000e0100-\U000e01ef]"
_BLACK_FLAG: Final = "\U0001f3f4"
_SPELLED: Final = "|".join(
    "".join(chr(0xE0000 + ord(letter)) for letter in name) for name in ("gbeng", "gbsct", "gbwls")
)
# Unicode's Bidi_Control
_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Of no width: none of it is seen, and words that differ look alike.
# With the rest of Unicode's Default_Ignorable_Code_Point.
_NO_WIDTH: Final = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
)
# Not meant are one soft hyphen or blank at a time, and the variation selectors of Mongolian letters.
_IN_RUNS: Final = "\xad\u2800"
_MONGOLIAN: Final = "\u180b-\u180d\u180f"
_JOINERS: Final = "\u200c\u200d"
_JOINED: Final = f"[^\x00-\x7f{_NO_WIDTH}{_JOINERS}]"

_CONTROLS: Final = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\n\r")
_SUSPECT: Final = re.compile(
    f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_BIDI}{_NO_WIDTH}{_JOINERS}{_IN_RUNS}{_MONGOLIAN}\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
_TERMINAL: Final = deferred_pattern(_ORDERS)
_HIDDEN: Final = deferred_pattern(_TAGS)
_FLAG: Final = deferred_pattern(f"({_BLACK_FLAG}(?:{_SPELLED})\U000e007f)")
_NAMED: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("bidi", deferred_pattern(f"[{_BIDI}]")),
    (
        "invisible",
        deferred_pattern(
            f"[{_NO_WIDTH}]|(?<=[\x00-\U0010ffff])\ufeff|[\ufe00-\ufe0f]{{2}}"
            "|(?<![#*0-9\x80-\U0010ffff])[\ufe00-\ufe0f]"
            f"|[{_IN_RUNS}]{{2}}|(?<![\u1820-\u18aa])[{_MONGOLIAN}]"
            f"|(?<!{_JOINED})[{_JOINERS}]|[{_JOINERS}](?!{_JOINED})"
        ),
    ),
)
_ESCAPE: Final = re.compile(r"\\[ubf]|\x7f")
_SHORT: Final = 64
_LONG: Final = 4096
# Names that only Sluice, or MCP, gives a meaning.
_MEANT: Final = ("dev.sluice/", "io.modelcontextprotocol/")
_MEANT_LENGTH: Final = max(map(len, _MEANT))
_HOLDERS: Final = (dict, list)  # a union would be made anew at each value
PIECE: Final = 16 * 1024
"""Characters that are judged in one step of the event loop."""
_VALUE: Final = 4  # a value of any kind costs as much as so many characters
_CONTROL: Final = "[\x00-\x08\x0a-\x1f\x7f-\x9f]"
_LAST_CONTROL: Final = re.compile(f"(?s:.*){_CONTROL}")
_NEXT_CONTROL: Final = re.compile(_CONTROL)
_OPENS: Final = frozenset("\x1b\x90\x98\x9b\x9d\x9e\x9f")
_SPELLED_LENGTH: Final = 8  # of a flag that is spelled in tags, and one


def is_plain(text: str) -> bool:
    """Whether nothing in the text needs a closer look."""
    if text.isascii():
        if len(text) < _SHORT and text.isprintable():
            return True
        return len(text.encode().translate(None, _CONTROLS)) == len(text)  # ten times as fast as an expression
    return _SUSPECT.search(text) is None


def is_plain_in_pieces(text: str) -> Generator[None, None, bool]:
    """The same of a long text. The caller gives others a turn at each `yield`."""
    return (yield from _Pieces(set())._is_plain(text))


def clean_text(text: str, found: set[str]) -> str:
    """The text without terminal orders and hidden text. Adds the kinds of all that was found."""
    if is_plain(text):
        return text
    for kind, strip in (("terminal", _strip_orders), ("tags", _strip_tags)):
        shorter = strip(text)
        if len(shorter) < len(text):
            found.add(kind)
            text = shorter
    found.update(kind for kind, pattern in _NAMED if pattern.search(text))
    return text


def bare_text(text: str) -> str:
    """The text without anything that `clean_text` takes out or names, needed or not. For a few lines in our texts."""
    return text if is_plain(text) else _SUSPECT.sub("", _strip_orders(text))


def _strip_orders(text: str) -> str:
    return _TERMINAL.sub("", text)


def _strip_tags(text: str) -> str:
    if _BLACK_FLAG not in text:
        return _HIDDEN.sub("", text)
    return "".join(part if at % 2 else _HIDDEN.sub("", part) for at, part in enumerate(_FLAG.split(text)))


def is_plain_json(data: bytes) -> bool:
    """The same of every text in a JSON value, as `message.dump` writes it: what a terminal obeys is an escape there. A
    yes is sure, and costs a third of a walk through the value; a no may be a path with a backslash, or a long text,
    for which the walk is quicker."""
    if len(data) > _LONG or (b"\\" in data and (b"\\u" in data or b"\\b" in data or b"\\f" in data)):
        return False
    return b"\x7f" not in data if data.isascii() else _SUSPECT.search(data.decode()) is None


def clean(value: Any, found: set[str]) -> Any:
    """A JSON value with every text in it cleaned, names of fields as well. What is clean comes back itself: nearly all
    values are plain as a whole, and are looked at as one text."""
    if is_plain(text_of(value)):
        return value
    return in_one_step(clean_in_pieces(value, found))


def text_of(value: Any) -> str:
    """All texts in it, names of fields as well."""
    texts, todo = [], [value]
    for one in todo:  # which grows meanwhile
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, dict):
            texts += one
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return "".join(texts)


def clean_in_pieces(value: Any, found: set[str]) -> Generator[None, None, Any]:
    """The same as `clean`. The caller gives others a turn at each `yield`, and must not change the value meanwhile."""
    return (yield from _Pieces(found).clean(value))


class _Pieces:
    """Counts the characters and values that were judged since the last turn of others."""

    def __init__(self, found: set[str]) -> None:
        self._found = found
        self._judged = 0

    def clean(self, value: Any) -> Generator[None, None, Any]:
        yield from self._count(_VALUE)
        if isinstance(value, str):
            return (yield from self._text(value))
        if isinstance(value, dict):
            value = yield from self._names(value)
            return (yield from self._parts(value, value.items()))
        return (yield from self._parts(value, enumerate(value))) if isinstance(value, list) else value

    def kinds(self, text: str) -> Generator[None, None, set[str]]:
        self._found = set()
        yield from self._text(text)
        return self._found

    def _count(self, judged: int) -> tuple[None, ...]:
        """What to yield from before so many are judged: nothing, or one turn of others."""
        self._judged += judged
        if self._judged <= PIECE:
            return ()
        self._judged = judged
        return (None,)

    def _names(self, value: dict[str, Any]) -> Generator[None, None, dict[str, Any]]:
        names = {}
        for name in value:
            names[name] = yield from self._text(name)
        if all(new == name for name, new in names.items()):
            return value
        remaining = {}
        for name, new in names.items():
            yield from self._count(_VALUE)
            if _may_be_named(name, new, value):
                remaining[new] = value[name]
        return remaining

    def _parts(self, value: Any, parts: Iterable[tuple[Any, Any]]) -> Generator[None, None, Any]:
        copy = value
        for key, old in parts:
            if isinstance(old, str):
                if len(old) <= _SHORT and is_plain(old):  # which nearly all are: no further call
                    yield from self._count(_SHORT)
                    continue
            elif not isinstance(old, _HOLDERS):
                yield from self._count(_VALUE)
                continue
            new = yield from self.clean(old)
            if new is not old:
                if copy is value:
                    copy = value.copy()
                copy[key] = new
        return copy

    def _text(self, text: str) -> Generator[None, None, str]:
        if len(text) <= PIECE:
            yield from self._count(len(text) + _SHORT)
            return clean_text(text, self._found)
        if (yield from self._is_plain(text)):
            return text
        for kind, strip, cut in (("terminal", _strip_orders, _order_cut), ("tags", _strip_tags, _tag_cut)):
            left, at = [], 0
            while at < len(text):
                end = cut(text, at)
                yield from self._count(end - at)
                left.append(strip(text[at:end]))
                at = end
            shorter = "".join(left)
            if len(shorter) < len(text):
                self._found.add(kind)
                text = shorter
        for kind, pattern in _NAMED:
            yield from self._name(kind, pattern, text)
        return text

    def _is_plain(self, text: str) -> Generator[None, None, bool]:
        for at in range(0, len(text), PIECE):
            yield from self._count(PIECE)
            if not is_plain(text[at : at + PIECE]):
                return False
        return True

    def _name(self, kind: Kind, pattern: re.Pattern[str], text: str) -> Iterator[None]:
        for at in range(0, len(text), PIECE):
            yield from self._count(PIECE)
            end = at + PIECE
            match = pattern.search(text, at, end + 2)  # no name needs more than the two characters behind it
            if match is not None and match.start() < end:
                self._found.add(kind)
                return


def _may_be_named(name: str, new: str, beside: dict[str, Any]) -> bool:
    """A cleaned name hides no other one, and is none that has a meaning of its own."""
    return new == name or not (new in beside or new[:_MEANT_LENGTH].casefold().startswith(_MEANT))


def _order_cut(text: str, at: int) -> int:
    """Where the piece that begins at `at` may end, so that no order is cut in two. Within an order stands no control
    character but its first one, a tab, and its end."""
    end = at + PIECE
    if end >= len(text):
        return len(text)
    last = _LAST_CONTROL.match(text, at, end)
    if last is None or text[last.end() - 1] not in _OPENS:
        return end
    begins = last.end() - 1
    if text.startswith("\x1b\\", begins):  # the end of an order, or one of its own
        return begins + 2
    if begins > at:
        return begins
    longest = min(at + _ORDER + 4, len(text))
    behind = _NEXT_CONTROL.search(text, end, longest)
    if behind is None:
        return max(end, longest)
    if text.startswith("\x1b\\", behind.start()):
        return behind.start() + 2
    return behind.start() if behind[0] in _OPENS else behind.end()


def _tag_cut(text: str, at: int) -> int:
    """The same for tags: before a character that is none, or so far within a run of them that no flag is spelled."""
    end = at + PIECE
    if end >= len(text):
        return len(text)
    near = range(end, end - _SPELLED_LENGTH - 1, -1)
    return next((here for here in near if not "\U000e0000" <= text[here] <= "\U000e0fff"), end)


def flags(definition: Any) -> list[str]:
    """What is wrong in a definition, as `KIND at PLACE`, the first `MAX_FLAGS` of it: for a report and for the person
    who accepts it. A definition is never altered: what a client sees is what was accepted."""
    return in_one_step(_flags(definition))


def flags_in(canonical: str) -> list[str]:
    """The same of a definition's canonical text, where all of it would be an escape: most texts need no look."""
    return in_one_step(flags_in_pieces(canonical))


def flags_in_pieces(canonical: str) -> Generator[None, None, list[str]]:
    """The same; the caller gives others a turn at each `yield`. A megabyte of hidden characters takes long."""
    if not _ESCAPE.search(canonical):
        return []
    yield
    definition = json.loads(canonical)
    yield
    return (yield from _flags(definition))


def _flags(definition: Any) -> Generator[None, None, list[str]]:
    lines: list[str] = []
    look = _Pieces(set())
    for position, text in _texts(definition):
        found = yield from look.kinds(text)
        if found:
            lines += [f"{kind} at {_pointer(position)}" for kind in sorted(found)]
        if len(lines) >= MAX_FLAGS:
            return lines[:MAX_FLAGS]
    return lines


_Position = tuple[Any, str | int] | None
"""The place of what holds it, and the name or index in that; None for the whole. A pointer to each text would be long:
its length times the number of texts is no work that a definition may cause."""


def _texts(value: Any) -> Iterator[tuple[_Position, str]]:
    """Every text in it and where it stands; the name of a field stands at the field."""
    todo: list[tuple[_Position, Any]] = [(None, value)]
    while todo:
        position, one = todo.pop()
        if isinstance(one, str):
            yield position, one
        elif isinstance(one, dict):
            for key, inner in reversed(one.items()):
                todo += [((position, key), inner), ((position, key), key)]
        elif isinstance(one, list):
            todo += [((position, index), one[index]) for index in reversed(range(len(one)))]


def _pointer(position: _Position) -> str:
    parts: list[str] = []
    while position is not None:
        position, name = position
        parts.append(_shown(name) if isinstance(name, str) else str(name))
    return "/" + "/".join(reversed(parts))


def _shown(key: str) -> str:
    return key[:80].encode("unicode_escape").decode("ascii")
