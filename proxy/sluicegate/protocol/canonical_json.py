"""One text for equal JSON values: keys in order, no spaces, everything beyond ASCII escaped. 1 is not 1.0.

`canonical` makes it in one step, in which no other thread runs. For a value of any size it comes in parts.
"""

from _json import encode_basestring_ascii, make_encoder
from collections.abc import Generator, Iterator
from hashlib import sha256
from json import JSONEncoder
from typing import Any, Final

PART: Final = 16 * 1024
"""Characters of a text that are escaped at once."""
_STEP: Final = 1024
"""Parts in a step of `hashed`. One of `_CHARS` characters counts as two, and so on."""
_CHARS: Final = 256

# `json.JSONEncoder.encode` makes a new encoder for each value, so that a small value takes three times as long.
_chunks: Final = make_encoder(None, JSONEncoder().default, encode_basestring_ascii, None, ":", ",", True, False, True)


def canonical(value: Any) -> str:
    return "".join(_chunks(value, 0))


class _Token(str):
    __slots__ = ()


def canonical_parts(value: Any) -> Iterator[str]:
    """What `canonical` returns, in parts: a plain value, a piece of a text, or what stands between two values."""
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if type(item) is _Token:
            yield item
        elif isinstance(item, str) and len(item) > PART:
            yield '"'
            for at in range(0, len(item), PART):
                yield canonical(item[at : at + PART])[1:-1]
            yield '"'
        elif isinstance(item, dict) and item:
            todo.append(_Token("}"))
            for number, name in enumerate(sorted(item, reverse=True), 1):
                todo += (item[name], _Token(":"), name, _Token("{" if number == len(item) else ","))
        elif isinstance(item, list) and item:
            todo.append(_Token("]"))
            for number, one in enumerate(reversed(item), 1):
                todo += (one, _Token("[" if number == len(item) else ","))
        else:
            yield canonical(item)


def is_longer(value: Any, characters: int) -> bool:
    """Whether that text has more characters, as far as that is known without escaping any."""
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        characters -= 1
        if isinstance(item, str):
            characters -= len(item)
        elif isinstance(item, dict):
            todo += item
            todo += item.values()
        elif isinstance(item, list):
            todo += item
        if characters < 0:
            return True
    return False


def hashed(value: Any) -> Generator[None, None, str]:
    """The SHA-256 of that text, in hexadecimal digits, as the work of many steps: it yields after each of them."""
    digest, done = sha256(), 0
    for part in canonical_parts(value):
        digest.update(part.encode("ascii"))
        done += 1 + len(part) // _CHARS
        if done >= _STEP:
            done = 0
            yield
    return digest.hexdigest()
