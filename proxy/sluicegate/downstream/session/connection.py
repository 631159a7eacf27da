"""One live channel to one server: our ids, whose answer is whose, what a cancel or a silence means.

What both eras share is here. What a server sends can only
end or fill an exchange that is open *here* under that id, so that a server which reuses, forges or invents ids, or
sends garbage, harms nobody but the call it answers wrongly.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import nullcontext
from itertools import count, islice
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup

from sluicegate.catalog.snapshot import KINDS
from sluicegate.downstream.failures import AnswerOutOfRange, AnswerTooLarge, Lost
from sluicegate.downstream.server_output import ServerOutput
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol import jsonrpc, reserved_keys
from sluicegate.protocol.jsonrpc import Json, Malformed, Notification, OutOfRange, Request, Response, TooMany
from sluicegate.protocol.long_lists import decode_in_pieces
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Era, Failure, Outcome, Updated
from sluicegate.protocol.modern_server import Headers
from sluicegate.protocol.revisions import Revision
from sluicegate.runtime.deadline import AnswerDeadline
from sluicegate.runtime.spool import Spool

log = logging.getLogger(__name__)

MAX_BATCH: Final = 200
"""Messages of a server in one: they are taken in one step of the event loop."""

Receive = Callable[[bytes, PendingRequest | None], PendingRequest | None]
"""Takes one message as bytes, and the exchange on whose own stream it came. Gives the exchange that it went to.
Never waits, never raises `Malformed`."""

ReceiveInPieces = Callable[[bytes | Spool, PendingRequest | None], Generator[None, None, PendingRequest | None]]
"""The same, of which others have their turn between the pieces; also for a message that is kept in a file."""

Heard = Callable[[str | None, Notification], None]
"""(scope, notification) of one that belongs to no call."""

CHANGES: Final = frozenset(entry.changed for entry in LISTS.values())
UPDATED: Final = "notifications/resources/updated"
Watching = tuple[frozenset[str], Mapping[str, Failure]]
"""(the resources whose updates its server tells, those that it refused)."""
NO_SUBSCRIPTIONS: Final = Failure(jsonrpc.METHOD_NOT_FOUND, "The server of this resource has no subscriptions")
# Servers print banners, and a few do more. A peer that says nothing else for this many messages is no MCP server.
MAX_GARBAGE: Final = 1000
_LOGGED_GARBAGE: Final = 5
_SHOWN: Final = 4096
_NAMES_SHOWN: Final = 8
_MOMENT: Final = 1.0
_PLAIN: Final = frozenset({"jsonrpc", "id", "result"})


class Transport(Protocol):
    """How the bytes of one connection travel."""

    pid: int | None
    is_private: bool
    """Each exchange has a stream of its own, so that what arrives there belongs to it."""
    is_ending: bool
    """Answers may still come, but nothing new can be asked."""

    async def open(
        self, group: TaskGroup, receive: Receive, in_pieces: ReceiveInPieces, retire: Callable[[str, bool], None]
    ) -> None:
        """Connects. Messages go to `receive`, large ones to `in_pieces`. `retire` is called when the connection has
        ended: why, and whether all its answers are lost. Where it is open already, another session has it now."""

    async def send(self, exchange: PendingRequest, body: bytes, headers: Headers) -> None:
        """Sends a request. A private wire returns when the exchange is over, or when its
        stream has begun, where it may outlive its task; a shared one at once."""

    async def notify(self, body: bytes) -> None:
        """Sends a message that has no answer."""

    def send_soon(self, *bodies: bytes) -> None:
        """The same without waiting, and without promise; in that order."""

    def agreed(self, revision: Revision) -> None:
        """Notes the revision that the handshake agreed on."""

    async def live(self) -> None:
        """Returns once what the server says by itself can be heard, or is known never to come."""

    def discard_input(self) -> None:
        """Drops input that still comes."""

    async def close(self) -> None: ...


class IncomingMessages:
    """Reads what a server sends. An answer ends the request that is open here under its id, and no other one; a request
    or notification goes to `other`. A server that sends nothing but noise is given up with `give_up`."""

    def __init__(
        self, settings: ServerSettings, transport: Transport, pending: Mapping[int, PendingRequest],
        other: Callable[[Request | Notification, PendingRequest | None], PendingRequest | None],
        give_up: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._settings, self._transport, self._pending = settings, transport, pending
        self._other, self._give_up = other, give_up
        self.may_batch = False
        self._garbage = 0

    def receive(self, data: bytes, exchange: PendingRequest | None) -> PendingRequest | None:
        try:
            jsonrpc.check_nodes(data, self._settings.nodes)
            value = jsonrpc.decode_fast(data)
        except Malformed as bad:
            return self._unreadable(bad, data, exchange)
        if not self._settings.is_sluice:
            reserved_keys.from_server(value, data)
        return self._decoded(value, exchange)

    def receive_in_pieces(
        self, data: bytes | Spool, exchange: PendingRequest | None
    ) -> Generator[None, None, PendingRequest | None]:
        """The same of a large message, of which each part takes milliseconds."""
        if isinstance(data, Spool):
            return self._spooled(data, exchange)
        owner, mark = exchange or self._owner(jsonrpc.id_unread(data), None), b""
        method = "" if owner is None or owner.call is None else owner.call.method
        if owner is not None and method in KINDS:
            mark = yield from jsonrpc.digest_but_id(data, owner.id)
            if mark and (cached := self._settings.known_lists.find(method, mark)) is not None:
                self._garbage = 0
                owner.settle(Response(owner.id, cached))
                return owner
        try:
            yield from jsonrpc.check_in_pieces(data, self._settings.nodes)
            yield
            clean = None if self._settings.is_sluice else reserved_keys.from_server
            value = yield from decode_in_pieces(data, clean, reserved_keys.from_part)
            yield
        except Malformed as bad:
            return self._unreadable(bad, data, exchange)
        if mark and owner is not None and (result := _usual_result(value, owner.id)) is not None:
            self._settings.known_lists.keep(method, mark, result)
        return self._decoded(value, exchange)

    def _decoded(self, value: Any, exchange: PendingRequest | None) -> PendingRequest | None:
        if isinstance(value, list) and self.may_batch and len(value) <= MAX_BATCH:
            # 2025-03-26 basic/index#batching: answers may be batched, requests among them
            for part in value:
                self._take(part, exchange)
            return exchange
        return self._take(value, exchange)

    def _unreadable(self, bad: Malformed, data: bytes, exchange: PendingRequest | None) -> PendingRequest | None:
        """A message with more values than are decoded ends the exchange that it answers, and so does an answer with a
        number that no client can read."""
        if isinstance(bad, OutOfRange):
            return self._out_of_range(bad, data, exchange)
        owner = (exchange or self._owner(jsonrpc.id_unread(data), None)) if isinstance(bad, TooMany) else None
        if owner is None:
            self._refuse_garbage(data)
        else:
            owner.settle(error=AnswerTooLarge(self._settings.keep(data), owner.id))
        return owner

    def _spooled(self, spool: Spool, exchange: PendingRequest | None) -> PendingRequest | None:
        """Whoever waits for the answer has it cut into parts."""
        owner = exchange or self._owner(jsonrpc.id_unread(spool.edges), None)
        if owner is None:
            self._refuse_garbage(spool.head)
        else:
            owner.settle(error=AnswerTooLarge(spool, owner.id))
        return owner

    def _out_of_range(self, bad: OutOfRange, data: bytes, exchange: PendingRequest | None) -> PendingRequest | None:
        owner = self._owner(bad.id, exchange, is_error=True) if bad.method is None else None
        if owner is not None:
            owner.settle(error=AnswerOutOfRange())
            return owner
        self._refuse_garbage(data)
        if bad.method is not None and jsonrpc.is_id(bad.id):  # a server left waiting would never finish its call
            self._transport.send_soon(jsonrpc.encode(Response(bad.id, error={"code": bad.code, "message": bad.text})))
        return None

    def _take(self, value: Any, exchange: PendingRequest | None) -> PendingRequest | None:
        if exchange is not None and (result := _usual_result(value, exchange.id)) is not None:
            self._garbage = 0  # on a stream of its own: read as below, in a third of the time
            exchange.settle(Response(exchange.id, result))
            return exchange
        try:
            message = jsonrpc.read(value)
        except Malformed as bad:
            if isinstance(value, dict) and "method" not in value and (owner := self._owner(bad.id, exchange)):
                owner.settle(error=Lost("the server's answer is no JSON-RPC response", sent=True))
                return owner
            self._refuse_garbage(value)
            return None
        self._garbage = 0
        if isinstance(message, Response):
            owner = self._owner(message.id, exchange, message.error is not None)
            if owner is not None:
                owner.settle(message)
            return owner
        return self._other(message, exchange)

    def _owner(self, id: Any, exchange: PendingRequest | None, is_error: bool = False) -> PendingRequest | None:
        """Whose answer that is. On its own stream an error needs no id: absent, null and invented ones occur."""
        if exchange is None:
            return self._pending.get(id) if type(id) is int else None
        if type(id) is int:
            return exchange if id == exchange.id else None
        return exchange if is_error else None

    def _refuse_garbage(self, value: Any) -> None:
        self._garbage += 1
        if self._garbage <= _LOGGED_GARBAGE:
            text = value[:_SHOWN].decode("utf-8", "replace") if isinstance(value, bytes) else _glimpse(value)
            start = ServerOutput(self._settings).clean(text)[:200]
            log.warning("server sent what is no message", extra={"server": self._settings.key, "start": start})
        if self._garbage > MAX_GARBAGE:
            self._give_up("the server does not speak MCP: nothing but noise")
            self._transport.discard_input()


class ServerConnection:
    """What both eras share. `discovered` is the server's `server/discover` value once `open` has returned, `scope`
    whose lists it sees, `session` the one legacy session that it belongs to; `mark` tells its tasks from others'.
    `anew` says why that session lost the connection that it had before, until the session has been told;
    `tasks_until` is when the last task that began on it is forgotten, in the loop's time."""

    era: Era
    is_exclusive = False
    """Only one call that may be asked back can be told apart on it."""
    is_taken = False
    """There is such a call."""
    _watch: Callable[[frozenset[str], Collection[str], Callable[[], bool]], Awaitable[Watching]]
    """Has the server speak of these resources to this connection, and soon of no others."""

    def __init__(
        self, settings: ServerSettings, transport: Transport, heard: Heard, client_info: Json,
        after: "ServerConnection | None" = None,
    ) -> None:  # fmt: skip
        """`after` had this transport before: what is still to be answered on it is answered here."""
        self.settings = settings
        self.transport = transport
        self.scope: str | None = None
        self.session: str | None = None
        self.client_info = client_info
        self.revision = ""
        self.discovered: Json = {}
        self.why = self.anew = ""
        self.tasks_until = 0.0
        self.mark = secrets.token_hex(4)
        self.over = anyio.Event()
        self.drained = anyio.Event()
        self.pending: dict[int, PendingRequest] = {} if after is None else after.pending
        self._ids: count[int] = count(1) if after is None else after._ids
        self._heard = heard
        self.incoming = IncomingMessages(settings, transport, self.pending, self._dispatch, self.retire)
        self._is_retired = False
        self._loop = asyncio.get_running_loop()  # kept: asking for it is a system call (getpid) in CPython 3.11
        self._updated: Updated = lambda params: None
        self.unwatched: dict[str, None] = {}  # resources that nobody wants any more, of which it may still speak

    @property
    def in_flight(self) -> int:
        return sum(exchange.is_call for exchange in self.pending.values())

    @property
    def has_running_call(self) -> bool:
        """Whether the server works at a call. One that waits for answers of its client is none."""
        return any(exchange.is_call and not exchange.is_parked for exchange in self.pending.values())

    @property
    def is_busy(self) -> bool:
        """Whether a client waits for something that would be lost with the connection."""
        return self.in_flight > 0 or self.tasks_until > self._loop.time()

    @property
    def is_over(self) -> bool:
        return self._is_retired or self.transport.is_ending

    @property
    def capabilities(self) -> Json:
        value = self.discovered.get("capabilities")
        return value if isinstance(value, dict) else {}

    async def _connect(self, group: TaskGroup) -> None:
        self._group = group
        incoming = self.incoming
        await self.transport.open(group, incoming.receive, incoming.receive_in_pieces, self.retire)

    async def open(self, group: TaskGroup) -> None:
        """Connects. Raises `Lost`, `OSError` or `TimeoutError`; nothing is kept then."""
        raise NotImplementedError

    async def handle(self, call: Call) -> Outcome:
        """Raises `Lost`, `TimeoutError` and `AnswerTooLarge`; every other end is an outcome."""
        raise NotImplementedError

    async def check(self) -> None:
        """Checks that the server answers. Raises where it does not."""
        raise NotImplementedError

    async def live(self) -> None:
        """Returns once the server's list_changed notifications are heard."""
        raise NotImplementedError

    async def watch(
        self, uris: frozenset[str], updated: Updated, first: Collection[str], others_wait: Callable[[], bool]
    ) -> Watching:
        """On return `updated` is called for the resources that it gives, and soon for no others; gives as well those
        that the server refused. Where others wait, it may end when a part is asked for, of `first` at the beginning.
        Raises `Lost`, `TimeoutError`: then it is unknown which of them are watched."""
        self._updated = updated
        resources = self.capabilities.get("resources")
        if isinstance(resources, dict) and resources.get("subscribe") is True:
            return await self._watch(uris, first, others_wait)
        return frozenset(), dict.fromkeys(uris, NO_SUBSCRIPTIONS)

    def _abandon(self, exchange: PendingRequest, why: str) -> None:
        raise NotImplementedError

    def _asked(self, request: Request, exchange: PendingRequest | None) -> None:
        raise NotImplementedError

    def _noticed(self, notification: Notification, exchange: PendingRequest | None) -> PendingRequest | None:
        """Takes a notification that only one era has. Others are dropped."""
        return None

    def assign(self, scope: str | None, session: str | None) -> bool:
        """Assigns the connection to a client; False where it cannot become theirs."""
        self.scope, self.session = scope, session
        return True

    def tell_roots_changed(self) -> None:
        """Notifies the server that the client has other roots, where its era has that."""

    async def ending(self) -> Lost:
        """Why nothing can be asked any more, which may be known a moment later."""
        with anyio.move_on_after(_MOMENT):
            await self.over.wait()
        return Lost(self.why or "the connection is ending", sent=False, gone=True)

    async def perform(
        self, exchange: PendingRequest, method: str, params: Json, patience: AnswerDeadline | None, headers: Headers
    ) -> Response:
        """One request and its answer. When the caller's task is cancelled or time is up, the server is told."""
        if self.is_over:
            raise await self.ending()
        body = jsonrpc.dump({"jsonrpc": "2.0", "id": exchange.id, "method": method, "params": params})
        self.pending[exchange.id] = exchange
        exchange.once = method == "tools/call"
        try:
            with patience or nullcontext():
                exchange.patience = patience
                await self.transport.send(exchange, body, headers)
                return exchange.ready or await exchange.result()
        except (TimeoutError, asyncio.CancelledError) as end:
            if not exchange.is_over and method != "initialize":  # never cancelled: 2025-11-25 basic/utilities
                self._abandon(exchange, "timed out" if isinstance(end, TimeoutError) else "cancelled")
            exchange.settle(error=Lost("nobody waits for its answer any more", sent=True))
            raise
        finally:
            self.pending.pop(exchange.id, None)
            if self._is_retired and not self.in_flight:
                self.drained.set()

    async def ask(self, method: str, params: Json, timeout: float | None, headers: Headers | None = None) -> Response:
        """A request of Sluice's own. Raises `TimeoutError`, `Lost`."""
        exchange = PendingRequest(next(self._ids))
        patience = None if timeout is None else AnswerDeadline(timeout, timeout)
        try:
            return await self.perform(exchange, method, params, patience, headers or [])
        except AnswerTooLarge as error:
            raise Lost(f"its answer to {method} {error.what}", sent=True) from None

    def patience(self, method: str) -> AnswerDeadline:
        settings = self.settings
        if method in LISTS:
            return AnswerDeadline(settings.list_timeout, settings.list_timeout)
        # <= 2025-11-25 basic/utilities/tasks: it has no news until the task has an end
        timeout = settings.max_time if method == "tasks/result" else settings.timeout
        return AnswerDeadline(timeout, settings.max_time, self._loop)

    def retire(self, why: str, all_lost: bool = True) -> None:
        """No new requests; where `all_lost`, the open ones end too. `drained` is set when none is left."""
        if not self._is_retired:
            self.why, self._is_retired = why, True
            self.over.set()
        if all_lost:
            for exchange in tuple(self.pending.values()):
                exchange.settle(error=Lost(why, sent=not exchange.is_unsent, gone=True))
        if not self.in_flight:
            self.drained.set()

    def start_chore(self, work: Callable[[], Awaitable[object]]) -> None:
        self._group.start_soon(self._chore, work)

    async def _chore(self, work: Callable[[], Awaitable[object]]) -> None:
        """A task of the connection's own: its failure costs this connection, nothing else."""
        try:
            await work()
        except Exception as error:
            log.exception("connection failed", extra={"server": self.settings.key})
            self.retire(f"internal error: {type(error).__name__}")

    def _dispatch(self, message: Request | Notification, exchange: PendingRequest | None) -> PendingRequest | None:
        if exchange is not None:
            exchange.has_begun = True
        if isinstance(message, Request):
            self._asked(message, exchange)
            return None
        return self._notified(message, exchange)

    def _notified(self, notification: Notification, exchange: PendingRequest | None) -> PendingRequest | None:
        method = notification.method
        if method == "notifications/progress":
            return self._progressed(notification)
        if method == "notifications/message" and (owner := exchange or self._only_call()) is not None:
            owner.log(notification)
            return owner
        return self._noticed(notification, exchange)

    def _progressed(self, notification: Notification) -> PendingRequest | None:
        token = notification.params.get("progressToken")
        owner = self.pending.get(token) if type(token) is int else None
        if owner is not None:
            owner.progress(notification)
        return owner

    def _only_call(self) -> PendingRequest | None:
        """On a shared channel a log message says not whose it is: with one open call there is one answer."""
        if self.transport.is_private:
            return None
        calls = [exchange for exchange in self.pending.values() if exchange.is_call]
        return calls[0] if len(calls) == 1 else None

    def publish(self, notification: Notification) -> None:
        if notification.method in CHANGES:
            self._heard(self.scope, notification)


def _usual_result(value: Any, id: int) -> Json | None:
    """What the usual answer to that request has; None for every other message."""
    if type(value) is dict and value.keys() == _PLAIN and value["jsonrpc"] == "2.0":
        if type(value["id"]) is int and value["id"] == id and type(value["result"]) is dict:
            result: Json = value["result"]
            return result
    return None


def _glimpse(value: Any) -> str:
    """The beginning of a JSON value, however large that is."""
    if isinstance(value, dict):
        return f"an object with {', '.join(key[:_SHOWN] for key in islice(value, _NAMES_SHOWN))}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return repr(value[:_SHOWN] if isinstance(value, str) else value)[:_SHOWN]
