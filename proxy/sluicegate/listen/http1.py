"""One HTTP/1.1 connection: bytes in, requests out, and the bounds on what a peer may do to us.

The parser is llhttp; this file is what cannot be left to it. A deadline for every request, which a drip of bytes does
not move. Bounds on headers, on what is read ahead and on what a slow reader leaves lying. One Host and no second way
to read it. Requests that arrive together are answered one after the other. Knows HTTP and no MCP.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, cast

import httptools

from sluicegate.http.hosts import Address, authority
from sluicegate.listen.http_exchange import error_body
from sluicegate.listen.http_request import STATUS_LINE, Give, Headers, HttpRequest, RequestHead, Serve
from sluicegate.listen.settings import ConnectionLimits
from sluicegate.runtime.write_coalescer import write_coalescer_of

_MAX_PIPELINED: Final = 8
_MAX_LINES: Final = 128
_FEW_LINES: Final = 64
"""Of a head that is remembered: in memory each takes 200 bytes, for as long as its connection may be idle."""
_FEW_CHUNKS: Final = 128
_CHUNK: Final = 512
"""Bytes that the chunks of a body must hold on average, after the first few. Each chunk costs time: bodies in chunks of
one byte could take the whole event loop."""
_SAMPLE: Final = 64  # connections among which one is chosen that makes room
# RFC 3986 2.3 and 6.2.2: an escape of a letter, digit, "-", ".", "_" or "~" has another spelling, that of a slash,
# backslash or control character another reading. A fragment is no part of a request target (RFC 9112 3.2).
_NOT_CANONICAL: Final = re.compile(
    rb"[\\]|%(?:25)*(?:[01][0-9A-Fa-f]|2[DdEeFf]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaCcFf]|6[1-9A-Fa-f]|7[0-9AaEeFf])"
    rb"|%(?![0-9A-Fa-f]{2})|/\.\.?(?=[/;]|\Z)"
)
# What makes more of a request than a head and a body of known length.
_SPECIAL: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te"})


class _Refused(Exception):
    """Leaves the parser from inside one of its callbacks; the connection knows the answer."""


class _RepeatedRequest(NamedTuple):
    """The head of a request that came whole in one piece: what stood before and behind the digits of its
    Content-Length, and what was made of it."""

    before: bytes
    after: bytes
    head: RequestHead


class RequestParser:
    """Turns the bytes of one connection into requests, which `connection` accepts as soon as their heads are whole.
    llhttp takes the bytes apart; here is what cannot be left to it."""

    def __init__(self, connection: "Http1", most: int) -> None:
        self._connection, self._most = connection, most
        self._llhttp = httptools.HttpRequestParser(self)
        self._refusal = (400, "not a valid HTTP/1.1 request")
        self.is_receiving = True
        self.incoming: HttpRequest | None = None  # from the end of its head to the end of its body
        self._progressed = False
        self._url = b""
        self._host: bytes | None = None  # that of an earlier request, judged
        self._headers: Headers = []
        self._read = self.unheaded = self._blanks = self._chunks = self._body = self._trailers = 0
        self._repeatable: _RepeatedRequest | None = None

    def feed(self, data: bytes) -> None:
        repeatable, connection = self._repeatable, self._connection
        if repeatable is not None and not (self.is_receiving or connection.requests):
            before, after, head = repeatable
            if data.startswith(before):
                length, _, body = data[len(before) :].partition(after)
                if length == b"%d" % len(body):
                    request = HttpRequest(connection, head.of_length(length))
                    request.fill(body)
                    connection.accept(request)
                    return
        is_first = not (self.is_receiving or connection.requests)
        self._read = len(data)
        self._progressed = False
        try:
            self._llhttp.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            connection.refuse(*self._refusal)
            return
        if self.is_receiving and not self._progressed:  # head, trailers, chunk extensions: llhttp may hold them unseen
            self.unheaded += self._read
            if self.unheaded > self._most:
                connection.refuse(431, "headers too large")
                return
        if self.is_receiving:
            connection.await_rest()
        elif is_first and len(connection.requests) == 1:
            self._remember(connection.requests[0], data)

    def _remember(self, request: HttpRequest, data: bytes) -> None:
        """Remembers the head of this request: a client's requests differ in their bodies and the lengths of those
        alone, and their heads need not be parsed again. Only where the length stands once and in one form, so that the
        end of a body is beyond doubt."""
        text, end, body = data.partition(b"\r\n\r\n")
        head, length = request.head, b"%d" % len(body)
        is_plain = request.keeps and len(head) == len(head.headers) and head.keys().isdisjoint(_SPECIAL)
        self._repeatable = None
        if is_plain and head.get(b"content-length") == length and len(head) <= _FEW_LINES:
            at = text.find(length, text.lower().index(b"\r\ncontent-length:"))
            self._repeatable = _RepeatedRequest(text[:at], text[at + len(length) :] + end, head)

    def forget(self) -> None:
        """Parses the next head, though it may be that of the request before."""
        self._repeatable = None

    def end(self) -> None:
        del self._llhttp, self._connection  # they hold our methods, and us: circles

    def on_message_begin(self) -> None:
        self.is_receiving = True
        self.incoming = None
        self.unheaded = self._blanks = self._chunks = self._body = self._trailers = 0
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.incoming is None:  # else a trailer: nobody here may mistake it for a header
            stripped = value.rstrip(b" \t")  # RFC 9112 5: blanks behind a value are no part of it
            self._blanks += len(value) - len(stripped)
            self._headers.append((name.lower(), stripped))
            if len(self._headers) > _MAX_LINES:  # the shortest has 4 bytes, and costs as much as a long one
                raise self._leave(431, "too many headers")
        else:
            self._trailers += 1
            if self._trailers > _MAX_LINES:
                raise self._leave(431, "too many trailers")

    def on_headers_complete(self) -> None:
        self._check(dict(self._headers))
        parser = self._llhttp
        is_1_1 = parser.get_http_version() == "1.1"
        method, (path, query) = parser.get_method().decode("ascii"), _split(self._url)
        keeps = is_1_1 and parser.should_keep_alive() and not self._connection.is_retiring
        self.incoming = HttpRequest(self._connection, RequestHead(method, path, query, self._headers), is_1_1, keeps)
        self._connection.accept(self.incoming)

    def _check(self, head: dict[bytes, bytes]) -> None:
        """Refuses heads that no request may have, whatever its target. Raises `_Refused`."""
        if self.unheaded + self._read > self._most:  # else there was no room for too many: no need to count
            self._check_size()
        host = head.get(b"host")
        if host is None or (len(head) < len(self._headers) and sum(name == b"host" for name, _ in self._headers) > 1):
            raise self._leave(400, "exactly one Host header is required")
        if host != self._host:  # a connection says the same one each time
            if authority(host.decode("latin-1")) is None:
                raise self._leave(400, "malformed Host header")
            self._host = host
        if b"_" in b"".join(head):  # some gateways read Mcp_Name as Mcp-Name
            raise self._leave(400, "header names must not have underscores")
        # RFC 9110 5.5: some read UTF-8, others Latin-1.
        if not b"".join([value for _, value in self._headers]).isascii():
            raise self._leave(400, "header values must be ASCII")
        if not self._url.startswith(b"/"):  # absolute-form would bring a second, unchecked authority
            raise self._leave(400, "the request target must be a path")
        if b"#" in self._url or _NOT_CANONICAL.search(self._url.partition(b"?")[0]):
            raise self._leave(400, "the path is not in its canonical form")
        self._check_framing(head)
        if self._llhttp.should_upgrade():  # the parser would give the body away as another protocol's bytes
            raise self._leave(400, "no protocol to upgrade to")
        if len(self._connection.requests) > _MAX_PIPELINED:
            raise self._leave(400, "too many requests at once on one connection")

    def _check_framing(self, head: dict[bytes, bytes]) -> None:
        """RFC 9112 2.3, 6.1 and 6.2: what intermediaries read differently is refused, though the parser takes it."""
        version = self._llhttp.get_http_version()
        if version not in ("1.0", "1.1"):
            raise self._leave(400, "the version must be HTTP/1.1 or HTTP/1.0")
        coding, length = head.get(b"transfer-encoding"), head.get(b"content-length", b"0")
        is_one = sum(name == b"transfer-encoding" for name, _ in self._headers) < 2
        if coding is not None and (coding.lower() != b"chunked" or not is_one or version == "1.0"):
            raise self._leave(400, "Transfer-Encoding must be chunked, once")
        if length != b"%d" % int(length):
            raise self._leave(400, "Content-Length must be a plain number")

    def _check_size(self) -> None:
        if self._blanks + sum(len(name) + len(value) + 4 for name, value in self._headers) > self._most:
            raise self._leave(431, "headers too large")
        if len(self._url) > self._most:
            raise self._leave(431, "request target too long")

    def _leave(self, status: int, text: str) -> _Refused:
        self._refusal = (status, text)
        return _Refused(text)

    def on_chunk_header(self) -> None:
        """Raises `_Refused` where a body comes in crumbs."""
        self._chunks += 1
        if self._chunks > _FEW_CHUNKS + self._body // _CHUNK:
            raise self._leave(400, f"the body is in chunks of less than {_CHUNK} bytes on average")

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        self._body += len(body)
        if self.incoming is not None:
            self.incoming.feed(body)

    def on_message_complete(self) -> None:
        self.is_receiving = False
        self._headers = []
        self._connection.end_deadline()
        incoming, self.incoming = self.incoming, None
        if incoming is not None:
            incoming.end_body()


class IdleTimer:
    """Calls `expired` where a connection has rested for so many seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expired: Callable[[], None]) -> None:
        self._loop, self._seconds, self._expired = loop, seconds, expired
        self.since = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def rest(self) -> None:
        """Notes the time only: a timer set and cancelled with every request would cost more."""
        self.since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        left = self.since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self._expired()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        del self._expired  # a circle


