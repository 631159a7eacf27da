"""The section `clients` of the config file: who gets in over which way, and with which roles."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from sluicegate.config.names import KeyHash, KeyName, Roles, matching
from sluicegate.config.section import Section, written
from sluicegate.config.units import Moment, Timeout, sound
from sluicegate.deferred import deferred_pattern

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]

# A principal is `jwt:ISSUER#SUB`, so an issuer has no fragment. Plain HTTP is for this machine.
_ISSUER = deferred_pattern(r"https://[^\s/?#@\"\\]+(?:/[^\s?#\"\\]*)?")
_LOCAL = deferred_pattern(r"http://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?(?:/[^\s?#\"\\]*)?")
_SCOPE = deferred_pattern(r"[!#-\[\]-~]+")  # RFC 6749 3.3


def is_sure(url: str) -> bool:
    """Whether nobody on the way can change what comes from there."""
    return (_ISSUER.fullmatch(url) or _LOCAL.fullmatch(url)) is not None


def _is_key_set(value: str) -> bool:
    return value == "auto" or bool(_ISSUER.fullmatch(value.partition("?")[0]) or _LOCAL.fullmatch(value))


IssuerName = Annotated[
    str, sound(is_sure, "bad-issuer", "not an issuer; write it as it stands in tokens: https://login.example.com")
]
Scope = Annotated[
    str, matching(_SCOPE, "bad-scope", "a scope is one word of printable ASCII, without quotes and backslashes")
]


class LocalClient(Section):
    roles: Roles = ("role:owner",)
    """Roles of the client on stdin and stdout."""


class AnonymousClient(Section):
    roles: Roles = ()
    """Roles of HTTP clients that send no credential."""


class Key(Section):
    hash: KeyHash
    """sha256: and the hex SHA-256 of the key, as `sluice keys new` prints it."""
    roles: Roles = ()
    """Roles of whoever sends the key."""
    owner: str = ""
    """The person or team that answers for the key."""
    expires: Moment | None = None
    """From this moment on the key is refused; a date is its first second in UTC."""


class Issuer(Section):
    issuer: IssuerName
    """Whose tokens are taken: exactly as `iss` has it."""
    audience: Annotated[str, Field(min_length=1)]
    """What `aud` has to hold, exactly: the name of this Sluice at the issuer, best its `listen.public_url`."""
    admin_audience: str | None = None
    """The same for the admin port. Without it no token of this issuer is taken there."""
    jwks: Annotated[str, sound(_is_key_set, "bad-url", "write auto, or the https URL of the key set")] = "auto"
    """Where the issuer's keys are; auto asks its metadata (OAuth, then OpenID Connect)."""
    roles_from: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Claims whose values become `group:VALUE`; a.b is b inside of a, where there is no claim of that whole name."""
    algorithms: Annotated[
        tuple[Algorithm, ...], sound(bool, "wrong-value", "at least one, or no token is taken")
    ] = ("RS256", "ES256", "EdDSA")  # fmt: skip
    """Signatures that are taken. None of them is made with a secret."""
    typ: str | None = None
    """What the header `typ` has to be, such as at+jwt. Unless set: JWT, at+jwt, or nothing."""


class Jwt(Section):
    issuers: tuple[Issuer, ...] = ()
    """Whose tokens are taken."""
    scopes: tuple[Scope, ...] = ()
    """What a token's `scope` (or `scp`) has to hold, all of them, at both ports. Clients are told to ask for them."""


class ClientLogin(Section):
    """Clients log in by themselves: Sluice is their authorization server, in front of one OpenID Connect provider."""

    issuer: IssuerName
    """The provider's issuer. A person is jwt:ISSUER#SUBJECT, as with tokens of that issuer."""
    client_id: Annotated[str, Field(min_length=1)]
    """The client that is registered there, with the redirect URI BASE/oauth/callback of listen.public_url."""
    client_secret: SecretStr | None = None
    """Its secret, best as ${secret:NAME} or ${file:PATH}."""
    scopes: tuple[Scope, ...] = ("openid",)
    """What is asked for at the provider; openid has to be among them."""
    roles_from: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Claims of the ID token whose values become `group:VALUE`; a.b is b inside of a."""
    lasts: Timeout = written("7d")
    """After this time a person signs in again, whatever the client does."""


class Clients(Section):
    local: LocalClient = written({})
    """The client on stdin and stdout."""
    anonymous: AnonymousClient | None = None
    """HTTP clients without a credential: refused unless this section is there, and only on loopback."""
    keys: dict[KeyName, Key] = written({})
    """Clients that send `Authorization: Bearer KEY`."""
    jwt: Jwt = written({})
    """Clients that send a token of an OAuth authorization server."""
    login: ClientLogin | None = None
    """Clients that log in by themselves, where the identity provider knows none of them."""
