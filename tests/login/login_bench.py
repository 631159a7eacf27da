"""A bench for logins: both servers, a store, and a person who says yes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from small_authorization_server import AuthorizationServer, ProtectedServer

from sluicegate.app.login_service import opener
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.login.logins import Logins
from sluicegate.login.model import Bearer, LoginEvent, LoginInfo, LoginSettings
from sluicegate.store.sqlite import SqliteStore

BACK = "http://127.0.0.1:7412/callback"


@dataclass
class Clock:
    """Real time, and what a test adds to it."""

    now: Callable[[], float]
    added: float = 0.0

    def __call__(self) -> float:
        return self.now() + self.added


@dataclass
class Bench:
    path: Path
    at: AuthorizationServer
    server: ProtectedServer
    clock: Clock
    settings: LoginSettings
    events: list[LoginEvent] = field(default_factory=list)
    others: list[tuple[Logins, SqliteStore]] = field(default_factory=list)
    logins: Logins = field(init=False)

    def make(self, allowed: tuple[str, ...] = ("127.0.0.1",)) -> Logins:
        """A further process, as far as one can be had in this one: all it shares with others is the store's file."""
        store = SqliteStore(self.path / "state" / "sluice.db", self.clock)
        seal = opener(self.path / "keys", "file")
        made = Logins(store, seal, Fetcher(Egress(allowed), within=2.0), self.events.append, self.clock)
        made.configure({self.settings.server: self.settings})
        self.others.append((made, store))
        return made

    def configure(self, **more: Any) -> None:
        self.settings = replace(self.settings, **more)
        for logins, _ in self.others:
            logins.configure({self.settings.server: self.settings})

    async def log_in(self, whose: str = "local", *, challenge: tuple[str, ...] = (), **more: Any) -> LoginInfo:
        flow = await self.logins.begin("srv", whose, BACK, challenge=challenge)
        return await self.logins.finish(self.at.authorize(flow.url, **more), BACK)

    def told(self) -> list[str]:
        return [event.what for event in self.events]

    async def refused(self, used: Bearer | None, whose: str = "local", *, status: int = 401, challenge: str = "Bearer",
                      logins: Logins | None = None) -> Bearer:  # fmt: skip
        return await (logins or self.logins).rejected("srv", whose, used, status, [challenge])
