"""A careful GET of a small document that somebody else may have named: bounded in size, time, redirects and reach.

The address is resolved once, judged, and connected to as it is; Host and TLS keep the name. No cookies, no
credentials, no environment. A redirect leaves the origin never. Knows documents as bytes.
"""

import socket
import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import urljoin

import anyio
import httpx

from sluicegate.http.addresses import is_literal
from sluicegate.http.egress import Blocked, Egress

MAX_BYTES: Final = 256 * 1024
WITHIN: Final = 5.0
_MAX_REDIRECTS: Final = 3
_MAX_ADDRESSES: Final = 3
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "sluice"}


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
        except Blocked as refused:
            raise Unfetched(str(refused)) from None
        except TimeoutError:
            raise Unfetched(f"no answer within {self.within:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise Unfetched(type(error).__name__) from None

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
        if self.egress.proxy is not None:
            if is_literal(url.host):
                self.egress.permit(whose, url.host, [url.host], is_named=is_named)
            return await self._get(url, None)
        addresses = await self._resolve(url, whose, is_named)
        for address in addresses[:-1]:
            try:
                return await self._get(url, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._get(url, addresses[-1])

    async def _resolve(self, url: httpx.URL, whose: str, is_named: bool) -> Sequence[str]:
        found = await anyio.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(info[4][0]) for info in found)
        return self.egress.permit(whose, url.host, addresses, is_named=is_named)[:_MAX_ADDRESSES]

    async def _get(self, url: httpx.URL, address: str | None) -> bytes | str:
        """`sni_hostname` is also what the certificate is checked against."""
        there = url if address is None else url.copy_with(host=address)
        headers = {**_HEADERS, "host": url.netloc.decode("ascii")}
        timeout = httpx.Timeout(self.within, connect=self.within / 2)
        self._context = self._context or httpx.create_ssl_context()
        client = httpx.AsyncClient(verify=self._context, trust_env=False, timeout=timeout, proxy=self.egress.proxy)
        async with client, client.stream(
            "GET", there, headers=headers, extensions={"sni_hostname": url.host}
        ) as answer:  # fmt: skip
            if answer.status_code in _MOVED:
                return str(answer.headers.get("location", ""))
            if answer.status_code != 200:
                raise Unfetched(f"HTTP {answer.status_code}")
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise Unfetched(f"more than {MAX_BYTES} bytes")
            return bytes(body)


def _check(url: httpx.URL, configured: httpx.URL) -> None:
    """Plain HTTP is for what the operator configured so, nobody else can ask for it."""
    if url.scheme != "https" and _origin(url) != _origin(configured):
        raise Unfetched("the URL is not https")
    if url.userinfo or not url.host:
        raise Unfetched("not a URL of the usual form")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host.lower(), url.port or {"http": 80, "https": 443}.get(url.scheme)
