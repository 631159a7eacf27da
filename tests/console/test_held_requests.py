"""A request that began in a session, and whose body comes once that session has ended or has other halves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from admin_deps import admin_deps

from sluicegate.admin import AdminApplication
from sluicegate.console import PAGE_KEY, Console
from sluicegate.http.hosts import ServedNames
from sluicegate.protocol.model import Client

pytestmark = pytest.mark.anyio
HERE = "http://127.0.0.1:7411"
TOKEN = "operator-secret"
STEP_UP = "/console/session/step-up"


@asynccontextmanager
async def page(
    step_up: str = "", acts: list[Any] | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str]]]:
    """A browser with a session that a link began, and the header with its page key."""

    async def note(fields: dict[str, Any]) -> bool:
        if acts is not None:
            acts.append(fields["act"])
        return True

    deps = admin_deps(client_of=lambda key: Client(f"key:{key}"), may=lambda who, area, act: True)
    console = Console(AdminApplication(TOKEN, deps), ServedNames(), note, lambda method, path: step_up)
    transport = httpx.ASGITransport(app=console, client=("127.0.0.1", 5))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
        code = (await client.post("/console/codes", headers=bearer)).json()["code"]
        client.headers = httpx.Headers({"Origin": HERE, "Sec-Fetch-Site": "same-origin"})
        begun = await client.post("/console/session", json={"code": code})
        client.cookies.update(begun.cookies)
        yield client, {PAGE_KEY: begun.json()["page_key"], "Content-Type": "application/json"}


@pytest.mark.parametrize("path", ["/console/session", "/console/sessions"])
async def test_a_held_step_up_brings_no_session_back_that_was_ended(path: str) -> None:
    async with page() as (client, halves):

        async def held() -> AsyncIterator[bytes]:
            yield b'{"name": '
            assert (await client.delete(path, headers=halves)).status_code == 200
            yield b'"bank"}'

        answer = await client.post(STEP_UP, content=held(), headers=halves)
        assert answer.status_code == 401 and "page_key" not in answer.json()


async def test_a_held_step_up_takes_no_session_over_that_has_new_halves() -> None:
    async with page() as (client, halves):
        new: dict[str, str] = {}

        async def held() -> AsyncIterator[bytes]:
            yield b'{"name": '
            stepped_up = await client.post(STEP_UP, json={"name": "bank"}, headers=halves)
            client.cookies.update(stepped_up.cookies)
            new[PAGE_KEY] = stepped_up.json()["page_key"]
            yield b'"bank"}'

        answer = await client.post(STEP_UP, content=held(), headers=halves)
        assert answer.status_code == 401 and "page_key" not in answer.json()
        assert (await client.get("/console/session", headers=new)).status_code == 200


async def test_a_held_action_is_none_of_a_session_that_was_ended() -> None:
    acts: list[Any] = []
    async with page("many", acts) as (client, halves):

        async def held() -> AsyncIterator[bytes]:
            yield b'{"accept": '
            assert (await client.delete("/console/session", headers=halves)).status_code == 200
            yield b'"bank"}'

        answer = await client.post("/api/v1/pins", content=held(), headers=halves)
        assert answer.status_code == 401 and acts[-1] == "console_logout"
