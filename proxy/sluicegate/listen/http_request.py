"""One HTTP request on a connection, and the way back for its answer.

Knows HTTP framing and who went away; knows no MCP, no deadline and no parser. An answer is one of two: whole, in one
write, or a stream that is opened, written to and ended.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Protocol

from sluicegate.http.client.connection import Origin
from sluicegate.http.hosts import Address, HostOriginPolicy
from sluicegate.protocol.modern_client import Routing
from sluicegate.runtime.loop_budget import LoopBudget
from sluicegate.runtime.write_coalescer import WriteCoalescer


@dataclass(slots=True)
class RememberedHead:
    """What a connection remembers of a request head that it has seen: most requests differ in their bodies alone.

    A value may stand here only if it follows from the lines of the head, from the accepting socket, and from objects
    that never change. Whatever time, a reload or another request can change is checked for each request: whose the
    credential is, whether it has expired or was revoked, which roles it has, whether anonymous clients get in, which
    worker serves them, whether the session exists, and the body with its size."""

    passed: HostOriginPolicy | None = None
    """The policy that let this head pass as a POST to the MCP endpoint that no page sent. A policy never changes, and
    neither do the listener's paths and limits; a listener with another policy checks the head again."""
    toolset: str | None = None
    """The toolset that the path names at the MCP endpoint, "" for none: a pure function of the path."""
    routing: Routing | None = None
    """What the headers of the modern revision say: a pure function of the lines."""
    passed_on: tuple[str, Origin, bytes] | None = None
    """To which process the request is passed on, and with which head: a function of that process, of the request's own
    lines and of the connection's two addresses."""


Headers = list[tuple[bytes, bytes]]

# A body of which nobody has asked for more than this waits in the peer's buffers, not in ours.
UNASKED: Final = 64 * 1024
STATUS_LINE: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


# Headers of which a request has one; a second could be read by one parser and not by another.
_SINGLE: Final = frozenset(
    {b"host", b"origin", b"authorization", b"content-type", b"content-length", b"content-encoding",
     b"mcp-session-id", b"mcp-protocol-version", b"last-event-id"}
)  # fmt: skip
_REVISION: Final = b"mcp-protocol-version"


class RequestHead(dict[bytes, bytes]):
    """What a request says before its body. Values by lower-case name, of a repeated name the last, and `headers` as
    they came; `duplicate` is one that came twice and must not. Requests of a connection whose lines differ in the
    length alone share what is `remembered` of these lines."""

    __slots__ = ("duplicate", "headers", "method", "path", "query", "remembered")

    def __init__(self, method: str, path: str, query: bytes, headers: Headers) -> None:
        super().__init__(headers)
        self.method, self.path, self.query, self.headers = method, path, query, headers
        self.remembered = RememberedHead()
        # Almost never does a header come twice, and then their number says so: no walk over them.
        self.duplicate = self._merge() if len(self) < len(headers) else None

    def of_length(self, length: bytes) -> "RequestHead":
        """The head of another request, with that Content-Length, and equal to this one otherwise."""
        if self[b"content-length"] == length:
            return self
        headers = [(name, length if name == b"content-length" else value) for name, value in self.headers]
        head = RequestHead(self.method, self.path, self.query, headers)
        head.remembered = self.remembered  # nothing of it follows from the length
        return head

    def _merge(self) -> bytes | None:
        """A single header that came twice: the revision only where it is the only one, since its own check has another
        code. Of `accept` every value counts (RFC 9110 5.2)."""
        seen: set[bytes] = set()
        duplicate: bytes | None = None
        for name, _ in self.headers:
            if name in _SINGLE and name in seen and duplicate in (None, _REVISION):
                duplicate = name
            seen.add(name)
        if b"accept" in seen:
            self[b"accept"] = b",".join(value for name, value in self.headers if name == b"accept")
        return duplicate


class ClientGone(Exception):
    """The client went away before its request was whole."""


class BodyTooLarge(Exception):
    """The body is over the limit."""


HOP: Final = b"sluice-hop"
"""The header of a request that another process of this Sluice passed on. A worker puts the addresses of the client's
connection in it: those of the accepting socket and of the client."""

