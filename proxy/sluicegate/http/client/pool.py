"""The HTTP/1.1 client: connections to any number of origins, and how they come about.

It stands on raw asyncio, because httpx costs more than all else that a call does; httpx's URL and its errors are used.

    reply = await client.exchange(url, headers, body)      # keep `url` (an httpx.URL) and the fixed headers
    reply.status; reply.headers.get(b"content-type")       # a plain dict, lower-case names
    if reply.content is not None: ...                      # the whole body came with the head: nothing to await
    else: async for chunk in reply: ...                    # an event stream: raw bytes as they arrive
    reply.close()                                          # in a `finally`: hangs up unless the answer has ended

The only clock here is that of connecting: how long an answer may take is the caller's to say, and to cancel.
Nothing is ever sent twice: a request that met a dying connection fails, and the caller decides what that means. So a
connection is used again only while the server can be expected to keep it open. Errors: `ConnectError`, `ConnectTimeout`
(nothing was sent), `LocalProtocolError` (nothing was sent: the request cannot be written safely), `WriteError`,
`ReadError`, `RemoteProtocolError` (it may have been executed). Redirects, cookies and compression are not done here.
"""

from __future__ import annotations  # httpx is imported at its first use

import asyncio
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import httpx

from sluicegate.http.addresses import is_literal
from sluicegate.http.client.connection import IDLE_MAX, HttpClientConnection, Origin, Reply

IDLE_TRUSTED = 0.05
"""Seconds of silence after which the socket itself is asked whether the server has hung up."""
STAGGER = 0.25
"""Seconds between two attempts to connect (RFC 8305 section 5)."""
_OURS: Final = frozenset({b"content-length", b"transfer-encoding"})
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_PORTS: Final = {"http": 80, "https": 443}
_MAX_TUNNEL_HEAD: Final = 16 * 1024
_END: Final = b"\r\n\r\n"
AT_ONCE: Final = 32
NAMED_AT_ONCE: Final = 16
"""Lookups at once of hosts that clients named, and as many for each issuer and each login. More wait."""

Info = tuple[int, int, int, str, tuple[Any, ...]]
_Found = Sequence[Info] | OSError | UnicodeError


@dataclass(frozen=True, slots=True)
class Route:
    """How servers are reached: through a `proxy`, or at those addresses of a host that `permit` gives back. It raises
    `OSError` if there is none."""

    permit: Callable[[str, Sequence[str]], Sequence[str]] = lambda host, addresses: addresses
    proxy: str | None = None
    dial: Callable[[str], Awaitable[socket.socket]] | None = None
    """Opens a Unix socket for a host's name. Raises `OSError`."""
    named_by: str = ""
    """What kind of peer named the host, empty for the operator."""

    def check(self, host: str) -> str:
        """The proxy judges names; an address is judged here."""
        if is_literal(host):
            self.permit(host, [host])
        return host


_LARGE_HEAD: Final = 16 * 1024
"""Bytes. 256 heads of this size may be remembered; arguments of a call may make one of megabytes."""


