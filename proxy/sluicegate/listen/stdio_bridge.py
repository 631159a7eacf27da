"""One client's lines, carried to the Sluice that another process runs, and to its successor when that one ends.

The client goes on as if nothing had been: its handshake, level and subscriptions are said again, what only reads is
asked again, and a call that may have been executed is answered as just that. Knows lines and messages; no socket's
address, and nobody's rights.
"""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sluicegate.listen.jsonrpc_session import error
from sluicegate.listen.line_streams import LineReader, LineWriter, lines, put_line
from sluicegate.protocol import legacy_client, modern_client
from sluicegate.protocol.jsonrpc import (
    INVALID_REQUEST,
    Json,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    decode_fast,
    encode,
    read,
)
from sluicegate.protocol.model import refuse
from sluicegate.protocol.revisions import LEGACY, NEWEST_LEGACY

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

    # ------------------------------------------------------------ what passes

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

    # ------------------------------------------------------------ one ends, another begins

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
        try:
            yield read(part)
        except Malformed:
            pass


def _key(id: object) -> object:
    """1 and "1" are different ids, and so is 1.0."""
    return type(id), id if isinstance(id, str | int | float) else None
