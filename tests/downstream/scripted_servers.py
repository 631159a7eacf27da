"""What the tests of this room share: servers that are real (a child process, a loopback socket) and scripted."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from waiting import until as until

from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.settings import Credentials, ServerSettings
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Ask, Call, Client, Outcome, Result
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

CHILD = Path(__file__).with_name("scripted_child.py")
LEGACY = Client("key:a", revision="2025-11-25", session="s1")
MODERN = Client("key:a")


class Account:
    """A login with a newer token each time."""

    def headers(self) -> Credentials:
        return ((b"authorization", b"Bearer t"),)

    async def renewed(self) -> Credentials:
        return self.headers()

    async def rejected(self, used: Credentials, status: int, challenges: Sequence[str]) -> Credentials:
        return self.headers()


class Clock:
    """Time that passes when it is told to, on top of the real one."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


@dataclass
class Rig:
    """A running server, what it published, and how it was each time that it came up or went down."""

    server: DownstreamServer
    clock: Clock
    published: list[tuple[str, str | None, Notification]]
    moves: list[str] = field(default_factory=list)
    published_at_moves: list[int] = field(default_factory=list)
    """How many notifications it had published by each of them."""
    emitted: list[Notification] = field(default_factory=list)

    async def emit(self, notification: Notification) -> None:
        self.emitted.append(notification)

    async def request(self, method: str, params: Json | None = None, client: Client = LEGACY, **meta: Any) -> Outcome:
        named = {key.replace("__", "/"): value for key, value in meta.items()}
        return await self.server(Call(client, method, params or {}, named, emit=self.emit))

    async def tool(self, name: str, arguments: Json | None = None, client: Client = LEGACY, **meta: Any) -> Any:
        """The text of the answer, decoded where it is JSON."""
        outcome = await self.request("tools/call", {"name": name, "arguments": arguments or {}}, client, **meta)
        assert isinstance(outcome, Result), outcome
        text = outcome.value["content"][0]["text"]
        return text if "dev.sluice/reason" in outcome.value.get("_meta", {}) else json.loads(text)

    async def reason(self, name: str, client: Client = LEGACY) -> str:
        outcome = await self.request("tools/call", {"name": name}, client)
        assert isinstance(outcome, Result) and outcome.value["isError"], outcome
        return str(outcome.value["_meta"]["dev.sluice/reason"])


@asynccontextmanager
async def running(
    ask: Ask | None = None,
    store: Store | None = None,
    is_idle: Callable[[str], bool] = lambda session: False,
    **settings: Any,
) -> AsyncIterator[Rig]:
    published: list[tuple[str, str | None, Notification]] = []
    moves: list[str] = []
    published_at_moves: list[int] = []

    def moved(key: str) -> None:
        moves.append(server.status)
        published_at_moves.append(len(published))

    clock = Clock()
    server = DownstreamServer(
        ServerSettings("scripted", **settings),
        publish=lambda key, scope, notification: published.append((key, scope, notification)),
        client_info={"name": "sluice", "version": "0"},
        clock=clock,
        ask=ask,
        store=store,
        moved=moved,
        is_idle=is_idle,
    )
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(server.run)
            try:
                await server.ready()
                yield Rig(server, clock, published, moves, published_at_moves)
            finally:
                await server.aclose()


def child(*modes: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", str(CHILD), *modes)


class Child:
    """A child that counts its starts, and is another one when `modes` says so."""

    def __init__(self, folder: Path) -> None:
        self._starts, self._modes = folder / "starts", folder / "modes"
        self.store = MemoryStore()
        self.becomes()

    def becomes(self, *modes: str) -> None:
        self._modes.write_text(" ".join(modes))

    def starts(self) -> int:
        """Since this was asked last."""
        count = self._starts.read_text().count("\n") if self._starts.exists() else 0
        self._starts.write_text("")
        return count

    def run(self, **settings: Any) -> AbstractAsyncContextManager[Rig]:
        env = {"STARTS_FILE": str(self._starts), "MODES_FILE": str(self._modes)}
        return running(command=child(), env=env, store=self.store, **settings)


# ---------------------------------------------------------------- HTTP


@dataclass
class Asked:
    """One request as the scripted endpoint got it, and the ways to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    message: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def rpc(self) -> str:
        return str(self.message.get("method", "")) if isinstance(self.message, dict) else ""

    async def reply(self, body: Any = None, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await self.writer.drain()

    async def result(self, value: Json, **headers: str) -> None:
        await self.reply({"jsonrpc": "2.0", "id": self.message["id"], "result": value}, **headers)

    async def error(self, code: int, status: int = 200, data: Any = None, id: Any = ...) -> None:
        error = {"code": code, "message": "no", **({} if data is None else {"data": data})}
        self_id = self.message["id"] if id is ... else id
        await self.reply({"jsonrpc": "2.0", "id": self_id, "error": error}, status)

    async def stream(self, *events: str, end: bool = True) -> None:
        """Each event as the lines of its fields; the connection is closed at the end."""
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        await self.more(*events)
        if end:
            self.writer.close()

    async def more(self, *events: str) -> None:
        self.writer.write("".join(f"{event}\n\n" for event in events).encode())
        await self.writer.drain()

    async def gone(self) -> None:
        await self.reader.read()


def event(message: Json, id: str = "") -> str:
    return (f"id: {id}\n" if id else "") + "data: " + json.dumps({"jsonrpc": "2.0", **message})


Script = Callable[[Asked], Awaitable[None]]


@asynccontextmanager
async def endpoint(script: Script) -> AsyncIterator[tuple[str, list[Asked]]]:
    """A real HTTP server on loopback: its URL, and every request it got."""
    log: list[Asked] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while not writer.is_closing():
                asked = await _read(reader, writer)
                log.append(asked)
                await script(asked)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", log
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(*head[0].split(" ")[:2], headers, json.loads(body) if body else None, reader, writer)


async def legacy_start(asked: Asked, capabilities: Json | None = None, **headers: str) -> bool:
    """The handshake of a legacy server without a push channel. Whether it was about that."""
    if asked.method == "GET":
        await asked.reply(status=405)
    elif asked.method == "DELETE":
        await asked.reply()
    elif asked.rpc == "server/discover":
        await asked.error(-32600, 400, id="server-error")
    elif asked.rpc == "initialize":
        await asked.result(
            {"protocolVersion": "2025-11-25", "capabilities": capabilities or {"tools": {}}, "serverInfo": {}},
            **headers,
        )
    elif asked.rpc.startswith("notifications/") or "method" not in asked.message:
        await asked.reply(status=202)
    else:
        return False
    return True


async def modern_start(asked: Asked, capabilities: Json | None = None) -> bool:
    if asked.rpc == "server/discover":
        await asked.result(
            {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": capabilities or {"tools": {}},
            }
        )
    elif asked.rpc == "initialize":
        await asked.error(-32601, 404)
    else:
        return False
    return True
