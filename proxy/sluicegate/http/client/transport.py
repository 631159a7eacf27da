"""`WireTransport`: httpx's transport interface on raw asyncio, because plain httpx costs more than all else we do.

Knows HTTP requests and answers; knows no MCP. Use it directly, not under `httpx.AsyncClient`: the client adds
several times what the exchange itself costs.

The cheap way, for a caller on the hot path:

    reply = await transport.exchange(url, headers, body)   # keep `url` (an httpx.URL) and the fixed headers
    reply.status; reply.headers.get(b"content-type")       # a plain dict, lower-case names
    if reply.content is not None: ...                      # the whole body came with the head: nothing to await
    else: async for chunk in reply: ...                    # an event stream: raw bytes as they arrive
    reply.close()                                          # in a `finally`: hangs up unless the answer has ended

`handle_async_request` is the same for those who have an `httpx.Request`, best from `build_request`, and want an
`httpx.Response`, of which `reply_of` is the cheap side. That costs half as much again. `response.headers`,
`await response.aread()` and `await response.aclose()` work as everywhere, for some 1, 15 and 5 microseconds.

The only clock here is that of connecting: how long an answer may take is the caller's to say, and to cancel.
A request is never sent twice. Errors: `ConnectError`, `ConnectTimeout` (nothing was sent), `LocalProtocolError`
(nothing was sent: the request cannot be written safely), `WriteError`, `ReadError`, `RemoteProtocolError` (it may
have been executed). Redirects, cookies, proxies and compression are not done here.
"""

import ssl
from collections.abc import Iterable
from functools import lru_cache

import httpx

from sluicegate.http.client.connection import Origin, Reply
from sluicegate.http.client.pool import HttpConnectionPool, Route

__all__ = ["Reply", "WireTransport", "build_request", "reply_of"]

_EXTENSION = "sluice.reply"
_OURS = frozenset({b"content-length", b"transfer-encoding"})
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_PORTS = {"http": 80, "https": 443}


def build_request(
    url: httpx.URL, headers: list[tuple[bytes, bytes]] | httpx.Headers, content: bytes, method: str = "POST"
) -> httpx.Request:
    """A request without httpx's guesses (Host, Content-Length, charset): the transport adds what framing needs.
    Headers that are the same from call to call are best kept as one `httpx.Headers`: those are not parsed again."""
    return httpx.Request(method, url, headers=headers, stream=httpx.ByteStream(content))


def reply_of(response: httpx.Response) -> Reply | None:
    """The answer as the wire gave it, if `response` came from a `WireTransport`."""
    reply = response.extensions.get(_EXTENSION)
    return reply if isinstance(reply, Reply) else None


class WireTransport(httpx.AsyncBaseTransport):
    """Keep-alive connections to any number of origins. `max_idle` bounds those that wait for work, all origins
    together; those at work, event streams above all, are not bounded. Belongs to one event loop."""

    _url: httpx.URL | None = None  # the last one, and what is in it
    _origin: Origin = "", b"", 0
    _target = b""

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, connect_timeout: float = 5.0, max_idle: int = 256,
        way: Route | None = None,
    ) -> None:  # fmt: skip
        self._pool = HttpConnectionPool(ssl_context, connect_timeout, max_idle, way)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """`exchange` for callers that know httpx alone."""
        stream = request.stream
        if isinstance(stream, httpx.SyncByteStream):
            body = b"".join(stream)
        else:
            body = b"".join([part async for part in stream])
        try:
            reply = await self.exchange(request.url, request.headers.raw, body, request.method)
        except httpx.RequestError as error:
            error.request = request
            raise
        return httpx.Response(
            reply.status, headers=reply.raw, stream=reply, request=request, extensions={_EXTENSION: reply}
        )

    async def exchange(
        self, url: httpx.URL, headers: Iterable[tuple[bytes, bytes]], body: bytes, method: str = "POST"
    ) -> Reply:
        """Returns when the head is there, and a small body with it. Cancelling hangs up."""
        if url is not self._url:  # httpx takes its URLs apart anew each time: 2 us
            self._origin, self._target, self._url = _origin(url), url.raw_path, url
        origin = self._origin
        head = _head(method, origin, self._target, tuple(headers))
        wire = self._pool.take(origin) or await self._pool.dial(origin)
        reply = wire.send(_with_body(head, method, body), method == "HEAD")
        try:
            await reply.news()
        except BaseException:
            reply.close()
            raise
        reply.check()
        return reply

    async def aclose(self) -> None:
        await self._pool.close()

    def __repr__(self) -> str:
        return f"<WireTransport {self._pool!r}>"


def _origin(url: httpx.URL) -> Origin:
    scheme = url.scheme
    if scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"not an http or https address: {scheme}")
    return scheme, url.raw_host, url.port or _PORTS[scheme]


def _with_body(head: bytes, method: str, body: bytes) -> bytes:
    """Head and body as one piece, for one write."""
    if body or method not in _BODILESS:
        return b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)
    return head + b"\r\n\r\n"


@lru_cache(maxsize=256)  # from call to call a server's head hardly changes, and checking it costs more than finding it
def _head(method: str, origin: Origin, target: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The request line and the headers without their end. Raises `httpx.LocalProtocolError` for what would read
    as more or other lines than were meant: names and values may come from far away (a server's schema, a client)."""
    if not method.isalpha() or not method.isascii() or b" " in target:
        raise httpx.LocalProtocolError("a malformed method or target")
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target)]
    if all(name.lower() != b"host" for name, _ in headers):
        lines.append(b"host: " + _authority(origin))
    lines += [b"%b: %b" % header for header in headers if header[0].lower() not in _OURS]
    head = b"\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise httpx.LocalProtocolError("a line break or NUL in a header")
    return head


def _authority(origin: Origin) -> bytes:
    scheme, host, port = origin
    name = b"[%b]" % host if b":" in host else host
    return name if port == _PORTS[scheme] else b"%b:%d" % (name, port)
