"""What another process of this Sluice has to serve: its connection handed over, or its request passed on.

Between workers a connection that nobody has claimed changes hands, which costs its later requests nothing. Every other
request is passed on once, and its answer passed back as it comes. It keeps its credential, and its owner judges it as
one of its own: nobody's identity is asserted here. A request is never sent twice. Knows HTTP; no MCP but for the words
of a call that was lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, Literal

import httpx

from sluicegate.http.client.connection import Origin, Reply
from sluicegate.http.client.pool import HttpClient
from sluicegate.listen.http_exchange import HttpExchange, error_body
from sluicegate.listen.http_request import HOP, STATUS_LINE, render
from sluicegate.listen.large_requests import UnreadAnswers
from sluicegate.listen.owners import Owner, Owners
from sluicegate.listen.settings import RequestLimits
from sluicegate.listen.worker_handoff import WorkerHandoff
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Malformed, Request, Response, decode, encode, read

log = logging.getLogger(__name__)

# What is of one connection (RFC 9110 7.6.1), and what the client writes itself.
_OF_A_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
     b"content-length", b"date", HOP}
)  # fmt: skip
_RETRY: Final = [(b"retry-after", b"1")]
_GONE: Final = "the process that serves this client ended before it answered"
_DOWN: Final = "the process that serves this client cannot be reached"


@dataclass(slots=True)
class _Forward:
    """A request that is passed on. `why` says for what reason its task was cancelled by us."""

    exchange: HttpExchange
    mark: str
    why: Literal["", "gone", "stopping"] = ""


class PeerForwarding:
    """`handoff` is there between workers. `results` counts what became of requests that were passed on:
    answered, gone, unreachable or broken."""

    def __init__(self, owners: Owners, client: HttpClient, handoff: WorkerHandoff | None = None) -> None:
        self.owners, self._client, self.handoff = owners, client, handoff
        self._running: dict[asyncio.Task[Any], _Forward] = {}
        self.results = Counter[str]()

    def keep(self, marks: Collection[str]) -> None:
        """Gives up what was passed on to replicas that live no more: a machine that vanished closes no connection."""
        self._cancel("gone", lambda one: one.mark not in marks)

    def stop(self) -> None:
        """Ends the streams that clients listen on. Calls may finish."""
        self._cancel("stopping", lambda one: one.exchange.head.method == "GET")

    def _cancel(self, why: Literal["gone", "stopping"], chosen: Callable[[_Forward], bool]) -> None:
        for task, one in self._running.items():
            if not one.why and chosen(one):
                one.why = why
                task.cancel()

    async def hand_over(self, exchange: HttpExchange, owner: Owner) -> None:
        """Gives the request's connection, which no worker has claimed, to the owner. If the owner is not up, the client
        gets an error."""
        assert self.handoff is not None, "workers alone leave a connection unclaimed"
        if not await exchange.peer.connection.hand_over(partial(self.handoff.give, owner[0])):
            await exchange.error(503, _DOWN, _RETRY)

    async def forward(
        self, exchange: HttpExchange, owner: Owner, body: bytes, limits: RequestLimits, unread: UnreadAnswers,
        principal: str,
    ) -> bool:  # fmt: skip
        """Whether it was answered; False where the owner has ended, and nothing was sent. Its owner takes what we have
        read of the answer for read: what its client has not is counted here, as `unread` of that principal."""
        mark, url = owner
        try:
            origin, head = self._prepared(exchange, url)
        except (ValueError, httpx.InvalidURL, httpx.LocalProtocolError):
            await exchange.error(400, "not a request that can be passed on")
            return True
        task = asyncio.current_task(exchange.peer.loop)
        assert task is not None
        one = self._running[task] = _Forward(exchange, mark)
        exchange.peer.on_lost = task.cancel
        is_reached = True
        try:
            reply = await self._client.send(origin, head, body, exchange.head.method)
            try:
                await _relay(exchange, reply, unread, principal)
            finally:
                reply.close()
            self.results["answered"] += 1
            return True
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                self.results["gone"] += 1
                return False
            is_reached = False
            self.results["unreachable"] += 1
            log.warning("a request cannot be passed on", extra={"url": url, "error": str(error)})
        except httpx.TransportError as error:
            self.results["broken"] += 1
            log.warning("a request was passed on in vain", extra={"owner": mark, "error": str(error)})
        except asyncio.CancelledError:
            if not (exchange.peer.lost or one.why):
                raise
            task.uncancel()
            self.results["broken"] += one.why == "gone"
        finally:
            exchange.peer.on_lost = None
            del self._running[task]
        await (_end(exchange, one, body, limits) if is_reached else exchange.error(503, _DOWN, _RETRY))
        return True

    def _prepared(self, exchange: HttpExchange, url: str) -> tuple[Origin, bytes]:
        """Where the request is passed on, and with which head. Raises what says that it cannot be written."""
        head = exchange.head
        known = head.remembered.passed_on
        if known is not None and known[0] == url:
            return known[1], known[2]
        target = _target(url, head.path)
        if head.query:
            target = target.copy_with(raw_path=target.raw_path + b"?" + head.query)
        sent = [header for header in head.headers if header[0] not in _OF_A_HOP]
        origin, text = self._client.prepare(target, [*sent, *self.owners.hop(exchange)], head.method)
        head.remembered.passed_on = url, origin, text
        return origin, text


@lru_cache(maxsize=256)  # httpx takes an address apart for longer than all else takes that is done here
def _target(url: str, path: str) -> "httpx.URL":
    """Paths are those of endpoints, and few. Raises `ValueError` and `httpx.InvalidURL`."""
    return httpx.URL(url).copy_with(raw_path=path.encode("latin-1", "replace"))


async def _end(exchange: HttpExchange, one: _Forward, body: bytes, limits: RequestLimits) -> None:
    """Ends what has no whole answer."""
    if exchange.peer.lost or exchange.finished:
        return
    if not exchange.started:
        await exchange.json(*_lost(body, limits))
    elif one.why == "stopping":
        exchange.finished = True
        await exchange.peer.end()
    else:
        exchange.peer.abort()


def _lost(body: bytes, limits: RequestLimits) -> tuple[int, bytes]:
    """The answer to a request that another process has taken, and may have executed."""
    with suppress(Malformed):
        message = read(decode(body, limits.max_depth, limits.nodes))
        if isinstance(message, Request):
            reason = "outcome_unknown" if message.method == "tools/call" else "server_unavailable"
            error = {"code": INTERNAL_ERROR, "message": _GONE, "data": {"reason": reason}}
            return 200, encode(Response(message.id, error=error))
    return 502, error_body(_GONE)


@lru_cache(maxsize=64)  # headers of most answers differ in their date alone, which is the same for a second
def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return render([header for header in headers if header[0] not in _OF_A_HOP])


async def _relay(exchange: HttpExchange, reply: Reply, unread: UnreadAnswers, principal: str) -> None:
    """Raises `httpx.RemoteProtocolError` for what is no answer of a Sluice."""
    if reply.status not in STATUS_LINE:
        raise httpx.RemoteProtocolError(f"an answer with the status {reply.status}")
    peer, lines, content = exchange.peer, _lines(tuple(reply.raw)), reply.content
    if peer.congested or unread.held:
        await unread.room(principal, peer)
    exchange.started = True
    if content is not None:
        length = b"" if reply.status == 204 else b"content-length: %d\r\n" % len(content)
        exchange.finished = True
        peer.respond_at_once(reply.status, lines + length, content)
        if peer.unread:
            unread.note(principal, peer)
        return
    await peer.start(reply.status, lines)
    async for chunk in reply:
        await unread.room(principal, peer)
        if peer.lost:
            return
        await peer.write(chunk)
        if peer.unread:
            unread.note(principal, peer)
    exchange.finished = True
    await peer.end()
