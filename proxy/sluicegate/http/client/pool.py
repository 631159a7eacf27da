"""The HTTP/1.1 connections to all servers, and the way to a new one.

Knows addresses and TLS; knows no HTTP message, no MCP, no policy. Nothing is ever sent twice: a request that met
a dying connection fails, and the caller decides what that means. So a connection is used again only while the
server can be expected to keep it open.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import httpx

from sluicegate.http.addresses import is_literal
from sluicegate.http.client.connection import IDLE_MAX, HttpClientConnection, Origin
from sluicegate.http.client.proxy_tunnel import tunnel

IDLE_TRUSTED = 0.05
"""Seconds of silence after which the socket itself is asked whether the server has hung up."""
STAGGER = 0.25
"""Seconds between two attempts to connect (RFC 8305 section 5)."""


@dataclass(frozen=True, slots=True)
class Route:
    """How servers are reached: through a `proxy`, or at those addresses of a host that `permit` gives back. It raises
    `OSError` if there is none."""

    permit: Callable[[str, Sequence[str]], Sequence[str]] = lambda host, addresses: addresses
    proxy: str | None = None

    def check(self, host: str) -> str:
        """A name is the proxy's to judge, an address is judged here."""
        if is_literal(host):
            self.permit(host, [host])
        return host


class HttpConnectionPool:
    """All connections: the busy ones are only counted (a stream that stays open for a day starves nobody),
    of the idle ones `max_idle` are kept. Last in, first out, so that a quiet pool shrinks."""

    def __init__(
        self, ssl_context: ssl.SSLContext | None, connect_timeout: float, max_idle: int, way: Route | None = None
    ) -> None:
        self._ssl_context = ssl_context
        self._way = way or Route()
        self._connect_timeout = connect_timeout
        self._max_idle = max_idle
        self._idle: dict[Origin, list[HttpClientConnection]] = {}
        self._idle_count = 0
        self._open: set[HttpClientConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._drained = asyncio.Event()

    def take(self, origin: Origin) -> HttpClientConnection | None:
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

    async def dial(self, origin: Origin) -> HttpClientConnection:
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

        if self._way.proxy is not None:
            opened = await tunnel(self._way.proxy, self._way.check(host), port)
            wire = (await loop.create_connection(new, sock=opened, ssl=context, server_hostname=name))[1]
        else:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = self._way.permit(host, [str(info[4][0]) for info in _interleave(found)])
            wire = await race([partial(attempt, address) for address in addresses])
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

    async def close(self) -> None:
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
        return f"<HttpConnectionPool {len(self._open)} open, {self._idle_count} idle{closed}>"


# ---------------------------------------------------------------- finding a way to a host


async def race(attempts: Sequence[Callable[[], Awaitable[HttpClientConnection]]]) -> HttpClientConnection:
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


_Info = tuple[int, int, int, str, tuple[object, ...]]


def _interleave(found: Sequence[_Info]) -> Sequence[_Info]:
    """The families in turn, the preferred one first (RFC 8305 section 4)."""
    first = [info for info in found if info[0] == found[0][0]]
    other = [info for info in found if info[0] != found[0][0]]
    mixed = [info for pair in zip(first, other, strict=False) for info in pair]
    return [*mixed, *first[len(other) :], *other[len(first) :]]
