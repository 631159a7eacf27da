"""Signing in at an identity provider, so that it is known whose browser a page is open in (OpenID Connect Core 3.1).

Only who somebody is comes of it: `jwt:ISSUER#SUBJECT`, with groups. What is kept until the answer comes is in `state`,
sealed and tied to the browser.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from sluicegate.app.public_pages import Places
from sluicegate.http.fetch import Fetcher, Unfetched
from sluicegate.listen.auth import jws
from sluicegate.listen.auth.issuers import KeySets, TokenIssuer
from sluicegate.listen.auth.principal import Principal
from sluicegate.listen.auth.tokens import Tokens, TokenSettings
from sluicegate.login.discovery import Discovery
from sluicegate.login.model import LoginFailed, LoginSettings, LoginUnavailable
from sluicegate.login.network import LoginNetwork
from sluicegate.login.scene import plainly
from sluicegate.oauth import Unfit, authorization, clients, read_json, text_of, tokens, urls
from sluicegate.oauth.clients import OAuthClient
from sluicegate.oauth.metadata import AuthorizationServer
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.store import Store
from sluicegate.store.keys import Sealer, digest, is_same

_PURPOSE: Final = "sign in"
_SPENT: Final = "sign-in"
_FRESH: Final = 300.0
_AGAIN: Final = 10.0
"""Seconds after which a provider that could not be asked is asked again."""
_MAX_TOKEN: Final = 16 * 1024
_ALGORITHMS: Final = ("RS256", "ES256", "EdDSA", "PS256")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Provider:
    """An identity provider, and what Sluice is there. `name` is the key of the config that it stands under."""

    name: str
    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ("openid",)
    roles_from: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """Of all that says who somebody is, and with which groups: another config gives another mark."""
        return sha256(dump([self.issuer, self.client_id, list(self.roles_from)])).hexdigest()[:32]

    @property
    def settings(self) -> LoginSettings:
        return LoginSettings(self.name, "", self.issuer, client_id=self.client_id, client_secret=self.client_secret,
                             issuer=self.issuer)  # fmt: skip


class SignIn:
    """`callback` is where the provider sends the browser back to: a URL that is registered there. Both methods raise
    `TooManyAtOnce` where the provider would have to be asked for too many at once."""

    def __init__(
        self, fetcher: Fetcher, sealer: Sealer, store: Store, callback: str, within: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._network = LoginNetwork(fetcher, clock)
        self._discovery, self._sealer, self._store, self.now = Discovery(self._network), sealer, store, clock
        self._keysets, self._callback, self._within = KeySets(fetcher), callback, within
        self._places, self._turn = Places(), asyncio.Lock()
        self._cached: dict[str, tuple[float, AuthorizationServer | LoginUnavailable]] = {}

    async def begin(self, provider: Provider, asked: Json, browser: str) -> str:
        """Where the browser is sent; `asked` comes back with the answer. Raises `LoginFailed`, `LoginUnavailable`."""
        with plainly(provider.name):
            at = await self._described(provider)
            verifier, nonce = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
            pending = {"verifier": verifier, "nonce": nonce, "asked": asked, "browser": digest(browser),
                    "until": self.now() + self._within()}  # fmt: skip
            state = self._sealer.seal(_PURPOSE, pending, self._callback)
            return authorization.url(
                at.authorize, provider.client_id, self._callback, state, verifier, provider.scopes, "",
                {"nonce": nonce},
            )  # fmt: skip

    def shown(self, query: str) -> str:
        """Which sign-in that was begun here an answer of a provider is for; empty where it is for none."""
        try:
            pending = self._sealer.unseal(_PURPOSE, authorization.read(query).state, self._callback)
        except Unfit:
            return ""
        return str(pending["nonce"]) if pending is not None and pending["until"] > self.now() else ""

    async def finish(self, provider: Provider, query: str, browser: str) -> tuple[Principal, Json]:
        """Who signed in, and what was asked. Raises `LoginFailed`, `LoginUnavailable`."""
        with plainly(provider.name):
            answer = authorization.read(query)
            pending = self._sealer.unseal(_PURPOSE, answer.state, self._callback)
            if pending is None or pending["until"] <= self.now() or not is_same(digest(browser), pending["browser"]):
                raise LoginFailed("no sign-in of this browser waits for this answer")
            at = await self._described(provider)
            if why := authorization.why_not(answer, at.issuer, at.names_itself):
                raise LoginFailed(why)
            with self._places.take():  # before it is spent: whoever has to come again comes with the same answer
                # Anybody can make up a code: one sign-in is one request that carries our secret.
                if not await self._store.spend(f"{_SPENT}/{pending['nonce']}", pending["until"] - self.now()):
                    raise LoginFailed("this answer was used already")
                token = await self._id_token(provider.settings, at, answer.code, pending["verifier"])
                return await self._subject(provider, token, pending["nonce"]), pending["asked"]

    async def _described(self, provider: Provider) -> AuthorizationServer:
        """Anybody can begin a sign-in: its provider is asked once for all who wait, and a failure is kept."""
        found = self._at_hand(provider)
        if found is None:
            with self._places.take():
                async with self._turn:
                    found = self._at_hand(provider) or await self._ask(provider)
        if isinstance(found, LoginUnavailable):
            raise found.with_traceback(None)  # it is raised often, and would keep each traceback
        return found

    def _at_hand(self, provider: Provider) -> AuthorizationServer | LoginUnavailable | None:
        until, found = self._cached.get(provider.issuer, (0.0, None))
        return found if until > self.now() else None

    async def _ask(self, provider: Provider) -> AuthorizationServer | LoginUnavailable:
        """Why it cannot be asked is for the log: strangers see the page, and addresses inside are none of theirs."""
        found: AuthorizationServer | LoginUnavailable
        try:
            found, life = await self._discovery.described(provider.settings, provider.issuer), _FRESH
        except (LoginFailed, LoginUnavailable, Unfit) as error:
            log.warning("an identity provider cannot be asked", extra={"for": provider.name, "why": str(error)})
            found, life = LoginUnavailable(f"{urls.host(provider.issuer)} cannot be asked now"), _AGAIN
        self._cached = {provider.issuer: (self.now() + life, found)}
        return found

    async def _id_token(self, settings: LoginSettings, at: AuthorizationServer, code: str, verifier: str) -> str:
        method = clients.method_of(at, settings.client_secret, None)
        client = OAuthClient(settings.client_id or "", method, "config", settings.client_secret or "")
        form = tokens.by_code(code, verifier, self._callback)
        try:
            got = await self._network.form(settings, at.token, at, client, form)
        except Unfetched as error:
            log.warning("no ID token can be had", extra={"for": settings.server, "why": str(error)})
            raise LoginUnavailable(f"{urls.host(at.token)} cannot be asked now") from None
        token = text_of(read_json(got.body), "id_token", _MAX_TOKEN) if got.status == 200 else ""
        if not token:
            raise LoginFailed(f"the identity provider {urls.host(at.issuer)} gives no ID token")
        return token

    async def _subject(self, provider: Provider, token: str, nonce: str) -> Principal:
        """OpenID Connect Core 3.1.3.7: signature, issuer, audience, times and nonce."""
        issuer = TokenIssuer(
            provider.issuer, provider.client_id, roles_from=provider.roles_from, algorithms=_ALGORITHMS
        )
        judge = Tokens(self._keysets, self.now)
        judge.replace(TokenSettings((issuer,)))
        found = await judge.verify(token.encode("ascii", "replace"), "")
        read = jws.read(token.encode("ascii", "replace"))
        if not isinstance(found, Principal) or read is None:
            raise LoginFailed(f"the ID token is not good: {getattr(found, 'reason', 'malformed')}")
        if not compare_digest(str(read.claims.get("nonce", "")).encode(), nonce.encode()):
            raise LoginFailed("the ID token is the answer to another question")
        if read.claims.get("azp", issuer.audience) != issuer.audience:
            raise LoginFailed("the ID token is for another client")
        return found
