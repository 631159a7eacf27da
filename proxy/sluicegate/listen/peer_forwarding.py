"""Requests of a session that another replica has: passed on to it once, and its answer passed back as it comes.

The request keeps its credential, and the replica that has the session judges it as one of its own: nobody's identity
is asserted here. A request is never sent twice. Knows HTTP and ids; no MCP but for the words of a call that was lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import httpx

from sluicegate.http.client.connection import Reply
from sluicegate.http.client.pool import HttpClient
from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.http_request import RequestHead, render
from sluicegate.listen.http_sse import session_id
from sluicegate.protocol.jsonrpc import Json

log = logging.getLogger(__name__)

# What is of one connection (RFC 9110 7.6.1), and what the client writes itself.
_OF_A_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
     b"content-length", b"date"}
)  # fmt: skip
_HOP: Final = b"sluice-hop"
_GOES_ON: Final = ("requestState", "taskId", "cursor")


class LivingReplicas(Protocol):
    def owner(self, id: str) -> tuple[str, str] | None:
        """Mark and URL of another replica that gave out this id; None where it is ours, or that one has ended."""


@dataclass(slots=True)
class _Forward:
    """A request that is passed on. `why` says for what reason its task was cancelled by us."""

    exchange: HttpExchange
    mark: str
    why: Literal["", "gone", "stopping"] = ""


class PeerForwarding:
    """`results` counts what became of requests: answered, gone, unreachable or broken."""

    def __init__(self, replicas: LivingReplicas, client: HttpClient) -> None:
        self._replicas, self._client = replicas, client
        self._running: dict[asyncio.Task[Any], _Forward] = {}
        self.results = Counter[str]()

    def owner(self, head: RequestHead) -> tuple[str, str] | None:
        """The replica that has the session which this request names, where that is another one."""
        if _HOP in head:  # somebody's URL leads here, and not to the port for replicas
            return None
        id = head.get(b"mcp-session-id")
        if id is None:
            return self._replicas.owner(session_id(head.query)) if head.query else None
        return self._replicas.owner(id.decode("latin-1"))

    def holder(self, head: RequestHead, params: Json) -> tuple[str, str] | None:
        """The replica that gave out what these parameters go on with, where that is another one."""
        if _HOP in head:
            return None
        for key in _GOES_ON:
            value = params.get(key)
            if isinstance(value, str) and (owner := self._replicas.owner(value)) is not None:
                return owner
        return None

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

    async def forward(
        self, exchange: HttpExchange, owner: tuple[str, str], body: bytes, lost: Callable[[], tuple[int, bytes]]
    ) -> bool:
        """Whether it was answered; False where the other replica has ended, and nothing was sent. `lost` makes status
        and body of the answer where nobody knows what became of the request."""
        mark, url = owner
        task = asyncio.current_task(exchange.peer.loop)
        assert task is not None
        one = self._running[task] = _Forward(exchange, mark)
        exchange.peer.on_lost = task.cancel
        try:
            return await self._passed_on(exchange, url, body)
        except httpx.TransportError as error:
            self.results["broken"] += 1
            log.warning("a request was passed on in vain", extra={"replica": mark, "error": str(error)})
        except asyncio.CancelledError:
            if not (exchange.peer.lost or one.why):
                raise
            task.uncancel()
            self.results["broken"] += one.why == "gone"
        finally:
            exchange.peer.on_lost = None
            del self._running[task]
        await _end(exchange, one, lost)
        return True

    async def _passed_on(self, exchange: HttpExchange, url: str, body: bytes) -> bool:
        head = exchange.head
        path = head.path + (f"?{head.query.decode('latin-1')}" if head.query else "")
        sent = [(name, value) for name, value in head.headers if name not in _OF_A_HOP]
        sent += [(b"x-forwarded-for", exchange.client.encode("ascii", "replace")), (_HOP, b"1")]
        try:
            target = httpx.URL(url).copy_with(raw_path=path.encode("latin-1", "replace"))
            reply = await self._client.exchange(target, sent, body, head.method)
        except (ValueError, httpx.InvalidURL, httpx.LocalProtocolError):
            await exchange.error(400, "not a request that can be passed on")
            return True
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                self.results["gone"] += 1
                return False
            self.results["unreachable"] += 1
            log.warning("a replica cannot be reached", extra={"url": url, "error": str(error)})
            await exchange.error(503, "the replica that has this session cannot be reached", [(b"retry-after", b"1")])
            return True
        try:
            await _relay(exchange, reply)
            self.results["answered"] += 1
        finally:
            reply.close()
        return True


async def _end(exchange: HttpExchange, one: _Forward, lost: Callable[[], tuple[int, bytes]]) -> None:
    """Ends what has no whole answer."""
    if exchange.peer.lost or exchange.finished:
        return
    if not exchange.started:
        await exchange.json(*lost())
    elif one.why == "stopping":
        exchange.finished = True
        await exchange.peer.end()
    else:
        exchange.peer.abort()


async def _relay(exchange: HttpExchange, reply: Reply) -> None:
    peer = exchange.peer
    lines = render([header for header in reply.raw if header[0] not in _OF_A_HOP])
    exchange.started = True
    if reply.content is not None:
        length = b"" if reply.status == 204 else b"content-length: %d\r\n" % len(reply.content)
        exchange.finished = True
        await peer.respond(reply.status, lines + length, reply.content)
        return
    await peer.start(reply.status, lines)
    async for chunk in reply:
        if peer.lost:
            return
        await peer.write(chunk)
    exchange.finished = True
    await peer.end()
