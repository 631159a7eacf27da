"""Between workers: connections passed on with what was read of them, and requests on connections that have an owner."""

import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint
from listen_harness import ACCEPT, INFO, META, Scripted, key, patch
from waiting import until

from sluicegate.app.partition import Partition
from sluicegate.http.client.pool import HttpClient, Route
from sluicegate.http.hosts import ServedNames
from sluicegate.listen.auth import Identity, IdentitySettings
from sluicegate.listen.http1 import Http1
from sluicegate.listen.listener import Listener
from sluicegate.listen.owners import OwnersByClient
from sluicegate.listen.peer_forwarding import PeerForwarding
from sluicegate.listen.server import AddressServer
from sluicegate.listen.settings import ConnectionLimits, ListenSettings
from sluicegate.listen.worker_handoff import WorkerHandoff
from sluicegate.protocol.model import Call, Outcome, Result


def test_everybody_has_one_owner_that_stays() -> None:
    names = ("key:a", "key:b", "key:c", "anonymous", "local")
    assert [Partition(0, 3).owner(name) for name in names] == [2, 0, 2, 0, 1]
    found = [Partition(1, 4).owner(f"key:{number}") for number in range(4_000)]
    assert all(900 < found.count(worker) < 1_100 for worker in range(4))
    assert Partition().owner("jwt:https://a#\udcff") == 0


SETTINGS = ListenSettings(names=ServedNames(trusted_proxies=("127.0.0.1",)))


class Place:
    """Workers 0 and 1 in one process."""

    def __init__(self, folder: Path, patience: float, settings: ListenSettings) -> None:
        self.names = ["", ""]
        for number in range(99, 0, -1):
            self.names[Partition(0, 2).owner(f"key:n{number}")] = f"n{number}"
        addresses = [str(folder / f"{index}.taking") for index in range(2)]
        keys = IdentitySettings(keys=tuple(key(name, f"key-of-{name}") for name in self.names))
        self.handlers = [Scripted(), Scripted()]
        self.handovers = [WorkerHandoff(index, addresses, patience) for index in range(2)]
        self.clients = [HttpClient(route=Route(dial=one.dial)) for one in self.handovers]
        self.peers = [
            PeerForwarding(OwnersByClient(index, 2, Partition(index, 2).owner), self.clients[index], handover)
            for index, handover in enumerate(self.handovers)
        ]
        listeners = [
            Listener(handler, INFO, Identity(keys), settings, lambda id: None, peers=peers)
            for handler, peers in zip(self.handlers, self.peers, strict=True)
        ]
        self.servers = [
            AddressServer(listener, "127.0.0.1", 0, ConnectionLimits(is_shared=True), 1.0) for listener in listeners
        ]

    def url(self, at: int, path: str = "/mcp") -> str:
        return f"http://127.0.0.1:{self.servers[at].port}{path}"

    def head(self, whose: int, **more: str) -> dict[str, str]:
        return {"Accept": ACCEPT, "Authorization": f"Bearer key-of-{self.names[whose]}", **more}

    def request(self, at: int, whose: int) -> bytes:
        """The bytes of what `echo` sends."""
        head, body = self._echo(at, whose)
        lines = {"Host": "localhost", "Content-Type": "application/json", **head, "Content-Length": str(len(body))}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST /mcp HTTP/1.1\r\n{text}\r\n{body}".encode()

    async def echo(self, client: httpx.AsyncClient, at: int, whose: int, **more: str) -> httpx.Response:
        head, body = self._echo(at, whose)
        headers = {**head, "Content-Type": "application/json", **more}
        return await client.post(self.url(at), content=body, headers=headers)

    def _echo(self, at: int, whose: int) -> tuple[dict[str, str], str]:
        params = {"name": "echo", "arguments": {"at": at}, "_meta": META}
        head = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "echo",
                **self.head(whose)}  # fmt: skip
        return head, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


@asynccontextmanager
async def place(
    folder: Path, taking: int = 2, patience: float = 30.0, settings: ListenSettings = SETTINGS
) -> AsyncIterator[Place]:
    made = Place(folder, patience, settings)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for server in made.servers:
                await group.start(server.run)
            for handover, server in zip(made.handovers[:taking], made.servers, strict=False):
                group.start_soon(handover.run, server.adopt)
            yield made
            for client in made.clients:
                await client.aclose()
            for server in made.servers:
                server.stop(now=True)
            group.cancel_scope.cancel()


async def test_a_call_is_made_by_its_owner_wherever_it_comes_in(tmp_path: Path) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        for at in range(2):
            for whose in (0, 1, 1, 0):
                answer = await here.echo(client, at, whose)
                assert json.loads(answer.json()["result"]["content"][0]["text"]) == {"at": at}
        for whose, handler in enumerate(here.handlers):
            assert [call.client.principal for call in handler.calls] == [f"key:{here.names[whose]}"] * 4


