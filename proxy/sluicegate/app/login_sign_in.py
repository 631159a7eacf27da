"""Signing in at `login.idp`, so that it is known whose browser a login page is open in (OpenID Connect Core 3.1).

Only who somebody is comes of it: `jwt:ISSUER#SUBJECT`, the principal that this person's client has, too. What is kept
until the answer comes is in `state`, sealed and tied to the browser.
"""

import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from sluicegate.config import Config
from sluicegate.http.fetch import Fetcher, Unfetched
from sluicegate.listen.auth import jws
from sluicegate.listen.auth.issuers import KeySets, TokenIssuer
from sluicegate.listen.auth.principal import Principal
from sluicegate.listen.auth.tokens import Tokens, TokenSettings
from sluicegate.login import LoginFailed, LoginSettings, LoginUnavailable
from sluicegate.login.discovery import Discovery
from sluicegate.login.network import LoginNetwork
from sluicegate.login.scene import plainly
from sluicegate.oauth import authorization, clients, read_json, text_of, tokens, urls
from sluicegate.oauth.clients import OAuthClient
from sluicegate.oauth.metadata import AuthorizationServer
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store.keys import Sealer

NAME: Final = "login.idp"
_PURPOSE: Final = "sign in"
_MAX_TOKEN: Final = 16 * 1024
_ALGORITHMS: Final = ("RS256", "ES256", "EdDSA", "PS256")


class SignIn:
    def __init__(self, fetcher: Fetcher, sealer: Sealer, clock: Callable[[], float] = time.time) -> None:
        self._network = LoginNetwork(fetcher, clock)
        self._discovery, self._sealer, self.now = Discovery(self._network), sealer, clock
        self._keysets = KeySets(fetcher)

    async def begin(self, config: Config, base: str, asked: Json, browser: str) -> str:
        """Where the browser is sent; `asked` comes back with the answer. Raises `LoginFailed`, `LoginUnavailable`."""
        settings = _settings(config)
        with plainly(NAME):
            at = await self._discovery.described(settings, settings.issuer or "")
            verifier, nonce = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
            kept = {"verifier": verifier, "nonce": nonce, "asked": asked, "browser": _hash(browser),
                    "until": self.now() + config.login.within}  # fmt: skip
            state = self._sealer.seal(_PURPOSE, kept, base)
            return authorization.url(
                at.authorize, settings.client_id or "", _callback(base), state, verifier, ("openid",), "",
                {"nonce": nonce},
            )  # fmt: skip

    async def finish(self, config: Config, base: str, query: str, browser: str) -> tuple[str, Json]:
        """Who signed in, as a principal, and what was asked. Raises `LoginFailed`, `LoginUnavailable`."""
        settings = _settings(config)
        with plainly(NAME):
            answer = authorization.read(query)
            kept = self._sealer.unseal(_PURPOSE, answer.state, base)
            if kept is None or kept["until"] <= self.now() or not compare_digest(kept["browser"], _hash(browser)):
                raise LoginFailed("no sign-in of this browser waits for this answer")
            at = await self._discovery.described(settings, settings.issuer or "")
            if why := authorization.why_not(answer, at.issuer, at.names_itself):
                raise LoginFailed(why)
            token = await self._id_token(settings, at, answer.code, kept["verifier"], _callback(base))
            return await self._subject(settings, token, kept["nonce"]), kept["asked"]

    async def _id_token(
        self, settings: LoginSettings, at: AuthorizationServer, code: str, verifier: str, redirect_uri: str
    ) -> str:
        method = clients.method_of(at, settings.client_secret, None)
        client = OAuthClient(settings.client_id or "", method, "config", settings.client_secret or "")
        form = tokens.by_code(code, verifier, redirect_uri)
        try:
            got = await self._network.form(settings, at.token, at, client, form)
        except Unfetched as error:
            raise LoginUnavailable(f"{urls.host(at.token)} cannot be asked: {error}") from None
        token = text_of(read_json(got.body), "id_token", _MAX_TOKEN) if got.status == 200 else ""
        if not token:
            raise LoginFailed(f"the identity provider {urls.host(at.issuer)} gives no ID token")
        return token

    async def _subject(self, settings: LoginSettings, token: str, nonce: str) -> str:
        """OpenID Connect Core 3.1.3.7: signature, issuer, audience, times and nonce."""
        issuer = TokenIssuer(settings.issuer or "", settings.client_id or "", algorithms=_ALGORITHMS)
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
        return found.name


def _settings(config: Config) -> LoginSettings:
    idp = config.login.idp
    if idp is None:
        raise LoginFailed("no identity provider is configured (login.idp)")
    secret = idp.client_secret.get_secret_value() if idp.client_secret else None
    return LoginSettings(NAME, "", idp.issuer, client_id=idp.client_id, client_secret=secret, issuer=idp.issuer)


def _callback(base: str) -> str:
    return f"{base}idp/callback"


def _hash(browser: str) -> str:
    return sha256(browser.encode()).hexdigest()
