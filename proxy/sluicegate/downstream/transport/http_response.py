"""One HTTP answer as this room reads it, whichever transport it came by, and what the lack of one means.

Knows the fast transport and httpx's own interface; knows no MCP. The fast one is used without httpx's objects: making
them costs more than the exchange.
"""

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import urljoin

import anyio
import httpx
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import AnswerTooLarge, Lost, proves
from sluicegate.http.client.transport import WireTransport, build_request
from sluicegate.http.egress import Blocked

Raw = list[tuple[bytes, bytes]]

NO_HEADERS: Final[Mapping[bytes, bytes]] = MappingProxyType({})
_UNREACHED: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_UNSAYABLE: Final = (httpx.LocalProtocolError, httpx.UnsupportedProtocol)


class ServerResponse(Protocol):
    """`headers` has lower-case names. Iterating gives the body as it comes, once."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> dict[bytes, bytes]: ...

    @property
    def content(self) -> bytes | None:
        """The whole body where it is here already."""

    @property
    def complete(self) -> bool:
        """Whether the answer has arrived to its end."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None:
        """Ends the answer, also in a task that is being cancelled. Hangs up unless it is complete."""

    async def leave(self, seconds: float) -> None:
        """Nobody reads on; hangs up unless it is complete by then, where the transport can wait for that."""


class Foreign:
    """An answer that came by another transport than ours."""

    content: bytes | None = None

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.raw}
        self._response = response
        self._chunks = response.aiter_bytes()

    @property
    def complete(self) -> bool:
        return self._response.is_closed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._response.aclose()

    async def leave(self, seconds: float) -> None:
        await self.aclose()


Fetch = Callable[[httpx.URL, Raw, bytes, str], Awaitable[ServerResponse]]
"""One request (where, headers, body, method); returns when the head of its answer is there. Raises
`httpx.TransportError`."""


def fetching(transport: httpx.AsyncBaseTransport) -> Fetch:
    if isinstance(transport, WireTransport):
        return transport.exchange

    async def fetch(url: httpx.URL, headers: Raw, body: bytes, method: str) -> ServerResponse:
        return Foreign(await transport.handle_async_request(build_request(url, headers, body, method)))

    return fetch


def lost_by(error: httpx.TransportError) -> Lost:
    if isinstance(error, _UNREACHED):
        why = _unreached(error.__cause__)
        return Lost(f"cannot connect: {why or error}", sent=False, detail=str(error) if why else "")
    if isinstance(error, _UNSAYABLE):
        return Lost(f"the request cannot be sent: {error}", sent=False)
    return Lost(f"the connection broke: {error or type(error).__name__}", sent=True)


def _unreached(cause: BaseException | None) -> str:
    """Why, without an address."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or 'no reason given'}"
    if isinstance(cause, socket.gaierror):
        return "the name of its host is not known"
    if isinstance(cause, Blocked):
        return "its address may not be connected to"
    return "nothing listens there, the connection was refused" if isinstance(cause, ConnectionRefusedError) else ""


def refused(status: int, headers: Mapping[bytes, bytes] = NO_HEADERS, in_session: bool = False) -> Lost:
    """`headers` are those of the answer, `in_session` whether the request had a session id."""
    sent = not proves(status, headers, in_session)
    if status in (401, 403):
        return Lost(f"the server refused our credentials (HTTP {status})", sent=sent, status=status)
    if 200 <= status < 300:
        return Lost(f"the server answered HTTP {status} without an answer", sent=sent, status=status)
    return Lost(f"the server answered HTTP {status}", sent=sent, status=status)


def on_origin(url: httpx.URL, reference: str) -> httpx.URL | None:
    """The address that a server names, if it is on the same origin: to any other one our credentials would go."""
    try:
        place = httpx.URL(urljoin(str(url), reference))
    except (httpx.InvalidURL, ValueError):
        return None
    is_same = (place.scheme, place.host, place.port) == (url.scheme, url.host, url.port)
    return place if is_same and not place.userinfo else None


def is_json(answer: ServerResponse) -> bool:
    return _kind(answer.headers.get(b"content-type", b"")) == b"application/json"


def is_event_stream(answer: ServerResponse) -> bool:
    return _kind(answer.headers.get(b"content-type", b"")) == b"text/event-stream"


@lru_cache(maxsize=64)  # a server has one or two ways to say it; taking them apart each time is 1 us
def _kind(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


def body_at_hand(answer: ServerResponse, limit: int) -> bytes | None:
    """The whole body if nothing has to be waited for, as for most answers. Raises `AnswerTooLarge`."""
    content = answer.content
    if content is not None and len(content) > limit:
        raise AnswerTooLarge
    return content


async def whole_body(answer: ServerResponse, limit: int) -> bytes:
    """Raises `AnswerTooLarge`, and `httpx.TransportError` where it breaks off."""
    if (content := body_at_hand(answer, limit)) is not None:
        return content
    data = bytearray()
    async for chunk in answer:
        data += chunk
        if len(data) > limit:
            raise AnswerTooLarge
    return bytes(data)


TIME: Final = 10.0
MOST: Final = 64
"""At once: a server that asks faster than it reads is not answered."""

log = logging.getLogger(__name__)


class NotificationSender:
    """Sends whole messages one after the other; what one call hands over stays in order."""

    def __init__(self, server: str, group: TaskGroup, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._server, self._group, self._send = server, group, send
        self._busy = 0

    def __repr__(self) -> str:
        return f"NotificationSender({self._server}, {self._busy} at once)"

    def __call__(self, *bodies: bytes) -> None:
        if self._busy < MOST:
            self._busy += 1
            self._group.start_soon(self._tell, bodies)

    async def _tell(self, bodies: tuple[bytes, ...]) -> None:
        try:
            with anyio.move_on_after(TIME):
                for body in bodies:
                    await self._send(body)
        except Lost as error:
            log.debug("server could not be told", extra={"server": self._server, "why": error.text})
        finally:
            self._busy -= 1
