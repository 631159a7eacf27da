"""The URIs under which Sluice itself serves the parts of an answer that was too large. No server has one of them."""

import re
from typing import Final

PREFIX: Final = "sluice:results/"
_PART: Final = re.compile(r"sluice:results/([A-Za-z0-9_-]{32})/([1-9][0-9]{0,5})")


def uri(id: str, number: int) -> str:
    return f"{PREFIX}{id}/{number}"


def is_own(value: object) -> bool:
    """Whether a URI is one that Sluice itself answers for: no server is asked for it, also where there is no such
    part."""
    return isinstance(value, str) and value.startswith(PREFIX)


def read(value: object) -> tuple[str, int] | None:
    """The answer's id, and which part of it, from 1; None for what is no such URI."""
    found = _PART.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else (found[1], int(found[2]))
