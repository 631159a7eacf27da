"""One client on one channel for both directions: a pipe, or the stream of HTTP+SSE with its POSTs.

The era is decided per request: a body with the modern `_meta` is served by itself, `initialize` opens the one
legacy session that a channel can have, and everything after it without `_meta` belongs to that session. Knows
calls; no bytes, no lines, no HTTP, no server, no policy. Pages: 2026-07-28 basic/transports/stdio, 2025-11-25
basic/transports#stdio, 2024-11-05 basic/transports#http-with-sse.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.listen.client_channel import Send, ask_aside
from sluicegate.listen.legacy_session import LegacySession, SessionDeps, initialize
from sluicegate.listen.line_streams import Output
from sluicegate.listen.session_notifications import TaskStarter
from sluicegate.protocol import downgrade, jsonrpc, legacy_client, modern_client
from sluicegate.protocol.jsonrpc import Json, Malformed, Message, Notification, Request, RequestId, Response
from sluicegate.protocol.methods import OF_A_CALL
from sluicegate.protocol.model import (
    SLUICE,
    Asker,
    Call,
    Client,
    Emit,
    Failure,
    InputRequired,
    Outcome,
    Result,
    refuse,
)
from sluicegate.protocol.revisions import NEWEST_LEGACY

log = logging.getLogger(__name__)

MAX_OPEN: Final = 1_000  # requests in flight
READY_WITHIN: Final = 10.0
# A client can outlive the process that asked it: what it answers late must not be taken for an answer to another.
_FIRST_QUESTIONS: Final = 1 << 40
# A slow reader may miss these, and must not make a server's connection wait.
_LOSSY: Final = OF_A_CALL

Show = Callable[[Notification], Notification | None]
"""A notification as the client's revision has it, or None where it has none."""


