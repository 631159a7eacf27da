"""The authorization server of misbehaving.py, which does what is right until a switch says otherwise. No I/O.

Codes are spent once and bound to client, redirect URI and challenge. A refresh token is good for once; a second use
ends the grant, and all tokens of it.
"""

import base64
import hashlib
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

Json = dict[str, Any]
RIGHT = "right"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(slots=True)
class Switches:
    """How the server differs from a good one. What stands here is what a good one does.

    In the members that are replaced, None removes one, and "verbatim:1e400" becomes 1e400 in the answer.
    """

    # Discovery
    servers: tuple[str, ...] = ("/mcp", "/mcp2", "/other/mcp")  # the paths of MCP servers
    prm_at: str = "path"  # where the resource's metadata are: "path", "root", "nowhere", or a path of your own
    prm_named: bool = True  # the challenge names them
    prm: Json = field(default_factory=dict)  # replaces members of them; None removes one
    metadata: Json = field(default_factory=dict)  # the same for the authorization server's
    challenge: list[str] | None = None  # the values of WWW-Authenticate, word for word
    scope_asked: str | None = None  # `scope` of the challenge of a 401
    issuer_path: str = ""  # such as "/tenant1"
    metadata_at: tuple[str, ...] = ("oauth", "openid", "openid-appended")  # the forms of well-known URLs that exist
    # Authorization
    user: str = "ann"
    iss: str | None = RIGHT  # `iss` of the answer; None: none
    state: str | None = RIGHT  # `state` of the answer; None: none
    denies: str | None = None  # an error in place of a code, such as "access_denied"
    check_pkce: bool = True
    # Tokens
    access_life: float = 3600  # also what `expires_in` says, unless `token` has another
    token: Json = field(default_factory=dict)  # replaces members of the token endpoint's answers
    registration: Json = field(default_factory=dict)  # and of those to dynamic registration
    rotation: bool = True
    refresh_ends_access: bool = False  # with a refresh, the access tokens of before are refused at once
    reuse_ends_grant: bool = True
    reuse_grace: float = 0  # so many seconds a used refresh token gets the answer of its first use
    device_polls: int = 1  # how often "authorization_pending" is said
    # MCP
    eras: tuple[str, ...] = ("legacy", "modern")
    session: str = ""  # the `Mcp-Session-Id` that `initialize` gives
    refuses_tokens: bool = False  # 401, whatever the token
    checks_audience: bool = True
    tool_scopes: dict[str, str] = field(default_factory=lambda: {"write": "write"})  # 403 without that scope
    ever_new_scopes: bool = False  # each tools/call asks for one that nobody has
    open_methods: tuple[str, ...] = ()  # these need no token, such as "initialize"
    sse_endpoint: str = "/messages"  # what the legacy stream at /sse names


@dataclass(slots=True)
class Answer:
    status: int
    body: Json | str = ""
    headers: dict[str, str] = field(default_factory=dict)
    challenges: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Seen:
    """A request that came, and the status of its answer: 0 if it got none."""

    endpoint: str
    method: str
    path: str
    raw_query: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    at: float = field(default_factory=time.monotonic)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.raw_query, keep_blank_values=True))

    @property
    def form(self) -> dict[str, str]:
        is_form = self.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True)) if is_form else {}

    @property
    def message(self) -> Json:
        """The JSON body; {} if it is no object."""
        try:
            body = json.loads(self.body)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    @property
    def bearer(self) -> str | None:
        kind, _, value = self.headers.get("authorization", "").partition(" ")
        return value if kind.lower() == "bearer" else None


@dataclass(slots=True)
class Grant:
    client: str
    user: str
    scope: str
    resource: str
    ended: bool = False
    uses: dict[str, tuple[float, Json]] = field(default_factory=dict)  # of refresh tokens that are spent


@dataclass(slots=True)
class Access:
    grant: Grant
    scope: str
    resource: str
    until: float


class Refused(Exception):
    """An error of OAuth."""


