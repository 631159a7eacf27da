"""Which client Sluice is to an authorization server, and how it proves that (RFC 6749 2.3, RFC 7591, RFC 7523).

2026-07-28 basic/authorization/client-registration: a client id of the config, a metadata document, or registration.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal
from urllib.parse import quote_plus, urlencode

from sluicegate.oauth import Unfit, shown, text_of
from sluicegate.oauth.metadata import AuthorizationServer
from sluicegate.oauth.urls import LOOPBACK, split

Method = Literal["client_secret_basic", "client_secret_post", "none", "private_key_jwt"]
METHODS: Final[Mapping[str, Method]] = {
    "client_secret_basic": "client_secret_basic", "client_secret_post": "client_secret_post", "none": "none",
    "private_key_jwt": "private_key_jwt",
}  # fmt: skip
ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
DEVICE_CODE: Final = "urn:ietf:params:oauth:grant-type:device_code"
MAX_SECRET: Final = 4096

Form = dict[str, str]
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """`source` says how Sluice became it. `scopes` are those it was registered for, `until` is when its secret ends."""

    id: str
    method: Method
    source: Literal["config", "document", "registered"]
    secret: str = field(default="", repr=False)
    until: float | None = None
    scopes: tuple[str, ...] = ()


def method_of(server: AuthorizationServer, secret: str | None, key: str | None) -> Method:
    """How a client of the config proves itself, where the config does not say."""
    if key:
        return "private_key_jwt"
    if not secret:
        return "none"
    post_only = "client_secret_post" in server.methods and "client_secret_basic" not in server.methods
    return "client_secret_post" if post_only else "client_secret_basic"


def metadata(redirect_uri: str, method: Method, scopes: tuple[str, ...]) -> dict[str, Any]:
    """What a registration says of Sluice (RFC 7591 2; `application_type`: OpenID Connect Registration 2). Without a
    redirect URI it is a client of the device flow."""
    is_device = not redirect_uri
    made: dict[str, Any] = {
        "client_name": "Sluice",
        "redirect_uris": [] if is_device else [redirect_uri],
        "grant_types": [DEVICE_CODE if is_device else "authorization_code", "refresh_token"],
        "response_types": [] if is_device else ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native" if is_device or split(redirect_uri).hostname in LOOPBACK else "web",
    }
    return made | ({"scope": " ".join(scopes)} if scopes else {})


def registrable(server: AuthorizationServer) -> Method:
    """A secret that only one machine has says nothing: none is asked for where none is needed. A server that lists both
    ways with a secret takes it in the form: servers of MCP's Python SDK look for `client_id` there, also with Basic."""
    for method in ("none", "client_secret_post", "client_secret_basic"):
        if method in server.methods:
            return METHODS[method]
    raise Unfit("it wants a way of client authentication that a registered client cannot have")


def registered(document: dict[str, Any], asked: Method, scopes: tuple[str, ...]) -> OAuthClient:
    """The client that the answer to a registration describes: the answer counts, not what was asked. Raises `Unfit`."""
    id, secret = text_of(document, "client_id"), text_of(document, "client_secret", MAX_SECRET)
    if not id or not id.isprintable():
        raise Unfit("its registration has no client_id")
    named = text_of(document, "token_endpoint_auth_method")
    by_secret = METHODS["client_secret_basic"] if asked == "none" else asked
    method = METHODS.get(named) if named else by_secret if secret else METHODS["none"]
    if method is None or method == "private_key_jwt" or (method != "none" and not secret):
        raise Unfit(f"it registered a client for {shown(named)}, which Sluice cannot do")
    ends = document.get("client_secret_expires_at")
    until = float(ends) if isinstance(ends, int | float) and not isinstance(ends, bool) and 0 < ends < 1e12 else None
    return OAuthClient(id, method, "registered", secret, until, scopes)


def prove(client: OAuthClient, key: str | None, server: AuthorizationServer, now: float) -> tuple[Form, Headers]:
    """What a request to the token or revocation endpoint has so that it is this client's. Raises `Unfit`."""
    if client.method == "client_secret_basic":
        # RFC 6749 2.3.1: both parts are form-encoded before they are joined
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}".encode()
        return {}, [(b"authorization", b"Basic " + base64.b64encode(pair))]
    if client.method == "client_secret_post":
        return {"client_id": client.id, "client_secret": client.secret}, []
    if client.method == "none":
        return {"client_id": client.id}, []
    if not key:
        raise Unfit("the config has no client_key for private_key_jwt")
    # By name, and not before one is needed: PyJWT takes 2 MiB and 40 ms.
    sign = import_module("sluicegate.oauth.assertion").sign
    assertion = sign(client.id, key, server.issuer, server.algorithms, now)
    return {"client_id": client.id, "client_assertion_type": ASSERTION, "client_assertion": assertion}, []


def encode(form: Form) -> bytes:
    return urlencode(form).encode("ascii")
