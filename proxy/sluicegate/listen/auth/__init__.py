"""Who sends this request: a key's name, the subject of a token, anonymous where that is configured, or nobody.

Knows credentials and no rights: what a principal may do is decided elsewhere. A way in that is not configured
is closed. Keys are looked up by the SHA-256 of what was sent, so that the work is the same for every guess; a token
is verified once and then looked up the same way.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from sluicegate.http.hosts import is_loopback
from sluicegate.listen.auth.issued import Issued
from sluicegate.listen.auth.issuers import KeySets
from sluicegate.listen.auth.principal import CredentialRefused, Principal, key_mark
from sluicegate.listen.auth.tokens import Tokens, TokenSettings
from sluicegate.protocol.model import holder

__all__ = ["ClientKey", "CredentialRefused", "Identity", "IdentitySettings", "Principal", "key_mark"]

_MAX_KNOWN: Final = 1024
_NOBODY: Final = CredentialRefused("none")
_UNKNOWN: Final = CredentialRefused("credential")
_EXPIRED: Final = CredentialRefused("expired")


@dataclass(frozen=True, slots=True)
class ClientKey:
    """`digest` is the lower-case hex SHA-256 of the key; `expires` the second from which it is no longer good."""

    name: str
    digest: str
    roles: tuple[str, ...] = ()
    owner: str = ""
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """`anonymous` has the roles of who comes without a credential; None closes that way."""

    keys: tuple[ClientKey, ...] = ()
    anonymous: tuple[str, ...] | None = None
    tokens: TokenSettings = field(default_factory=TokenSettings)
    issuer: str = ""
    """Sluice's own, where it gives tokens to clients."""


