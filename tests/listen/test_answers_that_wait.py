"""An answer leaves at the end of the turn in which it was given. Whatever else happens to its connection in that turn
happens behind it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from listen_harness import Raw, until

from sluicegate.listen.http1 import Http1
from sluicegate.listen.http_request import HttpRequest
from sluicegate.listen.server import AddressServer, on_unix_socket
from sluicegate.listen.settings import ConnectionLimits

GET = b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n"
BOTH = GET % 1 + GET % 2


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def connection_of(request: HttpRequest) -> Http1:
    connection = request.connection
    assert isinstance(connection, Http1)
    return connection


async def respond(request: HttpRequest, body: bytes = b"answer") -> None:
    await request.respond(200, b"content-length: %d\r\n" % len(body), body)


@asynccontextmanager
async def serving(
    *serve: Callable[[HttpRequest], Awaitable[None]], wire: ConnectionLimits = ConnectionLimits(is_shared=True),  # noqa: B008 (frozen)
) -> AsyncIterator[Callable[[bytes], Awaitable[Raw]]]:  # fmt: skip
    """The nth request of a connection, /1 being the first, is served by the nth of `serve`."""

    async def by_number(request: HttpRequest) -> None:
        await serve[int(request.head.path[1:]) - 1](request)

    raws: list[Raw] = []
    server = AddressServer(by_number, "127.0.0.1", 0, wire, 0.2)

    async def connect(data: bytes) -> Raw:
        raws.append(Raw(*await asyncio.open_connection("127.0.0.1", server.port)))
        raws[-1].writer.write(data)
        return raws[-1]

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
            yield connect
            for raw in raws:
                raw.close()
            server.stop(now=True)
            tasks.cancel_scope.cancel()


async def test_a_server_that_stops_in_that_turn() -> None:
    async def serve(request: HttpRequest) -> None:
        await respond(request)
        connection_of(request).shutdown()

    async with serving(serve) as connect:
        assert (await (await connect(GET % 1)).closed()).endswith(b"\r\n\r\nanswer")


async def test_a_cancellation_in_that_turn() -> None:
    async def serve(request: HttpRequest) -> None:
        await respond(request)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async with serving(serve) as connect:
        assert (await (await connect(GET % 1)).closed()).endswith(b"\r\n\r\nanswer")


async def test_noise_that_comes_in_that_turn() -> None:
    async def serve(request: HttpRequest) -> None:
        await respond(request)
        connection_of(request).data_received(b"noise\r\n\r\n")

    async with serving(serve) as connect:
        raw = await connect(GET % 1)
        assert (await raw.answer())[::2] == (200, b"answer")
        assert (await raw.answer())[0] == 400


async def test_a_stream_behind_it() -> None:
    async def stream(request: HttpRequest) -> None:
        await request.start(200, b"")
        await request.end(b"stream")

    async with serving(respond, stream) as connect:
        raw = await connect(BOTH)
        assert (await raw.answer())[::2] == (200, b"answer")
        assert (await raw.head())[1]["transfer-encoding"] == "chunked"
        assert await raw.reader.readuntil(b"0\r\n\r\n") == b"6\r\nstream\r\n0\r\n\r\n"


async def test_an_invitation_to_go_on_behind_it() -> None:
    async def upload(request: HttpRequest) -> None:
        await request.whole(100)
        await respond(request, request.body_at_hand(100))

    async with serving(respond, upload) as connect:
        length = b"host: localhost\r\nexpect: 100-continue\r\ncontent-length: 4\r\n"
        raw = await connect(GET % 1 + (GET % 2).replace(b"host: localhost\r\n", length))
        assert (await raw.answer())[::2] == (200, b"answer")
        assert (await raw.head())[0] == 100
        raw.writer.write(b"body")
        assert (await raw.answer())[::2] == (200, b"body")


async def test_another_process_that_goes_on_behind_it() -> None:
    async def hand_over(request: HttpRequest) -> None:
        async def give(descriptor: int, unanswered: bytes) -> bool:
            os.write(descriptor, b"taken over with %d bytes" % len(unanswered))
            return True

        assert await request.connection.hand_over(give)

    async with serving(respond, hand_over) as connect:
        raw = await connect(GET % 1)
        assert (await raw.answer())[::2] == (200, b"answer")
        raw.writer.write(GET % 2)
        assert await raw.closed() == b"taken over with %d bytes" % len(GET % 2)

@pytest.mark.parametrize("then", ["half-closes", "asks once more and half-closes"])
async def test_a_client_that_says_no_more(then: str) -> None:
    """`nc -N` and simple probes: the loop closes the connection at the end of what they say."""
    async with serving(respond, respond) as connect:
        for _ in range(20):
            raw = await connect(GET % 1 if then == "half-closes" else BOTH)
            raw.writer.write_eof()
            assert (await raw.closed()).endswith(b"\r\n\r\nanswer")


async def test_a_deadline_that_passes_in_that_turn() -> None:
    async def serve(request: HttpRequest) -> None:
        time.sleep(0.3)  # noqa: ASYNC251 (so that a turn outlasts the deadline)
        await respond(request)

    async with serving(serve, wire=ConnectionLimits(is_shared=True, head_deadline=0.2)) as connect:
        raw = await connect(GET % 1 + b"G")
        assert (await raw.answer())[::2] == (200, b"answer")


async def test_the_end_of_a_unix_socket_in_that_turn(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def serve(request: HttpRequest) -> None:
        asked.set()
        await respond(request)

    async with on_unix_socket(serve, str(tmp_path / "s")):
        raw = Raw(*await asyncio.open_unix_connection(tmp_path / "s"))
        raw.writer.write(GET % 1)
        await asked.wait()
    assert (await raw.closed()).endswith(b"\r\n\r\nanswer")
    raw.close()


async def test_large_answers_to_a_client_that_does_not_read_do_not_pile_up() -> None:
    size, connections = 2**21, list[Http1]()

    async def large(request: HttpRequest) -> None:
        connections.append(connection_of(request))
        await respond(request, b"x" * size)

    async with serving(large, wire=ConnectionLimits(is_shared=True, write_buffer=size // 2)) as connect:
        raw = await connect((GET % 1) * 8)
        raw.pause()
        await until(lambda: bool(connections))
        await asyncio.sleep(0.3)
        assert connections[0].transport.get_write_buffer_size() < 2 * size
