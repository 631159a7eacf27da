"""Links to log in to a server, for a call that waits for that."""

import logging
from functools import partial
from secrets import token_urlsafe

import anyio
from anyio.abc import TaskGroup, TaskStatus

from sluicegate.app.login_callback import CallbackPort
from sluicegate.app.logins import NoLogin
from sluicegate.guards.login import LoginLink
from sluicegate.listen.server import CannotListen
from sluicegate.login.logins import Logins
from sluicegate.login.model import Flow, LoginFailed, LoginUnavailable
from sluicegate.protocol.model import Client
from sluicegate.store import StoreFailed

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
