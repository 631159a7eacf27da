"""Where a browser of this machine returns to from an authorization server: a port of loopback, open for one login, or
for the calls that wait for logins.

The address that has the code answers with a redirect to one that has none, so that the code stays in no history.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_urlsafe
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sluicegate.app.logins import NoLogin
from sluicegate.app.public_pages import CLOSE, HEADERS, may, page, text
from sluicegate.guards.login import LoginLink
from sluicegate.listen.asgi import asgi
from sluicegate.listen.server import AddressServer, CannotListen
from sluicegate.listen.settings import ConnectionLimits
from sluicegate.login.logins import Logins
from sluicegate.login.model import Flow, LoginFailed, LoginInfo, LoginUnavailable
from sluicegate.protocol.model import Client
from sluicegate.store import StoreFailed

HOST: Final = "127.0.0.1"
LINGER: Final = 2.0
"""Seconds that the browser has for the last page."""
_CONNECTIONS: Final = 16
_MAX_QUERY: Final = 16 * 1024

Finish = Callable[[str, str], Awaitable[LoginInfo]]
"""Takes the query of the callback, and the redirect URI."""


class CallbackPort:
    """`redirect_uri` is where the browser returns to."""

    def __init__(self, callback: str, finish: Finish) -> None:
        address, _, path = callback.removeprefix("http://").partition("/")
        self._port, self._path, self._finish = int(address.rpartition(":")[2]), f"/{path}", finish
        self.redirect_uri = callback
        self._seen = anyio.Event()
        self._info: LoginInfo | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator["CallbackPort"]:
        """Raises `CannotListen`. Where another program has the port, it is any free one (RFC 8252 7.3)."""
        app = Starlette(routes=[Route(self._path, self._take), Route("/done", self._done)])
        try:
            server = self._bind(app, self._port)
        except CannotListen:
            server = self._bind(app, 0)
        self.redirect_uri = f"http://{HOST}:{server.port}{self._path}"
        async with anyio.create_task_group() as group:
            await group.start(server.run)
            try:
                yield self
                if self._info is not None:
                    with anyio.move_on_after(LINGER):
                        await self._seen.wait()
            finally:
                server.stop(now=True)

    def _bind(self, app: Starlette, port: int) -> AddressServer:
        server = AddressServer(asgi(app), HOST, port, ConnectionLimits(connections=_CONNECTIONS), drain=0.5)
        server.bind()
        return server

    def _is_ours(self, request: Request) -> bool:
        """A page elsewhere whose name was made to mean this machine has another Host."""
        return f"http://{request.headers.get('host', '')}{self._path}" == self.redirect_uri

    async def _take(self, request: Request) -> Response:
        query = request.url.query
        if not self._is_ours(request) or len(query) > _MAX_QUERY:
            return page(400, "No such page", CLOSE)
        try:
            self._info = await self._finish(query, self.redirect_uri)
        except LoginFailed as error:
            return page(400, "Nobody was logged in", text(error.text), CLOSE)
        return RedirectResponse("/done", 303, HEADERS)

    async def _done(self, request: Request) -> Response:
        info = self._info
        if info is None:
            return page(404, "No such page", CLOSE)
        self._seen.set()
        sentence = f"Sluice is logged in to {info.server} by {info.issuer}.{may(info.scopes)}"
        return page(200, "Logged in", text(sentence), CLOSE)


log = logging.getLogger(__name__)


_Key = tuple[str, str, str, str]
"""Server, whose, and the principal and credential of whoever asked."""


class LoginLinks:
    """The port to which a browser returns is open while a login waits, and ends no login that was begun elsewhere."""

    def __init__(self, logins: Logins, group: TaskGroup) -> None:
        self._logins, self._group = logins, group
        self._flows: dict[_Key, Flow] = {}
        self._lock = anyio.Lock()
        self._redirect_uri, self._idle, self._closed = "", anyio.Event(), anyio.Event()
        self._closed.set()
        self._is_beginning = False
        # What others began, with a link to this port, would make the account of whoever opens that link theirs.
        self._browser = token_urlsafe(32)

    async def begin(self, server: str, whose: str, callback: str, by: Client) -> LoginLink:
        """The link of a login that waits already is given again to whoever asked for it. Raises `NoLogin`."""
        key = (server, whose, by.principal, by.credential)
        async with self._lock:
            flow = self._flows.get(key)
            if flow is None:
                self._is_beginning = True  # a login that ends meanwhile leaves the port open for this one
                try:
                    if not self._flows:
                        await self._closed.wait()  # at another port, servers may refuse the registered client
                        self._redirect_uri = await self._group.start(self._serve, callback)
                    flow = await self._logins.begin(server, whose, self._redirect_uri, browser=self._browser, by=by)
                    self._flows[key] = flow
                except (LoginFailed, LoginUnavailable, CannotListen) as error:
                    raise NoLogin(str(error), isinstance(error, LoginFailed)) from None
                finally:
                    self._is_beginning = False
                    self._rest()
                self._group.start_soon(self._wait, key, flow)
            return LoginLink(flow.id, flow.url)

    async def _serve(self, callback: str, *, task_status: TaskStatus[str]) -> None:
        self._idle, self._closed = anyio.Event(), anyio.Event()
        try:
            async with CallbackPort(callback, partial(self._logins.finish, browser=self._browser)).open() as port:
                task_status.started(port.redirect_uri)
                await self._idle.wait()
        finally:
            self._closed.set()

    async def _wait(self, key: _Key, flow: Flow) -> None:
        try:
            await self._logins.wait(flow)
        except (LoginFailed, StoreFailed) as error:
            log.warning("nobody was logged in", extra={"server": key[0], "why": str(error)})
        finally:
            self._flows.pop(key, None)
            self._rest()

    def _rest(self) -> None:
        if not self._flows and not self._is_beginning:
            self._idle.set()
