"""The admin port: health, metrics and the admin API, as a Starlette router made of the table of routes.

Probes and metrics need no credential; `/api/v1/` needs the operator's token, from this machine alone, or a client key,
and the right that the table names.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final
from urllib.parse import parse_qs

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from sluicegate.admin import approval_page as pages
from sluicegate.admin.approval_page import Page
from sluicegate.admin.credentials import bearer, header, is_loopback_peer, peer_of
from sluicegate.admin.endpoints import ENDPOINTS, AdminDeps, Answer, ApiRequest
from sluicegate.admin.response import AdminResponse, error_response, json_response, read_body
from sluicegate.admin.routes import API, JSON, MAX_BODY, MAX_QUERY, ROUTES, ApiRoute
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.http.hosts import ADMIN_PORT, HostOriginPolicy, ServedNames
from sluicegate.policy.csv_rows import written
from sluicegate.policy.rates import Windows
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Malformed
from sluicegate.protocol.model import Client
from sluicegate.runtime.reader_threads import asker
from sluicegate.store import StoreFailed
from sluicegate.store.keys import is_same

log = logging.getLogger(__name__)

REFUSALS_A_MINUTE: Final = 60
"""So many refusals of one client that lacks a right have a record each. The rest are counted in one record, as unknown
credentials are. Otherwise a client with a key and no right could fill the disk."""
_MAX_AREA: Final = 64
_DECIDING: Final = ("approvals", "secrets")
"""Areas of what approvers read before they decide. It waits for no search of the same client."""
_LOOPBACK: Final = ServedNames()


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Serves every method. Of a function, Starlette would answer other methods than it knows by itself."""

    answer: Callable[[Request], Awaitable[Answer]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self.answer(Request(scope, receive)))(scope, receive, send)


