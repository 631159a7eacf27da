"""What both HTTP transports share: requests and what their failures prove, and what is sent without waiting.

A server names URLs in redirects and in its `endpoint` event. They are followed on the configured origin only, so that
the configured credentials go nowhere else.
"""

from __future__ import annotations  # httpx is imported at its first use

import logging
import os
import re
import socket
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import urljoin

import anyio
import httpx
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import AnswerTooLarge, AnswerUnfinished, Lost, proves, too_late
from sluicegate.downstream.session.connection import Receive, ReceiveInPieces
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.settings import NO_CREDENTIALS, Account, Credentials, ServerSettings
from sluicegate.http.client.connection import Reply
from sluicegate.http.client.pool import HttpClient
from sluicegate.http.egress import Blocked
from sluicegate.oauth.challenges import error_of
from sluicegate.runtime.loop_budget import VALUES, LoopBudget, is_large
from sluicegate.runtime.spool import Spool, SpoolFull
from sluicegate.runtime.unfinished import SMALL, TooMuchUnfinished

Raw = list[tuple[bytes, bytes]]

SEND_TIME: Final = 10.0
"""Seconds that what is sent without waiting may take."""
MAX_SENDING: Final = 64
"""Sends without waiting at once: a server that asks faster than it reads is not answered."""

MAX_REFERENCE: Final = 2_048
"""Characters of an address that a server names."""

REFUSED: Final = frozenset({401, 403})
_Keep = Callable[[bytes | bytearray], Spool | None]

_MAX_CHALLENGES: Final = 8
_MAX_ERROR_BODY: Final = 256 * 1024
_RESULT: Final = re.compile(
    rb'"(?:r|\\u0072)(?:e|\\u0065)(?:s|\\u0073)(?:u|\\u0075)(?:l|\\u006[cC])(?:t|\\u0074)"[ \t\n\r]*:'
)  # fmt: skip

log = logging.getLogger(__name__)


class HttpTransport:
    """One connection's use of the HTTP client."""

    is_ending = False
    pid: int | None = None
    _sending = 0

    def __init__(self, settings: ServerSettings, http: HttpClient, budget: LoopBudget) -> None:
        self._settings, self._http, self._budget = settings, http, budget
        self._url = httpx.URL(settings.url or "")
        self._configured: Raw = [(name.lower().encode(), value.encode()) for name, value in settings.headers.items()]

    async def open(
        self, group: TaskGroup, receive: Receive, in_pieces: ReceiveInPieces, retire: Callable[[str, bool], None]
    ) -> None:
        self._group, self._receive, self._in_pieces, self._retire = group, receive, in_pieces, retire

    async def _take_message(self, data: bytes | Spool, exchange: PendingRequest | None) -> PendingRequest | None:
        if isinstance(data, Spool) or (len(data) > VALUES and is_large(data)):
            return await self._budget.large(self._in_pieces(data, exchange))
        return self._receive(data, exchange)

    async def notify(self, body: bytes) -> None:
        raise NotImplementedError

    def send_soon(self, *bodies: bytes) -> None:
        """Sends without waiting: notifications and answers to the server's questions, these in order."""
        if self._sending < MAX_SENDING:
            self._sending += 1
            self._group.start_soon(self._send_each, bodies)

    async def _send_each(self, bodies: tuple[bytes, ...]) -> None:
        try:
            with anyio.move_on_after(SEND_TIME):
                for body in bodies:
                    await self.notify(body)
        except Lost as error:
            log.debug("server could not be told", extra={"server": self._settings.key, "why": error.text})
        finally:
            self._sending -= 1

    async def _request(
        self, method: str, url: httpx.URL, headers: Raw, body: bytes = b"", exchange: PendingRequest | None = None
    ) -> Reply:
        """`exchange` is what the request is of, if it has an answer. Raises `Lost`."""
        account, used = self._settings.account, NO_CREDENTIALS
        if account is not None and not (used := account.headers()):
            used = await self._renewed(account, exchange)
        if exchange is not None and exchange.is_over:
            raise Lost("nobody waits for its answer any more", sent=False)
        reply = await self._exchange(method, url, [*headers, *used], body)
        if reply.status in REFUSED and account is not None:
            try:
                return await self._once_more(account, used, reply, method, url, headers, body, exchange)
            except AnswerTooLarge:
                raise _too_long(reply) from None
        return reply

    async def _renewed(self, account: Account, exchange: PendingRequest | None) -> Credentials:
        """What is sent first. Raises `Lost`."""
        if exchange is not None:
            exchange.is_unsent = not exchange.only_reads
        used = await account.renewed()
        if used:  # else there was no login to wait for
            self._check_still(exchange)
        if exchange is not None:
            exchange.is_unsent = False
        return used

    async def _once_more(
        self, account: Account, used: Credentials, reply: Reply, method: str, url: httpx.URL, headers: Raw, body: bytes,
        exchange: PendingRequest | None,
    ) -> Reply:  # fmt: skip
        """What proves that nothing was executed may be sent once more, with a newer token than `used`. Returns the
        refusal itself where it proves nothing. Raises `Lost` and `AnswerTooLarge`."""
        is_again = False
        try:
            while (exchange is None or exchange.may_be_sent_again) and await is_proof(reply):
                reply.close()
                if exchange is not None:
                    exchange.is_unsent = not exchange.only_reads
                used = await account.rejected(used, reply.status, challenges(reply))
                if is_again or (exchange is not None and not exchange.may_be_sent_again):
                    raise await refused(reply)
                self._check_still(exchange)
                if exchange is not None:
                    exchange.is_unsent = False
                reply, is_again = await self._exchange(method, url, [*headers, *used], body), True
        except BaseException:
            reply.close()
            raise
        return reply

    def _check_still(self, exchange: PendingRequest | None) -> None:
        """Before what waited for a login, or is sent again. Raises `Withheld` where its client has lost the right."""
        call = None if exchange is None or exchange.only_reads else exchange.call
        if call is not None and not self._settings.may_still(call):
            raise too_late()

    async def _exchange(self, method: str, url: httpx.URL, headers: Raw, body: bytes) -> Reply:
        try:
            return await self._http.exchange(url, headers, body, method)
        except httpx.TransportError as error:
            raise lost_by(error) from None


