"""Connections between workers on one machine: given away, taken, and made.

Whoever learns from a request's credential that another worker has its client passes the connection on, with the bytes
that were read of it; from then on it is the other's. Over one that already has an owner, requests of other workers'
clients are passed on one by one (peer_forwarding.py), on connections that are given in the same way. Knows sockets; no
HTTP and no MCP.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Final

import anyio
from anyio.abc import SocketStream, UNIXSocketStream

Take = Callable[[socket.socket, bytes], Awaitable[None]]
"""Serves an open connection from now on; the bytes are what was read of it already."""

PATIENCE: Final = 10.0  # seconds that a worker which ended has to come back
_AGAIN: Final = 0.05
_LENGTH: Final = 4  # bytes that say how many follow

log = logging.getLogger(__name__)


class WorkerHandoff:
    """We are the worker `index`; `addresses` are those of the Unix sockets where workers take connections."""

    def __init__(self, index: int, addresses: Sequence[str], patience: float = PATIENCE) -> None:
        self._index, self._addresses, self._patience = index, addresses, patience

    async def give(self, worker: str, connection: int, first: bytes) -> bool:
        """Passes the file descriptor on to the worker of that number; whether it has it now. False where that one does
        not come back."""
        with anyio.move_on_after(self._patience):
            async with await _connect(self._addresses[int(worker)]) as stream:
                await stream.send_fds(len(first).to_bytes(_LENGTH, "big"), [connection])
                await stream.send(first)
                return True
        return False

    async def dial(self, worker: str) -> socket.socket:
        """A new connection to that worker. Raises `OSError` where it does not come back."""
        with ExitStack() as on_failure:
            ours, theirs = map(on_failure.enter_context, socket.socketpair())
            if not await self.give(worker, theirs.fileno(), b""):
                raise OSError("that worker is not up")
            theirs.close()
            on_failure.pop_all()
        return ours

    async def run(self, take: Take) -> None:
        """Takes the connections that other workers pass on, until it is cancelled."""

        async def one(stream: SocketStream) -> None:
            assert isinstance(stream, UNIXSocketStream)
            async with stream:
                try:
                    await _receive(stream, take)
                except (OSError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
                    log.warning("a connection could not be taken", extra={"error": repr(error)})

        async with await anyio.create_unix_listener(self._addresses[self._index], mode=0o600) as listener:
            await listener.serve(one)


async def _connect(address: str) -> UNIXSocketStream:
    while True:
        try:
            return await anyio.connect_unix(address)
        except OSError:  # it ended, and is started anew
            await anyio.sleep(_AGAIN)


async def _receive(stream: UNIXSocketStream, take: Take) -> None:
    length, passed = await stream.receive_fds(_LENGTH, 1)
    if len(passed) != 1:
        raise OSError("no connection came along")
    connection = socket.socket(fileno=passed[0])
    try:
        wanted, first = int.from_bytes(length, "big"), bytearray()
        while len(first) < wanted:
            first += await stream.receive()
        connection.setblocking(False)
        await take(connection, bytes(first))
    except BaseException:
        connection.close()
        raise
