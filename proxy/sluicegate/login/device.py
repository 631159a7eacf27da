"""Logins of a person whose browser is on another device (RFC 8628). What waits is in memory: it ends with its process.
"""

from typing import Final

import anyio

from sluicegate.http.fetch import Unfetched
from sluicegate.login.flows import BEGIN_WITHIN, Flows
from sluicegate.login.model import DeviceFlow, LoginFailed, LoginInfo, LoginSettings, LoginUnavailable
from sluicegate.login.network import unreached
from sluicegate.login.records import CLIENTS, Login, key_of
from sluicegate.login.scene import Scene, plainly
from sluicegate.oauth import device, shown
from sluicegate.oauth.tokens import TokenAnswer, TokenRefusal

LEAST: Final = 1.0
_GOES_ON: Final = {"authorization_pending": 0.0, "slow_down": device.SLOWER}


class DeviceFlows:
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
        form = device.request(ready.asked, ready.found.resource)
        try:
            answer = await network.form(settings, at.device, at, ready.client, form)
        except Unfetched as error:
            raise unreached(error, at.device) from None
        told = device.read(answer.status, answer.body)
        if isinstance(told, TokenRefusal):
            if told.error == "invalid_client" and ready.client.source == "registered":
                await self._scene.records.store.delete(key_of(CLIENTS, at.issuer, ""))
            raise LoginFailed(f"its authorization server begins no device login: {shown(told.error)}")
        login = self._flows.login_of(settings, whose, ready)
        self._scene.tell(
            "login_asked", settings.server, whose, issuer=at.issuer, client_id=ready.client.id, scopes=ready.asked
        )
        ends = self._scene.clock() + min(told.life, settings.within)
        return DeviceFlow(
            settings.server, whose, told.uri, told.complete, told.user_code, ends, told.code, told.interval, login,
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
        wait, form = max(LEAST, flow.interval), device.by_device(flow.code)
        while True:
            await anyio.sleep(min(wait, device.MAX_INTERVAL))
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
