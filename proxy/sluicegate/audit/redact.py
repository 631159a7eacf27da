"""What of a call is written down or shown: secrets replaced, sizes bounded, everything in printable ASCII.

Three things make a value a secret: a name (of its member, or in the text or command line around it), the look of
well-known credentials (both in `credentials`), and places that the operator names for a tool (JSON pointers, RFC 6901).
JSON inside a string is read like the rest. A secret becomes a keyed digest: equal secrets can be told to be equal, and
nobody without the key can try out guesses. Pure; knows no file.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final

from sluicegate.audit import credentials
from sluicegate.message import Json

IsSecret = Callable[[str], bool]
_BLOCK: Final = 64  # bytes that SHA-256 works on at once
MAX_TEXT: Final = 4_096  # characters kept of one text
MAX_NODES: Final = 2_000  # values kept of one call's arguments
MAX_CHARS: Final = 64 * 1024  # characters kept of one call's arguments
MAX_RESULT: Final = 16 * 1024  # bytes kept of one result
_MAX_RESULT_NODES: Final = 1_000
MAX_NAME: Final = 256
MAX_DEPTH: Final = 64
_OVERLAP: Final = 512  # looked at behind a cut: enough to know a secret that the cut splits
_MAX_MEMORY: Final = 10_000
_ANY: Final = "*"  # in a pointer: every element of an array

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = re.compile(f"({_STRING}:)|({_STRING})")  # the strings of a JSON text: names and values
_JSON_BEGINS: Final = frozenset('{["')
# Objects that are one name and one value: `{"name": "password", "value": "..."}`.
_PAIR_NAMES: Final = frozenset(
    "name key header field variable var option param parameter property attribute setting id label path k".split()
)
_PAIR_VALUES: Final = frozenset("value values val content data default string v".split())
_MAX_PAIR: Final = 16
_PLAIN_WORD: Final = re.compile(r"[A-Za-z_]*")
_USER_AND_PASSWORD: Final = re.compile(r"(?=.{0,256}[A-Za-z])[^:/]{1,256}:[^/]")
_PARSED_DEPTH: Final = 8  # what JSON inside a string takes of the depth
_LONE: Final = re.compile("[\ud800-\udfff]")
# No blanks, printable ASCII alone: nothing in a line is a control character or looks like a second line.
_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode
canonical: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode
"""The same text for the same JSON value, whatever the order of its members."""


def dump(value: Any) -> str:
    """JSON in printable ASCII. A lone surrogate, which strict readers refuse, becomes U+FFFD."""
    text = _encode(value)
    return _encode(_whole(value)) if "\\ud" in text else text


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return value


@dataclass(slots=True)
class _Budget:
    nodes: int = MAX_NODES
    chars: int = MAX_CHARS
    text: int = MAX_TEXT
    is_cut: bool = False
    members: bool = True  # whether the names of members count: those of our own records do not


class Redactor:
    """`key` is the secret of the digests; `keys` and `pointers` are the operator's own."""

    def __init__(self, key: bytes, keys: Iterable[str] = (), pointers: Mapping[str, Iterable[str]] | None = None):
        block = (sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner, self._outer = (sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))
        self._keys = frozenset(credentials.plain(name) for name in keys)
        # Names in texts are looked for only where a text has a hint of one.
        self._hints = tuple(hint for key in self._keys if (hint := credentials.hint(key)))
        self._pointers = [(tool, [_parse(pointer) for pointer in places]) for tool, places in (pointers or {}).items()]
        self._names: dict[str, bool] = {}
        self._innocent = {""}  # names that are no secrets, as canonical JSON has them

    def __repr__(self) -> str:
        return f"Redactor({len(self._keys)} keys, {len(self._pointers)} tools)"

    # ------------------------------------------------------------ digests

    def digest(self, data: bytes) -> str:
        """The keyed digest of a whole value: HMAC (RFC 2104), the key worked in once. `hmac` itself takes twice as
        long, in Python around the same."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return f"hmac-sha256:{outer.hexdigest()}"

    def short_digest(self, text: str) -> str:
        """Enough of it to tell texts apart: 16 hex digits."""
        return self.digest(text.encode("utf-8", "surrogatepass")).removeprefix("hmac-sha256:")[:16]

    def _mark(self, secret: str) -> str:
        """What stands for a secret; equal secrets, equal marks."""
        return f"[redacted:{self.short_digest(secret)}]"

    # ------------------------------------------------------------ texts

    def text(self, text: str, limit: int = MAX_NAME) -> str:
        """A text that a peer chose (a name, a URI): without credentials and not longer than about `limit`."""
        return self._without(text, limit, None)

    def written(self, text: str, limit: int | None = None) -> str:
        """Free text, such as what a program logs: also without what the text itself names as a secret."""
        return self._without(text, len(text) if limit is None else limit, self._is_secret_name)

    def _without(self, text: str, limit: int, is_secret: IsSecret | None) -> str:
        cut = len(text) - limit
        seen = text if cut <= 0 else text[: limit + _OVERLAP]
        parts: list[str] = []
        at = 0
        for start, end in credentials.find(seen, is_secret, self._hints):
            if start >= limit:
                break
            parts += seen[at:start], self._mark(seen[start:end])
            at = end
        shown = "".join((*parts, seen[at:limit]))
        return f"{shown}...({cut} more)" if cut > 0 else shown

    # ------------------------------------------------------------ values

    def is_innocent(self, text: str, tool: str) -> bool:
        """Whether arguments, given as canonical JSON, may be written down as they are. A yes is sure and quick;
        a no only means that every value must be looked at."""
        if len(text) > MAX_TEXT or credentials.may_look_secret(text):
            return False
        strings = _STRINGS.findall(text)
        if not self._innocent.issuperset([name for name, _ in strings]):
            return False
        texts = "\n".join([value for _, value in strings])
        if "\\u" in texts or credentials.may_name_secret(texts, self._hints):
            return False
        return not (self._pointers and any(_is_meant(tool, glob) for glob, _ in self._pointers))

    def arguments(self, value: Json, tool: str) -> Any:
        """The arguments of a call to `server/own_name`, as they may be written down."""
        return self._walk(self._without_places(value, tool), _Budget(), MAX_DEPTH, self._is_secret_name)

    def result(self, value: Json, tool: str) -> tuple[str, bool]:
        """The result of a call to `server/own_name` as JSON of at most `MAX_RESULT` bytes, and whether it was cut."""
        text, nodes, chars, is_cut = "", _MAX_RESULT_NODES, MAX_RESULT, False
        while not text or len(text) > MAX_RESULT:  # escapes and short names take more than their characters
            masked, is_cut = self.masked(value, tool, min(MAX_TEXT, chars), nodes, chars)
            text, nodes, chars = dump(masked), nodes // 2, chars // 2
        return text, is_cut

    def masked(self, value: Any, tool: str, text: int, nodes: int, chars: int) -> tuple[Any, bool]:
        """The same within other bounds, and whether something had to be left out."""
        budget = _Budget(nodes, chars, text)
        return self._walk(self._without_places(value, tool), budget, MAX_DEPTH, self._is_secret_name), budget.is_cut

    def _without_places(self, value: Any, tool: str) -> Any:
        places = [place for glob, found in self._pointers if _is_meant(tool, glob) for place in found]
        for place in places:
            value = _change(value, place, lambda secret: self._mark(canonical(secret)))
        return value

    def fields(self, value: Json) -> Any:
        """What a record of our own says: its texts may be somebody's, its names are ours."""
        return self._walk(value, _Budget(members=False), MAX_DEPTH, self._is_secret_name)

    def without_credentials(self, value: Json) -> Any:
        """Everything but what looks like a credential: no setting lets a token into the log."""
        return self._walk(value, _Budget(), MAX_DEPTH, None)

    def _walk(self, value: Any, budget: _Budget, depth: int, is_secret: IsSecret | None) -> Any:
        budget.nodes -= 1
        if isinstance(value, str):
            return self._string(value, budget, depth, is_secret)
        if not isinstance(value, dict | list):
            if not isinstance(value, int) or abs(value) < 10**40:
                return value
            budget.is_cut = True
            return "...(a long number)"
        if depth <= 0 or budget.nodes < 0 or budget.chars < 0:
            budget.is_cut = True
            return f"...({len(value)} more)"
        if isinstance(value, list):
            return self._items(value, budget, depth, is_secret)
        return self._members(value, budget, depth, is_secret)

    def _string(self, value: str, budget: _Budget, depth: int, is_secret: IsSecret | None) -> str:
        shown = value
        if is_secret is not None and len(value) <= budget.text and value[:64].lstrip()[:1] in _JSON_BEGINS:
            with suppress(ValueError, RecursionError):
                parsed = json.loads(value)
                inner = self._walk(parsed, budget, depth - _PARSED_DEPTH, is_secret)
                shown = value if inner == parsed else json.dumps(inner, ensure_ascii=False)
        # Also where nothing was found: a parser sees only the last of two members of the same name.
        text = self._without(shown, budget.text, is_secret)
        budget.chars -= len(text)
        budget.is_cut |= len(value) > budget.text or budget.chars < 0
        return text if budget.chars >= 0 else f"...({len(value)} more)"

    def _items(self, value: list[Any], budget: _Budget, depth: int, is_secret: IsSecret | None) -> list[Any]:
        kept: list[Any] = []
        for at, item in enumerate(value[: budget.nodes + 1]):
            if at and is_secret is not None and isinstance(item, str) and _is_named_before(value, at, is_secret):
                kept.append(self._mark(item))
                budget.nodes -= 1
            else:
                kept.append(self._walk(item, budget, depth - 1, is_secret))
        budget.is_cut |= len(kept) < len(value)
        return kept if len(kept) == len(value) else [*kept, f"...({len(value) - len(kept)} more)"]

    def _members(self, value: Json, budget: _Budget, depth: int, is_secret: IsSecret | None) -> Json:
        kept: Json = {}
        by_member = is_secret if budget.members else None
        is_pair = by_member is not None and _is_pair(value, by_member)
        for name, item in value.items():
            if budget.nodes < 0 or budget.chars < 0:
                kept["..."] = f"({len(value) - len(kept)} more)"
                budget.is_cut = True
                break
            shown = self.text(name)
            budget.chars -= len(shown)
            is_named = by_member is not None and by_member(name)
            # A flag or nothing is no secret; `"password": null` is worth knowing.
            if item is None or isinstance(item, bool) or not (is_named or (is_pair and name.lower() in _PAIR_VALUES)):
                kept[shown] = self._walk(item, budget, depth - 1, is_secret)
            else:
                kept[shown] = self._mark(item if isinstance(item, str) else canonical(item))
                budget.nodes -= 1
        return kept

    def _is_secret_name(self, name: str) -> bool:
        known = self._names.get(name)
        if known is None:
            known = credentials.plain(name[:MAX_NAME]) in self._keys or credentials.is_secret_name(name)
            if len(self._names) >= _MAX_MEMORY:
                self._names, self._innocent = {}, {""}
            if len(name) <= MAX_NAME:
                self._names[name] = known
                if not known:
                    self._innocent.add(f"{canonical(name)}:")
        return known


