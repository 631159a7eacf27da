"""Logins to servers: whose login a client uses, which there are, and what is said where one is missing.

The login room itself is imported when a config has the first server that people can log in to."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import inf
from secrets import token_hex
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.app.late import Late
from sluicegate.config import Config, HttpServer
from sluicegate.config.login import ServerLogin
from sluicegate.downstream.failures import LOCAL, LoginRequired
from sluicegate.downstream.settings import Account, Credentials
from sluicegate.guards.login import LoginLink
from sluicegate.metrics.scraped import Sample
from sluicegate.oauth import shown as quoted
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client
from sluicegate.runtime.own_steps import OwnSteps
from sluicegate.store import StoreFailed

_LOOK_AGAIN: Final = 0.25  # while a call waits for one
_JUST_NOW: Final = 0.05  # shorter than the command that logs in takes to end
_SPARE: Final = 10.0  # calls without a login look no more often than takes a tenth of the time
LOOK_EVERY: Final = 1.0
"""Seconds until a login of another process is noticed."""
GATEWAY: Final = "gateway"
MACHINE: Final = "machine"
_GOOD: Final = ("ok", "expired", "refused")  # of the last, that no token is taken is said, and nobody is asked
SERVICE: Final = "sluicegate.app.login_service"
DEFAULT: Final = ServerLogin.model_construct()  # unchecked: pydantic would compile the model a second time

log = logging.getLogger(__name__)

OnChange = Callable[[str, Collection[str], Collection[str]], None]
"""Takes the key of a server whose logins are others now, all their ids, and those that are new or were renewed."""


def may_log_in(server: object) -> bool:
    return isinstance(server, HttpServer) and server.enabled and server.may_log_in


def whose(per: str, client: Client) -> str:
    """Whose login a client uses; empty for whoever can have none. A key that takes another's name is somebody else."""
    if per == GATEWAY:
        return GATEWAY
    if client.principal == "anonymous":
        return ""
    if per == "owner" and client.owner:
        return f"owner:{client.owner}"
    return f"{client.principal} {client.credential}" if client.credential else client.principal


def principal_of(whose: str) -> str:
    """Whom a person knows it by: a key without its mark. Subjects of tokens and owners may have blanks."""
    return whose.partition(" ")[0] if whose.startswith("key:") else whose


def kind_of(info: Any) -> str:
    """Whose login a `LoginInfo` is of, in one word."""
    kind = info.whose.partition(":")[0]
    return MACHINE if info.is_machine else kind if kind in (GATEWAY, "owner") else "client"


