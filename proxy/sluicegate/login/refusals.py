"""What a server or an authorization server refused, and what that means for the login that is kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

import anyio

from sluicegate.login.model import EventWord, LoginFailed, LoginNeeded, LoginSettings, LoginUnavailable
from sluicegate.login.records import CLIENTS, LOGINS, Login, key_of
from sluicegate.login.scene import Scene, plainly
from sluicegate.oauth import scopes
from sluicegate.oauth.challenges import BearerChallenge
from sluicegate.oauth.tokens import TokenRefusal
from sluicegate.store import Write

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
        now, place = self._scene.clock(), (settings.server, login.whose)
        if not await self._is_its_issuer(settings, challenge, login):
            await self.end(login, "issuer_changed")
        is_over = login.expires_at is not None and login.expires_at <= now
        if 0 <= now - login.obtained < YOUNG and not is_over:
            quiet = now + QUIET
            await self._change(login, lambda one: replace(one, state="refused", quiet_until=quiet, problem=_REFUSED))
            self._scene.tell("refresh_failed", *place, login, reason="refused")
            raise refuses_all(settings)
        if not settings.is_machine and not login.refresh:
            await self._change(login, lambda one: replace(one, state="needed", problem=_ENDED["refused"]))
            raise LoginNeeded(*place)

    async def refresh_refused(self, settings: LoginSettings, login: Login, got: TokenRefusal, was_lost: bool) -> None:
        """Raises."""
        is_gone = got.error == "invalid_client" and login.client.source == "registered"
        if settings.is_machine or not (is_gone or got.error == "invalid_grant"):
            raise LoginUnavailable(f"the authorization server of {login.server} gives no token: {got.error}")
        if is_gone:
            await self._forget_client(login)
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

    async def _forget_client(self, login: Login) -> None:
        for key in await self._records.store.scan(f"{key_of(CLIENTS, login.at.issuer)}/"):
            raw, client = await self._records.client(key)
            if client is not None and client.id == login.client.id:
                await self._records.store.swap(key, raw, [Write(key)])

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