class Http1(asyncio.Protocol):
    """`connections` and `tasks` are sets of the server's, by which it drains: we keep ourselves in them. `first` was
    read by somebody else, who gave the connection to us."""

    transport: asyncio.Transport

    def __init__(
        self, serve: Serve, wire: ConnectionLimits, connections: "set[Http1]", tasks: "set[asyncio.Task[None]]",
        first: bytes = b"",
    ) -> None:  # fmt: skip
        self._serve, self._wire, self._first = serve, wire, first
        self.unclaimed: list[bytes] | None = [] if wire.is_shared else None  # no request in it has an answer
        self._connections, self._tasks = connections, tasks
        self.loop = asyncio.get_running_loop()
        self.outbox = write_coalescer_of(self.loop)
        self.writable = asyncio.Event()
        self.writable.set()
        self._parser = RequestParser(self, wire.headers)
        self.requests: deque[HttpRequest] = deque()  # those without a whole answer; the oldest has its turn
        self._worker: asyncio.Task[None] | None = None
        self._wanted: asyncio.Future[None] | None = None  # while the worker has nothing to do
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.idle = IdleTimer(self.loop, wire.idle, self._rested)
        self._deaf = self._lingers = self._paused = self._is_lost = self._extended = self.is_retiring = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.accepted(transport):
            self.opened(transport)
            if self._first:
                first, self._first = self._first, b""
                self.data_received(first)

    def accepted(self, transport: asyncio.BaseTransport) -> bool:
        """Counts the connection, and sets its deadline. False where there is no room: it has ended."""
        self.transport = self._plain = cast(asyncio.Transport, transport)  # uvloop's has no such base class
        if len(self._connections) >= self._wire.connections and not _make_room(self._connections):
            self.transport.abort()
            return False
        self._connections.add(self)
        self._deadline = self.loop.call_later(self._wire.head_deadline, self._too_late)
        return True

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """From here on bytes of HTTP come and go by `transport`: the one that was accepted, or TLS over that."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._wire.write_buffer)
        self.server = _address(transport.get_extra_info("sockname"))
        self.client = _address(transport.get_extra_info("peername"))
        self.is_from_peer = self._wire.is_for_peers or (self._wire.is_shared and self.server is None)

    @property
    def is_idle(self) -> bool:
        """Whether it has no whole request that is not answered: the body of one may never end."""
        late = self._parser.incoming
        return len(self.requests) == (late is not None and not (late.is_started or late.is_answered))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self.end_deadline()
        self.resume_writing()
        for request in self.requests:
            request.lose()
        self._is_lost = True
        self._wake()
        self._parser.end()
        self.idle.end()

    def shutdown(self) -> None:
        """After the last answer that is due, or a moment: a balancer may have sent a request just now."""
        if self.requests:
            self.requests[-1].keeps = False
        elif self.is_retiring:
            self.loop.call_later(self._wire.linger, self._close_idle)
        else:
            self._close()

    def _close_idle(self) -> None:
        if not self.requests and not self._is_lost:
            self._close()

    def _rested(self) -> None:
        if not (self.requests or self._parser.is_receiving):  # else it rests again
            self._close()

    def retire(self) -> None:
        """The next request is the last one: its answer says so (RFC 9112 9.6), and no request meets a closed door."""
        self.is_retiring = True
        self._parser.forget()

    def abort(self) -> None:
        """Ends the connection now, after the answers that are already written."""
        self.outbox.flush()
        self.transport.abort()

    def _close(self, before: int = -1) -> None:
        self.outbox.flush()
        if (left := _closed_while_read(self.transport, self._plain, before)) is not None:
            self._deadline = self.loop.call_later(self._wire.stall, self._close, left)

    def eof_received(self) -> None:
        """The peer says no more: what was answered leaves before the connection ends."""
        self._close()

    def data_received(self, data: bytes) -> None:
        # Step 1 of docs/explanation/performance.md
        if self._deaf:
            return
        if self.unclaimed is not None:
            self.unclaimed.append(data)
        self._parser.feed(data)

    def await_rest(self) -> None:
        """Starts the timer for a request that came in pieces; most come whole and need none."""
        if self._deadline is None:
            self._extended = self._parser.incoming is not None
            wait = self._wire.request_deadline if self._extended else self._wire.head_deadline
            self._deadline = self.loop.call_later(wait, self._too_late)

    def end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        """Absolute: a drip of bytes does not move it. Where we stopped reading, the peer is not to blame."""
        self._deadline = None
        rest = self._wire.request_deadline - self._wire.head_deadline
        if self._paused:
            self._deadline = self.loop.call_later(self._wire.request_deadline, self._too_late)
        elif self._parser.incoming is not None and not self._extended:
            self._extended = True
            self._deadline = self.loop.call_later(rest, self._too_late)
        elif self._parser.incoming is None and not self._parser.unheaded:
            # Nothing was asked: an answer would be taken for that to what is asked next. The last may be on its way.
            if not self.transport.get_write_buffer_size():
                return self.abort()
            self._close()
            self._deadline = self.loop.call_later(self._wire.linger, self.abort)
        else:
            self.refuse(408, "the request took too long")

    def refuse(self, status: int, text: str) -> None:
        """An answer if no other is due, then the end of the connection. The peer may still be talking: closing
        over unread bytes resets the connection and would take the answer with it, so we listen on, deaf."""
        if self._deaf or self.transport.is_closing():
            return
        self._deaf = True
        broken = self._parser.incoming
        if broken is not None and self.requests and self.requests[-1] is broken and not broken.is_started:
            self.requests.pop()
            broken.lose()
        if self.requests:
            self.requests[-1].keeps = False  # what came after a whole request is not that one's fault
            return
        self._lingers = True
        body = error_body(text)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.outbox.flush()
        self.transport.write(STATUS_LINE[status] + head + body)
        if not self.transport.can_write_eof():
            self._close()
            return
        self.transport.write_eof()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self._wire.linger, self.transport.abort)

    def pause_reading(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def accept(self, request: HttpRequest) -> None:
        self.requests.append(request)
        if self._worker is None:
            self._worker = self.loop.create_task(self._work())
            self._tasks.add(self._worker)
        elif len(self.requests) == 1:
            self._wake()
        else:
            self.pause_reading()

    async def _work(self) -> None:
        """Answers requests as long as there is a connection, in one task for all of them."""
        # Step 2 of docs/explanation/performance.md
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            while not self._is_lost:
                if not self.requests:
                    self._wanted = self.loop.create_future()
                    await self._wanted
                    continue
                request = self.requests[0]
                await self._serve(request)
                if not request.is_answered or task.cancelling():
                    break  # lost or left alone; or cancelled too late for this request, and never for the next
                del request  # its head may be large, and the next one late
        except asyncio.CancelledError:
            pass  # the end of the drain time: no crash that has to be logged
        finally:
            self._tasks.discard(task)
            if not self._lingers:
                self.abort()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def answered(self, request: HttpRequest) -> None:
        self.requests.popleft()
        if self.unclaimed is not None:
            self.unclaimed = None if self.requests or self._parser.is_receiving else []
        if not request.keeps:
            self._close()
        elif not self.transport.is_closing():
            self.resume_reading()
            if not self.requests:
                self.idle.rest()

    async def hand_over(self, give: Give) -> bool:
        """Has `give` take the connection, beginning with the current request. True if it did, or if the client has
        gone. Earlier answers are written to the socket first. No worker may have claimed the connection."""
        self.pause_reading()
        self.outbox.flush()
        self.transport.set_write_buffer_limits(high=0)
        await self.writable.wait()
        if self._is_lost or self.transport.is_closing():
            return True
        assert self.unclaimed is not None, "only where nobody has claimed it"
        is_given = await give(self.transport.get_extra_info("socket").fileno(), b"".join(self.unclaimed))
        if not (is_given or self._is_lost):
            self.transport.set_write_buffer_limits(high=self._wire.write_buffer)
        return is_given

    def pause_writing(self) -> None:
        self.writable.clear()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._wire.stall, self.transport.abort)

    def resume_writing(self) -> None:
        self.writable.set()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def _closed_while_read(transport: asyncio.Transport, plain: asyncio.Transport, before: int) -> int | None:
    """Closes it after what is written has left, and gives the bytes left, for the next look; None where there is none.
    Aborts it where the peer has read nothing since `before` was left: only a full write buffer has a deadline of its
    own. `plain` is what carries it, if it is TLS, which does not count what is there and may wait for its peer."""
    if not transport.is_closing():  # asyncio's TLS forgets its connection when it is closed twice
        transport.close()
    is_tls = plain is not transport
    left = transport.get_write_buffer_size() + (plain.get_write_buffer_size() if is_tls else 0)
    if left == before:
        transport.abort()
        plain.abort()
        return None
    return left if left or is_tls else None


def _make_room(connections: set[Http1]) -> bool:
    """Ends the connection that has been without a request for longest, among some: whoever opens many has most of
    them. One whose body is on its way goes only where all have a request, and last where Sluice itself does not read
    it. False where all have whole requests."""
    idle = [one for one in islice(connections, _SAMPLE) if one.is_idle]
    if idle:
        longest = min(idle, key=lambda one: (one._paused, len(one.requests), one.idle.since))
        connections.discard(longest)
        longest.abort()
    return bool(idle)


@lru_cache(maxsize=256)
def _split(target: bytes) -> tuple[str, bytes]:
    """Path and query of a request target; no escape is decoded, for routes have none."""
    url = httptools.parse_url(target)
    return url.path.decode("ascii"), url.query or b""


def _address(name: object) -> Address | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
