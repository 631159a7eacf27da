"""Logins that wait for a person: begun, finished by the answer that a browser brings, waited for.

What must not be lost is kept before anybody sees the URL: the client that was registered, then the flow. A flow is
spent before its code is sent, so that no answer counts twice, in whichever process it arrives.
"""

import asyncio
import secrets
from dataclasses import asdict, dataclass, replace
from hmac import compare_digest
from typing import Final

import anyio

from sluicegate.login import records
from sluicegate.login.discovery import Discovered
from sluicegate.login.model import Flow, LoginFailed, LoginInfo, LoginSettings, LoginUnavailable
from sluicegate.login.scene import Scene, plainly
from sluicegate.oauth import (
    ERROR_WORD,
    authorization,
    challenges,
    clients,
    read_json,
    scopes,
    shown,
    text_of,
    tokens,
    urls,
)
from sluicegate.oauth.authorization import AuthorizationAnswer
from sluicegate.oauth.challenges import BearerChallenge
from sluicegate.oauth.clients import OAuthClient
from sluicegate.oauth.tokens import TokenAnswer, TokenRefusal
from sluicegate.protocol.model import Client
from sluicegate.store import Write
from sluicegate.store.keys import digest

MAX_FLOWS: Final = 100  # that wait, of one `whose`
BEGIN_WITHIN: Final = 45.0
POLL: Final = 1.0
_ENDED_FOR: Final = 300.0  # seconds that the end of a flow can be read
_ATTEMPTS: Final = 20