class GoodAuthority:
    def __init__(self, url: str, switches: Switches) -> None:
        self.url = url
        self.switches = switches
        self.issued: set[str] = set()
        self.clients: dict[str, Json] = {}
        self.access: dict[str, Access] = {}
        self.refresh: dict[str, Grant] = {}
        self.reused = 0
        """How often a spent refresh token came back."""
        self._codes: dict[str, tuple[Grant, dict[str, str]]] = {}
        self._devices: dict[str, tuple[Grant, int]] = {}
        self._assertions: dict[str, Grant] = {}

    @property
    def issuer(self) -> str:
        return self.url + self.switches.issuer_path

    def metadata(self) -> Json:
        paths = {
            "authorization_endpoint": "authorize", "token_endpoint": "token", "registration_endpoint": "register",
            "revocation_endpoint": "revoke", "device_authorization_endpoint": "device",
        }  # fmt: skip
        told = {
            "issuer": self.issuer, **{name: f"{self.url}/{path}" for name, path in paths.items()},
            "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials", DEVICE, EXCHANGE],
            "token_endpoint_auth_methods_supported": [
                "none", "client_secret_basic", "client_secret_post", "private_key_jwt",
            ],
            "authorization_response_iss_parameter_supported": True,
        }  # fmt: skip
        return replaced(told, self.switches.metadata)

    def add_client(self, id: str, secret: str | None = None, redirect_uris: tuple[str, ...] = ()) -> None:
        """One that was registered before."""
        self.clients[id] = {"client_id": id, "client_secret": secret, "redirect_uris": list(redirect_uris)}
        self.issued |= {secret} if secret else set()

    def expire_tokens(self) -> None:
        for access in self.access.values():
            access.until = 0

    def holder(self, token: str | None) -> Access | None:
        """Whose token it is, if it is any good."""
        access = self.access.get(token or "")
        alive = access is not None and not access.grant.ended and time.time() < access.until
        return access if alive else None

    def answer(self, seen: Seen) -> Answer:
        try:
            return getattr(self, f"_{seen.endpoint}")(seen)  # type: ignore[no-any-return]
        except Refused as why:
            status = 401 if str(why) == "invalid_client" else 400
            return Answer(status, {"error": str(why)}, {"cache-control": "no-store"})

    # ---------------------------------------------------------------- endpoints

    def _register(self, seen: Seen) -> Answer:
        wanted = {"grant_types": ["authorization_code"], "token_endpoint_auth_method": "client_secret_basic"}
        wanted |= seen.message
        if not wanted.get("redirect_uris") and "authorization_code" in wanted["grant_types"]:
            raise Refused("invalid_redirect_uri")
        made: Json = {**wanted, "client_id": self._new("client")}
        if self.switches.registration.get("token_endpoint_auth_method", made["token_endpoint_auth_method"]) != "none":
            made |= {"client_secret": self._secret("secret"), "client_secret_expires_at": 0}
        made = replaced(made, self.switches.registration)
        self.clients[made["client_id"]] = made
        return Answer(201, made)

    def _authorize(self, seen: Seen) -> Answer:
        asked = seen.query
        client = self.clients.get(asked.get("client_id", ""))
        if client is None or asked.get("redirect_uri") not in client["redirect_uris"]:
            return Answer(400, "<p>This client or its redirect URI is not known.")
        error = self.switches.denies
        told: dict[str, str | None] = {"error": error, "error_description": f"it says {error}"}
        if error is None:
            told = {"code": self._code(asked)}
        told["state"] = asked.get("state") if self.switches.state == RIGHT else self.switches.state
        told["iss"] = self.issuer if self.switches.iss == RIGHT else self.switches.iss
        answer = urlencode({name: value for name, value in told.items() if value is not None})
        callback = asked["redirect_uri"]
        return Answer(302, "", {"location": f"{callback}{'&' if '?' in callback else '?'}{answer}"})

    def _code(self, asked: dict[str, str]) -> str:
        user = asked.get("login_hint", self.switches.user)
        grant = Grant(asked["client_id"], user, asked.get("scope", ""), asked.get("resource", ""))
        code = self._secret("code")
        self._codes[code] = grant, asked
        return code

    def _token(self, seen: Seen) -> Answer:
        form = seen.form
        client = self._authenticated(seen)
        match form.get("grant_type"):
            case "authorization_code":
                told = self._tokens(self._redeemed(form, client), form)
            case "refresh_token":
                told = self._refreshed(form, client)
            case "client_credentials":
                told = self._tokens(Grant(client, client, form.get("scope", ""), form.get("resource", "")), form, False)
            case kind if kind == DEVICE:
                told = self._tokens(self._polled(form), form)
            case kind if kind == EXCHANGE:
                told = self._exchanged(form, client)
            case kind if kind == JWT_BEARER and form.get("assertion") in self._assertions:
                told = self._tokens(self._assertions[form["assertion"]], form, False)
            case _:
                raise Refused("unsupported_grant_type")
        return Answer(200, replaced(told, self.switches.token), {"cache-control": "no-store"})

    def _authenticated(self, seen: Seen) -> str:
        """The client's id. An assertion by key (private_key_jwt) is taken as it is."""
        form = seen.form
        kind, _, value = seen.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            id, secret = map(unquote_plus, base64.b64decode(value).decode().split(":", 1))
        else:
            id, secret = form.get("client_id", ""), form.get("client_secret", "")
        if "client_assertion" in form:
            claims = form["client_assertion"].split(".")[1]
            return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"])
        if id not in self.clients or (self.clients[id].get("client_secret") or "") != secret:
            raise Refused("invalid_client")
        return id

    def _redeemed(self, form: dict[str, str], client: str) -> Grant:
        grant, asked = self._codes.pop(form.get("code", ""), (None, dict[str, str]()))
        if grant is None or grant.client != client or asked.get("redirect_uri") != form.get("redirect_uri"):
            raise Refused("invalid_grant")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        is_right = asked.get("code_challenge") == base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if self.switches.check_pkce and not is_right:
            raise Refused("invalid_grant")
        return grant

    def _refreshed(self, form: dict[str, str], client: str) -> Json:
        old = form.get("refresh_token", "")
        grant = self.refresh.get(old)
        if grant is None or grant.ended or grant.client != client:
            raise Refused("invalid_grant")
        if old in grant.uses:
            at, told = grant.uses[old]
            if time.monotonic() - at <= self.switches.reuse_grace:
                return told
            self.reused += 1
            grant.ended = self.switches.reuse_ends_grant
            raise Refused("invalid_grant")
        if self.switches.refresh_ends_access:
            for access in self.access.values():
                access.until = 0 if access.grant is grant else access.until
        if not self.switches.rotation:
            return self._tokens(grant, form, False)
        told = self._tokens(grant, form)
        grant.uses[old] = time.monotonic(), told
        return told

    def _polled(self, form: dict[str, str]) -> Grant:
        code = form.get("device_code", "")
        if code not in self._devices:
            raise Refused("invalid_grant")
        grant, left = self._devices[code]
        if left > 0:
            self._devices[code] = grant, left - 1
            raise Refused("authorization_pending")
        return self._devices.pop(code)[0]

    def _exchanged(self, form: dict[str, str], client: str) -> Json:
        """An assertion for another authorization server: this one, in most tests."""
        token = self._secret("assertion")
        self._assertions[token] = Grant(client, self.switches.user, form.get("scope", ""), form.get("resource", ""))
        wanted = form.get("requested_token_type", "urn:ietf:params:oauth:token-type:access_token")
        return {"access_token": token, "issued_token_type": wanted, "token_type": "N_A", "expires_in": 300}

    def _tokens(self, grant: Grant, form: dict[str, str], refreshable: bool = True) -> Json:
        access, life = self._secret("access"), self.switches.access_life
        scope, resource = form.get("scope", grant.scope), form.get("resource", grant.resource)
        self.access[access] = Access(grant, scope, resource, time.time() + life)
        told: Json = {"access_token": access, "token_type": "Bearer", "expires_in": int(life), "scope": scope}
        if refreshable:
            told["refresh_token"] = self._secret("refresh")
            self.refresh[told["refresh_token"]] = grant
        return told

    def _revoke(self, seen: Seen) -> Answer:
        self._authenticated(seen)
        token = seen.form.get("token", "")
        if token in self.refresh:
            self.refresh[token].ended = True
        elif token in self.access:
            self.access[token].until = 0
        return Answer(200)

    def _device(self, seen: Seen) -> Answer:
        form = seen.form
        code = self._secret("device")
        grant = Grant(form.get("client_id", ""), self.switches.user, form.get("scope", ""), form.get("resource", ""))
        self._devices[code] = grant, self.switches.device_polls
        at = f"{self.url}/device"
        return Answer(200, {
            "device_code": code, "user_code": "WDJB-MJHT", "verification_uri": at,
            "verification_uri_complete": f"{at}?user_code=WDJB-MJHT", "expires_in": 600, "interval": 1,
        })  # fmt: skip

    def _secret(self, kind: str) -> str:
        made = self._new(kind)
        self.issued.add(made)
        return made

    def _new(self, kind: str) -> str:
        return f"{kind}-{secrets.token_urlsafe(24)}"


def replaced(told: Json, by: Json) -> Json:
    return {name: value for name, value in {**told, **by}.items() if value is not None}
