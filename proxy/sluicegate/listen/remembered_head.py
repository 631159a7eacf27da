"""What a connection remembers of a request head that it has seen, and why each part stays true.

Most of a client's requests differ in their bodies alone, so the work on a head is done once for a connection. A value
may stand here only if it follows from the lines of the head, from the accepting socket, and from objects that never
change. Whatever time, a reload or another request can change is checked for each request: whose the credential is,
whether it has expired or was revoked, which roles it has, whether anonymous clients get in, which worker serves
them, whether the session exists, and the body with its size.
"""

from dataclasses import dataclass

from sluicegate.http.hosts import HostOriginPolicy
from sluicegate.protocol.modern_client import Routing


@dataclass(slots=True)
class RememberedHead:
    passed: HostOriginPolicy | None = None
    """The policy that let this head pass as a POST to the MCP endpoint that no page sent. A policy never changes, and
    neither do the listener's paths and limits; a listener with another policy checks the head again."""
    routing: Routing | None = None
    """What the headers of the modern revision say: a pure function of the lines."""