class AdminApplication:
    """Host, then Origin, then path and method, then the credential and the right: the order of the contract."""

    def __init__(self, operator_token: str, sources: AdminDeps, names: ServedNames = _LOOPBACK) -> None:
        self._token, self._sources = operator_token, sources
        self._scrape: asyncio.Future[tuple[bytes, str]] | None = None
        self._rendering = asyncio.Lock()
        self._refusals = Windows(REFUSALS_A_MINUTE, 60)
        self._policy = HostOriginPolicy(names, ADMIN_PORT)
        self._forwarded = ForwardedHeaders(names)
        paths: dict[str, list[ApiRoute]] = {}
        for one in ROUTES:
            paths.setdefault(one.path, []).append(one)
        self._router = Router(
            [Route(path, _Endpoint(partial(self._dispatch, rows))) for path, rows in paths.items()],
            redirect_slashes=False,
            default=_Endpoint(self._unknown),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._policy.check(scope["headers"], scope.get("server"), scope["path"])
        answer: ASGIApp = self._router if refused is None else error_response(refused.status, refused.text)
        try:
            await answer(scope, receive, send)
        except ClientDisconnect:
            return
        except StoreFailed as error:  # raised before an answer has begun: each is made whole first
            log.error("the store failed: %s", error)
            refusal = error_response(503, "Sluice cannot read or write its state: see the log and /readyz")
            await refusal(scope, receive, send)

    async def _dispatch(self, rows: Sequence[ApiRoute], request: Request) -> Answer:
        route = next((row for row in rows if request.method in row.methods), None)
        if route is None:
            allowed = ", ".join(chain.from_iterable(row.methods for row in rows))
            return error_response(405, f"served here: {allowed}", {"allow": allowed})
        return await (self._open(route, request) if route.is_open else self._api(route, request))

    async def _unknown(self, request: Request) -> Answer:
        """Whoever has no credential does not learn what the API has."""
        path = request.scope["path"]
        if not path.startswith(API):
            return error_response(404, "no such path")
        area = path.removeprefix(API).partition("/")[0][:_MAX_AREA]
        return await self._dispatch([ApiRoute(method="GET", path=path, operation="", summary="", area=area)], request)

    async def _open(self, route: ApiRoute, request: Request) -> Answer:
        if route.operation == "live":
            return json_response(200, {"status": "ok"})
        if route.operation == "ready":
            return await self._ready(request.scope)
        if route.operation == "metrics":
            return await self._metrics()
        return await _page(self._sources.page, request)  # the link is the credential

    async def _ready(self, scope: Scope) -> AdminResponse:
        reasons = self._sources.ready()
        status, word = (503, "not ready") if reasons else (200, "ready")
        if await self._may_see_reasons(scope):
            notes = self._sources.notes()
            return json_response(status, {"status": word, "reasons": reasons, **({"notes": notes} if notes else {})})
        return AdminResponse(status, b"", "text/plain")

    async def _may_see_reasons(self, scope: Scope) -> bool:
        """With a credential; without one from this machine, if it is no page that a foreign name led here."""
        if await self._identify(scope) is not None:
            return True
        return is_loopback_peer(scope) and self._policy.is_known(scope["headers"], scope.get("server"))

    async def _metrics(self) -> AdminResponse:
        if self._sources.metrics is None:
            return error_response(404, "metrics are off: see telemetry.metrics")
        if self._scrape is None:
            self._scrape = asyncio.ensure_future(self._render(self._sources.metrics))
        return AdminResponse(200, *await asyncio.shield(self._scrape))

    async def _render(self, metrics: Callable[[], Callable[[], tuple[bytes, str]]]) -> tuple[bytes, str]:
        """One at a time: the thread has the interpreter in turns with the event loop. Whoever asks meanwhile waits for
        the next one, and all of them get that."""
        async with self._rendering:
            self._scrape = None
            return await anyio.to_thread.run_sync(metrics())

    def _client(self, scope: Scope) -> Client | None:
        token = bearer(scope)
        if token is None:
            return None
        is_operator = is_loopback_peer(scope) and is_same(token, self._token)
        return self._sources.operator() if is_operator else self._sources.client_of(token)

    async def _identify(self, scope: Scope) -> Client | None:
        """Whoever asks, with the rights of the credential that they show. One that is nobody's is written down."""
        who, token = self._client(scope), bearer(scope)
        if who is not None or token is None:
            return who
        who, why = await self._sources.admit(token)
        if who is None:
            self._refused(scope, f"admin_{why}")
        return who

    def _refused(self, scope: Scope, why: str) -> None:
        if self._sources.refused is not None:
            self._sources.refused(self._forwarded.client(peer_of(scope), scope["headers"]), why)

    def _may(self, client: Client, route: ApiRoute) -> bool:
        return not route.area or self._sources.may(client, route.area, route.act)

    def _refusal(self, client: Client, route: ApiRoute, scope: Scope) -> AdminResponse | None:
        """None for who may ask: a row of the policy says so."""
        if self._may(client, route):
            return None
        who = client.principal
        if self._refusals.hit(who) > 0:
            self._refused(scope, "admin_denied")
        else:
            log.info("admin: %s without the right asked for admin:%s %s", who, route.area, route.act)
            self._sources.denied(who, route.area, route.act)
        row = written("p", who, "sluice", f"admin:{route.area}", route.act, "allow")
        text = f"{who} lacks the right admin:{route.area} {route.act} on sluice; a row gives it: {row}"
        return error_response(403, text)

    async def _judge(self, route: ApiRoute, scope: Scope) -> Client | AdminResponse:
        """Who asks, or why they may not."""
        who = await self._identify(scope)
        if who is not None:
            return self._refusal(who, route, scope) or who
        if bearer(scope) is None:
            self._refused(scope, "admin_none")
        needed = "the operator token, a client key or a token for admin_audience (clients.jwt.issuers) is needed"
        return error_response(401, needed, {"www-authenticate": "Bearer"})

    async def _api(self, route: ApiRoute, request: Request) -> Answer:
        scope, path, body = request.scope, request.scope["path"], b""
        who = await self._judge(route, scope)
        if not isinstance(who, AdminResponse) and route.method == "POST":
            read = await _json_body(request)
            if isinstance(read, AdminResponse):
                return read
            # It may have taken half a minute: the key may be revoked by now, or have lost the right.
            body, who = read, await self._judge(route, scope)
        if isinstance(who, AdminResponse):
            return who
        asker.set(f"{who.principal} {'decides' if route.area in _DECIDING else 'looks'}")
        query = scope.get("query_string", b"")
        if len(query) > MAX_QUERY:
            return error_response(400, "the query is too long")

        def now() -> Client | None:
            client = self._client(scope)
            is_theirs = client is not None and client.principal == who.principal and self._may(client, route)
            return client if is_theirs else None

        asked = ApiRequest(
            request, who, tuple(path.removeprefix(API).split("/")), parse_qs(query.decode("latin-1")), body, now
        )
        endpoint = ENDPOINTS.get(route.operation)
        try:
            return error_response(404, "no such path") if endpoint is None else await endpoint(self._sources, asked)
        except Malformed as problem:
            if problem.code == INTERNAL_ERROR:  # an answer that cannot be encoded
                raise
            return error_response(400, problem.text)


async def _json_body(request: Request) -> bytes | AdminResponse:
    """A page can send a form to any site, but no JSON and no DELETE without being asked for its Origin first."""
    if [kind.partition(";")[0].strip().lower() for kind in header(request.scope, "content-type")] != [JSON]:
        return error_response(415, "the body must be application/json")
    body = await read_body(request)
    return error_response(413, f"the body is larger than {MAX_BODY} bytes") if body is None else body


async def _page(page: Page, request: Request) -> AdminResponse:
    id = request.path_params["id"]
    if request.method == "GET":
        status, text = await page.get(id, request.scope.get("query_string", b"")[:MAX_QUERY].decode("latin-1"))
    else:
        status, text = await page.post(id, (await read_body(request) or b"").decode("utf-8", "replace"))
    return AdminResponse(status, pages.html(text), "text/html; charset=utf-8", pages.HEADERS)
