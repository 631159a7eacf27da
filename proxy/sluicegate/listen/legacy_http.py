"""Streamable HTTP as clients of 2024-11-05 to 2025-11-25 speak it: sessions, GET streams, resuming, batches.

<= 2025-11-25 basic/transports#streamable-http. `http_session` has what a session is; here is which request reaches
which session, and how it is answered. Knows no server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any, Final

from sluicegate.listen.auth import Principal
from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.http_request import HttpRequest
from sluicegate.listen.http_session import HttpSession, client_of
from sluicegate.listen.jsonrpc_session import too_many
from sluicegate.listen.large_requests import LARGE, LargeRequests, UnreadAnswers
from sluicegate.listen.legacy_session import initialize
from sluicegate.listen.line_streams import MAX_ARRAY
from sluicegate.listen.replay import PUSH, parse_id
from sluicegate.listen.resumable_response import ResumableResponse
from sluicegate.listen.sessions import Sessions
from sluicegate.listen.streamable_http import EndpointContext, accepts, to_bytes, version
from sluicegate.protocol import downgrade, legacy_client
from sluicegate.protocol.jsonrpc import Message, Notification, Request, Response, encode, is_id
from sluicegate.protocol.model import Call, Failure, InputRequired, Outcome, Result
from sluicegate.protocol.revisions import LEGACY

Refusal = tuple[int, str]
"""Status and text."""

Again = Callable[[HttpExchange, Principal], Principal | None]
"""Who sends this request by now, after a wait; None where that credential is over."""

MAX_OPEN: Final = 2_000
"""Requests of one principal in flight. They go on when their connections break, so that these are no bound."""
_SPOKEN: Final = frozenset(name.encode() for name in LEGACY)


class RequestsInFlight:
    """How many each principal has."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def enter(self, principal: str, requests: int = 1) -> bool:
        """Whether they may begin; `leave` follows in any case."""
        self._counts[principal] = count = self._counts.get(principal, 0) + requests
        return count <= MAX_OPEN

    def leave(self, principal: str, requests: int = 1) -> None:
        if count := self._counts.pop(principal) - requests:
            self._counts[principal] = count


