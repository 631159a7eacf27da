"""Streamable HTTP as clients of 2024-11-05 to 2025-11-25 speak it: sessions, GET streams, resuming, batches.

<= 2025-11-25 basic/transports#streamable-http. What a session is stands in session.py; here is which request
reaches which session, and how it is answered. Knows no server.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from sluicegate.listen.auth import Principal
from sluicegate.listen.client_channel import ClientChannel, run_input_rounds
from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.replay import PUSH, parse_id
from sluicegate.listen.resumable_response import ResumableResponse
from sluicegate.listen.session import Session
from sluicegate.listen.sessions import Sessions
from sluicegate.listen.streamable_http import EndpointContext, accepts, to_bytes, version
from sluicegate.protocol import downgrade, legacy_client
from sluicegate.protocol.jsonrpc import (
    INVALID_PARAMS,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode,
    is_id,
)
from sluicegate.protocol.model import Call, Client, Failure, InputRequired, Outcome, Result
from sluicegate.protocol.modern_client import Parsed
from sluicegate.protocol.revisions import LEGACY, LOG_LEVELS

Refusal = tuple[int, str]
"""Status and text."""

_SPOKEN: Final = frozenset(name.encode() for name in LEGACY)
_SUBSCRIPTIONS: Final = ("resources/subscribe", "resources/unsubscribe")


class LegacyHttp:
    def __init__(self, edge: EndpointContext, sessions: Sessions) -> None:
        self._edge, self._sessions = edge, sessions

    # ------------------------------------------------------------ which session

    def _session(self, exchange: HttpExchange, principal: Principal) -> Session | Refusal:
        """The session this request belongs to."""
        if (refusal := _foreign(exchange)) is not None:
            return refusal
        id = exchange.head.get(b"mcp-session-id")
        if id is None:
            return 400, "Mcp-Session-Id is required"
        session = self._sessions.get(id.decode("latin-1"), principal)
        return session or (404, "Session not found")  # ended, or somebody else's: no difference may show

    # ------------------------------------------------------------ POST

    def post(self, exchange: HttpExchange, message: Message, principal: Principal) -> Awaitable[None]:
        if isinstance(message, Request) and message.method == "initialize":
            refusal = _foreign(exchange)
            return exchange.error(*refusal) if refusal else self._initialize(exchange, message, principal)
        session = self._session(exchange, principal)
        if not isinstance(session, Session):
            return exchange.error(*session)
        if isinstance(message, Request):
            return self._serve(exchange, session, message, principal)
        self._take(session, message)
        return exchange.empty(202)

    async def _serve(self, exchange: HttpExchange, session: Session, request: Request, principal: Principal) -> None:
        answer = self._answer(exchange, session)
        try:
            response = await self._run(answer, session, request, principal)
            if response is None or not answer.finish_at_once(response):
                await answer.finish([] if response is None else [response])
        finally:
            self._settle(answer, session)

    async def _initialize(self, exchange: HttpExchange, request: Request, principal: Principal) -> None:
        """Always a new session: an id that the client brings is never adopted."""
        handshake = legacy_client.initialize(request.params)
        if isinstance(handshake, Failure):
            await self._local(exchange, request, handshake)
            return
        client = Client(
            principal.name, principal.roles, principal.owner, handshake.revision, handshake.info,
            handshake.capabilities, None, handshake.capability_key,
        )  # fmt: skip
        discovered = await self._edge.handler(Call(client, "server/discover", {}, trail=self._edge.trail()))
        outcome = legacy_client.initialize_result(handshake, discovered, self._edge.server_info)
        if not isinstance(outcome, Result) or exchange.peer.lost:
            await self._local(exchange, request, outcome)
            return
        session = self._sessions.open(principal, handshake)
        if session is None:
            await exchange.error(503, "too many sessions", id=request.id)
            return
        response = legacy_client.respond(request.id, request.method, outcome, handshake.revision)
        await exchange.json(200, to_bytes(response), [(b"mcp-session-id", session.id.encode())])

    async def _local(self, exchange: HttpExchange, request: Request, outcome: Outcome) -> None:
        response = legacy_client.respond(request.id, request.method, outcome, LEGACY[-1])
        await exchange.json(200, to_bytes(response))

    def _take(self, session: Session, message: Notification | Response) -> None:
        """What needs no answer: a notification, or the response to a question."""
        if isinstance(message, Response):
            session.asks.answer(message)
        elif message.method == "notifications/initialized":
            session.listening.start()
        elif message.method == "notifications/cancelled":
            id = message.params.get("requestId")
            if id is not None and is_id(id):
                session.cancel(id)
        elif message.method == legacy_client.ROOTS_CHANGED and "roots" in session.client.capabilities:
            session.listening.tell(message.method)

    def spoil(self, exchange: HttpExchange, value: object, principal: Principal) -> None:
        """This is no message. Whoever waits for it as an answer must not wait longer."""
        session = self._sessions.get(exchange.head.get(b"mcp-session-id", b"").decode("latin-1"), principal)
        if session is not None:
            session.asks.spoil(value)

    # ------------------------------------------------------------ requests

    def _answer(self, exchange: HttpExchange, session: Session) -> ResumableResponse:
        exchange.arm()
        return ResumableResponse(exchange, session.revision, session.adopt, self._edge.settings)

    def _settle(self, answer: ResumableResponse, session: Session) -> None:
        answer.end()
        self._sessions.keep(session, answer)

    async def _run(
        self, answer: ResumableResponse, session: Session, request: Request, principal: Principal
    ) -> bytes | None:
        """The response; None where the client cancelled."""
        running = session.begin(request.id, answer.loop)
        try:
            asked = self._read(answer, session, request, principal)
            if isinstance(asked, Call):
                outcome = await self._edge.handler(asked)
                if isinstance(outcome, InputRequired):
                    outcome = await run_input_rounds(self._edge.handler, asked, outcome, self._way(answer, session))
                outcome = downgrade.shaped(asked, outcome)
            else:
                outcome = await asked if isinstance(asked, Awaitable) else asked
        except asyncio.CancelledError:
            if not running.stopped:
                raise
            running.task.uncancel()
            return None
        finally:
            session.done(request.id, running)
        # Codes depend on what was asked for: a subscription that is refused is a resource that is not found.
        method = "resources/read" if request.method in _SUBSCRIPTIONS else request.method
        return to_bytes(legacy_client.respond(request.id, method, outcome, session.client.revision), outcome)

    def _read(
        self, answer: ResumableResponse, session: Session, request: Request, principal: Principal
    ) -> Call | Outcome | Awaitable[Outcome]:
        """The call that it asks for, or its outcome where it asks for none."""
        if request.method == "logging/setLevel":
            return _set_level(session, request.params.get("level"))
        if request.method in _SUBSCRIPTIONS:
            wanted = request.method == "resources/subscribe"
            return session.listening.subscribe(request.params.get("uri"), wanted)
        parsed = legacy_client.parse(request, session.client.revision, session.level)
        if not isinstance(parsed, Parsed):
            return parsed

        client, emit = session.client_for(principal), partial(_emit, answer, session, legacy_client.Rising())
        return Call(client, parsed.method, parsed.params, parsed.meta, None, None, emit, self._edge.trail())

    def _way(self, answer: ResumableResponse, session: Session) -> ClientChannel:
        async def send(message: Message) -> bool:
            return not session.ended and await answer.send(encode(message))

        return ClientChannel(session.asks, send, self._edge.trail, self._edge.abandon)

    # ------------------------------------------------------------ batches

    async def batch(self, exchange: HttpExchange, values: list[Any], principal: Principal) -> None:
        """2025-03-26 basic/transports#sending-messages-to-the-server; no other revision has arrays."""
        session = self._session(exchange, principal) if b"mcp-session-id" in exchange.head else None
        if isinstance(session, tuple):
            await exchange.error(*session)
            return
        if session is None or not session.revision.batches:
            await exchange.error(400, "arrays are not accepted here")
            return
        try:
            messages = legacy_client.read_batch(values, self._edge.settings.limits.max_batch)
        except Malformed:
            session.asks.spoil_all(values)
            raise
        for message in messages:
            if not isinstance(message, Request):
                self._take(session, message)
        requests = [message for message in messages if isinstance(message, Request)]
        if not requests:
            await exchange.empty(202)
            return
        answer = self._answer(exchange, session)
        tasks = [asyncio.create_task(self._item(answer, session, item, principal)) for item in requests]
        try:
            done = await asyncio.gather(*tasks)
            await answer.finish([data for data in done if data], batch=True)
        finally:
            for task in tasks:
                task.cancel()
            self._settle(answer, session)

    async def _item(
        self, answer: ResumableResponse, session: Session, request: Request, principal: Principal
    ) -> bytes | None:
        """One request of a batch; sent at once when the answer has become a stream."""
        await self._edge.large.enter(principal.name)
        response = await self._run(answer, session, request, principal)
        if response is not None and answer.is_stream:
            await answer.send(response)
            return None
        return response

    # ------------------------------------------------------------ GET and DELETE

    async def get(self, exchange: HttpExchange, principal: Principal) -> None:
        if not accepts(exchange.head.get(b"accept", b"*/*"))[1]:
            await exchange.error(406, "Accept must have text/event-stream")
            return
        session = self._session(exchange, principal)
        if not isinstance(session, Session):
            await exchange.error(*session)
            return
        if not self._edge.streams.enter(principal, exchange, exchange.end):
            await exchange.error(429, "too many open streams")
            return
        try:
            await self._stream(exchange, session)
        finally:
            self._edge.streams.leave(principal, exchange)

    async def _stream(self, exchange: HttpExchange, session: Session) -> None:
        last = exchange.head.get(b"last-event-id") if session.revision.streamable else None
        if last is not None:
            found = parse_id(last)
            answer = session.answers.get(found[0]) if found else None
            if found is None or (found[0] != PUSH and answer is None):
                await exchange.error(400, "this event cannot be resumed from")
                return
            if answer is not None:
                await answer.resume(exchange, found[1])
                return
            session.outbox.rewind(found[1])
        await session.attach(exchange, self._edge.settings.pace.retry)

    async def delete(self, exchange: HttpExchange, principal: Principal) -> None:
        session = self._session(exchange, principal)
        if not isinstance(session, Session):
            await exchange.error(*session)
            return
        self._sessions.end(session)
        await exchange.empty(200)


async def _emit(answer: ResumableResponse, session: Session, rising: legacy_client.Rising, note: Notification) -> None:
    shown = legacy_client.notification(note, session.client.revision, session.level)
    if shown is not None and rising.admits(shown):
        await answer.send(encode(shown))


def _foreign(exchange: HttpExchange) -> Refusal | None:
    """2025-06-18 basic/transports#protocol-version-header: an unsupported one is 400. Among those that we
    speak the session's own decides, because clients send what they like."""
    header = version(exchange)
    if header is None or header in _SPOKEN:
        return None
    return 400, "Unsupported protocol version"


def _set_level(session: Session, level: object) -> Outcome:
    if level not in LOG_LEVELS:
        return Failure(INVALID_PARAMS, "unknown log level")
    session.level = str(level)
    return Result({})
