"""Where clients log in by themselves: Sluice's endpoints as their authorization server, in front of one provider.

A person signs in at the provider, and then allows each client by name, at each login: a provider that remembers its own
consent would otherwise hand a person's account to whatever client asks (2026-07-28 basic/security_best_practices,
confused deputy). The provider's tokens are not kept, and reach neither clients nor servers.
"""

import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict
from html import escape
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from sluicegate.app import public_pages
from sluicegate.app.login_sign_in import Provider, SignIn
from sluicegate.app.public_pages import CLOSE, HEADERS, Refused, TooManyAtOnce, page, text
from sluicegate.config import Config
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.issuer.clients import ClientDirectory
from sluicegate.issuer.grants import ClientGrants, GrantEnded, NotOurs, Subject
from sluicegate.listen.asgi import asgi
from sluicegate.listen.http_request import HttpRequest
from sluicegate.login.model import LoginFailed, LoginUnavailable
from sluicegate.oauth import Unfit, issuing
from sluicegate.oauth.issuing import AuthorizationDenied, AuthorizationRequest, UnfitRedirect
from sluicegate.policy.rates import Windows
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import Store, StoreFailed
from sluicegate.store.keys import Sealer, digest, is_same

COOKIE: Final = "__Host-sluice-client-login"
FETCHED_A_MINUTE: Final = 20
"""Documents of clients that one address has us fetch: nobody makes us ask others all the time, or fills our log."""
FAILURES_A_MINUTE: Final = 20
"""With tokens that were ours, of one address: those that are recorded one by one. More are summed up."""
_WELL_KNOWN: Final = "/.well-known/oauth-authorization-server"
_CONSENT: Final = "client consent"
_NO_STORE: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

Note = Callable[[str, Json], None]
"""Takes what happened and more, for the audit log."""


