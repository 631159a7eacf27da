"""The event stream format, from chunks of bytes to the data of events (html.spec.whatwg.org, server-sent events).

This module alone uses the decoders of httpx-sse that it does not export. Its public `EventSource` has no bound, needs
an `httpx.Response` for each stream, and makes an answer of one event several times dearer (tests/bench/event_cost.py).
So the decoders are fed here, and the bound stands before them. Pure; it reads no HTTP.
"""

from __future__ import annotations  # httpx_sse is imported at its first use

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx_sse

from sluicegate.runtime.spool import Spool, SpoolFull
from sluicegate.runtime.unfinished import PART, SMALL, TooMuchUnfinished, Unfinished

DEFAULT_RETRY = 1.0
_MAX_RETRY: Final = 10**9  # ms; a server may write any number, and not every one has a float
_MAX_ENDPOINT: Final = 2_048  # characters: it is taken apart, and kept as long as the stream
_MAX_ID: Final = 1024  # characters: each event that follows has it, and it is sent back in a header
# Bytes go through the decoders as Latin-1, which has a character for each and gives back the same ones: to the format
# only ASCII means anything, and whether the rest is text is for the reader of the message to judge.
_BYTES: Final = "latin-1"
_BOM: Final = b"\xef\xbb\xbf".decode(_BYTES)
_ALONE: Final = Unfinished()


class EventTooLarge(Exception):
    """An event is larger than it may be."""


@dataclass(slots=True)
class StreamPosition:
    """Where in a stream we are, for the case that it breaks, and where its other direction is (2024-11-05)."""

    id: str = ""
    retry: float = DEFAULT_RETRY
    endpoint: str = ""


