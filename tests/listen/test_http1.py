"""One connection: deadlines that a drip of bytes does not move, bounds on what is held for a peer."""

import asyncio
import gc
import json

import anyio
import pytest
from listen_harness import A, B, Raw, call, modern, open_session, patch, post, site, until

from sluicegate.listen.http_request import HttpRequest, RequestHead, render
from sluicegate.listen.server import AddressServer
from sluicegate.listen.settings import ConnectionLimits, ListenSettings

QUICK = ConnectionLimits(head_deadline=0.2, request_deadline=0.4, idle=0.2, stall=0.3, linger=0.1)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Sluice runs on uvloop where there is one: its buffers and closes are other code."""
    return "asyncio", {"use_uvloop": request.param}


async def drip(raw: Raw, data: bytes) -> None:
    """One byte after the other, for ever slower than any deadline."""
    try:
        for at in range(len(data)):
            raw.writer.write(data[at : at + 1])
            await raw.writer.drain()
            await anyio.sleep(0.02)
    except ConnectionError:
        pass


@pytest.mark.parametrize("where", ["head", "trailers"])
async def test_lines_are_counted_in_trailers_too(where: str) -> None:
    """55,000 that came in one read took 11 ms, and nobody has shown a credential by then."""
    async with site() as here:
        raw = await here.raw(b"")
        begin = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
        begin += b"" if where == "head" else b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
        raw.writer.write(begin + b"a:\r\n" * 130)
        with anyio.fail_after(5):
            assert (await raw.answer())[0] == 431
        raw.close()


async def test_a_head_of_many_lines_goes_with_its_request() -> None:
    """Idle connections of strangers held 100 KB each for a request of 5 KB."""
    async with site() as here:
        raw = await here.raw(b"")
        raw.writer.write(post(b"{", *(f"h{number}: x" for number in range(110)), secret="wrong"))
        assert (await raw.answer())[0] == 401
        await until(lambda: not any(isinstance(one, RequestHead) and len(one) > 100 for one in gc.get_objects()))
        assert here.server.connections == 1
        raw.close()


REQUEST_LINES = [
    "GET /livez HTTP/2.0", "GET /livez HTTP/0.9", "GET /livez HTTP/1.2", "GET /livez", "GET /livez%2fx HTTP/1.1",
    "GET /%6civez HTTP/1.1", "GET /livez%252fx HTTP/1.1", "GET /livez%5cx HTTP/1.1", "GET /livez%00 HTTP/1.1",
    "GET /livez%0a HTTP/1.1", "GET /livez%2500 HTTP/1.1", "GET /livez#x HTTP/1.1", "GET /livez?x#y HTTP/1.1",
    "GET /livez%zz HTTP/1.1", "GET /livez% HTTP/1.1", "GET /x/../livez HTTP/1.1", "GET /./livez HTTP/1.1",
    "GET /x/..;/livez HTTP/1.1", "GET /livez\\x HTTP/1.1", "GET livez HTTP/1.1", "GET * HTTP/1.1",
]  # fmt: skip


@pytest.mark.parametrize("port", ["mcp", "admin"])
async def test_a_request_line_that_readers_differ_about_reaches_no_route(port: str) -> None:
    """Both ports: what stands behind the connection is called for none of them."""
    seen: list[str] = []

    async def serve(request: HttpRequest) -> None:
        seen.append(request.head.path)

    async with site() as here, anyio.create_task_group() as tasks:
        admin = AddressServer(serve, "127.0.0.1", 0)
        number = await tasks.start(admin.run)
        for line in REQUEST_LINES:
            at_admin = port == "admin"
            raw = Raw(*await asyncio.open_connection("127.0.0.1", number)) if at_admin else await here.raw(b"")
            raw.writer.write(f"{line}\r\nHost: localhost\r\n\r\n".encode())
            assert (await raw.answer())[0] == 400, line
            raw.close()
        admin.stop(now=True)
    assert not seen


async def test_a_path_with_an_escape_that_has_no_other_spelling_is_a_path() -> None:
    async with site(patch(ListenSettings(), "names", public_url="https://a.test/my%20tools/mcp")) as here:
        lines = "Host: localhost\r\nContent-Length: 0\r\n\r\n"
        raw = await here.raw(f"POST /my%20tools/mcp HTTP/1.1\r\n{lines}".encode())
        assert (await raw.answer())[0] == 401
        raw.writer.write(f"POST /my%20toolsx/mcp HTTP/1.1\r\n{lines}".encode())
        assert (await raw.answer())[0] == 404


async def test_a_silent_connection_is_closed_without_a_word() -> None:
    async with site(wire=QUICK) as here:
        raw = await here.raw(b"")
        assert await raw.closed() == b"", "whoever asks late would take it for the answer"


@pytest.mark.parametrize("noise", [b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000, b"\r\n" * 2500])
async def test_a_header_drip_is_closed(noise: bytes) -> None:
    async with site(wire=QUICK) as here, anyio.create_task_group() as tasks:
        raw = await here.raw(b"")
        tasks.start_soon(drip, raw, noise)
        assert b"408" in await raw.closed()
        tasks.cancel_scope.cancel()


async def test_a_body_drip_is_closed_and_nothing_was_called() -> None:
    async with site(wire=QUICK) as here, anyio.create_task_group() as tasks:
        raw = await here.raw(post(b"", "Content-Length: 5000"))
        tasks.start_soon(drip, raw, b"x" * 5000)
        assert b"408" in await raw.closed()
        tasks.cancel_scope.cancel()
        assert here.handler.calls == []


async def test_a_stalled_body_is_closed() -> None:
    async with site(wire=QUICK) as here:
        raw = await here.raw(post(b"{", "Content-Length: 50"))
        status, headers, _ = await raw.answer()
        assert (status, headers["connection"]) == (408, "close")


@pytest.mark.parametrize("noise", [b"", b"\r\n"])
async def test_an_idle_connection_is_closed(noise: bytes) -> None:
    async with site(wire=QUICK) as here:
        raw = await here.raw(post(b"{"))
        assert (await raw.answer())[0] == 400
        raw.writer.write(noise)
        await raw.closed()


async def test_a_request_in_pieces_is_whole() -> None:
    headers, body = modern("tools/list")
    data = post(body, *(f"{name}: {value}" for name, value in headers.items()))
    async with site() as here:
        raw = await here.raw(b"")
        await drip(raw, data[:40])
        raw.writer.write(data[40:])
        assert (await raw.answer())[0] == 200


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with site() as here:
        bodies = [modern("tools/call", name="echo", id=n) for n in range(5)]
        raw = await here.raw(b"".join(post(body, *(f"{k}: {v}" for k, v in head.items())) for head, body in bodies))
        for n in range(5):
            status, _, body = await raw.answer()
            assert (status, json.loads(body)["id"]) == (200, n)


async def test_expect_continue_is_answered() -> None:
    async with site() as here:
        raw = await here.raw(post(b"", "Content-Length: 1", "Expect: 100-continue"))
        assert (await raw.head())[0] == 100
        raw.writer.write(b"{")
        assert (await raw.answer())[0] == 400


async def test_a_stream_that_nobody_reads_is_closed_and_its_call_cancelled() -> None:
    headers, body = modern("tools/call", name="flood")
    lines = (f"{name}: {value}" for name, value in headers.items())
    async with site(wire=ConnectionLimits(write_buffer=65536)) as here:
        raw = await here.raw(post(body, *lines))
        raw.pause()
        await here.handler.ended.wait()
        assert here.handler.cancelled == ["flood"]
        await until(lambda: not here.server.connections)


async def test_a_slow_reader_of_a_legacy_stream_loses_its_connection_and_not_its_call() -> None:
    async with site(wire=ConnectionLimits(write_buffer=65536)) as here, here.client() as client:
        id = await open_session(client)
        raw = await here.raw(post(call("flood"), f"Mcp-Session-Id: {id}"))
        raw.pause()
        await until(lambda: here.server.connections == 1)
        session = here.listener.sessions.get(id, here.identity.identify(b"Bearer key-of-a", False, None))  # type: ignore[arg-type]
        assert session is not None
        await here.handler.ended.wait()
        (answer,) = session.answers.values()
        assert answer.log is not None and answer.log.bytes < 1_100_000


async def test_a_large_answer_that_nobody_reads_is_dropped() -> None:
    headers, body = modern("tools/call", name="big")
    lines = (f"{name}: {value}" for name, value in headers.items())
    async with site(wire=ConnectionLimits(stall=0.2)) as here:
        raw = await here.raw(b"")
        raw.pause()
        raw.writer.write(post(body, *lines))
        await here.handler.ended.wait()
        await until(lambda: not here.server.connections)


@pytest.mark.parametrize("why", ["close", "idle", "half closed"])
async def test_what_is_left_of_an_answer_does_not_keep_a_connection_that_ends(why: str) -> None:
    """It was less than a full write buffer: no timer ran, and the connection and its bytes stayed for ever."""
    headers, body = modern("tools/call", name="big")
    lines = (f"{name}: {value}" for name, value in headers.items())
    idle = 0.2 if why == "idle" else 75.0
    async with site(wire=ConnectionLimits(idle=idle, stall=0.2, write_buffer=64 * 1024 * 1024)) as here:
        raw = await here.raw(b"")
        raw.pause()
        raw.writer.write(post(body, *lines, f"Connection: {'close' if why == 'close' else 'keep-alive'}"))
        await here.handler.ended.wait()
        if why == "half closed":
            raw.writer.write_eof()
        await until(lambda: not here.server.connections)


async def test_a_busy_connection_is_not_idle_and_an_idle_one_is_closed() -> None:
    async with site(wire=ConnectionLimits(idle=2.0)) as here:
        raw = await here.raw(b"")
        for _ in range(5):
            raw.writer.write(post(b"{"))
            assert (await raw.answer())[0] == 400
            await anyio.sleep(0.5)
        assert await raw.closed() == b""


async def test_a_call_longer_than_the_idle_time_keeps_its_connection() -> None:
    headers, body = modern("tools/call", name="wait")
    async with site(wire=ConnectionLimits(idle=0.5)) as here:
        raw = await here.raw(post(b"{"))
        assert (await raw.answer())[0] == 400
        raw.writer.write(post(body, *(f"{name}: {value}" for name, value in headers.items())))
        await here.handler.waiting.wait()
        await anyio.sleep(1.0)
        here.handler.go.set()
        assert (await raw.answer())[0] == 200


async def test_an_answer_says_when_it_was_given() -> None:
    async with site() as here:
        raw = await here.raw(post(b"{"))
        _, headers, _ = await raw.answer()
        assert headers["date"].endswith(" gmt")
        assert "server" not in headers


@pytest.mark.parametrize("line", ["Connection: close", "connection: keep-alive, Close"])
async def test_a_client_that_wants_one_answer_gets_one(line: str) -> None:
    async with site() as here:
        raw = await here.raw(post(b"{", line))
        status, headers, _ = await raw.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert await raw.closed() == b""


async def test_a_stream_for_http_1_0_is_not_chunked_and_ends_with_the_connection() -> None:
    headers, body = modern("tools/call", name="progress")
    data = post(body, *(f"{name}: {value}" for name, value in headers.items())).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with site() as here:
        raw = await here.raw(data)
        status, head = await raw.head()
        assert (status, head["connection"]) == (200, "close") and "transfer-encoding" not in head
        text = await raw.closed()
        assert text.startswith(b"event: message\n") and text.count(b"data: ") == 4


async def test_a_broken_second_request_leaves_the_answer_to_the_first_alone() -> None:
    headers, body = modern("tools/call", name="wait")
    first = post(body, *(f"{name}: {value}" for name, value in headers.items()))
    async with site() as here:
        raw = await here.raw(first + post(b"2\r\n{}\r\nnonsense", "Transfer-Encoding: chunked"))
        await here.handler.waiting.wait()
        here.handler.go.set()
        assert b"waited" in (await raw.answer())[2]
        assert await raw.closed() == b""


async def test_nine_requests_at_once_are_too_many() -> None:
    headers, body = modern("tools/call", name="wait")
    first = post(body, *(f"{name}: {value}" for name, value in headers.items()))
    async with site() as here:
        raw = await here.raw(first + post(b"{") * 9)
        await here.handler.waiting.wait()
        here.handler.go.set()
        assert (await raw.answer())[0] == 200
        for _ in range(8):
            assert (await raw.answer())[0] == 400
        assert await raw.closed() == b""


async def test_a_body_that_nobody_asks_for_stays_with_its_sender() -> None:
    """It waits for its turn behind a call: what it sends then is not our memory."""
    headers, body = modern("tools/call", name="wait")
    first = post(body, *(f"{name}: {value}" for name, value in headers.items()))
    async with site() as here:
        raw = await here.raw(first)
        await here.handler.waiting.wait()
        raw.writer.write(post(b"x" * 3_000_000))
        (connection,) = here.server._server.server_state.connections
        await until(lambda: connection._paused)  # type: ignore[union-attr]
        held = connection.requests[-1].size  # type: ignore[union-attr]
        assert held < 600_000
        here.handler.go.set()
        assert (await raw.answer())[0] == 200
        assert (await raw.answer())[0] == 400


async def test_a_header_of_ours_cannot_become_two() -> None:
    for value in (b"a\r\nx: y", b"a\ny", b"a\ry", b"a\0"):
        with pytest.raises(ValueError):
            render([(b"name", value)])
    assert render([(b"a", b"b"), (b"c", b"d")]) == b"a: b\r\nc: d\r\n"


async def test_a_stream_that_we_end_leaves_its_connection_to_the_next_request() -> None:
    listen, wanted = modern("subscriptions/listen", id="s", notifications={})
    headers, body = modern("tools/call", name="echo")
    async with site() as here:
        raw = await here.raw(post(wanted, *(f"{name}: {value}" for name, value in listen.items())))
        await raw.reader.readuntil(b"acknowledged")
        here.listener._context.streams.stop()
        await raw.reader.readuntil(b"0\r\n\r\n")
        raw.writer.write(post(body, *(f"{name}: {value}" for name, value in headers.items())))
        assert (await raw.answer())[0] == 200


async def test_a_cancellation_that_comes_too_late_meets_no_other_request() -> None:
    headers, body = modern("tools/call", name="echo")
    request = post(body, *(f"{name}: {value}" for name, value in headers.items()))
    async with site() as here:
        raw = await here.raw(request)
        assert (await raw.answer())[0] == 200
        (connection,) = here.server._server.server_state.connections
        connection._worker.cancel()  # type: ignore[union-attr]
        raw.writer.write(request)
        assert await raw.closed() == b""
        assert len(here.handler.calls) == 1
        assert not here.server._server.server_state.tasks


async def test_requests_of_one_connection_are_answered_by_one_task() -> None:
    headers, body = modern("tools/call", name="echo")
    request = post(body, *(f"{name}: {value}" for name, value in headers.items()))
    async with site() as here:
        raw = await here.raw(request * 3)
        for _ in range(3):
            assert (await raw.answer())[0] == 200
        assert len(here.server._server.server_state.tasks) == 1
        raw.close()
        await until(lambda: not here.server._server.server_state.tasks)


HALF = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"


async def test_of_too_many_connections_the_one_that_says_nothing_for_longest_makes_room() -> None:
    async with site(wire=ConnectionLimits(connections=4)) as here, here.client() as client:
        await open_session(client)
        busy = await here.raw(post(call("slow"), f"Mcp-Session-Id: {client.headers['mcp-session-id']}"))
        await here.handler.waiting.wait()
        halves = [await here.raw(HALF) for _ in range(12)]
        # Those of one turn of the loop are equally old, so any of these may go.
        await until(lambda: sum(half.reader.at_eof() for half in halves) == 9)
        assert here.server.connections == 4
        assert (await client.post("/mcp", json=call("echo"))).status_code == 200, "others are served"
        here.handler.go.set()
        assert (await busy.answer())[0] == 200, "whose request runs stays"


@pytest.mark.parametrize("secret", ["wrong", B])
async def test_who_does_not_send_the_end_of_a_body_makes_room_too(secret: str) -> None:
    """Strangers with as many connections as there may be kept everybody out, half a minute each time."""
    async with site(wire=ConnectionLimits(connections=4)) as here, here.client() as client:
        for number in range(4):
            slow = await here.raw(post(b"{", "Content-Length: 100", secret=secret))
            if secret == "wrong":
                assert (await slow.answer())[0] == 401
            else:
                await until(lambda number=number: here.server.connections == number + 1)  # type: ignore[misc]
        await open_session(client)
        assert here.server.connections == 4


async def test_whose_body_is_on_its_way_stays_longer_than_who_has_no_request() -> None:
    async with site(wire=ConnectionLimits(connections=2)) as here, here.client() as client:
        await open_session(client)  # the older connection
        await client.aclose()
        late, idle = await here.raw(post(b"{", "Content-Length: 100")), await here.raw(b"")
        await until(lambda: here.server.connections == 2)
        await here.raw(HALF)
        await until(idle.reader.at_eof)
        assert not late.reader.at_eof()


async def test_who_listens_makes_no_room_though_a_body_is_missing() -> None:
    async with site(wire=ConnectionLimits(connections=2)) as here, here.client() as client:
        session = await open_session(client)
        await client.aclose()
        lines = ["GET /mcp HTTP/1.1", "Host: localhost", f"Authorization: Bearer {A}", f"Mcp-Session-Id: {session}"]
        listening = await here.raw("\r\n".join([*lines, "Content-Length: 9", "", ""]).encode())
        assert (await listening.head())[0] == 200
        halves = [await here.raw(HALF) for _ in range(3)]
        await until(lambda: sum(half.reader.at_eof() for half in halves) == 2)
        assert not listening.reader.at_eof()


async def test_where_every_connection_has_a_request_a_further_one_is_closed() -> None:
    async with site(wire=ConnectionLimits(connections=1)) as here, here.client() as client:
        await open_session(client)
        await client.aclose()
        busy = await here.raw(post(call("slow"), f"Mcp-Session-Id: {client.headers['mcp-session-id']}"))
        await here.handler.waiting.wait()
        assert await (await here.raw(HALF)).closed() == b""
        here.handler.go.set()
        assert (await busy.answer())[0] == 200
