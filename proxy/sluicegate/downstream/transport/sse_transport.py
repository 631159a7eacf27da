"""A server of the 2024 transport: one event stream with all that it says, a POST for each thing that it is told.

2024-11-05 basic/transports#http-with-sse. The stream is the session: when it ends, whatever waits for an answer has
lost it, and nothing can be resumed. The server says itself where to POST, and is believed only on the configured
origin: our credentials go nowhere else.
"""

from __future__ import annotations  # httpx is imported at its first use

import logging
from collections.abc import Callable
from typing import Final

import anyio
import httpx
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import Lost
from sluicegate.downstream.session.connection import Receive, ReceiveInPieces
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.transport.http_base import (
    MAX_SENDING,
    SEND_TIME,
    HttpTransport,
    Raw,
    is_event_stream,
    on_origin,
    refused,
)
from sluicegate.http.client.connection import Reply
from sluicegate.http.client.pool import HttpClient
from sluicegate.http.sse import EventParser, EventTooLarge, StreamPosition
from sluicegate.protocol.modern_server import Headers
from sluicegate.protocol.revisions import Revision
from sluicegate.runtime.loop_budget import PIECE, LoopBudget
from sluicegate.runtime.spool import Spool
from sluicegate.runtime.unfinished import TooMuchUnfinished

log = logging.getLogger(__name__)

ENDPOINT_WITHIN: Final = 10.0
"""Seconds from the beginning of the stream to the event that must come first."""
MAX_LATE_BYTES: Final = 8 * 1024 * 1024
_MAX_HOPS: Final = 3
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_NEVER_MOVED: Final = frozenset[int]()
_MOVED_POST: Final = frozenset({307, 308})  # the others would turn it into a GET


class _LateSend:
    """A POST whose answer came on the stream, or for whose answer nobody waits any more. The server has a moment to
    accept it, and only so many may be late at once: each holds a socket and its body."""

    is_late = False
    scope: anyio.CancelScope

    def __init__(self, transport: HttpSseTransport, size: int) -> None:
        self._transport, self._size = transport, size

    def begin(self) -> None:
        transport = self._transport
        if transport.late >= MAX_SENDING or transport.late_bytes + self._size > MAX_LATE_BYTES:
            self.scope.cancel()
            return
        self.is_late = True
        transport.late += 1
        transport.late_bytes += self._size
        self.scope.deadline = min(self.scope.deadline, anyio.current_time() + SEND_TIME)

    def end(self) -> None:
        if self.is_late:
            self._transport.late -= 1
            self._transport.late_bytes -= self._size


