"""Answers of the admin port. Knows no path and nothing of what is told."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from sluicegate.admin.routes import API, JSON, MAX_BODY, MAX_FORM
from sluicegate.protocol.jsonrpc import Json, Malformed, dump

_PART: Final = 64 * 1024
UNRECORDED: Final[tuple[int, Json]] = (503, {"error": "the audit log cannot be written: nothing was done"})


class AdminResponse(Response):
    """An answer that is whole, and that nobody stores."""

    body: bytes

    def __init__(self, status: int, body: bytes, kind: str = JSON, headers: Mapping[str, str] | None = None) -> None:
        # Also with 204: behind listen/asgi.py an answer that says no length is a stream.
        whole = {"content-type": kind, "content-length": str(len(body))}
        own = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        super().__init__(body, status, {**whole, **own, **(headers or {})})


class EventStreamResponse(StreamingResponse):
    """An answer in parts, which may have no end. However it ends, so do its parts, at once."""

    def __init__(self, parts: AsyncGenerator[bytes, None], kind: str = "text/event-stream") -> None:
        own = {"content-type": kind, "cache-control": "no-store", "x-content-type-options": "nosniff",
               "x-accel-buffering": "no"}  # fmt: skip
        super().__init__(parts, headers=own)
        self._parts = parts

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._parts):
            await super().stream_response(send)


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> AdminResponse:
    return AdminResponse(status, _encoded(value) + b"\n", headers=headers)


def _encoded(value: Any) -> bytes:
    try:
        return dump(value)  # in half of the time: the tools of a client may be megabytes
    except Malformed:  # a peer's text that UTF-8 cannot say, and JSON can
        return json.dumps(value).encode("ascii")


async def in_parts(about: Json, name: str, rows: Iterable[Json]) -> AsyncGenerator[bytes, None]:
    """The JSON of `about`, and behind it the rows under that name. As a whole, 16 MiB of a server's definitions take
    60 ms of the event loop."""
    part = bytearray(_encoded(about)[:-1] + b"," if about else b"{")
    part += b'"%b":[' % name.encode("ascii")
    for number, row in enumerate(rows):
        part += b"," + _encoded(row) if number else _encoded(row)
        if len(part) >= _PART:
            yield bytes(part)
            part.clear()
            await asyncio.sleep(0)  # a connection that takes all of it waits for nothing
    yield bytes(part) + b"]}\n"


def rows_response(about: Json, name: str, rows: Iterable[Json]) -> EventStreamResponse:
    return EventStreamResponse(in_parts(about, name, rows), JSON)


def error_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> AdminResponse:
    return json_response(status, {"error": text}, headers)


async def read_body(request: Request) -> bytes | None:
    """The request's body; None for one that is too large. A page's form comes before anything is known of who sends
    it."""
    most = MAX_BODY if request.scope["path"].startswith(API) else MAX_FORM
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return bytes(body)
