"""POST of a modern client, and what every request shares: its form, its way into a call.

2026-07-28 basic/transports/streamable-http. A modern request stands alone: the client that closes its stream
or connection cancels the call, and nothing is sent after. Knows calls and outcomes, no server.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, Final

from sluicegate.listen.auth import Identity, Principal
from sluicegate.listen.http_exchange import HttpExchange, event
from sluicegate.listen.http_request import BodyTooLarge, HttpRequest
from sluicegate.listen.large_requests import LARGE, LargeRequests
from sluicegate.listen.legacy_session import SessionDeps
from sluicegate.listen.settings import ListenSettings
from sluicegate.protocol import jsonrpc, modern_client, reserved_keys
from sluicegate.protocol.jsonrpc import Json, Malformed, Notification, Request, RequestId, Response
from sluicegate.protocol.model import MODERN, Call, Client, Outcome, Result
from sluicegate.runtime.loop_budget import VALUES, is_large

_JSON_RANGES: Final = frozenset({"application/json", "application/*", "*/*"})
_STREAM_RANGES: Final = frozenset({"text/event-stream", "text/*", "*/*"})
_NEVER: Final = re.compile(r"q=0(\.0{0,3})?")
# No 401: a client that logs in anew would send the call again, and it may have run.
_ENDED: Final = 403, "the credential was revoked or has expired meanwhile"
_LOOKED_AT: Final = 64  # calls that `sweep` looks at in one piece


class StreamSlots:
    """Open GET and listen streams, bounded for each principal. `calls` are those of stateless clients that are not
    answered: what they are told ends with the credential, too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.calls: dict[HttpExchange, Principal] = {}
        self._open: dict[str, dict[HttpExchange, tuple[Principal, Callable[[], object]]]] = {}

    def enter(self, principal: Principal, exchange: HttpExchange, stop: Callable[[], object]) -> bool:
        """Whether there is room; `stop` will end the stream in good order."""
        mine = self._open.setdefault(principal.name, {})
        if len(mine) >= self._limit:
            return False
        mine[exchange] = principal, stop
        return True

    def leave(self, principal: Principal, exchange: HttpExchange) -> None:
        mine = self._open[principal.name]
        del mine[exchange]
        if not mine:
            del self._open[principal.name]

    def sweep(self, identity: Identity) -> Iterator[None]:
        """Closes the streams and calls of those who could not come in any more, and has those streams opened anew that
        were opened with a credential which is over, or gave other roles. In pieces: there may be as many as there are
        connections."""
        for mine in list(self._open.values()):
            for exchange, (principal, stop) in list(mine.items()):
                if not identity.is_known(principal):
                    exchange.refuse(*_ENDED)
                elif not identity.is_current(principal):
                    stop()
            yield
        for number, (exchange, principal) in enumerate(list(self.calls.items()), 1):
            if not identity.is_known(principal):
                exchange.refuse(*_ENDED)
            if number % _LOOKED_AT == 0:
                yield

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def stop(self) -> None:
        """Ends all streams; no new one begins."""
        self._limit = 0
        for mine in list(self._open.values()):
            for _, stop in list(mine.values()):
                stop()


@dataclass(frozen=True, slots=True)
class EndpointContext(SessionDeps):
    """The parts of a listener that both eras use."""

    settings: ListenSettings
    streams: StreamSlots
    large: LargeRequests


MAX_FORM: Final = 1024
MAX_FORM_PARTS: Final = 64
"""Bytes and parts of a Content-Type or Accept. A request with more is refused before it is parsed. No rate of a client
counts such refusals."""


def _bounded(value: bytes) -> bytes:
    """The header; nothing of one that is too long to be taken apart."""
    is_short = len(value) <= MAX_FORM and value.count(b",") + value.count(b";") < MAX_FORM_PARTS
    return value if is_short else b""


def accepts(accept: bytes) -> tuple[bool, bool]:
    """Whether an Accept header takes JSON, and event streams. One that is too long takes neither."""
    return _accepts(_bounded(accept))


@lru_cache(maxsize=256)
def _accepts(accept: bytes) -> tuple[bool, bool]:
    kinds = set()
    for part in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        if not any(_NEVER.fullmatch(parameter) for parameter in parameters):
            kinds.add(kind)
    return not kinds.isdisjoint(_JSON_RANGES), not kinds.isdisjoint(_STREAM_RANGES)


