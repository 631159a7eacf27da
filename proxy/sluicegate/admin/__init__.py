"""The admin port: health, metrics and what is behind, as an ASGI application.

Knows no other room: what it shows and who may see it comes from functions it is given. Probes and metrics need no
credential; `/api/v1/` needs the operator's token, from this machine alone, or a client key, and the right.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import parse_qs

import anyio

from sluicegate.admin import approval_page as pages
from sluicegate.admin import server_actions
from sluicegate.admin.approval_page import Page
from sluicegate.admin.approvals import ApprovalsApi
from sluicegate.admin.audit import AuditHeads
from sluicegate.admin.audit import show as show_head
from sluicegate.admin.credentials import Scope, bearer, header, is_loopback_peer, peer_of
from sluicegate.admin.peers import CHANNEL
from sluicegate.admin.pins import PinsApi, accept, show
from sluicegate.admin.response import (
    JSON,
    MAX_BODY,
    AdminResponse,
    Application,
    EventStreamResponse,
    Receive,
    error_response,
    json_response,
    read_body,
)
from sluicegate.admin.response import application as asgi_application
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.http.hosts import ADMIN_PORT, HostOriginPolicy, ServedNames
from sluicegate.policy.csv_rows import written
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store.keys import is_same

log = logging.getLogger(__name__)

_PROBES: Final = ADMIN_PORT.any_host
_API: Final = "/api/v1/"
_QUEUE: Final = ("approvals", "grants")
_OPERATOR: Final = "local"  # whom the operator's token stands for, in the policy as elsewhere
MAX_QUERY: Final = 4_096


@dataclass(frozen=True, slots=True)
class AdminSettings:
    operator_token: str
    names: ServedNames = field(default_factory=ServedNames)


async def nobody(credential: str) -> tuple[None, str]:
    """Only who is known at once gets in."""
    return None, "credential"


@dataclass(frozen=True, slots=True)
class AdminDeps:
    """What the admin port can tell, as functions."""

    ready: Callable[[], list[str]]  # why Sluice is not ready; nothing: it is
    metrics: Callable[[], Callable[[], tuple[bytes, str]]] | None
    """How things stand, to be rendered in a worker thread as text and content type; None: not shown."""
    describe_servers: Callable[[], Awaitable[list[Json]]]
    list_tools: Callable[[str], Awaitable[list[Json] | None]]  # as that client sees them; None: no such client
    principal_of: Callable[[str], str | None]  # whose credential this is, as far as it is known without waiting
    may: Callable[[str, str, str], bool]  # whether a principal may read or write: servers, tools, approvals, ...
    change_server: server_actions.ChangeServer | None = None
    pins: PinsApi | None = None  # None: nothing is pinned
    approvals: ApprovalsApi | None = None  # None: nobody is asked anything
    audit: AuditHeads | None = None
    denied: Callable[[str, str, str], None] = lambda who, area, act: None  # who had no right
    admit: Callable[[str], Awaitable[tuple[str | None, str]]] = nobody  # the same after a look, or a word for why not
    refused: Callable[[str, str], None] | None = None  # whose credential was none: an address and a word
    page: Page | None = None  # None: nobody is sent a link
    facts: Callable[[str, str, str], Awaitable[Json | str]] | None = None
    """What an explanation has to know: client, method and target to the facts, or to why there are none."""
    notes: Callable[[], list[str]] = list  # what an operator should know although Sluice is ready


def application(settings: AdminSettings, sources: AdminDeps) -> Application:
    return asgi_application(_Admin(settings, sources).answer)


def _methods(path: str) -> tuple[str, ...]:
    """What may be done at a path."""
    if path.startswith(pages.PATH):
        return "GET", "POST"
    match path.removeprefix(_API).split("/"):
        case ["pins"]:
            return "GET", "HEAD", "POST"
        case parts if server_actions.is_action(tuple(parts)):
            return ("POST",)
        case ["approvals", _, "decisions" | "cancel" | "reveal"]:
            return ("POST",)
        case ["grants", _]:
            return "GET", "HEAD", "DELETE"
    return "GET", "HEAD"


class _Admin:
    def __init__(self, settings: AdminSettings, sources: AdminDeps) -> None:
        self._token, self._sources = settings.operator_token, sources
        self._policy = HostOriginPolicy(settings.names, ADMIN_PORT)
        self._forwarded = ForwardedHeaders(settings.names)

    async def answer(self, scope: Scope, receive: Receive) -> AdminResponse | EventStreamResponse:
        """Host, then Origin, then path and method, then the credential: the order of the contract."""
        path, method = scope["path"], scope["method"]
        refused = self._policy.check(scope["headers"], scope.get("server"), path)
        if refused is not None:
            return error_response(refused.status, refused.text)
        is_page = path.startswith(pages.PATH) and self._sources.page is not None
        if path not in _PROBES and not path.startswith(_API) and not is_page:
            return error_response(404, "no such path")
        if method not in (allowed := _methods(path)):
            return error_response(
                405, f"served here: {', '.join(allowed)}", (b"allow", ", ".join(allowed).encode("ascii"))
            )
        if path in _PROBES:
            return await self._probe(scope, path)
        if self._sources.page is not None and is_page:  # the link is the credential
            return await self._page(scope, receive, self._sources.page)
        who = await self._known(scope)
        if who is None:
            if bearer(scope) is None:
                self._refused(scope, "admin_none")
            return error_response(401, "the operator token or a client key is needed", (b"www-authenticate", b"Bearer"))
        if path == _API + "me" and method in ("GET", "HEAD"):
            return json_response(200, {"principal": who})
        is_write = method in ("POST", "DELETE")
        if refusal := self._refusal(who, path, is_write):
            return refusal
        return await (self._write(scope, receive, who) if is_write else self._api(scope, path, who))

    # ------------------------------------------------------------ probes

    async def _probe(self, scope: Scope, path: str) -> AdminResponse:
        if path == "/livez":
            return json_response(200, {"status": "ok"})
        if path == "/metrics":
            if self._sources.metrics is None:
                return error_response(404, "metrics are off: see telemetry.metrics")
            body, kind = await anyio.to_thread.run_sync(self._sources.metrics())
            return AdminResponse(200, body, kind)
        reasons = self._sources.ready()
        status, word = (503, "not ready") if reasons else (200, "ready")
        if await self._may_see_reasons(scope):
            notes = self._sources.notes()
            return json_response(status, {"status": word, "reasons": reasons, **({"notes": notes} if notes else {})})
        return AdminResponse(status, b"", "text/plain")

    async def _may_see_reasons(self, scope: Scope) -> bool:
        """With a credential; without one from this machine, if it is no page that a foreign name led here."""
        if await self._known(scope) is not None:
            return True
        return is_loopback_peer(scope) and self._policy.is_known(scope["headers"], scope.get("server"))

    async def _page(self, scope: Scope, receive: Receive, page: Page) -> AdminResponse:
        id = scope["path"].removeprefix(pages.PATH)
        if scope["method"] == "GET":
            query = scope.get("query_string", b"")
            status, text = await page.get(id, query[:MAX_QUERY].decode("latin-1"))
        else:
            body = await read_body(receive)
            status, text = await page.post(id, (body or b"").decode("utf-8", "replace"))
        return AdminResponse(status, pages.html(text), "text/html; charset=utf-8", pages.HEADERS)

    # ------------------------------------------------------------ credentials

    def _principal(self, scope: Scope) -> str | None:
        token = bearer(scope)
        if token is None:
            return None
        is_operator = is_loopback_peer(scope) and is_same(token, self._token)
        return _OPERATOR if is_operator else self._sources.principal_of(token)

    async def _known(self, scope: Scope) -> str | None:
        """Whoever asks. A credential that is nobody's is written down."""
        who, token = self._principal(scope), bearer(scope)
        if who is not None or token is None:
            return who
        who, why = await self._sources.admit(token)
        if who is None:
            self._refused(scope, f"admin_{why}")
        return who

    def _refused(self, scope: Scope, why: str) -> None:
        if self._sources.refused is not None:
            self._sources.refused(self._forwarded.client(peer_of(scope), scope["headers"]), why)

    def _refusal(self, who: str, path: str, is_write: bool) -> AdminResponse | None:
        """None for who may ask: a row of the policy says so."""
        area, act = path.removeprefix(_API).partition("/")[0], "write" if is_write else "read"
        if area == "approvals" and path.endswith("/reveal"):
            area, act = "secrets", "read"
        if self._sources.may(who, area, act):
            return None
        log.info("admin: %s without the right asked for %s", who, path)
        self._sources.denied(who, area, act)
        row = written("p", who, "sluice", f"admin:{area}", act, "allow")
        return error_response(403, f"{who} lacks the right admin:{area} {act} on sluice; a row gives it: {row}")

    # ------------------------------------------------------------ /api/v1/

    async def _api(self, scope: Scope, path: str, who: str) -> AdminResponse | EventStreamResponse:
        if path == _API + "servers":
            return json_response(200, {"servers": await self._sources.describe_servers()})
        if path == _API + "audit/head":
            return json_response(*show_head(self._sources.audit))
        query = scope.get("query_string", b"")
        if len(query) > MAX_QUERY:
            return error_response(400, "the query is too long")
        values = parse_qs(query.decode("latin-1"))
        if path == _API + "tools":
            return await self._tools(values)
        if path == _API + "pins" and self._sources.pins is not None:
            return json_response(*show(self._sources.pins, values))
        if path == _API + "policy/facts" and self._sources.facts is not None:
            return await self._facts(values, self._sources.facts)
        parts = tuple(path.removeprefix(_API).split("/"))
        if parts[0] in _QUEUE and self._sources.approvals is not None:
            if parts == ("approvals", "events"):
                return EventStreamResponse(self._sources.approvals.events(who, partial(self._may_go_on, scope, who)))
            return json_response(*await self._sources.approvals.get(parts, values, who))
        return error_response(404, "no such path")

    def _may_go_on(self, scope: Scope, who: str) -> bool:
        return self._principal(scope) == who and self._sources.may(who, "approvals", "read")

    async def _write(self, scope: Scope, receive: Receive, who: str) -> AdminResponse:
        """A page can send a form to any site, but no JSON and no DELETE without being asked for its Origin first."""
        parts = tuple(scope["path"].removeprefix(_API).split("/"))
        if scope["method"] == "DELETE":
            approvals = self._sources.approvals
            return (
                error_response(404, "no such path")
                if approvals is None
                else json_response(*await approvals.delete(parts, who))
            )
        if [kind.partition(";")[0].strip().lower() for kind in header(scope, "content-type")] != [JSON]:
            return error_response(415, "the body must be application/json")
        body = await read_body(receive)
        if body is None:
            return error_response(413, f"the body is larger than {MAX_BODY} bytes")
        if parts == ("pins",) and self._sources.pins is not None:
            return json_response(*await accept(self._sources.pins, body, who))
        if server_actions.is_action(parts) and self._sources.change_server is not None:
            return json_response(*await server_actions.change(self._sources.change_server, parts, body, who))
        if self._sources.approvals is None:
            return error_response(404, "no such path")
        keys = header(scope, "idempotency-key")
        if len(keys) > 1:
            return error_response(400, "one Idempotency-Key at most")
        channel = scope.get(CHANNEL, "api")
        return json_response(*await self._sources.approvals.post(parts, body, keys[0] if keys else "", who, channel))

    async def _facts(
        self, values: dict[str, list[str]], find: Callable[[str, str, str], Awaitable[Json | str]]
    ) -> AdminResponse:
        if set(values) != {"as", "method", "target"} or any(len(given) != 1 for given in values.values()):
            return error_response(400, "the query is ?as=ID&method=METHOD&target=TARGET, each once")
        found = await find(values["as"][0], values["method"][0], values["target"][0])
        return error_response(400, found) if isinstance(found, str) else json_response(200, found)

    async def _tools(self, values: dict[str, list[str]]) -> AdminResponse:
        clients = values.get("as", ["local"])
        if set(values) - {"as"} or len(clients) != 1:
            return error_response(400, "the query is ?as=ID, once, or nothing")
        tools = await self._sources.list_tools(clients[0])
        return (
            error_response(404, "no such client")
            if tools is None
            else json_response(200, {"as": clients[0], "tools": tools})
        )