class IssuerPages:
    """`issuer` is the public URL less its last part, without a slash at the end; `resource` the public URL itself."""

    def __init__(
        self, issuer: str, config: Callable[[], Config], directory: ClientDirectory, grants: ClientGrants,
        sign_in: SignIn, sealer: Sealer, store: Store, forwarded: ForwardedHeaders, note: Note, refused: Refused,
    ) -> None:  # fmt: skip
        parts = urlsplit(issuer)
        self._issuer, self._origin = issuer, f"{parts.scheme}://{parts.netloc}"
        self._config, self._directory, self._grants, self._sign_in = config, directory, grants, sign_in
        self._sealer, self._store, self._forwarded, self._note, self._refused = sealer, store, forwarded, note, refused
        self._cookie = public_pages.BrowserCookie(COOKIE, lambda: self._config().login.within)
        self._fetched, self._places = Windows(FETCHED_A_MINUTE, 60), public_pages.Places()
        self._failures = Windows(FAILURES_A_MINUTE, 60)
        self._documents = {_WELL_KNOWN, f"{_WELL_KNOWN}{parts.path}", f"{parts.path}{_WELL_KNOWN}"}
        self._roots = f"{forwarded.beside}/oauth/", "/oauth/"  # the longer one first, as it may begin with the other
        app = Starlette(
            routes=[
                Route("/metadata", self._metadata, methods=["GET"]),
                Route("/authorize", self._authorize, methods=["GET"]),
                Route("/callback", self._signed_in, methods=["GET"]),
                Route("/consent", self._decide, methods=["POST"]),
                Route("/register", self._register, methods=["POST"]),
                Route("/token", self._token, methods=["POST"]),
                Route("/revoke", self._revoke, methods=["POST"]),
            ],
            exception_handlers={StoreFailed: _not_now, TooManyAtOnce: public_pages.come_again},
        )
        served = public_pages.bounded(app, self._roots, forwarded, "/metadata", _refuse, self._shown)
        self.serve: Callable[[HttpRequest], Awaitable[None]] = asgi(served)

    @property
    def resource(self) -> str:
        return self._config().listen.public_url or ""

    def is_at(self, path: str) -> bool:
        """Nothing is, where clients do not log in by themselves."""
        is_ours = path in self._documents or path.startswith(self._roots)
        return is_ours and self._config().clients.login is not None

    async def _shown(self, request: Request) -> str:
        match request.scope["path"]:
            case "/callback":
                return self._sign_in.shown(request.url.query)
            case "/consent":
                ticket = (await _form(request)).get("ticket", "")
                question = self._sealer.unseal(_CONSENT, ticket, self._issuer)
                return str(question["id"]) if question is not None else ""
            case "/token" | "/revoke":
                form = await _form(request)
                tokens = (form.get(name, "") for name in ("refresh_token", "code", "token"))
                return next(filter(None, map(self._grants.shown, tokens)), "")
        return ""

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(issuing.server_metadata(self._issuer), headers={"cache-control": "max-age=300"})

    async def _register(self, request: Request) -> Response:
        try:
            return JSONResponse(self._directory.register(await _object(request)), 201, _NO_STORE)
        except Unfit as error:
            kind = "invalid_redirect_uri" if isinstance(error, UnfitRedirect) else "invalid_client_metadata"
            return _error(400, kind, str(error))

    async def _authorize(self, request: Request) -> Response:
        """Nothing is sent to a redirect URI before client and URI are known to belong together."""
        asked: dict[str, str] = {}
        try:
            asked = issuing.read_parameters(request.url.query)
            id = asked.get("client_id", "")
            is_at_hand = self._directory.is_at_hand(id)
            if not is_at_hand and self._fetched.hit(public_pages.counted(request.scope, self._forwarded)) > 0:
                return page(429, "Log in", text("Too many clients were looked up. Try again in a minute."))
            with nullcontext() if is_at_hand else self._places.take():
                client = await self._directory.find(id)
            wanted = issuing.read_request(asked, client, self.resource)
        except Unfit as error:
            return page(400, "Log in", text(f"This client cannot log in: {error}."))
        except AuthorizationDenied as refused:
            uri = asked["redirect_uri"]
            if not uri.startswith("http:"):  # those are of this machine alone: see `issuing`
                # Anybody registers: a link of ours would lead people to any site or program (RFC 9700 4.11.2).
                return page(400, "Log in", text(f"This client cannot log in: {refused.description}."))
            return self._back(uri, asked.get("state", ""), error=refused.error, error_description=refused.description)
        provider = provider_of(self._config())
        if provider is None:
            return page(404, "No such page", CLOSE)
        secret = self._cookie.read_or_make(request)
        try:
            url = await self._sign_in.begin(provider, asdict(wanted) | {"name": client.name}, secret)
        except (LoginFailed, LoginUnavailable) as error:
            return page(502, "Log in", text(str(error)))
        return self._cookie.give(RedirectResponse(url, 303, HEADERS), secret)

    async def _signed_in(self, request: Request) -> Response:
        """Asks the person about this client, whatever was allowed before."""
        provider, browser = provider_of(self._config()), self._cookie.read(request)
        if provider is None:
            return page(404, "No such page", CLOSE)
        try:
            person, asked = await self._sign_in.finish(provider, request.url.query, browser)
        except (LoginFailed, LoginUnavailable) as error:
            return page(400, "Nobody was signed in", text(str(error)), CLOSE)
        question = {"asked": asked, "principal": person.name, "roles": list(person.roles), "source": provider.mark,
                    "browser": digest(browser), "id": secrets.token_hex(16),
                    "until": self._sign_in.now() + self._config().login.within}  # fmt: skip
        ticket = self._sealer.seal(_CONSENT, question, self._issuer)
        name, to = asked["name"] or "A client without a name", _shown_target(asked["redirect_uri"])
        # The name comes last: it may be a sentence that looks like one of ours.
        sentence = f"A client wants to use Sluice as you, {person.name}. What it gets is sent to {to}."
        warning = "Allow it only if you began this yourself, just now. Anybody can give a client this name."
        buttons = "".join(f'<p><button name="answer" value="{word.lower()}">{word}</button></p>' for word in _ANSWERS)
        hidden = f'<input type="hidden" name="ticket" value="{escape(ticket)}">'
        form = f'<form method="post" action="{escape(self._issuer)}/oauth/consent">{hidden}{buttons}</form>'
        words = text(sentence), text(warning), text(f"It calls itself: {name}")
        answer = public_pages.form_page("Allow this client?", *words, form)
        # A browser takes the policy of the page for the redirect that its form leads to, too.
        policy = HEADERS["content-security-policy"].replace("form-action 'self'", f"form-action 'self' {_source(to)}")
        answer.headers["content-security-policy"] = policy
        return answer

    async def _decide(self, request: Request) -> Response:
        if request.headers.get("origin") != self._origin:
            return page(403, "Log in", text("This page was not sent by Sluice."))
        form = await _form(request)
        question = self._sealer.unseal(_CONSENT, form.get("ticket", ""), self._issuer)
        browser = self._cookie.read(request)
        is_over = question is None or question["until"] <= self._sign_in.now()
        if question is None or is_over or not is_same(digest(browser), question["browser"]):
            return page(400, "Log in", text("This question has expired. Log in again from your client."))
        if not await self._store.spend(f"issuer-consent/{question['id']}", self._config().login.within):
            return page(400, "Log in", text("This question was answered already."))
        asked: Json = question["asked"]
        name = asked.pop("name")
        wanted = AuthorizationRequest(**asked)
        subject = Subject(question["principal"], tuple(question["roles"]), question["source"])
        if form.get("answer") != "allow":
            self._tell("client_refused", subject.principal, name)
            return self._back(wanted.redirect_uri, wanted.state, error="access_denied")
        self._tell("client_allowed", subject.principal, name)
        return self._back(wanted.redirect_uri, wanted.state, code=self._grants.code(wanted, subject))

    def _back(self, redirect_uri: str, state: str, **answer: str) -> Response:
        """`iss` says who answers, so that a client of two servers takes no answer for another's (RFC 9207)."""
        more = answer | ({"state": state} if state else {}) | {"iss": self._issuer}
        joint = "&" if "?" in redirect_uri else "?"
        return RedirectResponse(f"{redirect_uri}{joint}{urlencode(more)}", 303, HEADERS)

    async def _token(self, request: Request) -> Response:
        form = await _form(request)
        kind, client = form.get("grant_type", ""), form.get("client_id", "")
        if form.get("resource", self.resource).rstrip("/") != self.resource.rstrip("/"):
            return _error(400, "invalid_target", f"tokens are for {self.resource} alone")
        try:
            if kind == "authorization_code":
                found = await self._grants.redeem(
                    form.get("code", ""), client, form.get("redirect_uri", ""), form.get("code_verifier", "")
                )
                self._tell("client_logged_in", found.subject.principal, "", grant=found.grant)
            elif kind == "refresh_token":
                found = await self._grants.refresh(form.get("refresh_token", ""), client)
            else:
                return _error(400, "unsupported_grant_type", "authorization_code and refresh_token are here")
        except NotOurs as refused:
            self._refused(self._address(request), "client_login")
            return _error(400, "invalid_grant", str(refused))
        except GrantEnded as refused:
            if self._failures.hit(public_pages.counted(request.scope, self._forwarded)) > 0:
                self._refused(self._address(request), "client_login")
            else:
                self._tell("client_login_failed", "", "", why=str(refused))
            return _error(400, "invalid_grant", str(refused))
        answer = {"access_token": found.access, "token_type": "Bearer", "expires_in": int(found.life),
                  "refresh_token": found.refresh}  # fmt: skip
        return JSONResponse(answer, 200, _NO_STORE)

    async def _revoke(self, request: Request) -> Response:
        """RFC 7009 2.2: 200, whatever the token was."""
        form = await _form(request)
        subject = await self._grants.revoke(form.get("token", ""), form.get("client_id", ""))
        if subject is not None:
            self._tell("client_logged_out", subject.principal, "")
        return Response(status_code=200, headers=_NO_STORE)

    def _address(self, request: Request) -> str:
        return public_pages.address_of(request.scope, self._forwarded)

    def _tell(self, what: str, principal: str, client: str, **more: str) -> None:
        about = {"principal": principal, "client": client, **more}
        self._note("identity", {"what": what} | {name: value for name, value in about.items() if value})


