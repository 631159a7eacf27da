"""Requests of a head that was passed on before: passed on without a task, and with the same result."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from listen_harness import key
from test_answers_that_wait import serving
from test_handover import Place, place
from waiting import until

from sluicegate.http.client.pool import HttpClient, Route
from sluicegate.listen.auth import IdentitySettings
from sluicegate.listen.http1 import Http1
from sluicegate.listen.http_request import HttpRequest
from sluicegate.protocol.model import Call, Outcome


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Stray:
    """A connection of worker 0, on which the key of worker 1 asks. All its requests have one head."""

    def __init__(self, here: Place, stream: SocketStream, connection: Http1) -> None:
        self.here, self.stream, self.connection = here, stream, connection
        self._rest = b""

    def request(self, what: str) -> bytes:
        assert len(what) == 4
        return self.here.request(0, 1).replace(b'{"at": 0}', b'{"at": "%b"}' % what.encode()).replace(
            b"Content-Length: %d" % self._size(0), b"Content-Length: %d" % self._size(5)
        )  # fmt: skip

    def _size(self, more: int) -> int:
        return len(self.here.request(0, 1).partition(b"\r\n\r\n")[2]) + more

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._rest += await self.stream.receive()
        head, _, rest = self._rest.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(lines[b"content-length"])
        while len(rest) < size:
            rest += await self.stream.receive()
        self._rest = rest[size:]
        return int(head.split()[1]), rest[:size]

    async def ask(self, what: str = "echo") -> tuple[int, bytes]:
        await self.stream.send(self.request(what))
        return await self.answer()

    async def begin(self, what: str = "wait") -> None:
        """Sends a request, which is passed on without the task of the connection."""
        await self.stream.send(self.request(what))
        await self.here.handlers[1].waiting.wait()
        wanted = self.connection._wanted
        assert len(self.connection.requests) == 1 and wanted is not None and not wanted.done()


@asynccontextmanager
async def stray(folder: Path) -> AsyncIterator[Stray]:
    """Two of its requests were passed on: those that follow can be passed on at once."""
    async with place(folder) as here, await anyio.connect_tcp("127.0.0.1", here.servers[0].port) as stream:
        owner = here.handlers[1]
        echo = owner.tool_echo

        async def tool(call: Call) -> Outcome:
            what = call.params["arguments"]["at"]
            return await {"wait": owner.tool_wait, "talk": owner.tool_slow}.get(what, echo)(call)

        owner.tool_echo = tool  # type: ignore[method-assign]
        await stream.send(here.request(0, 0))  # it is worker 0's from now on
        await until(lambda: here.servers[0].connections == 1)
        (connection,) = here.servers[0]._server.server_state.connections
        assert isinstance(connection, Http1)
        found = Stray(here, stream, connection)
        assert (await found.answer())[0] == 200
        for _ in range(2):
            assert (await found.ask())[0] == 200
        yield found


async def test_each_has_its_own_body_and_answer(tmp_path: Path) -> None:
    async with stray(tmp_path) as on:
        for what in ("one.", "two.", "six."):
            status, body = await on.ask(what)
            assert status == 200 and what.encode() in body
        assert on.here.peers[0].results == {"answered": 5} and len(on.here.handlers[1].calls) == 5
        await on.begin()
        on.here.handlers[1].go.set()
        assert b"waited" in (await on.answer())[1]
        assert not on.here.peers[0]._running


async def test_a_client_that_goes_ends_its_call_at_the_owner(tmp_path: Path) -> None:
    async with stray(tmp_path) as on:
        await on.begin()
        await on.stream.aclose()
        await on.here.handlers[1].ended.wait()
        assert on.here.handlers[1].cancelled == [{"at": "wait"}]
        await until(lambda: on.here.servers[0].connections == 0)
        assert not on.here.peers[0]._running and on.here.peers[0].results == {"answered": 2}


async def test_requests_behind_it_have_their_turn_after_it(tmp_path: Path) -> None:
    async with stray(tmp_path) as on:
        await on.begin()
        await on.stream.send(on.request("next") + on.request("last"))
        await until(lambda: len(on.connection.requests) > 1)
        on.here.handlers[1].go.set()
        for what in (b"waited", b"next", b"last"):
            assert what in (await on.answer())[1]
        assert (await on.ask("more"))[0] == 200


async def test_what_comes_before_the_task_of_the_connection_waits_again_is_served_by_it_alone() -> None:
    begun, served, go = list[HttpRequest](), list[HttpRequest](), asyncio.Event()

    def at_once(request: HttpRequest) -> bool:
        begun.append(request)
        return True

    async def serve(request: HttpRequest) -> None:
        served.append(request)
        request.respond_at_once(200, b"content-length: 0\r\n", b"")
        if len(served) == 2:
            request.head.remembered.at_once = at_once
            await go.wait()

    lines = b"POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n."
    async with serving(serve) as connect:
        raw = await connect(lines)
        assert (await raw.answer())[0] == 200
        raw.writer.write(lines)
        assert (await raw.answer())[0] == 200
        raw.writer.write(lines)
        await until(lambda: served[0].connection.requests)  # type: ignore[attr-defined]
        go.set()
        assert (await raw.answer())[0] == 200 and len(served) == 3 and not begun
        raw.writer.write(lines)
        await until(lambda: begun)
        assert len(served) == 3


async def test_an_answer_that_is_a_stream_comes_as_it_is_said(tmp_path: Path) -> None:
    async with stray(tmp_path) as on:
        await on.stream.send(on.request("talk"))
        await on.here.handlers[1].waiting.wait()
        text = await on.stream.receive()
        assert b"late" not in text
        on.here.handlers[1].go.set()
        while not text.endswith(b"0\r\n\r\n"):
            text += await on.stream.receive()
        assert text.count(b"data: ") == 3 and b"late" in text
        assert (await on.ask("more"))[0] == 200 and not on.here.peers[0]._running


async def test_a_client_that_goes_while_its_stream_is_open_ends_its_call(tmp_path: Path) -> None:
    async with stray(tmp_path) as on:
        await on.stream.send(on.request("talk"))
        await on.stream.receive()
        await on.stream.aclose()
        await until(lambda: on.here.servers[1].connections == 0)
        assert not on.here.peers[0]._running


async def test_a_credential_that_has_ended_passes_nothing_on(tmp_path: Path) -> None:
    async with stray(tmp_path) as on:
        identity: Any = on.connection._serve
        identity._identity.replace(IdentitySettings(keys=(key(on.here.names[0], "another"),)))
        assert (await on.ask())[0] == 401
        assert len(on.here.handlers[1].calls) == 2


@pytest.mark.parametrize("why", ["its owner has gone", "its owner hangs up"])
async def test_what_was_sent_and_has_no_answer_is_told_and_not_sent_again(tmp_path: Path, why: str) -> None:
    async with stray(tmp_path) as on:
        await on.begin()
        if why == "its owner has gone":
            on.here.peers[0].keep(())
        else:
            (wire,) = on.here.servers[1]._server.server_state.connections
            wire.abort()
        status, body = await on.answer()
        assert status == 200 and json.loads(body)["error"]["data"] == {"reason": "outcome_unknown"}
        assert on.here.peers[0].results == {"answered": 2, "broken": 1} and len(on.here.handlers[1].calls) == 3
        assert (await on.ask())[0] == 200


@pytest.mark.parametrize("line", ["HTTP/1.1 299 Odd", "HTTP/1.1 200 OK\r\nA: \x00"])
async def test_what_is_no_answer_of_a_sluice_is_told_to_the_client(tmp_path: Path, line: str) -> None:
    """Another program may have its address by now."""
    is_odd = False

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(64 * 1024):
            head = line if is_odd else "HTTP/1.1 200 OK"
            writer.write(f"{head}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        writer.close()

    async def dial(host: str) -> socket.socket:
        dialled = socket.socket(socket.AF_UNIX)
        dialled.connect(str(tmp_path / "odd"))
        dialled.setblocking(False)
        return dialled

    async with stray(tmp_path) as on, await asyncio.start_unix_server(respond, tmp_path / "odd"):
        await on.here.clients[0].aclose()
        on.here.clients[0] = on.here.peers[0]._client = HttpClient(route=Route(dial=dial))
        assert await on.ask() == await on.ask() == (200, b"{}")
        is_odd = True
        status, body = await on.ask()
        assert status == 200 and json.loads(body)["error"]["data"] == {"reason": "outcome_unknown"}
