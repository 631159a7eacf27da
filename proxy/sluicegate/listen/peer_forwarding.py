"""Requests of a session that another replica has: passed on to it once, and its answer passed back as it comes.

The request keeps its credential, and the replica that has the session judges it as one of its own: nobody's identity
is asserted here. A request is never sent twice. Knows HTTP and ids; no MCP but for the words of a call that was lost.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

import httpx

from sluicegate.http.client.connection import Reply
from sluicegate.http.client.pool import HttpClient
from sluicegate.listen.http_exchange import HttpExchange
from sluicegate.listen.http_request import RequestHead, render
from sluicegate.listen.http_sse import session_id
from sluicegate.protocol.jsonrpc import Json

# What is of one connection (RFC 9110 7.6.1), and what the client writes itself.
_OF_A_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
     b"content-length", b"date"}
)  # fmt: skip
_GOES_ON: Final = ("requestState", "taskId", "cursor")


class ReplicaUrls(Protocol):
    def url_of(self, id: str) -> str | None:
        """Where the requests of another replica's session go; None where it is ours, or its replica has ended."""


class PeerForwarding:
    """`results` counts what became of requests: answered, gone, unreachable or broken."""

    def __init__(self, replicas: ReplicaUrls, client: HttpClient) -> None:
        self._replicas, self._client = replicas, client
        self.results = Counter[str]()

    def owner(self, head: RequestHead) -> str | None:
        """The URL of the replica that has the session which this request names, where that is another one."""
        id = head.get(b"mcp-session-id")
        if id is None:
            return self._replicas.url_of(session_id(head.query)) if head.query else None
        return self._replicas.url_of(id.decode("latin-1"))

    def holder(self, params: Json) -> str | None:
        """The URL of the replica that gave out what these parameters go on with, where that is another one."""
        for key in _GOES_ON:
            value = params.get(key)
            if isinstance(value, str) and (url := self._replicas.url_of(value)) is not None:
                return url
        return None

    async def forward(
        self, exchange: HttpExchange, url: str, body: bytes, lost: Callable[[], tuple[int, bytes]]
    ) -> None:
        """`lost` makes status and body of the answer where nobody knows what became of the request."""
        head, task = exchange.head, asyncio.current_task(exchange.peer.loop)
        assert task is not None
        path = head.path + (f"?{head.query.decode('latin-1')}" if head.query else "")
        sent = [(name, value) for name, value in head.headers if name not in _OF_A_HOP]
        sent.append((b"x-forwarded-for", exchange.client.encode("ascii", "replace")))
        exchange.peer.on_lost = task.cancel
        try:
            target = httpx.URL(url).copy_with(raw_path=path.encode("latin-1", "replace"))
            reply = await self._client.exchange(target, sent, body, head.method)
        except (httpx.ConnectTimeout, httpx.LocalProtocolError, httpx.InvalidURL):
            self.results["unreachable"] += 1
            return await exchange.error(503, "the replica that has this session cannot be reached")
        except httpx.ConnectError:  # it has ended, as far as anybody can see: the client begins anew
            self.results["gone"] += 1
            return await exchange.error(404, "Session not found")
        except httpx.TransportError:
            self.results["broken"] += 1
            return await exchange.json(*lost())
        except asyncio.CancelledError:
            if not exchange.peer.lost:
                raise
            task.uncancel()
            return
        try:
            await _relay(exchange, reply)
            self.results["answered"] += 1
        except httpx.TransportError:
            self.results["broken"] += 1
            exchange.peer.abort()
        except asyncio.CancelledError:
            if not exchange.peer.lost:
                raise
            task.uncancel()
        finally:
            reply.close()


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
