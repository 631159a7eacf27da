"""What a server says of its authorization servers (RFC 9728), and what one of those says of itself (RFC 8414).

2026-07-28 basic/authorization/authorization-server-discovery. Where documents are looked for, and what must be in them.
"""

from dataclasses import dataclass
from typing import Any, Final

from sluicegate.oauth import Unfit, text_of, texts_of
from sluicegate.oauth.challenges import scopes as scopes_of
from sluicegate.oauth.urls import covers, openable, root, secure, split, well_known

_RESOURCE: Final = "oauth-protected-resource"
_SERVER: Final = "oauth-authorization-server"
_OPENID: Final = "openid-configuration"
# RFC 8414 2: what holds where the metadata does not say.
_DEFAULT_METHODS: Final = ("client_secret_basic",)


@dataclass(frozen=True, slots=True)
class ResourceMetadata:
    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """`authorize` is empty where nobody can be sent there. `scopes` is None where the metadata does not list them."""

    issuer: str
    token: str
    authorize: str = ""
    register: str = ""
    revoke: str = ""
    device: str = ""
    scopes: tuple[str, ...] | None = None
    methods: tuple[str, ...] = _DEFAULT_METHODS
    algorithms: tuple[str, ...] = ()
    has_s256: bool = False
    takes_documents: bool = False
    names_itself: bool = False  # RFC 9207: its answers have `iss`


def resource_urls(url: str, named: str) -> tuple[str, ...]:
    """Where the metadata of the server at `url` may be; `named` is what its challenge says. Raises `Unfit`."""
    if named:
        return (secure(named, "resource_metadata"),)
    found = (well_known(url, _RESOURCE), f"{root(url)}/.well-known/{_RESOURCE}")
    return tuple(dict.fromkeys(found))


def read_resource(document: dict[str, Any], url: str, *, checked: bool = True) -> ResourceMetadata:
    """Raises `Unfit` where the document is of another resource than the server at `url`."""
    resource = text_of(document, "resource")
    if checked and not covers(resource, url):
        raise Unfit("its metadata is of another resource than the configured URL")
    issuers = texts_of(document, "authorization_servers") or ()
    return ResourceMetadata(resource, issuers, scopes_of(" ".join(texts_of(document, "scopes_supported") or ())))


def server_urls(issuer: str) -> tuple[str, ...]:
    """In the order of 2026-07-28 basic/authorization/authorization-server-discovery. Raises `Unfit`."""
    secure(issuer, "issuer")
    if split(issuer).query:
        raise Unfit("its issuer has a query")
    urls = well_known(issuer, _SERVER), well_known(issuer, _OPENID), well_known(issuer, _OPENID, appended=True)
    return tuple(dict.fromkeys(urls))


def read_server(document: dict[str, Any], issuer: str, *, old: bool = False) -> AuthorizationServer:
    """Raises `Unfit`, also where the metadata is another issuer's (RFC 8414 3.3: identical as texts). `old`: the issuer
    is the origin of a server of 2025-03-26, which nobody has spelled out."""
    named = text_of(document, "issuer")
    if named != issuer and not (old and named == f"{issuer}/"):
        hint = "if only a slash at the end differs, login.issuer says which is right"
        raise Unfit(f"its metadata names another issuer; {hint}")
    authorize = text_of(document, "authorization_endpoint")
    methods = texts_of(document, "token_endpoint_auth_methods_supported")
    listed = texts_of(document, "scopes_supported")
    return AuthorizationServer(
        issuer=named, token=secure(text_of(document, "token_endpoint"), "token endpoint"),
        authorize=openable(authorize) if authorize else "", register=_optional(document, "registration_endpoint"),
        revoke=_optional(document, "revocation_endpoint"), device=_optional(document, "device_authorization_endpoint"),
        scopes=listed, methods=methods or _DEFAULT_METHODS,
        algorithms=texts_of(document, "token_endpoint_auth_signing_alg_values_supported") or (),
        has_s256="S256" in (texts_of(document, "code_challenge_methods_supported") or ()),
        takes_documents=document.get("client_id_metadata_document_supported") is True,
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )  # fmt: skip


def _optional(document: dict[str, Any], name: str) -> str:
    url = text_of(document, name)
    return secure(url, name.replace("_", " ")) if url else ""


def old_server(issuer: str) -> AuthorizationServer:
    """A server of 2025-03-26 without any metadata (basic/authorization#fallbacks-for-servers-without-metadata)."""
    return AuthorizationServer(
        issuer, f"{issuer}/token", openable(f"{issuer}/authorize"), f"{issuer}/register", has_s256=True
    )
