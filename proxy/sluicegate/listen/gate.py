"""Which Host and Origin a request may carry, and what a browser page of an allowed origin is told. Pure.

A page that a victim's browser loaded reaches a loopback port with its own name in Host (DNS rebinding) or in
Origin; both are judged before anything else. 2025-11-25 and 2026-07-28 basic/transports#security-warning.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from sluicegate.listen.request import Address, Headers
from sluicegate.listen.settings import Names

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_WEB_ORIGIN: Final = re.compile(r"https?://(.+)")
_TOKENS: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
_EXPOSED: Final = b"Mcp-Session-Id, WWW-Authenticate"
_MEMO: Final = 256


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    text: str


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """A loopback name or literal; nothing that merely begins or ends like one."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def split(authority: str) -> tuple[str, int | None] | None:
    """Host and port of `host[:port]`, lower case; None for anything else."""
    found = _AUTHORITY.fullmatch(authority)
    return (found[1], int(found[2]) if found[2] else None) if found else None


class Gate:
    def __init__(self, names: Names) -> None:
        ours = (*names.allowed_hosts, names.public_host or "")
        self._hosts = {part for host in ours if (part := split(host.lower()))}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in names.allowed_origins)
        self._good: set[tuple[bytes, Address | None]] = set()  # what most requests say, judged once

    def check(self, host: bytes | None, origin: bytes | None, server: Address | None) -> Refusal | None:
        """`server` is the address of the accepting socket."""
        if (host, server) not in self._good or host is None:
            refusal = self._check_host(host, server)
            if refusal is not None:
                return refusal
            if len(self._good) < _MEMO:
                self._good.add((host or b"", server))
        if origin is None or self._is_ours(origin, host or b"", server):
            return None
        return Refusal(403, "this Origin is not allowed")

    def _check_host(self, host: bytes | None, server: Address | None) -> Refusal | None:
        part = split(host.decode("latin-1").lower()) if host else None
        if part is None:
            return Refusal(400, "exactly one well-formed Host header is required")
        name, port = part
        if (name, None) in self._hosts or (name, port) in self._hosts:
            return None
        if server is None or (is_loopback(server[0]) and is_loopback(name)):
            return None
        # The accepting socket's own address: a literal cannot be rebound to somebody else's page.
        if name.strip("[]") == server[0].lower() and (port or 80) == server[1]:
            return None
        return Refusal(421, "this Host is not served here")

    def _is_ours(self, origin: bytes, host: bytes, server: Address | None) -> bool:
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return True
        web, served = _WEB_ORIGIN.fullmatch(text), split(host.decode("latin-1").lower())
        page = split(web[1]) if web else None
        if page is None or served is None:
            return False
        local = server is None or is_loopback(server[0])
        return local and is_loopback(page[0]) and is_loopback(served[0])

    def cors(self, origin: bytes | None) -> Headers:
        """Only what the operator named gets CORS; a loopback page may send, not read."""
        if origin is None or origin.decode("latin-1").lower() not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"Origin"),
        ]

    def preflight(self, origin: bytes | None, asked: bytes | None) -> Headers:
        """`Mcp-Param-*` names are open, so the headers asked for are granted as asked."""
        headers = self.cors(origin)
        if headers:
            headers += [
                (b"access-control-allow-methods", b"POST, GET, DELETE, OPTIONS"),
                (b"access-control-max-age", b"600"),
            ]
            if asked and _TOKENS.fullmatch(asked):
                headers.append((b"access-control-allow-headers", asked))
        return headers