async def test_a_connection_that_has_an_owner_stays_and_what_others_ask_on_it_is_passed_on(tmp_path: Path) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        for whose in (0, 1, 1, 0, 1):
            assert (await here.echo(client, 0, whose)).status_code == 200
        assert here.peers[0].results == {"answered": 3} and not here.peers[1].results
        assert here.servers[0].connections == 1
        for whose, handler in enumerate(here.handlers):
            assert {call.client.principal for call in handler.calls} == {f"key:{here.names[whose]}"}


async def test_a_connection_of_nobody_yet_is_still_handed_over(tmp_path: Path) -> None:
    """A client that logs in asks without a token first."""
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        assert (await client.post(here.url(0), json={})).status_code == 401
        assert (await here.echo(client, 0, 1)).status_code == 200
        assert not here.peers[0].results
        await until(lambda: (here.servers[0].connections, here.servers[1].connections) == (0, 1))


@pytest.mark.parametrize("size", [1_000, 70_000, 200_000])
async def test_no_worker_takes_a_body_for_a_request(tmp_path: Path, size: int) -> None:
    """The first request is refused before its body is there. A proxy may send another client's request after it."""
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with place(tmp_path) as here, await anyio.connect_tcp("127.0.0.1", here.servers[0].port) as proxy:

        async def send(data: bytes) -> None:
            await proxy.send(data)
            for _ in range(20):  # so that it is read by itself
                await checkpoint()

        head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        await send(head % (size + len(smuggled)))
        assert (await proxy.receive()).startswith(b"HTTP/1.1 401 ")
        await send(b" " * (size - 500))
        await send(b" " * 500)
        for sent in (smuggled + here.request(0, 1), here.request(0, 1)):
            await send(sent)
            assert (await proxy.receive()).startswith(b"HTTP/1.1 200 ")
        assert here.peers[0].results == {"answered": 2} and len(here.handlers[1].calls) == 2


async def test_a_large_body_is_kept_once_by_its_own_worker(tmp_path: Path) -> None:
    async with place(tmp_path) as here, await anyio.connect_tcp("127.0.0.1", here.servers[0].port) as client:
        head, end, body = here.request(0, 0).partition(b"\r\n\r\n")
        await client.send(head.replace(b"Content-Length: %d" % len(body), b"Content-Length: 1000000") + end)
        await until(lambda: here.servers[0].connections == 1)
        (wire,) = here.servers[0]._server.server_state.connections
        assert isinstance(wire, Http1)
        await until(lambda: wire.unclaimed is None)
        await client.send(b" " * (1_000_000 - len(body)) + body)
        assert (await client.receive()).startswith(b"HTTP/1.1 200 ")


async def test_requests_that_came_together_are_passed_on_where_the_first_was_refused(tmp_path: Path) -> None:
    """Bytes of which some are answered are nothing that another process could begin with."""
    async with place(tmp_path) as here:
        stream = await anyio.connect_tcp("127.0.0.1", here.servers[0].port)
        lines = ["POST /mcp HTTP/1.1", "host: localhost", "content-type: application/json", "content-length: 2"]
        plain = "\r\n".join([*lines, "{}\r\n{{}}"])
        whose = f"authorization: {here.head(1)['Authorization']}\r\n"
        async with stream:
            await stream.send((plain.format("") + plain.format(whose)).encode())
            text = b""
            while text.count(b"HTTP/1.1 ") < 2:
                text += await stream.receive()
        assert re.findall(rb"HTTP/1\.1 (\d+)", text) == [b"401", b"400"]
        assert here.peers[0].results == {"answered": 1}


async def test_equal_heads_that_are_passed_on_have_each_its_own_body_and_answer(tmp_path: Path) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        assert (await here.echo(client, 0, 0)).status_code == 200
        head, body = here._echo(0, 1)
        head["Content-Type"] = "application/json"
        other = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": "p", "_meta": META}}
        for number in (3, 4, 4, 5):
            sent = body.replace('{"at": 0}', f'{{"at": {number}}}')
            answer = await client.post(here.url(0), content=sent, headers=head)
            assert json.loads(answer.json()["result"]["content"][0]["text"]) == {"at": number}
            another = {**head, "Mcp-Method": "prompts/get", "Mcp-Name": "p"}  # its owner compares it with the body
            assert (await client.post(here.url(0), json=other, headers=another)).status_code == 200
        assert here.peers[0].results == {"answered": 8} and here.servers[0].connections == 1
        assert {call.client.principal for call in here.handlers[1].calls} == {f"key:{here.names[1]}"}


async def test_a_client_cannot_say_that_its_request_was_passed_on(tmp_path: Path) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        for whose in (1, 0, 1):
            answer = await here.echo(client, 0, whose, **{"Sluice-Hop": "127.0.0.1 1 127.0.0.1 1"})
            assert answer.status_code == 200
        assert [len(handler.calls) for handler in here.handlers] == [1, 2]


