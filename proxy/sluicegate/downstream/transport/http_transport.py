"""A server behind a URL: Streamable HTTP, in both eras.

Nothing of the client travels here: the headers are the configured ones and those of the protocol.
"""

from __future__ import annotations  # httpx is imported at its first use

import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio
import httpx

from sluicegate.downstream.failures import AnswerTooLarge, AnswerUnfinished, Lost
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.session.suspended import InteractiveExchange
from sluicegate.downstream.settings import NO_CREDENTIALS, ServerSettings
from sluicegate.downstream.transport import http_base
from sluicegate.http.client.connection import Reply
from sluicegate.http.client.pool import HttpClient, Route
from sluicegate.http.egress import Egress
from sluicegate.http.sse import EventParser, EventTooLarge, StreamPosition
from sluicegate.protocol.model import Era
from sluicegate.protocol.modern_server import Headers
from sluicegate.protocol.revisions import Revision
from sluicegate.runtime.loop_budget import PIECE, VALUES, LoopBudget, is_large
from sluicegate.runtime.spool import Spool
from sluicegate.runtime.unfinished import TooMuchUnfinished
from sluicegate.telemetry import DEFAULT_BACKOFF

log = logging.getLogger(__name__)

_ACCEPT: Final = (b"accept", b"application/json, text/event-stream")
_FIXED: Final = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
_GOODBYE_TIME: Final = 2.0
_DRAIN_TIME: Final = 1.0
_MAX_RESUMES: Final = 10
_MAX_RETRY: Final = 60.0
_MIN_RETRY: Final = 0.1  # a server may write 0: whoever ends its streams at once is asked ten times a second at most
_MOVED: Final = (307, 308)


def http_client(settings: ServerSettings, egress: Egress | None = None) -> HttpClient | None:
    """None for a server that is started. A server's URLs are followed on its own origin alone: redirects, and the
    `endpoint` of the 2024 transport. So its configured host is all that is ever connected to."""
    if not settings.url:
        return None
    context = ssl.create_default_context(cafile=settings.ca) if settings.ca else None
    rules = egress or Egress()
    return HttpClient(ssl_context=context, route=Route(partial(rules.permit, f"server {settings.key}"), rules.proxy))


class PushStream:
    """The GET stream of a session, for as long as the server offers one (2025-11-25 basic/transports#listening).
    `is_settled` is set once it is heard, or known never to come; `is_begun` once the server was told that the session
    has begun."""

    def __init__(
        self, settings: ServerSettings, budget: LoopBudget, get: Callable[[StreamPosition], Awaitable[Reply]],
        take: Callable[[bytes | Spool, None], Awaitable[PendingRequest | None]], session_over: Callable[[], None],
    ) -> None:  # fmt: skip
        self._settings, self._budget = settings, budget
        self._get, self._take, self._session_over = get, take, session_over
        self.is_settled, self.is_begun = anyio.Event(), anyio.Event()
        self._has_told = False

    async def keep(self) -> None:
        position = StreamPosition()
        failures, had_one = 0, False
        while True:
            is_begun = self.is_begun.is_set()
            try:
                response = await self._get(position)
            except Lost:
                failures += 1
            else:
                if 400 <= response.status < 500:
                    # Any 4xx, 405 above all, means "no push channel" and is no failure; but where there was one, 404
                    # means that the session has ended.
                    response.close()
                    if response.status == 404 and had_one:
                        self._session_over()
                    self.is_settled.set()
                    if is_begun or response.status == 405:
                        return
                    await self.is_begun.wait()
                    continue
                had_one = had_one or response.status == 200
                failures = 0 if await self._read(response, position) else failures + 1
            self.is_settled.set()
            await anyio.sleep(max(_pause(position), DEFAULT_BACKOFF.pause(failures) if failures else 0.0))

    async def _read(self, response: Reply, position: StreamPosition) -> bool:
        """Returns whether anything came."""
        was_useful, settings = False, self._settings
        events = EventParser(position, settings.max_result, unfinished=settings.unfinished, close=response.close)
        try:
            if response.status == 200 and http_base.is_event_stream(response):
                self.is_settled.set()
                async for chunk in response:
                    for start in range(0, len(chunk), PIECE):
                        since = self._budget.now()
                        for data in events.feed(chunk[start : start + PIECE]):
                            was_useful = True
                            if touched := await self._take(data, None):
                                await touched.flush()
                        await self._budget.charge_and_rest(since)
        except (httpx.TransportError, EventTooLarge):
            pass
        except TooMuchUnfinished as error:
            if not self._has_told:
                self._has_told = True  # once for each session: the server may do so again and again
                log.warning("stream closed: the server sent %s", error, extra={"server": settings.key})
        finally:
            events.end()
            response.close()
        return was_useful


