"""Bodies of answers: whole ones and event streams, both bounded.

Knows HTTP bodies and the event stream format (by httpx-sse); knows no MCP.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import anyio
import httpx
from httpx_sse import EventSource

from proxy.downstream.settings import TooLarge
from proxy.downstream.wire import reply_of

DEFAULT_RETRY = 1.0


@dataclass(slots=True)
class Place:
    """Where in a stream we are, for the case that it breaks."""

    id: str = ""
    retry: float = DEFAULT_RETRY


def is_json(response: httpx.Response) -> bool:
    return _kind(response) == b"application/json"


def is_event_stream(response: httpx.Response) -> bool:
    return _kind(response) == b"text/event-stream"


def _kind(response: httpx.Response) -> bytes:
    reply = reply_of(response)
    if reply is not None:  # the cheap way
        value = reply.headers.get(b"content-type", b"")
    else:
        value = response.headers.get("content-type", "").encode()
    return value.partition(b";")[0].strip().lower()


async def whole_body(response: httpx.Response, limit: int) -> bytes:
    reply = reply_of(response)
    if reply is not None and (content := reply.content) is not None:
        if len(content) > limit:
            raise TooLarge
        return content
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > limit:
            raise TooLarge
    return bytes(data)


class _Bounded(httpx.AsyncByteStream):
    """A body of any length in which no `limit` bytes pass without an event."""

    def __init__(self, response: httpx.Response, limit: int) -> None:
        self._response = response
        self._limit = limit
        self.seen = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.aiter_bytes():
            self.seen += len(chunk)
            if self.seen > self._limit:
                raise TooLarge
            yield chunk


async def events(response: httpx.Response, place: Place, limit: int) -> AsyncGenerator[bytes, None]:
    """The data of each event; `place` follows. Raises `httpx.TransportError` and `TooLarge`."""
    body = _Bounded(response, limit)
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    async with aclosing(EventSource(httpx.Response(200, headers=headers, stream=body)).aiter_sse()) as source:
        async for event in source:
            body.seen = 0
            if event.id:
                place.id = event.id
            if event.retry is not None:
                place.retry = event.retry / 1000
            # 2025-11-25 basic/transports: a priming event has an id and no data
            if event.data and event.event == "message":
                yield event.data.encode()


def has_ended(response: httpx.Response) -> bool:
    """Whether the whole answer is here."""
    reply = reply_of(response)
    return response.is_closed if reply is None else reply.complete


async def hang_up(response: httpx.Response) -> None:
    """Ends an answer, also in a task that is being cancelled. Its TCP connection survives if the answer was whole."""
    reply = reply_of(response)
    if reply is not None:
        reply.close()
    else:
        with anyio.CancelScope(shield=True):
            await response.aclose()
