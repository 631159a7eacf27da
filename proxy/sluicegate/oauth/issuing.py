"""What an authorization server in front of Sluice's clients takes: registrations, authorization requests, verifiers.

RFC 6749 4.1, RFC 7591, RFC 7636, RFC 8252, RFC 8414, RFC 9207, and 2026-07-28 basic/authorization. Knows texts alone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from sluicegate.oauth import Unfit, text_of, texts_of
from sluicegate.oauth.authorization import challenge_of
from sluicegate.oauth.urls import LOOPBACK

MAX_REDIRECTS: Final = 20
MAX_STATE: Final = 4096
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_URI: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*):[\x21-\x7e]+")
_LOCAL: Final = re.compile(
    r"http://(?P<host>localhost|127\.0\.0\.1|\[::1\])(?P<port>:[0-9]{1,5})?(?P<rest>[/?][^#\\\x00-\x20\x7f-\U0010ffff]*)?"
)
# A browser that is sent there runs a script, opens a file or another URL inside, starts a tool of the operating system,
# or speaks to something else than an application.
_NEVER: Final = frozenset({
    "javascript", "data", "file", "vbscript", "about", "blob", "ws", "wss", "ftp", "mailto", "feed", "filesystem",
    "intent", "jar", "view-source", "search", "search-ms", "ms-appinstaller", "ms-msdt", "ms-officecmd",
})  # fmt: skip
_ONCE: Final = (
    "response_type", "client_id", "redirect_uri", "state", "scope", "code_challenge", "code_challenge_method",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RegisteredClient:
    """A client of Sluice, as it describes itself: nothing of it is proved but that it gets what `redirect_uris` get."""

    id: str
    name: str
    redirect_uris: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    client: str
    redirect_uri: str
    state: str
    challenge: str


class UnfitRedirect(Unfit):
    """A redirect URI that no client may register (RFC 7591 3.2.2: invalid_redirect_uri)."""


class AuthorizationDenied(Exception):
    """An error of RFC 6749 4.1.2.1, for the client at its redirect URI."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error, self.description = error, description


def read_client(document: dict[str, Any], id: str) -> RegisteredClient:
    """A registration (RFC 7591 2) or a client ID metadata document. Raises `Unfit`."""
    uris = texts_of(document, "redirect_uris", MAX_REDIRECTS + 1) or ()
    if not uris or len(uris) > MAX_REDIRECTS or len(uris) != len(document["redirect_uris"]):
        raise UnfitRedirect(f"redirect_uris has to name 1 to {MAX_REDIRECTS} URIs")
    for uri in uris:
        _check_redirect(uri)
    name = text_of(document, "client_name", 128)
    return RegisteredClient(id, "".join(c if c.isprintable() else "?" for c in name).strip(), uris)


def _check_redirect(uri: str) -> None:
    """https, http on this machine (RFC 8252 7.3), or a scheme of an application's own (7.1)."""
    found = _URI.fullmatch(uri)
    if found is None or "#" in uri or "\\" in uri or found["scheme"] in _NEVER:
        raise UnfitRedirect("a redirect URI is absolute, printable ASCII, has no fragment, and leads to an application")
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        raise UnfitRedirect("a redirect URI is no URI") from None
    if parts.scheme in ("http", "https") and (not parts.hostname or "@" in parts.netloc):
        raise UnfitRedirect("a redirect URI has a host, and no user")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise UnfitRedirect("a redirect URI with http is for this machine alone")


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Compared as texts; on loopback the port is the client's choice at each login (RFC 8252 7.3)."""
    return any(uri == one or _without_port(uri) == _without_port(one) != "" for one in registered)


def _without_port(uri: str) -> str:
    """Of a URI of this machine; empty for all others."""
    found = _LOCAL.fullmatch(uri)
    return f"{found['host']} {found['rest'] or ''}" if found else ""


def read_parameters(query: str) -> dict[str, str]:
    """Raises `Unfit` for what says one thing twice, or too much."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise Unfit("the request has too many parameters") from None
    if any(sum(name == one for name, _ in pairs) > 1 for one in _ONCE):
        raise Unfit("a parameter comes twice")
    resources = {value for name, value in pairs if name == "resource"}
    if len(resources) > 1:
        raise Unfit("it asks for several resources")
    return dict(pairs)


def read_request(asked: dict[str, str], client: RegisteredClient, resource: str) -> AuthorizationRequest:
    """Raises `Unfit` where nothing may be sent to the redirect URI, `AuthorizationDenied` where its error is."""
    uri = asked.get("redirect_uri", "")
    if not is_registered(uri, client.redirect_uris):
        raise Unfit("its redirect URI is not one of those that this client registered")
    if asked.get("response_type") != "code":
        raise AuthorizationDenied("unsupported_response_type", "only the code flow is here")
    if asked.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(asked.get("code_challenge", "")):
        raise AuthorizationDenied("invalid_request", "PKCE with S256 is needed")
    if asked.get("resource", resource).rstrip("/") != resource.rstrip("/"):
        raise AuthorizationDenied("invalid_target", f"tokens are for {resource} alone")
    if len(asked.get("state", "")) > MAX_STATE:
        raise AuthorizationDenied("invalid_request", "state is too long")
    return AuthorizationRequest(client.id, uri, asked.get("state", ""), asked["code_challenge"])


def proves(verifier: str, challenge: str) -> bool:
    """RFC 7636 4.6."""
    return bool(_VERIFIER.fullmatch(verifier)) and compare_digest(challenge_of(verifier), challenge)


def server_metadata(issuer: str) -> dict[str, Any]:
    """RFC 8414 2 and RFC 9207."""
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/oauth/authorize",
        "token_endpoint": f"{issuer}/oauth/token",
        "registration_endpoint": f"{issuer}/oauth/register",
        "revocation_endpoint": f"{issuer}/oauth/revoke",
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": True,
    }
