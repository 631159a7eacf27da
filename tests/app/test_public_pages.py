"""Pages for people: what is done for requests of an address that sends too many, and who pays for it."""

import time
from typing import Any

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.app import public_pages
from sluicegate.app.public_pages import A_MINUTE, bounded
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.http.hosts import ServedNames
from sluicegate.runtime.loop_budget import client_budgets

ADDRESS = "192.0.2.1"


class Front:
    """Pages that answer with their body, in front of which one address has used up its rate. `parts` are the bodies
    that were read, `looked` the paths of requests that were looked at."""

    def __init__(self, busy: float = 0.0) -> None:
        self.looked, self.parts, self._busy = list[str](), list[bytes](), busy
        self._serve = bounded(self._app, ["/"], ForwardedHeaders(ServedNames()), "/free", _refuse, self._shown)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await Response(await Request(scope, receive).body())(scope, receive, send)

    async def _shown(self, request: Request) -> str:
        self.looked.append(request.scope["path"])
        until = time.perf_counter() + self._busy
        while time.perf_counter() < until:
            pass
        return "ann" if request.scope["path"] == "/form" and b"ours" in await request.body() else ""

    async def ask(self, path: str, *parts: bytes) -> tuple[int, bytes]:
        left, said = list(parts), list[Any]()
        size = b"%d" % sum(map(len, parts))
        scope = {
            "type": "http", "method": "POST", "path": path, "client": (ADDRESS, 1), "query_string": b"",
            "headers": [(b"content-length", size)],
        }  # fmt: skip

        async def receive() -> Any:
            self.parts.append(left.pop(0))
            return {"type": "http.request", "body": self.parts[-1], "more_body": bool(left)}

        async def send(event: Any) -> None:
            said.append(event)

        await self._serve(scope, receive, send)
        return said[0]["status"], b"".join(event.get("body", b"") for event in said)

    async def flood(self) -> "Front":
        for _ in range(A_MINUTE):
            assert (await self.ask("/other", b""))[0] == 200
        self.parts.clear()
        return self


def _refuse(status: int, words: str) -> Response:
    return Response(words, status)


async def test_beyond_its_rate_a_body_is_read_only_by_who_looks_into_it_and_only_once() -> None:
    front = await Front().flood()
    assert not front.looked
    assert (await front.ask("/other", b"x" * 60_000))[0] == 429 and not front.parts
    assert await front.ask("/form", b"it is ", b"ours") == (200, b"it is ours")
    assert front.parts == [b"it is ", b"ours"] and front.looked == ["/other", "/form"]


@pytest.mark.parametrize(("body", "status"), [(b"ours", 200), (b"theirs", 429)])
async def test_who_is_beyond_its_rate_waits_for_its_part_of_the_event_loop(body: bytes, status: int) -> None:
    front = await Front().flood()
    answers = list[tuple[int, bytes]]()

    async def ask() -> None:
        answers.append(await front.ask("/form", body))

    turn = client_budgets()[f"address {ADDRESS}"].turn
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            async with turn:
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert not front.looked and not front.parts
    assert [answer[0] for answer in answers] == [status]


async def test_few_requests_of_an_address_wait_for_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends requests and goes away would leave a task for each."""
    monkeypatch.setattr(public_pages, "_WAITING", 3)
    front, answers = await Front().flood(), list[int]()

    async def ask() -> None:
        answers.append((await front.ask("/form", b"ours"))[0])

    for _ in range(2):  # the second time all places are free again
        answers.clear()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                async with client_budgets()[f"address {ADDRESS}"].turn:
                    for _ in range(5):
                        group.start_soon(ask)
                    await anyio.wait_all_tasks_blocked()
                    assert answers == [429, 429] and not front.parts[5:]
        assert answers == [429, 429, 200, 200, 200]
        front.parts.clear()


async def test_who_is_refused_beyond_its_rate_pays_for_the_look() -> None:
    front = await Front(busy=0.02).flood()
    budget = client_budgets()[f"address {ADDRESS}"]
    assert budget.is_unused()
    assert (await front.ask("/form", b"theirs"))[0] == 429
    assert not budget.is_unused()