def is_json(content_type: bytes) -> bool:
    kind, *parameters = (piece.strip() for piece in content_type.decode("latin-1").lower().split(";"))
    charsets = [value.split("=", 1)[1].strip('"') for value in parameters if value.startswith("charset=")]
    return kind == "application/json" and all(charset in ("utf-8", "utf8") for charset in charsets)


def check_form(exchange: HttpExchange, takes_answer: bool = True) -> tuple[int, str] | None:
    """Status and text for a POST that no MCP client sends. Unless it `takes_answer`, what it accepts is no matter."""
    head = exchange.head
    if head.duplicate is not None and head.duplicate != b"mcp-protocol-version":
        return 400, f"{head.duplicate.decode('latin-1')} is given twice"
    return _judge_form(
        _bounded(head.get(b"content-type", b"")),
        _bounded(head.get(b"content-encoding", b"identity")),
        _bounded(head.get(b"accept", b"*/*")) if takes_answer else b"*/*",  # RFC 9110 12.5.1: no header takes anything
    )


@lru_cache(maxsize=256)
def _judge_form(content_type: bytes, encoding: bytes, accept: bytes) -> tuple[int, str] | None:
    if not is_json(content_type):
        return 415, "Content-Type must be application/json"
    if encoding.lower() != b"identity":
        return 415, "Content-Encoding is not supported"
    if not all(_accepts(accept)):
        return 406, "Accept must have application/json and text/event-stream"
    return None


def version(exchange: HttpExchange) -> bytes | None:
    """The header's revision. Given twice it counts as modern, whose ladder refuses it with the right code."""
    head = exchange.head
    return MODERN.encode() if head.duplicate == b"mcp-protocol-version" else head.get(b"mcp-protocol-version")


def is_small(peer: HttpRequest) -> bool:
    """Whether the body costs less than a call: 15 KiB of empty lists take as much memory as 300 KiB of text."""
    return peer.size <= VALUES or (peer.size <= LARGE and not is_large(peer.body_at_hand(LARGE)))


def read_json(exchange: HttpExchange, principal: Principal, context: "EndpointContext") -> Any:
    """The body, once it is whole. Raises `TooLarge`, `ClientGone` and `Malformed`."""
    limits, since = context.settings.limits, perf_counter()
    body = exchange.peer.body_at_hand(limits.max_request)
    try:
        return reserved_keys.from_client(jsonrpc.decode(body, limits.max_depth, limits.nodes), body)
    except Malformed:
        context.large.refused(principal.name, perf_counter() - since)
        raise


@asynccontextmanager
async def received(exchange: HttpExchange, principal: Principal, context: "EndpointContext") -> AsyncIterator[Any]:
    """The same of a body that is large, or not here yet; it is in flight as long as the context lasts. Raises `Refused`
    before much of it is read."""
    peer, most = exchange.peer, context.settings.limits.max_request
    size = peer.declared
    if size <= LARGE:  # or in chunks, of which nobody says how many
        await peer.whole(LARGE)
        if is_small(peer):
            await context.large.enter(principal.name)
            context.large.judge_unread(principal.name)
            since = perf_counter()
            value = read_json(exchange, principal, context)
            exchange.spent = perf_counter() - since
            yield value
            return
        if peer.is_whole:
            size = peer.size
    peer.budget = context.large.budget_of(principal.name)
    await context.large.admit(principal.name, size or most)
    with context.large.holding(principal.name, size or most):
        await peer.whole(most)
        message = await context.large.decode(principal.name, partial(peer.take_body, most))
        exchange.held = max(message.size, size or most)
        with context.large.grown(principal.name, size or most, exchange.held):
            yield message.value


@asynccontextmanager
async def unread(exchange: HttpExchange, principal: Principal, context: "EndpointContext") -> AsyncIterator[bytes]:
    """The body as it came, for another process of this Sluice, which judges it. It is in flight, and bounded."""
    peer, large, most = exchange.peer, context.large, context.settings.limits.max_request
    size = peer.declared
    if size > most:
        raise BodyTooLarge
    if size <= LARGE:
        await peer.whole(LARGE)
        if peer.size <= LARGE:
            yield peer.take_body(LARGE)
            return
    peer.budget = large.budget_of(principal.name)
    await large.admit(principal.name, size or most)
    with large.holding(principal.name, size or most):
        await peer.whole(most)
        yield peer.take_body(most)


