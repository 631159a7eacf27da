"""The fast HTTP transport against real sockets: scripted servers that behave, misbehave and go away."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import anyio
import httpx
import pytest
from authority import context_for

from sluicegate.http.client import connection, pool
from sluicegate.http.client.connection import HttpClientConnection, Reply
from sluicegate.http.client.pool import HttpClient


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@dataclass(slots=True)
class Peer:
    """One accepted connection, as its script sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next request whole, b"" at the end of the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                head += await self.reader.readexactly(int(line.split(b":")[1]))
        return head

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes, *headers: bytes, status: bytes = b"200 OK") -> None:
        lines = [b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body), b"", body]
        await self.write(b"\r\n".join(lines))

    async def gone(self) -> None:
        """Returns when the client has hung up."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Peer], Awaitable[None]]


@dataclass(slots=True)
class Scene:
    """A listening server: its address and how many connections came."""

    url: httpx.URL
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)

    def post(self, body: bytes = b"{}", *headers: tuple[bytes, bytes]) -> "Sent":
        return Sent(self.url, list(headers), body)


class Sent(NamedTuple):
    """The arguments of one exchange."""

    url: httpx.URL
    headers: list[tuple[bytes, bytes]]
    body: bytes
    method: str = "POST"


@asynccontextmanager
async def serving(
    script: Script, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, name: str | None = None
) -> AsyncIterator[Scene]:
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        scene.connections += 1
        try:
            await script(Peer(reader, writer))
        except ConnectionError:
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort() if tls else writer.close()

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    scheme = "https" if tls else "http"
    scene = Scene(httpx.URL(f"{scheme}://{name or (f'[{host}]' if ':' in host else host)}:{port}/mcp"))
    try:
        with anyio.fail_after(60):
            yield scene
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def wiring(ssl_context: ssl.SSLContext | None = None, **options: float) -> AsyncIterator[HttpClient]:
    transport = HttpClient(ssl_context=ssl_context, **options)  # type: ignore[arg-type]
    try:
        yield transport
    finally:
        await transport.aclose()


async def send(transport: HttpClient, request: Sent) -> Reply:
    return await transport.exchange(*request)


async def read(reply: Reply) -> bytes:
    return b"".join([part async for part in reply])


async def emptied(transport: HttpClient) -> None:
    """Returns when no connection is open."""
    while "0 open" not in repr(transport):  # noqa: ASYNC110  (nothing tells: that is the point)
        await asyncio.sleep(0.001)


async def echo(peer: Peer) -> None:
    """Answers each request with its own body."""
    while request := await peer.request():
        await peer.answer(request.partition(b"\r\n\r\n")[2])


# ---------------------------------------------------------------- exchanges that go well


async def test_a_request_carries_host_length_and_body_and_nothing_uninvited() -> None:
    async def script(peer: Peer) -> None:
        scene.requests.append(await peer.request())
        await peer.answer(b"ok", b"Content-Type: text/plain")

    async with serving(script) as scene, wiring() as transport:
        response = await send(transport, scene.post(b'{"a":1}', (b"X-One", b"1")))
        assert (response.status, await read(response)) == (200, b"ok")
        assert response.headers[b"content-type"] == b"text/plain"
        lines = scene.requests[0].split(b"\r\n")
        assert lines[0] == b"POST /mcp HTTP/1.1"
        assert lines[1:] == [b"host: " + scene.url.netloc, b"X-One: 1", b"content-length: 7", b"", b'{"a":1}']


async def test_a_body_that_came_with_the_head_needs_no_further_wait() -> None:
    async with serving(echo) as scene, wiring() as transport:
        reply = await send(transport, scene.post(b"hello"))
        assert (reply.status, reply.content, reply.headers[b"content-length"]) == (200, b"hello", b"5")
        assert [part async for part in reply] == [b"hello"]


async def test_an_exchange_needs_no_httpx_objects_but_the_url() -> None:
    async with serving(echo) as scene, wiring() as transport:
        for _ in range(2):
            reply = await transport.exchange(scene.url, [(b"x", b"1")], b"hello")
            assert (reply.status, reply.content) == (200, b"hello")
        assert scene.connections == 1
        with pytest.raises(httpx.LocalProtocolError):
            await transport.exchange(scene.url, [(b"x", b"1\r\n")], b"hello")


async def test_a_small_body_that_comes_late_is_waited_for_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc")
        await asyncio.sleep(0.02)
        await peer.write(b"def")
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        assert (await send(transport, scene.post())).content == b"abcdef"


async def test_requests_one_after_another_share_a_connection() -> None:
    async with serving(echo) as scene, wiring() as transport:
        for number in range(20):
            assert (await send(transport, scene.post(b"%d" % number))).content == b"%d" % number
        assert scene.connections == 1
        assert repr(transport) == "<HttpClient 1 open, 1 idle>"


async def test_a_connection_is_free_once_its_answer_has_ended_read_or_not() -> None:
    async with serving(echo) as scene, wiring() as transport:
        first = await send(transport, scene.post(b"first"))
        second = await send(transport, scene.post(b"second"))
        assert (first.content, second.content, scene.connections) == (b"first", b"second", 1)
        first.close()  # closing what has ended must not touch the connection that others use now
        assert (await send(transport, scene.post(b"third"))).content == b"third"
        assert scene.connections == 1


async def test_a_chunked_body_may_come_in_any_pieces() -> None:
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"

    async def script(peer: Peer) -> None:
        while await peer.request():
            for byte in wire:
                await peer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with serving(script) as scene, wiring() as transport:
        for _ in range(2):
            response = await send(transport, scene.post())
            assert await read(response) == b"abcde"
            assert b"x-trailer" not in response.headers
        assert scene.connections == 1


async def test_a_body_without_length_lasts_until_the_server_closes() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\n\r\nall ")
        await asyncio.sleep(0.01)
        await peer.write(b"of it")

    async with serving(script) as scene, wiring() as transport:
        for _ in range(2):
            response = await send(transport, scene.post())
            assert await read(response) == b"all of it"
        assert scene.connections == 2


async def test_an_http_1_0_answer_ends_its_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        for _ in range(2):
            assert (await send(transport, scene.post())).content == b"ok"
        assert scene.connections == 2


async def test_connection_close_is_honoured() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer(b"bye", b"Connection: close")
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        for _ in range(2):
            assert (await send(transport, scene.post())).content == b"bye"
        assert scene.connections == 2


async def test_interim_answers_are_skipped_with_their_headers() -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n")
            await peer.write(b"HTTP/1.1 199\r\nContent-Length: 5\r\n\r\nearly")
            await peer.answer(b"late", b"X-Late: 1")

    async with serving(script) as scene, wiring() as transport:
        for _ in range(2):
            reply = await send(transport, scene.post())
            assert (reply.status, reply.content) == (200, b"late")
            assert b"x-early" not in reply.headers and b"x-late" in reply.headers
        assert scene.connections == 1


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_that_never_have_a_body_end_with_their_head(status: bytes) -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.write(b"HTTP/1.1 " + status + b"\r\nX: y\r\n\r\n")

    async with serving(script) as scene, wiring() as transport:
        for _ in range(2):
            assert (await send(transport, scene.post())).content == b""
        assert scene.connections == 1


async def test_the_answer_to_head_has_no_body_whatever_its_length_says() -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    async with serving(script) as scene, wiring() as transport:
        for _ in range(2):
            reply = await send(transport, Sent(scene.url, [], b"", "HEAD"))
            assert (reply.content, reply.headers[b"content-length"]) == (b"", b"5")
        assert scene.connections == 2


# ---------------------------------------------------------------- streams


async def test_events_arrive_one_by_one_and_the_stream_can_be_left() -> None:
    said = asyncio.Queue[bytes]()
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            event = await said.get()
            await peer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await peer.gone()
        left.set()

    async with serving(script) as scene, wiring() as transport:
        reply = await send(transport, scene.post())
        assert reply.content is None and not reply.complete
        parts = aiter(reply)
        for number in range(3):
            said.put_nowait(b"data: %d\n\n" % number)
            assert await anext(parts) == b"data: %d\n\n" % number
        reply.close()
        await left.wait()
        assert repr(transport) == "<HttpClient 0 open, 0 idle>"


async def test_an_answer_in_crumbs_is_broken_off_and_a_few_of_them_are_read_with_pauses() -> None:
    """Chunks of one byte at full speed took the event loop: each costs as much as a thousand bytes in one."""
    napped, large = asyncio.Event(), b"80\r\n%b\r\n" % (b"x" * 128)

    async def script(peer: Peer) -> None:
        while request := await peer.request():
            await peer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await peer.write(b"1\r\n \r\n" * (600 if b"crumbs" in request else 300))
            if b"few" in request:
                await napped.wait()
                await peer.write(large * 1_000 + b"0\r\n\r\n")

    naps: list[float] = []
    with pytest.MonkeyPatch.context() as patched:
        rest = HttpClientConnection._rest

        def counted(wire: HttpClientConnection, size: int) -> None:
            rest(wire, size)
            if wire._nap is not None:
                naps.append(wire._nap.when() - wire.loop.time())
                napped.set()

        patched.setattr(HttpClientConnection, "_rest", counted)
        async with serving(script) as scene, wiring() as transport:
            with pytest.raises(httpx.RemoteProtocolError, match="chunks of less than"):
                await read(await send(transport, scene.post(b"crumbs")))
            response = await send(transport, scene.post(b"few"))
            assert len(await read(response)) == 300 + 128_000
    assert 0.1 < naps[0] < 0.2 and scene.connections == 2


@pytest.mark.parametrize("ends", [True, False])
async def test_a_stream_that_nobody_reads_on_frees_its_connection_or_is_hung_up(ends: bool) -> None:
    end, left = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n")
        await end.wait()
        await peer.write(b"4\r\nmore\r\n" + (b"0\r\n\r\n" if ends else b""))
        if await peer.request():
            await peer.answer(b"second")
        left.set()

    async with serving(script) as scene, wiring() as transport:
        reply = await send(transport, scene.post())
        assert await anext(aiter(reply)) == b"all"
        reply.leave(30 if ends else 0.05)
        end.set()
        if ends:
            await reply.news()
            assert reply.complete
            assert (await send(transport, scene.post())).content == b"second" and scene.connections == 1
        else:
            await left.wait()
            assert repr(transport) == "<HttpClient 0 open, 0 idle>"


async def test_open_streams_starve_nobody() -> None:
    async def script(peer: Peer) -> None:
        while request := await peer.request():
            if b"stream" in request:
                await peer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                return await peer.gone()
            await peer.answer(b"ok")

    async with serving(script) as scene, wiring(max_idle=2) as transport:
        streams = [await send(transport, scene.post(b"stream")) for _ in range(30)]
        assert (await send(transport, scene.post())).content == b"ok"
        assert scene.connections == 31
        for stream in streams:
            stream.close()


async def test_a_reader_that_does_not_read_stops_the_server_from_writing() -> None:
    total = 24 * 1024 * 1024
    stalled = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        peer.writer.transport.set_write_buffer_limits(0)
        for _ in range(total // 65536):
            peer.writer.write(b"x" * 65536)
            if peer.writer.transport.get_write_buffer_size() > 1_000_000:
                stalled.set()
                await peer.writer.drain()
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        reply = await send(transport, scene.post())
        await stalled.wait()
        assert reply.size < 3 * connection.HIGH_WATER
        assert sum([len(part) async for part in reply]) == total
        assert repr(transport) == "<HttpClient 1 open, 1 idle>"


async def test_a_big_request_is_taken_whole_by_a_slow_server() -> None:
    body = b"y" * (8 * 1024 * 1024)

    async def script(peer: Peer) -> None:
        await asyncio.sleep(0.05)
        await echo(peer)

    async with serving(script) as scene, wiring() as transport:
        response = await send(transport, scene.post(body))
        assert await read(response) == body


async def test_a_hundred_at_once_get_their_own_answers() -> None:
    async with serving(echo) as scene, wiring(max_idle=10) as transport:

        async def client(number: int) -> None:
            for turn in range(10):
                body = b"%d/%d" % (number, turn)
                assert (await send(transport, scene.post(body))).content == body

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(client, number)
        assert "10 idle" in repr(transport) or scene.connections < 10


# ---------------------------------------------------------------- connections that end


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again() -> None:
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer(b"ok")
        peer.writer.close()
        closed.set()

    async with serving(script) as scene, wiring() as transport:
        for number in range(5):
            closed.clear()
            assert (await send(transport, scene.post())).content == b"ok"
            await closed.wait()
            await emptied(transport)
            assert scene.connections == number + 1


async def test_an_idle_connection_is_asked_whether_it_has_ended_before_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end may wait in the socket, not yet seen by the loop: what is written then would be lost."""
    monkeypatch.setattr(pool, "IDLE_TRUSTED", 0.0)
    peers: list[socket.socket] = []

    async def script(peer: Peer) -> None:
        peers.append(peer.writer.get_extra_info("socket"))
        await echo(peer)

    async with serving(script) as scene, wiring() as transport:
        assert (await send(transport, scene.post(b"1"))).content == b"1"
        end = socket.fromfd(peers[0].fileno(), peers[0].family, peers[0].type)
        end.shutdown(socket.SHUT_WR)  # in this very step of the loop
        end.close()
        assert (await send(transport, scene.post(b"2"))).content == b"2"
        assert scene.connections == 2


