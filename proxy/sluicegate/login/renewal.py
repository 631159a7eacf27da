"""The token for the next request: from memory, from the store, or renewed by one process for all.

A refresh token that is rotated is good once. So one task of a process renews a login, and one process at a time: it
has the lease. Tokens are on disk before anybody gets them. Only `invalid_grant` ends a login; whatever else goes wrong
leaves it as it was.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

import anyio

from sluicegate.login.flows import with_tokens
from sluicegate.login.model import (
    Bearer,
    CachedBearer,
    EventWord,
    LoginFailed,
    LoginNeeded,
    LoginSettings,
    LoginUnavailable,
)
from sluicegate.login.records import CLIENTS, LEASES, LOGINS, Login, Records, is_soon, key_of
from sluicegate.login.scene import Scene, plainly
from sluicegate.oauth import challenges, clients, scopes, tokens
from sluicegate.oauth.challenges import BearerChallenge
from sluicegate.oauth.clients import OAuthClient
from sluicegate.oauth.tokens import TokenAnswer, TokenRefusal
from sluicegate.store import StoreFailed, Write

YOUNG: Final = 5.0
QUIET: Final = 60.0  # after a server refused a token that had just been made
STEPS, STEPS_IN = 2, 3600.0
_LOOK_WITHIN: Final = 4.0  # at metadata: a renewal that follows must have its time
_ATTEMPTS: Final = 20
_REFUSED: Final = "the server refuses every token"
_ENDED: Final = {
    "lost": "a new token was lost when Sluice ended, and the old one is spent",
    "invalid_grant": "the authorization server says that the login has ended",
    "issuer_changed": "the server names another authorization server",
    "refused": "the server refuses the token, and nothing renews it",
}


class Refusals:
    """What a server or an authorization server refused, and what that means for the login that is kept."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._records = scene, scene.records

    async def step_up(self, settings: LoginSettings, login: Login, challenge: BearerChallenge) -> None:
        """Remembers what is wanted. A person has to allow it: a refresh never gives more (RFC 6749 6). For a machine it
        returns, and the next token is asked for with that."""
        now = self._scene.clock()
        wanted = scopes.within(challenge.scopes, settings.max_scopes)
        if challenge.scopes and not wanted:
            raise LoginUnavailable(f"{settings.server} wants rights that max_scopes does not allow")
        steps = tuple(one for one in login.steps if 0 <= now - one < STEPS_IN)
        if len(steps) >= STEPS:
            raise refuses_all(settings)
        pending = scopes.union(login.asked, login.pending, wanted)
        if settings.is_machine:
            return await self._change(login, lambda one: replace(one, asked=pending, granted=(), steps=(*steps, now)))
        if pending != login.pending:
            await self._change(login, lambda one: replace(one, pending=pending))
        missing = (one for one in pending if one not in login.granted)
        further = tuple(one for one in missing if one in wanted or one not in login.asked)
        raise LoginNeeded(settings.server, login.whose, further or wanted)

    async def token_refused(self, settings: LoginSettings, challenge: BearerChallenge, login: Login) -> None:
        """The server refused the newest token. Raises where a refresh is of no use."""
        now, login_key = self._scene.clock(), (settings.server, login.whose)
        if not await self._is_its_issuer(settings, challenge, login):
            await self.end(login, "issuer_changed")
        is_over = login.expires_at is not None and login.expires_at <= now
        if 0 <= now - login.obtained < YOUNG and not is_over:
            quiet = now + QUIET
            await self._change(login, lambda one: replace(one, state="refused", quiet_until=quiet, problem=_REFUSED))
            self._scene.tell("refresh_failed", *login_key, login, reason="refused")
            raise refuses_all(settings)
        if not settings.is_machine and not login.refresh:
            await self._change(login, lambda one: replace(one, state="needed", problem=_ENDED["refused"]))
            raise LoginNeeded(*login_key)

    async def refresh_refused(self, settings: LoginSettings, login: Login, got: TokenRefusal, was_lost: bool) -> None:
        """Raises."""
        is_gone = got.error == "invalid_client" and login.client.source == "registered"
        if settings.is_machine or not (is_gone or got.error == "invalid_grant"):
            raise LoginUnavailable(f"the authorization server of {login.server} gives no token: {got.error}")
        if is_gone:
            for key in await self._records.store.scan(f"{key_of(CLIENTS, login.at.issuer)}/"):
                raw, client = await self._records.client(key)
                if client is not None and client.id == login.client.id:
                    await self._records.store.swap(key, raw, [Write(key)])
        await self.end(login, "lost" if was_lost else "invalid_grant")

    async def end(self, login: Login, why: Literal["lost", "invalid_grant", "issuer_changed"]) -> None:
        """A person has to log in again. Raises."""
        def ended(one: Login) -> Login:
            return replace(one, state="needed", access="", refresh="", expires_at=None, problem=_ENDED[why])

        await self._change(login, ended)
        what: EventWord = "issuer_changed" if why == "issuer_changed" else "refresh_failed"
        self._scene.tell(what, login.server, login.whose, login, reason=why)
        raise LoginNeeded(login.server, login.whose)

    async def _is_its_issuer(self, settings: LoginSettings, challenge: BearerChallenge, login: Login) -> bool:
        """Whether the server, which refused the token, still names who gave it (2026-07-28 basic/authorization: what
        one authorization server gave is shown to no other)."""
        if settings.issuer or settings.token:
            return True
        own = None
        try:
            with plainly(settings.server), anyio.move_on_after(_LOOK_WITHIN):
                own = await self._scene.discovery.resource(settings, challenge)
        except (LoginFailed, LoginUnavailable):
            return True
        return own is None or not own.issuers or login.at.issuer in own.issuers

    async def _change(self, login: Login, change: Callable[[Login], Login]) -> None:
        """Applies a change to the record while it is of the same login and generation."""
        key = key_of(LOGINS, login.server, login.whose)
        for _ in range(_ATTEMPTS):
            raw, now = await self._records.login(login.server, login.whose)
            if now is None or now.id != login.id or now.generation != login.generation or now.state == "leaving":
                return
            if await self._records.store.swap(key, raw, [self._records.write_login(change(now))]):
                return
        raise LoginUnavailable("what is kept of this login changes too often")


