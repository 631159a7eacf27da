"""An ASGI application of another room on our own connections."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from starlette.responses import StreamingResponse

from sluicegate.admin.response import EventStreamResponse
from sluicegate.listen.asgi import MAX_BODY, Event, Receive, Send, asgi
from sluicegate.listen.http_request import UNASKED
from sluicegate.listen.server import AddressServer


@asynccontextmanager
async def served() -> AsyncIterator[tuple[httpx.AsyncClient, list[Event]]]:
    scopes: list[Event] = []

    async def app(scope: Event, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        if scope["path"] == "/crash":
            raise RuntimeError("secret detail")
        body, parts = b"hello", list[int]()
        if scope["method"] == "POST":
            body, is_more = b"", True
            while is_more:
                part = await receive()
                body, is_more = body + part["body"], part["more_body"]
                parts.append(len(part["body"]))
        scope["parts"] = parts
        split = b"a\r\nb" if scope["path"] == "/split" else b""
        headers = [(b"content-length", b"%d" % len(body)), (b"x-split", split)]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": body[:2], "more_body": True})
        await send({"type": "http.response.body", "body": body[2:]})

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            server = AddressServer(asgi(app), "127.0.0.1", 0, drain=0.2)
            port = await tasks.start(server.run)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
                yield client, scopes
            server.stop(now=True)


async def test_an_application_sees_the_request_and_its_answer_is_whole() -> None:
    async with served() as (client, scopes):
        answer = await client.post("/a%20b?c=d", content=b"body")
        assert (answer.status_code, answer.content) == (201, b"body")
        assert answer.headers["date"].endswith("GMT")
        (scope,) = scopes
        assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/a b", b"c=d")
        assert scope["client"][0] == "127.0.0.1" and scope["server"][1] == client.base_url.port


@pytest.mark.parametrize(("asked", "seen"), [("/metrics/", "/metrics"), ("/a/b//", "/a/b"), ("/", "/"), ("//", "/")])
async def test_an_application_sees_no_slash_at_the_end_of_a_path(asked: str, seen: str) -> None:
    async with served() as (client, scopes):
        await client.get(asked)
        assert scopes[0]["path"] == seen


async def test_head_has_a_length_and_no_body() -> None:
    async with served() as (client, _):
        answer = await client.head("/")
        assert (answer.status_code, answer.headers["content-length"], answer.content) == (201, "5", b"")
        assert (await client.get("/")).content == b"hello"


@pytest.mark.parametrize(("path", "status"), [("/crash", 500), ("/split", 500)])
async def test_what_goes_wrong_says_nothing_about_itself(path: str, status: int, caplog: Any) -> None:
    async with served() as (client, _):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, "Internal error")
        assert (await client.get("/")).status_code == 201
    assert "secret detail" in caplog.text or path == "/split"


async def test_a_stream_ends_with_its_client_and_nobody_waits_busily_for_that() -> None:
    """Starlette listens for the client's end by asking for the next part of a body that has been read."""
    asked, over = 0, anyio.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b": alive\n\n"
                await anyio.sleep(0.01)
        finally:
            over.set()

    async def app(scope: Event, receive: Receive, send: Send) -> None:
        async def counted() -> Event:
            nonlocal asked
            asked += 1
            return await receive()

        await StreamingResponse(parts())(scope, counted, send)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            server = AddressServer(asgi(app), "127.0.0.1", 0, drain=0.2)
            port = await tasks.start(server.run)
            async with httpx.AsyncClient(trust_env=False) as client:
                async with client.stream("GET", f"http://127.0.0.1:{port}/") as response:
                    assert await anext(response.aiter_raw())
            await over.wait()
            server.stop(now=True)
    assert asked == 2


async def test_a_body_is_bounded() -> None:
    async with served() as (client, _):
        assert (await client.post("/", content=b"x" * (MAX_BODY + 1))).status_code == 413
        assert (await client.post("/", content=b"x" * MAX_BODY)).status_code == 201


async def test_an_application_gets_a_body_in_parts_and_we_hold_no_more_than_one() -> None:
    """Who says how large a body may be is the application, and it knows when the first part comes."""
    async with served() as (client, scopes):
        answer = await client.post("/", content=b"0123456789abcdef" * 64 * 1024, headers={"expect": "100-continue"})
        assert answer.content == b"0123456789abcdef" * 64 * 1024
        assert max(scopes[0]["parts"]) <= UNASKED + 256 * 1024


async def test_the_head_of_a_stream_ends_it() -> None:
    """RFC 9110 9.3.2: an answer to HEAD has no content. A stream would be taken for the answer to what comes next."""
    over = anyio.Event()

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b": alive\n\n"
        finally:
            over.set()

    async def app(scope: Event, receive: Receive, send: Send) -> None:
        await EventStreamResponse(parts())(scope, receive, send)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            server = AddressServer(asgi(app), "127.0.0.1", 0, drain=0.2)
            port = await tasks.start(server.run)
            head = b"HEAD / HTTP/1.1\r\nHost: localhost\r\n"
            async with await anyio.connect_tcp("127.0.0.1", port) as connection:
                await connection.send(head + b"\r\n" + head + b"Connection: close\r\n\r\n")
                got = b""
                async for part in connection:
                    got += part
            await over.wait()
            server.stop(now=True)
    assert got.count(b"HTTP/1.1 200 OK\r\n") == 2 and b"alive" not in got and got.endswith(b"\r\n\r\n")
