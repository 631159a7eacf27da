"""MCP on a pair of byte streams, as on stdin and stdout: one client, both eras, one message a line.

Or the client's lines are carried to the Sluice that another process runs, and to its successor when that one ends. The
client goes on as if nothing had been: its handshake, level and subscriptions are said again, what only reads is asked
again, and a call that may have been executed is answered as just that.

Knows lines and their limits; what they mean is in `jsonrpc_session`. Pages: 2026-07-28 basic/transports/stdio,
2025-11-25 basic/transports#stdio.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sluicegate.listen.jsonrpc_session import DuplexChannel, JsonRpcSession, error
from sluicegate.listen.large_requests import LARGE, LargeRequests, RequestRefused, UntilFree
from sluicegate.listen.legacy_session import SessionDeps
from sluicegate.listen.line_streams import LineReader, LineWriter, Output, lines, put_line
from sluicegate.listen.settings import RequestLimits
from sluicegate.protocol import legacy_client, modern_client, reserved_keys
from sluicegate.protocol.jsonrpc import (
    INVALID_REQUEST,
    MAX_NODES,
    Json,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    decode,
    decode_fast,
    encode,
    id_unread,
    read,
)
from sluicegate.protocol.model import AskSession, Client, Handler, Trail, refuse
from sluicegate.protocol.revisions import LEGACY, NEWEST_LEGACY

MAX_LINE: Final = 4 * 1024 * 1024
GRACE: Final = 2.0  # seconds that open calls have after EOF


def new_trail() -> Trail:
    return Trail(secrets.token_hex(16))


async def serve(
    handler: Handler, *, reader: LineReader, writer: LineWriter, client: Client, server_info: Json,
    on_session_end: Callable[[str], None], trail: Callable[[], Trail] = new_trail, max_line: int = MAX_LINE,
    max_depth: int = 64, max_nodes: int = MAX_NODES, max_batch: int = 50, grace: float = GRACE,
    on_abandoned: Callable[[str], None] = lambda id: None, offer_ask: Callable[[AskSession], None] = lambda ask: None,
    until_free: UntilFree = lambda principal: 0.0,
) -> None:  # fmt: skip
    """Serve one client until its stream ends or it no longer takes what is written. Of `client` principal, roles
    and owner count; `on_session_end` gets the id of the legacy session, if there was one, `on_abandoned` that of the
    first round of a call that waited for answers in vain, and `offer_ask` the way to ask outside of calls."""
    session: JsonRpcSession | None = None
    try:
        async with anyio.create_task_group() as group:
            output = Output(partial(put_line, writer), group.cancel_scope.cancel)
            deps = SessionDeps(handler, server_info, trail, on_abandoned)
            session = JsonRpcSession(deps, DuplexChannel("stdio", on_session_end, max_batch), client, output, group)
            offer_ask(session.ask)
            limits = RequestLimits(max_request=max_line, max_depth=max_depth, nodes=max_nodes)
            large = LargeRequests(limits, until_free)
            async for line in lines(reader, max_line):
                await _take(session, output, line, partial(_decode, large, client.principal, limits))
            session.wind_up()
            group.cancel_scope.deadline = anyio.current_time() + grace
    finally:
        if session is not None:
            session.end_session()


async def _decode(large: LargeRequests, principal: str, limits: RequestLimits, line: bytes) -> Any:
    """Raises `Malformed`, `RequestRefused`."""
    if len(line) <= LARGE:
        return reserved_keys.from_client(decode(line, limits.max_depth, limits.nodes), line)
    large.judge(principal, len(line))
    return (await large.decode(principal, lambda: line)).value


async def _take(
    session: JsonRpcSession, output: Output, line: bytes | None, decode: Callable[[bytes], Awaitable[Any]]
) -> None:
    """One line. Whatever is wrong with it is answered; the next one is read as if nothing had been."""
    if line is None:
        await output.send(error(INVALID_REQUEST, "message too long"))
    elif line.strip():
        try:
            message = session.read(await decode(line))
        except RequestRefused as refused:
            await output.send(Response(id_unread(line), error=refused.error))
            return
        except Malformed as bad:  # the id is left out where it could not be read (basic/index#responses)
            await output.send(error(bad.code, bad.text, bad.id))
            return
        await session.take(message)


Line = bytes | None
"""None stands for one that was too long."""

_ANY_LENGTH: Final = 1 << 30  # what our own program writes is bounded where it is made
_GONE: Final = "The Sluice that ran this call ended before its answer. The call may or may not have been executed."


@dataclass(frozen=True, slots=True)
class BridgeStreams:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def pump(reader: LineReader, max_line: int, into: MemoryObjectSendStream[Line]) -> None:
    """The client's lines, one at a time: whoever waits for the next can stop waiting without losing it."""
    async with into:
        async for line in lines(reader, max_line):
            await into.send(line)


async def relay(
    inbox: MemoryObjectReceiveStream[Line], writer: LineWriter, sluice: BridgeStreams, past: "SessionTranscript"
) -> bool:
    """Runs until one side ends; returns whether that was the client."""
    client = _Client(inbox, writer)
    try:
        async with anyio.create_task_group() as group:
            for message in past.again():
                sluice.writer.write(encode(message) + b"\n")
            group.start_soon(client.send_on, sluice.writer, past)
            async for line in lines(sluice.reader, _ANY_LENGTH):
                if line and past.server_wrote(line):
                    await client.tell(line)
            group.cancel_scope.cancel()
        for farewell in past.lost() if not client.is_over else ():
            await client.tell(encode(farewell))
    finally:
        sluice.writer.close()
    return client.is_over


