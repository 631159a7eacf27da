"""The console: a page in the browser, in front of the admin API.

It serves a document without data, static files and sessions. What a session asks of the API goes on to the admin port
as any client would ask it, with the credential that the session stands for: rights, records and the merging of workers
stay there. Whoever asks without a session passes through untouched.
"""

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluicegate.console import sessions
from sluicegate.console.static_files import PREFIX, StaticFiles
from sluicegate.http.addresses import counted_as
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.http.hosts import ADMIN_PORT, HostOriginPolicy, ServedNames
from sluicegate.policy.rates import Windows
from sluicegate.protocol.jsonrpc import Json, Malformed, decode
from sluicegate.store import Store
from sluicegate.store.keys import Sealer

log = logging.getLogger(__name__)

Note = Callable[[Json], Awaitable[bool]]
"""Keeps an `admin` record; False: it could not, and nothing may be done unrecorded."""

API: Final = "/api/v1/"
PATH: Final = "/console"
ME: Final = "/api/v1/me"
READINESS: Final = "/readyz"
PAGE_KEY: Final = "x-sluice-page"
BACKGROUND: Final = "x-sluice-background"
"""Of a request that no person made: it keeps no session alive."""
MAX_BODY: Final = 128 * 1024
CHANGES_A_MINUTE: Final = 600
"""Of one principal. Each is recorded before anybody knows whether it may be: a key without a right must not fill the
disk."""
_MAX_OBJECT: Final = 200
LOOK_EVERY: Final = 1.0
LOOK_ELSEWHERE_EVERY: Final = 3.0
"""An answer ends within five seconds: this, what a look is believed for, and `LOOK_EVERY`."""
_READS: Final = ("GET", "HEAD")
_OWN: Final = frozenset({b"cookie", PAGE_KEY.encode(), BACKGROUND.encode()})
_OURS: Final = frozenset({b"www-authenticate", b"cache-control", b"x-content-type-options"})

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class SessionAccess:
    """Whose session a request is of, as the admin API (`inner`) has it now. What is done with it is recorded by
    `note`."""

    def __init__(
        self, inner: ASGIApp, note: Note, forwarded: ForwardedHeaders, store: Store | None, sealer: Sealer | None,
        operator_token: str, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._inner, self.note, self._forwarded = inner, note, forwarded
        self.sessions = sessions.ConsoleSessions(clock)
        self.stored = sessions.StoredSessions(self.sessions, store, sealer, operator_token, clock)
        self._changes = Windows(CHANGES_A_MINUTE, 60, clock)

    async def find(self, scope: Scope, site: sessions.Site, headers: Headers) -> sessions.Session | None:
        cookie, page_key, is_activity = site.cookie_of(headers), headers.get(PAGE_KEY, ""), BACKGROUND not in headers
        session = self.sessions.find(cookie, page_key, is_activity) or await self.stored.restore(cookie, page_key)
        if session is None:
            return None
        status, principal = await self._whose(scope, session.credential)
        if status in (200, 401) and principal != session.principal:
            await self.end(session)  # the key ended meanwhile, or is somebody else's by now
            return None
        # It may have ended meanwhile, here or at another replica, or have other halves.
        if not await self.stored.is_there(session) or self.sessions.find(cookie, page_key, False) is not session:
            return None
        await self.stored.touch(session)
        return session

    async def end(self, session: sessions.Session) -> None:
        self.sessions.end(session)
        await self.stored.forget()

    async def record(self, session: sessions.Session, scope: Scope, act: str, object: str = "") -> bool:
        about = {"principal": session.principal, "way": session.kind, "session": session.mark}
        where = {"address": self.address(scope), **({"object": object[:_MAX_OBJECT]} if object else {})}
        return await self.note({"act": act, **about, **where})

    def too_many(self, session: sessions.Session) -> Response | None:
        if self._changes.hit(session.principal) > 0:
            return _error(429, "too many changes: wait a minute", {"retry-after": "60"})
        return None

    def address(self, scope: Scope) -> str:
        peer = scope.get("client")
        return self._forwarded.client(str(peer[0]) if peer else "unknown", scope["headers"])

    async def principal_of(self, scope: Scope, credential: str) -> str | None:
        """As the admin API says: it also writes down who was not let in."""
        return (await self._whose(scope, credential))[1]

    async def _whose(self, scope: Scope, credential: str) -> tuple[int, str | None]:
        status, body = await _get(self._inner, {**scope, "headers": _as(scope, credential)}, ME)
        return status, body["principal"] if status == 200 else None


class SessionEndpoints:
    """Where people log in to the console and out of it, and show again who they are."""

    def __init__(self, access: SessionAccess, clock: Callable[[], float]) -> None:
        self._access, self._sessions = access, access.sessions
        self._codes = sessions.Codes(clock)
        self._attempts = Windows(sessions.MAX_ATTEMPTS, sessions.ATTEMPTS_WITHIN, clock)
        self.routes = [
            Route(f"{PATH}/codes", self._make_code, methods=["POST"]),
            Route(f"{PATH}/session", self._show_session, methods=["GET"]),
            Route(f"{PATH}/session", self._log_in, methods=["POST"]),
            Route(f"{PATH}/session", self._log_out, methods=["DELETE"]),
            Route(f"{PATH}/sessions", self._log_out_everywhere, methods=["DELETE"]),
            Route(f"{PATH}/session/step-up", self._step_up, methods=["POST"]),
        ]

    async def _make_code(self, request: Request) -> Response:
        """For `sluice console`: whoever has the operator's token gets a code that stands for it, on this machine."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        site: sessions.Site = request.scope[sessions.SITE]
        if "cookie" in request.headers or "origin" in request.headers:
            return _error(403, "a page makes no code")
        if kind.lower() != "bearer" or not site.is_loopback:
            return _error(401, "the operator token is needed, from this machine")
        if await self._access.principal_of(request.scope, token.strip()) != "local":
            return _error(401, "the operator token is needed")
        address = self._access.address(request.scope)
        if not await self._access.note({"act": "console_code", "principal": "local", "address": address}):
            return _unrecorded()
        return _answer({"code": self._codes.make(token.strip()), "url": f"{site.origin}{PATH}"})

    async def _log_in(self, request: Request) -> Response:
        site: sessions.Site = request.scope[sessions.SITE]
        body = await self._asked(request)
        if isinstance(body, Response):
            return body
        address = self._access.address(request.scope)
        match body:
            case {"code": str() as code, **rest} if not rest:
                kind: sessions.SessionKind = "link"
                credential = self._codes.use(code) if site.is_loopback else None
            case {"key": str() as key, **rest} if not rest:
                kind, credential = "key", key if key.isascii() and key.isprintable() and " " not in key else None
            case _:
                return _error(400, 'the body is {"code": CODE} or {"key": KEY}')
        # A code that is good is not counted: whoever shares the address could lock its owner out.
        if (kind == "key" or credential is None) and self._attempts.hit(counted_as(address)) > 0:
            return _error(429, "too many attempts from this address: wait a minute", {"retry-after": "60"})
        principal = None if credential is None else await self._access.principal_of(request.scope, credential)
        if principal is None or credential is None:
            log.warning("console: a %s that is not valid, or not any more, from %s", kind, address)
            await self._access.note({"act": "console_refused", "way": kind, "address": address})
            return _error(401, "this code or key is not valid, or not any more")
        try:
            session, halves = self._sessions.open(principal, kind, credential)
        except sessions.SessionsFull:
            return _error(503, "too many sessions of others are open", {"retry-after": "60"})
        if not await self._access.record(session, request.scope, "console_login"):
            await self._access.end(session)
            return _unrecorded()
        return await self._halves(site, session, halves)

    async def _halves(self, site: sessions.Site, session: sessions.Session, halves: sessions.Halves) -> Response:
        await self._access.stored.save(session, halves)
        answer = _answer({"page_key": halves.page_key, **self._about(session)})
        answer.headers.append("set-cookie", site.cookie(halves.cookie))
        return answer

    def _about(self, session: sessions.Session) -> Json:
        return {
            "principal": session.principal,
            "way": session.kind,
            "seconds_left": round(self._sessions.seconds_left(session)),
            "step_up_seconds": round(self._sessions.seconds_of_step_up(session)),
        }

    async def _show_session(self, request: Request) -> Response:
        found = await self._own(request)
        return found if isinstance(found, Response) else _answer(self._about(found))

    async def _log_out(self, request: Request) -> Response:
        return await self._ends(request, "console_logout", self._access.end)

    async def _log_out_everywhere(self, request: Request) -> Response:
        return await self._ends(
            request, "console_logout_everywhere", lambda session: self._access.stored.end_all_of(session.principal)
        )

    async def _ends(self, request: Request, act: str, end: Callable[[sessions.Session], Awaitable[None]]) -> Response:
        """To end a session is never refused for want of a record: it only takes away."""
        found = await self._own(request)
        if isinstance(found, Response):
            return found
        await self._access.record(found, request.scope, act)
        await end(found)
        answer = _answer({})
        answer.headers.append("set-cookie", f"{request.scope[sessions.SITE].cookie('')}; Max-Age=0")
        return answer

    async def _step_up(self, request: Request) -> Response:
        """With the key again. The operator types the name of what it is about, which stops slips, not thieves."""
        found = await self._own(request)
        if isinstance(found, Response):
            return found
        mark = found.mark
        body = self._access.too_many(found) or await self._asked(request)
        if isinstance(body, Response):
            return body
        match body:
            case {"key": str() as key, **rest} if found.kind == "key" and not rest:
                if self._attempts.hit(f"session {found.mark}") > 0:
                    return _error(429, "too many attempts in this session: wait a minute", {"retry-after": "60"})
                is_same = key.isascii() and await self._access.principal_of(request.scope, key) == found.principal
                if not is_same:
                    await self._access.record(found, request.scope, "console_refused")
                    return _error(401, "this is not the key of the session")
                about = ""
            case {"name": str() as name, **rest} if found.kind == "link" and name and not rest and len(name) <= 200:
                about = name
            case _:
                return _error(400, 'the body is {"key": KEY}, or {"name": NAME} in a session that a link began')
        if not await self._access.record(found, request.scope, "console_step_up", about):
            return _unrecorded()
        is_there = await self._access.stored.is_there(found, 0)
        if found.mark != mark or not is_there:  # new halves would bring back what was ended
            return _error(401, "the session ended meanwhile, or has other halves")
        self._sessions.step_up(found)
        return await self._halves(request.scope[sessions.SITE], found, self._sessions.renew(found))

    async def _own(self, request: Request) -> sessions.Session | Response:
        """The session of a request to the console's own endpoints."""
        site: sessions.Site = request.scope[sessions.SITE]
        if refusal := site.refusal(request.headers, request.method not in _READS):
            return refusal
        found = await self._access.find(request.scope, site, request.headers)
        return found or _error(401, "log in: both halves of a session are needed")

    async def _asked(self, request: Request) -> Any:
        """The JSON of a request that a page of ours sent; else why it is refused."""
        site: sessions.Site = request.scope[sessions.SITE]
        if refusal := site.refusal(request.headers, True):
            return refusal
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _error(415, "the body must be application/json")
        if (body := await _body(request)) is None:
            return _error(413, f"the body is larger than {MAX_BODY} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return _error(400, "the body is no JSON")


class Console:
    """An ASGI application around the one of the admin port. `step_up_of` says which of its requests (method, path)
    only somebody may make who has shown a moment ago who they are, and when."""

    def __init__(
        self, inner: ASGIApp, names: ServedNames, note: Note, step_up_of: Callable[[str, str], str],
        clock: Callable[[], float] = time.monotonic, store: Store | None = None, operator_token: str = "",
        sealer: Sealer | None = None,
    ) -> None:  # fmt: skip
        self._inner, self._step_up_of = inner, step_up_of
        self._hosts, self._forwarded = HostOriginPolicy(names, ADMIN_PORT), ForwardedHeaders(names)
        self._access = SessionAccess(inner, note, self._forwarded, store, sealer, operator_token, clock)
        self._sessions = self._access.sessions
        self._static = StaticFiles()
        self._router = Router([
            Route("/", lambda request: RedirectResponse(PATH, 303)),
            Route(f"{PREFIX}{{digest}}/{{name:path}}", self._file),
            *SessionEndpoints(self._access, clock).routes,
            Route(PATH, self._document),
            Route(f"{PATH}/", self._document),
            Route(f"{PATH}/{{page}}", self._document),
            Route(f"{PATH}/{{page}}/{{item}}", self._document),
        ], redirect_slashes=False)  # fmt: skip

    @property
    def last_used(self) -> float:
        """When a person last did something in a session, by the clock."""
        return self._sessions.last_used

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        is_own = path in ("/", PATH) or path.startswith(f"{PATH}/")
        headers = Headers(scope=scope)
        has_half = PAGE_KEY in headers or any(
            name in headers.get("cookie", "") for name in ("sluice-", "__Host-sluice")
        )
        is_readiness = path == READINESS and PAGE_KEY in headers
        if not is_own and not is_readiness and not (path.startswith(API) and has_half):
            await self._inner(scope, receive, send)
            return
        refusal = self._hosts.check(scope["headers"], scope.get("server"), path)
        site = sessions.site_of(scope, self._forwarded)
        try:
            if refusal is not None:
                answer: ASGIApp = _error(refusal.status, refusal.text)
            elif site is None:
                answer = _error(404, "the console is served on loopback, or over https")
            elif is_own:
                scope = {**scope, sessions.SITE: site}
                answer = self._router
            else:
                await self._ask(scope, receive, send, site, headers)
                return
            await answer(scope, receive, send)
        except ClientDisconnect:
            return

    async def _ask(self, scope: Scope, receive: Receive, send: Send, site: sessions.Site, headers: Headers) -> None:
        method, path, is_write = scope["method"], scope["path"], scope["method"] not in _READS
        session = await self._access.find(scope, site, headers)
        refusal = site.refusal(headers, is_write)
        if "authorization" in headers:
            refusal = _error(400, "a session or an Authorization header, not both")
        if refusal is not None or session is None:
            await (refusal or _error(401, "log in again: both halves of a session are needed"))(scope, receive, send)
            return
        refusal = self._access.too_many(session) if is_write else None
        if refusal is None and not self._sessions.seconds_of_step_up(session):
            is_due, receive = await self._is_step_up_due(scope, receive, session)
            if is_due:
                refusal = JSONResponse({"error": "show again who you are", "step_up": session.kind}, 403)
            elif not await self._access.stored.is_there(session):  # the body was waited for
                refusal = _error(401, "the session ended meanwhile")
        if refusal is None and is_write:
            if not await self._access.record(session, scope, "console_action", f"{method} {path}"):
                refusal = _unrecorded()
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        asked = {**scope, "headers": _as(scope, session.credential), sessions.CHANNEL: "console"}
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_with, session, group.cancel_scope)
            group.start_soon(self._look_for, session)
            await self._inner(asked, receive, self._watched(session, send))
            group.cancel_scope.cancel()

    async def _is_step_up_due(self, scope: Scope, receive: Receive, session: sessions.Session) -> tuple[bool, Receive]:
        """And the request's body, from its beginning again."""
        match self._step_up_of(scope["method"], scope["path"]):
            case "":
                return False, receive
            case "required":  # who may not see whether it is so is asked; who may not act learns that first
                asked = {**scope, "headers": _as(scope, session.credential)}
                _, me = await _get(self._inner, asked, ME)
                if me is not None and "write" not in me["rights"].get("servers", ()):
                    return False, receive
                status, row = await _get(self._inner, asked, scope["path"].rpartition("/")[0])
                return status != 404 and (row is None or row.get("required", False)), receive
            case "many":
                body = await _body(Request(scope, receive))
                return body is None or _accepts_many(body), receive if body is None else _again(body, receive)
        return True, receive

    async def _end_with(self, session: sessions.Session, stream: anyio.CancelScope) -> None:
        """No answer outlives the session that asked for it."""
        while self._sessions.is_open(session):  # noqa: ASYNC110 - what ends is a time, and no event says so
            await anyio.sleep(LOOK_EVERY)
        stream.cancel()

    async def _look_for(self, session: sessions.Session) -> None:
        while True:
            await anyio.sleep(LOOK_ELSEWHERE_EVERY)
            await self._access.stored.is_there(session)

    def _watched(self, session: sessions.Session, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 401:  # the key was revoked, or the token is over
                    await self._access.end(session)
                message["headers"] = [
                    *((name, value) for name, value in message.get("headers", ()) if name not in _OURS),
                    (b"cache-control", b"no-store"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        return sent

    async def _document(self, request: Request) -> Response:
        return Response(self._static.shell(), media_type="text/html", headers={**HEADERS, "cache-control": "no-store"})

    async def _file(self, request: Request) -> Response:
        file = self._static.get(request.path_params["digest"], request.path_params["name"])
        if file is None:
            return _error(404, "no such file")
        forever = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
        is_packed = "gzip" in request.headers.get("accept-encoding", "")
        packing = {"content-encoding": "gzip"} if is_packed else {}
        headers = {**HEADERS, **forever, **packing, "content-type": file.kind}
        return Response(file.packed if is_packed else file.body, headers=headers)


async def _body(request: Request) -> bytes | None:
    """None for one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return None
    return body


def _accepts_many(body: bytes) -> bool:
    """Read as the admin API reads it, which refuses what cannot be."""
    try:
        value = decode(body)
    except Malformed:
        return False
    accepted = value.get("accept") if isinstance(value, dict) else None
    return isinstance(accepted, list) and len(accepted) > 1


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read is received once more, and then whatever comes."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return parts.pop() if parts else await receive()

    return received


def _answer(body: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(body, status, {"cache-control": "no-store", **(headers or {})})


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return _answer({"error": text}, status, headers)


def _unrecorded() -> Response:
    return _error(503, "the audit log cannot be written, and nothing is done unrecorded")


def _as(scope: Scope, credential: str) -> list[tuple[bytes, bytes]]:
    """The headers of a request, with the session's credential in place of its halves."""
    others = [(name, value) for name, value in scope["headers"] if name not in _OWN and name != b"authorization"]
    return [*others, (b"authorization", f"Bearer {credential}".encode("latin-1", "replace"))]


async def _get(app: ASGIApp, scope: Scope, path: str) -> tuple[int, Any]:
    """What the application answers to a GET of `path` by the same peer."""
    status, body = 0, b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    left = (b"content-length", b"content-type", b"transfer-encoding", b"origin")
    headers = [(name, value) for name, value in scope["headers"] if name not in left]
    asked = {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    await app(asked, receive, send)
    return status, json.loads(body) if status == 200 else None
