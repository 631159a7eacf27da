"""Public names of tools and prompts: many servers' names in one list, without clashes.

Pure text to text: knows no catalog, no call and no server but its key. A public name is a function of
(server key, prefix, own name, length limit) alone, so it is the same on every replica, after every restart and
in whatever order servers come up: no table of names taken decides anything.
"""

import re
from collections.abc import Container, Generator, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Final

SEPARATOR: Final = "__"
# Model APIs take ^[a-zA-Z0-9_-]{1,64}$, narrower than what MCP allows in a name (2025-11-25 server/tools#tool-names).
LONGEST: Final = 64
# What a key or prefix (20), the separator (2) and the suffix (7) take, and at least one character of the own name.
SHORTEST_LIMIT: Final = 30

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_LIKE_SUFFIX = re.compile(r"_[0-9A-Fa-f]{6}\Z")
_SUFFIX_CHARS = 7
_PIECE: Final = 500  # names


@dataclass(frozen=True, slots=True)
class Naming:
    """One server's names, both ways. Own names that cannot be served are in neither."""

    public: Mapping[str, str]
    own: Mapping[str, str]


def public_name(server_key: str, prefix: str, own: str, max_chars: int, reserved: Container[str] = ()) -> str:
    """`{prefix}__{own}`, with a hash as its end wherever that alone could not be turned back into one own name.

    An own name that already ends like our hash gets one too: else it could pose as another name that was cut.
    An empty prefix (transparent mode) renames nothing but what is `reserved` for Sluice's own tools.
    """
    if not prefix:
        return f"{own}_{_digest(server_key, own)}" if own in reserved else own
    cleaned = _FOREIGN.sub("_", own)
    plain = f"{prefix}{SEPARATOR}{cleaned}"
    limit = min(max_chars, LONGEST)
    if limit < SHORTEST_LIMIT:
        raise ValueError(f"names of {max_chars} characters leave no room for prefix and hash")
    if cleaned == own and len(plain) <= limit and not _LIKE_SUFFIX.search(own):
        return plain
    return f"{plain[: limit - _SUFFIX_CHARS]}_{_digest(server_key, own)}"


def _digest(server_key: str, own: str) -> str:
    # NUL stands in no server key, so the two cannot run into one another.
    return sha256(server_key.encode() + b"\0" + _bytes(own)).hexdigest()[: _SUFFIX_CHARS - 1]


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def publish_in_pieces(
    server_key: str, prefix: str, own_names: Iterable[str], max_chars: int, reserved: Container[str] = ()
) -> Generator[None, None, Naming]:
    """The public names of one server's tools (or prompts), whatever their order and however often each is listed.

    Left out are names with a lone surrogate (no JSON encoder can say them back to the server) and, of two own
    names whose public names still meet (a 24-bit hash collision), the later one in byte order.
    """
    public: dict[str, str] = {}
    own: dict[str, str] = {}
    for number, name in enumerate(sorted(set(own_names))):  # characters are in the order of their bytes
        if number % _PIECE == _PIECE - 1:
            yield
        shown = public_name(server_key, prefix, name, max_chars, reserved)
        if shown not in own and _is_unicode(name):
            public[name] = shown
            own[shown] = name
    return Naming(MappingProxyType(public), MappingProxyType(own))


def _is_unicode(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


def prefix_of(public: str) -> str | None:
    """The prefix of a public name. A prefix holds no underscore, so the first `__` always splits."""
    prefix, separator, _ = public.partition(SEPARATOR)
    return prefix if prefix and separator else None