Give = Callable[[int, bytes], Awaitable[bool]]
"""Passes a connection on: its file descriptor, and the bytes that were read of it. Whether it was taken."""


class HttpConnection(Protocol):
    """What a request needs of the connection it came by."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    outbox: WriteCoalescer
    writable: asyncio.Event
    """Set while the write buffer has room."""
    server: Address | None
    client: Address | None
    is_from_peer: bool
    """Whether another process of this Sluice passes requests on by it."""
    unclaimed: list[bytes] | None
    """The bytes read so far, while `hand_over` may still give the connection to another worker. None once a worker
    serves a request of it."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def answered(self, request: "HttpRequest") -> None:
        """The last byte of the answer was written: the next request may have its turn."""

    def abort(self) -> None: ...

    async def hand_over(self, give: Give) -> bool: ...


def render(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Header lines. Raises `ValueError` for what would read as more or other lines than were meant."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or b"\0" in lines:
        raise ValueError("a line break or NUL in a header")
    return lines


@lru_cache(maxsize=1)  # the same for a whole second, and costly to make anew
def _date(second: int) -> bytes:
    """The Date header: a server with a clock must send it (RFC 9110 6.6.1)."""
    return b"date: %b\r\n" % formatdate(second, usegmt=True).encode("ascii")


class HttpRequest:
    """`on_lost` is called when the client goes away before the answer is complete. `chunks`: the client knows
    HTTP/1.1's chunks; `keeps`: another request may follow on the connection."""

    # Defaults stand in the class: most requests keep them, and setting them in each would cost more.
    is_whole = is_started = is_answered = lost = _is_asked = False
    on_lost: Callable[[], object] | None = None
    budget: LoopBudget | None = None
    """Its client's, where the body is large, and read no faster than that allows."""
    _resting: asyncio.Task[None] | None = None
    size = 0
    """Bytes of the body that are here."""
    _room = UNASKED
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, connection: HttpConnection, head: RequestHead, chunks: bool = True, keeps: bool = True) -> None:
        self.connection = connection
        self.loop = connection.loop
        self.head = head
        self._chunks, self.keeps = chunks, keeps
        self._parts: list[bytes] = []

    @property
    def server(self) -> Address | None:
        """The address of the accepting socket."""
        return self.connection.server or self._forwarded_address(0)

    @property
    def client(self) -> Address | None:
        return self.connection.client or self._forwarded_address(2)

    def _forwarded_address(self, at: int) -> Address | None:
        """From the header of the worker that passed it on: sockets between workers have no addresses."""
        words = self.head[HOP].decode("ascii").split() if self.connection.is_from_peer else []
        return (words[at], int(words[at + 1])) if words and words[at] != "-" else None

    @property
    def declared(self) -> int:
        """Bytes that the body has, 0 where its head does not say."""
        length = self.head.get(b"content-length", b"")
        return int(length) if length.isdigit() else 0

    @property
    def congested(self) -> bool:
        """Whether the client reads so slowly that the write buffer is full."""
        return not self.connection.writable.is_set()

    @property
    def transport(self) -> asyncio.Transport:
        return self.connection.transport

    @property
    def unread(self) -> int:
        """Bytes that were written to the connection and have not left."""
        return self.connection.transport.get_write_buffer_size()

    async def drained(self) -> None:
        """Returns when the write buffer has room, or the client has gone."""
        await self.connection.writable.wait()

    def abort(self) -> None:
        self.connection.abort()

    def feed(self, data: bytes) -> None:
        """Takes a part of the body. If the request is answered already, the rest is dropped."""
        if not self.is_answered:
            self._parts.append(data)
            self.size += len(data)
            if self.size > self._room:
                self.connection.pause_reading()
                self._stir()
        if self.budget is not None and self.budget.read(len(data)):
            self.connection.pause_reading()
            if self._resting is None or self._resting.done():  # one read may be thousands of pieces
                self._resting = self.loop.create_task(self._rest(self.budget))

    async def _rest(self, budget: LoopBudget) -> None:
        """Its client has used up its part: the rest of the body waits in the peer's buffers."""
        await budget.rest_to_read()
        if self.is_answered or (not self.is_whole and self.size <= self._room):
            self.connection.resume_reading()

    def fill(self, body: bytes) -> None:
        """Takes the whole body at once, before a handler can have read it."""
        self._parts.append(body)
        self.size = len(body)
        self.is_whole = True

    def end_body(self) -> None:
        self.is_whole = True
        self._stir()

    def lose(self) -> None:
        """Notes that the client is gone; nobody will read its body."""
        self.lost = True
        self._parts.clear()
        self._stir()
        callback, self.on_lost = self.on_lost, None
        if callback is not None:
            callback()

    def _stir(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def body_at_hand(self, limit: int) -> bytes:
        """The body once it `is_whole`: most requests come with one read, and need not be waited for. Raises
        `BodyTooLarge` and `ClientGone`."""
        if self.lost:
            raise ClientGone
        if self.size > limit:
            raise BodyTooLarge
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def take_body(self, limit: int) -> bytes:
        """The same, and nothing of it stays here: of a large body one copy is enough."""
        body = self.body_at_hand(limit)
        self._parts = []
        return body

    async def part(self) -> bytes:
        """What has come since the part before: all that is left, or more than `UNASKED`. Nothing of it stays here, and
        the rest waits with the peer. Raises `ClientGone`."""
        await self.whole(UNASKED)
        part = self.take_body(self.size)
        self.size = 0
        return part

    async def whole(self, limit: int) -> None:
        """Returns when all of it is here, or more than the limit, or the client has gone."""
        connection = self.connection
        self._room = limit
        is_awaited = not (self.size or self._is_asked) and self.head.get(b"expect", b"").lower() == b"100-continue"
        self._is_asked = True
        if is_awaited and not connection.transport.is_closing():
            connection.outbox.flush()
            connection.transport.write(_CONTINUE)
        while not (self.is_whole or self.lost or self.size > limit):
            connection.resume_reading()
            self._waiter = self.loop.create_future()
            await self._waiter

    async def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """Sends the whole answer. `lines` are header lines and include Content-Length."""
        if self.congested:
            await self.connection.writable.wait()
        self.respond_at_once(status, lines, body)

    def respond_at_once(self, status: int, lines: bytes, body: bytes) -> None:
        """The same, for a caller that has checked that nothing is `congested`."""
        if self.lost:
            return
        connection = self.connection
        close = b"" if self.keeps else _CLOSE
        content = b"" if self.head.method == "HEAD" else body
        # In one piece: two would be two system calls on asyncio's own loop, 13 us each, and twice the work on uvloop.
        answer = b"%b%b%b%b\r\n%b" % (STATUS_LINE[status], _date(int(time.time())), lines, close, content)
        connection.outbox.put(self.loop, connection.transport, answer)
        self._finish()

    async def start(self, status: int, lines: bytes) -> None:
        self.is_started = True
        # RFC 9112 6.1: no transfer coding for an HTTP/1.0 client, whose stream ends with the connection
        coding = (_CHUNKED if self._chunks else b"") + (b"" if self.keeps else _CLOSE)
        await self._write(b"%b%b%b%b\r\n" % (STATUS_LINE[status], _date(int(time.time())), lines, coding))

    async def write(self, data: bytes) -> None:
        await self._write(self._framed(data))

    async def end(self, last: bytes = b"") -> None:
        await self._write(self._framed(last) + (b"0\r\n\r\n" if self._chunks else b""))
        if not self.lost:
            self._finish()

    async def _write(self, data: bytes) -> None:
        connection = self.connection
        if not connection.writable.is_set():
            await connection.writable.wait()
        if data and not self.lost:
            connection.outbox.flush()
            connection.transport.write(data)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunks else data

    def _finish(self) -> None:
        self.is_answered = True
        self.on_lost = None
        self._parts.clear()
        self.connection.answered(self)


Serve = Callable[[HttpRequest], Awaitable[None]]
"""Answers one request. It is cancelled at the end of the drain time."""
