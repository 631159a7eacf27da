"""One client on one channel for both directions, whatever carries it: what its messages start, and what it is told.

The era is decided per request: a body with the modern `_meta` is served by itself, `initialize` opens the one
legacy session that a channel can have, and everything after it without `_meta` belongs to that session. Knows
calls and edges; no bytes, no lines, no HTTP, no server, no policy. Pages: 2026-07-28 basic/transports/stdio, 2025-11-25
basic/transports#stdio, 2024-11-05 basic/transports#http-with-sse.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.listen.client_channel import ClientChannel, run_input_rounds
from sluicegate.listen.line_streams import Output
from sluicegate.listen.session_notifications import SessionNotifications
from sluicegate.listen.stdio_requests import StdioRequest, StdioRequests
from sluicegate.listen.stdio_session import StdioSession
from sluicegate.protocol import downgrade, legacy_client, modern_client
from sluicegate.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Json,
    Malformed,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    read,
)
from sluicegate.protocol.model import (
    Call,
    Client,
    Failure,
    Handler,
    InputRequired,
    Outcome,
    Result,
    Trail,
    refuse,
)
from sluicegate.protocol.revisions import NEWEST_LEGACY, REVISIONS

log = logging.getLogger(__name__)

MAX_OPEN: Final = 1_000  # requests in flight
# A slow reader may miss these, and must not make a server's connection wait.
_LOSSY: Final = frozenset({"notifications/progress", "notifications/message"})
_SUBSCRIBE: Final = ("resources/subscribe", "resources/unsubscribe")


@dataclass(frozen=True, slots=True)
class SessionDeps:
    """What a conversation is given by whoever carries it. `on_session_end` gets the id of the legacy session,
    `on_abandoned` that of the first round of a call that waited for answers in vain; `is_legacy`: the channel is one
    that modern clients do not have."""

    handler: Handler
    server_info: Json
    on_session_end: Callable[[str], None]
    on_abandoned: Callable[[str], None]
    trail: Callable[[], Trail]
    channel: str
    max_batch: int = 50
    is_legacy: bool = False


def error(code: int, text: str, id: RequestId | None = None) -> Response:
    return Response(id, error={"code": code, "message": text})


class JsonRpcSession:
    def __init__(self, terms: SessionDeps, client: Client, output: Output, group: TaskGroup) -> None:
        """Of `client` principal, roles and owner count."""
        self._terms, self._client, self._output, self._group = terms, client, output, group
        self._jobs = StdioRequests()
        self._at_rest: Callable[[], object] | None = None
        self.session: StdioSession | None = None

    def __repr__(self) -> str:
        return f"JsonRpcSession({self._jobs}, {self.session and self.session.revision}, {self._output})"

    def recognise(self, client: Client) -> None:
        """The same principal, with the roles it has now."""
        if (client.roles, client.owner) != (self._client.roles, self._client.owner):
            self._client = client
            if self.session is not None:
                self.session.client = replace(self.session.client, roles=client.roles, owner=client.owner)

    # ------------------------------------------------------------ messages in

    def read(self, value: Any) -> Message | list[Message]:
        """The message, or the messages of a batch. Raises `Malformed` for what is neither, and nothing is lost: a bad
        response still ends the question it was meant for."""
        if isinstance(value, list):
            return self._read_batch(value)
        try:
            return read(value)
        except Malformed as bad:
            # A response has an id of ours, and that of a request of the client's own may be the same.
            is_response = self.session is not None and self.session.asks.spoil(value)
            raise Malformed(bad.code, bad.text, None if is_response else bad.id) from None

    def _read_batch(self, values: list[Any]) -> list[Message]:
        """Arrays exist in 2025-03-26 alone (2025-03-26 basic/index#batching, 2025-06-18 changelog)."""
        if self.session is None or not REVISIONS[self.session.revision].batches:
            raise Malformed(INVALID_REQUEST, "batches are not part of this revision")
        try:
            return legacy_client.read_batch(values, self._terms.max_batch)
        except Malformed:
            self.session.asks.spoil_all(values)
            raise

    async def take(self, message: Message | list[Message]) -> None:
        """What `read` gave. Returns at once, unless there is an answer to it at once."""
        if isinstance(message, list):
            begun = [self._begin(one) for one in message]
            self._group.start_soon(self._serve_batch, [entry for entry in begun if entry is not None])
            return
        job = self._begin(message)
        if isinstance(job, StdioRequest):
            self._group.start_soon(self._serve, job)
        elif job is not None:
            await self._output.send(job)

    # ------------------------------------------------------------ what a message starts (decided at once, in order)

    def _begin(self, message: Message) -> StdioRequest | Response | None:
        """A job to run, an answer that needs none, or nothing. From here on a cancellation finds the job."""
        if isinstance(message, Request):
            begun = self._begin_request(message)
            if isinstance(begun, StdioRequest):
                self._jobs.add(begun)
            return begun
        if isinstance(message, Notification):
            self._notice(message)
        elif self.session is not None:
            self.session.asks.answer(message)
        return None

    def _begin_request(self, request: Request) -> StdioRequest | Response:
        if modern_client.is_modern(request) and not self._terms.is_legacy:
            return self._begin_modern(request)
        if request.method == "initialize":
            return self._begin_session(request)
        if self.session is not None:
            return self._begin_legacy(request, self.session)
        if request.method == "ping":  # the one request that a legacy client may send first
            return Response(request.id, {})
        if self._terms.is_legacy:
            return error(INVALID_REQUEST, "on this transport a session begins with initialize", request.id)
        return self._begin_modern(request)  # which says what is missing

    def _notice(self, note: Notification) -> None:
        if note.method == "notifications/cancelled":
            self._jobs.cancel(note.params.get("requestId"))
        elif note.method == "notifications/initialized" and self.session is not None:
            self.session.initialized = True
            self.session.ready.set()
            self._listen_if_open()
        elif note.method == legacy_client.ROOTS_CHANGED and self.session is not None:
            self.session.tell_servers(note.method)

    def _listen_if_open(self) -> None:
        """Nothing is told before both halves of the handshake (2025-11-25 basic/lifecycle#initialization), not even
        to a client that sends the second without waiting for the answer to the first."""
        session = self.session
        if session is not None and session.initialized and all(job.method != "initialize" for job in self._jobs):
            session.listening.start()

    # ------------------------------------------------------------ modern

    def _begin_modern(self, request: Request) -> StdioRequest | Response:
        parsed = modern_client.parse(request, None)
        if isinstance(parsed, modern_client.Rejection):
            return parsed.response
        render = partial(self._render_modern, request.id, parsed.method)
        if len(self._jobs) >= MAX_OPEN:
            return render(_too_many(parsed.method))
        client = _described(self._client, parsed)
        show = partial(modern_client.notification, method=parsed.method, id=request.id)
        return StdioRequest(request.id, parsed.method, partial(self._call, client, parsed, show, render))

    def _render_modern(self, id: RequestId, method: str, outcome: Outcome) -> Response:
        return modern_client.respond(id, method, outcome, self._terms.server_info)[1]

    # ------------------------------------------------------------ legacy

    def _begin_session(self, request: Request) -> StdioRequest | Response:
        if self.session is not None:
            return error(INVALID_REQUEST, "this session is initialized already", request.id)
        handshake = legacy_client.initialize(request.params)
        if isinstance(handshake, Failure):
            return legacy_client.respond(request.id, request.method, handshake, NEWEST_LEGACY)
        described = _described(self._client, handshake)
        client = replace(described, session=f"{self._terms.channel}-{secrets.token_urlsafe(24)}")
        tell = partial(self._tell, None, self._shown)
        listening = SessionNotifications(self._handle, client, self._terms.trail, tell, self._group)
        self.session = StdioSession(client, listening)
        return StdioRequest(request.id, request.method, partial(self._initialize, handshake, client))

    async def _initialize(self, handshake: legacy_client.Handshake, client: Client, job: StdioRequest) -> Response:
        discovered = await self._handle(Call(client, "server/discover", {}, trail=self._terms.trail()))
        outcome = legacy_client.initialize_result(handshake, discovered, self._terms.server_info)
        if not isinstance(outcome, Result):
            self.end_session()  # so that the client can try again
        return legacy_client.respond(job.id, job.method, outcome, client.revision)

    def _begin_legacy(self, request: Request, session: StdioSession) -> StdioRequest | Response:
        if len(self._jobs) >= MAX_OPEN:
            return legacy_client.respond(request.id, request.method, _too_many(request.method), session.revision)
        if request.method == "logging/setLevel":
            outcome = session.set_level(request.params.get("level"))
            return legacy_client.respond(request.id, request.method, outcome, session.revision)
        if request.method in _SUBSCRIBE:
            return StdioRequest(request.id, request.method, partial(_subscribe, session, request))
        parsed = legacy_client.parse(request, session.revision, session.level)
        if not isinstance(parsed, modern_client.Parsed):
            return legacy_client.respond(request.id, request.method, parsed, session.revision)
        rising = legacy_client.Rising()

        def show(note: Notification) -> Notification | None:
            shown = session.shown(note)
            return shown if shown is not None and rising.admits(shown) else None

        render = partial(legacy_client.respond, request.id, parsed.method, revision=session.revision)
        return StdioRequest(request.id, parsed.method, partial(self._call, session.client, parsed, show, render))

    def _shown(self, note: Notification) -> Notification | None:
        return None if self.session is None else self.session.shown(note)

    # ------------------------------------------------------------ acting

    async def _serve(self, job: StdioRequest) -> None:
        try:
            response = await self._run(job)
            if response is not None:
                await self._output.send(response)
        finally:
            self._jobs.discard(job)
            self._listen_if_open()
            self._settle()

    async def _serve_batch(self, begun: list[StdioRequest | Response]) -> None:
        """The answers of one batch, together (2025-03-26 basic/index#batching); none if nothing was asked."""
        responses = [entry for entry in begun if isinstance(entry, Response)]
        jobs = [entry for entry in begun if isinstance(entry, StdioRequest)]

        async def run(job: StdioRequest) -> None:
            response = await self._run(job)
            if response is not None:
                responses.append(response)

        try:
            async with anyio.create_task_group() as group:
                for job in jobs:
                    group.start_soon(run, job)
            if responses:
                await self._output.send_batch(responses)
        finally:
            for job in jobs:
                self._jobs.discard(job)
            self._settle()

    async def _run(self, job: StdioRequest) -> Response | None:
        try:
            return await job.run()
        except Exception:  # a listener's request: it fails alone
            log.exception("request failed: %s", job.method)
            return error(INTERNAL_ERROR, "Internal error", job.id)

    async def _handle(self, call: Call) -> Outcome:
        try:
            return await self._terms.handler(call)
        except Exception:  # a listener's request: it fails alone
            log.exception("call failed: %s", call.method)
            return Failure(INTERNAL_ERROR, "Internal error")

    async def _call(
        self,
        client: Client,
        parsed: modern_client.Parsed,
        show: Callable[[Notification], Notification | None],
        render: Callable[[Outcome], Response],
        job: StdioRequest,
    ) -> Response:
        emit, trail = partial(self._tell, job, show), self._terms.trail()
        call = Call(client, parsed.method, parsed.params, parsed.meta, emit=emit, trail=trail)
        outcome = await self._handle(call)
        if client.era == "legacy" and self.session is not None:
            if isinstance(outcome, InputRequired):
                outcome = await run_input_rounds(self._handle, call, outcome, self._way(self.session))
            outcome = downgrade.shaped(call, outcome)
        return render(outcome)

    def _way(self, session: StdioSession) -> ClientChannel:
        return ClientChannel(session.asks, self._put, self._terms.trail, self._terms.on_abandoned)

    async def _put(self, message: Message) -> bool:
        await self._output.send(message)
        return not self._output.broken

    async def ask(self, id: str, method: str, params: Json) -> Response | None:
        """Asks the client of that session something that belongs to no call; None where it cannot be asked."""
        return None if self.session is None else await self.session.ask(id, method, params, self._put)

    async def _tell(
        self, job: StdioRequest | None, show: Callable[[Notification], Notification | None], note: Notification
    ) -> None:
        """A notification of a request in flight, or of the session."""
        if (job is not None and job.is_silent) or (self._output.congested and note.method in _LOSSY):
            return
        shown = show(note)
        if shown is not None:
            await self._output.send(shown)

    # ------------------------------------------------------------ the end

    def finish(self, then: Callable[[], object]) -> None:
        """Lets open requests end; nothing is told or asked besides."""
        self.wind_up()
        self._at_rest = then
        self._settle()

    def _settle(self) -> None:
        if self._at_rest is not None and not self._jobs:
            self._at_rest()

    def end_session(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.end()
            self._terms.on_session_end(session.client.session or "")

    def wind_up(self) -> None:
        """No more lines come. What would never end by itself ends now."""
        if self.session is not None:
            self.session.end()
        self._jobs.cancel_endless()


def _described(client: Client, said: modern_client.Parsed | legacy_client.Handshake) -> Client:
    """Who it is, as we know it, and what it can, as it says."""
    return replace(
        client, revision=said.revision, info=said.info, capabilities=said.capabilities,
        capability_key=said.capability_key, session=None,
    )  # fmt: skip


def _too_many(method: str) -> Outcome:
    return refuse(method, "rate_limited", f"More than {MAX_OPEN} requests are in flight; wait for answers.")


async def _subscribe(session: StdioSession, request: Request, job: StdioRequest) -> Response:
    outcome = await session.listening.subscribe(request.params.get("uri"), request.method == _SUBSCRIBE[0])
    # Not found is said as for a read: <= 2025-11-25 server/resources#error-handling
    return legacy_client.respond(job.id, "resources/read", outcome, session.revision)