def _is_pair(value: Json, is_secret: IsSecret) -> bool:
    """Whether an object gives the name of a secret in one member, and so its value in another."""
    return len(value) <= _MAX_PAIR and any(
        isinstance(item, str) and name.lower() in _PAIR_NAMES and len(item) <= MAX_NAME and is_secret(item)
        for name, item in value.items()
    )


def _is_named_before(items: list[Any], at: int, is_secret: IsSecret) -> bool:
    """Whether the item before names this one as a secret: an option of a command line, or half of a pair."""
    name, value = items[at - 1], items[at]
    if not isinstance(name, str) or not 1 < len(name) <= MAX_NAME:
        return False
    if not name.startswith("-"):
        return len(items) == 2 and is_secret(name) and _PLAIN_WORD.fullmatch(value) is None
    if name in ("-u", "--user"):
        return _USER_AND_PASSWORD.match(value) is not None
    if len(name) == 2:
        line = " ".join([item[:64] for item in items[max(0, at - 8) : at] if isinstance(item, str)])
        return name[1] in "pPaw" and credentials.is_password_option(name[1], value, line)
    return "=" not in name and not value.startswith("-") and is_secret(name.lstrip("-"))


def _is_meant(tool: str, glob: str) -> bool:
    """In whatever letters: a name that is relayed unlisted may be another spelling of the tool's."""
    return fnmatchcase(tool.lower(), glob.lower())


# ---------------------------------------------------------------- JSON pointers


def _parse(pointer: str) -> list[str]:
    """RFC 6901, and `*` for every element of an array. Raises ValueError for what is no pointer."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"a JSON pointer begins with a slash: {pointer}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _change(value: Any, place: list[str], change: Callable[[Any], Any]) -> Any:
    """A copy of `value`, changed at that place; `value` itself where there is no such place."""
    if not place:
        return change(value)
    part, rest = place[0], place[1:]
    if isinstance(value, dict) and part in value:
        return {**value, part: _change(value[part], rest, change)}
    if isinstance(value, list):
        if part == _ANY:
            return [_change(item, rest, change) for item in value]
        if part.isdecimal() and part.isascii() and int(part) < len(value):
            at = int(part)
            return [*value[:at], _change(value[at], rest, change), *value[at + 1 :]]
    return value