async def test_what_is_passed_on_to_the_wrong_worker_is_refused(tmp_path: Path) -> None:
    """It would be counted there by another rate. Whose a credential is can change while a request is on its way."""
    async with place(tmp_path) as here:
        reply = await here.clients[0].exchange(
            httpx.URL("http://1/mcp"),
            [(b"host", b"localhost"), (b"authorization", here.head(0)["Authorization"].encode()),
             (b"content-type", b"application/json"), (b"sluice-hop", b"127.0.0.1 1 127.0.0.1 2")],
            b"{}",
        )  # fmt: skip
        assert reply.status == 503 and not here.handlers[1].calls


async def test_a_stream_is_passed_on_with_the_addresses_that_it_came_between(tmp_path: Path) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        assert (await here.echo(client, 0, 0)).status_code == 200
        head = here.head(1, **{"Accept": "text/event-stream", "X-Forwarded-Prefix": "/outside"})
        async with client.stream("GET", here.url(0, "/sse"), headers=head) as stream:
            text = await anext(stream.aiter_text())
            assert "data: /outside/messages" in text, "only a trusted proxy says so"
            assert here.peers[1].results == {} and here.servers[1].connections == 1


async def test_where_the_owner_does_not_come_back_the_client_is_told(tmp_path: Path) -> None:
    async with place(tmp_path, taking=1, patience=0.1) as here, httpx.AsyncClient(timeout=30) as client:
        refused = await here.echo(client, 0, 1)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await here.echo(client, 0, 0)).status_code == 200, "on the same connection"
        refused = await here.echo(client, 0, 1)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), "now that it has an owner"


@pytest.mark.parametrize("status", ["199 Early", "299", "600 Odd", "999", "099 Odd"])
async def test_what_is_no_answer_of_a_sluice_is_told_to_the_client(tmp_path: Path, status: str) -> None:
    """Its connection ended without an answer: something stands between replicas, or another program has the address."""

    async def odd(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    async def dial(host: str) -> socket.socket:
        dialled = socket.socket(socket.AF_UNIX)
        dialled.connect(str(tmp_path / "odd"))
        dialled.setblocking(False)
        return dialled

    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client, anyio.create_task_group() as group:
        listener = await anyio.create_unix_listener(tmp_path / "odd")
        group.start_soon(listener.serve, odd)
        here.peers[0]._client = HttpClient(route=Route(dial=dial))
        assert (await here.echo(client, 0, 0)).status_code == 200
        told = await here.echo(client, 0, 1)
        assert told.json()["error"]["data"] == {"reason": "outcome_unknown"}
        assert (await here.echo(client, 0, 0)).status_code == 200
        assert here.servers[0].connections == 1 and here.peers[0].results == {"broken": 1}
        await here.peers[0]._client.aclose()
        group.cancel_scope.cancel()
        await listener.aclose()


async def test_who_brings_no_connection_is_sent_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        assert (await here.echo(client, 0, 1)).status_code == 200
        async with await anyio.connect_unix(str(tmp_path / "1.taking")) as stream:
            await stream.send(b"\0\0\0\1x")
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        assert (await here.echo(client, 0, 1)).status_code == 200
        assert "could not be taken" in caplog.text


async def test_answers_that_were_passed_back_and_are_not_read_count_for_their_client(tmp_path: Path) -> None:
    """The owner saw them read: by the process that passes them on, in whose buffers they stayed."""
    most, one, many = 4_000_000, 900_000, 24

    async def echo(call: Call) -> Outcome:
        return Result({"content": [{"type": "text", "text": "x" * (one if call.client.principal == theirs else 1)}]})

    async with place(tmp_path, settings=patch(SETTINGS, "limits", in_flight=most)) as here, AsyncExitStack() as stack:
        theirs = f"key:{here.names[1]}"
        for handler in here.handlers:
            handler.tool_echo = echo  # type: ignore[method-assign]
        slow = [stack.enter_context(socket.socket()) for _ in range(many)]
        for each in slow:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(("127.0.0.1", here.servers[0].port))
            each.sendall(here.request(0, 0))  # of the worker that has it from now on
        await until(lambda: len(here.handlers[0].calls) == many)
        connections: Any = here.servers[0]._server.server_state.connections
        for each in connections:  # the system holds little for it
            each.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        held = 0
        for each in slow:
            each.sendall(here.request(0, 1))
            for _ in range(200):
                await checkpoint()
            held = max(held, sum(one.transport.get_write_buffer_size() for one in connections))
        assert most - one < held < most + 2 * one
        one = 1  # a small answer waits behind them, too
        small = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", here.servers[0].port))
        await small.send(here.request(0, 0))
        await small.receive()
        before = here.peers[0].results["answered"]
        await small.send(here.request(0, 1))
        for _ in range(2000):
            await checkpoint()
        assert here.peers[0].results["answered"] == before
