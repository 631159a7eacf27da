"""The network between Sluice and a server, and what goes wrong on it: an HTTP/1.1 proxy whose way is changed while it
runs. Also a name server whose answers are. Knows nothing of Sluice.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

Json = dict[str, Any]
Way = Callable[["Wire", bytes, asyncio.StreamWriter], Awaitable[bool]]
"""Deals with one request: whether its connection goes on."""

JSON: Final = "application/json"
TOOL: Final = {"inputSchema": {"type": "object"}}
KEPT: Final = {
    "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "bad", "version": "1"}},
}  # fmt: skip


class Wire:
    """`hits` counts the requests and connections that met the way that is not the healthy one."""

    def __init__(self, upstream: int, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.upstream, self.tls, self.host, self.port = upstream, tls, host, 0
        self.way: Way = relay
        self.hits = 0
        self.healed = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def turn(self, way: Way) -> None:
        self.way = way
        self.healed = asyncio.Event()
        if way in AT_CONNECT:
            self.cut()

    def heal(self) -> None:
        self.way = relay
        self.healed.set()

    def cut(self) -> None:
        for writer in list(self._open):
            reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self.way in AT_CONNECT:
                self.hits += 1
                await self.way(self, b"", writer)
                return
            while request := await read_message(reader):
                self.hits += self.way is not relay
                if not await self.way(self, request, writer):
                    return
        except (OSError, EOFError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def ask(self, request: bytes) -> bytes:
        """What the healthy server says."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            writer.write(request)
            return await read_message(reader)
        finally:
            writer.close()


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """A request or an answer with its body; nothing at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    return head + await reader.readexactly(size)


def reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def http(body: bytes, kind: str = JSON, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def asked(request: bytes) -> Json:
    body = request.partition(b"\r\n\r\n")[2]
    found: Json = json.loads(body) if body else {}
    return found


# ---------------------------------------------------------------- ways


async def relay(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(await wire.ask(request))
    await writer.drain()
    return True


async def slow(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(1)
    return await relay(wire, request, writer)


async def swallow(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    await wire.healed.wait()
    return False


async def reset_at_once(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    reset(writer)
    return False


async def reset_after_request(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    await wire.ask(request)  # it was executed, and nobody is told
    reset(writer)
    return False


async def reset_in_body(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    said = await wire.ask(request)
    writer.write(said[:-10])
    await writer.drain()
    await asyncio.sleep(0.02)  # a reset drops what the peer has not read yet
    reset(writer)
    return False


async def drip(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    for byte in await wire.ask(request):
        writer.write(bytes([byte]))
        await writer.drain()
        if wire.healed.is_set():
            return False
        await asyncio.sleep(1)
    return True


async def half_close(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write_eof()
    await wire.healed.wait()
    return False


def says(make: Callable[[Json], bytes]) -> Way:
    """In place of what the server says, which has executed it."""

    async def way(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
        await wire.ask(request)
        writer.write(make(asked(request)))
        await writer.drain()
        return True

    return way


async def stream_for_ever(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 200}}
    event = b"data: " + json.dumps(note).encode() + b"\n\n"
    while not wire.healed.is_set():
        writer.write(event * 10)
        await writer.drain()
        await asyncio.sleep(0.01)
    return False


def _answer(message: Json, result: Json, id: Any = None) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": message.get("id") if id is None else id, "result": result}).encode()


def _two_results(message: Json) -> bytes:
    events = [_answer(message, {"content": [{"type": "text", "text": text}]}) for text in ("first", "second")]
    return http(b"".join(b"data: " + one + b"\n\n" for one in events), "text/event-stream")


def listing(make: Callable[[], Json]) -> Way:
    """Lists what is made; all else is healthy. It is made once: making 10,000 tools takes 30 ms of a core, which the
    healthy calls need."""
    result = cache(lambda: json.dumps({**KEPT, **make()}))

    async def way(wire: Wire, request: bytes, writer: asyncio.StreamWriter) -> bool:
        message = asked(request)
        if message.get("method") != "tools/list":
            wire.hits -= 1
            return await relay(wire, request, writer)
        id = json.dumps(message.get("id"))
        writer.write(http(f'{{"jsonrpc": "2.0", "id": {id}, "result": {result()}}}'.encode()))
        await writer.drain()
        return True

    return way


def _tools(count: int) -> list[Json]:
    return [{"name": name, **TOOL} for name in ("note", *(f"tool-{number}" for number in range(count)))]


server_error = says(lambda message: http(b"broken", "text/plain", "500 Internal Server Error"))
too_many = says(lambda message: http(b"later", "text/plain", "429 Too Many Requests"))
no_json = says(lambda message: http(b'{"jsonrpc": "2.0", "id": 1, "result": {'))
wrong_id = says(lambda message: http(_answer(message, {"content": []}, "somebody else's")))
two_results = says(_two_results)
wrong_type = says(lambda message: http(_answer(message, {"content": []}), "text/html"))
endless_cursor = listing(lambda: {"tools": _tools(0), "nextCursor": "more"})
many_tools = listing(lambda: {"tools": _tools(10_000)})
AT_CONNECT: Final = (reset_at_once,)


# ---------------------------------------------------------------- bytes, and names


class Relay:
    """Bytes of any protocol. While it `loses`, each connection is reset when an answer comes: what was asked for is
    done, and whoever asked is not told."""

    def __init__(self, upstream: int) -> None:
        self.upstream, self.port, self.loses, self.lost = upstream, 0, False, 0
        self._open: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            return reset(writer)
        pumps = [asyncio.create_task(self._pump(reader, theirs[1], False)),
                 asyncio.create_task(self._pump(theirs[0], writer, True))]  # fmt: skip
        self._open.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
            self._open.discard(task)
        theirs[1].close()
        writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await reader.read(65536):
                if is_answer and self.loses:
                    self.lost += 1
                    return reset(writer)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass


# A name server, for what is found by its name.


class Names(asyncio.DatagramProtocol):
    """A name server. `address` is what it says to whoever asks for an A record; empty: there is no such name; None: it
    says nothing."""

    def __init__(self) -> None:
        self.address: str | None = "127.0.0.1"
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: Any) -> None:
        self.asked += 1
        if self.address is None:
            return
        end = data.index(b"\0", 12) + 5
        is_a = data[end - 4 : end - 2] == b"\0\1" and bool(self.address)
        code = 0 if self.address else 3  # NXDOMAIN
        head = data[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, int(is_a), 0, 0)
        found = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(self.address) if is_a and self.address else b""
        self._transport.sendto(head + data[12:end] + found, sender)  # type: ignore[attr-defined]
