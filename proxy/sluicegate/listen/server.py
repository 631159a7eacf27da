"""A port that is served, and drained in the end: on every address of a host, or a Unix socket. Knows no MCP.

Signals, logs and the life of the application belong to whoever composes the program. A socket is bound before it is
served, so that a taken port is an `OSError` and no exit.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from sluicegate.listen.http1 import Http1
from sluicegate.listen.http_request import Serve
from sluicegate.listen.settings import ConnectionLimits

RECEIVE_BUFFER: Final = 128 * 1024
"""Bytes of a connection that the system holds for us; Linux doubles it. Left to itself it takes up to 32 MiB each: a
hundred connections that send large bodies use up the memory that TCP has, and the system slows every other one."""


_BACKLOG: Final = 2048
_LOOK_EVERY: Final = 0.05  # seconds, while the last requests end

log = logging.getLogger(__name__)


class AddressServer:
    """`bind` tells the port (asked for 0: any free one), `run` serves until `stop`. Where `bound` are given, they are
    served and nothing is bound."""

    def __init__(
        self, serve: Serve, host: str, port: int, wire: ConnectionLimits | None = None, drain: float = 30.0,
        bound: Sequence[socket.socket] = (),
    ) -> None:  # fmt: skip
        self._address = (host, port)
        self._sockets: list[socket.socket] = list(bound)
        self._serve, self._wire, self._drain_time = serve, wire or ConnectionLimits(), drain
        self._connections, self._tasks = set[Http1](), set[asyncio.Task[None]]()
        self._listeners: list[asyncio.Server] = []
        self._stopping = anyio.Event()
        self._waits = True  # for requests that run

    def _connection(self, first: bytes = b"") -> Http1:
        return Http1(self._serve, self._wire, self._connections, self._tasks, first)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._connections)

    def bind(self) -> int:
        """Takes the address, every one that its name stands for. Raises `CannotListen`."""
        if not self._sockets:
            self._sockets = bind(*self._address)
        return self.port

    async def adopt(self, connection: socket.socket, first: bytes) -> None:
        """Serves a connection that another process accepted, and of which it has read `first`."""
        factory = partial(self._connection, first)
        _, protocol = await asyncio.get_running_loop().connect_accepted_socket(factory, connection)
        if self.is_stopping:
            protocol.shutdown()

    async def run(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`, then lets running requests end within the drain time."""
        self.bind()
        loop = asyncio.get_running_loop()
        try:
            for one in self._sockets:
                self._listeners.append(await loop.create_server(self._connection, sock=one, backlog=_BACKLOG))
            task_status.started(self.port)
            await self._stopping.wait()
            await self._drain()
        finally:
            self._close()
            for connection in list(self._connections):
                connection.abort()

    async def _drain(self) -> None:
        with anyio.move_on_after(self._drain_time) as scope:
            while (self._connections or self._tasks) and self._waits:  # noqa: ASYNC110 - connections end by themselves
                await anyio.sleep(_LOOK_EVERY)
        if scope.cancelled_caught:
            log.error("requests are cancelled: the time to end is over", extra={"requests": len(self._tasks)})
            for task in tuple(self._tasks):
                task.cancel()

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for bound in self._sockets:
            bound.close()
        for connection in list(self._connections):
            connection.shutdown()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self, now: bool = False) -> None:
        """Accepts nothing more, neither a connection nor a further request on one; `now` does not wait for requests
        that are running."""
        self._waits = self._waits and not now
        self._stopping.set()
        self._close()


class CannotListen(OSError):
    """The system refuses an address; `host` and `port` are as they were asked for."""

    def __init__(self, error: OSError, host: str, port: int) -> None:
        super().__init__(error.errno, error.strerror)
        self.host, self.port = host, port


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address that the host's name stands for, all with one port. Raises `CannotListen`."""
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            wanted = bound[0].getsockname()[1] if bound and port == 0 else port
            bound.append(_bind(family, kind, protocol, (address[0], wanted)))
    except OSError as error:
        for one in bound:
            one.close()
        raise CannotListen(error, host, port) from None
    return bound


@asynccontextmanager
async def on_unix_socket(serve: Serve, where: str | socket.socket) -> AsyncIterator[None]:
    """Serves on a Unix socket, at an address or one that listens, inside the block. Raises `OSError`."""
    connections, tasks = set[Http1](), set[asyncio.Task[None]]()
    loop = asyncio.get_running_loop()
    path, listener = (where, None) if isinstance(where, str) else (None, where)
    made = partial(Http1, serve, ConnectionLimits(), connections, tasks)
    server = await loop.create_unix_server(made, path, sock=listener)
    try:
        yield
    finally:
        server.close()
        for connection in list(connections):
            connection.abort()


def _bind(family: int, kind: int, protocol: int, address: tuple[Any, int]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)  # connections inherit it
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
