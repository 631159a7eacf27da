"""Which credential a request at the admin port shows, and whether it comes from this machine.

Pure functions over an ASGI scope. Decides on the scope's own fields and raw headers, never on a URL put
together from them: what a peer writes into Host can make such a URL say anything.
"""

from starlette.types import Scope

from sluicegate.http.forwarded_headers import is_forwarded
from sluicegate.http.hosts import is_loopback


def header(scope: Scope, name: str) -> list[str]:
    """Every value the request has for a header, in order."""
    raw = name.encode("ascii")
    return [value.decode("latin-1") for key, value in scope["headers"] if key == raw]


def peer_of(scope: Scope) -> str:
    peer = scope.get("client")
    return str(peer[0]) if peer else "unknown"


def is_loopback_peer(scope: Scope) -> bool:
    """Whether a process of this machine asks for itself: what a local proxy forwards comes from elsewhere."""
    return is_loopback(peer_of(scope)) and not is_forwarded(scope["headers"])


def bearer(scope: Scope) -> str | None:
    """The token of the one Authorization header, None if there is none or it is of another kind."""
    values = header(scope, "authorization")
    kind, _, token = (values[0] if len(values) == 1 else "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None
