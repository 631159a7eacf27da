"""A real listener on loopback in front of a scripted Handler, and clients that speak raw bytes to it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import anyio
import anyio.lowlevel
import httpx

from sluicegate.listen.auth import ClientKey, Identity, IdentitySettings
from sluicegate.listen.auth.issuers import KeySets
from sluicegate.listen.listener import Listener
from sluicegate.listen.server import AddressServer
from sluicegate.listen.settings import ConnectionLimits, ListenSettings
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.model import Call, Failure, Outcome, Result

ACCEPT = "application/json, text/event-stream"
INFO = {"name": "Sluice", "version": "test"}
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
A, B = "key-of-a", "key-of-b"


def key(name: str, secret: str, **more: Any) -> ClientKey:
    return ClientKey(name, sha256(secret.encode()).hexdigest(), **more)


TWO_KEYS = IdentitySettings(keys=(key("a", A, roles=("role:a",), owner="team"), key("b", B)))
ANYBODY = IdentitySettings(anonymous=())


class Scripted:
    """A Handler whose tools do what their name says; it remembers every call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled: list[Any] = []
        self.waiting = anyio.Event()
        self.go = asyncio.Event()
        self.ended = anyio.Event()
        self.listening: list[Call] = []
        self.honours = True
        self.acknowledges = asyncio.Event()
        self.acknowledges.set()

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        if call.method == "server/discover":
            return Result({"supportedVersions": [], "capabilities": {"tools": {}}})
        if call.method == "subscriptions/listen":
            return await self._listen(call)
        if call.method not in ("tools/call", "prompts/get"):
            return Result({"tools": []})
        tool = getattr(self, "tool_" + str(call.params.get("name")), None)
        return await tool(call) if tool else Failure(-32602, f"Unknown tool: {call.params.get('name')}")

    async def _listen(self, call: Call) -> Outcome:
        self.listening.append(call)
        wanted = call.params["notifications"]
        if not self.honours:
            wanted = {key: value for key, value in wanted.items() if key != "resourceSubscriptions"}
        try:
            await self.acknowledges.wait()
            await call.emit(Notification("notifications/subscriptions/acknowledged", {"notifications": wanted}))
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append("listen")
            self.listening.remove(call)
            raise
        return Result({})

    async def tool_echo(self, call: Call) -> Outcome:
        return Result({"content": [{"type": "text", "text": json.dumps(call.params.get("arguments"))}]})

    async def tool_progress(self, call: Call) -> Outcome:
        for step in range(3):
            await call.emit(Notification("notifications/progress", {"progressToken": "t", "progress": step}))
        return Result({"content": []})

    async def tool_wait(self, call: Call) -> Outcome:
        """Waits to be let go; a cancellation is remembered."""
        self.waiting.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call.params.get("arguments"))
            self.ended.set()
            raise
        self.ended.set()
        return Result({"content": [{"type": "text", "text": "waited"}]})

    async def tool_slow(self, call: Call) -> Outcome:
        """Says something, then waits, then says more."""
        await call.emit(Notification("notifications/progress", {"progressToken": "t", "progress": 1}))
        self.waiting.set()
        await self.go.wait()
        await call.emit(Notification("notifications/progress", {"progressToken": "t", "progress": 2}))
        self.ended.set()
        return Result({"content": [{"type": "text", "text": "late"}]})

    async def tool_flood(self, call: Call) -> Outcome:
        """Talks until nobody takes it any more."""
        try:
            for step in range(100_000):
                note = {"level": "info", "data": "x" * 10_000, "step": step}
                await call.emit(Notification("notifications/message", note))
                await asyncio.sleep(0)
        finally:
            self.cancelled.append("flood")
            self.ended.set()
        return Result({"content": []})

    async def tool_big(self, call: Call) -> Outcome:
        self.ended.set()
        return Result({"content": [{"type": "text", "text": "x" * 30_000_000}]})

    async def tool_crash(self, call: Call) -> Outcome:
        raise RuntimeError("secret detail")

    async def tool_endless(self, call: Call) -> Outcome:
        return Result({"content": [], "structuredContent": {"x": float("inf")}})


