"""One HTTP exchange: a request's headers and body in, one answer out, as JSON or as a stream of events.

Which of the two is decided by what there is to send first. Knows HTTP, server-sent events and who went away;
no session, no call, no era.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from proxy.listen.gate import Address, Headers
from proxy.listen.settings import Pace
from proxy.message import INVALID_REQUEST, RequestId, Response, encode

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

EXTENSION: Final = "sluice.disconnect"

_JSON: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_STREAM: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    # 2026-07-28 basic/transports/streamable-http: SHOULD, or a buffering proxy holds events back
    (b"x-accel-buffering", b"no"),
]
_EMPTY: Final = [(b"content-length", b"0")]
_ALIVE: Final = b": \n\n"

# Headers of which a request has one; a second could be read by one parser and not by another.
_SINGLE: Final = frozenset(
    {b"host", b"origin", b"authorization", b"content-type", b"content-length", b"content-encoding",
     b"mcp-session-id", b"mcp-protocol-version", b"last-event-id"}
)  # fmt: skip


def error_body(text: str, code: int = INVALID_REQUEST, id: RequestId | None = None) -> bytes:
    return encode(Response(id, error={"code": code, "message": text}))


def event(data: bytes, id: str | None = None) -> bytes:
    """One server-sent event; `data` is JSON and so has no line break."""
    head = b"event: message\n" if id is None else b"id: %b\nevent: message\n" % id.encode()
    return b"%bdata: %b\n\n" % (head, data)


class Gone(Exception):
    """The client went away before its request was whole."""


class TooLarge(Exception):
    """The body is over the limit."""


class Peer:
    """The client of one exchange, as far as a listener must know it: whether it is still there, and whether it
    reads. This plain one stands in where the server below says nothing of connections."""

    __slots__ = ("lost", "on_lost")

    def __init__(self) -> None:
        self.lost = False
        self.on_lost: Callable[[], object] | None = None

    @property
    def congested(self) -> bool:
        """It reads so slowly that the write buffer is full."""
        return False

    def abort(self) -> None:
        """Closes the connection now."""
        self.lose()

    def lose(self) -> None:
        """Told by whoever sees the connection end."""
        self.lost = True
        callback, self.on_lost = self.on_lost, None
        if callback is not None:
            callback()


class Exchange:
    __slots__ = ("_over", "_pace", "_receive", "_send", "_task", "_timer", "_watcher", "cors", "duplicate", "ending",
                 "finished", "forwarded", "head", "headers", "method", "opened", "path", "peer", "preamble", "server",
                 "started")  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, pace: Pace) -> None:
        self._receive, self._send, self._pace = receive, send, pace
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: Headers = scope["headers"]
        self.server: Address | None = scope.get("server")
        extension = scope.get("extensions", {}).get(EXTENSION)
        self.peer: Peer = extension or Peer()
        self._watcher: asyncio.Task[None] | bool = extension is not None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self.cors: Headers = []
        self.preamble: Callable[[], bytes] | None = None  # what a stream begins with, if it comes to a stream
        self.started = self.opened = self.finished = self.ending = False
        self._read_head()

    def _read_head(self) -> None:
        """The single headers in one pass, and whether one of them came twice."""
        head: dict[bytes, bytes] = {}
        self.duplicate: bytes | None = None
        self.forwarded = False
        for name, value in self.headers:
            if name in _SINGLE:
                if name in head:
                    self.duplicate = name
                head[name] = value
            elif name == b"accept":
                head[name] = head[name] + b"," + value if name in head else value
            elif name == b"forwarded" or name.startswith(b"x-forwarded-"):
                self.forwarded = True
        self.head = head

    def __repr__(self) -> str:
        state = "finished" if self.finished else "stream" if self.opened else "waiting"
        return f"Exchange({self.method} {self.path} {state}{' lost' if self.peer.lost else ''})"

    def is_lost(self) -> bool:
        return self.peer.lost

    # ------------------------------------------------------------ in

    async def body(self, limit: int) -> bytes:
        """The whole body, counted while it comes. Raises `TooLarge` and `Gone`."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise TooLarge
            if not message.get("more_body") and not parts:
                return bytes(part)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    def on_lost(self, callback: Callable[[], object] | None) -> None:
        """Calls back when the client goes away before the answer is complete. One at a time; None forgets."""
        self.peer.on_lost = callback
        if callback is not None and self._watcher is False:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.peer.lose()

    # ------------------------------------------------------------ out: one message

    async def json(self, status: int, body: bytes, extra: Headers = []) -> None:  # noqa: B006 (never changed)
        await self._whole(status, [*_JSON, (b"content-length", b"%d" % len(body)), *extra, *self.cors], body)

    async def empty(self, status: int, extra: Headers = []) -> None:  # noqa: B006
        length = [] if status == 204 else _EMPTY  # RFC 9110 8.6: a 204 has none
        await self._whole(status, [*length, *extra, *self.cors], b"")

    async def error(self, status: int, text: str, extra: Headers = [], id: RequestId | None = None) -> None:  # noqa: B006
        await self.json(status, error_body(text, id=id), extra)

    async def _whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.disarm()
        if self.started or self.peer.lost:
            return
        self.started = self.finished = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
        self._settle()

    # ------------------------------------------------------------ out: a stream

    def arm(self) -> None:
        """From now on a silence becomes a stream, and a stream shows now and then that it is alive."""
        self._timer = asyncio.get_running_loop().call_later(self._pace.open_after, self._tick)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._pace.keep_alive, self._tick)
        self._task = loop.create_task(self._beat())

    async def _beat(self) -> None:
        if self.opened:
            await self.write(_ALIVE)
        else:
            await self.open()

    async def open(self) -> None:
        if self.started or self.peer.lost:
            return
        self.started = self.opened = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pace.keep_alive, self._tick)
        first = self.preamble() if self.preamble is not None else b""
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_STREAM, *self.cors]})
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
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        return True

    async def close(self, last: bytes = b"") -> None:
        """Ends the stream. The last event may be large and is waited for as long as the connection lets us."""
        self.disarm()
        if not self.opened or self.finished:
            return
        self.finished = True
        if not self.peer.lost:
            await self._send({"type": "http.response.body", "body": last})
        self._settle()

    # ------------------------------------------------------------ the end

    async def until_over(self) -> None:
        """Returns when the stream was closed or the client went away, or after `end`."""
        if self.finished or self.peer.lost or self.ending:
            return
        self._over = asyncio.get_running_loop().create_future()
        self.on_lost(self.end)
        await self._over

    def end(self) -> None:
        """Asks whoever holds the stream open to close it."""
        self.ending = True
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _settle(self) -> None:
        self.peer.on_lost = None
        if isinstance(self._watcher, asyncio.Task):
            self._watcher.cancel()
        self.end()

    async def crash(self, body: bytes) -> None:
        """The answer to an exchange that cannot go on."""
        if self.started:
            self.disarm()
            self.finished = True
            self.peer.abort()
            self._settle()
        else:
            await self.json(500, body)