async def test_old_idle_connections_are_dropped_and_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_MAX", 0.01)
    async with serving(echo) as scene, wiring() as transport:
        for _ in range(2):
            await send(transport, scene.post())
        wires = [wire for idle in transport._idle.values() for wire in idle]
        for wire in wires:
            wire.idle_since -= 60
        assert (await send(transport, scene.post())).status == 200
        assert scene.connections == 2
        for wire in [wire for idle in transport._idle.values() for wire in idle]:
            wire.idle_since -= 60
        await emptied(transport)


async def test_the_servers_own_keep_alive_time_counts() -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.answer(b"ok", b"Keep-Alive: timeout=0")

    async with serving(script) as scene, wiring() as transport:
        for _ in range(3):
            assert (await send(transport, scene.post())).content == b"ok"
        assert scene.connections == 3


async def test_a_request_that_met_a_closing_connection_fails_and_is_never_sent_again() -> None:
    async def script(peer: Peer) -> None:
        while request := await peer.request():
            scene.requests.append(request)
            if b"die" in request:
                return
            await peer.answer(b"ok")

    async with serving(script) as scene, wiring() as transport:
        await send(transport, scene.post(b"live"))
        with pytest.raises(httpx.RemoteProtocolError):
            await send(transport, scene.post(b"die"))
        assert len(scene.requests) == 2