def refuses_all(settings: LoginSettings) -> LoginUnavailable:
    return LoginUnavailable(f"{settings.server} refuses every token")


LEASE: Final = 30.0
_POLL: Final = 0.1
_KEPT: Final = 90 * 86_400.0


@dataclass(frozen=True, slots=True)
class Lease:
    """`is_stale`: it was taken over from a process that never gave it back."""

    key: str
    raw: bytes
    is_stale: bool


class Leases:
    """The right to renew one login, held by one process at a time. Time ends it, because a process may die."""

    def __init__(self, records: Records, clock: Callable[[], float]) -> None:
        self._records, self._clock = records, clock

    async def take(self, server: str, whose: str, look: Callable[[], Awaitable[Bearer | None]]) -> Lease | Bearer:
        """The lease, or what `look` finds while it is waited for. Raises `TimeoutError`."""
        key = key_of(LEASES, server, whose)
        with anyio.fail_after(LEASE + 5):
            while True:
                held, payload = await self._records.read(key)
                at, now = (payload or {}).get("at"), self._clock()
                if held is None or not isinstance(at, int | float) or not 0 <= now - at < LEASE:
                    mine = self._records.write(key, {"at": now, "by": secrets.token_hex(8)}, _KEPT)
                    if await self._records.store.swap(key, held, [mine]):
                        return Lease(key, mine.value or b"", held is not None)
                await anyio.sleep(_POLL)
                if (found := await look()) is not None:
                    return found

    async def give_back(self, lease: Lease) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5.0), suppress(StoreFailed):
            await self._records.store.swap(lease.key, lease.raw, [Write(lease.key)])


