"""A worker that stands still is not one that ended: it may yet do what it was asked, and has what nobody else knows."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from sluicegate.admin.gateway import Gateway
from sluicegate.admin.peers import Peer, front
from sluicegate.admin.response import json_response
from sluicegate.admin.routes import API
from sluicegate.http.hosts import ServedNames
from sluicegate.listen.asgi import asgi
from sluicegate.listen.server import on_unix_socket

pytestmark = pytest.mark.anyio
ANSWERS = {
    API + "servers/echo/disable": (200, {"server": "echo", "action": "disable", "open_calls": 2}),
    API + "servers": (200, {"servers": [{"key": "echo", "status": "up"}]}),
    API + "events": (200, {}),
    API + "me": (200, {"principal": "key:one", "rights": {}}),
    API + "approvals/apr_1": (404, {"error": "no such approval"}),
    "/readyz": (200, {"status": "ready", "reasons": []}),
    API + "status": (200, {"status": "ready", "reasons": [], "notes": []}),
}


async def worker(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["method"] == "POST":
        await Request(scope, receive).body()
    status, body = ANSWERS[scope["path"]]
    await json_response(status, body)(scope, receive, send)


async def nothing() -> None:
    return


async def unkept(fields: object) -> bool:
    return False


@asynccontextmanager
async def two(folder: Path, silent: int) -> AsyncIterator[httpx.AsyncClient]:
    """The admin port of two workers, of which one takes connections and never answers."""
    there = [Peer(number, number, str(folder / f"{number}.asked"), 0.2) for number in range(2)]
    with socket.socket(socket.AF_UNIX) as stands_still:
        stands_still.bind(there[silent].address)
        stands_still.listen(100)
        async with on_unix_socket(asgi(front(worker, nothing, unkept)), there[1 - silent].address):
            gateway = Gateway(lambda: there, list, lambda principal: silent, ServedNames())
            transport = httpx.ASGITransport(gateway, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7411") as http:
                yield http


@pytest.mark.parametrize("silent", [0, 1])
async def test_a_change_that_one_worker_has_not_answered_is_not_told_as_done(
    silent: int, tmp_path: Path
) -> None:
    async with two(tmp_path, silent) as http:
        answer = await http.post(API + "servers/echo/disable", json={})
        assert answer.status_code == 503, answer.text
        assert f"worker {silent + 1} does not answer" in answer.json()["error"]


@pytest.mark.parametrize("silent", [0, 1])
async def test_what_a_worker_that_does_not_answer_has_is_told_to_be_missing(
    silent: int, tmp_path: Path
) -> None:
    words = f"worker {silent + 1} does not answer"
    async with two(tmp_path, silent) as http:
        listed = await http.get(API + "servers")
        assert listed.status_code == 200 and words in listed.json()["incomplete"][0]
        ready = await http.get("/readyz")
        assert ready.status_code == 503 and words in ready.json()["reasons"][0]
        status = (await http.get(API + "status")).json()
        assert status["status"] == "not ready" and words in status["reasons"][0]
        held = await http.get(API + "approvals/apr_1")
        assert held.status_code == 503 and words in held.json()["error"], "it may have it"
        followed = await http.get(API + "events")
        assert followed.status_code == 503 and words in followed.json()["error"]
        assert (await http.get(API + "me")).json()["principal"] == "key:one", "any worker knows"
