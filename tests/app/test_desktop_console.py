"""The console of a desktop client's Sluice, in this process: when its port opens and when it closes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from sluicegate import config
from sluicegate.app import desktop_admin
from sluicegate.app.admin_app import admin_application
from sluicegate.app.core import core
from sluicegate.app.desktop_admin import IDLE, DesktopConsole

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
OPERATOR = "operator-token"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def desktop(folder: Path, clock: Clock, **more: Any) -> AsyncIterator[DesktopConsole]:
    made = config.make({"policy": {"use": "personal"}, "servers": {}, "state": {"dir": str(folder / "state")},
                        "audit": {"path": str(folder / "audit.jsonl")}, **more}, folder)  # fmt: skip
    async with core(made, "stdio") as inner, anyio.create_task_group() as group:
        admin = admin_application(made, inner, inner.services.identities.operators, OPERATOR, lambda: False)
        console = DesktopConsole(made, admin, inner, clock)
        group.start_soon(console.run)
        await anyio.wait_all_tasks_blocked()
        yield console
        group.cancel_scope.cancel()


async def code(console: DesktopConsole) -> httpx.Response:
    transport = httpx.ASGITransport(app=console.make_code)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as ask:
        return await ask.post("/console/codes", headers={"Authorization": f"Bearer {OPERATOR}"})


async def is_open(url: str) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            return (await client.get(url)).status_code == 200
        except httpx.TransportError:
            return False


async def until_closed(url: str) -> None:
    with anyio.fail_after(10):
        while await is_open(url):  # noqa: ASYNC110 - the port is another task's
            await anyio.sleep(0.01)


async def test_the_port_is_open_while_a_person_uses_it_and_closes_when_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desktop_admin, "LOOK_EVERY", 0.01)
    clock = Clock()
    async with desktop(tmp_path, clock) as console, httpx.AsyncClient() as tab:
        made = (await code(console)).json()
        url = made["url"]
        assert await is_open(url) and (await code(console)).json()["url"] == url, "one port for all who ask"
        own = {"Origin": url.removesuffix("/console"), "Sec-Fetch-Site": "same-origin"}
        session = await tab.post(f"{url}/session", headers=own, json={"code": made["code"]})
        assert session.status_code == 200, session.text
        own["X-Sluice-Page"] = session.json()["page_key"]
        clock.now += IDLE - 1
        assert (await tab.get(f"{url}/session", headers=own)).status_code == 200, "a person does something"
        clock.now += IDLE - 1
        background = await tab.get(f"{url}/session", headers=own | {"X-Sluice-Background": "1"})
        assert background.status_code == 200 and await is_open(url), "neither of them is a person's"
        clock.now += 2
        assert url in (own_pages := console._inner.services.own_pages)
        await until_closed(url)
        assert url not in own_pages, "another program may listen there now"
        again = (await code(console)).json()["url"]
        assert await is_open(again)
        stale = own | {"Origin": again.removesuffix("/console")}
        assert (await tab.get(f"{again}/session", headers=stale)).status_code == 401, "its sessions ended with it"
    assert not await is_open(again)


async def test_a_console_that_is_off_opens_no_port(tmp_path: Path) -> None:
    async with desktop(tmp_path, Clock(), console={"enabled": False}) as console:
        answer = await code(console)
        assert answer.status_code == 404 and "console.enabled" in answer.json()["error"]
        assert console._port is None
