"""The admin API of a desktop client's Sluice: at a socket, and for the console at a port of loopback while it is used.

Nobody but its owner can open the socket, so that whoever asks there without a credential is the operator. The port is
open to every program of this machine: it serves the console, and the API to sessions of it.
"""

import logging
import secrets
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import anyio
from anyio.abc import TaskGroup
from starlette.types import ASGIApp, Receive, Scope, Send

from sluicegate import __version__, telemetry
from sluicegate.admin.credentials import header
from sluicegate.admin.response import error_response, json_response
from sluicegate.admin.routes import API, step_up_of
from sluicegate.app import settings
from sluicegate.app.admin_app import admin_application, bearer, note_in
from sluicegate.app.core import Core
from sluicegate.app.stdio import JOIN
from sluicegate.config import Config
from sluicegate.console import PAGE_KEY, PATH, READINESS, Console
from sluicegate.listen import settings as listening
from sluicegate.listen.asgi import asgi
from sluicegate.listen.http_request import Serve
from sluicegate.listen.server import AddressServer, on_unix_socket
from sluicegate.protocol.jsonrpc import Json

log = logging.getLogger(__name__)

CODES: Final = f"{PATH}/codes"
IDLE: Final = 900.0
LOOK_EVERY: Final = 1.0
_LOOPBACK: Final = "127.0.0.1"
_CONNECTIONS: Final = 64


class DesktopConsole:
    """The console at a free port of loopback: from the moment somebody asks for it until nobody used it for `IDLE`
    seconds. `application` is the admin API. Only while `run` runs."""

    def __init__(
        self, config: Config, application: ASGIApp, inner: Core, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._application, self._inner, self._clock = config, application, inner, clock
        self._group: TaskGroup | None = None
        self._opening = anyio.Lock()
        self._port: AddressServer | None = None
        self._console: Console | None = None
        self._asked = 0.0

    async def run(self) -> None:
        async with anyio.create_task_group() as self._group:
            await anyio.sleep_forever()

    async def make_code(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request for a code, as the console at the port does."""
        if not self._config.console.enabled or self._group is None:
            await error_response(404, "the console is off: see console.enabled")(scope, receive, send)
            return
        async with self._opening:
            port, console = await self._open(self._group)
            self._asked = self._clock()
        name = f"{_LOOPBACK}:{port}".encode()
        headers = [(b"host", name), *(one for one in scope["headers"] if one[0] != b"host")]
        await console({**scope, "server": (_LOOPBACK, port), "headers": headers}, receive, send)

    async def _open(self, group: TaskGroup) -> tuple[int, Console]:
        if self._port is None or self._console is None:
            note = note_in(self._inner.services.audit)
            self._console = Console(self._application, settings.names(self._config), note, step_up_of, self._clock)
            wire = listening.ConnectionLimits(connections=_CONNECTIONS)
            self._port = AddressServer(asgi(_of_sessions(self._console)), _LOOPBACK, 0, wire, drain=0.0)
            self._port.bind()
            url = _url(self._port)
            self._inner.services.own_pages.add(url)
            await group.start(self._port.run)
            group.start_soon(telemetry.supervise, "console", self._close_when_idle)
            log.info("console opened", extra={"url": url})
        return self._port.port, self._console

    async def _close_when_idle(self) -> None:
        assert self._port is not None and self._console is not None
        while self._clock() < max(self._asked, self._console.last_used) + IDLE:  # noqa: ASYNC110 - a time ends it
            await anyio.sleep(LOOK_EVERY)
        self._inner.services.own_pages.remove(_url(self._port))
        self._port.stop(now=True)
        self._port = self._console = None
        log.info("console closed: nobody used it", extra={"seconds": IDLE})


def _url(port: AddressServer) -> str:
    return f"http://{_LOOPBACK}:{port.port}"


def _of_sessions(console: Console) -> ASGIApp:
    """Probes, metrics and pages of the admin port are not for every program of this machine. With a page key, readiness
    is asked for by a session, or the console refuses it."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        is_served = path == "/" or path == PATH or path.startswith((f"{PATH}/", API))
        is_readiness = path == READINESS and bool(header(scope, PAGE_KEY))
        await (console if is_served or is_readiness else error_response(404, "no such path"))(scope, receive, send)

    return front


async def serve_desktop_admin(config: Config, inner: Core, listener: socket.socket) -> None:
    """Answers at a Unix socket that listens, until it is cancelled."""
    admin, console = desktop_admin(config, inner)
    async with on_unix_socket(admin, listener):
        await console.run()


def desktop_admin(config: Config, inner: Core) -> tuple[Serve, DesktopConsole]:
    """What answers at the socket, and the console that it opens."""
    token = secrets.token_urlsafe(32)
    app = admin_application(config, inner, inner.services.identities.operators, token, lambda: False)
    console = DesktopConsole(config, app, inner)
    as_operator = (b"authorization", bearer(token))
    here = {"client": (_LOOPBACK, 0), "server": (_LOOPBACK, 80)}

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == JOIN:
            await inner.services.judging.reload.renew()
            await json_response(200, _in_force(inner))(scope, receive, send)
            return
        added = [] if header(scope, "authorization") else [as_operator]
        asked = {**scope, **here, "headers": [*scope["headers"], *added]}
        is_for_code = scope["path"] == CODES and scope["method"] == "POST"
        await (console.make_code if is_for_code else app)(asked, receive, send)

    return asgi(front), console


def _in_force(inner: Core) -> Json:
    """What a process that joins says to its user."""
    judges = inner.services.judging
    since = datetime.fromtimestamp(judges.reload.at, UTC).isoformat(timespec="seconds")
    about = {"version": __version__, "policy": judges.judge.revision(), "since": since}
    return {**about, "notes": judges.notes()}