CHECK_EVERY: Final = 4.0
"""Seconds after which a token that is fresh is looked for in the store again: another process may have logged out."""
RENEW_WITHIN: Final = 28.0
KEEP_WITHIN: Final = 5.0
PAUSE: Final = 10.0  # after an authorization server could not be asked
_MAX_PLACES: Final = 10_000

Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Unkept:
    """New tokens that could not be written: those of before are spent, so they are not asked for again."""

    before: Login
    got: TokenAnswer


class Renewal:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._records = scene, scene.records
        self._refusals, self._leases = Refusals(scene), Leases(scene.records, scene.clock)
        self._cached: dict[Place, CachedBearer] = {}
        self._unkept: dict[Place, _Unkept] = {}
        self._tasks: dict[Place, asyncio.Task[Bearer]] = {}
        self._quiet: dict[Place, tuple[float, LoginUnavailable]] = {}
        self._problems: dict[Place, str] = {}

    def forget(self, login_key: Place | None = None) -> None:
        """What is only remembered; it is in the store, too."""
        for one in (login_key,) if login_key is not None else tuple(self._cached):
            self._drop(one)
        for by_key in (self._quiet, self._problems):
            if login_key is None:
                by_key.clear()
            else:
                by_key.pop(login_key, None)

    def _drop(self, login_key: Place) -> None:
        if (held := self._cached.pop(login_key, None)) is not None:
            held.until = 0.0

    def compare(self, found: Collection[tuple[str, str, Login | None]]) -> None:
        """Forgets each token that is not of the login that the store has: another process may have written it."""
        ids = {(server, whose): login.id for server, whose, login in found if login is not None}
        for login_key, held in tuple(self._cached.items()):
            if ids.get(login_key) != held.bearer.login:
                self._drop(login_key)

    def problem(self, server: str, whose: str) -> str:
        """Why this process could not renew a login when it last tried. No record is written for that: the login is as
        it was."""
        return self._problems.get((server, whose), "")

    async def finish(self, login_key: Place | None = None) -> None:
        """Waits for what is under way."""
        tasks = [task for one, task in self._tasks.items() if login_key in (None, one)]
        await asyncio.gather(*tasks, return_exceptions=True)

    def cached(self, server: str, whose: str) -> CachedBearer | None:
        held = self._cached.get((server, whose))
        return held if held is not None and held.since <= self._scene.clock() < held.until else None

    async def bearer(self, settings: LoginSettings, whose: str) -> Bearer:
        held = self.cached(settings.server, whose)
        if held is not None:
            return held.bearer
        _, login = await self._records.login(settings.server, whose)
        if (bearer := self._usable(settings, whose, login)) is not None:
            return bearer
        try:
            return await self._renewed(settings, whose, None, None)
        except LoginUnavailable:
            if login is None or login.state != "ok" or not login.belongs_to(settings):
                raise
            if login.expires_at is None or login.expires_at <= self._scene.clock():
                raise
            return self._adopt(settings, login)  # it is old, but good

    async def rejected(
        self, settings: LoginSettings, whose: str, used: Bearer | None, status: int, headers: Sequence[str]
    ) -> Bearer:
        self._drop((settings.server, whose))
        _, login = await self._records.login(settings.server, whose)
        if used is None or login is None or _is_newer(login, used) or not login.belongs_to(settings):
            return await self.bearer(settings, whose)
        challenge = challenges.read(headers) or BearerChallenge()
        if status != 403 or login.state in ("needed", "leaving"):
            return await self._renewed(settings, whose, used, challenge)
        if not challenge.wants_scopes:
            raise LoginUnavailable(f"{settings.server} refuses this, and does not say which right it wants")
        await self._refusals.step_up(settings, login, challenge)
        return await self._renewed(settings, whose, used, None)

    def _usable(self, settings: LoginSettings, whose: str, login: Login | None) -> Bearer | None:
        """What is kept, if it can be sent as it is; None where it has to be renewed, which then is possible. Raises
        `LoginNeeded` and `LoginUnavailable`."""
        now, login_key = self._scene.clock(), (settings.server, whose)
        if login is None or not login.belongs_to(settings) or login.state in ("leaving", "needed"):
            self.forget(login_key)
            if settings.is_machine:
                return None
            raise LoginNeeded(*login_key)
        if login.state == "refused" and is_soon(login.quiet_until, now, QUIET):
            raise refuses_all(settings)
        bearer = self._adopt(settings, login)
        if now < bearer.fresh_until:
            return bearer
        self._drop(login_key)
        if not settings.is_machine and not login.refresh:
            raise LoginNeeded(*login_key)
        return None

    def _newer(self, settings: LoginSettings, whose: str, login: Login | None, used: Bearer | None) -> Bearer | None:
        """What the store has instead of `used`, or at all, if it can be sent. Raises what `_usable` does."""
        bearer = self._usable(settings, whose, login)
        if bearer is None or login is None or used is None or _is_newer(login, used):
            return bearer
        self._drop((settings.server, whose))
        return None

    def _adopt(self, settings: LoginSettings, login: Login) -> Bearer:
        now, can_renew = self._scene.clock(), bool(login.refresh) or settings.is_machine
        fresh = tokens.fresh_until(login.expires_at, login.life, random.random())
        if not can_renew and login.expires_at is not None:
            fresh = login.expires_at
        bearer = Bearer(login.access, login.id, login.generation, login.at.issuer, login.identity, fresh)
        if len(self._cached) >= _MAX_PLACES:
            self.forget()
        login_key = settings.server, login.whose
        self._drop(login_key)
        self._cached[login_key] = CachedBearer(bearer, now, min(fresh, now + CHECK_EVERY))
        return bearer

    async def _renewed(
        self, settings: LoginSettings, whose: str, used: Bearer | None, challenge: BearerChallenge | None
    ) -> Bearer:
        """One task a login: whoever wants a newer token waits for it, and does not end it by going away. `challenge` is
        set where the server refused `used`."""
        login_key = settings.server, whose
        while True:
            until, error = self._quiet.get(login_key, (0.0, None))
            if error is not None and is_soon(until, self._scene.clock(), PAUSE):
                raise LoginUnavailable(error.text, error.host)
            task = self._tasks.get(login_key)
            if task is None:
                task = asyncio.create_task(self._renew(settings, whose, used, challenge))
                self._tasks[login_key] = task
                task.add_done_callback(lambda done: self._done(login_key, done))
            bearer = await asyncio.shield(task)
            if used is None or bearer.login != used.login or bearer.generation > used.generation:
                return bearer

    def _done(self, login_key: Place, task: asyncio.Task[Bearer]) -> None:
        self._tasks.pop(login_key, None)
        self._problems.pop(login_key, None)
        if not task.cancelled() and isinstance(error := task.exception(), LoginUnavailable):
            self._quiet[login_key] = self._scene.clock() + PAUSE, error
            self._problems[login_key] = error.text

    async def _renew(
        self, settings: LoginSettings, whose: str, used: Bearer | None, challenge: BearerChallenge | None
    ) -> Bearer:
        async def look() -> Bearer | None:
            _, login = await self._records.login(settings.server, whose)
            return self._newer(settings, whose, login, used)

        try:
            with plainly(settings.server):
                lease = await self._leases.take(settings.server, whose, look)
                if isinstance(lease, Bearer):
                    return lease
                try:
                    with anyio.fail_after(RENEW_WITHIN):
                        return await self._with_lease(settings, whose, used, challenge, lease)
                finally:
                    await self._leases.give_back(lease)
        except TimeoutError:
            raise LoginUnavailable(f"the login at {settings.server} is not renewed in time") from None
        except LoginFailed as error:
            raise LoginUnavailable(error.text) from None
        except LoginUnavailable as error:
            if error.host:
                self._scene.tell("refresh_failed", settings.server, whose, reason="unavailable")
            raise

    async def _with_lease(
        self, settings: LoginSettings, whose: str, used: Bearer | None, challenge: BearerChallenge | None, lease: Lease
    ) -> Bearer:
        _, login = await self._records.login(settings.server, whose)  # once more: it may have changed before the lease
        if (newer := self._newer(settings, whose, login, used)) is not None:
            return newer
        if login is None or not login.belongs_to(settings) or login.state in ("needed", "leaving"):
            login = await _machine(self._scene, settings, whose)  # a person's is not usable: that was raised
        elif challenge is not None:
            await self._refusals.token_refused(settings, challenge, login)
        unkept = self._unkept.pop((settings.server, whose), None)
        if unkept is not None and (unkept.before.id, unkept.before.generation) == (login.id, login.generation):
            return self._adopt(settings, await self._keep(settings, login, unkept.got, lease))
        by_refresh = {"grant_type": "refresh_token", "refresh_token": login.refresh}
        form = tokens.by_client(login.asked) if settings.is_machine else by_refresh
        got = await self._scene.network.tokens(settings, login.at, login.client, form, login.resource, again=True)
        if isinstance(got, TokenAnswer):
            return self._adopt(settings, await self._keep(settings, login, got, lease))
        _, now = await self._records.login(settings.server, whose)
        if now is None or (now.id, now.generation) == (login.id, login.generation):
            await self._refusals.refresh_refused(settings, login, got, lease.is_stale)
        if (bearer := self._usable(settings, whose, now)) is not None:
            return bearer
        raise LoginUnavailable(f"the login at {settings.server} changed while it was renewed")

    async def _keep(self, settings: LoginSettings, before: Login, got: TokenAnswer, lease: Lease) -> Login:
        """On disk first. Where the login went away meanwhile, its new tokens must not outlive it."""
        login_key = before.server, before.whose
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(KEEP_WITHIN) as scope:
                if (made := await self._written(before, got, lease)) is not None:
                    self._scene.tell("refreshed" if before.generation else "login_done", *login_key, made)
                    return made
            if scope.cancelled_caught:
                self._unkept[login_key] = _Unkept(before, got)
                raise LoginUnavailable("what is kept of logins cannot be written")
            _, now = await self._records.login(*login_key)
            if now is not None and now.state == "ok":
                return now  # a person has logged in meanwhile
            await self._scene.network.revoke(settings, before.at, before.client, got.access, got.refresh)
        raise LoginNeeded(*login_key)

    async def _written(self, before: Login, got: TokenAnswer, lease: Lease) -> Login | None:
        """The record with the new tokens; None where it is not that of `before` any more."""
        while True:
            try:
                raw, now = await self._records.login(before.server, before.whose)
                is_its = now is not None and now.id == before.id and now.state != "leaving"
                if before.generation and not is_its:
                    return None
                base = now if now is not None and is_its else before
                generation = (now.generation if now is not None else 0) + 1
                made = replace(with_tokens(base, got, self._scene.clock()), generation=generation, pending=base.pending)
                key = key_of(LOGINS, before.server, before.whose)
                if await self._records.store.swap(key, raw, [self._records.write_login(made), Write(lease.key)]):
                    return made
            except StoreFailed:
                await anyio.sleep(0.5)


async def _machine(scene: Scene, settings: LoginSettings, whose: str) -> Login:
    """The first login of a server whose account is Sluice's own."""
    if settings.client_id is None:
        raise LoginFailed(f"servers.{settings.server}.login has no client_id")
    challenge = await scene.discovery.provoke(settings)
    found = await scene.find(settings, whose, challenge)
    challenged = challenge.scopes if challenge else ()
    asked = scopes.first(settings.scopes, challenged, found.scopes, (), settings.max_scopes)
    method = settings.auth or clients.method_of(found.at, settings.client_secret, settings.client_key)
    client = OAuthClient(settings.client_id, method, "config")
    return Login(f"lgn_{secrets.token_urlsafe(12)}", settings.server, whose, settings.identity, settings.chosen,
                 found.resource, found.at, client, asked)  # fmt: skip


def _is_newer(login: Login, used: Bearer) -> bool:
    return login.id != used.login or login.generation > used.generation
