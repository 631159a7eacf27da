"""One address that is served: uvicorn as a task of ours. Knows no application and no MCP.

Signals, logs and the life of the application belong to whoever composes the program: uvicorn is only asked to accept
and to drain, connections are our own (http1.py). The socket is bound here, so that a taken port is an `OSError` and
no exit.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import anyio
import uvicorn
from anyio.abc import TaskStatus
from uvicorn.server import ServerState

from proxy.listen.http1 import Http1
from proxy.listen.request import Serve
from proxy.listen.settings import Wire


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """`bind` tells the port (asked for 0: any free one), `run` serves until `stop`."""

    def __init__(
        self, serve: Serve, host: str, port: int, wire: Wire | None = None, drain: float = 30.0, backlog: int = 2048
    ) -> None:
        self._address = (host, port)
        self._sockets: list[socket.socket] = []
        self._serve, self._wire = serve, wire or Wire()
        self._server = _Server(
            uvicorn.Config(
                serve,
                interface="asgi3",  # nobody calls it so: connections know what to do
                http=cast(Any, self._connection),
                ws="none",
                lifespan="off",
                log_config=None,
                backlog=backlog,
                timeout_graceful_shutdown=drain,  # type: ignore[arg-type]
            )
        )

    def _connection(self, server_state: ServerState, **_: object) -> Http1:
        return Http1(self._serve, self._wire, cast(Any, server_state.connections), server_state.tasks)

    def __repr__(self) -> str:
        return f"HttpServer({self._address[0]}:{self.port if self._sockets else 'unbound'})"

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def bind(self) -> int:
        """Takes the address, every one that its name stands for. Raises `OSError`."""
        host, port = self._address
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            wanted = self.port if self._sockets and port == 0 else port
            self._sockets.append(_listen(family, kind, protocol, (address[0], wanted)))
        return self.port

    async def run(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`, then lets running requests end within the drain time."""
        if not self._sockets:
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
                connection.transport.abort()

    @property
    def is_stopping(self) -> bool:
        return self._server.should_exit

    def stop(self, now: bool = False) -> None:
        """Accepts nothing more, neither a connection nor a further request on one; `now` does not wait for requests
        that are running."""
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or now
        # At once: uvicorn looks ten times a second, and would let in what begins when everything else is ending.
        for listener in getattr(self._server, "servers", ()):
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()


def _listen(family: int, kind: int, protocol: int, address: tuple[Any, int]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
