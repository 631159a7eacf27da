"""Cookie headers, bounded before they are taken apart: nobody has shown a credential yet. Pure."""

from collections.abc import Sequence
from typing import Final

MAX_COOKIES: Final = 256
"""More than a browser keeps for one site."""


def bounded(lines: Sequence[str]) -> Sequence[str]:
    """The Cookie headers of a request; none of them where they hold too many cookies."""
    return lines if len(lines) + sum(line.count(";") for line in lines) <= MAX_COOKIES else ()