class LargeHead(Exception):
    """A head that is not remembered: a cache keeps what a function returns, and nothing that it raises."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head


class HttpClient:
    """Of the idle connections `max_idle` are kept, of all origins together; the busy ones are only counted, because a
    stream that stays open for a day starves nobody. Last in, first out, so that a quiet pool shrinks. It belongs to one
    event loop."""

    _url: httpx.URL | None = None  # the last one, and what is in it
    _origin: Origin = "", b"", 0
    _target = b""

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, connect_timeout: float = 5.0, max_idle: int = 256,
        route: Route | None = None,
    ) -> None:  # fmt: skip
        self._ssl_context = ssl_context
        self._route = route or Route()
        self._connect_timeout = connect_timeout
        self._max_idle = max_idle
        self._idle: dict[Origin, list[HttpClientConnection]] = {}
        self._idle_count = 0
        self._open: set[HttpClientConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._drained = asyncio.Event()

    def exchange(
        self, url: httpx.URL, headers: Iterable[tuple[bytes, bytes]], body: bytes, method: str = "POST"
    ) -> Awaitable[Reply]:
        """Returns when the head is there, and a small body with it. Cancelling hangs up."""
        return self.send(*self.prepare(url, headers, method), body, method)

    def prepare(self, url: httpx.URL, headers: Iterable[tuple[bytes, bytes]], method: str) -> tuple[Origin, bytes]:
        """What `send` wants of a request, for who sends many that differ in their bodies alone."""
        if url is not self._url:  # httpx takes its URLs apart anew each time
            self._origin, self._target, self._url = _origin(url), url.raw_path, url
        try:
            return self._origin, _head(method, self._origin, self._target, tuple(headers))
        except LargeHead as large:
            return self._origin, large.head

    async def send(self, origin: Origin, head: bytes, body: bytes, method: str) -> Reply:
        wire = self._take(origin) or await self._dial(origin)
        reply = wire.send(_with_body(head, method, body), method == "HEAD")
        try:
            await reply.news()
        except BaseException:
            reply.close()
            raise
        reply.check()
        return reply

    def _take(self, origin: Origin) -> HttpClientConnection | None:
        """An idle connection that is open and may be used again, or None."""
        wires = self._idle.get(origin)
        while wires:
            wire = wires.pop()
            self._idle_count -= 1
            age = wire.loop.time() - wire.idle_since
            if wire.is_open and age < wire.idle_max and (age < IDLE_TRUSTED or not wire.has_news()):
                return wire
            wire.abort()
        return None

    async def _dial(self, origin: Origin) -> HttpClientConnection:
        """A new connection that is open. Raises `httpx.ConnectError` or `httpx.ConnectTimeout`."""
        scheme, host, port = origin
        try:
            async with asyncio.timeout(self._connect_timeout):
                wire = await self._connect(origin, host.decode("ascii"), port, tls=scheme == "https")
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {self._connect_timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            where = f"{host.decode('ascii', 'replace')}:{port}"
            raise httpx.ConnectError(f"{where}: {error or type(error).__name__}") from error
        if self._closed:
            wire.abort()
            raise httpx.ConnectError("the transport is closed")
        if not wire.is_open:
            raise httpx.ConnectError("the connection ended before it was used")
        return wire

    async def _connect(self, origin: Origin, host: str, port: int, tls: bool) -> HttpClientConnection:
        loop = asyncio.get_running_loop()
        name, context = (host, self._context()) if tls else (None, None)

        def new() -> HttpClientConnection:
            return HttpClientConnection(origin, self._give, self._lose)

        async def attempt(address: str) -> HttpClientConnection:
            return (await loop.create_connection(new, address, port, ssl=context, server_hostname=name))[1]

        if self._route.dial is not None:
            wire = (await loop.create_unix_connection(new, sock=await self._route.dial(host)))[1]
        elif self._route.proxy is not None:
            opened = await _tunnel(self._route.proxy, self._route.check(host), port)
            wire = (await loop.create_connection(new, sock=opened, ssl=context, server_hostname=name))[1]
        else:
            found = await look_up(host, port, self._route.named_by)
            addresses = self._route.permit(host, [str(info[4][0]) for info in _interleave(found)])
            wire = await _race([partial(attempt, address) for address in addresses])
        if wire.is_open:  # else its end was told before it was known here
            self._open.add(wire)
        return wire

    def _context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        return self._ssl_context

    def _give(self, wire: HttpClientConnection) -> None:
        if self._idle_count >= self._max_idle or self._closed:
            return wire.abort()
        wire.idle_since = wire.loop.time()
        self._idle.setdefault(wire.origin, []).append(wire)
        self._idle_count += 1
        if self._sweeper is None:
            self._sweeper = wire.loop.call_later(IDLE_MAX, self._sweep)

    def _lose(self, wire: HttpClientConnection) -> None:
        self._open.discard(wire)
        if self._closed and not self._open:
            self._drained.set()
        wires = self._idle.get(wire.origin, [])
        if wire in wires:
            wires.remove(wire)
            self._idle_count -= 1

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for origin, wires in list(self._idle.items()):
            fresh = [wire for wire in wires if now - wire.idle_since < wire.idle_max]
            for wire in set(wires) - set(fresh):
                wire.abort()
            self._idle_count -= len(wires) - len(fresh)
            if fresh:
                self._idle[origin] = fresh
            else:
                del self._idle[origin]
        self._sweeper = asyncio.get_running_loop().call_later(IDLE_MAX, self._sweep) if self._idle else None

    async def aclose(self) -> None:
        """Ends every connection, busy ones too; those who read from them get `httpx.ReadError`."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for wire in list(self._open):
            wire.abort()
        if self._open:
            await self._drained.wait()

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<HttpClient {len(self._open)} open, {self._idle_count} idle{closed}>"


