"""One HTTP/1.1 connection to a server, and the one answer that is arriving on it.

The parser is llhttp; this file
is the part that cannot be left to it: who is waiting, when to stop reading, when a connection may be used again.
"""

from __future__ import annotations  # httpx is imported at its first use

import asyncio
import re
import selectors
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, cast

import httptools
import httpx

from sluicegate.runtime.write_coalescer import write_coalescer_of

Origin = tuple[str, bytes, int]
"""Scheme, host, port."""

HIGH_WATER = 256 * 1024
"""Unread body bytes at which reading from the server stops."""
MAX_BARE = 64 * 1024
"""Bytes in a row that may arrive without one byte of body: heads, trailers, chunk extensions, 1xx answers."""
MAX_LINES = 512
"""Of an answer: of its head, its trailers, and the answers before it. The shortest has 4 bytes, and costs as much as a
long one."""
WHOLE = 64 * 1024
"""A body announced as no larger than this is waited for whole, so that its reader wakes up once."""
MAX_CRUMBS = 512
"""Chunks of less than `CRUMB` bytes on average that may come in one read: each costs 5 us."""
CRUMB = 64
CHUNKS_A_SECOND = 2_000.0
"""Chunks that are taken without a pause, beside one for every 64 bytes."""
IDLE_MAX = 4.0
"""Seconds. Common servers close after 5 of silence; a request sent in that moment would be lost."""

_Selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)
"""One system call for one question, where the default makes four. Windows has none such."""
_TIMEOUT = re.compile(rb"timeout=(\d{1,6})")


class _Head(NamedTuple):
    """The head of an answer that came whole in one piece, and what the parser made of it."""

    text: bytes
    size: int  # of head and body
    status: int
    raw: list[tuple[bytes, bytes]]
    headers: dict[bytes, bytes]


class Reply:
    """One answer while it arrives. `headers` holds lower-case names (of a repeated name, the last value);
    `raw` holds all of them. Iterating gives the body as it comes; `close` before its end hangs up."""

    # Found in the class until they change: to set them in each answer costs more.
    status = size = 0
    headed = whole = until_close = complete = False
    error: Exception | None = None
    _timer: asyncio.TimerHandle | None = None
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, wire: HttpClientConnection, bodiless: bool) -> None:
        self.raw: list[tuple[bytes, bytes]] = []
        self.headers: dict[bytes, bytes] = {}
        self.bodiless = bodiless
        self._wire = wire
        self._chunks: list[bytes] = []

    @property
    def content(self) -> bytes | None:
        """The body, if all of it is here and unread; else None: then iterate."""
        if not self.complete:
            return None
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.size += len(data)

    def _take(self) -> bytes:
        data = b"".join(self._chunks)
        self._chunks.clear()
        self.size = 0
        self._wire.resume(self)
        return data

    def stir(self) -> None:
        """There is news: wake the reader, unless only a part of a small body is here."""
        if self._timer is not None and (self.complete or self.error):
            self._timer.cancel()
        waiter = self._waiter
        if waiter is None or waiter.done() or (self.whole and not (self.complete or self.error)):
            return
        waiter.set_result(None)

    def news(self) -> asyncio.Future[None]:
        """What to wait for: first the head (with a small body at once), then more of the body, then its end. `check`
        what it was: a coroutine for both would be one more in the stack of each call."""
        self._waiter = self._wire.loop.create_future()
        return self._waiter

    def check(self) -> None:
        """Raises where the reply broke off."""
        if self.error is not None and not self.size:
            raise self.error

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self.size:
            if self.complete:
                raise StopAsyncIteration
            if self.error is not None:
                raise self.error
            await self.news()
        return self._take()

    def keep(self, data: bytes) -> None:
        """Puts the whole body back, so that it can be read once more."""
        self._chunks[:], self.size = [data], len(data)

    def leave(self, seconds: float) -> None:
        """Nobody reads on; hangs up unless the end has come by then. A timer does it: a task to wait for the end would
        be an eighth of the whole call."""
        if not self.complete:
            self._timer = self._wire.loop.call_later(seconds, self.close)

    def close(self, error: Exception | None = None) -> None:
        """Hangs up if the answer has not ended yet. An answer that has ended no longer owns its connection. Who still
        reads gets the error."""
        self._wire.hang_up(self, error)


