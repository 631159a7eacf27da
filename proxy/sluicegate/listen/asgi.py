"""An ASGI application behind `Http1`: for a port where speed does not matter and another room answers.

A body comes in parts, for the application knows how much of it may be. An answer that says no length is a stream, and
ends when its client goes away. There is no lifespan and there are no websockets. Knows no application.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

import anyio
from anyio.lowlevel import checkpoint

from sluicegate.listen.http_exchange import error_body
from sluicegate.listen.http_request import BodyTooLarge, ClientGone, HttpRequest, Serve, render

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 8 * 1024 * 1024
"""Whatever an application says."""

_LOG: Final = logging.getLogger(__name__)


def asgi(app: Application) -> Serve:
    async def serve(request: HttpRequest) -> None:
        try:
            await _relay(app, request)
        except ClientGone:
            pass
        except BodyTooLarge:
            await _error(request, 413, "request too large")
        except Exception:  # noqa: BLE001 - the boundary of a request: the client gets no details
            _LOG.exception("a request failed: %r", request)
            await _error(request, 500, "Internal error")

    return serve


async def _relay(app: Application, request: HttpRequest) -> None:
    start: Event = {}
    parts: list[bytes] = []
    is_read, size = False, 0

    async def receive() -> Event:
        nonlocal is_read, size
        if is_read:  # whoever waits for its client's end is cancelled with the rest
            await anyio.sleep_forever()
        part = await request.part()
        is_read, size = request.is_whole, size + len(part)
        if max(size, request.declared) > MAX_BODY:
            raise BodyTooLarge
        return {"type": "http.request", "body": part, "more_body": not is_read}

    async def send(event: Event) -> None:
        if event["type"] == "http.response.start":
            start.update(event)
            return
        body, is_last = event.get("body", b""), not event.get("more_body")
        if any(name == b"content-length" for name, _ in start["headers"]):
            parts.append(body)
            if is_last:
                await request.respond(start["status"], render(start["headers"]), b"".join(parts))
            return
        if request.head.method == "HEAD":  # RFC 9110 9.3.2: no content, so that nobody waits for the end of it
            await request.respond(start["status"], render(start["headers"]), b"")
            scope.cancel()
            return await checkpoint()
        if not request.is_started:
            request.on_lost = scope.cancel
            await request.start(start["status"], render(start["headers"]))
        await (request.end(body) if is_last else request.write(body))

    with anyio.CancelScope() as scope:
        await app(_scope(request), receive, send)


def _scope(request: HttpRequest) -> Event:
    head = request.head
    # All slashes at its end: a path that is passed on to another process of ours must not become another one there.
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
        "method": head.method, "root_path": "", "query_string": head.query,
        "path": unquote(head.path.rstrip("/")) or "/",
        "headers": head.headers, "server": request.server, "client": request.client,
    }  # fmt: skip


async def _error(request: HttpRequest, status: int, text: str) -> None:
    if not request.is_answered:
        body = error_body(text)
        await request.respond(status, b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body), body)
