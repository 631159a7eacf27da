"""The way in: everything that other rooms ask of logins."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import anyio

from sluicegate.http.fetch import Fetcher, Unfetched
from sluicegate.login.flows import BEGIN_WITHIN, Flows
from sluicegate.login.model import (
    Bearer,
    CachedBearer,
    DeviceFlow,
    Flow,
    LoginEvent,
    LoginFailed,
    LoginInfo,
    LoginSettings,
    LoginUnavailable,
)
from sluicegate.login.network import unreached
from sluicegate.login.records import CLIENTS, LOGINS, Login, OpenSealer, key_of
from sluicegate.login.renewal import Renewal
from sluicegate.login.scene import MayLogIn, Scene, anybody, plainly
from sluicegate.oauth import shown
from sluicegate.oauth.tokens import (
    MAX_INTERVAL,
    SLOWER,
    TokenAnswer,
    TokenRefusal,
    by_device,
    device_request,
    read_device,
)
from sluicegate.protocol.model import Client
from sluicegate.store import TRIES, Store, Write, overtaken

LEAST: Final = 1.0
_GOES_ON: Final = {"authorization_pending": 0.0, "slow_down": SLOWER}


class DeviceFlows:
    """Logins with a browser on another device (RFC 8628). What waits is in memory: it ends with its process."""

    def __init__(self, scene: Scene, flows: Flows) -> None:
        self._scene, self._flows = scene, flows

    async def begin(self, settings: LoginSettings, whose: str) -> DeviceFlow:
        try:
            with anyio.fail_after(BEGIN_WITHIN), plainly(settings.server):
                return await self._begin(settings, whose)
        except TimeoutError:
            raise LoginUnavailable(f"{settings.server} and its authorization server answer too slowly") from None

    async def _begin(self, settings: LoginSettings, whose: str) -> DeviceFlow:
        ready = await self._flows.prepare(settings, whose, "", ())
        at, network = ready.found.at, self._scene.network
        form = device_request(ready.asked, ready.found.resource)
        try:
            answer = await network.form(settings, at.device, at, ready.client, form)
        except Unfetched as error:
            raise unreached(error, at.device) from None
        begun = read_device(answer.status, answer.body)
        if isinstance(begun, TokenRefusal):
            if begun.error == "invalid_client" and ready.client.source == "registered":
                await self._scene.records.store.delete(key_of(CLIENTS, at.issuer, ""))
            raise LoginFailed(f"its authorization server begins no device login: {shown(begun.error)}")
        login = ready.login(settings, whose)
        self._scene.tell(
            "login_asked", settings.server, whose, issuer=at.issuer, client_id=ready.client.id, scopes=ready.asked
        )
        ends = self._scene.clock() + min(begun.life, settings.within)
        return DeviceFlow(
            settings.server, whose, begun.uri, begun.complete, begun.user_code, ends, begun.code, begun.interval, login,
            ready.is_step,
        )  # fmt: skip

    async def finish(self, settings: LoginSettings, flow: DeviceFlow) -> LoginInfo:
        """Asks until the person has agreed. Raises `LoginFailed`."""
        login: Login = flow.login
        try:
            with plainly(flow.server):
                got = await self._polled(settings, flow, login)
                made = await self._flows.keep(login, got, flow.is_step)
        except (LoginFailed, LoginUnavailable) as error:
            self._scene.tell(
                "login_failed", flow.server, flow.whose, issuer=login.at.issuer, client_id=login.client.id,
                scopes=login.asked, reason=error.text,
            )  # fmt: skip
            raise LoginFailed(error.text) from None
        self._scene.tell("scopes_added" if flow.is_step else "login_done", flow.server, flow.whose, made)
        return made.info(settings, self._scene.clock())

    async def _polled(self, settings: LoginSettings, flow: DeviceFlow, login: Login) -> TokenAnswer:
        wait, form = max(LEAST, flow.interval), by_device(flow.code)
        while True:
            await anyio.sleep(min(wait, MAX_INTERVAL))
            if self._scene.clock() >= flow.expires:
                raise LoginFailed("nobody agreed in time")
            try:
                got = await self._scene.network.tokens(
                    settings, login.at, login.client, form, login.resource, again=False
                )
            except LoginUnavailable:
                wait *= 2  # RFC 8628 3.5
                continue
            if isinstance(got, TokenAnswer):
                return got
            if got.error not in _GOES_ON:
                raise LoginFailed(f"its authorization server gives no tokens: {shown(got.error)}")
            wait += _GOES_ON[got.error]


_NOWHERE = "https://server.invalid"  # where the config knows a server no more, no origin is the operator's


class Logins:
    def __init__(
        self, store: Store, seal: OpenSealer, fetcher: Fetcher, tell: Callable[[LoginEvent], None],
        clock: Callable[[], float] = time.time, may_log_in: MayLogIn = anybody,
    ) -> None:  # fmt: skip
        self._scene = Scene(store, seal, fetcher, tell, clock, may_log_in)
        self._records = self._scene.records
        self._flows = Flows(self._scene)
        self._devices = DeviceFlows(self._scene, self._flows)
        self._renewal = Renewal(self._scene)
        self.clock = self._scene.clock

    def configure(self, servers: Mapping[str, LoginSettings]) -> None:
        """Replaces the settings of all servers: at the start, and at a reload."""
        self._scene.servers = dict(servers)
        self._renewal.forget()

    def cached(self, server: str, whose: str) -> CachedBearer | None:
        """A token that may be sent now, by `clock`; None where `bearer` has to be asked. Waits for nothing."""
        return self._renewal.cached(server, whose)

    async def bearer(self, server: str, whose: str) -> Bearer:
        """Raises `LoginNeeded` and `LoginUnavailable`."""
        with plainly(server):
            return await self._renewal.bearer(self._scene.settings(server), whose)

    async def rejected(
        self, server: str, whose: str, used: Bearer | None, status: int, challenges: Sequence[str]
    ) -> Bearer:
        """What to send instead, once: the server answered 401, or 403 with insufficient_scope, to a request with `used`
        (None: without a token). Raises `LoginNeeded` and `LoginUnavailable`."""
        with plainly(server):
            return await self._renewal.rejected(self._scene.settings(server), whose, used, status, challenges)

    async def begin(
        self, server: str, whose: str, redirect_uri: str, *, challenge: Sequence[str] = (), browser: str = "",
        by: Client | None = None,
    ) -> Flow:  # fmt: skip
        """`browser` is a secret that only the browser or port has where the login goes on. `by` is who asks, and has to
        be allowed to until it has ended; None for whoever runs Sluice. Raises `LoginFailed` and `LoginUnavailable`."""
        settings = self._scene.settings(server)
        return await self._flows.begin(settings, whose, redirect_uri, tuple(challenge), browser, by)

    async def finish(self, query: str, redirect_uri: str, *, browser: str = "", whose: str | None = None) -> LoginInfo:
        """`query` is what the browser brought to `redirect_uri`. A login that began in another `browser`, or is not of
        `whose`, still waits afterwards. Raises `LoginFailed`."""
        info = await self._flows.finish(query, redirect_uri, browser, whose)
        self._renewal.forget((info.server, info.whose))
        return info

    def note_stranger(self, server: str, whose: str, reason: str) -> None:
        """Says that somebody could not begin a login: another one's link was opened."""
        self._scene.tell("login_failed", server, whose, reason=reason)

    async def wait(self, flow: Flow) -> LoginInfo | None:
        """Until the flow has ended, in whichever process; None where its time is over. Raises `LoginFailed` and
        `StoreFailed`."""
        return await self._flows.wait(flow)

    async def begin_device(self, server: str, whose: str) -> DeviceFlow:
        """For a person whose browser is elsewhere. Raises `LoginFailed` and `LoginUnavailable`."""
        return await self._devices.begin(self._scene.settings(server), whose)

    async def finish_device(self, flow: DeviceFlow) -> LoginInfo:
        """Once that person has agreed. Raises `LoginFailed`."""
        info = await self._devices.finish(self._scene.settings(flow.server), flow)
        self._renewal.forget((info.server, info.whose))
        return info

    async def logout(self, server: str, whose: str) -> bool | None:
        """True: revoked there; False: deleted here, the revocation failed or is not offered; None: there was none.
        Raises `StoreFailed`."""
        await self._renewal.finish((server, whose))
        key = key_of(LOGINS, server, whose)
        for _ in range(TRIES):
            raw, login = await self._records.login(server, whose)
            if raw is None:
                return None
            left = self._records.write_login(replace(login, state="leaving")) if login else Write(key)
            if await self._records.store.swap(key, raw, [left]):
                break
        else:
            raise overtaken("what is kept of this login")
        self._renewal.forget((server, whose))
        if login is None:
            return False
        is_revoked = await self._revoke(login)
        await self._records.store.swap(key, left.value, [Write(key)])  # unless there is a new login already
        self._scene.tell("logged_out", server, whose, login, reason="" if is_revoked else "not revoked")
        return is_revoked

    async def _revoke(self, login: Login) -> bool:
        settings = self._scene.servers.get(login.server) or LoginSettings(login.server, "", _NOWHERE)
        if not login.belongs_to(settings):  # what the config has now may belong to another authorization server
            settings = replace(settings, client_secret=None, client_key=None)
        return await self._scene.network.revoke(settings, login.at, login.client, login.access, login.refresh)

    async def all(self) -> list[LoginInfo]:
        """Raises `StoreFailed`."""
        found = await self._records.logins()
        self._renewal.compare(found)
        now, servers = self._scene.clock(), self._scene.servers
        return [
            self._info(login, servers.get(server), now)
            if login is not None and (login.server, login.whose) == (server, whose)
            else LoginInfo("", server, whose, "", "", (), None, "needed", 0, False)
            for server, whose, login in found
        ]

    def _info(self, login: Login, settings: LoginSettings | None, now: float) -> LoginInfo:
        info, problem = login.info(settings, now), self._renewal.problem(login.server, login.whose)
        return replace(info, problem=problem) if problem else info

    async def aclose(self) -> None:
        """Waits for tokens that are on their way: those of before are spent."""
        await self._renewal.finish()
