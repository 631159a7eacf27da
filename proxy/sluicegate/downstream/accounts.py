"""One configured server that people log in to: each login has connections of its own.

Whoever has a login is served by a `DownstreamServer` that sends its token, everybody else by one that sends none. So
connections, sessions, suspended calls and lists of two accounts never meet. Knows logins by their ids alone.
"""

import asyncio
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup

from sluicegate import telemetry
from sluicegate.downstream.failures import login_over
from sluicegate.downstream.server import DownstreamServer
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import Call, Client, Era, Outcome, Publish, Subscribed, Updated, session_scope

MAX_ACCOUNTS: Final = 1_000
AT_ONCE: Final = 32
"""Scopes of one login that hear of a change in one step of the event loop."""
_CIRCUITS: Final = ("closed", "half-open", "open")
_MAX_KNOWN: Final = 10_000
_ONE_SESSION: Final = session_scope("")

LoginOf = Callable[[Client], str]
"""The id of the login that a client's calls use; empty while there is none. Cheap: it is on the hot path."""
Make = Callable[[str, Publish], DownstreamServer]
"""Takes the id of a login, empty for none, and who is told of notifications."""


class PublicScopes(dict[str, str]):
    """Each scope of one login's server, and what it is called outside. A scope that is new is added."""

    def __init__(self, login: str) -> None:
        super().__init__()
        self._login = login

    def __missing__(self, scope: str) -> str:
        if len(self) >= _MAX_KNOWN:
            self.clear()
        self[scope] = public = f"{self._login} {scope}" if self._login else scope
        return public


class ServedLogin:
    """One login's server; under an empty id the one of all who have none. `due` are the scopes that are still to be
    told of a change, and `untold` the changes of which each has still to be told."""

    __slots__ = ("due", "login", "scopes", "server", "untold")

    def __init__(self, login: str, server: DownstreamServer) -> None:
        self.login, self.server, self.scopes = login, server, PublicScopes(login)
        self.due, self.untold = dict[tuple[str, str], Notification](), set[str]()


class ServerTasks:
    """A task for each server that runs, while `run` does, and for each that ends. `running` gives those that run."""

    def __init__(self, running: "Callable[[], Iterable[AnyDownstream]]") -> None:
        self._running = running
        self.ending: set[AnyDownstream] = set()
        self._group: TaskGroup | None = None
        self._stopped = anyio.Event()

    async def run(self) -> None:
        """Runs until it is cancelled or `aclose` is called."""
        self._stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as self._group:
                for server in self._running():
                    self.start(server)
                await anyio.sleep_forever()
        finally:
            self._group = None
            self._stopped.set()

    def start(self, server: "AnyDownstream") -> None:
        if self._group is not None:
            self._group.start_soon(telemetry.supervise, f"server {server.key}", server.run)

    def end(self, server: "AnyDownstream") -> None:
        self.ending.add(server)
        if self._group is not None:
            self._group.start_soon(self._end, server)

    async def _end(self, server: "AnyDownstream") -> None:
        try:
            await server.aclose()
        finally:
            self.ending.discard(server)

    async def aclose(self) -> None:
        """All at once: a child that does not want to leave takes seconds, and ten of them no longer."""
        async with anyio.create_task_group() as group:
            for server in (*self._running(), *self.ending):
                group.start_soon(server.aclose)
        if self._group is not None:
            self._group.cancel_scope.cancel()
            await self._stopped.wait()


