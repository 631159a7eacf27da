"""Access tokens that Sluice itself gave to clients. Each is looked for every few seconds: a grant that has ended is no
way in, and sessions of it end, too."""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import anyio

from sluicegate.listen.auth.principal import CredentialRefused, Principal

MAX_KNOWN: Final = 4096
LOOK_EVERY: Final = 3.0


@dataclass(slots=True)
class _Seen:
    principal: Principal
    grant: str
    looked: float


class Issued:
    """`read` gives principal, roles, grant and end of a token that is good by itself; `lives` says whether its grant
    is there, and raises `OSError` where that cannot be said: then nobody gets in."""

    def __init__(
        self, prefix: bytes, read: Callable[[str], tuple[str, tuple[str, ...], str, float] | None],
        lives: Callable[[str], Awaitable[bool]], clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.prefix, self._read, self._lives, self._clock = prefix, read, lives, clock
        self._seen: dict[str, _Seen] = {}

    def known(self, digest: str) -> Principal | None:
        """Without waiting; None where `verify` may know more."""
        seen = self._seen.get(digest)
        if seen is None or not 0 <= self._clock() - seen.looked < 2 * LOOK_EVERY:
            return None
        return seen.principal

    async def verify(self, token: bytes, digest: str) -> Principal | CredentialRefused:
        found = self._read(token.decode("ascii", "replace"))
        if found is None:
            self._seen.pop(digest, None)
            return CredentialRefused("credential")
        name, roles, grant, until = found
        try:
            lives = await self._lives(grant)
        except OSError:
            return CredentialRefused("unknown_grant")
        if not lives:
            self._seen.pop(digest, None)
            return CredentialRefused("ended")
        if len(self._seen) >= MAX_KNOWN:
            self._seen.pop(next(iter(self._seen)))
        principal = Principal(name, roles, expires=until)
        self._seen[digest] = _Seen(principal, grant, self._clock())
        return principal

    async def run(self) -> None:
        while True:
            await anyio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Forgets the tokens whose grants have ended."""
        for digest, seen in tuple(self._seen.items()):
            if seen.principal.expires is not None and self._clock() >= seen.principal.expires:
                self._seen.pop(digest, None)
                continue
            try:
                if await self._lives(seen.grant):
                    seen.looked = self._clock()
                else:
                    self._seen.pop(digest, None)
            except OSError:
                continue  # it is not known any more once it was not looked for in time

    def find(self, name: str, roles: Iterable[str] | None = None) -> Principal | None:
        """Of those of a subject that are good, and have just these groups where some are said, the longest."""
        wanted = None if roles is None else frozenset(roles)
        good = [
            seen.principal for digest, seen in self._seen.items()
            if seen.principal.name == name and self.known(digest) is not None
            and wanted in (None, frozenset(seen.principal.roles))
            and (seen.principal.expires is None or self._clock() < seen.principal.expires)
        ]  # fmt: skip
        return max(good, key=lambda one: one.expires or 0, default=None)

    def current(self) -> set[str]:
        return {seen.principal.name for seen in self._seen.values() if self.find(seen.principal.name) is not None}
