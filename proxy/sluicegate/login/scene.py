"""What the parts of `login` share: the settings in force, records, network, clock, and who is told."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sluicegate.http.fetch import Fetcher
from sluicegate.login import records
from sluicegate.login.discovery import Discovered, Discovery
from sluicegate.login.model import EventWord, LoginEvent, LoginFailed, LoginSettings, LoginUnavailable
from sluicegate.login.network import LoginNetwork
from sluicegate.login.records import Login, OpenSealer, Records, RecordTooLarge
from sluicegate.oauth import Unfit
from sluicegate.oauth.challenges import BearerChallenge
from sluicegate.protocol.model import Client
from sluicegate.store import Store, StoreFailed
from sluicegate.store.keys import KeyUnavailable

MayLogIn = Callable[[str, str, Client], bool]
"""(server, whose, who began it): whether they may log in for `whose` now, with the key or groups of then."""


def anybody(server: str, whose: str, by: Client) -> bool:
    return True


class Scene:
    def __init__(
        self, store: Store, seal: OpenSealer, fetcher: Fetcher, tell: Callable[[LoginEvent], None],
        clock: Callable[[], float] = time.time, may_log_in: MayLogIn = anybody,
    ) -> None:  # fmt: skip
        self.records, self.clock, self._tell = Records(store, seal), clock, tell
        self.may_log_in = may_log_in
        self.network = LoginNetwork(fetcher, clock)
        self.discovery = Discovery(self.network)
        self.servers: Mapping[str, LoginSettings] = {}

    def settings(self, server: str) -> LoginSettings:
        """Raises `LoginUnavailable` for a server that a reload took away."""
        found = self.servers.get(server)
        if found is None:
            raise LoginUnavailable(f"{server} has no login")
        return found

    async def find(
        self, settings: LoginSettings, whose: str, challenge: BearerChallenge | None, by_device: bool = False
    ) -> Discovered:
        """What is found now, judged by what was found before: a server that had metadata is never taken for an older
        one, and a client id of the config goes to no second authorization server."""
        key = records.key_of(records.SERVERS, settings.server)
        _, seen = await self.records.read(key)
        if seen is None or seen.get("identity") != settings.identity:
            seen = {}
        found = await self.discovery.find(settings, challenge, seen.get("has_metadata") is True, by_device)
        before, issuer = seen.get("issuer"), found.at.issuer
        if before not in (None, issuer):
            self.tell("issuer_changed", settings.server, whose, issuer=issuer, reason=f"before: {before}")
            if settings.client_id and settings.client_id == seen.get("client_id") and settings.issuer is None:
                raise LoginFailed(
                    f"{settings.server} names another authorization server than before, and client_id is of that one: "
                    "set login.issuer to the right one"
                )
        now = {
            "identity": settings.identity, "has_metadata": found.has_metadata, "issuer": issuer,
            "client_id": settings.client_id,
        }  # fmt: skip
        if now != seen:
            await self.records.store.swap(key, await self.records.store.get(key), [self.records.write(key, now)])
        return found

    def tell(
        self, what: EventWord, server: str, whose: str, login: Login | None = None, *, issuer: str = "",
        client_id: str = "", scopes: tuple[str, ...] = (), reason: str = "", by: str = "",
    ) -> None:  # fmt: skip
        if login is None:
            event = LoginEvent(what, server, whose, "", issuer, client_id, scopes, reason, by)
        else:
            scopes = scopes or login.granted
            event = LoginEvent(what, server, whose, login.id, login.at.issuer, login.client.id, scopes, reason, by)
        self._tell(event)


@contextmanager
def plainly(server: str) -> Iterator[None]:
    """Turns what went wrong inside into what callers of `Logins` know."""
    try:
        yield
    except Unfit as error:
        raise LoginFailed(f"{server}: {error}") from None
    except RecordTooLarge as error:
        raise LoginFailed(f"{server}: {error}") from None
    except KeyUnavailable as error:
        raise LoginUnavailable(str(error)) from None
    except StoreFailed:
        raise LoginUnavailable("what is kept of logins can be neither read nor written") from None