class Identity:
    """`keysets` are the public keys of token issuers; without them no token is taken."""

    def __init__(
        self, settings: IdentitySettings, clock: Callable[[], float] = time.time, keysets: KeySets | None = None
    ) -> None:
        self._clock = clock
        self._tokens = Tokens(keysets or KeySets(None), clock)
        self._issued: Issued | None = None
        self.replace(settings)

    async def run(self) -> None:
        """Looks whether grants are still there, as long as it is not cancelled."""
        if self._issued is not None:
            await self._issued.run()

    def take_issued(self, issued: Issued) -> None:
        """From now on tokens that Sluice itself gave are taken, too."""
        self._issued = issued

    def replace(self, settings: IdentitySettings) -> None:
        """Other credentials from now on; whoever is no longer known loses sessions and streams at the next sweep."""
        self._verified: dict[bytes, Principal] = {}
        self._keys = {
            key.digest: Principal(f"key:{key.name}", key.roles, key.owner, key.expires, key_mark(key.digest))
            for key in settings.keys
        }
        self._by_name = {principal.name: principal for principal in self._keys.values()}
        anonymous = settings.anonymous
        self._anonymous = None if anonymous is None else Principal("anonymous", anonymous)
        self._tokens.replace(settings.tokens)
        self.scopes = settings.tokens.scopes
        own = (settings.issuer,) if settings.issuer else ()
        self.issuers = tuple(dict.fromkeys((*own, *(one.issuer for one in settings.tokens.issuers))))

    def identify(self, authorization: bytes | None, forwarded: bool, address: str | None) -> Principal | None:
        """Without waiting; None where `verify` may know more. `forwarded`: the request passed another proxy.
        `address`: that of the accepting socket."""
        if authorization is None:
            local = address is None or is_loopback(address)
            return self._anonymous if local and not forwarded else None
        found = self._verified.get(authorization) or self._look_up(authorization)
        return None if found is None or self._is_over(found) else found

    def _is_over(self, found: Principal) -> bool:
        """A token of Sluice's own ends by the clock of who gave it, which need not be this machine's."""
        clock = self._issued.clock if found.grant and self._issued is not None else self._clock
        return found.expires is not None and clock() >= found.expires

    def _look_up(self, authorization: bytes) -> Principal | None:
        """Remembers the keys it finds, and nothing else: a key is not hashed anew for each of its calls."""
        token = _bearer(authorization)
        if token is None:
            return None
        digest = sha256(token).hexdigest()
        found = self._keys.get(digest)
        if found is None:
            return self._seen_token(token, digest)
        if len(self._verified) >= _MAX_KNOWN:  # the same key can be written in many ways
            self._verified.clear()
        self._verified[authorization] = found
        return found

    def _seen_token(self, token: bytes, digest: str) -> Principal | None:
        if self._issued is not None and token.startswith(self._issued.prefix):
            return self._issued.principal(digest)
        return self._tokens.verified(digest)

    def seen(self, authorization: bytes) -> Principal | None:
        """Whose credential that is, if somebody has come in with it before: guesses find no other."""
        found, token = self._verified.get(authorization), _bearer(authorization)
        if found is None and token is not None:
            found = self._seen_token(token, sha256(token).hexdigest())
        return None if found is None or self._is_over(found) else found

    async def verify(self, authorization: bytes | None) -> Principal | CredentialRefused:
        """Returns the principal of this credential, or why it is refused."""
        token = _bearer(authorization) if authorization is not None else None
        if token is None:
            return _NOBODY if authorization is None else _UNKNOWN
        digest = sha256(token).hexdigest()
        found_key = self._keys.get(digest)
        if found_key is not None:
            return found_key if found_key.expires is None or self._clock() < found_key.expires else _EXPIRED
        if self._issued is not None and token.startswith(self._issued.prefix):
            return await self._issued.verify(token, digest)
        return await self._tokens.verify(token, digest)

    def find(self, name: str, roles: Iterable[str] | None = None) -> Principal | None:
        """Returns the principal of that name of which a valid token was seen: with these groups, if they are said."""
        roles = None if roles is None else tuple(roles)
        return self._tokens.find(name, roles) or (self._issued.find(name, roles) if self._issued else None)

    def is_current(self, principal: Principal) -> bool:
        """Whether the credential with which it came in is still good, and gives what it gave."""
        if principal.name.startswith("jwt:"):
            found = self._same(principal, principal.roles)
            return principal.expires is not None and not self._is_over(principal) and found is not None
        now = self._anonymous if principal.name == "anonymous" else self._by_name.get(principal.name)
        return now == principal and (now.expires is None or self._clock() < now.expires)

    def is_known(self, principal: Principal) -> bool:
        """Whether it still gets in: with this key, whatever roles that gives now, or with a token of the same subject.
        Another key of the same name is somebody else's, and a grant that ended is not continued by another one."""
        if principal.grant:
            return self._issued is not None and self._issued.knows(principal.name, principal.grant)
        if principal.name.startswith("jwt:"):
            return self._tokens.find(principal.name) is not None
        now = self._anonymous if principal.name == "anonymous" else self._by_name.get(principal.name)
        is_same = now is not None and now.credential == principal.credential
        return is_same and now is not None and (now.expires is None or self._clock() < now.expires)

    def _same(self, principal: Principal, roles: Iterable[str]) -> Principal | None:
        if not principal.grant:
            return self._tokens.find(principal.name, roles)
        return self._issued.find(principal.name, roles, principal.grant) if self._issued else None

    def current(self) -> frozenset[str]:
        """The names of principals that still have a valid credential."""
        return frozenset(self._without_key().union(found.name for found in self._good_keys()))

    def holders(self) -> frozenset[str]:
        """Who holds these (see `holder`)."""
        return frozenset(self._without_key().union(holder(key.name, key.credential) for key in self._good_keys()))

    def _good_keys(self) -> list[Principal]:
        now = self._clock()
        return [key for key in self._keys.values() if key.expires is None or now < key.expires]

    def _without_key(self) -> set[str]:
        names = self._tokens.current() | (self._issued.current() if self._issued else set())
        return names if self._anonymous is None else names | {"anonymous"}


def _bearer(authorization: bytes) -> bytes | None:
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
