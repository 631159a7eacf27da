"""The answer to one legacy POST: JSON, or a stream that outlives its connection.

In these revisions a broken connection is no cancellation (2025-11-25 basic/transports#sending-messages-to-the-
server): the call goes on, and what it says is kept until the client resumes. Knows exchanges, no calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from sluicegate.listen.http_exchange import HttpExchange, event
from sluicegate.listen.http_request import HttpRequest
from sluicegate.listen.replay import ReplayBuffer, priming
from sluicegate.listen.settings import ListenSettings
from sluicegate.protocol.revisions import Revision

_PIECE: Final = 16 * 1024  # bytes


class ResumableResponse:
    """`log` is what can be resumed, None before a stream opens; `sink` is where the stream goes at present.
    `adopt` gives a stream that opens its number."""

    _done = False
    log: ReplayBuffer | None = None

    def __init__(
        self, exchange: HttpExchange, revision: Revision, adopt: Callable[["ResumableResponse"], int],
        settings: ListenSettings,
    ) -> None:  # fmt: skip
        self._exchange, self._revision, self._adopt, self._settings = exchange, revision, adopt, settings
        self.sink: HttpExchange | None = exchange
        exchange.preamble = self._begin

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._exchange.peer.loop

    @property
    def peer(self) -> HttpRequest:
        """Who gets what comes next: the stream may have been resumed on another connection."""
        return (self.sink or self._exchange).peer

    @property
    def is_stream(self) -> bool:
        return self._exchange.opened

    def _begin(self) -> bytes:
        if not self._revision.streamable:
            return b""
        self.log = ReplayBuffer(self._adopt(self))
        return priming(self.log.stream, 0, self._settings.pace.retry) if self._revision.priming else b""

    async def send(self, data: bytes) -> bool:
        """One message before the end; whether it can still arrive, now or when the client resumes. One that left
        before the stream opened cannot."""
        await self._exchange.open()
        if not self._exchange.opened or self._done:
            return False
        frame = self._frame(data)
        taken = self.sink is not None and await self.sink.write(frame)
        return taken or self.log is not None

    def _frame(self, data: bytes) -> bytes:
        return event(data) if self.log is None else self.log.add(data, self._settings.sessions.stream_bytes)

    def finish_at_once(self, response: bytes) -> bool:
        """The end, where nothing but one response is to be said and nobody has to be waited for."""
        return not self._exchange.opened and self._exchange.json_at_once(200, response)

    async def finish(self, responses: Sequence[bytes], batch: bool = False) -> None:
        """The end. No response is the answer to what its client cancelled (basic/utilities/cancellation): there an
        empty stream ends the exchange, because JSON would have to hold one."""
        exchange = self._exchange
        if not exchange.opened:
            if responses:
                await exchange.json(200, b"[%b]" % b",".join(responses) if batch else responses[0])
                return
            exchange.preamble = None
            await exchange.open()
        exchange.disarm()
        self._done = True
        last = b"".join([self._frame(data) for data in responses])
        sink, self.sink = self.sink, None
        if sink is not None:
            await sink.close(last)

    def end(self) -> None:
        """Nothing more will come, with or without a proper finish."""
        self._done = True
        if self.sink is not None:
            self.sink.end()

    async def resume(
        self, exchange: HttpExchange, number: int, room: Callable[[], Awaitable[None]], note: Callable[[], None]
    ) -> None:
        """Sends what came after that event, then goes on where the stream is now, until it ends. `room` waits until its
        client has read enough, and `note` counts what it has not."""
        assert self.log is not None
        older, self.sink = self.sink, None
        if older is not None:
            await older.close()
        await exchange.open()
        while frames := self.log.after(number):
            number = self.log.last
            for piece in _joined(frames):  # others have their turn: a stream may be a hundred thousand events
                await room()
                await exchange.write(piece, patient=True)
                if exchange.peer.unread:
                    note()
                await asyncio.sleep(0)
        if not self._done:
            self.sink = exchange
            await exchange.until_over()
            if self.sink is exchange:
                self.sink = None
        await exchange.close()


def _joined(frames: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that are worth a write."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        piece.append(frame)
        size += len(frame)
        if size >= _PIECE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)