_ANSWERS: Final = ("Allow", "Refuse")


def provider_of(config: Config) -> Provider | None:
    login = config.clients.login
    if login is None:
        return None
    secret = login.client_secret.get_secret_value() if login.client_secret else None
    return Provider("clients.login", login.issuer, login.client_id, secret, login.scopes, login.roles_from)


def _shown_target(redirect_uri: str) -> str:
    parts = urlsplit(redirect_uri)
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else f"{parts.scheme}:"


def _source(target: str) -> str:
    """As a source of a content security policy."""
    return target.split(";")[0].split(",")[0].split(" ")[0]


async def _form(request: Request) -> dict[str, str]:
    """Empty for what says one thing twice, or is no form."""
    try:
        return issuing.read_parameters((await request.body()).decode("ascii"))
    except (Unfit, UnicodeDecodeError):
        return {}


async def _object(request: Request) -> dict[str, Any]:
    """Raises `Unfit`."""
    try:
        value = json.loads(await request.body())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unfit("the body has to be a JSON object")
    return value


def _not_now(request: Request, failed: Exception) -> Response:
    """What is kept of grants can be neither read nor written: nothing was given, and the client may ask again."""
    if request.method == "GET" or request.url.path == "/consent":
        return page(503, "Not now", text("Sluice cannot keep this login now. Try again later."))
    return _error(503, "temporarily_unavailable", "what is kept cannot be read or written now")


def _refuse(status: int, words: str) -> Response:
    return _error(status, "temporarily_unavailable" if status == 429 else "invalid_request", words)


def _error(status: int, error: str, description: str) -> Response:
    return JSONResponse({"error": error, "error_description": description}, status, _NO_STORE)
