"""One HTTP/1.1 connection: uvicorn's protocol with the bounds that it lacks.

uvicorn has no deadline for receiving a request, takes any amount of headers, no Host or two, and lets trailers
grow the header list after it was handed on. Middleware is too late for all of these. Knows HTTP and no MCP.
"""

import asyncio
import re
from collections import deque
from typing import Any, ClassVar

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from proxy.listen.exchange import EXTENSION, Peer, error_body
from proxy.listen.settings import Wire

# RFC 9110 7.2: uri-host [":" port]; a slash, question mark or hash would move the path of a URL built from it.
_AUTHORITY = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]+")
_MAX_PIPELINED = 8


class WirePeer(Peer):
    """The client of one request on a real connection."""

    __slots__ = ("_connection",)

    def __init__(self, connection: "Http1") -> None:
        super().__init__()
        self._connection = connection

    @property
    def congested(self) -> bool:
        return self._connection.flow.write_paused

    def abort(self) -> None:
        self._connection.transport.abort()


class _Refused(Exception):
    """Leaves the parser from inside one of its callbacks; the connection knows the answer."""


class Http1(HttpToolsProtocol):
    wire: ClassVar[Wire] = Wire()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._peers: deque[WirePeer] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._refusal = (400, "not a valid HTTP/1.1 request")
        self._receiving = True
        self._headed = self._progressed = self._extended = self._deaf = False
        self._hosts = self._overhead = self._unheaded = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.wire.write_buffer)
        self._deadline = self.loop.call_later(self.wire.head_deadline, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        for peer in self._peers:
            peer.lose()

    # ------------------------------------------------------------ bytes in

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._progressed = False
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(*self._refusal)
            return
        if self._receiving:
            self._await_rest(len(data))

    def _await_rest(self, size: int) -> None:
        """The usual request comes whole and needs no timer; this one did not."""
        if not self._progressed:  # head, trailers, chunk extensions: what the parser may be holding unseen
            self._unheaded += size
            if self._unheaded > self.wire.headers:
                self._refuse(431, "headers too large")
                return
        if self._deadline is None:
            self._extended = self._headed
            wait = self.wire.request_deadline if self._headed else self.wire.head_deadline
            self._deadline = self.loop.call_later(wait, self._too_late)

    def _too_late(self) -> None:
        """Absolute: a drip of bytes does not move it. Where we stopped reading, the peer is not to blame."""
        self._deadline = None
        rest = self.wire.request_deadline - self.wire.head_deadline
        if self.flow.read_paused:
            self._deadline = self.loop.call_later(self.wire.request_deadline, self._too_late)
        elif self._headed and not self._extended:
            self._extended = True
            self._deadline = self.loop.call_later(rest, self._too_late)
        else:
            self._refuse(408, "the request took too long")

    def _refuse(self, status: int, text: str) -> None:
        """An answer if none is under way, then the end of the connection. The peer may still be talking: closing
        over unread bytes resets the connection and would take the answer with it, so we listen on, deaf."""
        if self._deaf or self.transport.is_closing():
            return
        self._deaf = True
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or not self.cycle.more_body:
                self.cycle.keep_alive = False  # what came after a whole request is not that one's fault
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = error_body(text)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self.wire.linger, self.transport.abort)

    def _leave(self, status: int, text: str) -> _Refused:
        self._refusal = (status, text)
        return _Refused(text)

    # ------------------------------------------------------------ parser callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._receiving = True
        self._headed = self._extended = False
        self._hosts = self._overhead = self._unheaded = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._overhead += len(name) + len(value) + 4
        if self._overhead > self.wire.headers:
            raise self._leave(431, "headers too large")
        if self._headed:
            return  # a trailer: nobody here may mistake it for a header
        name = name.lower()
        if b"_" in name:  # some gateways read Mcp_Name as Mcp-Name
            raise self._leave(400, "header names must not have underscores")
        if name == b"host":
            self._hosts += 1
            if not _AUTHORITY.fullmatch(value):
                raise self._leave(400, "malformed Host header")
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.wire.headers:
            raise self._leave(431, "request target too long")

    def on_headers_complete(self) -> None:
        if self._hosts != 1:
            raise self._leave(400, "exactly one Host header is required")
        if not self.url.startswith(b"/"):  # absolute-form would bring a second, unchecked authority
            raise self._leave(400, "the request target must be a path")
        if self.parser.should_upgrade():  # the parser would give the body away as another protocol's bytes
            raise self._leave(400, "no protocol to upgrade to")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise self._leave(400, "too many requests at once on one connection")
        self._headed = True
        peer = WirePeer(self)
        self._peers.append(peer)
        self.scope["extensions"] = {EXTENSION: peer}  # type: ignore[dict-item]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._receiving = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # ------------------------------------------------------------ bytes out

    def on_response_complete(self) -> None:
        self._peers.popleft()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.wire.stall, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