class Flows:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._records = scene, scene.records
        self._registering: dict[str, asyncio.Lock] = {}
        self._ended: dict[str, asyncio.Event] = {}

    async def begin(
        self, settings: LoginSettings, whose: str, redirect_uri: str, given: tuple[str, ...], browser: str,
        by: Client | None,
    ) -> Flow:  # fmt: skip
        try:
            with anyio.fail_after(BEGIN_WITHIN), plainly(settings.server):
                return await self._begin(settings, whose, redirect_uri, given, browser, by)
        except TimeoutError:
            raise LoginUnavailable(f"{settings.server} and its authorization server answer too slowly") from None

    async def prepare(
        self, settings: LoginSettings, whose: str, redirect_uri: str, given: tuple[str, ...]
    ) -> "Prepared":
        """What is found and registered before a person is asked; without a redirect URI, for the device flow."""
        if settings.is_machine:
            raise LoginFailed(f"{settings.server} has an account of Sluice's own: nobody logs in")
        challenge = challenges.read(given) or await self._scene.discovery.provoke(settings)
        _, old = await self._records.login(settings.server, whose)
        found = await self._scene.find(settings, whose, challenge, by_device=not redirect_uri)
        asked, is_step = _wanted(settings, challenge, found, old)
        return Prepared(found, await self._client(settings, found, redirect_uri, asked), asked, is_step)

    async def _begin(
        self, settings: LoginSettings, whose: str, redirect_uri: str, given: tuple[str, ...], browser: str,
        by: Client | None,
    ) -> Flow:  # fmt: skip
        scene, now = self._scene, self._scene.clock()
        ready = await self.prepare(settings, whose, redirect_uri, given)
        found, client, asked = ready.found, ready.client, ready.asked
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
        url = authorization.url(
            found.at.authorize, client.id, redirect_uri, state, verifier, asked, found.resource, settings.params
        )
        record = records.FlowRecord(
            settings.server, whose, settings.identity, settings.chosen, redirect_uri, now + settings.within,
            found.resource, found.at, ready.stored, asked, ready.is_step, verifier, _hash(browser),
        )  # fmt: skip
        if by is not None:
            record = replace(record, by=by.principal, credential=by.credential, roles=by.roles)
        await self._add(digest(state), record, settings.within)
        scene.tell(
            "login_asked", settings.server, whose, issuer=found.at.issuer, client_id=client.id, scopes=asked,
            by=record.by,
        )  # fmt: skip
        return Flow(digest(state), settings.server, whose, url, record.expires, found.at.issuer, asked)

    async def _client(
        self, settings: LoginSettings, found: Discovered, redirect_uri: str, asked: tuple[str, ...]
    ) -> OAuthClient:
        if settings.client_id:
            method = settings.auth or clients.method_of(found.at, settings.client_secret, settings.client_key)
            return OAuthClient(settings.client_id, method, "config", settings.client_secret or "")
        if settings.client_document and found.at.takes_documents:
            method = "private_key_jwt" if settings.client_key else "none"
            return OAuthClient(settings.client_document, method, "document")
        key = records.key_of(records.CLIENTS, found.at.issuer, redirect_uri)
        async with self._registering.setdefault(key, asyncio.Lock()):
            raw, stored = await self._records.client(key)
            if stored is not None and self._is_good(stored, settings, asked):
                return stored
            made = await self._register(settings, found, redirect_uri, asked)
            if await self._records.store.swap(key, raw, [self._records.write(key, asdict(made))]):
                return made
            _, theirs = await self._records.client(key)  # another process was first: one client is enough
            return theirs if theirs is not None and self._is_good(theirs, settings, asked) else made

    def _is_good(self, stored: OAuthClient, settings: LoginSettings, asked: tuple[str, ...]) -> bool:
        lasts = stored.until is None or stored.until > self._scene.clock() + settings.within
        return lasts and set(asked) <= set(stored.scopes)

    async def _register(
        self, settings: LoginSettings, found: Discovered, redirect_uri: str, asked: tuple[str, ...]
    ) -> OAuthClient:
        what = f"with the redirect URI {redirect_uri}" if redirect_uri else "for the device flow"
        by_hand = (
            f"register a client {what} at {urls.host(found.at.issuer)}, and set "
            f"servers.{settings.server}.login.client_id"
        )
        if not found.at.register:
            raise LoginFailed(f"the authorization server of {settings.server} registers nobody: {by_hand}")
        wanted = scopes.union(asked, scopes.within(found.scopes, settings.max_scopes))
        method = settings.auth or clients.registrable(found.at)
        body = clients.metadata(redirect_uri, method, wanted)
        answer = await self._scene.network.post_json(settings, found.at.register, body)
        if answer.status not in (200, 201):
            try:
                error = text_of(read_json(answer.body), "error", 64)
            except ValueError:
                error = ""
            word = error if ERROR_WORD.fullmatch(error) else f"HTTP {answer.status}"
            raise LoginFailed(f"the authorization server of {settings.server} refuses to register ({word}): {by_hand}")
        return clients.registered(read_json(answer.body), method, wanted)

    async def _add(self, id: str, record: records.FlowRecord, ttl: float) -> None:
        """Keeps the flow and the list of its `whose` in one change; beyond 100 the oldest go."""
        key, now = records.key_of(records.FLOW_LISTS, record.whose), self._scene.clock()
        for _ in range(_ATTEMPTS):
            raw, listed = await self._records.read(key)
            live = [(str(one), float(end)) for one, end in (listed or {}).get("flows", []) if float(end) > now]
            gone, left = live[: max(0, len(live) - MAX_FLOWS + 1)], live[-(MAX_FLOWS - 1) :]
            writes = [
                self._records.write(key, {"flows": [*left, (id, record.expires)]}, 2 * ttl),
                self._records.write(records.flow_key(id), asdict(record), ttl),
                *(Write(records.flow_key(one)) for one, _ in gone),
            ]
            if await self._records.store.swap(key, raw, writes):
                return
        raise LoginUnavailable("too many logins begin at once")

    async def finish(self, query: str, redirect_uri: str, browser: str, whose: str | None) -> LoginInfo:
        try:
            with plainly("the login"):
                answer = authorization.read(query)
                id = digest(answer.state)
                raw, flow = await self._records.flow(id)
                if raw is None or flow is None or flow.expires <= self._scene.clock():
                    raise LoginFailed("no login waits for this answer: it is unknown, too old, or was replaced")
                if flow.redirect_uri != redirect_uri:
                    raise LoginFailed("the answer came to another address than that of its login")
                if not compare_digest(flow.browser, _hash(browser)) or whose not in (None, flow.whose):
                    raise LoginFailed("another browser or person began this login: it goes on only there")
                spent = self._records.write(records.flow_key(id), asdict(flow.ended("spent")), _ENDED_FOR)
                if flow.state != "waiting" or not await self._records.store.swap(records.flow_key(id), raw, [spent]):
                    raise LoginFailed("this answer was used already")
                return await self._complete(id, flow, answer)
        except LoginUnavailable as error:
            raise LoginFailed(error.text) from None

    async def _complete(self, id: str, flow: records.FlowRecord, answer: AuthorizationAnswer) -> LoginInfo:
        try:
            with plainly(flow.server):
                login = await self.keep(*await self._exchange(flow, answer), flow.is_step)
        except (LoginFailed, LoginUnavailable) as error:
            await self._end(id, flow.ended("failed", error.text))
            self._scene.tell(
                "login_failed", flow.server, flow.whose, issuer=flow.at.issuer, client_id=flow.client.id,
                scopes=flow.asked, reason=error.text, by=flow.by,
            )  # fmt: skip
            raise
        await self._end(id, flow.ended("done"))
        self._scene.tell("scopes_added" if flow.is_step else "login_done", flow.server, flow.whose, login, by=flow.by)
        return login.info(self._scene.settings(flow.server), self._scene.clock())

    async def _exchange(
        self, flow: records.FlowRecord, answer: AuthorizationAnswer
    ) -> tuple[records.Login, TokenAnswer]:
        """The code goes to the token endpoint that was recorded when the login began. Raises `LoginFailed`."""
        if why := authorization.why_not(answer, flow.at.issuer, flow.at.names_itself):
            raise LoginFailed(why)
        settings = self._scene.settings(flow.server)
        if flow.identity != settings.identity or flow.chosen != settings.chosen:
            raise LoginFailed(f"the config of {flow.server} has changed since the login began")
        self._check_requester(flow)
        form = tokens.by_code(answer.code, flow.verifier, flow.redirect_uri)
        got = await self._scene.network.tokens(settings, flow.at, flow.client, form, flow.resource, again=False)
        if isinstance(got, TokenRefusal):
            if got.error == "invalid_client" and flow.client.source == "registered":
                await self._records.store.delete(records.key_of(records.CLIENTS, flow.at.issuer, flow.redirect_uri))
            raise LoginFailed(f"its authorization server gives no tokens: {shown(got.error)}")
        self._check_requester(flow)
        login = records.Login(
            _new_id(), flow.server, flow.whose, flow.identity, flow.chosen, flow.resource, flow.at, flow.client,
            flow.asked,
        )  # fmt: skip
        return login, got

    def _check_requester(self, flow: records.FlowRecord) -> None:
        """A login may serve many clients, so that whoever began it needs the right to until it is finished."""
        by = Client(flow.by, flow.roles, credential=flow.credential)
        if flow.by and not self._scene.may_log_in(flow.server, flow.whose, by):
            raise LoginFailed("whoever began this login may not log in there any more")

    async def keep(self, login: records.Login, got: TokenAnswer, is_step: bool) -> records.Login:
        key, now = records.key_of(records.LOGINS, login.server, login.whose), self._scene.clock()
        login = with_tokens(login, got, now)
        for _ in range(_ATTEMPTS):
            raw, old = await self._records.login(login.server, login.whose)
            steps = tuple(one for one in old.steps if 0 <= now - one < 3600.0) if old else ()
            made = replace(
                login, generation=(old.generation if old else 0) + 1, steps=(*steps, now) if is_step else steps
            )
            if await self._records.store.swap(key, raw, [self._records.write_login(made)]):
                return made
        raise LoginUnavailable("what is kept of this login changes too often")

    async def _end(self, id: str, record: records.FlowRecord) -> None:
        with plainly(record.server):
            write = self._records.write(records.flow_key(id), asdict(record), _ENDED_FOR)
            await self._records.store.put(write.key, write.value or b"", write.ttl)
        if (event := self._ended.get(id)) is not None:
            event.set()

    async def wait(self, flow: Flow) -> LoginInfo | None:
        event = self._ended.setdefault(flow.id, asyncio.Event())
        try:
            while True:
                _, record = await self._records.flow(flow.id)
                if record is not None and record.state == "failed":
                    raise LoginFailed(record.text)
                if record is not None and record.state == "done":
                    _, login = await self._records.login(flow.server, flow.whose)
                    settings, now = self._scene.servers.get(flow.server), self._scene.clock()
                    return login.info(settings, now) if login else None
                if record is None or record.expires <= self._scene.clock():
                    return None
                with anyio.move_on_after(POLL):
                    await event.wait()
                event.clear()
        finally:
            self._ended.pop(flow.id, None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """`stored` is the client as records have it: a secret of the config stays there alone."""

    found: Discovered
    client: OAuthClient
    asked: tuple[str, ...]
    is_step: bool

    @property
    def stored(self) -> OAuthClient:
        return replace(self.client, secret="") if self.client.source == "config" else self.client

    def login(self, settings: LoginSettings, whose: str) -> records.Login:
        """What it becomes once there are tokens."""
        found = self.found
        return records.Login(
            _new_id(), settings.server, whose, settings.identity, settings.chosen, found.resource, found.at,
            self.stored, self.asked,
        )  # fmt: skip


def _new_id() -> str:
    return f"lgn_{secrets.token_urlsafe(12)}"


def _hash(browser: str) -> str:
    return digest(browser) if browser else ""


def _wanted(
    settings: LoginSettings, challenge: BearerChallenge | None, found: Discovered, old: records.Login | None
) -> tuple[tuple[str, ...], bool]:
    """The scopes to ask for, and whether they are a step-up: then all that was asked for so far stays among them."""
    challenged = challenge.scopes if challenge else ()
    first = scopes.first(settings.scopes, challenged, found.scopes, found.at.scopes, settings.max_scopes)
    if old is None or not old.belongs_to(settings):
        return first, False
    is_step = bool(old.pending) or (challenge is not None and challenge.wants_scopes)
    if not is_step:
        return first, False
    more = scopes.within((*old.asked, *old.pending, *challenged), settings.max_scopes)
    return scopes.union(first, scopes.offered(more, found.at.scopes)), True


def with_tokens(login: records.Login, got: TokenAnswer, now: float) -> records.Login:
    """An answer without a refresh token or scopes keeps those of before (RFC 6749 5.1 and 6)."""
    return replace(
        login, access=got.access, refresh=got.refresh or login.refresh, obtained=now, life=got.life,
        expires_at=None if got.life is None else got.asked_at + got.life, state="ok", quiet_until=0.0, pending=(),
        problem="", granted=got.scopes if got.scopes is not None else login.granted or login.asked,
    )  # fmt: skip
