"""Who may ask what at the admin port: Host, Origin, where a request comes from and the credential it shows.

Pure functions over an ASGI scope. Decides on the scope's own fields and raw headers, never on a URL put
together from them: what a peer writes into Host can make such a URL say anything.
"""

import re
from collections.abc import Collection, MutableMapping
from ipaddress import ip_address
from typing import Any, Final

Scope = MutableMapping[str, Any]
Host = tuple[str, str | None]

# RFC 3986 authority without userinfo: a name or address, or an address in brackets, and maybe a port.
_HOST: Final = re.compile(r"(?P<name>[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?")
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def header(scope: Scope, name: str) -> list[str]:
    """Every value the request has for a header, in order."""
    raw = name.encode("ascii")
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == raw]


def host_of(scope: Scope) -> Host | None:
    """The request's Host, lower-case, and its port; None unless there is exactly one, well formed."""
    values = header(scope, "host")
    match = _HOST.fullmatch(values[0].lower()) if len(values) == 1 else None
    return (match["name"], match["port"]) if match else None


def is_loopback_peer(scope: Scope) -> bool:
    """Whether a process of this machine asks for itself: what a local proxy forwards comes from elsewhere."""
    return _is_loopback(scope.get("client")) and not any(header(scope, name) for name in _FORWARDED)


def _is_loopback(address: Any) -> bool:
    try:
        return address is not None and ip_address(address[0]).is_loopback
    except ValueError:
        return False


def is_known_host(scope: Scope, host: Host, allowed: Collection[str]) -> bool:
    """Whether Host names us: configured, the accepting socket's own address, or a loopback name on a loopback
    address. A page that had its own name resolved to our address (DNS rebinding) says another."""
    name, port = host
    server = scope.get("server")
    if name in allowed or f"{name}:{port}" in allowed or (name in LOOPBACK_NAMES and _is_loopback(server)):
        return True
    return server is not None and name.strip("[]") == str(server[0]).lower() and int(port or 80) == server[1]


def is_known_origin(scope: Scope, allowed: Collection[str]) -> bool:
    """Whether no browser's page asks (no Origin), or a configured one, or one that we served ourselves."""
    values = header(scope, "origin")
    if not values:
        return True
    if len(values) > 1:
        return False
    same = {f"{scheme}://{host}".lower() for scheme in ("http", "https") for host in header(scope, "host")}
    return values[0].lower() in {*allowed, *same}


def bearer(scope: Scope) -> str | None:
    """The token of the one Authorization header, None if there is none or it is of another kind."""
    values = header(scope, "authorization")
    kind, _, token = (values[0] if len(values) == 1 else "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None