class EventParser:
    """`feed` takes what comes; `position` follows. An event may have `limit` bytes. A larger one that has its data in
    one line goes into a spool. `keep` makes one from that line's beginning; None refuses the event. What has come of an
    event counts in `unfinished`, and `close` ends the stream where that is too much. `takes_endpoint`: the stream is
    that of the 2024 transport, and says where to POST."""

    def __init__(
        self, position: StreamPosition, limit: int, keep: Callable[[bytes], Spool | None] = lambda data: None,
        unfinished: Unfinished = _ALONE, close: Callable[[TooMuchUnfinished], object] = lambda error: None,
        takes_endpoint: bool = False,
    ) -> None:  # fmt: skip
        self._position = position
        self._limit = limit
        self._keep = keep
        self._unfinished = unfinished
        self._close = close
        self._small = min(limit, SMALL)
        self._is_counted = False
        self._takes_endpoint = takes_endpoint
        self._spool: Spool | None = None
        self._is_spooling = False  # whether the line that is coming goes there
        self._is_after_cr = False  # whether that line has ended so, and a line feed belongs to its end
        self._is_first = True
        self._begin()
        if position.id:  # a stream that goes on, whose events may leave it out
            self._decoder.decode(f"id: {position.id.encode().decode(_BYTES)}")

    def _begin(self) -> None:
        self._lines = httpx_sse._decoders.SSELineDecoder()
        self._decoder = httpx_sse._decoders.SSEDecoder()
        self._size = 0  # of the lines of the event that is coming
        self._rest = 0  # of the line that is coming

    def feed(self, chunk: bytes) -> list[bytes | Spool]:
        """The data of each event that is complete now. Raises `EventTooLarge` and `TooMuchUnfinished`."""
        found: list[bytes | Spool] = []
        if self._is_after_cr:
            chunk, self._is_after_cr = chunk.removeprefix(b"\n"), False
        if self._is_spooling:
            chunk = self._spooled(chunk)
        if not chunk:
            return found
        ends = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        self._rest = len(chunk) - ends + (0 if ends else self._rest)
        for line in self._lines.decode(chunk.decode(_BYTES)):
            if data := self._line(line):
                found.append(data)
        if self._is_counted or self._size + self._rest > self._small:
            self._count()
        return found

    def _count(self) -> None:
        is_over = self._size + self._rest > self._limit and self._rest >= len("data: ")  # of less it is not clear
        if is_over and (self._rest > self._limit or not self._is_comment_coming()):
            line = "".join(self._lines.buffer)
            self._begin_spool(line.removeprefix(_BOM) if self._is_first else line)
            self._is_first = False
            self._lines, self._rest, self._is_spooling = httpx_sse._decoders.SSELineDecoder(), 0, True
        size = self._size + self._rest
        self._unfinished.check(self)
        self._is_counted = size > self._small
        if self._is_counted:
            self._unfinished.hold(self, size + PART * (len(self._decoder._data) + len(self._lines.buffer)))
        else:
            self._unfinished.release(self)

    def end(self) -> None:
        """Nothing more comes. An error may hold its stream in a circle until the collector comes to it."""
        if self._is_counted:
            self._unfinished.release(self)
            self._is_counted = False
            self._begin()

    def give_up(self) -> None:
        """Another stream asked for more: this one has the most that is unfinished. The reader learns of it by
        `close`, or by its next piece."""
        self._begin()
        self._close(TooMuchUnfinished())

    def _is_comment_coming(self) -> bool:
        line = "".join(self._lines.buffer[:4])  # a BOM may have come byte by byte
        return (line.removeprefix(_BOM) if self._is_first else line).startswith(":")

    def _begin_spool(self, line: str) -> None:
        """Keeps what there is of a line that is too long. Raises `EventTooLarge`."""
        is_alone = self._spool is None and not self._decoder._data
        data = line[5:].removeprefix(" ").encode(_BYTES) if is_alone and line.startswith("data:") else None
        self._spool = None if data is None else self._keep(data)
        if self._spool is None:
            raise EventTooLarge
        self._decoder.decode("data:")
        self._size = 0

    def _spooled(self, chunk: bytes) -> bytes:
        """Keeps what belongs to that line, and returns what comes after it."""
        assert self._spool is not None
        ends = [at for end in (b"\n", b"\r") if (at := chunk.find(end)) >= 0]
        line = chunk[: min(ends)] if ends else chunk
        try:
            self._spool.write(line)
        except SpoolFull:
            raise EventTooLarge from None
        if not ends:
            return b""
        self._is_spooling = False
        self._is_after_cr = chunk[len(line) :] == b"\r"
        end = 2 if chunk[len(line) : len(line) + 2] == b"\r\n" else 1
        return chunk[len(line) + end :]

    def _line(self, line: str) -> bytes | Spool | None:
        """The data of the event that this line ends, None if it ends none."""
        size = len(line)  # a BOM counts, as in pieces
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        if not line:
            is_event = self._size > 0 or self._spool is not None  # else nothing was said since the last one
            self._size = 0
            return self._event(self._decoder.decode(line)) if is_event else None
        if line.startswith(":"):
            if size > self._limit:  # as one that comes in pieces
                raise EventTooLarge
            return None  # keep-alives belong to no event
        self._size += size + 1
        if self._size > self._limit:
            self._begin_spool(line)
            return None
        if line.startswith("id:") and len(line) > _MAX_ID:
            return None
        if not line.startswith("retry:") or line[6:].removeprefix(" ").isdecimal():  # int() takes more than digits
            self._decoder.decode(line)
        return None

    def _event(self, event: httpx_sse.ServerSentEvent | None) -> bytes | Spool | None:
        """Its data, None if it is not a message; `position` takes what it says about the stream."""
        position = self._position
        spool, self._spool = self._spool, None
        if event is None:  # nothing was said, and no id is in force
            position.id = ""
            return None
        position.id = _text(event.id)
        if event.retry is not None:
            position.retry = min(event.retry, _MAX_RETRY) / 1000
        if event.event == "endpoint" and self._takes_endpoint and not position.endpoint:
            if len(event.data) > _MAX_ENDPOINT:
                raise EventTooLarge
            position.endpoint = _text(event.data)
        if spool is not None and event.data:
            raise EventTooLarge  # its data has another line
        if event.event != "message":
            return None
        return event.data.encode(_BYTES) if spool is None else spool


def _text(value: str) -> str:
    return value.encode(_BYTES).decode("utf-8", "replace")
