"""`WWW-Authenticate` as servers write it: several headers, several challenges in one, quoted or not. RFC 9110 11.6.1.

Only `Bearer` counts (RFC 6750 3). What cannot be read ends the reading; what came before it counts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sluicegate.deferred import deferred_pattern

MAX_HEADER: Final = 8 * 1024
MAX_PARTS: Final = 128
"""Schemes and parameters of one answer that are read: 64 KiB of them would take 150 ms."""
MAX_SCOPES: Final = 100
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_PART: Final = deferred_pattern(
    rf'[\s,]*(?:(?P<name>{_TOKEN})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s,"=]+))(?=[\s,]|$)'
    rf"|(?P<scheme>{_TOKEN})(?:[ ]+[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$)))?(?=[\s,]|$))"
)
_SCOPE: Final = deferred_pattern(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")  # RFC 6749 3.3


@dataclass(frozen=True, slots=True)
class BearerChallenge:
    error: str = ""
    scopes: tuple[str, ...] = ()
    resource_metadata: str = ""

    @property
    def wants_scopes(self) -> bool:
        return self.error == "insufficient_scope"


@dataclass(slots=True)
class _Read:
    scheme: str
    params: dict[str, str] = field(default_factory=dict)


def read(headers: Sequence[str]) -> BearerChallenge | None:
    """What the Bearer challenges of an answer say together, of each parameter the first; None if there is none."""
    params: dict[str, str] = {}
    found = [one for one in _challenges(headers) if one.scheme == "bearer"]
    for one in reversed(found):
        params |= one.params
    if not found:
        return None
    return BearerChallenge(
        params.get("error", ""), scopes(params.get("scope", "")), params.get("resource_metadata", "")
    )


def error_of(headers: Sequence[str]) -> str | None:
    """The `error` of the Bearer challenges; empty where they have none, or are of other schemes; None if there is no
    challenge."""
    if (bearer := read(headers)) is not None:
        return bearer.error
    return None if next(_challenges(headers), None) is None else ""


def scopes(text: str) -> tuple[str, ...]:
    """The scopes in a text, each once, in their order; what is no scope is left out."""
    return tuple(dict.fromkeys(one for one in text.split()[:MAX_SCOPES] if _SCOPE.fullmatch(one)))


def _challenges(headers: Sequence[str]) -> Iterator[_Read]:
    """Parameters before the first scheme of a header are of none."""
    left = MAX_PARTS
    for header in headers:
        current = None
        for part in islice(_parts(header[:MAX_HEADER]), left):
            left -= 1
            if part["scheme"]:
                if current is not None:
                    yield current
                current = _Read(part["scheme"].lower())
            elif current is not None:
                quoted = part["quoted"]
                value = part["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                current.params.setdefault(part["name"].lower(), value)
        if current is not None:
            yield current


def _parts(header: str) -> Iterator[re.Match[str]]:
    at = 0
    while (part := _PART.match(header, at)) is not None:
        at = part.end()
        yield part
