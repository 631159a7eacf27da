"""Which Host and Origin a request may carry: one policy for the MCP port and the admin port. Pure.

A page that a victim's browser loaded reaches a loopback port with its own name in Host (DNS rebinding) or in
Origin; both are judged before anything else. 2025-11-25 and 2026-07-28 basic/transports#security-warning.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

Headers = Sequence[tuple[bytes, bytes]]
"""ServedNames are lower case; a name can stand in it more than once."""
Address = tuple[str, int | None]
Authority = tuple[str, int | None]
"""Host in lower case and without brackets, an IP address in its shortest form; the port, if one is written."""

# RFC 9110 7.2 and RFC 3986 3.2.2, without userinfo.
_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?")
_MAX_AUTHORITY: Final = 253 + len(":65535")
_ORIGIN: Final = re.compile(r"(https?)://(.+)", re.IGNORECASE)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TOKENS: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
_EXPOSED: Final = b"Mcp-Session-Id, WWW-Authenticate"


@dataclass(frozen=True, slots=True)
class ServedNames:
    """Which Host and Origin values are ours beside loopback: `host` or `host:port`, and whole origins. `public_url` is
    the MCP endpoint as clients know it, `trusted_proxies` the addresses or networks of those before us."""

    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    scheme: str = "http"
    """Of the port itself."""

    @property
    def public_path(self) -> str | None:
        return None if self.public_url is None else urlsplit(self.public_url).path or "/"

    @property
    def public_host(self) -> str | None:
        return None if self.public_url is None else urlsplit(self.public_url).netloc


@dataclass(frozen=True, slots=True)
class PortRules:
    """All in which the ports differ. At `any_host` paths every well-formed Host is served: orchestrators ask by
    whatever name or address they have. `local_pages`: a page on a loopback name may send requests to a loopback name,
    as desktop clients that are made of web pages do."""

    any_host: frozenset[str] = frozenset()
    local_pages: bool = False


MCP_PORT: Final = PortRules(local_pages=True)
ADMIN_PORT: Final = PortRules(any_host=frozenset({"/livez", "/readyz", "/metrics"}))


@dataclass(frozen=True, slots=True)
class HostRefusal:
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


def authority(text: str) -> Authority | None:
    """The parts of `host[:port]`; None for anything else. What is longer than any is neither read nor remembered."""
    return _authority(text) if len(text) <= _MAX_AUTHORITY else None


@lru_cache(maxsize=1024)
def _authority(text: str) -> Authority | None:
    found = _AUTHORITY.fullmatch(text)
    if found is None or int(found[3] or 0) > 65_535:
        return None
    host = (found[1] or found[2]).lower()
    try:
        host = str(ip_address(host))
    except ValueError:
        if found[1]:
            return None  # brackets hold an address, nothing else
    return host, int(found[3]) if found[3] else None


class HostOriginPolicy:
    """A policy never changes: other host names take a new policy."""

    def __init__(self, names: ServedNames, rules: PortRules) -> None:
        self._rules = rules
        ours = (*names.allowed_hosts, names.public_host or "")
        self._hosts = {part for host in ours if (part := authority(host))}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in names.allowed_origins)

    def check(self, headers: Headers, server: Address | None, path: str) -> HostRefusal | None:
        """`server` is the address of the accepting socket, None for a Unix socket."""
        hosts = [value for name, value in headers if name == b"host"]
        host = authority(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if host is None:
            return HostRefusal(400, "exactly one well-formed Host header is required")
        if path not in self._rules.any_host and not self._is_known(host, server):
            return HostRefusal(421, "this Host is not served here: see listen.allowed_hosts")
        origins = [value for name, value in headers if name == b"origin"]
        if not origins or (len(origins) == 1 and self._may_ask(origins[0].decode("latin-1"), host, server)):
            return None
        return HostRefusal(403, "this Origin is not allowed: see listen.allowed_origins")

    def is_known(self, headers: Headers, server: Address | None) -> bool:
        """Whether Host names this Sluice, even where requests for other hosts are served."""
        hosts = [value for name, value in headers if name == b"host"]
        host = authority(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        return host is not None and self._is_known(host, server)

    def _is_known(self, host: Authority, server: Address | None) -> bool:
        name, port = host
        if (name, None) in self._hosts or host in self._hosts:
            return True
        if server is None:
            return False
        if is_loopback(server[0]) and is_loopback(name):
            return True
        # The accepting socket's own address: a literal cannot be rebound to somebody else's page.
        own = authority(f"[{server[0]}]" if ":" in server[0] else server[0])
        return own is not None and name == own[0] and (port or 80) == server[1]

    def _may_ask(self, text: str, host: Authority, server: Address | None) -> bool:
        """Whether a page of this origin may send a request to this host."""
        if text.lower() in self._origins:
            return True
        found = _ORIGIN.fullmatch(text)
        origin_authority = authority(found[2]) if found else None
        if found is None or origin_authority is None or not self._is_known(host, server):
            return False
        if self._rules.local_pages and is_loopback(origin_authority[0]) and is_loopback(host[0]):
            return True
        usual = _DEFAULT_PORTS[found[1].lower()]
        return origin_authority[0] == host[0] and (origin_authority[1] or usual) == (host[1] or usual)

    def cors(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        """Only what the operator named gets CORS; a loopback page may send, not read."""
        if origin is None or origin.decode("latin-1").lower() not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"Origin"),
        ]

    def preflight(self, origin: bytes | None, asked: bytes | None) -> list[tuple[bytes, bytes]]:
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
