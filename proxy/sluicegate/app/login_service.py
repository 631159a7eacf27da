"""The login room, wired: settings of the config, what is recorded and counted, and tokens in requests. It is imported
when a config has the first server that people can log in to."""

import base64
import logging
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import anyio

from sluicegate.app import state
from sluicegate.app.logins import DEFAULT, GATEWAY, MACHINE, may_log_in, principal_of, sentence
from sluicegate.app.settings import KEYS
from sluicegate.audit.log import AuditLog
from sluicegate.config import Config, os_keyring
from sluicegate.config.os_keyring import NoKeyring
from sluicegate.downstream.failures import LoginRequired, Lost
from sluicegate.downstream.settings import Credentials
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.login.logins import Logins
from sluicegate.login.model import (
    Bearer,
    CachedBearer,
    LoginEvent,
    LoginInfo,
    LoginNeeded,
    LoginSettings,
    LoginUnavailable,
)
from sluicegate.login.scene import MayLogIn, anybody
from sluicegate.metrics.scraped import Sample
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import Store, StoreFailed, private
from sluicegate.store.keys import KEY_BYTES, KeyRing, KeyUnavailable, Sealer

# The key that seals logins is in the keyring of the operating system, or in a file of the state directory. Its place is
# chosen once and written down: a keyring that is locked at a later start would otherwise look like a state directory
# without logins. A file does not protect logins from other programs of the same account; a keyring may.
RING: Final = "login"
NAMED: Final = "login.keyring"
"""The file, beside that of the key, that names the entry in the keyring."""
PROBE: Final = 3.0
AGAIN: Final = 60.0
"""Seconds until a keyring that failed is asked again: it may ask its user to unlock it each time."""

KeyPlace = Literal["auto", "keyring", "file"]

log = logging.getLogger(__name__)


def load_key(directory: Path, location: KeyPlace) -> KeyRing:
    """The ring, made at the first use, and moved where `location` is no longer where it is. Waits up to ten seconds for
    a keyring. Raises `KeyUnavailable`, and what `KeyRing.load` raises."""
    private.make_directory(directory)
    private.check(directory, private.DIRECTORY)
    with _alone(directory):
        return _load(directory, location)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process chooses: of two that start at once, one may reach the keyring in time and the other may not."""
    if sys.platform == "win32":
        yield
        return
    opened = os.open(directory, os.O_RDONLY)
    try:
        private.lock(opened, wait=True)
        yield
    finally:
        os.close(opened)


def _load(directory: Path, location: KeyPlace) -> KeyRing:
    file, named = directory / RING, directory / NAMED
    if named.exists():
        ring = _from_keyring(named)
        if location == "file":
            name = named.read_text("ascii").strip()
            private.write(file, f"{_text(ring)}\n".encode("ascii"), replace=True)
            named.unlink()
            with suppress(NoKeyring):
                os_keyring.delete(name)
        elif file.exists() and _text(KeyRing.load(directory, RING)) == _text(ring):
            file.unlink()  # a move that ended half-way
        return ring
    if file.exists():
        ring = KeyRing.load(directory, RING)
        if location == "keyring":
            _to_keyring(ring, named)
            file.unlink()
        return ring
    if location == "file" or (location == "auto" and os_keyring.why_none(PROBE)):
        return KeyRing.load(directory, RING)
    _to_keyring(KeyRing([secrets.token_bytes(KEY_BYTES)]), named)
    return _from_keyring(named)


def _from_keyring(named: Path) -> KeyRing:
    private.check(named, private.FILE)
    name = named.read_text("ascii").strip()
    try:
        text = os_keyring.get(name)
    except NoKeyring as error:
        raise KeyUnavailable(f"the key of logins is in the keyring, as {_entry(name)}: {error}") from None
    if text is None:
        raise KeyUnavailable(
            f"the keyring has no entry {_entry(name)} any more, with the key of logins: restore it, or delete "
            f"keys/{NAMED} in state.dir and log in again"
        )
    try:
        return KeyRing.parse(text)
    except ValueError as error:
        raise KeyUnavailable(f"the keyring's entry {_entry(name)} is damaged: {error}") from None


def _entry(name: str) -> str:
    return f"{os_keyring.SERVICE}/{name}"


def _to_keyring(ring: KeyRing, named: Path) -> None:
    """Under a new name: an entry that is there may be another state directory's."""
    name = f"login-{secrets.token_hex(8)}"
    try:
        os_keyring.put(name, _text(ring))
    except NoKeyring as error:
        raise KeyUnavailable(f"login.key: keyring: {error}") from None
    private.write(named, f"{name}\n".encode("ascii"), replace=True)


