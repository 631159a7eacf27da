"""Servers behind an HTTP proxy: the proxy is asked for a name, and what comes back is the server's own connection."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from authority import context_for

from sluicegate.http.client.pool import HttpClient, Route
from sluicegate.http.egress import Egress


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def proxy(port: int, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> AsyncIterator[tuple[str, list[bytes]]]:
    """Leads everybody to that port of this machine."""
    asked: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if b" 200 " in answer:
            there = await asyncio.open_connection("127.0.0.1", port)
            back = asyncio.create_task(_pipe(there[0], writer))
            tasks.add(back)
            await _pipe(reader, there[1])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        with anyio.fail_after(20):
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        await asyncio.gather(*tasks)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    await writer.drain()
    writer.close()


def transport(place: str, ours: ssl.SSLContext | None = None) -> HttpClient:
    judge = Egress(proxy=place)
    return HttpClient(ssl_context=ours, route=Route(lambda host, found: judge.permit("x", host, found), judge.proxy))


@pytest.mark.parametrize("tls", [False, True])
async def test_the_way_leads_through_the_proxy_and_the_name_is_proved(tls: bool) -> None:
    ours, theirs = context_for("server.test")
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=theirs if tls else None)
    async with proxy(server.sockets[0].getsockname()[1]) as (place, asked):
        wires = transport(place, ours)
        url = httpx.URL(f"{'https' if tls else 'http'}://server.test/mcp")
        reply = await wires.exchange(url, [], b"{}")
        assert (reply.status, reply.content) == (200, b"ok")
        port = 443 if tls else 80
        assert asked == [f"CONNECT server.test:{port} HTTP/1.1\r\nHost: server.test:{port}\r\n\r\n".encode()]
        await wires.aclose()
    server.close()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 403 No\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nmore", b"SSH-2.0\r\n\r\n", b"", b"x" * 20_000]
)
async def test_a_proxy_that_does_not_lead_there_is_an_error_before_anything_is_sent(answer: bytes) -> None:
    async with proxy(1, answer.replace(b" 200 ", b" 201 ")) as (place, _):
        wires = transport(place)
        with pytest.raises(httpx.ConnectError, match="the proxy"):
            await wires.exchange(httpx.URL("http://server.test/mcp"), [], b"{}")
        await wires.aclose()


async def test_an_address_is_judged_here_before_the_proxy_is_asked() -> None:
    async with proxy(1) as (place, asked):
        wires = HttpClient(route=Route(lambda host, found: Egress().permit("x", host, found, is_named=True), place))
        with pytest.raises(httpx.ConnectError, match="link-local"):
            await wires.exchange(httpx.URL("http://169.254.169.254/mcp"), [], b"{}")
        assert not asked
        await wires.aclose()
