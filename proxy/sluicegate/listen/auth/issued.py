"""Access tokens that Sluice itself gave to clients. Each is looked for every few seconds: a grant that has ended is no
way in, and sessions of it end, too."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import anyio

from sluicegate.listen.auth.principal import CredentialRefused, Principal

MAX_KNOWN: Final = 4096
MAX_PER_NAME: Final = 100
"""Tokens of one person that are remembered: a client that renews all the time takes nobody else's place."""
LOOK_EVERY: Final = 3.0


@dataclass(slots=True)
class _Seen:
    principal: Principal
    looked: float


class Issued:
    """`read` gives principal, roles, grant and end of a token that is good by itself; `lives` says whether its grant
    is there, and raises `OSError` where that cannot be said: then nobody gets in. `clock` is that of these ends."""

    def __init__(
        self, prefix: bytes, read: Callable[[str], tuple[str, tuple[str, ...], str, float] | None],
        lives: Callable[[str], Awaitable[bool]], clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.prefix, self._read, self._lives, self.clock = prefix, read, lives, clock
        self._seen: dict[str, _Seen] = {}
        self._of: dict[str, dict[str, _Seen]] = {}  # the same by name, as a sweep asks for each session

    def principal(self, digest: str) -> Principal | None:
        """Without waiting; None where `verify` may know more."""
        seen = self._seen.get(digest)
        if seen is None or not 0 <= self.clock() - seen.looked < 2 * LOOK_EVERY:
            return None
        return seen.principal

    async def verify(self, token: bytes, digest: str) -> Principal | CredentialRefused:
        found = self._read(token.decode("ascii", "replace"))
        if found is None:
            self._forget(digest)
            return CredentialRefused("credential")
        name, roles, grant, until = found
        try:
            lives = await self._lives(grant)
        except OSError:
            return CredentialRefused("unknown_grant")
        self._forget(digest)
        if not lives:
            return CredentialRefused("ended")
        principal = Principal(name, roles, expires=until, grant=grant)
        mine = self._of.get(name, {})
        if len(mine) >= MAX_PER_NAME:
            self._forget(next(iter(mine)))
        elif len(self._seen) >= MAX_KNOWN:
            self._forget(next(iter(self._seen)))
        self._seen[digest] = self._of.setdefault(name, {})[digest] = _Seen(principal, self.clock())
        return principal

    def _forget(self, digest: str) -> None:
        seen = self._seen.pop(digest, None)
        if seen is not None:
            mine = self._of[seen.principal.name]
            del mine[digest]
            if not mine:
                del self._of[seen.principal.name]

    async def run(self) -> None:
        while True:
            await anyio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Forgets the tokens whose grants have ended."""
        by_grant: dict[str, dict[str, _Seen]] = {}
        for digest, seen in tuple(self._seen.items()):
            if seen.principal.expires is not None and self.clock() >= seen.principal.expires:
                self._forget(digest)
            else:
                by_grant.setdefault(seen.principal.grant, {})[digest] = seen
        for grant, tokens in by_grant.items():
            try:
                lives = await self._lives(grant)
            except OSError:
                continue  # it is not known any more once it was not looked for in time
            for digest, seen in tokens.items():
                if lives:
                    seen.looked = self.clock()
                elif self._seen.get(digest) is seen:
                    self._forget(digest)

    def find(self, name: str, roles: Iterable[str] | None = None, grant: str = "") -> Principal | None:
        """Of those of a subject that are good, and have just these groups and this grant where some are said, the
        longest."""
        wanted = None if roles is None else frozenset(roles)
        good = (one for one in self._good(name, grant) if wanted is None or wanted == frozenset(one.roles))
        return max(good, key=lambda one: one.expires or 0, default=None)

    def knows(self, name: str, grant: str = "") -> bool:
        """Whether there is one, whatever its groups. A sweep asks so for each session."""
        return next(self._good(name, grant), None) is not None

    def _good(self, name: str, grant: str) -> Iterator[Principal]:
        """The newest comes first: most likely it is good."""
        for digest, seen in reversed(self._of.get(name, {}).items()):
            one = seen.principal
            if grant in ("", one.grant) and self.principal(digest) is not None:
                if one.expires is None or self.clock() < one.expires:
                    yield one

    def current(self) -> set[str]:
        return {name for name in self._of if self.knows(name)}
