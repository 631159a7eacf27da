"""The admin port: health, metrics and what is behind, as an ASGI application.

Knows no other room: what it shows and who may see it comes from functions it is given. Probes and metrics need no
credential; `/api/v1/` needs the operator's token, from this machine alone, or a client key, and the right.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

import anyio

from proxy.admin.access import Host, Scope, bearer, header, host_of, is_known_host, is_known_origin, is_loopback_peer
from proxy.admin.pins import Pins, accept, show
from proxy.message import Json
from proxy.store.keys import is_same

log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_PROBES: Final = frozenset({"/livez", "/readyz", "/metrics"})
_API: Final = "/api/v1/"
_WRITABLE: Final = frozenset({_API + "pins"})
_OPERATOR: Final = "local"  # whom the operator's token stands for, in the policy as elsewhere
_JSON: Final = "application/json"
MAX_QUERY: Final = 4_096
MAX_BODY: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Hosts are `name` or `name:port`, origins as browsers write them."""

    operator_token: str
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Sources:
    """What the admin port can tell, as functions."""

    ready: Callable[[], list[str]]  # why Sluice is not ready; nothing: it is
    metrics: Callable[[], tuple[bytes, str]] | None  # text and content type, in a worker thread; None: not shown
    describe_servers: Callable[[], list[Json]]
    list_tools: Callable[[str], Awaitable[list[Json] | None]]  # as that client sees them; None: no such client
    principal_of: Callable[[str], str | None]  # whose key a credential is
    may: Callable[[str, str, str], bool]  # whether a principal may read or write: servers, tools, approvals, ...
    pins: Pins | None = None  # None: nothing is pinned
    notes: Callable[[], list[str]] = list  # what an operator should know although Sluice is ready


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    kind: str = _JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


def _json(status: int, value: Any, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer(status, json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n", headers=headers)


def _error(status: int, text: str, *headers: tuple[bytes, bytes]) -> Answer:
    return _json(status, {"error": text}, *headers)


def application(settings: Settings, sources: Sources) -> Application:
    """The ASGI callable. Anything but HTTP is left alone."""
    admin = _Admin(settings, sources)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _send(send, await admin.answer(scope, receive), with_body=scope["method"] != "HEAD")

    return app


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None for one that is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


async def _send(send: Send, answer: Answer, with_body: bool) -> None:
    headers = [
        (b"content-type", answer.kind.encode("ascii")),
        (b"content-length", str(len(answer.body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if with_body else b""})


class _Admin:
    def __init__(self, settings: Settings, sources: Sources) -> None:
        self._token, self._sources = settings.operator_token, sources
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(origin.lower() for origin in settings.allowed_origins)

    async def answer(self, scope: Scope, receive: Receive) -> Answer:
        """Host, then Origin, then path and method, then the credential: the order of the contract."""
        path = scope["path"]
        host = host_of(scope)
        if host is None:
            return _error(400, "one well-formed Host header is needed")
        # Probes come from orchestrators, under whatever name or address they use.
        if path not in _PROBES and not is_known_host(scope, host, self._hosts):
            return _error(421, "this Host is not served here: add it to listen.allowed_hosts")
        if not is_known_origin(scope, self._origins):
            return _error(403, "this Origin may not ask")
        if path not in _PROBES and not path.startswith(_API):
            return _error(404, "no such path")
        is_post = scope["method"] == "POST" and path in _WRITABLE
        if scope["method"] not in ("GET", "HEAD") and not is_post:
            return _error(405, "only GET is served here", (b"allow", b"GET, HEAD"))
        if path in _PROBES:
            return await self._probe(scope, path, host)
        who = self._principal(scope)
        if who is None:
            return _error(401, "the operator token or a client key is needed", (b"www-authenticate", b"Bearer"))
        return self._refusal(who, path, is_post) or (
            await self._post(scope, receive, who) if is_post else await self._api(scope, path)
        )

    # ------------------------------------------------------------ probes

    async def _probe(self, scope: Scope, path: str, host: Host) -> Answer:
        if path == "/livez":
            return _json(200, {"status": "ok"})
        if path == "/metrics":
            if self._sources.metrics is None:
                return _error(404, "metrics are off: see telemetry.metrics")
            body, kind = await anyio.to_thread.run_sync(self._sources.metrics)
            return Answer(200, body, kind)
        reasons = self._sources.ready()
        status, word = (503, "not ready") if reasons else (200, "ready")
        if self._may_see_reasons(scope, host):
            notes = self._sources.notes()
            return _json(status, {"status": word, "reasons": reasons, **({"notes": notes} if notes else {})})
        return Answer(status, b"", "text/plain")

    def _may_see_reasons(self, scope: Scope, host: Host) -> bool:
        """With a credential; without one from this machine, if it is no page that a foreign name led here."""
        if self._principal(scope) is not None:
            return True
        return is_loopback_peer(scope) and is_known_host(scope, host, self._hosts)

    # ------------------------------------------------------------ credentials

    def _principal(self, scope: Scope) -> str | None:
        token = bearer(scope)
        if token is None:
            return None
        is_operator = is_loopback_peer(scope) and is_same(token, self._token)
        return _OPERATOR if is_operator else self._sources.principal_of(token)

    def _refusal(self, who: str, path: str, is_post: bool) -> Answer | None:
        """None for who may ask: a row of the policy says so."""
        area, act = path.removeprefix(_API).partition("/")[0], "write" if is_post else "read"
        if self._sources.may(who, area, act):
            return None
        log.info("admin: %s without the right asked for %s", who, path)
        return _error(403, f"the policy gives {who} no right on Sluice itself to {act} this")

    # ------------------------------------------------------------ /api/v1/

    async def _api(self, scope: Scope, path: str) -> Answer:
        if path == _API + "servers":
            return _json(200, {"servers": self._sources.describe_servers()})
        query = scope.get("query_string", b"")
        if len(query) > MAX_QUERY:
            return _error(400, "the query is too long")
        values = parse_qs(query.decode("latin-1"))
        if path == _API + "tools":
            return await self._tools(values)
        if path == _API + "pins" and self._sources.pins is not None:
            return _json(*show(self._sources.pins, values))
        return _error(404, "no such path")

    async def _post(self, scope: Scope, receive: Receive, who: str) -> Answer:
        """A page can send a form to any site, but no JSON without being asked for its Origin first."""
        if [kind.partition(";")[0].strip().lower() for kind in header(scope, "content-type")] != [_JSON]:
            return _error(415, "the body must be application/json")
        body = await _body(receive)
        if body is None:
            return _error(413, f"the body is larger than {MAX_BODY} bytes")
        if self._sources.pins is None:
            return _error(404, "no such path")
        return _json(*await accept(self._sources.pins, body, who))

    async def _tools(self, values: dict[str, list[str]]) -> Answer:
        clients = values.get("as", ["local"])
        if set(values) - {"as"} or len(clients) != 1:
            return _error(400, "the query is ?as=ID, once, or nothing")
        tools = await self._sources.list_tools(clients[0])
        return _error(404, "no such client") if tools is None else _json(200, {"as": clients[0], "tools": tools})