class HttpSseTransport(HttpTransport):
    """The `Transport` of one stream. All exchanges share it, as on stdio. `late` counts the POSTs that have outlived
    their calls, `late_bytes` what they hold."""

    is_private = False
    late = late_bytes = 0

    def __init__(self, settings: ServerSettings, http: HttpClient, budget: LoopBudget) -> None:
        super().__init__(settings, http, budget)
        common = [(b"accept-encoding", b"identity"), *self._configured]
        self._getting: Raw = [(b"accept", b"text/event-stream"), *common]
        self._posting: Raw = [(b"content-type", b"application/json"), *common]
        self._position = StreamPosition()
        self._arrived = anyio.Event()  # the endpoint, or the end before it
        self._messages: httpx.URL | None = None
        self._life = anyio.CancelScope()

    async def open(
        self, group: TaskGroup, receive: Receive, in_pieces: ReceiveInPieces, retire: Callable[[str, bool], None]
    ) -> None:
        await super().open(group, receive, in_pieces, retire)
        response = await self._follow("GET", self._url, self._getting, b"", _MOVED)
        if response.status != 200 or not is_event_stream(response):
            try:
                if response.status == 200:
                    raise Lost("the server gave no event stream", sent=False)
                raise await refused(response)
            finally:
                response.close()
        group.start_soon(self._listen, response)
        with anyio.move_on_after(ENDPOINT_WITHIN):
            await self._arrived.wait()
        if not self._position.endpoint:
            raise Lost("the server's event stream did not begin with its endpoint", sent=False)
        self._messages = on_origin(self._url, self._position.endpoint)
        if self._messages is None:
            raise Lost("the server's endpoint event leads to another origin, which is refused", sent=False)

    async def send(self, exchange: PendingRequest, body: bytes, headers: Headers) -> None:
        """A task of its own: some servers accept a message only when they have done what it says."""
        self._group.start_soon(self._send, exchange, body)

    async def _send(self, exchange: PendingRequest, body: bytes) -> None:
        late = _LateSend(self, len(body))
        try:
            with anyio.move_on_after(self._settings.max_time) as late.scope:
                exchange.on_over = late.begin
                await self._post(body, exchange)
        except Lost as lost:
            exchange.on_over = None
            exchange.settle(error=lost)
        finally:
            exchange.on_over = None
            late.end()

    async def notify(self, body: bytes) -> None:
        await self._post(body, None)

    async def _post(self, body: bytes, exchange: PendingRequest | None) -> None:
        """What may be sent only once follows no redirect."""
        if self._messages is None:
            raise Lost("the server has not said where to send messages", sent=False)
        moved = _NEVER_MOVED if exchange is not None and exchange.once else _MOVED_POST
        response = await self._follow("POST", self._messages, self._posting, body, moved, exchange)
        try:
            if response.status == 404:  # the session is over, or never was: no page says that nothing was executed then
                self._retire("the server ended the session", False)
                raise Lost("the server ended the session", sent=True, gone=True, status=404)
            if not 200 <= response.status < 300:
                raise await refused(response)
        finally:
            response.close()

    async def _follow(
        self, method: str, url: httpx.URL, headers: Raw, body: bytes, moved: frozenset[int],
        exchange: PendingRequest | None = None,
    ) -> Reply:  # fmt: skip
        """The answer, after redirects on the origin: `/sse` is `/sse/` for many servers. Raises `Lost`."""
        for _ in range(_MAX_HOPS + 1):
            response = await self._request(method, url, headers, body, exchange)
            if response.status not in moved:
                return response
            response.close()
            moved_to = on_origin(url, response.headers.get(b"location", b"").decode("latin-1"))
            if moved_to is None:
                raise Lost("the server redirects to another origin, which is refused", sent=False)
            url = moved_to
            self._check_still(exchange)
            if method == "GET":
                self._url = url
            else:
                self._messages = url
        raise Lost("the server redirects without end", sent=False)

    async def _listen(self, response: Reply) -> None:
        why = "the server closed its event stream"
        settings = self._settings
        events = EventParser(
            self._position, settings.max_result, settings.keep, settings.unfinished, response.close, takes_endpoint=True
        )  # fmt: skip
        with self._life:
            try:
                async for chunk in response:
                    for start in range(0, len(chunk), PIECE):
                        since = self._budget.now()  # blank lines and comments are work, too
                        await self._take(events.feed(chunk[start : start + PIECE]), since)
                    if self._position.endpoint:
                        self._arrived.set()
            except httpx.TransportError as error:
                why = f"the event stream broke: {error or type(error).__name__}"
            except EventTooLarge:
                why = f"the server sent an event of more than {settings.max_result} bytes"
            except TooMuchUnfinished as error:
                why = f"the server sent {error}"
            finally:
                events.end()
                response.close()
        self.is_ending = True
        self._arrived.set()
        self._retire(why, True)

    async def _take(self, found: list[bytes | Spool], since: float) -> None:
        owners = [await self._take_message(data, None) for data in found]
        if not owners or any(owner is None or not owner.is_over for owner in owners):
            await self._budget.charge_and_rest(since)

    def agreed(self, revision: Revision) -> None:
        """Nothing on this wire depends on the revision."""

    async def live(self) -> None:
        """What the server says by itself comes on the stream that is open."""

    def discard_input(self) -> None:
        self._life.cancel()

    async def close(self) -> None:
        self._life.cancel()
