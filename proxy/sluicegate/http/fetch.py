"""A careful GET of a small document that somebody else may have named: bounded in size, time, redirects and reach.

The address is resolved once, judged, and connected to as it is, by the client in `http.client`; Host and TLS keep the
name. No cookies, no credentials, no environment. A redirect leaves the origin never. Knows documents as bytes.
"""

from __future__ import annotations  # httpx is imported at its first use

import ssl
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
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = [(b"accept", b"application/json"), (b"accept-encoding", b"identity"), (b"user-agent", b"sluice")]


class Unfetched(Exception):
    """The document could not be had: why, without anything that the other side wrote."""


class Fetcher:
    def __init__(self, egress: Egress, within: float = WITHIN, context: ssl.SSLContext | None = None) -> None:
        self.egress = egress
        self.within = within
        self._context = context  # made when it is needed first: it takes 20 ms

    async def get(self, url: str, configured: str, whose: str) -> bytes:
        """The document at `url`; `configured` is the URL of the config that led to it. Raises `Unfetched`."""
        try:
            with anyio.fail_after(self.within):
                return await self._follow(httpx.URL(url), httpx.URL(configured), whose)
        except TimeoutError:
            raise Unfetched(f"no answer within {self.within:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            refused = error.__cause__
            raise Unfetched(str(refused) if isinstance(refused, Blocked) else type(error).__name__) from None

    async def _follow(self, url: httpx.URL, configured: httpx.URL, whose: str) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            _check(url, configured)
            answer = await self._ask(url, whose, is_named=_origin(url) != _origin(configured))
            if isinstance(answer, bytes):
                return answer
            there = httpx.URL(urljoin(str(url), answer))
            if _origin(there) != _origin(url):
                raise Unfetched("it redirects to another origin")
            url = there
        raise Unfetched("it redirects too often")

    async def _ask(self, url: httpx.URL, whose: str, is_named: bool) -> bytes | str:
        """Returns the body, or the URL that it moved to."""
        self._context = self._context or httpx.create_ssl_context()
        permit = partial(self.egress.permit, whose, is_named=is_named)
        client = HttpClient(
            ssl_context=self._context, connect_timeout=self.within / 2, route=Route(permit, self.egress.proxy)
        )
        try:
            reply = await client.exchange(url, _HEADERS, b"", "GET")
            if reply.status in _MOVED:
                return reply.headers.get(b"location", b"").decode("latin-1")
            if reply.status != 200:
                raise Unfetched(f"HTTP {reply.status}")
            body = bytearray()
            async for chunk in reply:
                body += chunk
                if len(body) > MAX_BYTES:
                    raise Unfetched(f"more than {MAX_BYTES} bytes")
            return bytes(body)
        finally:
            await client.aclose()


def _check(url: httpx.URL, configured: httpx.URL) -> None:
    """Plain HTTP is for what the operator configured so, nobody else can ask for it."""
    if url.scheme != "https" and _origin(url) != _origin(configured):
        raise Unfetched("the URL is not https")
    if url.userinfo or not url.host:
        raise Unfetched("not a URL of the usual form")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host.lower(), url.port or {"http": 80, "https": 443}.get(url.scheme)
