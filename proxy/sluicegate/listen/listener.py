"""What stands in front of MCP over HTTP: what is checked, in which order, and who goes where.

The order is the contract's: Host and Origin, size, credential, protocol form, and only then the message. It is
given one Handler and knows nothing of what is behind it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import count
from math import ceil
from secrets import token_hex
from time import perf_counter
from typing import Any, Final, Protocol

import anyio
from anyio.lowlevel import checkpoint

from sluicegate.http.addresses import counted_as
from sluicegate.http.forwarded_headers import ForwardedHeaders, is_forwarded
from sluicegate.http.hosts import MCP_PORT, HostOriginPolicy
from sluicegate.listen import streamable_http
from sluicegate.listen.auth import CredentialRefused, Identity, Principal
from sluicegate.listen.http_exchange import HttpExchange, error_body
from sluicegate.listen.http_request import BodyTooLarge, ClientGone, Headers
from sluicegate.listen.http_request import HttpRequest as HttpRequest
from sluicegate.listen.http_sse import MESSAGES, SSE, HttpSse
from sluicegate.listen.large_requests import LARGE, LargeRequests, UntilFree
from sluicegate.listen.large_requests import RequestRefused as TooMuch
from sluicegate.listen.legacy_http import LegacyHttp
from sluicegate.listen.owners import Owner
from sluicegate.listen.peer_forwarding import PeerForwarding
from sluicegate.listen.protected_resource_metadata import ProtectedResource
from sluicegate.listen.sessions import Sessions
from sluicegate.listen.settings import ListenSettings
from sluicegate.listen.toolset_paths import NO_TOOLSETS, ToolsetEntry, named_by
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Malformed, Request, Response, encode, read
from sluicegate.protocol.model import MODERN, SLUICE, Asker, Handler, Trail
from sluicegate.protocol.modern_client import is_modern
from sluicegate.runtime.loop_budget import client_budgets
from sluicegate.runtime.own_steps import OwnSteps

log = logging.getLogger(__name__)

_Serve = Callable[[HttpExchange, Principal], Awaitable[None]]
_Take = Callable[[HttpExchange, Principal, Any], Awaitable[None]]

_MODERN: Final = MODERN.encode()
_ALLOW: Final = [(b"allow", b"POST, GET, DELETE, OPTIONS")]
_ALLOW_POST: Final = [(b"allow", b"POST, OPTIONS")]
_SWEEP_EVERY: Final = 2.0

_PROCESS: Final = token_hex(6)
_numbers: Final = count(1)


def _new_id() -> str:
    """Unique across processes and restarts. A random id for each call would take a system call."""
    return f"{_PROCESS}-{next(_numbers):x}"


class Pages(Protocol):
    """What is served to browsers beside MCP: it authenticates people itself."""

    @property
    def serve(self) -> Callable[[HttpRequest], Awaitable[None]]: ...
    def is_at(self, path: str) -> bool: ...


class Authenticator:
    """Who sends a request: the principal of its credential, within the toolset of its path. `on_refused` is told of the
    address and the reason."""

    def __init__(
        self, identity: Identity, toolsets: ToolsetEntry, forwarded: ForwardedHeaders, resource: ProtectedResource,
        on_refused: Callable[[str, str], None] | None,
    ) -> None:  # fmt: skip
        self._identity, self._toolsets, self._forwarded = identity, toolsets, forwarded
        self._resource, self._on_refused = resource, on_refused

    def remembered(self, exchange: HttpExchange) -> Principal | None:
        """None where its credential has to be verified first."""
        head = exchange.head
        if head.duplicate == b"authorization":
            return None
        credential = head.get(b"authorization")
        if credential is not None:
            return self._identity.identify(credential, False, None)
        # Which way it came matters for nobody else, and takes a walk.
        address = exchange.peer.server[0] if exchange.peer.server else None
        return self._identity.identify(None, is_forwarded(head.headers), address)

    async def verified(self, exchange: HttpExchange) -> Principal | None:
        """None where it is refused, and has its answer."""
        found: Principal | CredentialRefused = CredentialRefused("credential")
        seconds = 0.0
        if exchange.head.duplicate != b"authorization":
            work = OwnSteps(self._identity.verify(exchange.head.get(b"authorization")))
            found, seconds = await work, work.seconds
        if isinstance(found, Principal):
            return found
        if self._on_refused is not None:
            self._on_refused(self._address(exchange), found.reason)
        status, text = (403, "Forbidden") if found.is_known else (401, "Unauthorized")
        await self.refuse(exchange, status, text, self._resource.challenge(exchange, found), seconds)
        return None

    async def refuse(
        self,
        exchange: HttpExchange,
        status: int,
        text: str,
        extra: Headers = [],  # noqa: B006 - never changed
        seconds: float = 0.0,
    ) -> None:
        """Its address pays for a refusal as a client does, so that a flood of them leaves the event loop to others. It
        waits for its turn after the verdict: nobody who is let in stands behind those who are not. `seconds` were taken
        by the verdict."""
        budget = client_budgets()[f"address {counted_as(self._address(exchange))}"]
        task = asyncio.current_task()
        if not (budget.is_unused() or exchange.peer.lost or task is None):
            exchange.peer.on_lost = task.cancel
            try:
                await budget.enter()
            except asyncio.CancelledError:  # whoever leaves pays for the verdict, too
                budget.charge(seconds)
                raise
            exchange.peer.on_lost = None
        work = OwnSteps(exchange.error(status, text, extra))
        await work
        budget.refused(seconds + work.seconds, max(seconds, work.longest))

    def _address(self, exchange: HttpExchange) -> str:
        return self._forwarded.client(exchange.client, exchange.head.headers)

    def again(self, exchange: HttpExchange, principal: Principal) -> Principal | None:
        """Who sends this request by now, after a wait; None where that credential is over."""
        now = self.remembered(exchange) or (principal if self._identity.is_current(principal) else None)
        return None if now is None else self.entered(exchange, now)

    def entered(self, exchange: HttpExchange, principal: Principal) -> Principal | None:
        """The principal with its toolset; None where the path names one that is not there for it. HTTP+SSE has none."""
        toolset = exchange.head.remembered.toolset
        return principal if toolset is None else self._toolsets.enter(principal, toolset)


class OwnerForwarding:
    """Has other workers or replicas serve what is theirs."""

    def __init__(
        self, peers: PeerForwarding, context: streamable_http.EndpointContext, policy: HostOriginPolicy
    ) -> None:
        self.peers, self._context, self._policy = peers, context, policy
        self._limits = context.settings.limits

    def begin(self, exchange: HttpExchange, principal: Principal) -> Awaitable[None] | None:
        """None where it is served here."""
        owner = self.peers.owners.of(exchange, principal.name)
        if owner is not None:
            return self._pass_on(exchange, principal, owner)
        exchange.peer.connection.unclaimed = None
        return None

    def resume(self, exchange: HttpExchange, principal: Principal, request: Request) -> Awaitable[None] | None:
        """The same of what goes on with an answer that its owner gave."""
        owner = self.peers.owners.holder(exchange, request.params)
        return None if owner is None else self._pass_on_again(exchange, principal, request, owner)

    async def _pass_on(self, exchange: HttpExchange, principal: Principal, owner: Owner) -> None:
        if exchange.peer.connection.is_from_peer:  # the other worker still has an older principal for it
            return await exchange.error(503, "the credential has just changed", [(b"retry-after", b"1")])
        if exchange.peer.connection.unclaimed is not None:
            return await self.peers.hand_over(exchange, owner)
        peer, limits, head = exchange.peer, self._limits, exchange.head
        if head.remembered.passed is None and head.remembered.toolset is not None and head.method == "POST":
            if b"origin" not in head and streamable_http.check_form(exchange) is None:  # to an endpoint of MCP
                head.remembered.passed = self._policy
        if peer.is_whole and peer.size <= LARGE:  # as most are: a context takes as long as all else here
            is_answered = await self._forward(exchange, principal, owner, peer.take_body(limits.max_request))
        else:
            async with streamable_http.unread(exchange, principal, self._context) as body:
                is_answered = await self._forward(exchange, principal, owner, body)
        if not is_answered:
            await exchange.error(404, "Session not found")  # it has ended: the client begins anew

    def _forward(self, exchange: HttpExchange, principal: Principal, owner: Owner, body: bytes) -> Awaitable[bool]:
        return self.peers.forward(exchange, owner, body, self._limits, self._context.large.unread, principal.name)

    async def _pass_on_again(
        self, exchange: HttpExchange, principal: Principal, request: Request, owner: Owner
    ) -> None:
        """Where that one has ended, it may be good here, too."""
        exchange.is_call = True  # its owner judges it
        if not await self._forward(exchange, principal, owner, encode(request)):
            await streamable_http.serve_modern(self._context, exchange, request, principal)


class Listener:
    """Serves requests. `run` belongs in a task beside it; `close` comes before the server stops accepting."""

    def __init__(
        self, handler: Handler, server_info: Json, identity: Identity, settings: ListenSettings,
        on_session_end: Callable[[str], None], on_refused: Callable[[str, str], None] | None = None,
        new_id: Callable[[], str] = _new_id, clock: Callable[[], float] = time.monotonic,
        on_abandoned: Callable[[str], None] = lambda id: None,
        on_sweep: Callable[[frozenset[str]], None] = lambda holders: None,
        until_free: UntilFree = lambda principal: 0.0, pages: Sequence[Pages] = (), peers: PeerForwarding | None = None,
        toolsets: ToolsetEntry = NO_TOOLSETS,
    ) -> None:  # fmt: skip
        """`pages` are for people. `peers`: other workers or replicas exist, and each serves what is its own. `toolsets`
        have paths of their own."""
        self._settings, self._identity = settings, identity
        self._policy = HostOriginPolicy(settings.names, MCP_PORT)
        large = LargeRequests(settings.limits, until_free)
        self._context = streamable_http.EndpointContext(
            partial(large.handle, handler), server_info, lambda: Trail(new_id()), on_abandoned, settings,
            streamable_http.StreamSlots(settings.limits.streams), large,
        )  # fmt: skip
        self._on_sweep, self._pages = on_sweep, pages
        self._peers = None if peers is None else OwnerForwarding(peers, self._context, self._policy)
        self._toolsets = toolsets
        self.sessions = Sessions(settings.sessions, self._context, on_session_end, clock)
        self._forwarded = ForwardedHeaders(settings.names)
        self._resource = ProtectedResource(settings, identity, self._forwarded, lambda: toolsets.is_used)
        self._callers = Authenticator(identity, toolsets, self._forwarded, self._resource, on_refused)
        self._legacy = LegacyHttp(self._context, self.sessions, self._callers.again)
        self._event_streams = HttpSse(self._context, self._forwarded, on_session_end)
        self._routes = self._lay_out()
        self._endpoints = frozenset(path for path, serve in self._routes.items() if serve == self._route)

    def _lay_out(self) -> dict[str, _Serve]:
        """What is where, with and without a slash at the end. Also under the public path, for proxies that leave it in
        place."""
        routes: dict[str, _Serve] = {self._settings.path: self._route}
        for prefix in ("", self._forwarded.beside):
            routes[prefix + SSE] = partial(self._uncalled, self._event_streams.open)
            routes[prefix + MESSAGES] = self._post_to_stream
        if (public := self._settings.names.public_path) is not None:
            routes = {public: self._route} | routes
        bare = {path: path.rstrip("/") for path in routes}
        return {form: routes[path] for path in routes for form in (path, bare[path] or "/", f"{bare[path]}/")}

    async def __call__(self, request: HttpRequest) -> None:
        """The boundary of one request: whatever goes wrong inside is its answer, and nobody else's trouble."""
        exchange = HttpExchange(request, self._settings.pace)
        try:
            await self._serve(exchange)
        except ClientGone:
            pass
        except BodyTooLarge:
            await exchange.error(413, "request too large")
        except TooMuch as refused:
            retry = (b"retry-after", b"%d" % ceil(refused.wait))
            await exchange.json(429, encode(Response(None, error=refused.error)), [retry])
        except Malformed as bad:
            await exchange.json(400, error_body(bad.text, bad.code, bad.id))
        except Exception:  # the client gets no details
            log.exception("a request failed: %r", exchange)
            await exchange.crash(error_body("Internal error", INTERNAL_ERROR))
        finally:
            exchange.disarm()

    async def run(self) -> None:
        while True:
            await anyio.sleep(_SWEEP_EVERY)
            for _ in self.sweep():
                await checkpoint()

    def sweep(self) -> Iterator[None]:
        """Ends what is too old, and what belongs to a credential that was revoked or has expired."""
        yield from self._context.streams.sweep(self._identity)
        yield from self.sessions.sweep(self._identity.is_known)
        self._context.large.unread.sweep()
        self._on_sweep(self._identity.holders())

    @property
    def open_sessions(self) -> int:
        return len(self.sessions) + len(self._event_streams)

    @property
    def open_streams(self) -> int:
        return len(self._context.streams)

    async def ask(self, session: str, method: str, params: Json, asker: Asker = SLUICE) -> Response | None:
        """Asks the client of that session something that belongs to no call; None where it cannot be asked."""
        if (stream := self._event_streams.find(session)) is not None:
            return await stream.ask(session, method, params, asker)
        return await self.sessions.ask(session, method, params, asker)

    def is_idle(self, session: str) -> bool:
        """Whether that session has no open stream and no open call. One over HTTP+SSE is its stream."""
        return self._event_streams.find(session) is None and self.sessions.is_idle(session)

    def close(self) -> None:
        """Ends in good order what would never end by itself: streams, and listening. Calls may finish."""
        self._context.streams.stop()
        self.sessions.close()
        if self._peers is not None:
            self._peers.peers.stop()

    def _serve(self, exchange: HttpExchange) -> Awaitable[None]:
        """No coroutine, as little as what follows: each of them is made, resumed at each wait of a call, and ended."""
        # Step 2 of docs/explanation/performance.md
        head = exchange.head
        if head.remembered.passed is self._policy:
            return self._enter(exchange, self._take_in)
        refusal = self._policy.check(head.headers, exchange.peer.server, head.path)
        if refusal is not None:
            return self._callers.refuse(exchange, refusal.status, refusal.text)
        origin = head.get(b"origin")
        serve = self._routes.get(head.path)
        if head.path in self._endpoints:
            head.remembered.toolset = ""
        elif serve is None and self._toolsets.is_used:
            head.remembered.toolset = toolset = named_by(head.path, self._endpoints)
            serve = None if toolset is None else self._route
        is_metadata = serve is None and self._resource.is_at(exchange)
        if serve is None and not is_metadata:
            for pages in self._pages:
                if pages.is_at(head.path):
                    return pages.serve(exchange.peer)  # without CORS: they are for nobody's script
            return self._callers.refuse(exchange, 404, "Not found")
        if head.method == "OPTIONS":
            asked = next((value for name, value in head.headers if name == b"access-control-request-headers"), None)
            return exchange.empty(204, [*_ALLOW, *self._policy.preflight(origin, asked)])
        if origin is not None:
            exchange.cors = self._policy.cors(origin)
        if serve is None:
            return self._resource.serve(exchange)
        if exchange.peer.declared > self._settings.limits.max_request:
            return self._callers.refuse(exchange, 413, "request too large")
        return self._enter(exchange, serve)

    def _enter(self, exchange: HttpExchange, serve: _Serve) -> Awaitable[None]:
        """Authenticates the request."""
        principal = self._callers.remembered(exchange)
        if principal is None:
            return self._verify(exchange, serve)
        return self._dispatch(exchange, principal, serve)

    async def _verify(self, exchange: HttpExchange, serve: _Serve) -> None:
        if (principal := await self._callers.verified(exchange)) is not None:
            await self._dispatch(exchange, principal, serve)

    def _dispatch(self, exchange: HttpExchange, principal: Principal, serve: _Serve) -> Awaitable[None]:
        """Has it served by its owner, which may be another process."""
        entered = self._callers.entered(exchange, principal)
        if entered is None:
            return self._uncalled(partial(_refuse, 404, "Not found", []), exchange, principal)  # as a path that is none
        peers = self._peers
        if peers is not None and (forwarded := peers.begin(exchange, entered)) is not None:
            return forwarded
        return serve(exchange, entered)

    def _route(self, exchange: HttpExchange, principal: Principal) -> Awaitable[None]:
        if exchange.head.method == "POST":
            return self._post(exchange, principal)
        if exchange.head.method == "DELETE" and self._legacy.has_session(exchange, principal):
            return self._serve_no_post(exchange, principal)  # it waits for nothing: what waits ends with it
        return self._uncalled(self._serve_no_post, exchange, principal)

    async def _uncalled(self, serve: _Serve, exchange: HttpExchange, principal: Principal) -> None:
        """What is no call for certain waits for its client's turn, too."""
        await self._context.large.enter(principal.name)
        await _paid(self._context.large, exchange, principal.name, serve(exchange, principal))

    def _serve_no_post(self, exchange: HttpExchange, principal: Principal) -> Awaitable[None]:
        method = exchange.head.method
        if method not in ("GET", "DELETE"):
            return exchange.error(405, "Method not allowed", _ALLOW)
        if streamable_http.version(exchange) == _MODERN:  # 2026-07-28 basic/transports/streamable-http: POST alone
            return exchange.error(405, "Method not allowed", _ALLOW_POST)
        if exchange.head.duplicate is not None:
            return exchange.error(400, "a header is given twice")
        return (self._legacy.get if method == "GET" else self._legacy.delete)(exchange, principal)

    def _post(self, exchange: HttpExchange, principal: Principal) -> Awaitable[None]:
        if (problem := streamable_http.check_form(exchange)) is not None:
            return self._uncalled(partial(_refuse, *problem, []), exchange, principal)
        if b"origin" not in exchange.head:
            exchange.head.remembered.passed = self._policy
        return self._take_in(exchange, principal)

    def _take_in(self, exchange: HttpExchange, principal: Principal) -> Awaitable[None]:
        peer, large = exchange.peer, self._context.large
        if peer.is_whole and streamable_http.is_small(peer) and large.may_enter(principal.name):
            return self._take(exchange, principal)
        return self._take_later(exchange, principal)

    async def _take_later(self, exchange: HttpExchange, principal: Principal, take: _Take | None = None) -> None:
        """Waits for the body. Its key may have been revoked since the head came, or may give other roles."""
        async with streamable_http.received(exchange, principal, self._context) as value:
            now = self._callers.again(exchange, principal)
            if now is None:
                challenge = self._resource.challenge(exchange, CredentialRefused("ended"))
                return await exchange.error(401, "Unauthorized", challenge)
            await self._begin(exchange, now, take or self._take_value, value, perf_counter() - exchange.spent)

    def _take(self, exchange: HttpExchange, principal: Principal) -> Awaitable[None]:
        # Step 3 of docs/explanation/performance.md
        since = perf_counter()
        value = streamable_http.read_json(exchange, principal, self._context)
        return self._begin(exchange, principal, self._take_value, value, since)

    def _begin(
        self, exchange: HttpExchange, principal: Principal, take: _Take, value: Any, since: float
    ) -> Awaitable[None]:
        """A call pays for itself where it is refused. Whatever else a request is, its client pays for it as for a
        refused call: no rate counts it, and it costs as much. Its work began then."""
        try:
            work = take(exchange, principal, value)
        except Malformed:
            self._context.large.refused(principal.name, perf_counter() - since)
            raise
        exchange.spent = perf_counter() - since
        return work if exchange.is_call else _paid(self._context.large, exchange, principal.name, work)

    def _take_value(self, exchange: HttpExchange, principal: Principal, value: Any) -> Awaitable[None]:
        by_header = streamable_http.version(exchange) == _MODERN
        if isinstance(value, list):
            if by_header:
                raise Malformed(-32600, "arrays are not accepted here")
            return self._legacy.batch(exchange, value, principal)
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
                if self._peers is not None:
                    if (forwarded := self._peers.resume(exchange, principal, message)) is not None:
                        return forwarded
                return streamable_http.serve_modern(self._context, exchange, message, principal)
            return exchange.empty(202)
        return self._legacy.post(exchange, message, principal)

    async def _post_to_stream(self, exchange: HttpExchange, principal: Principal) -> None:
        if exchange.head.method != "POST":
            await self._uncalled(partial(_refuse, 405, "Method not allowed", _ALLOW_POST), exchange, principal)
        elif (problem := streamable_http.check_form(exchange, takes_answer=False)) is not None:
            await self._uncalled(partial(_refuse, *problem, []), exchange, principal)
        else:
            await self._take_later(exchange, principal, self._event_streams.post)


def _refuse(status: int, text: str, headers: Headers, exchange: HttpExchange, principal: Principal) -> Awaitable[None]:
    return exchange.error(status, text, headers)


async def _paid(large: LargeRequests, exchange: HttpExchange, principal: str, work: Awaitable[None]) -> None:
    steps, spent = OwnSteps(work), exchange.spent
    try:
        await steps
    finally:
        if not exchange.is_call:
            large.refused(principal, spent + steps.seconds, max(spent, steps.longest))
