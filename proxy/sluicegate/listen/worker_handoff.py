"""Connections that belong to another worker: given away, and taken. Every principal has one worker, which has all that
is its own: sessions, rates, calls that wait.

Whoever learns from a request's credential that somebody else has its principal passes the connection on, with the
bytes that were read of it; from then on it is the other's. Knows sockets and names; no HTTP and no MCP.
"""

import logging
import socket
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final

import anyio
from anyio.abc import SocketStream, UNIXSocketStream

Take = Callable[[socket.socket, bytes], Awaitable[None]]
"""Serves an open connection from now on; the bytes are what was read of it already."""

PATIENCE: Final = 10.0  # seconds that a worker which ended has to come back
_AGAIN: Final = 0.05
_LENGTH: Final = 4  # bytes that say how many follow

log = logging.getLogger(__name__)


@lru_cache(maxsize=4096)
def owner_of(principal: str, workers: int) -> int:
    """The number, from 0, of the worker that a principal belongs to: the same in every process and after each start."""
    return zlib.crc32(principal.encode("utf-8", "surrogatepass")) % workers


class WorkerHandoff:
    """We are the worker `index`; `addresses` are those of the Unix sockets where workers take connections."""

    def __init__(self, index: int, addresses: Sequence[str], patience: float = PATIENCE) -> None:
        self._index, self._addresses, self._patience = index, addresses, patience

    def is_ours(self, principal: str) -> bool:
        return owner_of(principal, len(self._addresses)) == self._index

    async def give(self, principal: str, connection: int, first: bytes) -> bool:
        """Passes the file descriptor on; whether its worker has it now. False where that does not come back."""
        address = self._addresses[owner_of(principal, len(self._addresses))]
        with anyio.move_on_after(self._patience):
            async with await _connect(address) as stream:
                await stream.send_fds(len(first).to_bytes(_LENGTH, "big"), [connection])
                await stream.send(first)
                return True
        return False

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
