"""Pages on the port for clients where each person of a team logs in to a server, beside the public MCP endpoint.

PKCE and `state` do not stop Alice from sending Bob her link, so that her account would become his. So whoever opens a
page proves first who they are: by their Sluice key, or at `login.idp`. The link says for whom it was made, and a
cookie ties the answer of the authorization server to the browser that asked (2025-11-25 client/elicitation#url-mode).
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from sluicegate.app import public_pages
from sluicegate.app.login_sign_in import Provider, SignIn
from sluicegate.app.logins import GATEWAY, LoginIndex
from sluicegate.app.public_pages import CLOSE, HEADERS, Refused, TooManyAtOnce, link, page, text
from sluicegate.config import Config
from sluicegate.config.login import LoginSection
from sluicegate.http.addresses import counted_as
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.listen.asgi import asgi
from sluicegate.listen.auth import CredentialRefused, Identity, Principal
from sluicegate.listen.http_request import HttpRequest
from sluicegate.login.model import Flow, LoginFailed, LoginUnavailable
from sluicegate.oauth import clients, urls
from sluicegate.policy.judge import PolicyEngine
from sluicegate.policy.rates import Windows
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client
from sluicegate.store.keys import Sealer

COOKIE: Final = "__Host-sluice-login"
KEYS_A_MINUTE: Final = 5
WRONG_A_MINUTE: Final = 5
"""Credentials over the API, of one address."""
BEGUN_A_MINUTE: Final = 10
"""Logins over the API, of one principal: each may register a client at an authorization server."""
_PURPOSE: Final = "login link"
_DONE: Final = "login done"
_LOOPBACK: Final = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}/[A-Za-z0-9/_-]{0,64}")
_OVER: Final = "This link has expired, or Sluice did not make it. Call the tool again to get a new one."


class LoginApi:
    """For `sluice login --url`: the browser returns to the machine of whoever shows the key."""

    def __init__(
        self, origin: str, index: LoginIndex, identity: Identity, judge: PolicyEngine, forwarded: ForwardedHeaders,
        refused: Refused,
    ) -> None:  # fmt: skip
        self._origin, self._index, self._identity, self._judge = origin, index, identity, judge
        self._forwarded, self._refused = forwarded, refused
        self._wrong, self._begun = Windows(WRONG_A_MINUTE, 60), Windows(BEGUN_A_MINUTE, 60)

    def seen(self, request: Request) -> Principal | None:
        authorization = request.headers.get("authorization")
        return None if authorization is None else self._identity.seen(authorization.encode("latin-1"))

    async def begin(self, request: Request) -> Response:
        server = request.path_params["server"]
        found = await self._caller(request, server)
        if isinstance(found, Response):
            return found
        whose, client, body = found
        redirect_uri = body.get("redirect_uri")
        if not isinstance(redirect_uri, str) or not _LOOPBACK.fullmatch(redirect_uri):
            return _error(400, "redirect_uri has to be one of loopback: http://127.0.0.1:PORT/PATH")
        if redirect_uri.startswith(f"{self._origin}/"):
            return _error(400, "redirect_uri has to be one of your own, and not one of Sluice")
        if self._begun.hit(whose) > 0:
            return _error(429, "too many logins begin; try again in a minute")
        try:
            flow: Flow = await self._index.logins.begin(server, whose, redirect_uri, by=client)
        except LoginFailed as error:
            return _error(409, error.text)
        except LoginUnavailable as error:
            return _error(502, error.text)
        return JSONResponse({"url": flow.url, "login": flow.id}, headers=HEADERS)

    async def finish(self, request: Request) -> Response:
        server = request.path_params["server"]
        found = await self._caller(request, server)
        if isinstance(found, Response):
            return found
        whose, _, body = found
        query, redirect_uri = body.get("query"), body.get("redirect_uri")
        if not isinstance(query, str) or not isinstance(redirect_uri, str) or not query.isascii():
            return _error(400, "query and redirect_uri have to be texts, and a query is ASCII")
        try:
            info = await self._index.logins.finish(query, redirect_uri, whose=whose)
        except LoginFailed as error:
            return _error(409, error.text)
        about = {"server": info.server, "login": info.id, "issuer": info.issuer, "scopes": list(info.scopes),
                 "state": info.state, "expires_at": info.expires_at}  # fmt: skip
        return JSONResponse(about, headers=HEADERS)

    async def _caller(self, request: Request, server: str) -> tuple[str, Client, Json] | Response:
        """Whose login it is about, who asks, and the body; or the refusal. Browsers have no business here."""
        authorization = request.headers.get("authorization")
        address = public_pages.address_of(request.scope, self._forwarded)
        found: Principal | CredentialRefused | None = self.seen(request)
        if found is None and self._wrong.until_free(counted_as(address)) > 0:
            return _error(429, "too many credentials were wrong; try again in a minute")
        if found is None and authorization:
            found = await self._identity.verify(authorization.encode("latin-1"))
        if not isinstance(found, Principal):
            if authorization:
                self._wrong.hit(counted_as(address))
            self._refused(address, _reason(found))
        if not isinstance(found, Principal) or request.headers.get("origin") is not None:
            return _error(401, "Unauthorized")
        client = found.client
        whose = self._index.whose(server, client)
        if not _is_there(self._index, self._judge, server, client):
            return _error(404, f"there is no server {server} for you to log in to")
        if not _may_log_in(self._judge, whose, client):
            return _error(403, f"whoever runs Sluice logs in to {server}")
        try:
            body: Any = await request.json()
        except (ValueError, RecursionError):
            body = None
        return (whose, client, body) if isinstance(body, dict) else _error(400, "the body has to be a JSON object")


class LoginPages:
    """`pages` is their own URL, with a slash at the end. `serve` answers what `is_at` says is here."""

    def __init__(
        self, pages: str, config: Callable[[], Config], index: LoginIndex, identity: Identity, judge: PolicyEngine,
        sealer: Sealer, forwarded: ForwardedHeaders, sign_in: SignIn, refused: Refused,
    ) -> None:  # fmt: skip
        self.base = pages
        parts = urlsplit(pages)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._config, self._index, self._identity, self._judge = config, index, identity, judge
        self._sealer, self._forwarded, self._sign_in, self._refused = sealer, forwarded, sign_in, refused
        self._cookie = public_pages.BrowserCookie(COOKIE, lambda: self._within)
        self._attempts = Windows(KEYS_A_MINUTE, 60)
        self._api = api = LoginApi(self._origin, index, identity, judge, forwarded, refused)
        self._roots = f"{forwarded.beside}/login/", "/login/"  # the longer one first, as it may begin with the other
        app = Starlette(
            routes=[
                Route("/client/{server}.json", self._document, methods=["GET"]),
                Route("/idp/callback", self._signed_in, methods=["GET"]),
                Route("/callback/{server}", self._returned, methods=["GET"]),
                Route("/done/{server}", self._done, methods=["GET"]),
                Route("/api/{server}", api.begin, methods=["POST"]),
                Route("/api/{server}/code", api.finish, methods=["POST"]),
                Route("/{server}", self._log_in, methods=["GET", "POST"]),
            ],
            exception_handlers={TooManyAtOnce: public_pages.come_again},
        )
        served = public_pages.bounded(app, self._roots, forwarded, "/client/", _refuse, self._shown)
        self.serve: Callable[[HttpRequest], Awaitable[None]] = asgi(served)

    def is_at(self, path: str) -> bool:
        return path.startswith(self._roots)

    async def _shown(self, request: Request) -> str:
        path = request.scope["path"]
        if path.startswith("/api/"):
            seen = self._api.seen(request)
            return "" if seen is None else seen.name
        if path == "/idp/callback":
            return self._sign_in.shown(request.url.query)
        try:
            is_form = request.method == "POST"
            fields = await _fields(request) if is_form else {"t": [public_pages.only_field(request, "t")]}
        except ValueError:
            return ""
        made = self._opened(path.removeprefix("/"), fields.get("t", [""])[-1])
        return "" if made is None else str(made["principal"])

    def link(self, server: str, client: Client) -> str:
        """The page on which this client's person logs in; empty where it cannot be known who opens it."""
        whose = self._index.whose(server, client)
        login = self._config().login
        is_known = _is_key(login, client.principal) or _may_sign_in(login, client.principal)
        if not is_known or not _may_log_in(self._judge, whose, client):
            return ""
        payload = {"principal": client.principal, "whose": whose, "until": self._sign_in.now() + self._within}
        ticket = self._sealer.seal(_PURPOSE, payload, server)
        return f"{self.base}{quote(server)}?t={ticket}"

    @property
    def _within(self) -> float:
        return self._config().login.within

    async def _log_in(self, request: Request) -> Response:
        """One route, so that a refusal of other methods names both."""
        return await (self._take_key if request.method == "POST" else self._ask)(request)

    async def _ask(self, request: Request) -> Response:
        """Names no server before the person has proved who they are; a link names its own."""
        server, ticket = request.path_params["server"], public_pages.only_field(request, "t")
        made = self._opened(server, ticket)
        if ticket and made is None:
            return page(400, "Log in", text(_OVER))
        config, principal = self._config(), made["principal"] if made else ""
        why = f"Sluice asks you to log in to {server}." if made else "Sluice has to know who you are before you log in."
        blocks = [text(why)]
        if config.login.idp is not None and (not principal or _may_sign_in(config.login, principal)):
            secret = self._cookie.read_or_make(request)
            try:
                url = await self._sign_in.begin(_provider(config), {"server": server, "t": ticket}, secret)
            except (LoginFailed, LoginUnavailable) as error:
                return page(502, "Log in", text(str(error)))
            host = urls.host(config.login.idp.issuer)
            return self._cookie.give(page(200, "Log in", *blocks, link(url, f"Sign in at {host}")), secret)
        if not config.login.key_page or (principal and not _is_key(config.login, principal)):
            return page(404, "No such page", CLOSE)
        return public_pages.form_page("Log in", *blocks, public_pages.key_form(f"{self.base}{quote(server)}", ticket))

    async def _take_key(self, request: Request) -> Response:
        """The key is compared as a hash, counted, and not kept."""
        if request.headers.get("origin") != self._origin:
            return page(403, "Log in", text("This page was not sent by Sluice."))
        try:
            fields = await _fields(request)
        except ValueError:
            return page(400, "Log in", text("This is not the form of this page."))
        server, ticket = request.path_params["server"], fields.get("t", [""])[-1]
        made = self._opened(server, ticket)
        if ticket and made is None:
            return page(400, "Log in", text(_OVER))
        if not self._config().login.key_page:
            return page(404, "No such page", CLOSE)
        address = public_pages.address_of(request.scope, self._forwarded)
        # A link is of its principal alone: others at the same address use nothing up of it.
        if self._attempts.hit(made["principal"] if made else counted_as(address)) > 0:
            return page(429, "Log in", text("Too many keys were typed. Try again in a minute."))
        key = fields.get("key", [""])[-1].strip()
        found = await self._identity.verify(b"Bearer " + key.encode("utf-8", "replace"))
        if not isinstance(found, Principal) or not found.name.startswith("key:"):
            self._refused(address, _reason(found))
            return page(403, "Log in", text("This is no key of this Sluice."))
        return await self._begin(request, server, found, made)

    async def _signed_in(self, request: Request) -> Response:
        """The answer of the identity provider: who the person at this browser is."""
        config = self._config()
        try:
            person, asked = await self._sign_in.finish(_provider(config), request.url.query, self._cookie.read(request))
        except (LoginFailed, LoginUnavailable) as error:
            return page(400, "Nobody was signed in", text(str(error)), CLOSE)
        server, ticket = asked["server"], asked["t"]
        made = self._opened(server, ticket)
        if ticket and made is None:
            return page(400, "Log in", text(_OVER))
        # The roles are those of a token that the person's client showed; the ID token is none for Sluice.
        found = self._identity.find(person.name) or Principal(person.name)
        return await self._begin(request, server, found, made)

    async def _begin(self, request: Request, server: str, found: Principal, made: Json | None) -> Response:
        client = found.client
        whose = self._index.whose(server, client)
        if made is not None and (made["principal"], made["whose"]) != (found.name, whose):
            self._index.logins.note_stranger(server, made["whose"], f"its link was opened by {found.name}")
            return page(403, "Log in", text("This link was made for somebody else. Ask for one of your own."), CLOSE)
        if made is None and not _is_there(self._index, self._judge, server, client):
            return page(404, "Log in", text(f"There is no server {server} for you to log in to."), CLOSE)
        if not _may_log_in(self._judge, whose, client):
            return page(403, "Log in", text(f"Whoever runs Sluice logs in to {server}."), CLOSE)
        secret = self._cookie.read_or_make(request)
        try:
            flow = await self._index.logins.begin(server, whose, self._callback(server), browser=secret, by=client)
        except (LoginFailed, LoginUnavailable) as error:
            return page(502, "Log in", text(str(error)), CLOSE)
        asks = f"{server} is reached with an account at {flow.issuer}.{public_pages.may(flow.scopes)}"
        go_on = link(flow.url, f"Go on at {urls.host(flow.issuer)}")
        return self._cookie.give(page(200, f"Log in to {server}", text(asks), go_on), secret)

    async def _returned(self, request: Request) -> Response:
        """Without a cookie there is no browser that asked: a login over the API is of none, and ends there."""
        server, browser = request.path_params["server"], self._cookie.read(request)
        if server not in self._index.servers() or not browser:
            return page(400, "Nobody was logged in", text("This login began in another browser, or in none."), CLOSE)
        try:
            info = await self._index.logins.finish(request.url.query, self._callback(server), browser=browser)
        except LoginFailed as error:
            return page(400, "Nobody was logged in", text(error.text), CLOSE)
        result = self._sealer.seal(_DONE, {"issuer": info.issuer, "scopes": list(info.scopes)}, server)
        return RedirectResponse(f"{self.base}done/{quote(server)}?t={result}", 303, HEADERS)

    async def _done(self, request: Request) -> Response:
        server = request.path_params["server"]
        result = self._sealer.unseal(_DONE, public_pages.only_field(request, "t"), server)
        if result is None:
            return page(404, "No such page", CLOSE)
        sentence = f"You are logged in to {server} by {result['issuer']}.{public_pages.may(tuple(result['scopes']))}"
        return page(200, "Logged in", text(sentence), CLOSE)

    async def _document(self, request: Request) -> Response:
        """Sluice as a client of the authorization server of one server, whose name the person sees who consents there
        (draft-ietf-oauth-client-id-metadata-document)."""
        server = request.path_params["server"]
        if server not in self._index.servers():
            return page(404, "No such page", CLOSE)
        about = clients.metadata(self._callback(server), "none", ())
        about["client_id"], about["client_name"] = f"{self.base}client/{quote(server)}.json", f"Sluice: {server}"
        about["redirect_uris"].append(self._config().login.callback)
        return JSONResponse(about, headers={"cache-control": "max-age=300"})

    def _callback(self, server: str) -> str:
        """One of each server: an answer for one is none for another (RFC 9700 4.4, mix-up)."""
        return f"{self.base}callback/{quote(server)}"

    def _opened(self, server: str, ticket: str) -> Json | None:
        """For whom that link was made; None for one that is over, altered, or of another server."""
        made = self._sealer.unseal(_PURPOSE, ticket, server) if ticket else None
        return made if made is not None and made["until"] > self._sign_in.now() else None


