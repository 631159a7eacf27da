"""What a client got from a person: a grant, the tokens of it, and how it ends.

An access token lasts for minutes, and is good only while its grant is there: each process looks for that every few
seconds. A refresh token is good once. Who shows an old one ends the grant, except just after it was used: the answer
may have been lost, and two windows of one client may ask at once (RFC 9700 4.14.2).
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Final

from sluicegate.oauth.issuing import AuthorizationRequest, proves
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import Store, Write
from sluicegate.store.keys import Sealer

CODE_LIFE: Final = 60.0
ACCESS_LIFE: Final = 600.0
GRACE: Final = 10.0
MAX_GRANTS: Final = 50  # of one person
ACCESS: Final = "slat_"
_REFRESH: Final = "slrt_"
_CODE: Final = "slac_"
_GRANTS: Final = "issuer-grant"
_LISTS: Final = "issuer-grants"
_CODES: Final = "issuer-code"
_REPLAYED: Final = "issuer-replayed"
_TWICE: Final = "the code was used before: its grant ended"
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Subject:
    """Who signed in: the principal, and the roles that the identity provider gives. `source` is a mark of the settings
    by which that was read."""

    principal: str
    roles: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    access: str
    refresh: str
    life: float
    subject: Subject
    grant: str


@dataclass(frozen=True, slots=True)
class _Grant:
    principal: str
    roles: tuple[str, ...]
    client: str
    until: float
    source: str
    generation: int = 0
    turned: float = 0.0

    @property
    def subject(self) -> Subject:
        return Subject(self.principal, self.roles, self.source)


class GrantEnded(Exception):
    """`invalid_grant`. The text is for the audit log."""


class NotOurs(GrantEnded):
    """Anybody can send it."""


class ClientGrants:
    """`resource` is what tokens are for: those of another Sluice, or for another URL, do not open. `source` is the mark
    of the settings in force: what a person got by other ones has ended, as its roles may be none any more."""

    def __init__(
        self, store: Store, sealer: Sealer, resource: str, lasts: Callable[[], float], source: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store, self._sealer, self._resource = store, sealer, resource
        self._lasts, self._source, self._clock = lasts, source, clock

    def code(self, request: AuthorizationRequest, subject: Subject) -> str:
        """What the client exchanges: for a minute, once, and only with the verifier that it has."""
        return _CODE + self._sealer.seal(_CODE, {
            "request": asdict(request), "principal": subject.principal, "roles": list(subject.roles),
            "source": subject.source, "id": secrets.token_hex(16), "until": self._clock() + CODE_LIFE,
        }, self._resource)  # fmt: skip

    async def redeem(self, code: str, client: str, redirect_uri: str, verifier: str) -> IssuedTokens:
        """Raises `GrantEnded`. A code that comes twice was stolen: its grant ends (RFC 6749 4.1.2)."""
        made = self._open(_CODE, code)
        request: Json = made["request"]
        if made["until"] <= self._clock():
            raise GrantEnded("the code is too old")
        if made["source"] != self._source():
            raise GrantEnded("the provider is another one now, or gives other roles")
        if (client, redirect_uri) != (request["client"], request["redirect_uri"]):
            raise GrantEnded("the code is another client's")
        if not proves(verifier, request["challenge"]):
            raise GrantEnded("the verifier is not that of the code")
        id = sha256(made["id"].encode()).hexdigest()[:32]
        if not await self._store.spend(f"{_CODES}/{made['id']}", 2 * CODE_LIFE):
            # Said first, for whoever was first may not have written the grant yet.
            await self._store.put(f"{_REPLAYED}/{id}", b"1", 2 * CODE_LIFE)
            await self._store.delete(f"{_GRANTS}/{id}")
            raise GrantEnded(_TWICE)
        now = self._clock()
        grant = _Grant(made["principal"], tuple(made["roles"]), client, now + self._lasts(), made["source"], turned=now)
        await self._add(id, grant)
        if await self._store.get(f"{_REPLAYED}/{id}") is not None:
            await self._store.delete(f"{_GRANTS}/{id}")
            raise GrantEnded(_TWICE)
        return self._tokens(id, grant)

    async def _add(self, id: str, grant: _Grant) -> None:
        """Beyond 50 of one person the oldest end."""
        key = f"{_LISTS}/{sha256(grant.principal.encode()).hexdigest()}"
        life = grant.until - self._clock()
        for _ in range(_ATTEMPTS):
            raw = await self._store.get(key)
            listed = self._unsealed(key, raw) or {}
            before: list[str] = listed.get("grants", [])
            gone, left = before[: max(0, len(before) - MAX_GRANTS + 1)], before[-(MAX_GRANTS - 1) :]
            there = f"{_GRANTS}/{id}"
            writes = [
                Write(key, self._sealed(key, {"grants": [*left, id]}), life),
                Write(there, self._sealed(there, asdict(grant)), life),
            ]
            if await self._store.swap(key, raw, [*writes, *(Write(f"{_GRANTS}/{one}") for one in gone)]):
                return
        raise GrantEnded("too many logins begin at once")

    async def refresh(self, token: str, client: str) -> IssuedTokens:
        """Raises `GrantEnded`."""
        made = self._open(_REFRESH, token)
        key, now = f"{_GRANTS}/{made['grant']}", self._clock()
        for _ in range(_ATTEMPTS):
            raw, grant = await self._read(key)
            if grant is None or not self._counts(grant):
                raise GrantEnded("the grant has ended")
            if grant.client != client:
                raise GrantEnded("the refresh token is another client's")
            if made["generation"] == grant.generation - 1 and now - grant.turned < GRACE:
                return self._tokens(made["grant"], grant)
            if made["generation"] != grant.generation:
                await self._store.delete(key)
                raise GrantEnded("the refresh token was used before: its grant ended")
            turned = replace(grant, generation=grant.generation + 1, turned=now)
            if await self._store.swap(key, raw, [Write(key, self._sealed(key, asdict(turned)), grant.until - now)]):
                return self._tokens(made["grant"], turned)
        raise GrantEnded("the grant changes too often")

    async def revoke(self, token: str, client: str) -> Subject | None:
        """RFC 7009 2.1: whose grant ended; None for a token of nobody or of another client."""
        for kind in (_REFRESH, ACCESS):
            if token.startswith(kind) and (made := self._sealer.unseal(kind, token[len(kind) :], self._resource)):
                key = f"{_GRANTS}/{made['grant']}"
                _, grant = await self._read(key)
                if grant is not None and grant.client == client:
                    await self._store.delete(key)
                    return grant.subject
        return None

    def shown(self, token: str) -> str:
        """Which grant or code a token is of that was made here; empty for any other."""
        for kind, name in ((_REFRESH, "grant"), (ACCESS, "grant"), (_CODE, "id")):
            if token.startswith(kind) and (made := self._sealer.unseal(kind, token[len(kind) :], self._resource)):
                return str(made[name])
        return ""

    def read(self, token: str) -> tuple[Subject, str, float] | None:
        """Whose access token it is, of which grant, and when it ends; None for what is no good one. Whether the grant
        is still there `lives` says."""
        made = self._sealer.unseal(ACCESS, token[len(ACCESS) :], self._resource) if token.startswith(ACCESS) else None
        if made is None or made["until"] <= self._clock():
            return None
        return Subject(made["principal"], tuple(made["roles"])), made["grant"], made["until"]

    async def lives(self, id: str) -> bool:
        """Raises `StoreFailed`."""
        _, grant = await self._read(f"{_GRANTS}/{id}")
        return grant is not None and self._counts(grant)

    def _counts(self, grant: _Grant) -> bool:
        return grant.until > self._clock() and grant.source == self._source()

    def _tokens(self, id: str, grant: _Grant) -> IssuedTokens:
        life = min(ACCESS_LIFE, grant.until - self._clock())
        made: Json = {
            "grant": id, "principal": grant.principal, "roles": list(grant.roles), "until": self._clock() + life
        }
        access = ACCESS + self._sealer.seal(ACCESS, made, self._resource)
        turn = {"grant": id, "generation": grant.generation}
        refresh = _REFRESH + self._sealer.seal(_REFRESH, turn, self._resource)
        return IssuedTokens(access, refresh, life, grant.subject, id)

    def _open(self, kind: str, token: str) -> Json:
        made = self._sealer.unseal(kind, token[len(kind) :], self._resource) if token.startswith(kind) else None
        if made is None:
            raise NotOurs("this was not made here")
        return made

    async def _read(self, key: str) -> tuple[bytes | None, _Grant | None]:
        """No grant is what does not open, or is of another version."""
        raw = await self._store.get(key)
        value = self._unsealed(key, raw)
        try:
            return raw, None if value is None else _Grant(**(value | {"roles": tuple(value["roles"])}))
        except (TypeError, KeyError):
            return raw, None

    def _sealed(self, key: str, value: Json) -> bytes:
        """For its own key: who can write into the store becomes nobody else by that."""
        return self._sealer.seal(key.partition("/")[0], value, key).encode("ascii")

    def _unsealed(self, key: str, raw: bytes | None) -> Json | None:
        return None if raw is None else self._sealer.unseal(key.partition("/")[0], raw.decode("ascii", "replace"), key)
