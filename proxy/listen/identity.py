"""Who sends this request: a key's name, anonymous where that is configured, or nobody.

Knows credentials and no rights: what a principal may do is decided elsewhere. A way in that is not configured
is closed. Keys are looked up by the SHA-256 of what was sent, so that the work is the same for every guess.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from proxy.listen.gate import is_loopback

_MAX_KNOWN: Final = 1024


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
        self._known: dict[bytes, tuple[Principal, float | None]] = {}
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
        found = self._known.get(authorization) or self._look_up(authorization)
        if found is None or (found[1] is not None and self._clock() >= found[1]):
            return None
        return found[0]

    def _look_up(self, authorization: bytes) -> tuple[Principal, float | None] | None:
        """Remembers what it finds, and nothing else: hashing a key anew for each of its calls costs 2 us."""
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        found = self._keys.get(sha256(token.strip()).hexdigest())
        if found is not None:
            if len(self._known) >= _MAX_KNOWN:  # the same key can be written in many ways
                self._known.clear()
            self._known[authorization] = found
        return found

    def current(self) -> frozenset[str]:
        """The names that can still come in."""
        now = self._clock()
        names = {p.name for p, expires in self._keys.values() if expires is None or now < expires}
        if self._anonymous is not None:
            names.add("anonymous")
        return frozenset(names)