def challenges(reply: Reply) -> list[str]:
    """Each `WWW-Authenticate` (RFC 9110 11.6.1: there may be several)."""
    return [value.decode("latin-1") for name, value in reply.raw if name == b"www-authenticate"][:_MAX_CHALLENGES]


async def is_proof(reply: Reply, in_session: bool = False) -> bool:
    """Whether the answer proves that its request was not executed. `in_session`: that had a session id. Raises `Lost`
    and `AnswerTooLarge` where its body cannot be read."""
    if not proves(reply.status, error_of(challenges(reply)), in_session) or is_event_stream(reply):
        return False
    return not (is_json(reply) and _may_be_result(await error_body(reply)))


async def error_body(reply: Reply) -> bytes:
    """The body of an answer with an error status, which stays with the answer. Raises `Lost` and `AnswerTooLarge`."""
    try:
        with anyio.fail_after(SEND_TIME):
            data = await whole_body(reply, _MAX_ERROR_BODY)
    except httpx.TransportError as error:
        raise lost_by(error) from None
    except TimeoutError:
        raise Lost(f"the server answered HTTP {reply.status} too slowly", sent=True, status=reply.status) from None
    reply.keep(data)
    return data


def _too_long(reply: Reply) -> Lost:
    return Lost(f"the server answered HTTP {reply.status} at too great length", sent=True, status=reply.status)


def _may_be_result(data: bytes) -> bool:
    """Whether a JSON-RPC message of the body may have a result: whether any object in it has a member of that name."""
    return _RESULT.search(data) is not None


def lost_by(error: httpx.TransportError) -> Lost:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        cause = error.__cause__
        text = f"cannot connect: {_unreached(cause) or cause or error}"
        return Lost(text, sent=False, detail=str(error).removesuffix(f": {cause}") if cause else "")
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        return Lost(f"the request cannot be sent: {error}", sent=False)
    return Lost(f"the connection broke: {error or type(error).__name__}", sent=True)