class _Client:
    def __init__(self, inbox: MemoryObjectReceiveStream[Line], writer: LineWriter) -> None:
        self._inbox, self._writer = inbox, writer
        self.is_over = False

    async def send_on(self, sluice: asyncio.StreamWriter, past: "SessionTranscript") -> None:
        async for line in self._inbox:
            if line is None:
                await self.tell(encode(error(INVALID_REQUEST, "message too long")))
                continue
            past.client_wrote(line)
            try:
                await put_line(sluice, line)
            except OSError:
                return  # it has ended, which its reader sees, too
        self.is_over = True
        if sluice.can_write_eof():
            sluice.write_eof()

    async def tell(self, line: bytes) -> None:
        try:
            await put_line(self._writer, line)
        except OSError:
            self.is_over = True


class SessionTranscript:
    """The messages so far, as far as a successor needs them. Pure."""

    def __init__(self, server_info: Json) -> None:
        self._server_info = server_info
        self._hello: Request | None = None  # once it was answered
        self._revision = NEWEST_LEGACY
        self._is_ready = False
        self._level: Request | None = None
        self._subscribed: dict[str, Request] = {}
        self._pending: dict[object, list[Request]] = {}  # asked by the client, some of whom give all the same id
        self._asked: dict[object, Request] = {}  # asked of the client
        self._mark = f"bridge {secrets.token_hex(8)}"
        self._numbers = count(1)

    def client_wrote(self, line: bytes) -> None:
        for message in _messages(line):
            if isinstance(message, Request):
                self._pending.setdefault(_key(message.id), []).append(message)
            elif isinstance(message, Response):
                self._asked.pop(_key(message.id), None)
            elif message.method == "notifications/initialized":
                self._is_ready = True
            elif message.method == "notifications/cancelled":
                self._settled(message.params.get("requestId"))

    def server_wrote(self, line: bytes) -> bool:
        """Whether the line is for the client: answers to our own repetitions are not."""
        passes = True
        for message in _messages(line):
            if isinstance(message, Response):
                passes = not (isinstance(message.id, str) and message.id.startswith(self._mark))
                request = self._settled(message.id)
                if request is not None and message.result is not None:
                    self._granted(request, message.result)
            elif isinstance(message, Request):
                self._asked[_key(message.id)] = message
            elif message.method == "notifications/cancelled":
                self._asked.pop(_key(message.params.get("requestId")), None)
        return passes

    def _settled(self, id: object) -> Request | None:
        """The request that was answered or cancelled; None where nobody can tell. Of several with one id, a call is the
        last that is taken for settled."""
        same = self._pending.pop(_key(id), [])
        if len(same) < 2:
            return same[0] if same else None
        same.remove(next((one for one in same if one.method != "tools/call"), same[0]))
        self._pending[_key(id)] = same
        return None

    def _granted(self, request: Request, result: Json) -> None:
        if modern_client.is_modern(request):
            return  # it stands alone
        uri = str(request.params.get("uri"))
        if request.method == "initialize":
            self._hello = request
            agreed = result.get("protocolVersion")
            self._revision = agreed if agreed in LEGACY else NEWEST_LEGACY
        elif request.method == "logging/setLevel":
            self._level = request
        elif request.method == "resources/subscribe":
            self._subscribed[uri] = request
        elif request.method == "resources/unsubscribe":
            self._subscribed.pop(uri, None)

    def lost(self) -> list[Message]:
        """What the client is told when a Sluice has ended: which calls have no known outcome, which questions are of
        no use any more."""
        pending = list(chain.from_iterable(self._pending.values()))
        calls = [request for request in pending if request.method == "tools/call"]
        self._pending = {}
        for request in pending:
            if request.method != "tools/call":
                self._pending.setdefault(_key(request.id), []).append(request)
        withdrawn = [Notification("notifications/cancelled", {"requestId": ask.id}) for ask in self._asked.values()]
        self._asked.clear()
        return [*map(self._unknown, calls), *withdrawn]

    def _unknown(self, request: Request) -> Response:
        outcome = refuse(request.method, "outcome_unknown", _GONE)
        if modern_client.is_modern(request):
            return modern_client.respond(request.id, request.method, outcome, self._server_info)[1]
        return legacy_client.respond(request.id, request.method, outcome, self._revision)

    def again(self) -> list[Message]:
        """The messages that a successor gets first."""
        repeated: list[Message] = []
        if self._hello is not None:
            repeated.append(self._repeated(self._hello))
            if self._is_ready:
                repeated.append(Notification("notifications/initialized", {}))
            settled = [self._level] if self._level is not None else []
            repeated += map(self._repeated, [*settled, *self._subscribed.values()])
        return [*repeated, *chain.from_iterable(self._pending.values())]

    def _repeated(self, request: Request) -> Request:
        return Request(f"{self._mark} {next(self._numbers)}", request.method, request.params)


def _messages(line: bytes) -> Iterator[Message]:
    """Yields the valid messages of a line; the Sluice that gets a wrong one answers it."""
    try:
        value: Any = decode_fast(line)
    except Malformed:
        return
    for part in value if isinstance(value, list) else (value,):
        with suppress(Malformed):
            yield read(part)


def _key(id: object) -> object:
    """1 and "1" are different ids, and so is 1.0."""
    return type(id), id if isinstance(id, str | int | float) else None
