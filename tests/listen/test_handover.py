"""Connections between workers: passed on with what was read of them, and answered by whoever they belong to."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint
from listen_harness import ACCEPT, INFO, META, Scripted, key
from waiting import until

from sluicegate.listen import http1
from sluicegate.listen.auth import Identity, IdentitySettings
from sluicegate.listen.http1 import UnansweredBytes
from sluicegate.listen.listener import Listener
from sluicegate.listen.server import AddressServer
from sluicegate.listen.settings import ConnectionLimits, ListenSettings
from sluicegate.listen.worker_handoff import WorkerHandoff, owner_of


def test_everybody_has_one_owner_that_stays() -> None:
    assert [owner_of(name, 3) for name in ("key:a", "key:b", "key:c", "anonymous", "local")] == [2, 0, 2, 0, 1]
    found = [owner_of(f"key:{number}", 4) for number in range(4_000)]
    assert all(900 < found.count(worker) < 1_100 for worker in range(4))
    assert owner_of("jwt:https://a#\udcff", 1) == 0


class Place:
    """Workers 0 and 1 in one process."""

    def __init__(self, folder: Path, patience: float) -> None:
        self.names = ["", ""]
        for number in range(99, 0, -1):
            self.names[owner_of(f"key:n{number}", 2)] = f"n{number}"
        addresses = [str(folder / f"{index}.taking") for index in range(2)]
        settings = IdentitySettings(keys=tuple(key(name, f"key-of-{name}") for name in self.names))
        self.handlers = [Scripted(), Scripted()]
        self.handovers = [WorkerHandoff(index, addresses, patience) for index in range(2)]
        listeners = [
            Listener(handler, INFO, Identity(settings), ListenSettings(), lambda id: None, handover=handover)
            for handler, handover in zip(self.handlers, self.handovers, strict=True)
        ]
        self.servers = [
            AddressServer(listener, "127.0.0.1", 0, ConnectionLimits(is_shared=True), 1.0) for listener in listeners
        ]

    def request(self, at: int, whose: int) -> bytes:
        """The bytes of what `echo` sends."""
        head, body = self._echo(at, whose)
        lines = {"Host": "localhost", "Content-Type": "application/json", **head, "Content-Length": str(len(body))}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST /mcp HTTP/1.1\r\n{text}\r\n{body}".encode()

    async def echo(self, client: httpx.AsyncClient, at: int, whose: int) -> httpx.Response:
        head, body = self._echo(at, whose)
        headers = {**head, "Content-Type": "application/json"}
        return await client.post(f"http://127.0.0.1:{self.servers[at].port}/mcp", content=body, headers=headers)

    def _echo(self, at: int, whose: int) -> tuple[dict[str, str], str]:
        params = {"name": "echo", "arguments": {"at": at}, "_meta": META}
        head = {"Accept": ACCEPT, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "echo",
                "Authorization": f"Bearer key-of-{self.names[whose]}"}  # fmt: skip
        return head, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


@asynccontextmanager
async def place(folder: Path, taking: int = 2, patience: float = 30.0) -> AsyncIterator[Place]:
    made = Place(folder, patience)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for server in made.servers:
                await group.start(server.run)
            for handover, server in zip(made.handovers[:taking], made.servers, strict=False):
                group.start_soon(handover.run, server.adopt)
            yield made
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
        await send(smuggled + here.request(0, 1))
        answer = await proxy.receive()
        assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")), answer
        await send(here.request(0, 1))
        assert (await proxy.receive()).startswith(b"HTTP/1.1 200 ")


async def test_a_large_body_is_kept_once_by_its_own_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[UnansweredBytes] = []

    class Watched(UnansweredBytes):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(http1, "UnansweredBytes", Watched)
    async with place(tmp_path) as here, await anyio.connect_tcp("127.0.0.1", here.servers[0].port) as client:
        head, end, body = here.request(0, 0).partition(b"\r\n\r\n")
        large = head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % (len(body) + 1_000_000))
        await client.send(large + end + b" " * 500_000)
        await client.send(b" " * 500_000)
        for _ in range(20):
            await checkpoint()
        (received,) = made
        assert int(repr(received).removeprefix("UnansweredBytes(").split()[0]) < 400_000, "one read more than is kept"
        await client.send(body)
        assert (await client.receive()).startswith(b"HTTP/1.1 200 ")


async def test_connections_do_not_pile_up_at_whoever_passed_them_on(tmp_path: Path) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        for _ in range(3):
            assert (await here.echo(client, 0, 1)).status_code == 200
        await until(lambda: not here.servers[0].connections)
        assert here.servers[1].connections == 1


async def test_where_the_owner_does_not_come_back_the_client_is_told(tmp_path: Path) -> None:
    async with place(tmp_path, taking=1, patience=0.1) as here, httpx.AsyncClient(timeout=30) as client:
        refused = await here.echo(client, 0, 1)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await here.echo(client, 0, 0)).status_code == 200, "on the same connection"


async def test_who_brings_no_connection_is_sent_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with place(tmp_path) as here, httpx.AsyncClient(timeout=30) as client:
        assert (await here.echo(client, 0, 1)).status_code == 200
        async with await anyio.connect_unix(str(tmp_path / "1.taking")) as stream:
            await stream.send(b"\0\0\0\1x")
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        assert (await here.echo(client, 0, 1)).status_code == 200
        assert "could not be taken" in caplog.text
