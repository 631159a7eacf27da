"""The login room, wired: settings of the config, what is recorded and counted, and tokens in requests. It is imported
when a config has the first server that people can log in to."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sluicegate.app import state
from sluicegate.app.login_key import opener
from sluicegate.app.logins import DEFAULT, GATEWAY, MACHINE, may_log_in, principal_of, sentence
from sluicegate.app.settings import KEYS
from sluicegate.audit.log import AuditLog
from sluicegate.config import Config
from sluicegate.downstream.failures import LoginRequired, Lost
from sluicegate.downstream.settings import Credentials
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.login import (
    Bearer,
    CachedBearer,
    LoginEvent,
    LoginInfo,
    LoginNeeded,
    Logins,
    LoginSettings,
    LoginUnavailable,
    MayLogIn,
    anybody,
)
from sluicegate.metrics.scraped import Sample
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import Store, StoreFailed
from sluicegate.store.keys import KeyRing, Sealer

_OMIT: Final = "omit"
_FLOWS: Final = {
    "login_asked": "asked", "login_done": "done", "scopes_added": "done", "login_failed": "failed",
}  # fmt: skip
_REFRESHES: Final = ("invalid_grant", "lost")


def open_logins(
    config: Config, store: Store, egress: Egress, audit: AuditLog | None, tally: "LoginTally | None" = None,
    may_log_in: MayLogIn = anybody, ring: KeyRing | None = None,
) -> Logins:  # fmt: skip
    def tell(event: LoginEvent) -> None:
        note_login(audit, event)
        if tally is not None:
            tally.add(event)

    logins = Logins(store, _sealer(config, ring), Fetcher(egress), tell, may_log_in=may_log_in)
    logins.configure(login_settings(config))
    return logins


def _sealer(config: Config, ring: KeyRing | None) -> Callable[[], Awaitable[Sealer]]:
    """`ring` is that of the config, where replicas agree on its key."""
    if not state.is_given(config, "login"):
        return opener(Path(config.state.dir) / KEYS, config.login.key)
    sealer = Sealer(ring or state.ring(config, "login"))

    async def given() -> Sealer:
        return sealer

    return given


def login_settings(config: Config) -> dict[str, LoginSettings]:
    return {key: _settings(key, server, config) for key, server in config.servers.items() if may_log_in(server)}


def _settings(key: str, server: Any, config: Config) -> LoginSettings:
    login = server.login or DEFAULT
    endpoints, document = login.endpoints, config.login.client_document or client_document(config)
    return LoginSettings(
        server=key, identity=server.identity, url=server.url, per=login.per, grant=login.grant,
        client_id=login.client_id,
        client_secret=login.client_secret.get_secret_value() if login.client_secret else None,
        client_key=Path(login.client_key).read_text("ascii") if login.client_key else None,
        auth=login.auth, issuer=login.issuer,
        authorize=endpoints.authorize if endpoints else None,
        token=endpoints.token if endpoints else None,
        revoke=endpoints.revoke if endpoints else None,
        scopes=login.scopes, max_scopes=login.max_scopes,
        resource="" if login.resource == _OMIT else login.resource,
        pkce=login.pkce, params=dict(login.params), client_document=document,
        ca=str(server.ca) if server.ca else None, within=config.login.within,
    )  # fmt: skip


def client_document(config: Config) -> str:
    """Where a gateway serves its own client ID metadata document: only an https URL can be a client id."""
    pages = config.listen.login_pages
    return f"{pages}client.json" if pages.startswith("https:") else ""


def note_login(audit: AuditLog | None, event: LoginEvent) -> None:
    """No token, code or secret is in it."""
    if audit is not None:
        about: Json = {"what": event.what, "server": event.server, "principal": principal_of(event.whose)}
        more = {"login": event.login, "issuer": event.issuer, "client_id": event.client_id,
                "scopes": list(event.scopes), "why": event.reason, "by": event.by}  # fmt: skip
        audit.note("identity", about | {name: value for name, value in more.items() if value})


class LoginTally:
    """What became of logins and of their refreshes, for the metrics."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def add(self, event: LoginEvent) -> None:
        if event.what in _FLOWS:
            self._counts["sluice_login_flows", event.server, _FLOWS[event.what]] += 1
        elif event.what == "refreshed":
            self._counts["sluice_login_refresh", event.server, "ok"] += 1
        elif event.what == "refresh_failed":
            result = event.reason if event.reason in _REFRESHES else "unavailable"
            self._counts["sluice_login_refresh", event.server, result] += 1

    def samples(self) -> Iterator[Sample]:
        for (name, server, result), count in self._counts.items():
            yield name, (server, result), count


AUTHORIZATION: Final = b"authorization"
_NOTHING: Final = CachedBearer(Bearer("", "", 0, "", "", 0.0), 0.0, 0.0)


class LoggedIn:
    """The token of one login."""

    def __init__(
        self, logins: Logins, server: str, identity: str, whose: str, login: str, moved: Callable[[], None], pages: str
    ) -> None:
        """`identity` is that of the server whose requests show this login. `moved` is told that there is another login
        than this one; `pages` is where people log in."""
        self._pages = pages
        self._logins, self._server, self._identity, self._whose, self._login = logins, server, identity, whose, login
        self._moved = moved
        self._clock = logins.clock
        self._kept = _NOTHING
        self._last: Bearer | None = None
        self._headers: Credentials = ()

    def headers(self) -> Credentials:
        kept = self._kept
        return self._headers if kept.since <= self._clock() < kept.until else self._look()

    def _look(self) -> Credentials:
        kept = self._logins.cached(self._server, self._whose)
        if kept is None:
            return ()
        headers, self._kept = self._taken(kept.bearer), kept
        return headers

    def _taken(self, bearer: Bearer) -> Credentials:
        if self._login not in (bearer.login, MACHINE):
            self._moved()
            raise LoginRequired(f"The login to {self._server} is another one now. Call again.")
        if bearer.identity != self._identity:  # a reload gave the key another address while this one is being left
            raise Lost("the config names another address for it now", sent=False)
        if bearer is not self._last:
            authorization = AUTHORIZATION, f"Bearer {bearer.token}".encode("ascii")
            self._kept, self._last, self._headers = _NOTHING, bearer, (authorization,)
        return self._headers

    async def renewed(self) -> Credentials:
        return self._taken(await self._asked(self._logins.bearer(self._server, self._whose)))

    async def rejected(self, used: Credentials, status: int, challenges: Sequence[str]) -> Credentials:
        bearer = self._last if used == self._headers else None
        return self._taken(await self._asked(
            self._logins.rejected(self._server, self._whose, bearer, status, challenges)
        ))  # fmt: skip

    async def _asked(self, asked: Coroutine[Any, Any, Bearer]) -> Bearer:
        try:
            return await asked
        except LoginNeeded as needed:
            per = GATEWAY if self._whose == GATEWAY else "client"
            raise LoginRequired(sentence(self._server, per, self._pages, needed.scopes), needed.scopes) from None
        except LoginUnavailable as error:
            raise Lost(error.text, sent=False) from None
        except StoreFailed:
            raise Lost("its login cannot be read now", sent=False) from None


def shown(info: LoginInfo) -> Mapping[str, Any]:
    """A login as the CLI and the admin API show it: no token is in it."""
    return {
        "server": info.server, "login": info.id, "whose": principal_of(info.whose), "issuer": info.issuer,
        "client_id": info.client_id, "scopes": list(info.scopes), "expires_at": info.expires_at, "state": info.state,
        "can_refresh": info.can_refresh, "renewed_at": info.renewed_at, "last_error": info.problem,
    }  # fmt: skip