class NoLogin(Exception):
    """None can be begun; `is_final`: nor later, as things are configured."""

    def __init__(self, text: str, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


class LoginIndex:
    """Which logins there are, as the store says, also where another process wrote them."""

    def __init__(self, open_: Callable[[], Any], config: Config) -> None:
        """`open_` opens the login room, when it is needed first: gives its `Logins`."""
        self._open = open_
        self.logins: Any = None
        """The `Logins` of the login room. Only where a server has one."""
        self._ids: dict[tuple[str, str], str] = {}
        self._generations: dict[str, int] = {}
        self._abouts: dict[str, dict[str, Json]] = {}
        self._looked_at, self._took = -inf, 0.0  # when the last look began that has ended, and its own seconds
        self._failure: StoreFailed | None = None  # of that look
        self._is_due, self._turn = anyio.Event(), anyio.Lock()
        self._states: Counter[tuple[str, str]] = Counter()
        self.on_change = Late[OnChange](lambda server, logins, new: None)
        self._links: Any = None
        self.page = Late[Callable[[str, Client], str]](lambda server, client: "")
        self._group: TaskGroup | None = None
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._per = {
            key: (server.login or DEFAULT).per
            for key, server in config.servers.items() if isinstance(server, HttpServer)
        }  # fmt: skip
        able = {key: (server.login or DEFAULT) for key, server in config.servers.items()
                if isinstance(server, HttpServer) and may_log_in(server)}  # fmt: skip
        self.able = frozenset(able)
        """The servers that people can log in to."""
        self._machines = {key for key, login in able.items() if login.grant == "client_credentials"}
        self._has_anonymous = config.clients.anonymous is not None
        self._callback, self._pages = config.login.callback, config.listen.login_pages
        self._lending = frozenset(key for key, login in able.items() if login.list == "known")
        if able and self.logins is None:
            self.logins = self._open()
        if self.logins is not None:
            self.logins.configure(import_module(SERVICE).login_settings(config))

    async def wait(self, server: str, client: Client, seconds: float) -> bool:
        """Whether the client has a login, at the latest after so many seconds."""
        until = anyio.current_time() + seconds
        while True:
            await self._look_in_turn(anyio.current_time() - _JUST_NOW)
            if self.find(server, client) or anyio.current_time() >= until:
                return bool(self.find(server, client))
            await anyio.sleep(_LOOK_AGAIN)

    async def _look_in_turn(self, since: float) -> None:
        """Once for all calls that have come meanwhile, also where it fails. Ten thousand logins take 50 ms."""
        async with self._turn:
            if self._looked_at < since:
                await anyio.sleep_until(self._looked_at + min(_SPARE * self._took, LOOK_EVERY))
                await self._look()
            elif self._failure is not None:
                raise self._failure.with_traceback(None)

    def objection(self, server: str, client: Client) -> str:
        """Why a client can have no login to a server; empty where it can."""
        if server not in self.able:
            return f"there is no server {server} that one can log in to"
        if server in self._machines:
            return f"{server} has an account of Sluice's own: nobody logs in"
        if not self.whose(server, client):
            return f"{server}: {_without_key(server)}"
        return ""

    def whose(self, server: str, client: Client) -> str:
        return whose(self._per.get(server, ""), client)

    def servers(self) -> Collection[str]:
        """The keys of the servers that a person can log in to."""
        return self.able - self._machines

    def has_any(self, server: str) -> bool:
        return server in self._machines or any(key == server for key, _ in self._ids)

    def find(self, server: str, client: Client) -> str:
        """On the hot path."""
        if server in self._machines:
            return MACHINE
        if not self._ids:
            return ""
        return self._ids.get((server, whose(self._per.get(server, ""), client)), "")

    def lends(self, server: str, client: Client) -> bool:
        """Whether a client that has no login, and can have one, is shown what people have accepted of that server."""
        return server in self._lending and not self.find(server, client) and bool(self.whose(server, client))

    def abouts(self, server: str) -> Mapping[str, Json]:
        """What the audit log says of each login to that server, by its id; kept up to date."""
        return self._abouts.setdefault(server, {})

    def account(self, server: str, identity: str, login: str) -> Account:
        """`identity` is that of the server which is called: a reload may give another one to the same key."""
        if not login:
            return WithoutToken(server, self._per.get(server, ""), self._pages, lambda: self._has_anonymous)
        owner = GATEWAY if login == MACHINE else next(
            (whose for (key, whose), id in self._ids.items() if (key, id) == (server, login)), ""
        )
        made = import_module(SERVICE).LoggedIn
        moved = partial(self._look_soon, login)
        account: Account = made(self.logins, server, identity, owner, login, moved, self._pages)
        return account

    def _look_soon(self, login: str) -> None:
        """There is another login than this one, or it is this one and an earlier one's token was kept: the store is
        looked at before the next call, and the account tries again."""
        self._generations.pop(login, None)
        self._is_due.set()

    async def look(self) -> None:
        """Raises `StoreFailed`."""
        async with self._turn:  # what was read first must not take effect last
            await self._look()

    async def _look(self) -> None:
        if self.logins is None:
            return
        since, work = anyio.current_time(), OwnSteps[Any](self.logins.all())
        try:
            every = await work
        except StoreFailed as error:
            self._looked_at, self._failure = since, error
            raise
        self._looked_at, self._failure, self._took = since, None, work.seconds
        self._states = Counter((one.server, one.state) for one in every)
        good = [one for one in every if one.state in _GOOD]
        before, generations = self._ids, self._generations
        self._ids = {(one.server, one.whose): one.id for one in good}
        for abouts in self._abouts.values():
            abouts.clear()
        for one in good:
            self._abouts.setdefault(one.server, {})[MACHINE if one.server in self._machines else one.id] = {
                "id": one.id, "per": self._per.get(one.server, ""), "issuer": one.issuer, "generation": one.generation,
            }  # fmt: skip
        self._generations = {one.id: one.generation for one in good}
        new = {one.id for one in good if generations.get(one.id) != one.generation}
        changed = {key for (key, _), _ in before.items() ^ self._ids.items()}
        changed |= {one.server for one in good if one.id in new}
        for server in changed - self._machines:
            ids = {one.id for one in good if one.server == server}
            self.on_change()(server, ids, ids & new)

    def samples(self) -> Iterator[Sample]:
        for (server, state), count in self._states.items():
            yield "sluice_logins", (server, state), count

    async def begin_link(self, server: str, client: Client) -> LoginLink | None:
        """A page on which the client's person logs in. At this machine only `local` gets one: nobody else is known to
        sit here. None where it cannot be had."""
        if url := self.page()(server, client):
            return LoginLink(token_hex(16), url)
        if client.principal != LOCAL or self.objection(server, client):
            return None
        try:
            return await self.open_link(server, client, client)
        except NoLogin as error:
            log.warning("no login can be begun", extra={"server": server, "why": str(error)})
            return None

    async def open_link(self, server: str, client: Client, by: Client) -> LoginLink:
        """The same for a client that an operator (`by`) names. Raises `NoLogin`."""
        if self._group is None or self.logins is None:
            raise NoLogin("Sluice is stopping", is_final=False)
        if self._links is None:  # by name: what serves the page is not imported before somebody needs it
            module = import_module("sluicegate.app.login_callback")
            self._links = module.LoginLinks(self.logins, self._group)
        link: LoginLink = await self._links.begin(server, self.whose(server, client), self._callback, by)
        return link

    async def all(self) -> list[Any]:
        """A `LoginInfo` of each. Raises `StoreFailed`."""
        return [] if self.logins is None else list(await self.logins.all())

    async def logout(self, server: str, whose: str) -> bool | None:
        """True: revoked there; False: deleted here alone; None: there was none. Raises `StoreFailed`."""
        ended: bool | None = None if self.logins is None else await self.logins.logout(server, whose)
        await self.look()
        return ended

    def state(self) -> object:
        """Differs where logins do."""
        return self._states, self._generations

    async def aclose(self) -> None:
        if self.logins is not None:
            await self.logins.aclose()

    async def run(self) -> None:
        async with anyio.create_task_group() as self._group:
            while True:
                with anyio.move_on_after(LOOK_EVERY):
                    await self._is_due.wait()
                self._is_due = anyio.Event()
                try:
                    await self.look()
                except StoreFailed:  # the store has said why; what was known stays
                    continue


class WithoutToken:
    """Requests while nobody is logged in."""

    def __init__(
        self, server: str, per: str, pages: str = "", has_anonymous: Callable[[], bool] = lambda: False
    ) -> None:
        self._server, self._per, self._pages, self._has_anonymous = server, per, pages, has_anonymous

    def headers(self) -> Credentials:
        return ()

    async def renewed(self) -> Credentials:
        return ()

    async def rejected(self, used: Credentials, status: int, challenges: Sequence[str]) -> Credentials:
        more = f" {_without_key(self._server)}." if self._per != GATEWAY and self._has_anonymous() else ""
        raise LoginRequired(sentence(self._server, self._per, self._pages) + more)


def _without_key(server: str) -> str:
    how = f"give it a key, or write servers.{server}.login.per: gateway, and log in again"
    return f"A client without a key or token can have no login of its own: {how}"


def sentence(server: str, per: str, pages: str, scopes: Sequence[str] = ()) -> str:
    """What the caller is told; `pages` is where people log in, if they can. The scopes are the server's own words, and
    could make a sentence: they are bounded, and stand in quotes."""
    more = f" the further right {quoted(' '.join(scopes))}" if scopes else ""
    if per == GATEWAY:
        what = f"needs{more}" if more else "needs a login"
        return f"{server} {what}. Whoever runs Sluice types `sluice login {server}`; then call again."
    what = f"needs{more}" if more else "needs your login"
    how = f"Open {pages}{server} or run" if pages else "Run"
    return f"{server} {what}. {how} `sluice login {server}`, then call again."
