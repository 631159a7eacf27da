"""One configured server that people log in to: each login has connections of its own.

Whoever has a login is served by a `DownstreamServer` that sends its token, everybody else by one that sends none. So
connections, sessions, suspended calls and lists of two accounts never meet. Knows logins by their ids alone.
"""

import logging
from collections.abc import Callable, Collection, Container, Coroutine
from functools import partial
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup

from sluicegate import telemetry
from sluicegate.downstream.failures import LoginRequired
from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, Client, Era, Outcome, Publish, Subscribed, Updated

MAX_ACCOUNTS: Final = 1_000
_CIRCUITS: Final = ("closed", "half-open", "open")
_MAX_SCOPES: Final = 10_000
_LOGGED_OUT: Final = "its login has ended"

log = logging.getLogger(__name__)

LoginOf = Callable[[Client], str]
"""The id of the login that a client's calls use; empty while there is none. Cheap: it is on the hot path."""
Make = Callable[[str, Publish], DownstreamServer]
"""Takes the id of a login, empty for none, and who is told of notifications."""


class AccountServers:
    """All of them as one server. `run` is its life, as that of each."""

    def __init__(
        self, make: Make, login_of: LoginOf, publish: Publish, moved: Callable[[str], None], has_any: bool
    ) -> None:
        """`has_any`: there are logins to it already. `moved` is told that what clients see of the server may be other
        than before."""
        self._make, self._login_of, self._publish, self._moved = make, login_of, publish, moved
        self._any = has_any
        self._nobody = make("", partial(self._heard, ""))
        self._accounts: dict[str, DownstreamServer] = {}
        self._scopes: dict[tuple[str, str], str] = {}
        self._leaving: set[DownstreamServer] = set()
        self._group: TaskGroup | None = None
        self._stopped = anyio.Event()
        self._is_retired = False
        self._former: dict[str, DownstreamServer] = {}
        self._last_client: Client | None = None  # who was asked about last, while no login has changed
        self._last_login, self._last = "", self._nobody

    # ------------------------------------------------------------ whose

    def of(self, client: Client) -> DownstreamServer:
        """The one that serves this client. A call asks several times, one after the other."""
        if client is self._last_client:
            return self._last
        login = self._login_of(client) if self._any else ""
        server = (self._accounts.get(login) or self._begin(login)) if login else self._nobody
        self._last_client, self._last_login, self._last = client, login, server
        return server

    def _begin(self, login: str) -> DownstreamServer:
        if self._is_retired:
            return self._nobody
        if len(self._accounts) >= MAX_ACCOUNTS:
            self._end(min(self._accounts, key=lambda id: self._accounts[id].open_calls))
        server = self._accounts[login] = self._make(login, partial(self._heard, login))
        if login in self._former:
            server.inherit(self._former.pop(login))
        self._start(server)
        return server

    def _end(self, login: str) -> None:
        server = self._accounts.pop(login)
        self._last_client = None
        server.retire(_LOGGED_OUT)
        self._scopes = {known: scope for known, scope in self._scopes.items() if known[0] != login}
        self._leaving.add(server)
        if self._group is not None:
            self._group.start_soon(self._leave, server)

    def take(self, logins: Collection[str], new: Collection[str]) -> None:
        """These logins are good now. The others end with all that is open on them; who logged in just now is served
        at once, also with a further right."""
        self._any, self._last_client = bool(logins), None
        ended = self._accounts.keys() - set(logins)
        for login in ended:
            self._end(login)
        for login in new:
            server = self._accounts.get(login) or self._begin(login)
            if server.login_needed is not None:
                server.logged_in()
        if ended:
            self._moved(self.key)

    def _heard(self, login: str, key: str, scope: str | None, notification: Notification) -> None:
        """What one account's server says is for who sees that account, and for nobody else. What a connection without
        a token hears is nobody's secret."""
        if scope is not None or not login:
            self._publish(key, f"{login} {scope}" if login else scope, notification)
            return
        for known, public in tuple(self._scopes.items()):
            if known[0] == login:
                self._publish(key, public, notification)

    # ------------------------------------------------------------ what the middle asks

    @property
    def key(self) -> str:
        return self._nobody.key

    @property
    def identity(self) -> str:
        return self._nobody.identity

    @property
    def settings(self) -> ServerSettings:
        return self._nobody.settings

    def _all(self) -> list[DownstreamServer]:
        return [*self._accounts.values(), self._nobody]

    def _best(self) -> DownstreamServer:
        """The one that tells how the server is doing: it can be reached if anybody reaches it."""
        order = ("up", "starting", "down")
        return min(self._all(), key=lambda one: order.index(one.status))

    @property
    def status(self) -> Literal["starting", "up", "down"]:
        return self._best().status

    @property
    def start_timeout(self) -> float:
        return self._nobody.start_timeout

    @property
    def start_left(self) -> float:
        return self._best().start_left

    def era_for(self, client: Client) -> Era | None:
        return self.of(client).era_for(client)

    def scope(self, client: Client) -> str:
        if not self._any:
            return self._nobody.scope(client)
        scope, login = self.of(client).scope(client), self._last_login
        public = self._scopes.get((login, scope))
        if public is None:
            if len(self._scopes) >= _MAX_SCOPES:
                self._scopes.clear()
            public = self._scopes[login, scope] = f"{login} {scope}" if login else scope
        return public

    def capability_set(self, client: Client, era: Era) -> str:
        return self.of(client).capability_set(client, era)

    async def ready(self, is_needed: bool = False) -> None:
        await self._best().ready(is_needed)

    async def hold(self, client: Client) -> Callable[[], None]:
        return await self.of(client).hold(client)

    async def subscribe(self, client: Client, uris: Collection[str], tell: Updated) -> Subscribed:
        return await self.of(client).subscribe(client, uris, tell)

    def __call__(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        return self.of(call.client)(call)

    def unavailable(self, call: Call) -> Outcome:
        return self.of(call.client).unavailable(call)

    def shows(self, client: Client) -> bool:
        return self.of(client).shows(client)

    @property
    def has_logins(self) -> bool:
        return self._any or self._nobody.login_needed is not None

    def login_needed(self, client: Client) -> LoginRequired | None:
        """Why nothing of this client's can be sent before somebody logs in, where that is so."""
        return self.of(client).login_needed

    # ------------------------------------------------------------ all of them

    def expect(self, client: Client) -> None:
        self.of(client).expect(client)

    def abandon(self, call_id: str) -> None:
        for server in self._all():
            server.abandon(call_id)

    def retain(self, principals: Container[str]) -> None:
        for server in self._all():
            server.retain(principals)

    def end_session(self, session: str) -> None:
        for server in self._all():
            server.end_session(session)

    def reconnect(self) -> None:
        for server in self._all():
            server.reconnect()

    def describe(self) -> Json:
        described = [server.describe() for server in self._all()]
        sums = {name: sum(one[name] for one in described) for name in ("connections", "processes", "parked")}
        about = {"accounts": len(self._accounts), "needs_login": self.needs_login}
        return self._best().describe() | sums | self.numbers() | about

    @property
    def needs_login(self) -> bool:
        """Whether nobody is logged in, and it wants that."""
        return not self._accounts and self._nobody.login_needed is not None

    def output(self, after: str) -> Json:
        return self._best().output(after)

    def numbers(self) -> Json:
        numbers = [server.numbers() for server in self._all()]
        sums: Json = {name: sum(one[name] for one in numbers) for name in ("restarts", "in_flight", "waiting")}
        return sums | {"circuit": max((one["circuit"] for one in numbers), key=_CIRCUITS.index)}

    @property
    def open_calls(self) -> int:
        return sum(server.open_calls for server in self._all())

    # ------------------------------------------------------------ their life

    def retire(self, why: str) -> None:
        self._is_retired = True
        for server in self._all():
            server.retire(why)

    def inherit(self, before: "AnyDownstream") -> None:
        """It takes the key of that one: sessions that were open there are told."""
        if isinstance(before, DownstreamServer):
            return self._nobody.inherit(before)
        self._nobody.inherit(before._nobody)
        self._former = before._accounts

    async def run(self) -> None:
        """Runs until it is cancelled or `aclose` is called."""
        if self._is_retired:
            return await self._nobody.run()
        self._stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as self._group:
                for server in self._all():
                    self._start(server)
                await anyio.sleep_forever()
        finally:
            self._group = None
            self._stopped.set()

    def _start(self, server: DownstreamServer) -> None:
        if self._group is not None:
            self._group.start_soon(telemetry.supervise, f"server {server.key}", server.run)

    async def _leave(self, server: DownstreamServer) -> None:
        try:
            await server.aclose()
        finally:
            self._leaving.discard(server)

    async def aclose(self) -> None:
        async with anyio.create_task_group() as group:
            for server in (*self._all(), *self._leaving):
                group.start_soon(server.aclose)
        if self._group is not None:
            self._group.cancel_scope.cancel()
            await self._stopped.wait()


AnyDownstream = DownstreamServer | AccountServers


def login_needed(server: AnyDownstream, client: Client) -> str:
    """Why nothing of this client's can be sent before somebody logs in; empty where it can."""
    why = server.login_needed(client) if isinstance(server, AccountServers) else None
    return "" if why is None else why.text


def inherit(server: AnyDownstream, before: AnyDownstream) -> None:
    """`server` takes the key of the other one."""
    if isinstance(server, AccountServers):
        server.inherit(before)
    elif isinstance(before, DownstreamServer):
        server.inherit(before)
