"""A connection before its TLS handshake has ended: it is counted, has its deadline, and makes room as any other one."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select

import anyio
import pytest
from authority import issue
from listen_harness import Raw, until

from sluicegate.listen.http_request import HttpRequest
from sluicegate.listen.server import AddressServer
from sluicegate.listen.settings import ConnectionLimits
from sluicegate.listen.tls import Tls

LARGE = 8 * 1024
ASKS = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Their TLS is other code."""
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class Port:
    server: AddressServer
    number: int
    context: ssl.SSLContext
    raws: list[Raw] = field(default_factory=list)

    async def silent(self) -> Raw:
        """Connected, and no word of TLS."""
        return await self._connected(None)

    async def accepted_after(self, number: int) -> Raw:
        """Silent, and the one that is accepted after `number` others; the next one is so at another millisecond, in
        which uvloop counts."""
        raw, clock = await self.silent(), asyncio.get_running_loop().time
        await until(lambda: self.server.connections == number + 1)
        accepted = clock()
        await until(lambda: clock() > accepted)
        return raw

    async def client(self) -> Raw:
        return await self._connected(self.context)

    async def _connected(self, context: ssl.SSLContext | None) -> Raw:
        self.raws.append(Raw(*await asyncio.open_connection("127.0.0.1", self.number, ssl=context)))
        return self.raws[-1]


@asynccontextmanager
async def port(folder: Path, wire: ConnectionLimits) -> AsyncIterator[Port]:
    root, certificate, key = issue("127.0.0.1")
    (folder / "cert").write_bytes(certificate)
    (folder / "key").write_bytes(key)

    async def serve(request: HttpRequest) -> None:
        body = request.head.path[1:].encode() * (LARGE if request.head.path == "/99" else 1)
        await request.respond(200, b"content-length: %d\r\n" % len(body), body)

    server = AddressServer(serve, "127.0.0.1", 0, wire, 0.2, tls=Tls(folder / "cert", folder / "key", None))
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            number = await tasks.start(server.run)
            here = Port(server, number, ssl.create_default_context(cadata=root.decode()))
            try:
                yield here
            finally:
                for raw in here.raws:
                    raw.close()
                await until(lambda: not server.connections)
                server.stop(now=True)


async def test_a_connection_without_a_handshake_is_counted_and_ends_at_the_deadline(tmp_path: Path) -> None:
    async with port(tmp_path, ConnectionLimits(head_deadline=0.5)) as here:
        silent = [await here.silent() for _ in range(3)]
        await until(lambda: here.server.connections == 3)
        for raw in silent:
            assert await raw.closed() == b""
        await until(lambda: here.server.connections == 0)


async def test_a_client_after_its_handshake_still_has_the_same_deadline(tmp_path: Path) -> None:
    async with port(tmp_path, ConnectionLimits(head_deadline=0.5)) as here:
        raw = await here.client()
        assert await raw.closed() == b""
        await until(lambda: here.server.connections == 0)


async def test_connections_without_a_handshake_make_room_for_clients(tmp_path: Path) -> None:
    async with port(tmp_path, ConnectionLimits(connections=3)) as here:
        silent = [await here.accepted_after(number) for number in range(3)]
        client = await here.client()
        assert await silent[0].closed() == b"", "the one that has waited for longest"
        client.writer.write(ASKS % 10)
        assert (await client.answer())[2] == b"10"
        assert here.server.connections == 3


async def test_of_many_connections_at_once_no_more_stay_than_there_is_room_for(tmp_path: Path) -> None:
    async with port(tmp_path, ConnectionLimits(connections=3)) as here:
        silent = [socket.create_connection(("127.0.0.1", here.number)) for _ in range(50)]  # accepted in one turn
        try:
            client = await here.client()
            client.writer.write(ASKS % 10)
            assert (await client.answer())[2] == b"10"
            assert here.server.connections == 3
            await until(lambda: len(select(silent, [], [], 0)[0]) == 48)  # closed
        finally:
            for one in silent:
                one.close()


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered_encrypted(tmp_path: Path) -> None:
    async with port(tmp_path, ConnectionLimits()) as here:
        raw, incoming, outgoing = await here.silent(), ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = here.context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        raw.writer.write(outgoing.read())
        while True:
            incoming.write(await raw.reader.read(65536))
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
        tls.write(ASKS % 10 + ASKS % 11)
        raw.writer.write(outgoing.read())  # the end of the handshake and both requests: one segment
        text = b""
        while not text.endswith(b"11"):
            try:
                text += tls.read()
            except ssl.SSLWantReadError:
                incoming.write(await raw.reader.read(65536))
        assert text.count(b"HTTP/1.1 200 OK") == 2 and text.index(b"\r\n\r\n10HTTP") < text.index(b"\r\n\r\n11")


@pytest.mark.parametrize("answers", (1, 10, 28, 34))
async def test_a_peer_that_has_ended_and_reads_nothing_keeps_no_connection(tmp_path: Path, answers: int) -> None:
    """A second `close` of asyncio's TLS forgets the connection, and what is asked of it then fails."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with port(tmp_path, ConnectionLimits(stall=0.2)) as here:
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", here.number))

            def ask() -> None:
                tls = here.context.wrap_socket(raw.dup(), server_hostname="127.0.0.1")
                try:
                    tls.sendall(ASKS % 99 * answers)
                    tls.settimeout(1.0)
                    with suppress(OSError):
                        tls.unwrap()  # says the end, and waits for the other's in vain
                finally:
                    tls.detach()

            await anyio.to_thread.run_sync(ask)
            await until(lambda: not here.server.connections)
    assert not failures


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01", b""])
async def test_what_is_no_handshake_or_breaks_off_leaves_nothing_behind(tmp_path: Path, sent: bytes) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with port(tmp_path, ConnectionLimits()) as here:
        raw = await here.silent()
        await until(lambda: here.server.connections == 1)
        raw.writer.write(sent)
        raw.writer.write_eof()
        assert b"HTTP" not in await raw.closed()
        await until(lambda: here.server.connections == 0)
        raw = await here.silent()
        await until(lambda: here.server.connections == 1)
        raw.writer.write(sent[:3])
        raw.close()
        await until(lambda: here.server.connections == 0)
    assert not failures


async def test_a_stop_does_not_wait_for_handshakes(tmp_path: Path) -> None:
    async with port(tmp_path, ConnectionLimits()) as here:
        raw = await here.silent()
        await until(lambda: here.server.connections == 1)
        here.server.stop()
        assert await raw.closed() == b""
