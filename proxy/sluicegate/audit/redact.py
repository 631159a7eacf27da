"""What of a call's arguments is written down: secrets replaced, sizes bounded, everything in printable ASCII.

Three things make a value a secret: the name of the member that holds it, the look of well-known credentials inside
a text, and places that the operator names for a tool (JSON pointers, RFC 6901). A secret becomes a keyed digest:
equal secrets can be told to be equal, and nobody without the key can try out guesses. Pure; knows no file.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final

from sluicegate.message import Json

_BLOCK: Final = 64  # bytes that SHA-256 works on at once
MAX_TEXT: Final = 4_096  # characters kept of one text
MAX_NODES: Final = 2_000  # values kept of one call's arguments
MAX_CHARS: Final = 64 * 1024  # characters kept of one call's arguments
MAX_NAME: Final = 256
MAX_DEPTH: Final = 64
_OVERLAP: Final = 4_096  # no pattern matches more, so that a cut cannot split a secret
_MAX_MEMORY: Final = 10_000
_ANY: Final = "*"  # in a pointer: every element of an array

# Whole names, or ends of them, after lower-casing and without `_`, `-` and blanks.
_SECRET_NAME: Final = re.compile(
    r"(?:password|passwd|passphrase|pwd|secret|secrets|secretkey|token|apikey|accesskey|accesskeyid|privatekey|"
    r"authorization|authkey|credential|credentials|cookie|setcookie|bearer|jwt|otp|pincode|connectionstring|dsn)$"
)
# One look decides for most texts: each pattern below needs a run like this, a URL or a parameter.
_RUN: Final = re.compile(r"[A-Za-z0-9_+/=.\-]{16}")
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NAMES: Final = re.compile(f"({_STRING}:)|{_STRING}")  # for each string of a JSON text: itself if it is a name, or ""
_WORD: Final = r"(?<![A-Za-z0-9])"
_PATTERNS: Final = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[\s\S]{0,3900}?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)",
            r"(?<=://)[^\s/@:]{0,256}:[^\s/@]{1,256}(?=@)",
            r"(?<=[?&;])(?i:access_token|refresh_token|id_token|token|api_?key|key|secret|client_secret|password|"
            r"passwd|pwd|auth|sig|signature|x-amz-signature|x-amz-credential|code)=[^\s&;#\"']{1,2048}",
            _WORD + r"(?i:bearer|basic|token)[ \t]{1,4}[A-Za-z0-9._~+/\-]{16,4000}={0,2}",
            _WORD + r"eyJ[A-Za-z0-9_\-]{8,1000}\.[A-Za-z0-9_\-]{8,2000}\.[A-Za-z0-9_\-]{0,1000}",
            _WORD + r"gh[pousr]_[A-Za-z0-9]{36,255}",
            _WORD + r"github_pat_[A-Za-z0-9_]{22,255}",
            _WORD + r"gl(?:pat|ptt|rt|dt|cbt|soat)-[A-Za-z0-9_\-.]{20,255}",
            _WORD + r"(?:sk|pk|rk)[_\-](?:live|test|proj|ant|or|svcacct|admin)[_\-A-Za-z0-9]{16,255}",
            _WORD + r"sk-[A-Za-z0-9]{20,255}",
            _WORD + r"xox[abeoprs]-[A-Za-z0-9\-]{10,255}",
            _WORD + r"xapp-[A-Za-z0-9\-]{10,255}",
            _WORD + r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
            _WORD + r"AIza[A-Za-z0-9_\-]{35}",
            _WORD + r"ya29\.[A-Za-z0-9_\-]{20,1000}",
            _WORD + r"(?:hf|npm|lin_api|ntn|dop_v1|shpat|shpss|sq0csp|dckr_pat|pul|slc)_[A-Za-z0-9_\-]{20,255}",
            _WORD + r"pypi-[A-Za-z0-9_\-]{50,255}",
            _WORD + r"SG\.[A-Za-z0-9_\-]{16,64}\.[A-Za-z0-9_\-]{16,128}",
            _WORD + r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
            r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,120}",
        )
    )
)
# In free text: what stands before a value (`NAME=`, `NAME: `, `"NAME": "`, `--NAME `), and the value.
_NAMED: Final = re.compile(
    r"""(?:(?<![\w\-])(--?)|(?<![\w.\-])["']?)([A-Za-z][\w.\-]{0,255})"""
    r"""(?(1)(?:[ \t]{0,4}[:=][ \t]{0,4}|[ \t]{1,4})|["']?[ \t]{0,4}[:=][ \t]{0,4})["']?"""
)
_VALUE: Final = re.compile(
    r"""(?:(?i:bearer|basic|token)[ \t]{1,4})?"""
    r"""(?:(?<=")(?:[^"\\\n]|\\.){1,4096}|(?<=')(?:[^'\\\n]|\\.){1,4096}|[^\s"']{1,4096})"""
)
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


class Redactor:
    """`key` is the secret of the digests; `keys` and `pointers` are the operator's own."""

    def __init__(self, key: bytes, keys: Iterable[str] = (), pointers: Mapping[str, Iterable[str]] | None = None):
        block = (sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner, self._outer = (sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))
        self._keys = frozenset(_plain(name) for name in keys)
        self._pointers = [(tool, [_parse(pointer) for pointer in places]) for tool, places in (pointers or {}).items()]
        self._names: dict[str, bool] = {}
        self._innocent = {""}  # what `_NAMES` may find: names that are no secrets, as canonical JSON has them

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
        cut = len(text) - limit
        if cut > 0:
            text = text[: limit + _OVERLAP]
        if _is_suspect(text):
            text = _PATTERNS.sub(lambda match: self._mark(match.group()), text)
        return f"{text[:limit]}...({cut} more)" if cut > 0 else text

    def written(self, text: str) -> str:
        """Free text, such as what a program logs: also without what stands behind the name of a secret."""
        parts: list[str] = []
        at = 0
        for name in _NAMED.finditer(text):
            is_secret = name.start() >= at and self._is_secret_name(name[2])
            if is_secret and (value := _VALUE.match(text, name.end())):
                parts += text[at : name.end()], self._mark(value[0])
                at = value.end()
        return _PATTERNS.sub(lambda match: self._mark(match[0]), "".join(parts) + text[at:])

    # ------------------------------------------------------------ values

    def is_innocent(self, text: str, tool: str) -> bool:
        """Whether arguments, given as canonical JSON, may be written down as they are. A yes is sure and quick;
        a no only means that every value must be looked at."""
        if len(text) > MAX_TEXT or _is_suspect(text) or "\\ud" in text:
            return False
        if not self._innocent.issuperset(_NAMES.findall(text)):
            return False
        return not (self._pointers and any(fnmatchcase(tool, glob) for glob, _ in self._pointers))

    def arguments(self, value: Json, tool: str) -> Any:
        """The arguments of a call to `server/own_name`, as they may be written down."""
        return self._walk(self._without_places(value, tool), _Budget(), MAX_DEPTH, self._is_secret_name)

    def masked(self, value: Any, tool: str, text: int, nodes: int, chars: int) -> tuple[Any, bool]:
        """The same within other bounds, and whether something had to be left out."""
        budget = _Budget(nodes, chars, text)
        return self._walk(self._without_places(value, tool), budget, MAX_DEPTH, self._is_secret_name), budget.is_cut

    def _without_places(self, value: Any, tool: str) -> Any:
        places = [place for glob, found in self._pointers if fnmatchcase(tool, glob) for place in found]
        for place in places:
            value = _change(value, place, lambda secret: self._mark(canonical(secret)))
        return value

    def without_credentials(self, value: Json) -> Any:
        """Everything but what looks like a credential: no setting lets a token into the log."""
        return self._walk(value, _Budget(), MAX_DEPTH, _no_name)

    def _walk(self, value: Any, budget: _Budget, depth: int, is_secret: Callable[[str], bool]) -> Any:
        budget.nodes -= 1
        if isinstance(value, str):
            text = self.text(value, budget.text)
            budget.chars -= len(text)
            budget.is_cut |= len(value) > budget.text or budget.chars < 0
            return text if budget.chars >= 0 else f"...({len(value)} more)"
        if not isinstance(value, dict | list):
            if not isinstance(value, int) or abs(value) < 10**40:
                return value
            budget.is_cut = True
            return "...(a long number)"
        if depth == 0 or budget.nodes < 0 or budget.chars < 0:
            budget.is_cut = True
            return f"...({len(value)} more)"
        if isinstance(value, list):
            kept = [self._walk(item, budget, depth - 1, is_secret) for item in value[: budget.nodes + 1]]
            budget.is_cut |= len(kept) < len(value)
            return kept if len(kept) == len(value) else [*kept, f"...({len(value) - len(kept)} more)"]
        return self._members(value, budget, depth, is_secret)

    def _members(self, value: Json, budget: _Budget, depth: int, is_secret: Callable[[str], bool]) -> Json:
        kept: Json = {}
        for name, item in value.items():
            if budget.nodes < 0 or budget.chars < 0:
                kept["..."] = f"({len(value) - len(kept)} more)"
                budget.is_cut = True
                break
            shown = self.text(name)
            budget.chars -= len(shown)
            # A flag or nothing is no secret; `"password": null` is worth knowing.
            if item is not None and not isinstance(item, bool) and is_secret(name):
                kept[shown] = self._mark(item if isinstance(item, str) else canonical(item))
                budget.nodes -= 1
            else:
                kept[shown] = self._walk(item, budget, depth - 1, is_secret)
        return kept

    def _is_secret_name(self, name: str) -> bool:
        known = self._names.get(name)
        if known is None:
            plain = _plain(name[:MAX_NAME])
            known = plain in self._keys or _SECRET_NAME.search(plain) is not None
            if len(self._names) >= _MAX_MEMORY:
                self._names, self._innocent = {}, {""}
            if len(name) <= MAX_NAME:
                self._names[name] = known
                if not known:
                    self._innocent.add(f"{canonical(name)}:")
        return known


def _is_suspect(text: str) -> bool:
    return _RUN.search(text) is not None or "://" in text or "=" in text


def _no_name(name: str) -> bool:
    return False


def _plain(name: str) -> str:
    return re.sub(r"[_\-\s.]", "", name).lower()


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