def _unreached(cause: BaseException | None) -> str:
    """Returns why the server was not reached, without an address."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or 'no reason given'}"
    if isinstance(cause, socket.gaierror):
        return "the name of its host is not known"
    if isinstance(cause, Blocked):
        return "its address may not be connected to"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there, the connection was refused"
    return os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else ""


async def refused(reply: Reply) -> Lost:
    """Why there is no answer, after one that holds none. Raises `Lost` where that cannot be read."""
    try:
        status, sent = reply.status, not await is_proof(reply)
    except AnswerTooLarge:
        return _too_long(reply)
    if status in REFUSED:
        why = "wants valid credentials" if status == 401 else "refuses access"
        return Lost(f"the server {why} (HTTP {status})", sent=sent, status=status)
    if 200 <= status < 300:
        return Lost(f"the server answered HTTP {status} without an answer", sent=sent, status=status)
    return Lost(f"the server answered HTTP {status}", sent=sent, status=status)


def on_origin(url: httpx.URL, reference: str) -> httpx.URL | None:
    """The address that a server names, if it is on the same origin: to any other one our credentials would go. A text
    that no URL needs is refused unread: `urljoin` takes seconds for a megabyte of `/..`."""
    if len(reference) > MAX_REFERENCE:
        return None
    try:
        named = httpx.URL(urljoin(str(url), reference))
        is_same = (named.scheme, named.host, named.port) == (url.scheme, url.host, url.port)  # a host is decoded here
    except (httpx.InvalidURL, ValueError):
        return None
    return named if is_same and not named.userinfo else None


def is_json(reply: Reply) -> bool:
    return _kind(reply.headers.get(b"content-type", b"")) == b"application/json"


def is_event_stream(reply: Reply) -> bool:
    return _kind(reply.headers.get(b"content-type", b"")) == b"text/event-stream"


@lru_cache(maxsize=64)  # a server has one or two ways to say it; they are taken apart once
def _kind(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


def body_at_hand(reply: Reply, limit: int) -> bytes | None:
    """The whole body if nothing has to be waited for, as for most answers. None for one that is too large, too."""
    content = reply.content
    return None if content is not None and len(content) > limit else content


async def whole_body(reply: Reply, limit: int) -> bytes:
    """Raises `AnswerTooLarge`, and `httpx.TransportError` where it breaks off."""
    if (content := reply.content) is not None:
        if len(content) > limit:
            raise AnswerTooLarge
        return content
    data = bytearray()
    async for chunk in reply:
        data += chunk
        if len(data) > limit:
            raise AnswerTooLarge
    return bytes(data)


class _ComingBody:
    """The bytes of a body so far."""

    def __init__(self, reply: Reply) -> None:
        self._reply, self.data = reply, bytearray()

    def give_up(self) -> None:
        self.data = bytearray()
        self._reply.close(TooMuchUnfinished())


async def kept_body(reply: Reply, settings: ServerSettings, budget: LoopBudget) -> bytes | Spool:
    """The same of a server's answer. What has come of it counts in `unfinished`. One over the limit goes into a spool
    where the server's are kept. Raises `AnswerUnfinished`, too."""
    limit, unfinished = settings.max_result, settings.unfinished
    if (content := reply.content) is not None:
        return content if len(content) <= limit else _spooled(content, settings.keep)
    body, spool = _ComingBody(reply), None
    try:
        async for chunk in reply:
            if spool is not None:
                since = budget.now()
                spool.write(chunk)
                await budget.charge_and_rest(since)
                continue
            body.data += chunk
            if len(body.data) > limit:
                unfinished.release(body)
                spool, body = _spooled(body.data, settings.keep), _ComingBody(reply)
            elif len(body.data) > SMALL:
                unfinished.hold(body, len(body.data))
        unfinished.check(body)
    except SpoolFull:
        raise AnswerTooLarge from None
    except TooMuchUnfinished:
        raise AnswerUnfinished from None
    finally:
        unfinished.release(body)
    return bytes(body.data) if spool is None else spool


def _spooled(data: bytes | bytearray, keep: _Keep) -> Spool:
    if (made := keep(data)) is None:
        raise AnswerTooLarge
    return made