def _text(ring: KeyRing) -> str:
    """As `KeyRing.parse` reads it."""
    return "\n".join(base64.urlsafe_b64encode(key).decode("ascii") for key in ring.keys.values())


def opener(
    directory: Path, location: KeyPlace, clock: Callable[[], float] = time.monotonic
) -> Callable[[], Awaitable[Sealer]]:
    """Gives the sealer of logins once its key could be read: in a thread, as a keyring may take its time."""
    sealer: Sealer | None = None
    failed, at = "", 0.0
    turn = anyio.Lock()

    async def opened() -> Sealer:
        nonlocal sealer, failed, at
        if sealer is not None:
            return sealer
        async with turn:
            if sealer is None:
                if failed and clock() - at < AGAIN:
                    raise KeyUnavailable(failed)
                try:
                    sealer = Sealer(await anyio.to_thread.run_sync(load_key, directory, location))
                except KeyUnavailable as error:
                    log.error(str(error))
                    failed, at = str(error), clock()
                    raise
        return sealer

    return opened


_OMIT: Final = "omit"
_FLOWS: Final = {"login_asked": "asked", "login_done": "done", "scopes_added": "done", "login_failed": "failed"}
_REFRESHES: Final = ("invalid_grant", "lost")


def open_logins(
    config: Config, store: Store, egress: Egress, audit: AuditLog | None, tally: "LoginTally | None" = None,
    may_log_in: MayLogIn = anybody, ring: KeyRing | None = None, clock: Callable[[], float] = time.time,
) -> Logins:  # fmt: skip
    def tell(event: LoginEvent) -> None:
        """No token, code or secret is in the record."""
        if audit is not None:
            about: Json = {"what": event.what, "server": event.server, "principal": principal_of(event.whose)}
            more = {"login": event.login, "issuer": event.issuer, "client_id": event.client_id,
                    "scopes": list(event.scopes), "why": event.reason, "by": event.by}  # fmt: skip
            audit.note("identity", about | {name: value for name, value in more.items() if value})
        if tally is not None:
            tally.add(event)

    logins = Logins(store, _sealer(config, ring), Fetcher(egress), tell, clock, may_log_in)
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
    endpoints, document = login.endpoints, config.login.client_document or client_document(config, key)
    return LoginSettings(
        server=key, identity=server.identity, url=server.url, grant=login.grant,
        client_id=login.client_id,
        client_secret=login.client_secret.get_secret_value() if login.client_secret else None,
        # What is no PEM fails where it is used: an error here would end a reload half-way.
        client_key=Path(login.client_key).read_text("utf-8", "replace") if login.client_key else None,
        auth=login.auth, issuer=login.issuer,
        authorize=endpoints.authorize if endpoints else None,
        token=endpoints.token if endpoints else None,
        revoke=endpoints.revoke if endpoints else None,
        scopes=login.scopes, max_scopes=login.max_scopes,
        resource="" if login.resource == _OMIT else login.resource,
        pkce=login.pkce, params=dict(login.params), client_document=document,
        ca=str(server.ca) if server.ca else None, within=config.login.within,
    )  # fmt: skip


def client_document(config: Config, server: str) -> str:
    """Where a gateway serves its own client ID metadata document: only an https URL can be a client id. Each server has
    its own, or what one authorization server gave for one could be used up at another's (RFC 9700 4.4, mix-up)."""
    pages = config.listen.login_pages
    return f"{pages}client/{quote(server)}.json" if pages.startswith("https:") else ""


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
        self._cached = _NOTHING
        self._last: Bearer | None = None
        self._headers: Credentials = ()

    def headers(self) -> Credentials:
        cached = self._cached
        return self._headers if cached.since <= self._clock() < cached.until else self._look()

    def _look(self) -> Credentials:
        cached = self._logins.cached(self._server, self._whose)
        if cached is None:
            return ()
        headers, self._cached = self._taken(cached.bearer), cached
        return headers

    def _taken(self, bearer: Bearer) -> Credentials:
        if self._login not in (bearer.login, MACHINE):
            self._moved()
            raise LoginRequired(f"The login to {self._server} is another one now. Call again.")
        if bearer.identity != self._identity:  # a reload gave the key another address while this one is being left
            raise Lost("the config names another address for it now", sent=False)
        if bearer is not self._last:
            authorization = AUTHORIZATION, f"Bearer {bearer.token}".encode("ascii")
            self._cached, self._last, self._headers = _NOTHING, bearer, (authorization,)
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
