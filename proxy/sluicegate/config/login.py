"""The sections `login` and `servers.KEY.login` of the config file: how Sluice logs in to a server with OAuth."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, SecretStr

from sluicegate.config.clients import Scope, is_sure
from sluicegate.config.section import Section, written
from sluicegate.config.units import FilePath, Timeout, problem, sound
from sluicegate.deferred import deferred_pattern

_CALLBACK = deferred_pattern(r"http://127\.0\.0\.1:(\d{1,5})/[A-Za-z0-9/_-]*")
_PARAM = deferred_pattern(r"[A-Za-z0-9_.-]{1,64}")
_OURS = frozenset(
    {"response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge", "code_challenge_method",
     "resource", "request", "request_uri", "response_mode"}
)  # fmt: skip


def _is_callback(value: str) -> bool:
    found = _CALLBACK.fullmatch(value)
    return found is not None and 1024 <= int(found[1]) <= 65535


def _param(value: str) -> str:
    if not _PARAM.fullmatch(value) or value in _OURS:
        raise problem("bad-parameter", f"{value} is written by Sluice itself, or is no name of a parameter")
    return value


_NOT_SURE: Final = "write an https URL without query; plain http is for this machine alone"
Endpoint = Annotated[str, sound(is_sure, "bad-url", _NOT_SURE)]


class LoginEndpoints(Section):
    authorize: Endpoint | None = None
    """Where a person agrees."""
    token: Endpoint
    """Where tokens are issued."""
    revoke: Endpoint | None = None
    """Where tokens are revoked."""


class ServerLogin(Section):
    """How Sluice logs in to one server."""

    per: Literal["client", "owner", "gateway"] = "client"
    """Whose account is used: each principal's own, one for all keys of an `owner`, or one for all whom the policy lets
    in."""
    grant: Literal["code", "client_credentials"] = "code"
    """code: a person agrees in a browser. client_credentials: Sluice has an account of its own; `per` is gateway."""
    client_id: str | None = None
    """The client that is registered at the authorization server. Unless set, Sluice registers itself."""
    client_secret: SecretStr | None = None
    """Its secret, best as ${secret:NAME} or ${file:PATH}."""
    client_key: FilePath | None = None
    """A PEM file with its private key, in place of a secret."""
    auth: Literal["client_secret_basic", "client_secret_post", "none", "private_key_jwt"] | None = None
    """How the client proves itself at the token endpoint; found unless set."""
    issuer: Endpoint | None = None
    """The only authorization server that is taken; the first that the server names unless set."""
    endpoints: LoginEndpoints | None = None
    """The endpoints of an authorization server without metadata."""
    scopes: tuple[Scope, ...] | None = None
    """What is asked for at first; what the server says unless set."""
    max_scopes: tuple[Scope, ...] = ("*",)
    """Globs: a server that asks for other scopes does not get them."""
    resource: str | None = None
    """What tokens are for, as the server's metadata has it unless set; `omit` leaves the parameter out."""
    pkce: Literal["required", "assume"] = "required"
    """assume: the authorization server does not say that it supports PKCE with S256, and does."""
    list: Literal["known", "own"] = "known"
    """What a client without a login is shown. known: definitions that a person has accepted; a call of one asks for the
    login. own: what the server has listed to that client before."""
    params: dict[Annotated[str, AfterValidator(_param)], str] = written({})
    """Further parameters of the authorization request, such as access_type: offline."""


class IdentityProvider(Section):
    """Where people sign in whose clients show tokens of it, before they log in to servers on pages of Sluice."""

    issuer: Endpoint
    """Its issuer, as the tokens of clients have it."""
    client_id: str
    """The client that is registered there, with the redirect URI BASE/login/idp/callback of listen.public_url."""
    client_secret: SecretStr | None = None
    """Its secret, best as ${secret:NAME} or ${file:PATH}."""


class LoginSection(Section):
    """What all logins to servers have in common."""

    callback: Annotated[
        str, sound(_is_callback, "bad-url", "write http://127.0.0.1:PORT/PATH, with a port from 1024 on")
    ] = "http://127.0.0.1:7412/callback"
    """Where a browser on this machine returns to. Its port is open only while somebody logs in."""
    client_document: Annotated[str, sound(lambda value: not value or is_sure(value), "bad-url", _NOT_SURE)] = ""
    """URL of a client ID metadata document for this Sluice: its client id where an issuer takes such."""
    idp: IdentityProvider | None = None
    """Where people with tokens sign in on the login pages beside listen.public_url."""
    key: Literal["auto", "keyring", "file"] = "auto"
    """Where the key that seals logins is kept: in the operating system's keyring, or in a file of state.dir. auto: in
    the keyring where there was one at the first start, and from then on where it is."""
    key_page: bool = True
    """Whether people with a client key may type it into the login pages. It is compared as a hash and not kept."""
    legacy: Literal["ask", "error"] = "ask"
    """How a client of 2025-11-25 that opens pages learns of a login: by a question inside the call, or by error -32042.
    """
    within: Timeout = written("10m")
    """How long a login may take."""
