"""Careful requests for small answers, to URLs that somebody else may have named: bounded in size, time and reach.

The address is resolved once, judged, and connected to as it is, by the client in `http.client`; Host and TLS keep the
name. No cookies, no environment, no credentials but those that a caller gives. A redirect leaves the origin never, and
only a GET follows one. Knows documents as bytes.
"""

from __future__ import annotations  # httpx is imported at its first use

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urljoin

import anyio
import httpx

from sluicegate.http.client.pool import HttpClient, Route
from sluicegate.http.egress import Blocked, Egress

MAX_BYTES: Final = 256 * 1024
WITHIN: Final = 5.0
_MAX_REDIRECTS: Final = 3
_MAX_LOCATION: Final = 2_048
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = ((b"accept-encoding", b"identity"), (b"user-agent", b"sluice"))
_JSON: Final = (b"accept", b"application/json")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_Origin = tuple[str, str, int | None]


class Unfetched(Exception):
    """The answer could not be had: why, without anything that the other side wrote. `is_sent`: the request may have
    been read. `is_blocked`: the address may not be connected to."""

    def __init__(self, text: str, *, is_sent: bool = True, is_blocked: bool = False) -> None:
        super().__init__(text)
        self.is_sent = is_sent
        self.is_blocked = is_blocked


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """`configured` are the URLs of the config that led here: what is of another origin was named by somebody else, and
    may be plain HTTP only where `loopback` allows it on this machine. `most` bytes of the body are taken, and none is
    waited for where it is 0. `ca` is a file of the certificates that count for this URL."""

    url: str
    configured: Sequence[str]
    whose: str
    method: str = "GET"
    headers: Sequence[tuple[bytes, bytes]] = (_JSON,)
    body: bytes = field(default=b"", repr=False)
    within: float = WITHIN
    most: int = MAX_BYTES
    loopback: bool = False
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer of any status. The names of `headers` are in lower case."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes = field(repr=False)

    def all(self, name: bytes) -> list[str]:
        return [value.decode("latin-1") for one, value in self.headers if one == name]


class Fetcher:
    def __init__(self, egress: Egress, within: float = WITHIN, context: ssl.SSLContext | None = None) -> None:
        self.egress = egress
        self.within = within
        self._context = context  # made when it is needed first: it takes 20 ms

    async def get(self, url: str, configured: str, whose: str) -> bytes:
        """The document at `url`; `configured` is the URL of the config that led to it. Raises `Unfetched`."""
        answer = await self.request(FetchRequest(url, (configured,), whose, within=self.within))
        if answer.status != 200:
            raise Unfetched(f"HTTP {answer.status}")
        return answer.body

    async def request(self, request: FetchRequest) -> Fetched:
        """The answer, whatever its status. Raises `Unfetched`."""
        try:
            with anyio.fail_after(request.within):
                return await self._follow(request)
        except TimeoutError:
            raise Unfetched(f"no answer within {request.within:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # `urljoin` raises the last
            refused, is_sent = error.__cause__, not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            if isinstance(refused, Blocked):
                raise Unfetched(str(refused), is_sent=False, is_blocked=True) from None
            if isinstance(refused, socket.gaierror):
                raise Unfetched("the name of its host is not known", is_sent=False) from None
            raise Unfetched(type(error).__name__, is_sent=is_sent) from None

    async def _follow(self, request: FetchRequest) -> Fetched:
        url = httpx.URL(request.url)
        origins = {_origin(httpx.URL(one)) for one in request.configured}
        for _ in range(_MAX_REDIRECTS + 1):
            _check(url, origins, request.loopback)
            answer = await self._ask(url, request, is_named=_origin(url) not in origins)
            if request.method != "GET" or answer.status not in _MOVED:
                return answer
            location = next(iter(answer.all(b"location")), "")
            if len(location) > _MAX_LOCATION:  # of which `urljoin` would take milliseconds
                raise Unfetched("it redirects to no address")
            there = httpx.URL(urljoin(str(url), location))
            if _origin(there) != _origin(url):
                raise Unfetched("it redirects to another origin")
            url = there
        raise Unfetched("it redirects too often")

    async def _ask(self, url: httpx.URL, request: FetchRequest, is_named: bool) -> Fetched:
        permit = partial(self.egress.permit, request.whose, is_named=is_named)
        client = HttpClient(
            ssl_context=self._trusted(request.ca), connect_timeout=request.within / 2,
            route=Route(permit, self.egress.proxy, named_by=_kind(request.whose) if is_named else ""),
        )  # fmt: skip
        try:
            reply = await client.exchange(url, (*request.headers, *_HEADERS), request.body, request.method)
            body = bytearray()
            if request.most and (request.method != "GET" or reply.status not in _MOVED):
                async for chunk in reply:
                    body += chunk
                    if len(body) > request.most:
                        raise Unfetched(f"more than {request.most} bytes")
            return Fetched(reply.status, tuple(reply.raw), bytes(body))
        finally:
            await client.aclose()

    def _trusted(self, ca: str | None) -> ssl.SSLContext:
        if ca is not None:
            return ssl.create_default_context(cafile=ca)
        self._context = self._context or httpx.create_ssl_context()
        return self._context


def _check(url: httpx.URL, origins: set[_Origin], loopback: bool) -> None:
    """Plain HTTP is for what the operator configured so, nobody else can ask for it."""
    if url.scheme != "https" and _origin(url) not in origins and not (loopback and url.host.lower() in _LOOPBACK):
        raise Unfetched("the URL is not https", is_sent=False)
    if url.userinfo or not url.host:
        raise Unfetched("not a URL of the usual form", is_sent=False)


def _origin(url: httpx.URL) -> _Origin:
    return url.scheme, url.host.lower(), url.port or {"http": 80, "https": 443}.get(url.scheme)


def _kind(whose: str) -> str:
    """Whose lookups are counted together: a login or an issuer of the config alone, all clients as one."""
    return "client" if whose.startswith("client ") else whose
