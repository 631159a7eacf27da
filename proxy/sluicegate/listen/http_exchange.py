"""One HTTP exchange: a request's headers and body in, one answer out, as JSON or as a stream of events.

Which of the two is decided by what there is to send first. Knows HTTP, server-sent events and who went away;
no session, no call, no era.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from sluicegate.listen.http_request import Headers, HttpRequest, render
from sluicegate.listen.settings import StreamTiming
from sluicegate.protocol.jsonrpc import INVALID_REQUEST, RequestId, Response, encode

# Rendered once: these lines are in every answer.
_JSON: Final = b"content-type: application/json\r\ncache-control: no-store\r\ncontent-length: %d\r\n"
_STREAM: Final = render(
    [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-store"),
        # 2026-07-28 basic/transports/streamable-http: SHOULD, or a buffering proxy holds events back
        (b"x-accel-buffering", b"no"),
    ]
)
_EMPTY: Final = b"content-length: 0\r\n"
_ALIVE: Final = b": \n\n"


def error_body(text: str, code: int = INVALID_REQUEST, id: RequestId | None = None) -> bytes:
    return encode(Response(id, error={"code": code, "message": text}))


def event(data: bytes, id: str | None = None) -> bytes:
    """One server-sent event; `data` is JSON and so has no line break."""
    head = b"event: message\n" if id is None else b"id: %b\nevent: message\n" % id.encode()
    return b"%bdata: %b\n\n" % (head, data)


class HttpExchange:
    """`peer` is the client, as far as its connection shows it; `head` is what it said before the body."""

    # As in `HttpRequest`, the class has the values that most keep.
    _timer: asyncio.TimerHandle | None = None
    _task: asyncio.Task[None] | None = None
    _over: asyncio.Future[None] | None = None
    cors: Sequence[tuple[bytes, bytes]] = ()
    preamble: Callable[[], bytes] | None = None
    """What a stream begins with, if it comes to a stream."""
    held = 0
    """Bytes that count as in flight for a large request."""
    started = opened = finished = ending = False
    is_call = False
    """Whether a call comes of it, which pays for itself."""
    spent = 0.0
    """Seconds of work before its answer is begun: of a small body's decoding, and of what it is."""

    def __init__(self, request: HttpRequest, pace: StreamTiming) -> None:
        self.peer, self.head = request, request.head
        self._pace = pace

    @property
    def client(self) -> str:
        return self.peer.client[0] if self.peer.client else "unknown"

    def json(self, status: int, body: bytes, extra: Headers = []) -> Awaitable[None]:  # noqa: B006 - never changed
        return self._whole(status, _JSON % len(body), extra, body)

    def json_at_once(self, status: int, body: bytes) -> bool:
        """The usual answer to the usual request, without a wait; whether it could be given so. Else `json` may wait."""
        # Step 15 of docs/explanation/performance.md
        peer = self.peer
        if self.started or self.cors or peer.lost or peer.congested:
            return False
        self.disarm()
        self.started = self.finished = True
        peer.respond_at_once(status, _JSON % len(body), body)
        return True  # nobody waits for its end: it was no stream

    def empty(self, status: int, extra: Headers = []) -> Awaitable[None]:  # noqa: B006 - never changed
        return self._whole(status, b"" if status == 204 else _EMPTY, extra, b"")  # RFC 9110 8.6: a 204 has no length

    def error(
        self,
        status: int,
        text: str,
        extra: Headers = [],  # noqa: B006 - never changed
        id: RequestId | None = None,
    ) -> Awaitable[None]:
        return self.json(status, error_body(text, id=id), extra)

    async def _whole(self, status: int, lines: bytes, extra: Headers, body: bytes) -> None:
        self.disarm()
        if self.started or self.peer.lost:
            return
        self.started = self.finished = True
        if extra or self.cors:
            lines += render([*extra, *self.cors])
        if self.peer.congested:
            await self.peer.respond(status, lines, body)
        else:
            self.peer.respond_at_once(status, lines, body)
        self._settle()

    def arm(self) -> None:
        """From now on a silence becomes a stream, and a stream shows now and then that it is alive."""
        self._timer = self.peer.loop.call_later(self._pace.open_after, self._tick)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.preamble is not None:
            self.preamble = None  # it may hold who holds us: a circle

    def _tick(self) -> None:
        self._timer = self.peer.loop.call_later(self._pace.keep_alive, self._tick)
        self._task = self.peer.loop.create_task(self._beat())

    async def _beat(self) -> None:
        if self.opened:
            if not self.peer.congested:  # who still reads what came before hears enough of us
                await self.write(_ALIVE)
        else:
            await self.open()

    async def open(self) -> None:
        if self.started or self.peer.lost:
            return
        self.started = self.opened = True
        if self._timer is None:
            self._timer = self.peer.loop.call_later(self._pace.keep_alive, self._tick)
        first = self.preamble() if self.preamble is not None else b""
        await self.peer.start(200, _STREAM + render(self.cors))
        if first:
            await self.write(first)

    async def write(self, data: bytes, patient: bool = False) -> bool:
        """Sends to an open stream; whether it was taken. Unless `patient`, it never waits for a slow reader, whose
        connection is closed instead: what waits here may be a server's connection that others share."""
        if self.finished or self.peer.lost:
            return False
        if self.peer.congested and not patient:
            self.peer.abort()
            return False
        await self.peer.write(data)
        return True

    async def close(self, last: bytes = b"") -> None:
        """Ends the stream. The last event may be large and is waited for as long as the connection lets us."""
        self.disarm()
        if not self.opened or self.finished:
            return
        self.finished = True
        await self.peer.end(last)
        self._settle()

    async def until_over(self) -> None:
        """Returns when the stream was closed or the client went away, or after `end`."""
        if self.finished or self.peer.lost or self.ending:
            return
        self._over = self.peer.loop.create_future()
        self.peer.on_lost = self.end
        await self._over

    def end(self) -> None:
        """Asks the task that holds the stream open to close it."""
        self.ending = True
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _settle(self) -> None:
        self.peer.on_lost = None
        self.end()

    def refuse(self, status: int, text: str) -> None:
        """Ends the exchange, its connection and what works for it now: with an error where none of its answer was
        sent."""
        if self.finished:
            return
        if self.started or self.peer.lost or self.peer.congested:
            self.peer.abort()
            return
        self.disarm()
        self.started = self.finished = True
        self.peer.keeps = False
        body, stop = error_body(text), self.peer.on_lost
        self.peer.respond_at_once(status, _JSON % len(body) + render(self.cors), body)
        self._settle()
        if stop is not None:
            stop()

    async def crash(self, body: bytes) -> None:
        """Ends an exchange that cannot go on, with an error where none of its answer was sent."""
        if self.started:
            self.disarm()
            self.finished = True
            self.peer.abort()
            self._settle()
        else:
            await self.json(500, body)