async def test_an_answer_cut_short_is_an_error_after_what_came() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\npart")

    async with serving(script) as scene, wiring() as transport:
        reply = await send(transport, scene.post())
        parts = []
        with pytest.raises(httpx.RemoteProtocolError, match="inside its answer"):
            async for part in reply:
                parts.append(part)
        assert parts == [b"part"]


async def test_a_reset_is_a_read_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        peer.writer.transport.abort()

    async with serving(script) as scene, wiring() as transport:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await send(transport, scene.post())
        assert "0 idle" in repr(transport)


async def test_a_server_that_hangs_up_on_half_a_request_is_a_write_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(1000)
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        peer.writer.transport.abort()

    async with serving(script) as scene, wiring() as transport:
        with pytest.raises((httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError)):
            await send(transport, scene.post(b"z" * 30_000_000))


async def test_an_early_answer_counts_but_its_half_written_connection_does_not() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.answer(b"too large", status=b"413 Content Too Large")
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        assert (await send(transport, scene.post(b"z" * 30_000_000))).status == 413
        assert "0 idle" in repr(transport)


async def test_cancelling_hangs_up() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nslow")
        asked.set()
        await peer.gone()
        gone.set()

    async with serving(script) as scene, wiring() as transport:
        async with anyio.create_task_group() as group:
            group.start_soon(send, transport, scene.post())
            await asked.wait()
            group.cancel_scope.cancel()
        await gone.wait()
        assert "0 idle" in repr(transport)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_cancelling_at_any_moment_leaves_no_connection_behind(name: str) -> None:
    async with serving(echo, name=name) as scene, wiring() as transport:
        for steps in range(25):
            task = asyncio.create_task(send(transport, scene.post()))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            for idle in list(transport._idle.values()):
                for wire in list(idle):
                    wire.abort()
            await emptied(transport)
        gc.collect()  # a lost socket is a warning, and so an error