def to_bytes(response: Response, outcome: Outcome | None = None) -> bytes:
    """What cannot be said in JSON becomes an error that can: its client must not wait for ever. Where the result is the
    outcome's value as it came, the audit log has encoded it."""
    # Step 15 of docs/explanation/performance.md
    try:
        if isinstance(outcome, Result) and response.result is outcome.value:
            return jsonrpc.encode_result(response.id, outcome.text)
        return jsonrpc.encode(response)
    except Malformed as bad:
        return jsonrpc.encode(Response(response.id, error={"code": jsonrpc.INTERNAL_ERROR, "message": bad.text}))


def serve_modern(
    context: EndpointContext, exchange: HttpExchange, request: Request, principal: Principal
) -> Awaitable[None]:
    # Step 4 of docs/explanation/performance.md
    remembered = exchange.head.remembered
    routing = remembered.routing
    if routing is None:
        routing = remembered.routing = modern_client.routing(exchange.head.headers)
    parsed = modern_client.parse(request, routing, exchange.held > 0)
    if isinstance(parsed, modern_client.Rejection):
        return exchange.json(parsed.status, to_bytes(parsed.response))
    exchange.is_call = True
    client = Client(
        principal.name, principal.roles, principal.owner, parsed.revision, parsed.info, parsed.capabilities, None,
        parsed.capability_key, principal.credential, False, principal.toolset,
    )  # fmt: skip
    emit = partial(_emit, exchange, parsed.method, request.id)
    call = Call(client, parsed.method, parsed.params, parsed.meta, None, parsed.mirrored, emit, context.trail())
    return _answer(context, exchange, request.id, call, principal)


async def _emit(exchange: HttpExchange, method: str, id: RequestId, note: Notification) -> None:
    shown = modern_client.notification(note, method, id)
    if shown is not None:
        await exchange.open()
        await exchange.write(event(jsonrpc.encode(shown)))


async def _answer(
    context: EndpointContext, exchange: HttpExchange, id: RequestId, call: Call, principal: Principal
) -> None:
    """A client that goes away cancels (#sending-messages), and nothing is sent. A listen stream that we end ends with
    its result (basic/patterns/subscriptions)."""
    # Step 4 of docs/explanation/performance.md
    peer = exchange.peer
    task = asyncio.current_task(peer.loop)
    assert task is not None
    is_stream = call.method == "subscriptions/listen"
    if is_stream and not context.streams.enter(principal, exchange, partial(_stop, exchange, task)):
        await exchange.error(429, "too many open streams", id=id)
        return
    peer.on_lost = task.cancel
    context.streams.calls[exchange] = principal
    exchange.arm()
    try:
        outcome = await context.handler(call)
    except asyncio.CancelledError:
        if not peer.lost and not exchange.ending:
            raise
        task.uncancel()
        outcome = Result({})
    finally:
        peer.on_lost = None
        context.streams.calls.pop(exchange, None)
        if is_stream:
            context.streams.leave(principal, exchange)
    unread = context.large.unread
    if unread.held:
        await unread.room(principal.name, peer)
    if peer.lost or exchange.finished:
        return
    status, data = _render(id, call.method, outcome, context.server_info)
    if exchange.opened:
        await exchange.close(event(data))
    elif not exchange.json_at_once(status, data):
        await exchange.json(status, data)
    if peer.unread:
        unread.note(principal.name, peer)


def _render(id: RequestId, method: str, outcome: Outcome, server_info: Json) -> tuple[int, bytes]:
    """HTTP status and body. A result that only has members added is not encoded again, as in `to_bytes`."""
    # Step 15 of docs/explanation/performance.md
    if isinstance(outcome, Result):
        added = modern_client.added(id, method, outcome.value, server_info)
        if added.keys().isdisjoint(outcome.value):
            try:
                return 200, jsonrpc.encode_result(id, outcome.text, added)
            except Malformed:
                pass  # below, too, and there it becomes an answer
    status, response = modern_client.respond(id, method, outcome, server_info)
    return status, to_bytes(response)


def _stop(exchange: HttpExchange, task: "asyncio.Task[None]") -> None:
    exchange.end()
    task.cancel()
