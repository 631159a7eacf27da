"""A console session that ended at one replica, as the other meets it: its requests, its bodies and its streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from admin_deps import admin_deps
from starlette.types import ASGIApp, Receive, Scope, Send

from sluicegate import console as room
from sluicegate.admin import AdminApplication
from sluicegate.console import PAGE_KEY, Console
from sluicegate.http.hosts import ServedNames
from sluicegate.protocol.model import Client
from sluicegate.store.memory import MemoryStore

pytestmark = pytest.mark.anyio
HERE = "http://127.0.0.1:7411"
STREAM = "/api/v1/endless"


class CountingStore(MemoryStore):
    looks = 0

    async def scan(self, prefix: str) -> dict[str, bytes]:
        self.looks += 1
        return await super().scan(prefix)


class Replicas:
    """Two consoles on one store, each with a browser that has both halves of one session. `now` is their time."""

    def __init__(self, step_up: str) -> None:
        self.now, self.store, self.streams = 1_000.0, CountingStore(), anyio.Event()
        self.consoles = [self._console(step_up) for _ in range(2)]
        self.headers = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}

    def _console(self, step_up: str) -> Console:
        async def note(fields: dict[str, Any]) -> bool:
            return True

        deps = admin_deps(client_of=lambda key: Client(f"key:{key}"), may=lambda who, area, act: True)
        inner = self._with_stream(AdminApplication("operator-secret", deps))
        return Console(
            inner, ServedNames(), note, lambda method, path: step_up, clock=lambda: self.now, store=self.store
        )

    def _with_stream(self, admin: ASGIApp) -> ASGIApp:
        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == STREAM:
                self.streams.set()
                await anyio.sleep_forever()
            await admin(scope, receive, send)

        return inner

    async def asks(self, at: int, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.consoles[at], client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url=HERE, headers=self.headers) as page:
            return await page.request(method, path, **more)

    async def ends(self, at: int) -> None:
        assert (await self.asks(at, "DELETE", "/console/session")).status_code == 200


@asynccontextmanager
async def two(step_up: str = "") -> AsyncIterator[Replicas]:
    both = Replicas(step_up)
    begun = await both.asks(0, "POST", "/console/session", json={"key": "ann"})
    both.headers |= {PAGE_KEY: begun.json()["page_key"], "Cookie": begun.headers["set-cookie"].partition(";")[0]}
    for at in (0, 1):
        assert (await both.asks(at, "GET", "/api/v1/me")).status_code == 200
    yield both


@pytest.mark.parametrize("path", ["/api/v1/me", "/console/session"])
async def test_a_request_of_a_session_that_ended_at_the_other_replica_is_refused(path: str) -> None:
    async with two() as both:
        await both.ends(1)
        both.now += 1
        assert (await both.asks(0, "GET", path)).status_code == 401


async def test_a_session_that_ended_is_not_brought_back_where_its_use_is_written() -> None:
    async with two() as both:
        both.now += 59.5
        assert (await both.asks(0, "GET", "/api/v1/me")).status_code == 200
        await both.ends(1)
        both.now += 0.5  # the look is believed, and the use of a minute is written
        assert (await both.asks(0, "GET", "/api/v1/me")).status_code == 401
        assert not await both.store.scan("console/")


async def test_the_store_is_asked_for_a_session_once_a_second_and_not_while_it_has_a_problem() -> None:
    async with two() as both:
        both.now += 1
        both.store.looks = 0
        for _ in range(3):
            assert (await both.asks(0, "GET", "/api/v1/me")).status_code == 200
        assert both.store.looks == 1
        both.now, both.store.problem = both.now + 1, "it does not answer"
        assert (await both.asks(0, "GET", "/api/v1/me")).status_code == 200 and both.store.looks == 1


async def test_a_stream_of_a_session_that_ended_at_the_other_replica_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(room, "LOOK_ELSEWHERE_EVERY", 0.01)
    async with two() as both:

        async def stream() -> None:
            headers = [(name.lower().encode(), value.encode()) for name, value in both.headers.items()]
            scope = {
                "type": "http", "method": "GET", "path": STREAM, "raw_path": STREAM.encode(), "query_string": b"",
                "headers": [*headers, (b"host", b"127.0.0.1:7411")], "scheme": "http", "http_version": "1.1",
                "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 7411),
            }  # fmt: skip
            await both.consoles[0](scope, anyio.sleep_forever, lambda message: anyio.lowlevel.checkpoint())

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(stream)
                await both.streams.wait()
                await both.ends(1)
                both.now += 1


@pytest.mark.parametrize(
    ("path", "body"), [("/api/v1/pins", b'{"accept": "bank"}'), ("/console/session/step-up", b'{"key": "ann"}')]
)
async def test_a_held_body_does_nothing_in_a_session_that_ended_at_the_other_replica(path: str, body: bytes) -> None:
    async with two("many") as both:

        async def held() -> AsyncIterator[bytes]:
            yield body[:5]
            await both.ends(1)
            both.now += 1 if path.startswith("/api") else 0
            yield body[5:]

        more = {"Content-Type": "application/json"}
        answer = await both.asks(0, "POST", path, content=held(), headers=more)
        assert answer.status_code == 401 and not await both.store.scan("console/")
