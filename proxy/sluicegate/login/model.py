"""The words of logins: what a server's login is set to, what callers get, and how it can fail.

`whose` is opaque text: for whom a login is kept, such as `local`, `key:NAME` or `gateway`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sluicegate.oauth.clients import Method

LoginState = Literal["ok", "expired", "needed", "refused", "leaving"]
EventWord = Literal[
    "login_asked", "login_done", "login_failed", "refreshed", "refresh_failed", "scopes_added", "issuer_changed",
    "logged_out",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """Of one server. A token is sent only where the record's `identity` is this one."""

    server: str
    identity: str
    url: str
    grant: Literal["code", "client_credentials"] = "code"
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_key: str | None = field(default=None, repr=False)  # the text of a PEM file: private_key_jwt
    auth: Method | None = None
    issuer: str | None = None  # pins the authorization server
    authorize: str | None = None  # endpoints without metadata
    token: str | None = None
    revoke: str | None = None
    scopes: tuple[str, ...] | None = None  # None: as the server says
    max_scopes: tuple[str, ...] = ("*",)
    resource: str | None = None  # None: as the server says; "": none is sent
    pkce: Literal["required", "assume"] = "required"
    params: Mapping[str, str] = field(default_factory=dict)
    client_document: str = ""
    ca: str | None = None  # certificates for the server's own host
    within: float = 600.0  # seconds that a person has

    @property
    def is_machine(self) -> bool:
        return self.grant == "client_credentials"

    @property
    def configured(self) -> tuple[str, ...]:
        """The URLs whose origins the operator named."""
        return tuple(one for one in (self.url, self.issuer, self.token, self.revoke) if one)

    @property
    def chosen(self) -> tuple[str, ...]:
        """What a login depends on: where the config changes it, an older login is not used."""
        resource = "found" if self.resource is None else f"={self.resource}"
        return self.grant, self.client_id or "", resource, self.issuer or "", self.token or ""


@dataclass(frozen=True, slots=True)
class Bearer:
    """`fresh_until` is a time of the clock, until which the token may be sent without asking again. `identity` is that
    of the server (`LoginSettings`): to no other address may it be sent."""

    token: str = field(repr=False)
    login: str
    generation: int
    issuer: str
    identity: str
    fresh_until: float


@dataclass(slots=True)
class CachedBearer:
    """A token that may be sent as it is from `since` to `until`. Whoever holds this sees in `until` that the token was
    forgotten."""

    bearer: Bearer
    since: float
    until: float  # when the store is asked again; 0 for what is forgotten


@dataclass(frozen=True, slots=True)
class Flow:
    """A login that waits for a person; `url` is to be opened. `scopes` are those that are asked for at `issuer`."""

    id: str
    server: str
    whose: str
    url: str = field(repr=False)
    expires: float
    issuer: str
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceFlow:
    """A login that waits for a person at another device: there `user_code` is typed at `url`, or `complete` opened.
    `login` is what it becomes; its type is for `login` alone."""

    server: str
    whose: str
    url: str
    complete: str = field(repr=False)
    user_code: str = field(repr=False)
    expires: float
    code: str = field(repr=False)
    interval: float
    login: Any = field(repr=False)
    is_step: bool


@dataclass(frozen=True, slots=True)
class LoginInfo:
    id: str
    server: str
    whose: str
    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    expires_at: float | None
    state: LoginState
    generation: int
    can_refresh: bool
    is_machine: bool = False
    renewed_at: float | None = None
    problem: str = ""
    """Why its last renewal failed; empty once one went well."""


@dataclass(frozen=True, slots=True)
class LoginEvent:
    what: EventWord
    server: str
    whose: str
    login: str = ""
    issuer: str = ""
    client_id: str = ""
    scopes: tuple[str, ...] = ()
    reason: str = ""
    by: str = ""
    """The principal who began it, where that is known."""


class LoginNeeded(Exception):
    """A person has to log in; `scopes` are further rights that the server wants."""

    def __init__(self, server: str, whose: str, scopes: tuple[str, ...] = ()) -> None:
        self.server, self.whose, self.scopes = server, whose, scopes
        self.text = f"{server} needs the further right {' '.join(scopes)}" if scopes else f"{server} needs a login"
        super().__init__(self.text)


class LoginUnavailable(Exception):
    """There is no token now, and no person can change that; the login survives."""

    def __init__(self, text: str, host: str = "") -> None:
        super().__init__(text)
        self.text, self.host = text, host


class LoginFailed(Exception):
    """A login ended without tokens. What the text quotes of a peer is bounded, printable and in quotes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
