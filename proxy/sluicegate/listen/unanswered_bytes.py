"""What a connection has received and not yet answered, byte for byte: another process can go on from there.

Knows HTTP/1.1 as far as where a request ends.
"""

from bisect import bisect_left
from typing import Final

import httptools

_TRIM_AT: Final = 64 * 1024


class UnansweredBytes:
    """The bytes since the connection last rested. Requests that were answered meanwhile, as a client's that does not
    wait for answers, are found and left out when they become many, or when somebody wants the `rest`."""

    __slots__ = ("_answered", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = self._answered = 0

    def __repr__(self) -> str:
        return f"UnansweredBytes({self._size} bytes, {self._answered} answered)"

    def begin(self, data: bytes) -> None:
        """The first bytes after a rest."""
        self._parts = [data]
        self._size, self._answered = len(data), 0

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._answered and self._size > _TRIM_AT:
            self.begin(self.rest())

    def answered(self, rests: bool) -> None:
        """One more request is; `rests`: and nothing else has come."""
        if rests:
            self.begin(b"")
        else:
            self._answered += 1

    def rest(self) -> bytes:
        """From the first byte of the oldest request that has no answer."""
        whole = b"".join(self._parts)
        if not self._answered:
            return whole
        sizes = range(len(whole) + 1)
        return whole[bisect_left(sizes, self._answered, key=lambda size: _Counter().count(whole[:size])) :]


class _Counter:
    """How many requests end within some bytes."""

    def __init__(self) -> None:
        self._ended = 0

    def count(self, data: bytes) -> int:
        try:
            httptools.HttpRequestParser(self).feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            pass  # what is wrong comes after what was answered
        return self._ended

    def on_message_complete(self) -> None:
        self._ended += 1
