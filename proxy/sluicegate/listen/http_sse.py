"""HTTP+SSE, the transport of 2024-11-05: one event stream with all that a client is told, POSTs with what it says.

2024-11-05 basic/transports#http-with-sse. The stream is the session: it begins with the `endpoint` event, whose address
holds an id that nobody can guess and that is good for the principal that opened the stream; it ends with the stream,
and its calls end with it. Which revision is spoken is settled by the handshake, as everywhere. Knows HTTP and streams;
what messages mean is in `jsonrpc_session`.
"""

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import anyio

from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.listen.auth import Principal
from sluicegate.listen.http_exchange import HttpExchange, event
from sluicegate.listen.jsonrpc_session import DuplexChannel, JsonRpcSession
from sluicegate.listen.large_requests import LARGE, RequestRefused
from sluicegate.listen.legacy_http import MAX_OPEN, RequestsInFlight
from sluicegate.listen.line_streams import Output, Put
from sluicegate.listen.streamable_http import EndpointContext, accepts
from sluicegate.protocol.jsonrpc import Message, Request

SSE: Final = "/sse"
MESSAGES: Final = "/messages"
_MAX_QUERY: Final = 1024
_MAX_FIELDS: Final = 16
_ALLOW: Final = [(b"allow", b"GET, OPTIONS")]


@dataclass(frozen=True, slots=True)
class SseSession:
    """One open stream. Only its own principal reaches it. `counted` are its messages that are at work."""

    opened_by: Principal
    session: JsonRpcSession
    counted: set[ExitStack] = field(default_factory=set)

    def is_of(self, principal: Principal) -> bool:
        """A key that was replaced is another one, as its holder may be."""
        mine = self.opened_by
        return (mine.name, mine.credential) == (principal.name, principal.credential)

    def release(self, counted: ExitStack) -> None:
        self.counted.discard(counted)
        counted.close()

    def end(self) -> None:
        self.session.end_session()
        for counted in list(self.counted):
            self.release(counted)


class HttpSse:
    """All open streams of a listener. Their number is bounded with that of all other streams of a principal."""

    def __init__(
        self, context: EndpointContext, forwarded: ForwardedHeaders, on_session_end: Callable[[str], None]
    ) -> None:
        self._context, self._forwarded = context, forwarded
        self._channel = DuplexChannel("sse", on_session_end, context.settings.limits.max_batch, is_legacy=True)
        self._streams: dict[str, SseSession] = {}
        self._in_flight = RequestsInFlight()

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, exchange: HttpExchange, principal: Principal) -> None:
        if exchange.head.method != "GET":  # a POST here asks which transport this is: <= 2026-07-28 basic/transports
            await exchange.error(405, "Method not allowed", _ALLOW)
            return
        if exchange.head.duplicate is not None:
            await exchange.error(400, "a header is given twice")
            return
        if not accepts(exchange.head.get(b"accept", b"*/*"))[1]:
            await exchange.error(406, "Accept must have text/event-stream")
            return
        prefix = self._forwarded.prefix(exchange.client, exchange.head.headers)
        async with anyio.create_task_group() as group:
            unread = self._context.large.unread
            put = _event_writer(exchange, partial(unread.note, principal.name, exchange.peer))
            output = Output(put, exchange.end, partial(unread.room, principal.name, exchange.peer))
            session = JsonRpcSession(self._context, self._channel, principal.client, output, group)
            if not self._context.streams.enter(principal, exchange, lambda: session.finish(exchange.end)):
                await exchange.error(429, "too many open streams")
                return
            exchange.is_call = True  # servers and other clients make what it carries
            id = self._context.settings.sessions.mark + secrets.token_urlsafe(24)
            stream = self._streams[id] = SseSession(principal, session)
            try:
                exchange.preamble = lambda: _endpoint(prefix, id)
                await exchange.open()
                group.start_soon(_expect_handshake, session, exchange, self._context.settings.pace.handshake)
                await exchange.until_over()
            finally:
                del self._streams[id]
                self._context.streams.leave(principal, exchange)
                stream.end()
                group.cancel_scope.cancel()
        await exchange.close()

    async def post(self, exchange: HttpExchange, principal: Principal, value: Any) -> None:
        """202 says only that the message was accepted: its answer comes on the stream. `principal` has the roles that
        it had when the body was whole."""
        stream = self._streams.get(session_id(exchange.peer.head.query))
        if stream is None or not stream.is_of(principal):  # over, or somebody else's: no difference may show
            await exchange.error(404, "Session not found")
            return
        message = stream.session.read(value)
        counted = self._count(principal.name, message, exchange.held or exchange.peer.size)
        stream.counted.add(counted)  # until the end of its work or of the stream
        with ExitStack() as not_taken:
            not_taken.callback(stream.release, counted)
            stream.session.recognise(principal.client)
            await exchange.empty(202)
            exchange.is_call = await stream.session.take(message, partial(stream.release, counted))
            not_taken.pop_all()

    def _count(self, principal: str, message: Message | list[Message], size: int) -> ExitStack:
        """Counts it as in flight. Raises `RequestRefused` where its client has too many requests."""
        messages = message if isinstance(message, list) else [message]
        requests = sum(isinstance(one, Request) for one in messages)
        with ExitStack() as counted:
            if requests:
                counted.callback(self._in_flight.leave, principal, requests)
                if not self._in_flight.enter(principal, requests):
                    text = f"More than {MAX_OPEN} requests are in flight, this one was not executed."
                    raise RequestRefused(1.0, text)
            if size > LARGE:
                counted.enter_context(self._context.large.counting(principal, size))
            return counted.pop_all()

    def find(self, id: str) -> JsonRpcSession | None:
        """The stream of that session; its id says whether it has one."""
        streams = self._streams.values() if id.startswith(f"{self._channel.name}-") else ()
        sessions = (stream.session for stream in streams)
        return next((one for one in sessions if one.session and one.session.client.session == id), None)


def _endpoint(prefix: str, id: str) -> bytes:
    """The path alone: whatever scheme, host and port the client came by, it stays there."""
    return f"event: endpoint\ndata: {prefix}{MESSAGES}?session_id={id}\n\n".encode()


def session_id(query: bytes) -> str:
    """The id that comes once, else nothing. What is longer than our own address can be is not taken apart."""
    if len(query) > _MAX_QUERY or query.count(b"&") >= _MAX_FIELDS:
        return ""
    ids = parse_qs(query.decode("latin-1")).get("session_id", [])
    return ids[0] if len(ids) == 1 else ""


def _event_writer(exchange: HttpExchange, note: Callable[[], None]) -> Put:
    """Waits for a slow reader, as long as the connection lets us: answers may be large."""

    async def put(data: bytes) -> None:
        # the second is nothing, in its turn: it returns when there is room for more
        is_taken = await exchange.write(event(data), patient=True)
        if exchange.peer.unread:
            note()
        if not (is_taken and await exchange.write(b"", patient=True)):
            raise BrokenPipeError

    return put


async def _expect_handshake(session: JsonRpcSession, exchange: HttpExchange, within: float) -> None:
    """Closes a stream whose client does not begin the handshake in time."""
    await anyio.sleep(within)
    if session.session is None:
        exchange.end()
