"""The event stream format, from chunks of bytes to the data of events.

Pure; knows no HTTP. It works on bytes and on whole blocks, because many servers answer every single call with a
stream of one event: what httpx-sse spends on that would be more than all the rest of the call. And it is bounded, which
httpx-sse is not: there, what has no line end fills the memory.
"""

from dataclasses import dataclass

from proxy.downstream.settings import TooLarge

DEFAULT_RETRY = 1.0
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Place:
    """Where in a stream we are, for the case that it breaks, and where its other direction is (2024-11-05)."""

    id: str = ""
    retry: float = DEFAULT_RETRY
    endpoint: str = ""


class Events:
    """Feed it what comes; `place` follows. An event may have `limit` bytes.
    (html.spec.whatwg.org, server-sent events, "interpreting an event stream")"""

    def __init__(self, place: Place, limit: int) -> None:
        self._place = place
        self._limit = limit
        self._rest = bytearray()
        self._seen = 0  # up to here `_rest` holds no end of an event
        self._is_first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that is complete now. Raises `TooLarge`."""
        if self._is_first:
            self._is_first = False
            chunk = chunk.removeprefix(_BOM)
        if b"\r" in chunk or self._rest.endswith(b"\r"):
            chunk = self._with_plain_ends(chunk)
        self._rest += chunk
        found: list[bytes] = []
        start = 0
        while (end := self._rest.find(b"\n\n", max(start, self._seen))) >= 0:
            data = self._event(bytes(self._rest[start:end]))
            if data:
                found.append(data)
            start = end + 2
            self._seen = 0
        del self._rest[:start]
        while self._rest.startswith(b":") and (end := self._rest.find(b"\n")) >= 0:
            del self._rest[: end + 1]  # keep-alives belong to no event
        if len(self._rest) > self._limit:
            raise TooLarge
        self._seen = max(len(self._rest) - 2, 0)
        return found

    def _with_plain_ends(self, chunk: bytes) -> bytes:
        """Lines end with CRLF, LF or CR; a CR at the very end waits for what follows it."""
        if self._rest.endswith(b"\r"):
            del self._rest[-1:]
            chunk = b"\r" + chunk
        tail = b"\r" if chunk.endswith(b"\r") else b""
        body = chunk[: len(chunk) - len(tail)]
        return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail

    def _event(self, block: bytes) -> bytes | None:
        """The data of one event, None if it is not a message; `place` takes what it says about the stream."""
        data: list[bytes] = []
        kind = b"message"
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                kind = value or b"message"
            elif name == b"id" and b"\0" not in value:
                self._place.id = value.decode("utf-8", "replace")
            elif name == b"retry" and value.isdigit():
                self._place.retry = int(value[:9]) / 1000
        if kind == b"endpoint" and not self._place.endpoint:
            self._place.endpoint = b"\n".join(data).decode("utf-8", "replace")
        return b"\n".join(data) if data and kind == b"message" else None