class StreamableHttpTransport(http_base.HttpTransport):
    """The `Transport` of one endpoint: every exchange is a POST of its own. Legacy: with the session that the server
    gave, and with a GET stream for what it says by itself."""

    is_private = True
    refusal = 0
    """The status with which the last request was refused."""

    def __init__(self, settings: ServerSettings, http: HttpClient, era: Era, budget: LoopBudget) -> None:
        super().__init__(settings, http, budget)
        self._era = era
        self._session: str | None = None
        self._version: http_base.Raw = []
        self._revision: Revision | None = None
        self._push = PushStream(settings, budget, self._get, self._take_message, self._session_over)
        self._rebuild()

    def agreed(self, revision: Revision) -> None:
        self._revision = revision
        if revision.version_header:
            self._version = [(b"mcp-protocol-version", revision.name.encode())]
        self._rebuild()
        if revision.era == "legacy":
            self._group.start_soon(self._push.keep)

    def _rebuild(self) -> None:
        ours = [*_FIXED, *self._version]
        if self._session is not None:
            ours.append((b"mcp-session-id", self._session.encode()))
        names = {name for name, _ in (*ours, _ACCEPT)}
        self._common = [*ours, *((name, value) for name, value in self._configured if name not in names)]
        self._posting = [_ACCEPT, *self._common]

    async def send(self, exchange: PendingRequest, body: bytes, headers: Headers) -> None:
        account, used = self._settings.account, NO_CREDENTIALS
        if account is not None and not (used := account.headers()):
            used = await self._renewed(account, exchange)
            if exchange.is_over:  # its connection has ended meanwhile
                return
        try:  # as `_request`, without a frame more in the stack of each call
            response = await self._http.exchange(self._url, [*self._posting, *headers, *used], body)
        except httpx.TransportError as error:
            raise http_base.lost_by(error) from None
        if response.status in http_base.REFUSED and account is not None:
            own = [*self._posting, *headers]
            try:
                response = await self._once_more(account, used, response, "POST", self._url, own, body, exchange)
            except Lost as lost:  # its answer, or a sign of life, may have come on another stream meanwhile
                return exchange.settle(error=lost)
        if response.status in _MOVED:
            response = await self._follow(response, body, headers, exchange)
        try:
            await self._take(response, exchange)
        except BaseException:
            response.close()
            raise

    async def _follow(
        self, response: Reply, body: bytes, own: http_base.Raw, exchange: PendingRequest | None = None
    ) -> Reply:
        """The answer from where the server has moved to; the redirect itself for what may be sent only once."""
        url = self._moved(response)
        if url is None:
            return response
        self._url = url
        if exchange is not None and exchange.once:
            return response
        response.close()
        self._check_still(exchange)
        return await self._request("POST", self._url, [*self._posting, *own], body, exchange)

    def _moved(self, response: Reply) -> httpx.URL | None:
        """Another path of the same origin; any other redirect could carry the credentials away."""
        url = http_base.on_origin(self._url, response.headers.get(b"location", b"").decode("latin-1"))
        return None if url == self._url else url

    async def _take(self, response: Reply, exchange: PendingRequest) -> None:
        # Step 11 of docs/explanation/performance.md
        status = response.status
        if 200 <= status < 300:
            self._keep_session(response)
            if http_base.is_json(response):
                limit = self._settings.max_result
                data: bytes | Spool | None = http_base.body_at_hand(response, limit)
                data = await self._body(response) if data is None else data
                if isinstance(data, Spool) or (len(data) > VALUES and is_large(data)):
                    await self._budget.large(self._in_pieces(data, exchange))
                elif data:
                    self._receive(data, exchange)
            elif http_base.is_event_stream(response):
                if isinstance(exchange, InteractiveExchange) and response.content is None:
                    self._group.start_soon(self._stream_alone, response, exchange)
                    return
                return await self._stream(response, exchange)
        elif status == 404 and self._session is not None and await self._is_over(response):
            exchange.settle(error=Lost("the server ended the session", sent=False, gone=True, status=status))
        elif http_base.is_json(response):
            self.refusal = status
            if data := await http_base.error_body(response):
                await self._take_message(data, exchange)
        if not response.complete:
            response.close()
        if not exchange.is_over:
            exchange.settle(error=await http_base.refused(response))

    async def _is_over(self, response: Reply) -> bool:
        """Whether an answer says that there is no session, and nothing was executed."""
        is_over = True
        try:
            is_over = await http_base.is_proof(response, in_session=True)
        finally:
            if is_over:
                self._session_over()
        return is_over

    def _session_over(self) -> None:
        if self._session is not None:
            self._retire("the server ended the session", False)

    async def _body(self, response: Reply) -> bytes | Spool:
        try:
            return await http_base.kept_body(response, self._settings, self._budget)
        except httpx.TransportError as error:
            raise Lost(f"the connection broke: {error or type(error).__name__}", sent=True) from None

    def _keep_session(self, response: Reply) -> None:
        """Only the answer to `initialize` gives a session: one from a probe would poison the handshake."""
        if self._revision is not None or self._era == "modern" or self._session is not None:
            return
        session = response.headers.get(b"mcp-session-id", b"").decode("latin-1")
        if session.isascii() and session.isprintable() and " " not in session:
            self._session = session or None

    async def _stream(self, response: Reply, exchange: PendingRequest) -> None:
        position = StreamPosition()
        await self._read(response, exchange, position)
        resumes = 0
        while not exchange.is_over and position.id and self._era == "legacy" and resumes < _MAX_RESUMES:
            # 2025-11-25 basic/transports#resumability-and-redelivery: also for the streams of POSTs
            await anyio.sleep(_pause(position))
            seen = position.id
            await self._resume(exchange, position)
            resumes = 0 if position.id != seen else resumes + 1
        if not exchange.is_over:
            exchange.settle(error=Lost("the stream ended without an answer", sent=True))

    async def _stream_alone(self, response: Reply, exchange: InteractiveExchange) -> None:
        """The stream of an exchange that may outlive whoever began it; it ends with the exchange."""
        with exchange.reading():
            try:
                await self._stream(response, exchange)
            except (Lost, AnswerTooLarge) as error:
                exchange.settle(error=error)
        if exchange.answer is None:
            response.close()

    async def _resume(self, exchange: PendingRequest, position: StreamPosition) -> None:
        try:
            response = await self._get(position)
        except Lost:
            return
        if response.status == 200 and http_base.is_event_stream(response):
            await self._read(response, exchange, position)
        else:
            response.close()
            exchange.settle(error=Lost("the broken stream cannot be resumed", sent=True))

    async def _get(self, position: StreamPosition) -> Reply:
        resumed = [(b"last-event-id", position.id.encode())] if position.id else []
        return await self._request("GET", self._url, [(b"accept", b"text/event-stream"), *self._common, *resumed])

    async def _read(self, response: Reply, exchange: PendingRequest, position: StreamPosition) -> None:
        """Reads until the answer, or the end of the stream."""
        settings = self._settings
        events = EventParser(position, settings.max_result, settings.keep, settings.unfinished, response.close)
        try:
            if (content := response.content) is not None:
                return await self._hand_on(events, content, exchange)
            async for chunk in response:
                await self._hand_on(events, chunk, exchange)
                if exchange.is_over and not response.complete:  # its end is near, and the connection good for more
                    return response.leave(_DRAIN_TIME)
        except httpx.TransportError:
            pass  # the caller sees that there is no answer
        except EventTooLarge:
            response.close()
            raise AnswerTooLarge from None
        except TooMuchUnfinished:
            response.close()
            raise AnswerUnfinished from None
        except BaseException:
            response.close()
            raise
        finally:
            events.end()
        response.close()

    async def _hand_on(self, events: EventParser, chunk: bytes, exchange: PendingRequest) -> None:
        for start in range(0, len(chunk), PIECE):
            since = self._budget.now()
            for data in events.feed(chunk[start : start + PIECE]):
                await self._take_message(data, exchange)
                if not isinstance(exchange, InteractiveExchange):  # who waits for that takes it by itself
                    await exchange.flush()
            if exchange.is_over:
                return  # what follows is nobody's
            await self._budget.charge_and_rest(since)

    async def notify(self, body: bytes) -> None:
        response = await self._request("POST", self._url, self._posting, body)
        if response.status in _MOVED:
            response = await self._follow(response, body, [])
        try:
            if response.status >= 400:
                raise await http_base.refused(response)
        finally:
            response.close()
        self._push.is_begun.set()  # `initialized` is the first

    async def live(self) -> None:
        await self._push.is_settled.wait()

    def discard_input(self) -> None:
        """Each answer ends by itself, and the stream of its own with the connection."""

    async def close(self) -> None:
        """2025-11-25 basic/transports#session-management: a session that is not needed any more is deleted."""
        if self._session is None:
            return
        with anyio.move_on_after(_GOODBYE_TIME, shield=True):
            try:
                goodbye = await self._request("DELETE", self._url, [_ACCEPT, *self._common])
                goodbye.close()
            except Lost:
                pass


def _pause(position: StreamPosition) -> float:
    """Seconds until a stream that ended is asked for again, as its server wishes within bounds."""
    return max(_MIN_RETRY, min(position.retry, _MAX_RETRY))
