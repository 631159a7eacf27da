"""The URIs under which Sluice itself serves the parts of an answer that was too large. No server has one of them."""

import re
from typing import Final

PREFIX: Final = "sluice:results/"
_PART: Final = re.compile(r"sluice:results/([A-Za-z0-9_-]{32})/([1-9][0-9]{0,5})")


def uri(id: str, number: int) -> str:
    return f"{PREFIX}{id}/{number}"


def is_one(value: object) -> bool:
    """Whether it can name nothing else, a part or none."""
    return isinstance(value, str) and value.startswith(PREFIX)


def read(value: object) -> tuple[str, int] | None:
    """The answer's id, and which part of it, from 1; None for what is no such URI."""
    found = _PART.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else (found[1], int(found[2]))
