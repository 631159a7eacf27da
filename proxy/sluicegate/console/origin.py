"""Where the console is served, and which requests come from its own pages. Pure.

Cookies ignore ports, and all ports of a host are one site: so Origin is compared as a whole, port included, and
Sec-Fetch-Site must say `same-origin`. A browser sends both by itself, and no page can change them.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from sluicegate.http import cookies
from sluicegate.http.forwarded_headers import ForwardedHeaders, is_forwarded
from sluicegate.http.hosts import is_loopback

SITE: Final = "sluice.site"
CHANNEL: Final = "sluice.channel"
"""Of the scope: by which way a person decides. The admin API writes it into the vote."""
_MAX_ORIGIN: Final = 300
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Site:
    """The console as a browser has it. `origin` is scheme, host and port; `is_loopback`: on this machine, directly."""

    origin: str
    is_loopback: bool
    port: int

    @property
    def is_secure(self) -> bool:
        return self.origin.startswith("https://")

    @property
    def cookie_name(self) -> str:
        return "__Host-sluice" if self.is_secure else f"sluice-{self.port}"

    def cookie(self, value: str) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.cookie_name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def no_cookie(self) -> str:
        return f"{self.cookie('')}; Max-Age=0"

    def cookie_of(self, headers: Headers) -> str:
        """The first half; "" of one that comes twice, as somebody else may have put one there."""
        lines = cookies.bounded(headers.getlist("cookie"))
        parts = (part.strip().partition("=") for line in lines for part in line.split(";"))
        values = [value for name, _, value in parts if name == self.cookie_name]
        return values[0] if len(values) == 1 else ""

    def refusal(self, headers: Headers, is_write: bool) -> Response | None:
        """Why a request is not one of our own pages'."""
        origins = headers.getlist("origin")
        is_ours = [_whole(origin) for origin in origins] == [_whole(self.origin)]
        if (origins or is_write) and not is_ours:
            return JSONResponse({"error": "only the console's own pages may ask: Origin is not theirs"}, 403)
        if headers.getlist("sec-fetch-site") != ["same-origin"]:
            return JSONResponse({"error": "only the console's own pages may ask: Sec-Fetch-Site is not theirs"}, 403)
        return None


def site_of(scope: Scope, forwarded: ForwardedHeaders) -> Site | None:
    """None where the console is not served: off this machine without https."""
    peer, server = scope.get("client"), scope.get("server")
    if peer is None or server is None:
        return None
    origin = forwarded.origin(str(peer[0]), scope["headers"])
    name = _whole(origin)
    if name is None:
        return None
    if name[0] == "https":
        return Site(origin, False, name[2])
    is_here = is_loopback(str(peer[0])) and not is_forwarded(scope["headers"]) and is_loopback(name[1])
    return Site(origin, True, name[2]) if is_here else None


def _whole(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None of what is no origin."""
    if len(origin) > _MAX_ORIGIN:
        return None
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    is_more = parts.path or parts.query or parts.fragment or parts.username
    if parts.scheme not in _PORTS or not parts.hostname or is_more:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]
