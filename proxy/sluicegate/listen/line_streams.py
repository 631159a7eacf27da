"""Messages over byte streams: bounded lines in, whole messages out, and the process's own stdin and stdout.

Knows bytes and JSON-RPC messages, no MCP. 2026-07-28 basic/transports/stdio: one message a line, and the same
framing over any other stream.
"""

import asyncio
import logging
import os
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import anyio

from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Malformed, Message, Response, encode
from sluicegate.runtime.pipe_files import pipe_file

log = logging.getLogger(__name__)

CHUNK = 64 * 1024
TURN = 32  # lines
FLUSH_SECONDS = 2.0
MAX_ARRAY = 256 * 1024  # bytes of answers that are together in one array; a longer one is alone


class LineReader(Protocol):
    async def read(self, n: int) -> bytes: ...


class LineWriter(Protocol):
    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def is_closing(self) -> bool: ...


async def lines(reader: LineReader, max_line: int) -> AsyncIterator[bytes | None]:
    """Every line without its end, and the rest before EOF. None stands for a line that was too long: it is
    skipped while it comes, so that no line costs more memory than a line may have."""
    parts: list[bytes] = []
    size = number = 0
    while chunk := await _read(reader):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            number += 1
            if number % TURN == 0:  # many small lines come with one read, and others are to have their turn
                await asyncio.sleep(0)
            yield b"".join((*parts, end)) if size + len(end) <= max_line else None
            parts, size = [], 0
        size += len(rest)
        if size <= max_line:
            parts.append(rest)
        else:
            parts.clear()
    if size:
        yield b"".join(parts) if size <= max_line else None


async def _read(reader: LineReader) -> bytes:
    """Returns the next bytes; none at the end, also where the peer died."""
    try:
        return await reader.read(CHUNK)
    except OSError:
        return b""


Put = Callable[[bytes], Awaitable[None]]
"""Sends one message as bytes; returns when there is room for more. Raises `OSError` where the peer is gone."""


async def put_line(writer: LineWriter, data: bytes) -> None:
    """Writes one line, with one `write`: lines never mix. Raises `OSError` where the peer is gone."""
    if writer.is_closing():  # uvloop calls a write then a mistake: RuntimeError
        raise BrokenPipeError
    writer.write(data + b"\n")
    await writer.drain()


Room = Callable[[], Awaitable[None]]
"""Returns when another message may be encoded."""


class Output:
    """The output to one peer, with back-pressure. A message is encoded in its turn, once there is room for it: what a
    peer does not read is not in memory as bytes."""

    def __init__(self, put: Put, on_broken: Callable[[], None], room: Room | None = None) -> None:
        self._put, self._on_broken, self._room = put, on_broken, room
        self._turn = anyio.Lock()
        self._waiting = 0
        self.broken = False

    @property
    def congested(self) -> bool:
        """Somebody waits because the peer does not read: what may be left out, should be."""
        return self._waiting > 0

    async def send(self, message: Message) -> None:
        """Returns when there is room for more. A peer that is gone is told of once, through `on_broken`."""
        self._waiting += 1
        try:
            if self._turn.locked():
                await self._turn.acquire()
            else:
                self._turn.acquire_nowait()
            try:
                if self._room is not None:
                    await self._room()
                data = None if self.broken else _encode(message)
                if data is not None:
                    await self._write(data)
            finally:
                self._turn.release()
        finally:
            self._waiting -= 1

    async def send_batch(self, responses: Sequence[Response]) -> None:
        """One array, or several where they are large: a receiver must take an array of any messages (2025-03-26
        basic/index#batching), and each of these is one step."""
        self._waiting += 1
        try:
            async with self._turn:
                parts: list[bytes] = []
                for number, response in enumerate(responses, 1):
                    if self._room is not None:
                        await self._room()
                    data = None if self.broken else _encode(response)
                    parts += [] if data is None else [data]
                    if parts and (number == len(responses) or sum(map(len, parts)) > MAX_ARRAY):
                        await self._write(b"[%b]" % b",".join(parts))
                        parts = []
                        await asyncio.sleep(0)
        finally:
            self._waiting -= 1

    async def _write(self, data: bytes) -> None:
        try:
            await self._put(data)
        except OSError:
            self.broken = True
            self._on_broken()

    def __repr__(self) -> str:
        return f"Output({self._waiting} waiting{', broken' if self.broken else ''})"


def _encode(message: Message) -> bytes | None:
    """What JSON cannot say must not take the connection with it: an error for a response, else nothing."""
    try:
        return encode(message)
    except Malformed as error:
        log.warning("a message cannot be sent: %s", error.text)
        if not isinstance(message, Response):
            return None
        return encode(Response(message.id, error={"code": INTERNAL_ERROR, "message": error.text}))


@asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The process's stdin and stdout, for nobody else from now on: whatever prints, prints to stderr, and
    children find an empty stdin. On the way out what was written is flushed, if the peer reads."""
    source, sink = _take_over()
    readable, writable, copier = _as_pipes(source, sink)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe_file(readable, "rb"))
    outgoing, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe_file(writable, "wb")
    )
    writer = asyncio.StreamWriter(outgoing, protocol, None, loop)
    try:
        yield reader, writer
    finally:
        incoming.close()
        await _flush(outgoing, writer, copier)


def _take_over() -> tuple[int, int]:
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


def _as_pipes(source: int, sink: int) -> tuple[int, int, threading.Thread | None]:
    """Event loops wait for pipes and sockets; files, terminals, and one socket for both directions need a thread
    that copies. A terminal also must not be made non-blocking: others write to it."""
    shared = os.path.samestat(os.fstat(source), os.fstat(sink))
    copier = None
    if shared or not _is_pipe(source):
        inner, outer = os.pipe()
        _copy(source, outer)
        source = inner
    if shared or not _is_pipe(sink):
        inner, outer = os.pipe()
        copier = _copy(inner, sink)
        sink = outer
    return source, sink, copier


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _copy(source: int, sink: int) -> threading.Thread:
    def run() -> None:
        with suppress(OSError):
            while data := os.read(source, CHUNK):
                while data:
                    data = data[os.write(sink, data) :]
        os.close(source)
        os.close(sink)

    thread = threading.Thread(target=run, name="stdio", daemon=True)
    thread.start()
    return thread


async def _flush(
    transport: asyncio.WriteTransport, writer: asyncio.StreamWriter, copier: threading.Thread | None
) -> None:
    writer.close()
    with anyio.move_on_after(FLUSH_SECONDS, shield=True) as scope, suppress(OSError):
        await writer.wait_closed()
    if scope.cancelled_caught:
        transport.abort()
    if copier is not None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(copier.join, FLUSH_SECONDS)
