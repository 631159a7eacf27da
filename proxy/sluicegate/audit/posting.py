"""POSTs of records and checkpoints to places of the operator, from threads. Of an answer the status counts alone: a
place that sends more than that fills no memory, sets no cookie, and is not listened to for long.
"""

from __future__ import annotations  # httpx is imported at its first use

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import unquote_to_bytes

import anyio
import httpx

from sluicegate.http.client.connection import Reply
from sluicegate.http.client.pool import HttpClient

TIMEOUT: Final = 10.0
_SLOWEST: Final = 64 * 1024
"""Bytes a second of a line that is slow and good: a place has so much longer for a large body."""
_MAX_ANSWER: Final = 64 * 1024
"""Bytes of a body that are read, so that its connection can be used again."""


class Poster:
    """Belongs to one thread, and knows no proxy of the environment. A client of httpx would bound each read and no
    answer: a head that comes byte by byte, or answers of 1xx without end, would keep its thread."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = {name.lower().encode(): value.encode() for name, value in headers.items()}
        self._runner = asyncio.Runner()
        self._client: HttpClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def post(self, url: str, body: bytes) -> None:
        """Raises `httpx.HTTPError` unless the answer is a 2xx."""
        self._runner.run(self._post(url, body))

    def close(self) -> None:
        if self._client is not None:
            self._runner.run(self._client.aclose())
        self._runner.close()

    async def _post(self, address: str, body: bytes) -> None:
        try:
            url = httpx.URL(address)
            sent = {b"user-agent": b"sluice", **self._headers, **_basic(url)}
            with anyio.fail_after(TIMEOUT + len(body) / _SLOWEST):
                await asyncio.sleep(0)  # the loop stood still since the last body, and hears now who hung up
                reply = await self._opened(url).exchange(url, sent.items(), body)
            try:
                if not 200 <= reply.status < 300:
                    raise httpx.HTTPStatusError(
                        f"HTTP {reply.status}", request=httpx.Request("POST", url),
                        response=httpx.Response(reply.status),
                    )  # fmt: skip
                await _read(reply)
            finally:
                reply.close()
        except httpx.InvalidURL as error:
            raise httpx.UnsupportedProtocol(str(error)) from None
        except TimeoutError:
            raise httpx.ReadTimeout("the answer did not come in time") from None

    def _opened(self, url: httpx.URL) -> HttpClient:
        if self._client is None:
            context = httpx.create_ssl_context(trust_env=False) if url.scheme == "https" else None
            self._client = HttpClient(ssl_context=context, connect_timeout=TIMEOUT, max_idle=1)
        return self._client


async def _read(reply: Reply) -> None:
    """The body, which counts for nothing: of one that is long, slow or broken the connection is not used again."""
    size = 0
    with anyio.move_on_after(TIMEOUT), suppress(httpx.TransportError):
        async for part in reply:
            size += len(part)
            if size > _MAX_ANSWER:
                return


def _basic(url: httpx.URL) -> dict[bytes, bytes]:
    """The credentials of the URL (RFC 7617)."""
    if not url.userinfo:
        return {}
    user, _, password = url.userinfo.partition(b":")
    plain = b"%b:%b" % (unquote_to_bytes(user), unquote_to_bytes(password))
    return {b"authorization": b"Basic " + base64.b64encode(plain)}