async def test_cancelling_just_after_the_answer_leaves_the_next_exchange_alone() -> None:
    async with serving(echo) as scene, wiring() as transport:
        await send(transport, scene.post(b"0"))
        [wire] = transport._idle[next(iter(transport._idle))]
        late: list[asyncio.Task[Reply]] = []
        settle = wire._settle

        def cancel_then_settle(reply: Reply) -> None:
            wire._settle = settle  # type: ignore[method-assign]
            settle(reply)
            late[0].cancel()  # the answer is here, its reader has not run yet

        wire._settle = cancel_then_settle  # type: ignore[method-assign]
        late.append(asyncio.create_task(send(transport, scene.post(b"1"))))
        with pytest.raises(asyncio.CancelledError):
            await late[0]
        assert (await send(transport, scene.post(b"2"))).content == b"2"
        assert scene.connections == 1


async def test_closing_the_transport_ends_open_streams_too() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.gone()

    async with serving(script) as scene:
        transport = HttpClient()
        reply = await send(transport, scene.post())
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            _ = [part async for part in reply]
        with pytest.raises(httpx.ConnectError, match="closed"):
            await send(transport, scene.post())
        await transport.aclose()


# ---------------------------------------------------------------- servers that lie


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nall",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header\x01: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\x81\x00",
        b"\0" * 100,
    ],
)
async def test_garbage_is_an_error_and_ends_the_connection(garbage: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(garbage)
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            response = await send(transport, scene.post())
            await read(response)
        await emptied(transport)


@pytest.mark.parametrize(
    "flood",
    [b"X-%d: y\r\n", b"X: yyyyyyyyyyyyyyyyyyyy%d\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"],
    ids=["many headers", "long headers", "interim answers"],
)
async def test_a_head_without_end_is_cut_off(flood: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if b"HTTP" not in flood:
            await peer.write(b"HTTP/1.1 200 OK\r\n")
        number = 0
        while True:
            number += 1
            await peer.write(b"".join(flood % n if b"%d" in flood else flood for n in range(100)))
            await asyncio.sleep(0)

    async with serving(script) as scene, wiring() as transport:
        with pytest.raises(httpx.RemoteProtocolError, match="framing"):
            await send(transport, scene.post())


_OK: bytes = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("begin", "line", "end"),
    [
        (_OK, b"X:\r\n", b"Content-Length: 0\r\n\r\n"),
        (_OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X:\r\n", b"\r\n"),
        (b"", b"HTTP/1.1 100 C\r\n\r\n", _OK + b"Content-Length: 0\r\n\r\n"),
    ],
    ids=["head", "trailers", "interim answers"],
)
async def test_an_answer_of_many_lines_is_cut_off_at_the_first_that_is_too_many(
    begin: bytes, line: bytes, end: bytes
) -> None:
    """60,000 lines that came in one read were all taken in: 33 ms of the event loop."""

    async def script(peer: Peer) -> None:
        for lines in (connection.MAX_LINES - 2, connection.MAX_LINES + 1):
            await peer.request()
            await peer.write(begin + line * lines + end)

    async with serving(script) as scene, wiring() as transport:
        response = await send(transport, scene.post())
        assert (response.status, await read(response)) == (200, b"")
        with pytest.raises(httpx.RemoteProtocolError, match="framing"):
            await read(await send(transport, scene.post()))


async def test_trailers_without_end_are_cut_off() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ")
        while True:
            await peer.write(b"t" * 1000)
            await asyncio.sleep(0)

    async with serving(script) as scene, wiring() as transport:
        response = await send(transport, scene.post())
        with pytest.raises(httpx.RemoteProtocolError, match="framing"):
            await read(response)


async def test_bytes_after_the_answer_never_meet_the_next_request() -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            good = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
            await peer.write(good + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    async with serving(script) as scene, wiring() as transport:
        for number in range(3):
            assert (await send(transport, scene.post())).content == b"good"
            assert scene.connections == number + 1


async def test_bytes_on_an_idle_connection_end_it() -> None:
    speak = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer(b"good")
        await speak.wait()
        await peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        await send(transport, scene.post())
        speak.set()
        await emptied(transport)
        assert (await send(transport, scene.post())).content == b"good"


# ---------------------------------------------------------------- requests that must not be written


@pytest.mark.parametrize(
    "request_of",
    [
        lambda url: Sent(url, [(b"x", b"a\r\nEvil: 1")], b""),
        lambda url: Sent(url, [(b"x", b"a\nEvil: 1")], b""),
        lambda url: Sent(url, [(b"x", b"a\rEvil: 1")], b""),
        lambda url: Sent(url, [(b"x: y\r\nz", b"a")], b""),
        lambda url: Sent(url, [(b"x", b"a\0b")], b""),
        lambda url: Sent(url, [], b"", "GET / HTTP/1.1\r\nX: "),
        lambda url: Sent(url, [], b"", "GÉT"),
    ],
)
async def test_nothing_can_be_smuggled_into_a_head(request_of: Callable[[httpx.URL], Sent]) -> None:
    async with serving(echo) as scene, wiring() as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await send(transport, request_of(scene.url))
        assert scene.connections == 0


@pytest.mark.parametrize("name", [b"Content-Length", b"CONTENT-LENGTH", b"Transfer-Encoding"])
async def test_framing_is_the_transports_own(name: bytes) -> None:
    async def script(peer: Peer) -> None:
        scene.requests.append(await peer.request())
        await peer.answer(b"ok")

    async with serving(script) as scene, wiring() as transport:
        await send(transport, scene.post(b"body", (name, b"999")))
        assert scene.requests[0].lower().count(b"content-length") == 1
        assert b"content-length: 4" in scene.requests[0]
        assert b"ransfer" not in scene.requests[0]


async def test_large_heads_are_not_remembered_and_small_ones_stay_known() -> None:
    """256 heads are; arguments of calls that a tool has mirrored may be megabytes."""
    async with serving(echo) as scene, wiring() as transport:
        await send(transport, scene.post(b"body", (b"x", b"small")))
        before = pool._head.cache_info()
        await send(transport, scene.post(b"body", (b"x", b"a" * 17_000)))
        await send(transport, scene.post(b"body", (b"x", b"small")))
        after = pool._head.cache_info()
        assert (after.currsize, after.hits) == (before.currsize, before.hits + 1)


# ---------------------------------------------------------------- reaching a server


async def test_a_refused_connection_is_a_connect_error() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, not listening
        url = httpx.URL(f"http://127.0.0.1:{sock.getsockname()[1]}/")
        async with wiring() as transport:
            with pytest.raises(httpx.ConnectError):
                await send(transport, Sent(url, [], b""))


async def test_an_unknown_host_is_a_connect_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, port: int, **hints: int) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # some networks take long to say so
    async with wiring() as transport:
        with pytest.raises(httpx.ConnectError):
            await send(transport, Sent(httpx.URL("http://nowhere.invalid/"), [], b""))


async def test_another_scheme_is_refused() -> None:
    async with wiring() as transport:
        with pytest.raises(httpx.UnsupportedProtocol):
            await send(transport, Sent(httpx.URL("ftp://127.0.0.1/"), [], b""))


@contextmanager
def deaf(host: str, port: int = 0) -> Iterator[int]:
    """A port whose backlog is full: further attempts are neither taken nor refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_a_server_that_accepts_nothing_is_a_connect_timeout() -> None:
    with deaf("127.0.0.1") as port:
        async with wiring(connect_timeout=0.1) as transport:
            with anyio.fail_after(10), pytest.raises(httpx.ConnectTimeout):
                await send(transport, Sent(httpx.URL(f"http://127.0.0.1:{port}"), [], b""))


async def test_localhost_is_found_under_the_family_that_answers() -> None:
    async with serving(echo, "127.0.0.1", name="localhost") as scene, wiring() as transport:
        assert (await send(transport, scene.post(b"4"))).content == b"4"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
async def test_an_ipv6_address_is_written_in_brackets() -> None:
    async def script(peer: Peer) -> None:
        scene.requests.append(await peer.request())
        await peer.answer(b"6")

    async with serving(script, "::1") as scene, wiring() as transport:
        assert (await send(transport, scene.post())).content == b"6"
        assert b"host: [::1]:%d\r\n" % (scene.url.port or 0) in scene.requests[0]


async def test_a_slow_address_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_addresses(host: str, port: int, **hints: int) -> list[tuple[object, ...]]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    async with serving(echo) as scene, wiring(connect_timeout=10) as transport:
        port = scene.url.port or 0
        monkeypatch.setattr(pool, "STAGGER", 0.01)
        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        with deaf("127.0.0.2", port):
            url = httpx.URL(f"http://two.example:{port}/")
            assert (await send(transport, Sent(url, [], b"hello"))).content == b"hello"


def test_addresses_are_tried_with_the_families_in_turn() -> None:
    six = [(socket.AF_INET6, 1, 6, "", (f"::{n}", 1)) for n in range(3)]
    four = [(socket.AF_INET, 1, 6, "", (f"127.0.0.{n}", 1)) for n in range(1)]
    assert pool._interleave([*six, *four]) == [six[0], four[0], six[1], six[2]]
    assert pool._interleave([]) == []


# ---------------------------------------------------------------- TLS


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority of our own, and a server certificate by it."""

    client: ssl.SSLContext
    server: ssl.SSLContext


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(*context_for("localhost", "127.0.0.1"))


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
async def test_tls_with_a_known_authority_works_and_keeps_the_connection(authority: Authority, name: str) -> None:
    async with serving(echo, tls=authority.server, name=name) as scene, wiring(authority.client) as transport:
        for body in (b"one", b"two", b"z" * 1_000_000):
            response = await send(transport, scene.post(body))
            assert await read(response) == body
        assert scene.connections == 1


async def test_a_certificate_of_an_unknown_authority_is_a_connect_error(authority: Authority) -> None:
    async with serving(echo, tls=authority.server, name="localhost") as scene, wiring() as transport:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await send(transport, scene.post())


async def test_a_certificate_that_does_not_name_its_authority_s_key_is_refused_with_that_reason() -> None:
    client, server = context_for("localhost", identified=False)
    async with serving(echo, tls=server, name="localhost") as scene, wiring(client) as transport:
        with pytest.raises(httpx.ConnectError, match="Missing Authority Key Identifier"):
            await send(transport, scene.post())


async def test_an_idle_tls_connection_is_asked_too(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_TRUSTED", 0.0)
    async with serving(echo, tls=authority.server, name="localhost") as scene, wiring(authority.client) as transport:
        for body in (b"one", b"two"):
            assert (await send(transport, scene.post(body))).content == body


async def test_answers_of_equal_heads_have_each_its_own_body() -> None:
    async def script(peer: Peer) -> None:
        number = 0
        while await peer.request():
            await peer.answer(b'{"n": %d}' % number, b"x-same: yes")
            number += 1

    async with serving(script) as scene, wiring() as transport:
        for number in range(5):
            reply = await send(transport, scene.post())
            assert reply.content == b'{"n": %d}' % number and reply.headers[b"x-same"] == b"yes"
        assert scene.connections == 1


async def test_a_known_head_that_comes_in_pieces_or_with_noise_behind_it() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"

    async def script(peer: Peer) -> None:
        for body in (b"one.", b"two."):
            assert await peer.request()
            await peer.write(answer + body)
        assert await peer.request()
        await peer.write(answer + b"th")
        await anyio.sleep(0.02)  # so that it is read in two pieces
        await peer.write(b"ee")
        assert await peer.request()
        await peer.write(answer + b"fourHTTP/1.1 200 OK\r\n")
        await peer.gone()

    async with serving(script) as scene, wiring() as transport:
        for body in (b"one.", b"two."):
            assert (await send(transport, scene.post())).content == body
        assert await read(await send(transport, scene.post())) == b"thee"
        assert (await send(transport, scene.post())).content == b"four"
        await emptied(transport)  # what answers unasked is not asked again