class AccountServers:
    """All of them as one server. `run` is its life, as that of each."""

    def __init__(
        self, make: Make, login_of: LoginOf, abouts: Mapping[str, Json], publish: Publish,
        moved: Callable[[str], None], has_any: bool,
    ) -> None:  # fmt: skip
        """`abouts` is what the audit log says of each login, by its id, and is kept up to date. `has_any`: there are
        logins to it already. `moved` is told that what clients see of the server may be other than before."""
        self._make, self._login_of, self._publish, self._moved = make, login_of, publish, moved
        self._abouts = abouts
        self._any = has_any
        self._nobody = make("", partial(self._heard, ""))
        self.settings = settings = self._nobody.settings
        self.key, self.identity, self.start_timeout = settings.key, settings.identity, settings.start_timeout
        self._without = ServedLogin("", self._nobody)
        self._accounts: dict[str, ServedLogin] = {}
        self._tasks = ServerTasks(self._all)
        self._is_retired = False
        self._former: dict[str, DownstreamServer] = {}
        # While no login has changed, by all of a client that makes a login its own: app.logins.whose
        self._by_client: dict[tuple[str, str, str], ServedLogin] = {}
        self._last_client: Client | None = None
        self._last = self._without

    def of(self, client: Client) -> DownstreamServer:
        """The one that serves this client."""
        return self._served(client).server

    def _served(self, client: Client) -> ServedLogin:
        """On the hot path. A call asks several times, one after the other: from the second time on, who asks compares
        with `_last_client` itself."""
        try:
            served = self._by_client[client.principal, client.credential, client.owner]
        except KeyError:
            served = self._find(client)
        self._last_client, self._last = client, served
        return served

    def _forget(self) -> None:
        self._by_client.clear()
        self._last_client = None

    def _find(self, client: Client) -> ServedLogin:
        login = self._login_of(client) if self._any else ""
        served = (self._accounts.get(login) or self._begin(login)) if login else self._without
        if len(self._by_client) >= _MAX_KNOWN:
            self._by_client.clear()
        self._by_client[client.principal, client.credential, client.owner] = served
        return served

    def _begin(self, login: str) -> ServedLogin:
        if self._is_retired:
            return self._without
        if len(self._accounts) >= MAX_ACCOUNTS:
            self._end(min(self._accounts, key=lambda id: self._accounts[id].server.open_calls))
        server = self._make(login, partial(self._heard, login))
        served = self._accounts[login] = ServedLogin(login, server)
        if login in self._former:
            server.inherit(self._former.pop(login))
        self._tasks.start(server)
        return served

    def _end(self, login: str) -> None:
        served = self._accounts.pop(login)
        self._forget()
        served.due.clear()
        served.server.retire(login_over(self.key))
        self._tasks.end(served.server)

    def take(self, logins: Collection[str], new: Collection[str]) -> None:
        """These logins are good now. The others end with all that is open on them; who logged in just now is served
        at once, also with a further right."""
        self._any = bool(logins)
        self._forget()
        ended = self._accounts.keys() - set(logins)
        for login in ended:
            self._end(login)
        for login in new:
            server = (self._accounts.get(login) or self._begin(login)).server
            if server.life.login_needed is not None:
                server.life.logged_in()
        if ended:
            self._moved(self.key)

    def _heard(self, login: str, key: str, scope: str | None, notification: Notification) -> None:
        """What one account's server says is for who sees that account, and for nobody else. What a connection without
        a token hears is nobody's secret."""
        if scope is not None or not login or notification.method == tasks.STATUS:  # whose a task is, is known elsewhere
            is_of_account = login and scope is not None and not scope.startswith(_ONE_SESSION)  # that is one client's
            self._publish(key, f"{login} {scope}" if is_of_account else scope, notification)
            return
        served, method = self._accounts.get(login), notification.method
        if served is not None and method not in served.untold:
            is_idle = not served.due
            served.untold.add(method)
            served.due |= {(public, method): notification for public in served.scopes.values()}
            if is_idle:
                self._tell(served)

    def _tell(self, served: ServedLogin) -> None:
        """A few scopes in each step: thousands of clients may see one login."""
        served.untold.clear()
        try:
            for due in tuple(islice(served.due, AT_ONCE)):
                self._publish(self.key, due[0], served.due.pop(due))
        finally:
            if served.due and not self._is_retired:
                asyncio.get_running_loop().call_soon(self._tell, served)

    def _all(self) -> list[DownstreamServer]:
        return [*(served.server for served in self._accounts.values()), self._nobody]

    def _best(self) -> DownstreamServer:
        """The one that tells how the server is doing: it can be reached if anybody reaches it."""
        order = ("up", "starting", "down")
        return min(self._all(), key=lambda one: order.index(one.status))

    @property
    def status(self) -> Literal["starting", "up", "down"]:
        return self._best().status

    @property
    def start_left(self) -> float:
        return self._best().start_left

    def era_for(self, client: Client) -> Era | None:
        return self.of(client).era_for(client)

    def scope(self, client: Client) -> str:
        served = self._served(client)
        return served.scopes[served.server.scope(client)]

    def capability_set(self, client: Client, era: Era) -> str:
        return self.of(client).capability_set(client, era)

    async def ready(self, is_needed: bool = False) -> None:
        await self._best().ready(is_needed)

    async def hold(self, client: Client) -> Callable[[], None]:
        return await self.of(client).hold(client)

    async def subscribe(self, client: Client, uris: Collection[str], tell: Updated) -> Subscribed:
        return await self.of(client).subscribe(client, uris, tell)

    def __call__(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        client = call.client
        served = self._last if client is self._last_client else self._served(client)
        return served.server(call)

    def unavailable(self, call: Call) -> Outcome:
        return self.of(call.client).unavailable(call)

    def shows(self, client: Client) -> bool:
        return self.of(client).shows(client)

    def account(self, client: Client) -> Json | str | None:
        """What the audit log says of the account that this client's calls use; None where it says nothing. A sentence
        where nothing can be sent before somebody logs in."""
        served = self._last if client is self._last_client else self._served(client)
        needed = served.server.life.login_needed
        return self._abouts.get(served.login) if needed is None else needed.text

    def expect(self, client: Client) -> None:
        self.of(client).expect(client)

    def abandon(self, call_id: str) -> None:
        for server in self._all():
            server.abandon(call_id)

    def retain(self, holders: Container[str]) -> None:
        for server in self._all():
            server.retain(holders)

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
        return not self._accounts and self._nobody.life.login_needed is not None

    def output(self, after: str) -> Json:
        return self._best().output(after)

    def numbers(self) -> Json:
        numbers = [server.numbers() for server in self._all()]
        sums: Json = {name: sum(one[name] for one in numbers) for name in ("restarts", "in_flight", "waiting")}
        return sums | {"circuit": max((one["circuit"] for one in numbers), key=_CIRCUITS.index)}

    @property
    def concurrency(self) -> int:
        return self._nobody.concurrency

    @property
    def most_in_flight(self) -> int:
        return max(server.most_in_flight for server in self._all())

    def set_limit(self, limit: int, is_settled: bool) -> None:
        for server in self._all():
            server.set_limit(limit, is_settled)

    @property
    def open_calls(self) -> int:
        return sum(server.open_calls for server in self._all())

    def retire(self, why: str) -> None:
        self._is_retired = True
        for server in self._all():
            server.retire(why)

    def inherit(self, before: "AnyDownstream") -> None:
        """It takes the key of that one: sessions that were open there are told."""
        if isinstance(before, DownstreamServer):
            return self._nobody.inherit(before)
        self._nobody.inherit(before._nobody)
        self._former = {login: served.server for login, served in before._accounts.items()}

    async def run(self) -> None:
        """Runs until it is cancelled or `aclose` is called."""
        if self._is_retired:
            return await self._nobody.run()
        await self._tasks.run()

    async def aclose(self) -> None:
        await self._tasks.aclose()


AnyDownstream = DownstreamServer | AccountServers


def inherit(server: AnyDownstream, before: AnyDownstream) -> None:
    """`server` takes the key of the other one."""
    if isinstance(server, AccountServers):
        server.inherit(before)
    elif isinstance(before, DownstreamServer):
        server.inherit(before)
