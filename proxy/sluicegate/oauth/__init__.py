"""PURE: OAuth 2.1 as a client of MCP servers needs it: what is asked, what an answer means, and what is refused.

Pages: 2026-07-28 basic/authorization and those below it, RFC 6749, 7009, 7591, 7636, 8414, 8707, 9207 and 9728. Knows
texts and JSON values; no network, no store, no clock.
"""

import re
from typing import Any, Final

from sluicegate.protocol.jsonrpc import MAX_NODES, Malformed, check_nodes, decode_document

MAX_SHOWN: Final = 200  # characters
ERROR_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Unfit(ValueError):
    """What the other side said cannot be used. The text is ours; what it quotes of a peer went through `shown`."""


def shown(text: object) -> str:
    """What a peer wrote, for a message to a person: printable ASCII, bounded, in quotes."""
    plain = "".join(c if " " <= c <= "~" and c not in "\"'`<>&\\" else "?" for c in str(text)[:MAX_SHOWN])
    return f'"{plain}"'


def read_json(body: bytes) -> dict[str, Any]:
    """Of a document that has one reader. Numbers out of range are infinite: a lifetime of 1e400 must not cost the
    token beside it. A lone surrogate is no character: nothing could store or send it. A document with more values than
    a message may have is not read. Raises `Unfit`."""
    try:
        check_nodes(body, MAX_NODES)
        value = decode_document(body)
    except Malformed:
        raise Unfit("its answer is not JSON") from None
    if not isinstance(value, dict):
        raise Unfit("its answer is not a JSON object")
    return value


def text_of(document: dict[str, Any], name: str, most: int = 2048) -> str:
    """A member that is a text; empty where it is absent, of another type, or longer than it may be."""
    value = document.get(name)
    return value if isinstance(value, str) and len(value) <= most else ""


def texts_of(document: dict[str, Any], name: str, most: int = 200) -> tuple[str, ...] | None:
    """A member that is a list of texts; None where it is absent or no list."""
    value = document.get(name)
    if not isinstance(value, list):
        return None
    return tuple(item for item in value[:most] if isinstance(item, str) and len(item) <= 2048)
