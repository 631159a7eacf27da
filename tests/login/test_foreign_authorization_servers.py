"""Logins at programs of others: npm's `oidc-provider`, and servers on both official SDKs that want its tokens."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx
import pytest
from login_bench import BACK, Clock
from peers.fleet import peers as peers
from peers.login.authorities import Authority, Guarded, guarded_server, oidc_provider
from peers.login.browser import Browser

from sluicegate.app.login_service import opener
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.login.logins import Logins
from sluicegate.login.model import Bearer, LoginEvent, LoginInfo, LoginNeeded, LoginSettings
from sluicegate.store.memory import MemoryStore


@pytest.fixture(scope="module", params=["jwt", "opaque"])
def authority(
    peers: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Authority]:
    options: dict[str, Any] = {"binds_scopes": True, "access_life": 8} if request.param == "opaque" else {}
    with oidc_provider(tmp_path_factory.mktemp("oidc"), tokens=request.param, **options) as authority:
        yield authority


async def log_in(logins: Logins, challenge: list[str]) -> LoginInfo:
    flow = await logins.begin("srv", "local", BACK, challenge=challenge)
    with Browser(user="bob") as browser:
        back = await asyncio.to_thread(browser.stop_at, flow.url, BACK)
    return await logins.finish(httpx.URL(back).query.decode(), BACK)


async def call(guarded: Guarded, bearer: Bearer, tool: str) -> httpx.Response:
    """One message without a session: who is let in hears 400, who is not 401 or 403."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {"text": "x"}}}
    headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {bearer.token}"}
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(guarded.url, json=message, headers=headers)


@pytest.mark.parametrize("sdk", [1, 2])
async def test_a_login_a_step_up_a_renewal_and_a_logout(
    authority: Authority, tmp_path: Path, sdk: Literal[1, 2]
) -> None:
    events: list[LoginEvent] = []
    seal, fetcher = opener(tmp_path / "keys", "file"), Fetcher(Egress(["127.0.0.1", "localhost"]))
    clock = Clock(time.time)
    logins = Logins(MemoryStore(), seal, fetcher, events.append, clock)
    with anyio.fail_after(120), guarded_server(tmp_path, authority.issuer, sdk=sdk) as guarded:
        logins.configure({"srv": LoginSettings("srv", guarded.url, guarded.url)})
        info = await log_in(logins, [])
        assert info.issuer == authority.issuer and info.can_refresh and "mcp:read" in info.scopes
        first = await logins.bearer("srv", "local")
        assert (await call(guarded, first, "echo")).status_code == 400

        refused = await call(guarded, first, "write")
        challenge = refused.headers.get_list("www-authenticate")
        assert refused.status_code == 403
        with pytest.raises(LoginNeeded) as needed:
            await logins.rejected("srv", "local", first, 403, challenge)
        assert needed.value.scopes == ("mcp:write",)
        await log_in(logins, challenge)
        second = await logins.bearer("srv", "local")
        assert (await call(guarded, second, "write")).status_code == 400

        before = authority.counts()
        clock.added = 6  # the token is not young any more
        third = (await asyncio.gather(*(logins.rejected("srv", "local", second, 401, []) for _ in range(20))))[0]
        assert third.token != second.token and (await call(guarded, third, "write")).status_code == 400
        counted = authority.counts() - before
        assert counted["token.refresh_token"] == 1 and not counted["token.refresh_token.invalid_grant"]

        assert await logins.logout("srv", "local") is True
    assert [event.what for event in events] == [
        "login_asked", "login_done", "login_asked", "scopes_added", "refreshed", "logged_out",
    ]  # fmt: skip


async def test_a_login_on_another_device(authority: Authority, tmp_path: Path) -> None:
    seal, fetcher = opener(tmp_path / "keys", "file"), Fetcher(Egress(["127.0.0.1", "localhost"]))
    logins = Logins(MemoryStore(), seal, fetcher, lambda event: None)
    with anyio.fail_after(120), guarded_server(tmp_path, authority.issuer) as guarded:
        logins.configure({"srv": LoginSettings("srv", guarded.url, guarded.url)})
        flow = await logins.begin_device("srv", "local")

        def agree() -> str:
            with Browser() as browser:
                return browser.confirm_device(flow.complete).text

        assert "logged in" in await asyncio.to_thread(agree)
        info = await logins.finish_device(flow)
        assert info.issuer == authority.issuer and info.can_refresh
        assert (await call(guarded, await logins.bearer("srv", "local"), "echo")).status_code == 400
        assert await logins.logout("srv", "local") is True
