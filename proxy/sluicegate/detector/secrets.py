"""Finds secrets in the strings of a JSON value, by the rules of the library Kingfisher. Knows no HTTP and no hook.

The strings are scanned as one text, each behind the name of its member: many rules want a word such as `secret` beside
a secret, or both keys of a pair. The library is the extra `detector`; it calls nobody while it scans.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple

WITHIN: Final = 1.5
"""Seconds for one text. The library looks at its clock between its steps."""
_REPEATED: Final = 64
"""Characters of a list's name that stand before each of its items. All of it is in the text once."""
# The library reads its word lists at the first candidate. This one is made up, and found.
_FIRST: Final = b"aws_secret_access_key = " + b"wJ4lrXUtnF2MIaK7" + b"MDENGkbPxRf1CYzQLMPLqKEY"


class NoLibrary(Exception):
    """The extra is not installed."""


@dataclass(frozen=True, slots=True)
class Secret:
    """`kind` is the library's word for it; `start` and `end` are bytes of the text."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FoundSecrets:
    """`pointers` name the strings that hold a secret (RFC 6901). None: they cannot be named within the bounds, or a
    name of a member is a secret."""

    kinds: tuple[str, ...]
    pointers: tuple[str, ...] | None


class _Step(NamedTuple):
    """The last step on the way to a value. Ways share their beginnings: as texts they would be as long as all names
    times all values."""

    before: _Step | None
    key: str | int


class Scanner:
    """Any thread may use it. To make it takes seconds: the library compiles its rules, and caches them for the next
    start. Raises `NoLibrary`."""

    def __init__(self) -> None:
        try:
            library = import_module("kingfisher_sdk")
        except ImportError:
            raise NoLibrary from None
        self._scanner: Any = library.Scanner()
        self.found(_FIRST)

    def found(self, text: bytes, within: float | None = None) -> list[Secret]:
        """`text` is UTF-8. Raises `TimeoutError`."""
        # A NUL may pass for a sign of UTF-16, of which the library would tell other offsets.
        hits = self._scanner.scan(text.replace(b"\0", b" "), timeout=within)
        return [
            Secret(hit.rule_id.rpartition(".")[2], hit.location["start_offset"], hit.location["end_offset"])
            for hit in hits
        ]

    def places(self, value: Any, most: int, longest: int) -> FoundSecrets:
        """Where there are secrets in a JSON value: at most so many pointers of so many characters. Raises
        `TimeoutError`."""
        text, starts, paths = bytearray(), list[int](), list[_Step | None]()
        for path, part in _strings(value, None, ""):
            starts.append(len(text))
            paths.append(path)
            text += part.encode("utf-8", "replace")
        kinds, held = dict[str, None](), dict[int, None]()
        for secret in self.found(bytes(text), WITHIN):
            kinds[secret.kind] = None
            first, last = bisect_right(starts, secret.start) - 1, bisect_right(starts, secret.end - 1)
            # What begins in a value may go on over the name of the next one, as a key in PEM by lines does.
            held |= dict.fromkeys(at for at in range(first, last) if paths[at] is not None or paths[first] is None)
        pointers = [_pointer(paths[at], longest) for at in held] if len(held) <= most else [None]
        named = tuple(one for one in pointers if one is not None)
        return FoundSecrets(tuple(kinds), named if named and len(named) == len(pointers) else None)


def _pointer(path: _Step | None, longest: int) -> str | None:
    """None where there is none, or it is longer."""
    pointer = ""
    while path is not None and len(pointer) <= longest:
        pointer = f"/{str(path.key).replace('~', '~0').replace('/', '~1')}{pointer}"
        path = path.before
    return pointer if 0 < len(pointer) <= longest else None


def _strings(value: Any, path: _Step | None, name: str) -> Iterator[tuple[_Step | None, str]]:
    """Parts of the text: each string with the way to it, and without one what stands between them."""
    if isinstance(value, str):
        # A text of several lines begins on a line of its own: some rules look at beginnings of lines.
        yield None, f"{name} =\n" if "\n" in value else f"{name} = "
        yield path, value
        yield None, "\n"
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(inner, str):
                yield None, f"{key}\n"
            yield from _strings(inner, _Step(path, key), key)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _strings(inner, _Step(path, at), name[-_REPEATED:])
