"""How servers and authorization servers are asked: each document, form and probe, with its bounds.

What their metadata names is somebody else's word. It passes the egress rules, is https (or http on this machine), and
POSTs follow no redirect. Knows no record.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import anyio

from sluicegate.http.fetch import MAX_BYTES, Fetched, Fetcher, FetchRequest, Unfetched
from sluicegate.login.model import LoginFailed, LoginSettings, LoginUnavailable
from sluicegate.oauth import Unfit, clients, read_json, tokens, urls
from sluicegate.oauth.clients import Form, Headers, OAuthClient
from sluicegate.oauth.metadata import AuthorizationServer
from sluicegate.oauth.tokens import TokenAnswer, TokenRefusal
from sluicegate.protocol.jsonrpc import Json, dump

TOKEN_WITHIN: Final = 10.0
_PAUSE: Final = 0.2
_TRIES: Final = 3
_JSON: Final = (b"accept", b"application/json")
_NOT_NOW: Final = frozenset({408, 425, 429})


class LoginNetwork:
    def __init__(self, fetcher: Fetcher, clock: Callable[[], float]) -> None:
        self._fetcher, self._clock = fetcher, clock

    async def send(
        self, settings: LoginSettings, url: str, headers: Headers, body: bytes = b"", *, method: str = "POST",
        within: float | None = None, most: int = MAX_BYTES,
    ) -> Fetched:  # fmt: skip
        """Raises `Unfetched` and `Unfit`."""
        urls.secure(url, "URL")
        ca = settings.ca if urls.host(url) == urls.host(settings.url) else None
        whose, bound = f"login {settings.server}", within or TOKEN_WITHIN
        return await self._fetcher.request(
            FetchRequest(url, settings.configured, whose, method, headers, body, bound, most, loopback=True, ca=ca)
        )

    async def document(self, settings: LoginSettings, url: str, more: Headers | None = None) -> Json | None:
        """The JSON object at `url`; None where there is none (4xx). What fails otherwise is no proof of that: it raises
        `LoginUnavailable`, `LoginFailed` or `Unfit`."""
        headers = [_JSON, *(more or [])]
        answer = await self._asked(url, self.send(settings, url, headers, method="GET", within=self._fetcher.within))
        if 400 <= answer.status < 500:
            return None
        if answer.status != 200:
            raise Unfit(f"{urls.host(url)} answers HTTP {answer.status} where its metadata is looked for")
        return read_json(answer.body)

    async def post_json(self, settings: LoginSettings, url: str, value: Json) -> Fetched:
        """Raises `LoginUnavailable`, `LoginFailed` and `Unfit`."""
        headers = [_JSON, (b"content-type", b"application/json")]
        return await self._asked(url, self.send(settings, url, headers, dump(value)))

    async def _asked(self, url: str, answered: Awaitable[Fetched]) -> Fetched:
        try:
            answer = await answered
        except Unfetched as error:
            raise unreached(error, url) from None
        if answer.status >= 500 or answer.status in _NOT_NOW:
            raise LoginUnavailable(f"{urls.host(url)} answers HTTP {answer.status}", urls.host(url))
        return answer

    async def tokens(
        self, settings: LoginSettings, at: AuthorizationServer, client: OAuthClient, form: Form, resource: str,
        *, again: bool,
    ) -> TokenAnswer | TokenRefusal:  # fmt: skip
        """What the token endpoint gives. A request that was not read is sent again, and with `again` one that got no
        answer, once, or a 5xx. Raises `LoginUnavailable` and, for what can never go well, `Unfit`."""
        lost, host = 0, urls.host(at.token)
        form = form | ({"resource": resource} if resource else {})
        for attempt in range(_TRIES):
            is_last, asked_at = attempt == _TRIES - 1, self._clock()
            try:
                answer = await self.form(settings, at.token, at, client, form)
            except Unfetched as error:
                lost += error.is_sent
                if is_last or error.is_blocked or (error.is_sent and (not again or lost > 1)):
                    raise LoginUnavailable(_reason(error, host), host) from None
            else:
                if answer.status < 500 and answer.status not in _NOT_NOW:
                    return _read(answer, host, asked_at)
                if is_last or not again:
                    raise LoginUnavailable(f"its authorization server {host} answers HTTP {answer.status}", host)
            await anyio.sleep(_PAUSE * (attempt + 1))
        raise AssertionError("the last attempt returns or raises")

    async def form(
        self, settings: LoginSettings, url: str, at: AuthorizationServer, client: OAuthClient, form: Form,
        within: float | None = None,
    ) -> Fetched:  # fmt: skip
        """Sends a form as this client. Raises `Unfetched` and `Unfit`."""
        if client.source == "config" and settings.client_id == client.id and settings.client_secret:
            client = OAuthClient(client.id, client.method, "config", settings.client_secret)
        proof, headers = clients.prove(client, settings.client_key, at, self._clock())
        typed = [_JSON, (b"content-type", b"application/x-www-form-urlencoded"), *headers]
        return await self.send(settings, url, typed, clients.encode(form | proof), within=within)

    async def revoke(
        self, settings: LoginSettings, at: AuthorizationServer, client: OAuthClient, access: str, refresh: str
    ) -> bool:
        """Whether the authorization server says that the login is over: of a refresh token, where there is one. Access
        tokens that servers prove by themselves cannot be revoked (RFC 7009 2.2.1)."""
        forms: Sequence[Form] = tokens.revocations(access, refresh) if at.revoke else ()
        done = []
        for form in forms:
            try:
                answer = await self.form(settings, at.revoke, at, client, form, self._fetcher.within)
                done.append(answer.status == 200)
            except (Unfetched, Unfit):
                done.append(False)
        return done[:1] == [True]


def _read(answer: Fetched, host: str, asked_at: float) -> TokenAnswer | TokenRefusal:
    try:
        got = tokens.read(answer.status, answer.body)
    except Unfit as error:
        raise LoginUnavailable(f"its authorization server {host} gives no tokens: {error}", host) from None
    return replace(got, asked_at=asked_at) if isinstance(got, TokenAnswer) else got


def _reason(error: Unfetched, host: str) -> str:
    why = f"may not be reached: {error}" if error.is_blocked else "does not answer"
    return f"its authorization server {host} {why}"


def unreached(error: Unfetched, url: str) -> LoginFailed | LoginUnavailable:
    """An address that is refused stays so; anything else may pass."""
    host = urls.host(url)
    if error.is_blocked:
        return LoginFailed(f"{host} may not be reached: {error}")
    return LoginUnavailable(f"{host} cannot be asked: {error}", host)
