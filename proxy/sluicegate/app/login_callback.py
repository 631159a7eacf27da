"""Where a browser of this machine returns to from an authorization server: a port of loopback, open for one login.

The address that has the code answers with a redirect to one that has none, so that the code stays in no history, and
no page has a script (2025-11-25 basic/authorization#authorization-code-protection).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from html import escape
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sluicegate.listen.asgi import asgi
from sluicegate.listen.server import AddressServer, CannotListen
from sluicegate.listen.settings import ConnectionLimits
from sluicegate.login import LoginFailed, LoginInfo

HOST: Final = "127.0.0.1"
LINGER: Final = 2.0
"""Seconds that the browser has for the last page."""
_CONNECTIONS: Final = 16
_MAX_QUERY: Final = 16 * 1024
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "cache-control": "no-store", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff",
}  # fmt: skip
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Sluice</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>:root{{color-scheme:light dark}}
body{{font:1rem/1.5 system-ui;max-width:36rem;margin:4rem auto;padding:0 1rem}}</style>
<h1>{title}</h1>{text}<p>You can close this page.</p></html>"""

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
            return HTMLResponse(_PAGE.format(title="No such page", text=""), 400, _HEADERS)
        try:
            self._info = await self._finish(query, self.redirect_uri)
        except LoginFailed as error:
            text = f"<p>{escape(error.text)}</p>"
            return HTMLResponse(_PAGE.format(title="Nobody was logged in", text=text), 400, _HEADERS)
        return RedirectResponse("/done", 303, _HEADERS)

    async def _done(self, request: Request) -> Response:
        info = self._info
        if info is None:
            return HTMLResponse(_PAGE.format(title="No such page", text=""), 404, _HEADERS)
        scopes = f" It may: {escape(' '.join(info.scopes))}." if info.scopes else ""
        text = f"<p>Sluice is logged in to {escape(info.server)} by {escape(info.issuer)}.{scopes}</p>"
        self._seen.set()
        return HTMLResponse(_PAGE.format(title="Logged in", text=text), 200, _HEADERS)