# ---------------------------------------------------------------- what is written


def _origin(url: httpx.URL) -> Origin:
    scheme = url.scheme
    if scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"not an http or https address: {scheme}")
    if not 0 <= (url.port or 0) < 65_536:  # httpx takes any, and the socket would raise `OverflowError`
        raise httpx.UnsupportedProtocol(f"not a port: {url.port}")
    return scheme, url.raw_host, url.port or _PORTS[scheme]


def _with_body(head: bytes, method: str, body: bytes) -> bytes:
    """Head and body as one piece, for one write."""
    if body or method not in _BODILESS:
        return b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)
    return head + b"\r\n\r\n"


@lru_cache(maxsize=256)  # from call to call a server's head hardly changes, and checking it costs more than finding it
def _head(method: str, origin: Origin, target: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The request line and the headers without their end. Raises `httpx.LocalProtocolError` for what would read
    as more or other lines than were meant: names and values may come from far away (a server's schema, a client).
    Raises `LargeHead` with one that is not to be remembered."""
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
    if len(head) > _LARGE_HEAD:
        raise LargeHead(head)
    return head


def _authority(origin: Origin) -> bytes:
    scheme, host, port = origin
    name = b"[%b]" % host if b":" in host else host
    return name if port == _PORTS[scheme] else b"%b:%d" % (name, port)


# ---------------------------------------------------------------- reaching a host


async def _race(attempts: Sequence[Callable[[], Awaitable[HttpClientConnection]]]) -> HttpClientConnection:
    """The first connection that comes about: attempts start in turn, each with a short lead (RFC 8305), because
    `localhost` may be ::1 or 127.0.0.1 and only one of them may answer. Raises the first `OSError`."""
    if len(attempts) == 1:
        return await attempts[0]()
    won: list[HttpClientConnection] = []
    errors: list[OSError] = []

    async def run(attempt: Callable[[], Awaitable[HttpClientConnection]], failed: anyio.Event) -> None:
        try:
            won.append(await attempt())
        except OSError as error:
            errors.append(error)
            failed.set()
        else:
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for attempt in attempts:
                failed = anyio.Event()
                group.start_soon(run, attempt, failed)
                with anyio.move_on_after(STAGGER):
                    await failed.wait()
    except BaseException:
        for wire in won:
            wire.abort()
        raise
    for wire in won[1:]:
        wire.abort()
    if not won:
        raise errors[0] if errors else OSError("the name has no address")
    return won[0]


def _interleave(found: Sequence[Info]) -> Sequence[Info]:
    """The families in turn, the preferred one first (RFC 8305 section 4)."""
    first = [info for info in found if info[0] == found[0][0]]
    other = [info for info in found if info[0] != found[0][0]]
    mixed = [info for pair in zip(first, other, strict=False) for info in pair]
    return [*mixed, *first[len(other) :], *other[len(first) :]]


async def _tunnel(proxy: str, host: str, port: int) -> socket.socket:
    """A connected socket through an HTTP proxy, which resolves the name and decides whether it may be reached
    (RFC 9110 9.3.6). `proxy` is a URL. Raises `OSError` where the proxy cannot or will not."""
    loop = asyncio.get_running_loop()
    url = urlsplit(proxy)
    found = await look_up(url.hostname or "", url.port or 0)
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(opened, address)
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        await loop.sock_sendall(opened, f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("ascii"))
        _check_tunnel(await _tunnel_head(loop, opened))
    except BaseException:
        opened.close()
        raise
    return opened


async def _tunnel_head(loop: asyncio.AbstractEventLoop, opened: socket.socket) -> bytes:
    head = b""
    while _END not in head:
        data = await loop.sock_recv(opened, 4096)
        head += data
        if not data or len(head) > _MAX_TUNNEL_HEAD:
            raise OSError("the proxy gave no answer to CONNECT")
    return head


def _check_tunnel(head: bytes) -> None:
    parts = head.split(b"\r\n", 1)[0].split(b" ", 2)
    status = parts[1].decode("latin-1") if len(parts) > 1 else ""
    # Whatever comes after the head was not said by the server: nothing has been asked of it yet.
    if len(status) != 3 or not status.startswith("2") or not head.endswith(_END) or head.count(_END) != 1:
        raise OSError(f"the proxy refuses the connection ({status if status.isdigit() else 'no HTTP'})")


class _Lookups:
    """Lookups of host names of one event loop, each in a thread of its own: a silent name server delays only its own.
    The system's call holds a thread for as long as no name server answers, 10 to 30 seconds, and the event loop has
    four for it. One host is looked up once for all who wait, and few at once that others named. A turn is over when
    its thread ends, even if its caller gave up earlier."""

    def __init__(self) -> None:
        self.running: dict[tuple[str, int], asyncio.Future[_Found]] = {}
        self._turns = defaultdict(lambda: asyncio.Semaphore(NAMED_AT_ONCE), {"": asyncio.Semaphore(AT_ONCE)})

    async def find(self, host: str, port: int, named_by: str) -> _Found:
        key = host.lower(), port
        if (future := self.running.get(key)) is None:
            turns = self._turns[named_by]
            await turns.acquire()
            if (future := self.running.get(key)) is None:
                future = self._start(key, turns)
            else:
                turns.release()  # somebody was first meanwhile
        return await asyncio.shield(future)

    def _start(self, key: tuple[str, int], turns: asyncio.Semaphore) -> asyncio.Future[_Found]:
        loop = asyncio.get_running_loop()
        future = self.running[key] = loop.create_future()

        def end(found: _Found) -> None:
            turns.release()
            del self.running[key]
            future.set_result(found)

        def run() -> None:
            found: _Found = OSError("the lookup broke off")
            try:
                found = _ask(*key)
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(end, found)

        try:
            threading.Thread(target=run, name="lookup", daemon=True).start()
        except RuntimeError as full:  # as many as the system permits
            end(OSError(str(full)))
        return future


def _ask(host: str, port: int) -> _Found:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return error


_lookups: Final = anyio.lowlevel.RunVar[_Lookups]("lookups")


async def look_up(host: str, port: int, named_by: str = "") -> Sequence[Info]:
    """The addresses of a host, as `getaddrinfo` gives them. `named_by` is what kind of peer named it, empty for the
    operator. Raises `OSError` and `UnicodeError`."""
    if is_literal(host):  # nobody is asked
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        lookups = _lookups.get()
    except LookupError:
        lookups = _Lookups()
        _lookups.set(lookups)
    found = await lookups.find(host, port, named_by)
    if isinstance(found, Exception):
        raise found.with_traceback(None)  # each of those who wait would add to it
    return found
