"""Finds secrets in the strings of a JSON value, by the rules of the library Kingfisher. Knows no HTTP and no hook.

The strings are scanned as one text, each behind the name of its member: many rules want a word such as `secret` beside
a secret, or both keys of a pair. The library is the extra `detector`; it calls nobody while it scans.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

WITHIN: Final = 1.5
"""Seconds for one text. The library looks at its clock between its steps."""
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
    """`pointers` name the strings that hold a secret (RFC 6901); `is_in_name`: a name of a member is one."""

    kinds: tuple[str, ...]
    pointers: tuple[str, ...]
    is_in_name: bool


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

    def places(self, value: Any) -> FoundSecrets:
        """Where there are secrets in a JSON value. Raises `TimeoutError`."""
        text, starts, pointers = bytearray(), list[int](), list[str | None]()
        for pointer, part in _strings(value, "", ""):
            starts.append(len(text))
            pointers.append(pointer)
            text += part.encode("utf-8", "replace")
        kinds, held = dict[str, None](), dict[str | None, None]()
        for secret in self.found(bytes(text), WITHIN):
            kinds[secret.kind] = None
            first, last = bisect_right(starts, secret.start) - 1, bisect_right(starts, secret.end - 1)
            # What begins in a value may go on over the name of the next one, as a key in PEM by lines does.
            held |= dict.fromkeys(one for one in pointers[first:last] if one is not None or pointers[first] is None)
        return FoundSecrets(tuple(kinds), tuple(one for one in held if one is not None), None in held)


def _strings(value: Any, pointer: str, name: str) -> Iterator[tuple[str | None, str]]:
    """Parts of the text: each string with its pointer, and without one what stands between them."""
    if isinstance(value, str):
        # A text of several lines begins on a line of its own: some rules look at beginnings of lines.
        yield None, f"{name} =\n" if "\n" in value else f"{name} = "
        yield pointer, value
        yield None, "\n"
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(inner, str):
                yield None, f"{key}\n"
            yield from _strings(inner, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", key)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _strings(inner, f"{pointer}/{at}", name)
