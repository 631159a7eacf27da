"""Whoever has a session and no right makes few and short records."""

from typing import Any

import httpx
import pytest
from admin_deps import admin_deps

from sluicegate.admin import AdminApplication
from sluicegate.console import CHANGES_A_MINUTE, PAGE_KEY, Console
from sluicegate.http.hosts import ServedNames
from sluicegate.protocol.model import Client

pytestmark = pytest.mark.anyio
HERE = "http://127.0.0.1:7411"


async def test_changes_of_a_session_are_recorded_by_their_beginning_and_so_many_a_minute() -> None:
    """A path of 16 KiB was searched for secrets in one step, and 600 changes a second were written."""
    noted: list[dict[str, Any]] = []

    async def note(fields: dict[str, Any]) -> bool:
        noted.append(fields)
        return True

    deps = admin_deps(client_of=lambda key: Client(f"key:{key}"), may=lambda who, area, act: False)
    admin = AdminApplication("operator-secret", deps)
    console = Console(admin, ServedNames(), note, lambda method, path: "")
    transport = httpx.ASGITransport(app=console, client=("127.0.0.1", 5))
    headers = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    async with httpx.AsyncClient(transport=transport, base_url=HERE, headers=headers) as page:

        async def log_in(key: str) -> dict[str, str]:
            answer = await page.post("/console/session", json={"key": key})
            page.cookies.update(answer.cookies)
            return {PAGE_KEY: answer.json()["page_key"]}

        ann = await log_in("ann")
        for number in range(CHANGES_A_MINUTE - 1):
            answer = await page.post(f"/api/v1/{'x' * 9_000}/{number}", json={}, headers=ann)
            assert answer.status_code == 405
        stepped_up = await page.post("/console/session/step-up", json={"key": "ann"}, headers=ann)
        assert stepped_up.status_code == 200
        ann = {PAGE_KEY: stepped_up.json()["page_key"]}
        for path in ("/api/v1/blocks", "/console/session/step-up"):
            answer = await page.post(path, json={"key": "ann"}, headers=ann)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
        assert (await page.get("/api/v1/me", headers=ann)).status_code == 200
        changes = [one for one in noted if one["act"] == "console_action"]
        assert len(changes) == CHANGES_A_MINUTE - 1 and all(len(one["object"]) == 200 for one in changes)
        bob = await log_in("bob")
        assert (await page.post("/api/v1/blocks", json={}, headers=bob)).status_code == 403
