"""TLS at a port: its files, and what a connection is until its handshake has ended. Knows no HTTP.

The loop's own TLS tells us of a connection after the handshake. Whoever begins none would be counted nowhere, and hold
a file for a minute. So the loop accepts plain TCP, and the handshake begins once the connection has been counted.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sluicegate.listen.http1 import Http1


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. With `ca` whoever connects shows a certificate that it signed. Both contexts raise `OSError`, which
    `ssl.SSLError` is, where a file cannot be used."""

    cert: Path
    key: Path
    ca: Path | None

    def to_clients(self) -> ssl.SSLContext:
        """For connections that we accept."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
        context.load_cert_chain(self.cert, self.key)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # Python 3.13 wants more of certificates than RFC 5280 does of those that one's own CA signs.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def to_peers(self) -> ssl.SSLContext:
        """For connections to others."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context


class TlsHandshake(asyncio.Protocol):
    """A connection that was accepted, until it is encrypted. `connection` counts it, and ends it at its deadline, or
    where another one needs its place, as one without a request."""

    def __init__(self, connection: Http1, context: ssl.SSLContext) -> None:
        self._connection, self._context = connection, context
        self._read, self._is_lost = b"", False
        self._running: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.accepted(transport)

    def data_received(self, data: bytes) -> None:
        """The first bytes begin the handshake, and are part of it: who is silent costs no memory for TLS, 50 KB. After
        it, what came with its end is a request."""
        self._read += data
        if self._running is None:
            self._running = self._connection.loop.create_task(self._shake(self._connection.transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._connection.connection_lost(exc)

    def shutdown(self) -> None:
        self._connection.shutdown()

    async def _shake(self, plain: asyncio.Transport) -> None:
        if plain.is_closing():
            return
        loop = self._connection.loop
        loop.call_soon(_feed, plain, self._read)
        self._read = b""
        try:
            encrypted = await loop.start_tls(plain, self, self._context, server_side=True)
        except OSError:
            encrypted = None  # no TLS, no certificate that we ask for, or nobody is there any more
        if encrypted is None or plain.is_closing():
            self.connection_lost(None)
            return
        encrypted.set_protocol(self._connection)
        self._connection.opened(encrypted)
        if self._read:
            self._connection.data_received(self._read)


def _feed(plain: asyncio.Transport, data: bytes) -> None:
    """Gives the loop's TLS, right before it begins its handshake, what was read before it was there."""
    tls = cast(asyncio.BufferedProtocol, plain.get_protocol())
    while data and not plain.is_closing():
        buffer = memoryview(tls.get_buffer(len(data)))
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        tls.buffer_updated(taken)
        data = data[taken:]
