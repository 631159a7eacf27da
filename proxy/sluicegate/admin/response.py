"""Answers of the admin port. Knows no path and nothing of what is told."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from sluicegate.admin.routes import API, JSON, MAX_BODY, MAX_FORM
from sluicegate.protocol.jsonrpc import Json, Malformed, dump

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
    """An answer that does not end by itself. However it ends, so do its parts, at once."""

    def __init__(self, parts: AsyncGenerator[bytes, None]) -> None:
        own = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(parts, headers=own)
        self._parts = parts

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._parts):
            await super().stream_response(send)


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> AdminResponse:
    try:
        body = dump(value)  # in half of the time: the tools of a client may be megabytes
    except Malformed:  # a peer's text that UTF-8 cannot say, and JSON can
        body = json.dumps(value).encode("ascii")
    return AdminResponse(status, body + b"\n", headers=headers)


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
