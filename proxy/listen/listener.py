"""What stands in front of MCP over HTTP: what is checked, in which order, and who goes where.

The order is the contract's: Host and Origin, size, credential, protocol form, and only then the message. It is
given one Handler and knows nothing of what is behind it.
"""

import time
from collections.abc import Awaitable, Callable
from itertools import count
from secrets import token_hex
from typing import Final

import anyio

from proxy.call import MODERN, Client, Emit, Handler
from proxy.era.modern_client import is_modern
from proxy.listen.exchange import Exchange
from proxy.listen.gate import Gate
from proxy.listen.http import Edge, Streams, check_form, guarded, read_json, serve_modern, version
from proxy.listen.identity import Identity, Principal
from proxy.listen.legacy import Legacy
from proxy.listen.listening import Listening
from proxy.listen.request import Request as HttpRequest
from proxy.listen.sessions import Sessions
from proxy.listen.settings import Settings
from proxy.listen.tasks import Tasks
from proxy.message import Json, Malformed, Request, Response, read

_MODERN: Final = MODERN.encode()
_ALLOW: Final = [(b"allow", b"POST, GET, DELETE, OPTIONS")]
_ALLOW_POST: Final = [(b"allow", b"POST, OPTIONS")]
_CHALLENGE: Final = [(b"www-authenticate", b"Bearer")]
_SWEEP_EVERY: Final = 2.0


_PROCESS: Final = token_hex(6)
_numbers: Final = count(1)


def _new_id() -> str:
    """Unique beyond this process and its clock. A random one for each call is a system call, 2 us."""
    return f"{_PROCESS}-{next(_numbers):x}"


class Listener:
    """Serves requests. `run` belongs in a task beside it; `close` comes before the server stops accepting."""

    def __init__(
        self,
        handler: Handler,
        server_info: Json,
        identity: Identity,
        settings: Settings,
        on_session_end: Callable[[str], None],
        on_refused: Callable[[str, str], None] | None = None,
        new_id: Callable[[], str] = _new_id,
        clock: Callable[[], float] = time.monotonic,
        on_abandoned: Callable[[str], None] = lambda id: None,
    ) -> None:
        self._settings, self._identity, self._on_refused = settings, identity, on_refused
        self._gate = Gate(settings.names)
        self._edge = Edge(handler, server_info, new_id, settings, Streams(settings.limits.streams), on_abandoned)
        self._tasks = Tasks()
        self.sessions = Sessions(settings.sessions, on_session_end, clock, self._listen)
        self._legacy = Legacy(self._edge, self.sessions)

    def __repr__(self) -> str:
        return f"Listener({self._settings.path} {len(self.sessions)} sessions)"

    def __call__(self, request: HttpRequest) -> Awaitable[None]:
        return guarded(Exchange(request, self._settings.pace), self._serve)

    async def run(self) -> None:
        while True:
            await anyio.sleep(_SWEEP_EVERY)
            self.sweep()

    def sweep(self) -> None:
        """Ends what is too old, and what belongs to a key that was revoked or has expired."""
        current = self._identity.current()
        self.sessions.sweep(current)
        self._edge.streams.sweep(current)

    def close(self) -> None:
        """Ends in good order what would never end by itself: streams, and listening. Calls may finish."""
        self._edge.streams.stop()
        self.sessions.close()

    def _listen(self, client: Client, tell: Emit) -> Listening:
        return Listening(self._edge.handler, client, self._edge.trail, tell, self._tasks)

    # ------------------------------------------------------------ the order of checks

    async def _serve(self, exchange: Exchange) -> None:
        head = exchange.head
        host, origin = head.get(b"host"), head.get(b"origin")
        if exchange.duplicate in (b"host", b"origin"):
            await exchange.error(400 if exchange.duplicate == b"host" else 403, "given twice")
            return
        refusal = self._gate.check(host, origin, exchange.server)
        if refusal is not None:
            await exchange.error(refusal.status, refusal.text)
            return
        if exchange.path != self._settings.path:
            await exchange.error(404, "Not found")
            return
        if exchange.method == "OPTIONS":
            asked = next((value for name, value in exchange.headers if name == b"access-control-request-headers"), None)
            await exchange.empty(204, [*_ALLOW, *self._gate.preflight(origin, asked)])
            return
        if origin is not None:
            exchange.cors = self._gate.cors(origin)
        if _declared(head.get(b"content-length")) > self._settings.limits.max_request:
            await exchange.error(413, "request too large")
            return
        principal = self._principal(exchange)
        if principal is None:
            if self._on_refused is not None:
                self._on_refused(exchange.client, "credential" if b"authorization" in exchange.head else "none")
            await exchange.error(401, "Unauthorized", _CHALLENGE)
            return
        await self._route(exchange, principal)

    def _principal(self, exchange: Exchange) -> Principal | None:
        if exchange.duplicate == b"authorization":
            return None
        credential = exchange.head.get(b"authorization")
        forwarded = credential is None and exchange.forwarded  # it matters for nobody else, and takes a walk
        return self._identity.identify(credential, forwarded, exchange.server[0] if exchange.server else None)

    async def _route(self, exchange: Exchange, principal: Principal) -> None:
        method = exchange.method
        if method == "POST":
            await self._post(exchange, principal)
        elif method not in ("GET", "DELETE"):
            await exchange.error(405, "Method not allowed", _ALLOW)
        elif version(exchange) == _MODERN:  # 2026-07-28 basic/transports/streamable-http: POST alone
            await exchange.error(405, "Method not allowed", _ALLOW_POST)
        elif exchange.duplicate is not None:
            await exchange.error(400, "a header is given twice")
        else:
            await (self._legacy.get if method == "GET" else self._legacy.delete)(exchange, principal)

    async def _post(self, exchange: Exchange, principal: Principal) -> None:
        problem = check_form(exchange)
        if problem is not None:
            await exchange.error(*problem)
            return
        value = await read_json(exchange, self._settings)
        by_header = version(exchange) == _MODERN
        if isinstance(value, list):
            if by_header:
                raise Malformed(-32600, "arrays are not accepted here")
            await self._legacy.batch(exchange, value, principal)
            return
        try:
            message = read(value)
        except Malformed:
            self._legacy.spoil(exchange, value, principal)
            raise
        if isinstance(message, Response):
            if by_header:
                raise Malformed(-32600, "a client sends no responses in this revision")
        elif by_header or is_modern(message):
            if isinstance(message, Request):
                await serve_modern(self._edge, exchange, message, principal)
            else:
                await exchange.empty(202)
            return
        await self._legacy.post(exchange, message, principal)


def _declared(length: bytes | None) -> int:
    return int(length) if length and length.isdigit() else 0