class HttpClientConnection(asyncio.Protocol):
    """One connection. `freed` is called when an answer has ended and the next request may be sent."""

    def __init__(
        self,
        origin: Origin,
        freed: Callable[[HttpClientConnection], None],
        lost: Callable[[HttpClientConnection], None],
    ) -> None:
        self.origin = origin
        self.loop = asyncio.get_running_loop()  # kept: asking for it is a system call (getpid) in CPython 3.11
        self._outbox = write_coalescer_of(self.loop)
        self.idle_since = 0.0
        self.idle_max = IDLE_MAX
        self._freed = freed
        self._lost = lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._reply: Reply | None = None
        self._bare = self._lines = 0
        self._head: _Head | None = None
        self._keep = self._paused = self._blocked = self._ended = False
        self._chunks = 0  # in this read
        self._nap: asyncio.TimerHandle | None = None

    def send(self, data: bytes, bodiless: bool) -> Reply:
        """Writes one request, where the connection `is_open`; `bodiless` says that the answer has no body whatever its
        head says (HEAD)."""
        reply = self._reply = Reply(self, bodiless)
        self._bare = self._lines = 0
        self._outbox.put(self.loop, self._transport, data)
        return reply

    @property
    def is_open(self) -> bool:
        return not self._ended and not self._transport.is_closing()

    def has_news(self) -> bool:
        """Whether the socket holds something the loop has not seen: on an idle connection that is its end."""
        with _Selector() as selector:
            selector.register(self._transport.get_extra_info("socket").fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()

    def hang_up(self, reply: Reply, error: Exception | None) -> None:
        if self._reply is reply:
            self._reply = None
            reply.error = error or httpx.ReadError("the answer was closed by its reader")
            self.abort()
            reply.stir()

    def resume(self, reply: Reply) -> None:
        if self._paused and self._reply is reply:
            self._paused = False
            self._read_on()

    def _read_on(self) -> None:
        if not self._paused and self._nap is None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _rest(self, size: int) -> None:
        """Pauses after many small chunks, each of which is work: an event of a stream is one, and has 20 bytes."""
        seconds = (self._chunks - size // 64) / CHUNKS_A_SECOND
        if seconds > 0.01 and self._nap is None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._nap = self.loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._nap = None
        self._read_on()

    def _fail(self, error: httpx.TransportError) -> None:
        reply, self._reply = self._reply, None
        self.abort()
        if reply is not None:
            reply.error = error
            reply.stir()

    # ------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base class

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False

    def data_received(self, data: bytes) -> None:
        # Step 11 of docs/explanation/performance.md
        reply = self._reply
        if reply is None:
            return self.abort()  # an answer that nobody asked for must not meet the next request
        head = self._head
        if head is not None and not self._bare and len(data) == head.size and data.startswith(head.text):
            return self._repeat(reply, head, data)
        before, is_first = reply.size, not self._bare and not reply.headed
        self._chunks = 0
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not reply.complete:
                return self._fail(httpx.RemoteProtocolError(f"not an HTTP/1.1 answer: {error.__context__ or error}"))
            self._keep = False  # a good answer and then noise: the answer counts, the connection does not
        if reply.complete:
            if is_first:
                self._remember(reply, data)
            return self._settle(reply)
        self._limit(reply, 0 if reply.size > before else self._bare + len(data))
        if self._chunks:
            self._rest(reply.size - before)
        if reply.headed:
            reply.stir()

    def _remember(self, reply: Reply, data: bytes) -> None:
        """The same bytes mean the same: a server's answers of equal length differ in their bodies, and, once a second,
        in their date. For the rest the parser is not asked again, nor we by it."""
        text, end, _ = data.partition(b"\r\n\r\n")
        is_plain = self._keep and reply.whole and not reply.bodiless and reply.size == len(data) - len(text) - len(end)
        self._head = _Head(text + end, len(data), reply.status, reply.raw, reply.headers) if is_plain else None

    def _repeat(self, reply: Reply, head: _Head, data: bytes) -> None:
        reply.status, reply.raw, reply.headers = head.status, head.raw, head.headers
        reply.add(data[len(head.text) :])
        reply.headed = reply.complete = True
        self._settle(reply)

    def _limit(self, reply: Reply, bare: int) -> None:
        self._bare = bare
        if bare > MAX_BARE:
            self._fail(httpx.RemoteProtocolError(f"more than {MAX_BARE} bytes of HTTP framing"))
        elif reply.size > HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _settle(self, reply: Reply) -> None:
        self._reply = None
        # An answer may come before the request was wholly written (413): then the rest is still in the way.
        if self._keep and self.is_open and not self._transport.get_write_buffer_size():
            self._freed(self)
        else:
            self.abort()
        reply.stir()

    def eof_received(self) -> None:
        self._ended = True
        reply = self._reply
        if reply is None:
            return
        if reply.headed and reply.until_close:
            reply.complete = True
            self._settle(reply)
        else:
            part = "inside" if reply.headed else "before"
            self._fail(httpx.RemoteProtocolError(f"the server closed the connection {part} its answer"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        if self._nap is not None:
            self._nap.cancel()
        self._lost(self)
        error = httpx.WriteError if self._blocked else httpx.ReadError
        self._fail(error(str(exc) if exc else "the connection was closed"))
        del self._parser  # it holds our methods: a circle

    # ------------------------------------------------------------ called by the parser

    def on_message_begin(self) -> None:
        if self._reply is None or self._reply.complete:
            raise ValueError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        reply = self._reply
        if reply is not None and not reply.headed:  # afterwards they are trailers
            reply.raw.append((name.lower(), value))
        self._count_line()

    def _count_line(self) -> None:
        self._lines += 1
        if self._lines > MAX_LINES:
            raise ValueError(f"more than {MAX_LINES} lines of HTTP framing")

    def on_headers_complete(self) -> None:
        reply = self._reply
        assert reply is not None
        status = self._parser.get_status_code()
        if status < 100:
            raise ValueError("a status that HTTP does not have")
        if status < 200:  # RFC 9110 section 15.2: several of these may come before the answer
            reply.raw.clear()
            return self._count_line()
        headers = reply.headers = dict(reply.raw)
        length = headers.get(b"content-length")
        reply.status = status
        reply.headed = True
        reply.whole = length is not None and len(length) < 10 and int(length) <= WHOLE
        codings = [value.lower() for name, value in reply.raw if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]) or self._parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("framing that readers differ about")  # RFC 9112 6.1 and 2.3
        reply.until_close = length is None and not codings
        self._keep = self._parser.should_keep_alive()
        if b"keep-alive" in headers:
            hint = _TIMEOUT.search(headers[b"keep-alive"])
            self.idle_max = min(IDLE_MAX, int(hint[1]) * 0.8) if hint else IDLE_MAX
        if reply.bodiless:
            reply.complete = True
            self._keep = False  # the parser would take the next answer for this one's body

    def on_chunk_header(self) -> None:
        """Raises `ValueError` where a body comes in crumbs."""
        self._chunks += 1
        if self._chunks > MAX_CRUMBS and self._reply is not None and self._reply.size < CRUMB * self._chunks:
            raise ValueError(f"chunks of less than {CRUMB} bytes")

    def on_body(self, body: bytes) -> None:
        reply = self._reply
        if reply is not None and reply.headed and not reply.bodiless:
            reply.add(body)

    def on_message_complete(self) -> None:
        if self._reply is not None and self._reply.headed:
            self._reply.complete = True

    def __repr__(self) -> str:
        state = "ended" if not self.is_open else repr(self._reply) if self._reply else "idle"
        return f"<HttpClientConnection {self.origin[0]}://{self.origin[1].decode()}:{self.origin[2]} {state}>"
