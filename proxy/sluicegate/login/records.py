"""What is kept of logins, and under which keys. Each value is sealed for its own key: a row that was copied to another
one does not open, and counts as none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, unquote

from sluicegate.login.model import LoginInfo, LoginSettings, LoginState
from sluicegate.oauth.clients import OAuthClient
from sluicegate.oauth.metadata import AuthorizationServer
from sluicegate.oauth.urls import covers
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import Store, StoreFailed, Write
from sluicegate.store.keys import Sealer

MAX_RECORD: Final = 64 * 1024
_IN_ONE_STEP: Final = 50  # records that are opened before others have their turn
LOGINS: Final = "login"
CLIENTS: Final = "login-client"
FLOWS: Final = "login-flow"
FLOW_LISTS: Final = "login-flows"
LEASES: Final = "login-lease"
SERVERS: Final = "login-server"

OpenSealer = Callable[[], Awaitable[Sealer]]
"""Raises `StoreFailed` while the key cannot be read."""

T = TypeVar("T")


class RecordTooLarge(ValueError):
    """It is not kept."""


@dataclass(frozen=True, slots=True)
class Login:
    """`at` and `client` are as they were when a person logged in. `life` is that of the token in seconds, `pending` are
    the scopes of a step-up that a person has not made yet, `steps` the times of those that were made, `problem` why
    the last renewal failed."""

    id: str
    server: str
    whose: str
    identity: str
    chosen: tuple[str, ...]
    resource: str
    at: AuthorizationServer
    client: OAuthClient
    asked: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    access: str = field(default="", repr=False)
    refresh: str = field(default="", repr=False)
    obtained: float = 0.0
    life: float | None = None
    expires_at: float | None = None
    generation: int = 0
    state: Literal["ok", "needed", "refused", "leaving"] = "ok"
    quiet_until: float = 0.0
    pending: tuple[str, ...] = ()
    steps: tuple[float, ...] = ()
    problem: str = ""

    def belongs_to(self, settings: LoginSettings) -> bool:
        """Whether its tokens may be sent to the server as it is configured now."""
        is_its = self.identity == settings.identity and self.chosen == settings.chosen
        return is_its and (settings.resource is not None or not self.resource or covers(self.resource, settings.url))

    def info(self, settings: LoginSettings | None, now: float) -> LoginInfo:
        can_refresh = bool(self.refresh) or self.chosen[:1] == ("client_credentials",)
        state: LoginState = self.state
        if settings is None or not self.belongs_to(settings):
            state = "needed"
        elif state == "refused" and not is_soon(self.quiet_until, now, 60.0):
            state = "ok"
        if state == "ok" and not can_refresh and self.expires_at is not None and self.expires_at <= now:
            state = "expired"
        return LoginInfo(self.id, self.server, self.whose, self.at.issuer, self.client.id, self.granted,
                         self.expires_at, state, self.generation, can_refresh,
                         self.chosen[:1] == ("client_credentials",), self.obtained or None, self.problem)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """A login that waits for a person, or how it ended: then nothing secret is left in it. `browser` is the SHA-256 of
    what the browser that began it shows again, empty where it began in none. `by` is the principal who began it, with
    that `credential` and these `roles`; empty for whoever runs Sluice."""

    server: str
    whose: str
    identity: str
    chosen: tuple[str, ...]
    redirect_uri: str
    expires: float
    resource: str
    at: AuthorizationServer
    client: OAuthClient
    asked: tuple[str, ...] = ()
    is_step: bool = False
    verifier: str = field(default="", repr=False)
    browser: str = ""
    state: Literal["waiting", "spent", "done", "failed"] = "waiting"
    text: str = ""
    by: str = ""
    credential: str = ""
    roles: tuple[str, ...] = ()

    def ended(self, state: Literal["spent", "done", "failed"], text: str = "") -> "FlowRecord":
        return replace(self, state=state, text=text, verifier="", client=replace(self.client, secret=""))


def is_soon(moment: float, now: float, most: float) -> bool:
    """Whether it is still to come, and not because the clock was set back."""
    return now < moment <= now + most


def key_of(kind: str, *parts: str) -> str:
    return "/".join((kind, *(quote(part, safe="", errors="surrogatepass") for part in parts)))


def _unquoted(part: str) -> str:
    return unquote(part, errors="surrogatepass")


def flow_key(id: str) -> str:
    return key_of(FLOWS, id)


class Records:
    """The one reader and writer of all of them. Methods raise `StoreFailed`."""

    def __init__(self, store: Store, seal: OpenSealer) -> None:
        self.store, self._open_seal = store, seal
        self._seal: Sealer | None = None
        self._opened: dict[str, tuple[bytes, Login | None]] = {}

    async def read(self, key: str) -> tuple[bytes | None, Json | None]:
        """What stands there as it is stored, and what it says; None for what does not open."""
        raw, seal = await self.store.get(key), await self._sealer()
        return raw, None if raw is None else _unsealed(seal, key, raw)

    def write(self, key: str, payload: Mapping[str, Any], ttl: float | None = None) -> Write:
        """Raises `RecordTooLarge`."""
        if self._seal is None:
            raise StoreFailed("the key of logins was not read yet")
        value = self._seal.seal(key.split("/")[0], dict(payload), key).encode("ascii")
        if len(value) > MAX_RECORD:
            raise RecordTooLarge("what would have to be kept is too large")
        return Write(key, value, ttl)

    async def login(self, server: str, whose: str) -> tuple[bytes | None, Login | None]:
        raw, payload = await self.read(key_of(LOGINS, server, whose))
        return raw, _read(Login, payload)

    def write_login(self, login: Login) -> Write:
        return self.write(key_of(LOGINS, login.server, login.whose), asdict(login))

    async def flow(self, id: str) -> tuple[bytes | None, FlowRecord | None]:
        raw, payload = await self.read(flow_key(id))
        return raw, _read(FlowRecord, payload)

    async def client(self, key: str) -> tuple[bytes | None, OAuthClient | None]:
        raw, payload = await self.read(key)
        return raw, _read(OAuthClient, payload)

    async def logins(self) -> list[tuple[str, str, Login | None]]:
        """Server, whose and record of all; None where it does not open. What is unchanged is not opened again: who
        wants to know of other processes' logins asks each second."""
        before, opened = self._opened, dict[str, tuple[bytes, Login | None]]()
        seal = await self._sealer()
        for number, (key, raw) in enumerate((await self.store.scan(f"{LOGINS}/")).items(), 1):
            entry = before.get(key)
            if entry is None or entry[0] != raw:
                entry = raw, _read(Login, _unsealed(seal, key, raw))
            opened[key] = entry
            if not number % _IN_ONE_STEP:
                await asyncio.sleep(0)
        self._opened = opened
        places = ((key.split("/")[1:], login) for key, (_, login) in opened.items())
        return [(_unquoted(parts[0]), _unquoted(parts[1]), login) for parts, login in places if len(parts) == 2]

    async def _sealer(self) -> Sealer:
        self._seal = self._seal or await self._open_seal()
        return self._seal


def _unsealed(seal: Sealer, key: str, raw: bytes) -> Json | None:
    return seal.unseal(key.split("/")[0], raw.decode("ascii", "replace"), key)


_NESTED: Final[Mapping[str, type]] = {"at": AuthorizationServer, "client": OAuthClient}


def _read(cls: type[T], payload: Json | None) -> T | None:
    """None for what another version wrote."""
    if payload is None:
        return None
    made: dict[str, Any] = {}
    names = {one.name for one in fields(cls)}  # type: ignore[arg-type]  # a dataclass, which no bound of T says without typeshed
    for name, value in payload.items():
        nested = _NESTED.get(name) if isinstance(value, dict) else None
        made[name] = _read(nested, value) if nested else tuple(value) if isinstance(value, list) else value
    try:
        return cls(**made) if made.keys() <= names else None
    except TypeError:
        return None