def _may_log_in(judge: PolicyEngine, whose: str, client: Client) -> bool:
    """Whoever may change logins logs in for all."""
    return whose != "" and (whose != GATEWAY or judge.may_administer(client, "logins", "write"))


def _is_there(index: LoginIndex, judge: PolicyEngine, server: str, client: Client) -> bool:
    """Of a server on which a client has no right, nothing is said."""
    return server in index.servers() and judge.may_see(Call(client, "tools/list", {}), server)


async def _fields(request: Request) -> dict[str, list[str]]:
    """Raises `ValueError` for what is no form."""
    return parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=8)


def _provider(config: Config) -> Provider:
    idp = config.login.idp
    if idp is None:
        raise LoginFailed("no identity provider is configured (login.idp)")
    secret = idp.client_secret.get_secret_value() if idp.client_secret else None
    return Provider("login.idp", idp.issuer, idp.client_id, secret)


def _is_key(login: LoginSection, principal: str) -> bool:
    return principal.startswith("key:") and login.key_page


def _may_sign_in(login: LoginSection, principal: str) -> bool:
    return login.idp is not None and principal.startswith(f"jwt:{login.idp.issuer}#")


def _reason(found: Principal | CredentialRefused | None) -> str:
    """For the audit log. A credential may be good, and yet not of the kind that a page takes."""
    return "login_none" if found is None else f"login_{getattr(found, 'reason', 'credential')}"


def _refuse(status: int, words: str) -> Response:
    return page(status, "Log in", text(f"Sluice does not answer: {words}."), CLOSE)


def _error(status: int, words: str) -> Response:
    return JSONResponse({"error": words}, status, HEADERS)
