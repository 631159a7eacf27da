"""Who sends this request: a key's name, anonymous where that is configured, or nobody.

Knows credentials and no rights: what a principal may do is decided elsewhere. A way in that is not configured
is closed. Keys are looked up by the SHA-256 of what was sent, so that the work is the same for every guess.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from proxy.listen.gate import is_loopback


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    roles: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """`digest` is the lower-case hex SHA-256 of the key; `expires` the second from which it is no longer good."""

    name: str
    digest: str
    roles: tuple[str, ...] = ()
    owner: str = ""
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """`anonymous` has the roles of who comes without a credential; None closes that way."""

    keys: tuple[Key, ...] = ()
    anonymous: tuple[str, ...] | None = None


class Identity:
    def __init__(self, settings: IdentitySettings, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.replace(settings)

    def replace(self, settings: IdentitySettings) -> None:
        """Other keys from now on; whoever is no longer known loses sessions and streams at the next sweep."""
        self._keys = {
            key.digest: (Principal(f"key:{key.name}", key.roles, key.owner), key.expires) for key in settings.keys
        }
        anonymous = settings.anonymous
        self._anonymous = None if anonymous is None else Principal("anonymous", anonymous)

    def identify(self, authorization: bytes | None, forwarded: bool, address: str | None) -> Principal | None:
        """`forwarded`: the request passed another proxy. `address`: that of the accepting socket."""
        if authorization is None:
            local = address is None or is_loopback(address)
            return self._anonymous if local and not forwarded else None
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        principal, expires = self._keys.get(sha256(token.strip()).hexdigest(), (None, None))
        if expires is not None and self._clock() >= expires:
            return None
        return principal

    def current(self) -> frozenset[str]:
        """The names that can still come in."""
        now = self._clock()
        names = {p.name for p, expires in self._keys.values() if expires is None or now < expires}
        if self._anonymous is not None:
            names.add("anonymous")
        return frozenset(names)
