"""Answers of the admin port, and how they go out by ASGI. Knows no path and nothing of what is told."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from sluicegate.admin.credentials import Scope

Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Final = "application/json"
MAX_BODY: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AdminResponse:
    status: int
    body: bytes
    kind: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class EventStreamResponse:
    """An answer that does not end by itself."""

    parts: AsyncIterator[bytes]


def json_response(status: int, value: Any, *headers: tuple[bytes, bytes]) -> AdminResponse:
    return AdminResponse(status, json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n", headers=headers)


def error_response(status: int, text: str, *headers: tuple[bytes, bytes]) -> AdminResponse:
    return json_response(status, {"error": text}, *headers)


async def read_body(receive: Receive) -> bytes | None:
    """The request's body; None for one that is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


def application(answer: Callable[[Scope, Receive], Awaitable[AdminResponse | EventStreamResponse]]) -> Application:
    """The ASGI callable that sends what `answer` gives. Anything but HTTP is left alone."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        found = await answer(scope, receive)
        if isinstance(found, EventStreamResponse):
            await send_stream(send, found)
        else:
            await send_response(send, found, with_body=scope["method"] != "HEAD")

    return app


async def send_response(send: Send, answer: AdminResponse, with_body: bool) -> None:
    headers = [
        (b"content-type", answer.kind.encode("ascii")),
        (b"content-length", str(len(answer.body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if with_body else b""})


async def send_stream(send: Send, answer: EventStreamResponse) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async with aclosing(answer.parts) as parts:  # type: ignore[type-var]
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