@dataclass(frozen=True, slots=True)
class DuplexChannel:
    """What a session is carried by. `is_legacy`: modern clients do not have such a channel."""

    name: str
    on_session_end: Callable[[str], None]
    max_batch: int = 50
    is_legacy: bool = False


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One request in flight. After `is_over`, and once it is cancelled, its client hears nothing more of it."""

    id: RequestId
    method: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_over: bool = False

    @property
    def is_silent(self) -> bool:
        return self.is_over or self.scope.cancel_called


Work = Callable[[], Awaitable[Response]]
Begun = tuple[OpenRequest, Work]


def error(code: int, text: str, id: RequestId | None = None) -> Response:
    return Response(id, error={"code": code, "message": text})


class DuplexSession(LegacySession):
    """The one legacy session of a channel. `is_initialized`: its client has said so."""

    __slots__ = ("_ready", "is_initialized")

    def __init__(self, deps: SessionDeps, client: Client, tell: Emit, group: TaskStarter) -> None:
        super().__init__(deps, client, tell, group, 1 + secrets.randbelow(_FIRST_QUESTIONS))
        self.is_initialized = False
        self._ready = anyio.Event()  # it is initialized, or never will be

    def initialized(self) -> None:
        self.is_initialized = True
        self._ready.set()

    async def ask(self, id: str, method: str, params: Json, send: Send, asker: Asker) -> Response | None:
        """A question outside of any call; None where this is another session, or its client is never ready. A server
        that was started for this session may ask before the client has said that it is initialized."""
        if self.client.session != id:
            return None
        with anyio.move_on_after(READY_WITHIN):
            await self._ready.wait()
        if not self.is_initialized:
            return None
        return await ask_aside(self.asks, lambda: self.client, method, params, send, asker)

    def end(self) -> None:
        self.is_initialized = False
        self._ready.set()
        super().end()


class JsonRpcSession:
    def __init__(
        self, deps: SessionDeps, channel: DuplexChannel, client: Client, output: Output, group: TaskGroup
    ) -> None:
        """Takes principal, roles and owner from `client`."""
        self._deps = replace(deps, handler=partial(_handle, deps))
        self._channel, self._client, self._output, self._group = channel, client, output, group
        # A request stays until its answer was taken, so that a client that does not read its answers runs into the
        # bound on open requests, and not into our memory.
        self._open: set[OpenRequest] = set()
        self._at_rest: Callable[[], object] | None = None
        self.session: DuplexSession | None = None

    def recognise(self, client: Client) -> None:
        """The same principal, with the roles it has now."""
        if (client.roles, client.owner) != (self._client.roles, self._client.owner):
            self._client = client
            if self.session is not None:
                self.session.client = replace(self.session.client, roles=client.roles, owner=client.owner)
                self.session.listening.act_as(self.session.client)

    def read(self, value: Any) -> Message | list[Message]:
        """The message, or the messages of a batch. Raises `Malformed` for what is neither, and nothing is lost: a bad
        response still ends the question it was meant for."""
        if isinstance(value, list):  # 2025-03-26 alone has arrays: basic/index#batching, 2025-06-18 changelog
            if self.session is None or not self.session.revision.batches:
                raise Malformed(jsonrpc.INVALID_REQUEST, "batches are not part of this revision")
            return self.session.read_batch(value, self._channel.max_batch)
        try:
            return jsonrpc.read(value)
        except Malformed as bad:
            # A response has an id of ours, and that of a request of the client's own may be the same.
            is_response = self.session is not None and self.session.asks.spoil(value)
            raise Malformed(bad.code, bad.text, None if is_response else bad.id) from None

    async def take(self, message: Message | list[Message], on_end: Callable[[], None] = lambda: None) -> bool:
        """What `read` gave. Returns at once, unless there is an answer to it at once: whether all of it is work that
        was begun. `on_end` is called when that has ended."""
        if isinstance(message, list):
            begun = [self._begin(one) for one in message]
            self._group.start_soon(self._serve_batch, [entry for entry in begun if entry is not None], on_end)
            return all(isinstance(entry, tuple) for entry in begun)
        answer = self._begin(message)
        if isinstance(answer, tuple):
            self._group.start_soon(self._serve, *answer, on_end)
            return True
        if answer is not None:
            await self._output.send(answer)
        on_end()
        return False

    def _begin(self, message: Message) -> Begun | Response | None:
        """Work to do, an answer that needs none, or nothing. From here on a cancellation finds the request."""
        if isinstance(message, Request):
            begun = self._begin_request(message)
            if isinstance(begun, tuple):
                self._open.add(begun[0])
            return begun
        if (isinstance(message, Response) or not self._notice(message)) and self.session is not None:
            self.session.take(message)
        return None

    def _begin_request(self, request: Request) -> Begun | Response:
        if modern_client.is_modern(request) and not self._channel.is_legacy:
            return self._begin_modern(request)
        if request.method == "initialize":
            return self._begin_session(request)
        if self.session is not None:
            return self._begin_legacy(request, self.session)
        if request.method == "ping":  # the one request that a legacy client may send first
            return Response(request.id, {})
        if self._channel.is_legacy:
            return error(jsonrpc.INVALID_REQUEST, "on this transport a session begins with initialize", request.id)
        return self._begin_modern(request)  # which says what is missing

    def _notice(self, note: Notification) -> bool:
        """Handles a notification about the session itself; returns whether it was one."""
        if note.method == "notifications/cancelled":
            self._cancel(note.params.get("requestId"))
        elif note.method == "notifications/initialized" and self.session is not None:
            self.session.initialized()
            self._listen_if_open()
        else:
            return False
        return True

    def _cancel(self, id: object) -> None:
        """Every request with that id: who uses an id twice cannot mean one of them. Never `initialize`
        (basic/utilities/cancellation, every legacy revision: MUST NOT)."""
        if jsonrpc.is_id(id):
            for one in self._open:
                if one.id == id and one.method != "initialize":
                    one.scope.cancel()

    def _listen_if_open(self) -> None:
        """Nothing is notified before both halves of the handshake (2025-11-25 basic/lifecycle#initialization), not
        even to a client that sends the second without waiting for the answer to the first."""
        session = self.session
        if session is not None and session.is_initialized and all(one.method != "initialize" for one in self._open):
            session.listening.start()

    def _begin_modern(self, request: Request) -> Begun | Response:
        parsed = modern_client.parse(request, None)
        if isinstance(parsed, modern_client.Rejection):
            return parsed.response
        method, server_info = parsed.method, self._deps.server_info
        if len(self._open) >= MAX_OPEN:
            return modern_client.respond(request.id, method, too_many(method, MAX_OPEN), server_info)[1]
        running = OpenRequest(request.id, method)
        emit = partial(self._tell, running, partial(modern_client.notification, method=method, id=request.id))
        client = _described(self._client, parsed)
        call = Call(client, method, parsed.params, parsed.meta, emit=emit, trail=self._deps.trail())

        async def work() -> Response:
            return modern_client.respond(request.id, method, await self._deps.handler(call), server_info)[1]

        return running, work

    def _begin_session(self, request: Request) -> Begun | Response:
        if self.session is not None:
            return error(jsonrpc.INVALID_REQUEST, "this session is initialized already", request.id)
        handshake = legacy_client.initialize(request.params)
        if isinstance(handshake, Failure):
            return legacy_client.respond(request.id, request.method, handshake, NEWEST_LEGACY)
        described = _described(self._client, handshake)
        client = replace(described, session=f"{self._channel.name}-{secrets.token_urlsafe(24)}")
        self.session = DuplexSession(self._deps, client, partial(self._tell, None, self._shown), self._group)

        async def work() -> Response:
            outcome = await initialize(self._deps, handshake, client)
            if not isinstance(outcome, Result):
                self.end_session()  # so that the client can try again
            return legacy_client.respond(request.id, request.method, outcome, client.revision)

        return OpenRequest(request.id, request.method), work

    def _begin_legacy(self, request: Request, session: DuplexSession) -> Begun | Response:
        if len(self._open) >= MAX_OPEN:
            return session.respond(request, too_many(request.method, MAX_OPEN))
        running, rising = OpenRequest(request.id, request.method), legacy_client.Rising()

        def show(note: Notification) -> Notification | None:
            shown = session.shown(note)
            return shown if shown is not None and rising.admits(shown) else None

        begun = session.to_call(request, session.client, partial(self._tell, running, show))
        if not isinstance(begun, Call) and not callable(begun):
            return session.respond(request, begun)

        async def work() -> Response:
            if not isinstance(begun, Call):
                return session.respond(request, await begun())
            outcome = await self._deps.handler(begun)
            if isinstance(outcome, InputRequired):
                outcome = await session.run_input_rounds(begun, outcome, self._put)
            return session.respond(request, downgrade.shaped(begun, outcome))

        return running, work

    def _shown(self, note: Notification) -> Notification | None:
        return None if self.session is None else self.session.shown(note)

    async def _serve(self, running: OpenRequest, work: Work, on_end: Callable[[], None]) -> None:
        try:
            response = await _run(running, work)
            if response is not None:
                await self._output.send(response)
        finally:
            on_end()
            self._open.discard(running)
            self._listen_if_open()
            self._settle()

    async def _serve_batch(self, begun: list[Begun | Response], on_end: Callable[[], None]) -> None:
        """The answers of one batch, together (2025-03-26 basic/index#batching); none if nothing was asked."""
        responses = [entry for entry in begun if isinstance(entry, Response)]
        requests = [entry for entry in begun if isinstance(entry, tuple)]

        async def run(running: OpenRequest, work: Work) -> None:
            response = await _run(running, work)
            if response is not None:
                responses.append(response)

        try:
            async with anyio.create_task_group() as group:
                for request in requests:
                    group.start_soon(run, *request)
            if responses:
                await self._output.send_batch(responses)
        finally:
            on_end()
            self._open.difference_update(running for running, _ in requests)
            self._settle()

    async def _put(self, message: Message) -> bool:
        await self._output.send(message)
        return not self._output.broken

    async def ask(self, id: str, method: str, params: Json, asker: Asker = SLUICE) -> Response | None:
        """Asks the client of that session something that belongs to no call; None where it cannot be asked."""
        return None if self.session is None else await self.session.ask(id, method, params, self._put, asker)

    async def _tell(self, running: OpenRequest | None, show: Show, note: Notification) -> None:
        """Sends a notification that belongs to a request in flight, or to the session."""
        if (running is not None and running.is_silent) or (self._output.congested and note.method in _LOSSY):
            return
        shown = show(note)
        if shown is not None:
            await self._output.send(shown)

    def finish(self, then: Callable[[], object]) -> None:
        """Lets open requests end; nothing is notified or asked besides."""
        self.wind_up()
        self._at_rest = then
        self._settle()

    def _settle(self) -> None:
        if self._at_rest is not None and not self._open:
            self._at_rest()

    def end_session(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.end()
            self._channel.on_session_end(session.client.session or "")

    def wind_up(self) -> None:
        """The input has ended. Requests that never end by themselves end now."""
        if self.session is not None:
            self.session.end()
        for one in self._open:
            if one.method == "subscriptions/listen":
                one.scope.cancel()


async def _run(running: OpenRequest, work: Work) -> Response | None:
    """The response; None for a cancelled request, of which nothing more is heard (2025-11-25
    basic/utilities/cancellation, 2026-07-28 basic/patterns/cancellation)."""
    response: Response | None = None
    try:
        with running.scope:
            response = await work()
    except Exception:  # a listener's request: it fails alone
        log.exception("request failed: %s", running.method)
        response = error(jsonrpc.INTERNAL_ERROR, "Internal error", running.id)
    finally:
        running.is_over = True
    return None if running.scope.cancel_called else response


async def _handle(deps: SessionDeps, call: Call) -> Outcome:
    try:
        return await deps.handler(call)
    except Exception:  # a listener's request: it fails alone
        log.exception("call failed: %s", call.method)
        return Failure(jsonrpc.INTERNAL_ERROR, "Internal error")


def _described(client: Client, declared: modern_client.Parsed | legacy_client.Handshake) -> Client:
    """The client with the identity that we verified and the capabilities that it declared."""
    return replace(
        client, revision=declared.revision, info=declared.info, capabilities=declared.capabilities,
        capability_key=declared.capability_key, session=None,
    )  # fmt: skip


def too_many(method: str, most: int) -> Outcome:
    return refuse(method, "rate_limited", f"More than {most} requests are in flight; wait for answers.")
