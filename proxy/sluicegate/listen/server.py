"""A port that is served by uvicorn as a task of ours, and drained in the end; or a Unix socket. Knows no MCP.

Signals, logs and the life of the application belong to whoever composes the program: uvicorn is only asked to accept
and to drain, connections are our own (http1.py). The socket is bound here, so that a taken port is an `OSError` and
no exit.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import anyio
import uvicorn
from anyio.abc import TaskStatus
from uvicorn.server import ServerState

from sluicegate.listen.http1 import Http1
from sluicegate.listen.http_request import Serve
from sluicegate.listen.settings import ConnectionLimits
from sluicegate.listen.tls import Tls, TlsHandshake

RECEIVE_BUFFER: Final = 128 * 1024
"""Bytes of a connection that the system holds for us; Linux doubles it. Left to itself it takes up to 32 MiB each: a
hundred connections that send large bodies use up the memory that TCP has, and the system slows every other one."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AddressServer:
    """`bind` tells the port (asked for 0: any free one), `run` serves until `stop`. Where `bound` are given, they are
    served and nothing is bound. Raises `OSError` where a file of `tls` cannot be used."""

    def __init__(
        self, serve: Serve, host: str, port: int, wire: ConnectionLimits | None = None, drain: float = 30.0,
        backlog: int = 2048, bound: Sequence[socket.socket] = (), tls: Tls | None = None,
    ) -> None:  # fmt: skip
        self._address = (host, port)
        self._sockets: list[socket.socket] = list(bound)
        self._serve, self._wire = serve, wire or ConnectionLimits()
        self._tls = None if tls is None else tls.to_clients()
        self._stopped = anyio.Event()
        self.is_retiring = False
        """Whether it will stop soon, or has."""
        self._server = _Server(
            uvicorn.Config(
                serve,
                interface="asgi3",  # nobody calls it so: connections know what to do
                http=cast(Any, self._connection),
                ws="none",
                lifespan="off",
                log_config=None,
                backlog=backlog,
                timeout_graceful_shutdown=drain,  # type: ignore[arg-type]  # it takes a float as well
            )
        )

    def _connection(self, server_state: ServerState, first: bytes = b"", **_: object) -> Http1 | TlsHandshake:
        made = Http1(self._serve, self._wire, cast(Any, server_state.connections), server_state.tasks, first)
        if self.is_retiring:
            made.retire()
        return made if self._tls is None else TlsHandshake(made, self._tls)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def bind(self) -> int:
        """Takes the address, every one that its name stands for. Raises `CannotListen`."""
        if not self._sockets:
            self._sockets = bind(*self._address)
        return self.port

    async def adopt(self, connection: socket.socket, first: bytes) -> None:
        """Serves a connection that another process accepted, and of which it has read `first`."""
        factory = partial(self._connection, self._server.server_state, first)
        _, protocol = await asyncio.get_running_loop().connect_accepted_socket(factory, connection)
        if self.is_stopping:
            protocol.shutdown()

    async def run(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`, then lets running requests end within the drain time."""
        self.bind()
        task_status.started(self.port)
        try:
            await self._server.serve(sockets=self._sockets)
        finally:
            for listener in getattr(self._server, "servers", ()):
                listener.close()
            for bound in self._sockets:
                bound.close()
            for connection in list(self._server.server_state.connections):
                cast(Http1, connection).abort()

    @property
    def is_stopping(self) -> bool:
        return self._server.should_exit

    async def retire(self, delay: float) -> None:
        """Serves all that comes for so long yet, each connection for one request: whoever balances learns meanwhile to
        send nothing more here. Returns early at `stop`."""
        self.is_retiring = True
        for connection in list(self._server.server_state.connections):
            cast(Http1, connection).retire()
        with anyio.move_on_after(delay):
            await self._stopped.wait()

    def stop(self, now: bool = False) -> None:
        """Accepts nothing more, neither a connection nor a further request on one; `now` does not wait for requests
        that are running."""
        if self.is_retiring and not now:
            self._accept_rest()
        self._server.should_exit = self.is_retiring = True
        self._stopped.set()
        self._server.force_exit = self._server.force_exit or now
        # At once: uvicorn looks ten times a second, and would let in what begins when everything else is ending.
        for listener in getattr(self._server, "servers", ()):
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    def _accept_rest(self) -> None:
        """Takes the connections that wait to be accepted: the system resets them when their socket is closed, and a
        balancer that has sent its request must not send it again elsewhere."""
        for bound in self._sockets:
            with suppress(OSError):
                while True:
                    connection, _ = bound.accept()
                    connection.setblocking(False)
                    task = asyncio.ensure_future(self.adopt(connection, b""))
                    self._server.server_state.tasks.add(task)
                    task.add_done_callback(self._server.server_state.tasks.discard)


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
