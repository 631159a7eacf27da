"""Decodes an answer with a long list in pieces, so that calls go on meanwhile.

Pure. The start of each piece is guessed, and the JSON parser checks each guess. The elements of a piece, put between
brackets, must parse as an array. A random string then replaces them in the message, and must be the first element of
its list: the server cannot know that string. If a check fails, the message is decoded in one step.
"""

import re
import secrets
from collections.abc import Callable, Generator
from typing import Any, Final

from sluicegate.protocol.jsonrpc import Malformed, check_range, decode_fast, dump, in_range, inside
from sluicegate.protocol.methods import LISTS

PIECE: Final = 32 * 1024
"""Bytes that are decoded in one step, and a definition more."""
_GUESSES: Final = 64  # for the end of one piece
_KEYS: Final = "|".join(sorted({one.key for one in LISTS.values()})).encode()
# A list near the beginning of an answer, and how its first element begins: all others begin in the same way.
_LIST: Final = re.compile(rb'"(' + _KEYS + rb')"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*(\{[ \t\r\n]*"[^"\\]{1,64}")')
_BLANKS: Final = b" \t\r\n"

Clean = Callable[[Any, bytes], object]


def decode_in_pieces(
    data: bytes, clean: Clean | None, clean_items: Clean
) -> Generator[None, None, Any]:
    """The value that `decode_fast` gives. If `clean` is given, it changes the message in place, and `clean_items` the
    elements that are decoded apart. Both get the bytes, too. Raises what `decode_fast` raises."""
    found = _LIST.search(data, 0, PIECE) if len(data) > 2 * PIECE else None
    if found is not None and (yield from in_range(data)):
        key, first, start = found[1].decode(), found[2], found.start(2)
        items, rest = yield from _elements(data, start, first, clean_items if clean else None)
        if items and (value := _with_elements(data[:start], items, data[rest:], key, clean)) is not None:
            return value
    value = decode_fast(data, True)
    yield
    yield from check_range(value, data)
    if clean:
        clean(value, data)
    return value


def _elements(
    data: bytes, start: int, first: bytes, clean: Clean | None
) -> Generator[None, None, tuple[list[Any], int]]:
    """The elements from `start` on, and where those begin that are left: about a piece."""
    items, target, wasted = list[Any](), start + PIECE, 0
    while target < len(data) and wasted < len(data):
        end, after = _boundary(data, target, first)
        if not after:
            break
        part = data[start:end]
        try:
            ((elements,),) = decode_fast(b"[[[" + part + b"]]]", True)  # as deep as in the message
        except (Malformed, TypeError, ValueError):  # within an element, or a text
            wasted, target = wasted + len(part), after
        else:
            if clean:
                clean(elements, part)
            items += elements
            start, target = after, after + PIECE
        yield
    return items, start


def _boundary(data: bytes, target: int, first: bytes) -> tuple[int, int]:
    """Where an element seems to end, and the next one to begin; 0 where none does."""
    for _ in range(_GUESSES):
        target = data.find(first, target + 1)
        if target < 0:
            break
        before = data[max(0, target - 64) : target].rstrip(_BLANKS)
        if before[-1:] == b"," and before[:-1].rstrip(_BLANKS)[-1:] == b"}":
            return target - (min(64, target) - len(before)) - 1, target
    return 0, 0


def _with_elements(head: bytes, items: list[Any], rest: bytes, key: str, clean: Clean | None) -> Any:
    """The message with these elements in its list, between `head` and `rest`; None where they are not all of that."""
    word = secrets.token_hex(16)
    part = head + dump(word) + b"," + rest
    try:
        value = decode_fast(part, True)
    except Malformed:
        return None
    listed = inside(value, "result", key)
    if not isinstance(listed, list) or listed[:1] != [word]:
        return None
    if clean:
        clean(value, part)
    listed[:1] = items
    return value
