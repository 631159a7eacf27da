"""Where a browser of this machine returns to from an authorization server: a port of loopback, open for one login.

The address that has the code answers with a redirect to one that has none, so that the code stays in no history.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sluicegate.app.public_pages import CLOSE, HEADERS, may, page, text
from sluicegate.listen.asgi import asgi
from sluicegate.listen.server import AddressServer, CannotListen
from sluicegate.listen.settings import ConnectionLimits
from sluicegate.login.model import LoginFailed, LoginInfo

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
