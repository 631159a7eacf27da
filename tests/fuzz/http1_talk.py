"""One HTTP/1 connection of Sluice without a socket: what came of the bytes that arrived on it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sluicegate.listen.http1 import Http1
from sluicegate.listen.http_request import BodyTooLarge, ClientGone, HttpRequest
from sluicegate.listen.settings import ConnectionLimits

MAX_BODY = 4096
LIMITS = ConnectionLimits(headers=2048)
_TURNS = 6  # of the loop, after which whatever could happen has happened


@dataclass
class Talk:
    """`served` are the requests that came whole, in order: method, path, query, headers, body."""

    served: list[tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]] = field(default_factory=list)
    sent: bytes = b""
    is_over: bool = False
    """Sluice ended the connection, or said that it will."""


class MemoryTransport(asyncio.Transport):
    """A connection whose other end is a buffer."""

    def __init__(self, protocol: Http1) -> None:
        super().__init__()
        self._protocol = protocol
        self.sent, self.is_ended, self.is_paused, self._is_closing = bytearray(), False, False, False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 7410)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        assert not (self.is_ended or self._is_closing), "written after the end"
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._protocol.loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def talk(pieces: Iterable[bytes], is_patient: bool = False) -> Talk:
    """Has a connection read the pieces, as far as it reads. Each request is answered with nothing; who `is_patient`
    sends no piece before that."""
    found, failures = Talk(), list[Exception]()
    connections, tasks = set[Http1](), set[asyncio.Task[None]]()

    async def serve(request: HttpRequest) -> None:
        try:
            await answer(request)
        except Exception as error:  # the connection only logs it
            failures.append(error)
            raise

    async def answer(request: HttpRequest) -> None:
        try:
            await request.whole(MAX_BODY)
            body = request.body_at_hand(MAX_BODY)
        except BodyTooLarge:
            await request.respond(413, b"content-length: 0\r\n", b"")
            return
        except ClientGone:
            return
        head = request.head
        found.served.append((head.method, head.path, head.query, head.headers, body))
        await request.respond(200, b"content-length: 0\r\n", b"")

    connection = Http1(serve, LIMITS, connections, tasks)
    wire = MemoryTransport(connection)
    connection.connection_made(wire)
    for piece in pieces:
        if wire.is_paused or is_patient:
            await _settle(wire)
        if wire.is_closing():
            break
        assert not wire.is_paused, "nobody would ever read on"
        connection.data_received(piece)
        await asyncio.sleep(0)
    await _settle(wire)
    found.is_over = wire.is_closing() or wire.is_ended
    if not wire.is_closing():
        connection.eof_received()
        wire.close()
    await _settle(wire)
    found.sent = bytes(wire.sent)
    assert not failures, failures
    assert not connections and not tasks, "a connection that is over is still known"
    return found


async def _settle(wire: MemoryTransport) -> None:
    before, quiet = -1, 0
    while quiet < _TURNS:
        await asyncio.sleep(0)
        quiet, before = (quiet + 1 if before == len(wire.sent) else 0), len(wire.sent)
