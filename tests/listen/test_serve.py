"""A server as a task: its port, its end."""

import asyncio
import socket
import sys

import anyio
import pytest
from listen_harness import A, Raw, call, messages, modern, open_session, post, site, until

from sluicegate.listen.http_request import HttpRequest
from sluicegate.listen.server import RECEIVE_BUFFER, AddressServer, bind


async def nothing(request: HttpRequest) -> None:
    raise AssertionError


async def test_a_taken_port_is_an_error_and_no_exit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="Address already in use"):
            AddressServer(nothing, "127.0.0.1", taken.getsockname()[1]).bind()


async def test_a_name_with_two_addresses_has_one_port() -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            server = AddressServer(nothing, "localhost", 0)
            port = await tasks.start(server.run)
            assert port == server.port
            server.stop()


async def test_an_orderly_end_ends_streams_and_waits_for_calls() -> None:
    headers, body = modern("subscriptions/listen", id="s", notifications={})
    async with site(drain=10) as here, here.client() as client:
        listening = await here.raw(post(body, *(f"{k}: {v}" for k, v in headers.items())))
        await listening.reader.readuntil(b"acknowledged")
        id = await open_session(client)
        lines = f"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {A}\r\nMcp-Session-Id: {id}\r\n\r\n"
        push = await here.raw(lines.encode())
        await push.reader.readuntil(b"data: \n\n")
        running = await here.raw(post(call("wait"), f"Mcp-Session-Id: {id}"))
        await here.handler.waiting.wait()
        here.listener.close()
        here.server.stop()
        last = (await listening.reader.readuntil(b"0\r\n\r\n")).decode()
        assert messages(last[last.index("event:") :])[0]["result"]["resultType"] == "complete"
        await push.reader.readuntil(b"0\r\n\r\n")
        await until(lambda: not here.handler.listening)
        here.handler.go.set()
        assert (await running.answer())[0] == 200
        assert here.handler.cancelled == ["listen", "listen"]


async def test_what_a_balancer_has_sent_when_the_port_closes_is_answered() -> None:
    """Connections that nobody has accepted yet, and requests on those that were idle."""
    headers, body = modern("tools/call", name="echo")
    request = post(body, *(f"{k}: {v}" for k, v in headers.items()))
    async with site(drain=10) as here:
        idle = await here.raw(request)
        assert (await idle.answer())[0] == 200
        await here.server.retire(0.01)
        at = ("127.0.0.1", here.server.port)
        waiting = [socket.create_connection(at) for _ in range(5)]  # in one step of the loop
        for one in waiting:
            one.sendall(request)
        here.server.stop()
        idle.writer.write(request)
        with anyio.fail_after(30):
            status, said, _ = await idle.answer()
            assert (status, said["connection"]) == (200, "close")
            for one in waiting:
                raw = Raw(*await asyncio.open_connection(sock=one))
                status, said, _ = await raw.answer()
                assert (status, said["connection"]) == (200, "close")
                raw.close()
        idle.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(at)


async def test_the_end_of_the_drain_cuts_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    headers, body = modern("tools/call", name="wait")
    async with site(drain=0.1) as here:
        running = await here.raw(post(body, *(f"{k}: {v}" for k, v in headers.items())))
        await here.handler.waiting.wait()
        here.server.stop()
        assert await running.closed() == b""
        await here.handler.ended.wait()
    assert "Traceback" not in caplog.text


def test_the_system_holds_a_bounded_part_of_a_request_that_nobody_reads_yet() -> None:
    """Left to itself it takes up to 32 MiB for each connection. Linux doubles what it is asked for."""
    doubled = 2 if sys.platform == "linux" else 1
    (listener,) = bind("127.0.0.1", 0)
    with listener:
        listener.listen()
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == doubled * RECEIVE_BUFFER