class LegacyHttp:
    def __init__(self, context: EndpointContext, sessions: Sessions, again: Again) -> None:
        self._context, self._sessions, self._again = context, sessions, again
        self._in_flight = RequestsInFlight()

    def _session(self, exchange: HttpExchange, principal: Principal) -> HttpSession | Refusal:
        """The session this request belongs to."""
        if (refusal := _foreign(exchange)) is not None:
            return refusal
        id = exchange.head.get(b"mcp-session-id")
        if id is None:
            return 400, "Mcp-Session-Id is required"
        session = self._sessions.get(id.decode("latin-1"), principal)
        if session is not None:
            session.client_for(principal)
        return session or (404, "Session not found")  # ended, or somebody else's: no difference may show

    def has_session(self, exchange: HttpExchange, principal: Principal) -> bool:
        return isinstance(self._session(exchange, principal), HttpSession)

    def post(self, exchange: HttpExchange, message: Message, principal: Principal) -> Awaitable[None]:
        # Step 4 of docs/explanation/performance.md
        if isinstance(message, Request) and message.method == "initialize":
            refusal = _foreign(exchange)
            return exchange.error(*refusal) if refusal else self._initialize(exchange, message, principal)
        session = self._session(exchange, principal)
        if not isinstance(session, HttpSession):
            return exchange.error(*session)
        if isinstance(message, Request):
            exchange.is_call = True
            return self._serve(exchange, session, message, principal)
        self._take(session, message)
        return exchange.empty(202)

    async def _serve(
        self, exchange: HttpExchange, session: HttpSession, request: Request, principal: Principal
    ) -> None:
        # Step 4 of docs/explanation/performance.md
        answer = self._answer(exchange, session)
        try:
            found = await self._run(answer, session, request, exchange.spent)
            unread = self._context.large.unread
            peer = await _room(answer, unread, principal.name) if unread.held else answer.peer
            response = None if found is None else to_bytes(*found)
            if response is None or not answer.finish_at_once(response):
                await answer.finish([] if response is None else [response])
            if peer.unread:
                unread.note(principal.name, peer)
        finally:
            self._settle(answer, session)

    async def _initialize(self, exchange: HttpExchange, request: Request, principal: Principal) -> None:
        """Always a new session: an id that the client brings is never adopted."""
        handshake = legacy_client.initialize(request.params)
        if isinstance(handshake, Failure):
            await self._local(exchange, request, handshake)
            return
        has_room = self._in_flight.enter(principal.name)
        try:
            if has_room:
                exchange.is_call = True
                outcome = await initialize(self._context, handshake, client_of(principal, handshake, None))
            else:
                outcome = too_many(request.method, MAX_OPEN)
        finally:
            self._in_flight.leave(principal.name)
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

    def _take(self, session: HttpSession, message: Notification | Response) -> None:
        """Takes a message that needs no answer: a notification, or the response to a question."""
        if isinstance(message, Response):
            session.take(message)
        elif message.method == "notifications/initialized":
            session.listening.start()
        elif message.method == "notifications/cancelled":
            id = message.params.get("requestId")
            if id is not None and is_id(id):
                session.cancel(id)
        else:
            session.take(message)

    def spoil(self, exchange: HttpExchange, value: object, principal: Principal) -> None:
        """This is no message. Whoever waits for it as an answer must not wait longer."""
        session = self._sessions.get(exchange.head.get(b"mcp-session-id", b"").decode("latin-1"), principal)
        if session is not None:
            session.asks.spoil(value)

    def _answer(self, exchange: HttpExchange, session: HttpSession) -> ResumableResponse:
        exchange.arm()
        return ResumableResponse(exchange, session.revision, session.adopt, self._context.settings)

    def _settle(self, answer: ResumableResponse, session: HttpSession) -> None:
        answer.end()
        self._sessions.keep(session, answer)

    async def _run(
        self, answer: ResumableResponse, session: HttpSession, request: Request, spent: float,
        enter: Callable[[], Awaitable[bool]] | None = None,
    ) -> tuple[Response, Outcome] | None:  # fmt: skip
        """Returns the response, and the outcome that it was made of; None where the client cancelled, or where `enter`,
        which may wait, says that it must not begin. What is answered without a call is paid for, with the time that was
        `spent` on it before."""
        running, name = session.begin(request.id, answer.loop), session.principal.name
        has_room = self._in_flight.enter(name)
        try:
            if enter is not None and not await enter():
                return None
            since, emit = perf_counter(), partial(_emit, answer, session, legacy_client.Rising())
            begun = session.to_call(request, session.client, emit) if has_room else too_many(request.method, MAX_OPEN)
            if isinstance(begun, Call):
                outcome = await self._context.handler(begun)
                if isinstance(outcome, InputRequired):
                    outcome = await session.run_input_rounds(begun, outcome, partial(_send, answer, session))
                outcome = downgrade.shaped(begun, outcome)
            elif callable(begun):
                outcome = await begun()
            else:
                outcome = begun
                self._context.large.refused(session.client.principal, spent + perf_counter() - since)
        except asyncio.CancelledError:
            if not running.stopped:
                raise
            running.task.uncancel()
            return None
        finally:
            session.done(request.id, running)
            self._in_flight.leave(name)
        return session.respond(request, outcome), outcome

    async def batch(self, exchange: HttpExchange, values: list[Any], principal: Principal) -> None:
        """2025-03-26 basic/transports#sending-messages-to-the-server; no other revision has arrays."""
        session = self._session(exchange, principal) if b"mcp-session-id" in exchange.head else None
        if isinstance(session, tuple):
            await exchange.error(*session)
            return
        if session is None or not session.revision.batches:
            await exchange.error(400, "arrays are not accepted here")
            return
        messages = session.read_batch(values, self._context.settings.limits.max_batch)
        for message in messages:
            if not isinstance(message, Request):
                self._take(session, message)
        requests = [message for message in messages if isinstance(message, Request)]
        if not requests:
            await exchange.empty(202)
            return
        exchange.is_call = True  # each of them pays for itself
        answer = self._answer(exchange, session)
        together, turn = list[bytes](), asyncio.Lock()

        async def enter() -> bool:
            """Its client's turn may come late: the session may be over by then, or the key, or give other roles."""
            await self._context.large.enter(principal.name)
            now = None if session.ended else self._again(exchange, principal)
            if now is not None:
                session.client_for(now)
            return now is not None

        async def serve(item: Request) -> None:
            found = await self._run(answer, session, item, exchange.spent / len(requests), enter)
            if found is not None:
                async with turn:
                    await _add(answer, self._context.large, principal.name, found, together)

        tasks = [asyncio.create_task(serve(item)) for item in requests]
        try:
            await asyncio.gather(*tasks)
            await answer.finish(together, batch=True)
        finally:
            for task in tasks:
                task.cancel()
            self._settle(answer, session)

    async def get(self, exchange: HttpExchange, principal: Principal) -> None:
        if not accepts(exchange.head.get(b"accept", b"*/*"))[1]:
            await exchange.error(406, "Accept must have text/event-stream")
            return
        session = self._session(exchange, principal)
        if not isinstance(session, HttpSession):
            await exchange.error(*session)
            return
        if not self._context.streams.enter(principal, exchange, exchange.end):
            await exchange.error(429, "too many open streams")
            return
        try:
            await self._stream(exchange, session)
        finally:
            self._context.streams.leave(principal, exchange)

    async def _stream(self, exchange: HttpExchange, session: HttpSession) -> None:
        last = exchange.head.get(b"last-event-id") if session.revision.streamable else None
        if last is not None:
            found = parse_id(last)
            answer = session.answers.get(found[0]) if found else None
            if found is None or (found[0] != PUSH and answer is None):
                await exchange.error(400, "this event cannot be resumed from")
                return
            exchange.is_call = True  # servers and other clients make what it carries
            if answer is not None:
                large, name = self._context.large, session.principal.name
                large.judge_unread(name)
                room = partial(large.unread.room, name, exchange.peer)
                await answer.resume(exchange, found[1], room, partial(large.unread.note, name, exchange.peer))
                return
            since = perf_counter()
            session.outbox.rewind(found[1])
            self._context.large.refused(session.principal.name, perf_counter() - since)  # it may ask for it again
        exchange.is_call = True
        await session.attach(exchange, self._context.settings.pace.retry)

    async def delete(self, exchange: HttpExchange, principal: Principal) -> None:
        session = self._session(exchange, principal)
        if not isinstance(session, HttpSession):
            await exchange.error(*session)
            return
        self._sessions.end(session)
        await exchange.empty(200)