@dataclass
class Site:
    port: int
    handler: Scripted
    listener: Listener
    server: AddressServer
    identity: Identity
    ended: list[str]
    raws: list["Raw"] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def client(self, secret: str | None = A, **headers: str) -> httpx.AsyncClient:
        head = {"accept": ACCEPT, **headers}
        if secret is not None:
            head["authorization"] = f"Bearer {secret}"
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", headers=head, timeout=30, trust_env=False)

    async def raw(self, data: bytes) -> "Raw":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        self.raws.append(Raw(reader, writer))
        return self.raws[-1]


@dataclass
class Raw:
    """A raw connection: `answer` reads one response with a length, `events` the events of a stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return status, headers, body

    async def closed(self) -> bytes:
        """What is left until the other side closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def pause(self) -> None:
        """Reads nothing more: what comes stays in the buffers between."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def site(
    settings: ListenSettings = ListenSettings(),  # noqa: B008 (frozen)
    identity: IdentitySettings = TWO_KEYS,
    wire: ConnectionLimits = ConnectionLimits(),  # noqa: B008
    drain: float = 0.2,
    identity_clock: Callable[[], float] = time.time,
    keysets: KeySets | None = None,
    **more: Any,
) -> AsyncIterator[Site]:
    handler, ended = Scripted(), []  # type: tuple[Scripted, list[str]]
    who = Identity(identity, identity_clock, keysets)
    listener = Listener(handler, INFO, who, settings, ended.append, **more)
    server = AddressServer(listener, "127.0.0.1", 0, wire, drain)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            port = await tasks.start(server.run)
            here = Site(port, handler, listener, server, who, ended)
            try:
                yield here
            finally:
                for raw in here.raws:
                    raw.close()
                listener.close()
                server.stop(now=True)
                tasks.cancel_scope.cancel()


def modern(method: str, id: Any = 1, name: str | None = None, **params: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and body of a modern request."""
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if name is not None:
        headers["mcp-name"] = name
        params = {"name": name, **params}
    return headers, {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": META}}


def call(name: str, id: Any = 1, **arguments: Any) -> dict[str, Any]:
    """Body of a legacy tools/call."""
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


BAD_BATCHES: dict[str, list[Any]] = {
    "empty": [],
    "an id twice": [call("echo", id=1), call("echo", id=1)],
    "an id twice, with a notification": [
        call("echo", id="a"), {"jsonrpc": "2.0", "method": "notifications/x"}, call("none", id="a"),
    ],
    "initialize": [{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}],
    "too many": [call("echo", id=n) for n in range(51)],
    "a number": [call("echo"), 1],
    "a batch": [call("echo"), [call("echo", id=2)]],
    "no id": [call("echo"), {"jsonrpc": "2.0", "id": None, "method": "x"}],
    "a request of a later revision": [call("echo"), modern("tools/call", 2, "echo")[1]],
}  # fmt: skip
"""Of 2025-03-26; each is refused as a whole, on every transport."""


async def open_session(
    client: httpx.AsyncClient, revision: str = "2025-11-25", initialized: bool = True, **capabilities: Any
) -> str:
    """A legacy session; its id goes into the client's headers too."""
    client.headers.pop("mcp-session-id", None)
    params = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    answer = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"]["protocolVersion"] == revision
    id = answer.headers["mcp-session-id"]
    client.headers["mcp-session-id"] = id
    if initialized:
        done = await client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (done.status_code, done.content) == (202, b"")
    return id


def post(body: bytes | dict[str, Any], *extra: str, secret: str = A, host: str = "localhost") -> bytes:
    """A raw POST; `extra` are header lines."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        "POST /mcp HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {secret}", f"Accept: {ACCEPT}",
        "Content-Type: application/json", *extra,
    ]  # fmt: skip
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in extra):
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def events(text: str) -> list[dict[str, str]]:
    """The events of an SSE body; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if fields:
            found.append(fields)
    return found


def messages(text: str) -> list[dict[str, Any]]:
    return [json.loads(e["data"]) for e in events(text) if e.get("data")]


async def until(holds: Callable[[], bool]) -> None:
    """Returns when it holds: for what the other side of a socket does in its own time. What takes longer finds a
    processor that nobody uses: a budget waits for that, and other tests run beside this one."""
    turns = 0
    while not holds():
        await anyio.sleep(0 if turns < 100 else 0.001)
        turns += 1


def patch(settings: ListenSettings, part: str, **values: Any) -> ListenSettings:
    """The settings with other values in one part."""
    return replace(settings, **{part: replace(getattr(settings, part), **values)})
