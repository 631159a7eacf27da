"""Sluice as an OAuth protected resource: where clients get tokens for it (RFC 9728), and what a refused one is told.

2026-07-28 basic/authorization, and the same page of the revisions before it since 2025-06-18; older clients ignore
what they do not know. This module authenticates nobody: `listen.auth` does. Served only where there is a token issuer.
"""

from collections.abc import Callable
from typing import Final

from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.listen.auth import CredentialRefused, Identity
from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.http_request import Headers
from sluicegate.listen.settings import ListenSettings
from sluicegate.listen.toolset_paths import named_by
from sluicegate.protocol.jsonrpc import dump

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_ALLOW: Final = [(b"allow", b"GET, HEAD, OPTIONS")]


class ProtectedResource:
    def __init__(
        self, settings: ListenSettings, identity: Identity, forwarded: ForwardedHeaders,
        has_toolsets: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._public_url = settings.names.public_url
        self._path = settings.path
        self._identity, self._forwarded, self._has_toolsets = identity, forwarded, has_toolsets

    def _endpoint(self, exchange: HttpExchange) -> tuple[str, str]:
        """Origin and path of the MCP endpoint, as this client reaches it."""
        if self._public_url is not None:
            scheme, _, rest = self._public_url.partition("://")
            host, _, path = rest.partition("/")
            return f"{scheme}://{host}", f"/{path}" if path else ""
        prefix = self._forwarded.prefix(exchange.client, exchange.head.headers)
        return self._forwarded.origin(exchange.client, exchange.head.headers), prefix + self._path

    def is_at(self, exchange: HttpExchange) -> bool:
        """Whether this request asks for the metadata: beside the root, or beside the path that it is for. A proxy may
        have left its own path in place."""
        before, found, after = exchange.head.path.partition(WELL_KNOWN)
        if not found or not self._identity.issuers:
            return False
        path = self._endpoint(exchange)[1].rstrip("/")
        places = ("", self._path, path)
        if before not in ("", path.removesuffix(self._path)):
            return False
        if self._has_toolsets() and named_by(after, (self._path, path)):  # theirs name the same resource
            return True
        return after.removesuffix("/") in places

    async def serve(self, exchange: HttpExchange) -> None:
        """RFC 9728 3.2. `resource` is exactly what clients name when they ask for a token (RFC 8707)."""
        if exchange.head.method not in ("GET", "HEAD"):
            await exchange.error(405, "Method not allowed", _ALLOW)
            return
        origin, path = self._endpoint(exchange)
        document = {
            "resource": origin + path,
            "authorization_servers": list(self._identity.issuers),
            "bearer_methods_supported": ["header"],
            "resource_name": "Sluice",
        }
        if self._identity.scopes:
            document["scopes_supported"] = list(self._identity.scopes)
        await exchange.json(200, dump(document))

    def challenge(self, exchange: HttpExchange, refused: CredentialRefused) -> Headers:
        """RFC 6750 3, RFC 9728 5.1: nothing is said about an error to who showed no credential."""
        if not self._identity.issuers:
            return [(b"www-authenticate", b"Bearer")]
        origin, path = self._endpoint(exchange)
        parts = [] if refused.reason == "none" else [f'error="{_code(refused)}"']
        if self._identity.scopes:
            parts.append(f'scope="{" ".join(self._identity.scopes)}"')
        parts.append(f'resource_metadata="{origin}{WELL_KNOWN}{path}"')
        return [(b"www-authenticate", f"Bearer {', '.join(parts)}".encode("latin-1"))]


def _code(refused: CredentialRefused) -> str:
    return "insufficient_scope" if refused.is_known else "invalid_token"