async def _emit(
    answer: ResumableResponse, session: HttpSession, rising: legacy_client.Rising, note: Notification
) -> None:
    shown = session.shown(note)
    if shown is not None and rising.admits(shown):
        await answer.send(encode(shown))


async def _send(answer: ResumableResponse, session: HttpSession, message: Message) -> bool:
    return not session.ended and await answer.send(encode(message))


async def _room(answer: ResumableResponse, unread: UnreadAnswers, principal: str) -> HttpRequest:
    """Returns who gets the answer, once it may be encoded: whoever waits may resume it on another connection."""
    while True:
        peer = answer.peer
        await unread.room(principal, peer)
        if answer.peer is peer:
            return peer


async def _add(
    answer: ResumableResponse, large: LargeRequests, principal: str,
    found: tuple[Response, Outcome], together: list[bytes],
) -> None:  # fmt: skip
    """Adds one answer of a batch to those that leave together, or sends it at once: where the answer is a stream, or
    they would be large together, which makes it one. Others have their turn after a large one."""
    peer = await _room(answer, large.unread, principal)
    turns = large.budget_of(principal)
    since = turns.now()
    data = to_bytes(*found)
    if not answer.is_stream and sum(map(len, together)) + len(data) <= MAX_ARRAY:
        together.append(data)
        return
    await answer.send(data)
    if peer.unread:
        large.unread.note(principal, peer)
    if len(data) > LARGE:
        await turns.charge_and_rest(since)


def _foreign(exchange: HttpExchange) -> Refusal | None:
    """2025-06-18 basic/transports#protocol-version-header: an unsupported one is 400. Among those that we
    speak the session's own decides, because clients send what they like."""
    header = version(exchange)
    if header is None or header in _SPOKEN:
        return None
    return 400, "Unsupported protocol version"
