"""Finding a server's authorization server: the challenge, the server's metadata, the authorization server's.

2026-07-28 basic/authorization; 2025-03-26 for servers without metadata. Knows no record and no client.
"""

from dataclasses import dataclass, replace
from typing import Final

from sluicegate.http.fetch import Fetched, Unfetched
from sluicegate.login.model import LoginFailed, LoginSettings
from sluicegate.login.network import LoginNetwork, unreached
from sluicegate.oauth import Unfit, challenges, metadata, urls
from sluicegate.oauth.challenges import BearerChallenge
from sluicegate.oauth.clients import Headers
from sluicegate.oauth.metadata import AuthorizationServer, ResourceMetadata
from sluicegate.protocol import legacy_server, modern_server
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.protocol.model import MODERN
from sluicegate.protocol.revisions import NEWEST_LEGACY

_OLD: Final = "2025-03-26"
_SLUICE: Final[Json] = {"name": "sluice", "version": "1"}
_BOTH: Final = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
_VERSION: Final = b"mcp-protocol-version"


@dataclass(frozen=True, slots=True)
class Discovered:
    """`has_metadata`: the server has that of RFC 9728, so that it is never taken for an older one."""

    at: AuthorizationServer
    resource: str
    scopes: tuple[str, ...]
    has_metadata: bool


class Discovery:
    def __init__(self, network: LoginNetwork) -> None:
        self._network = network

    async def find(
        self, settings: LoginSettings, challenge: BearerChallenge | None, had_metadata: bool, by_device: bool = False
    ) -> Discovered:
        """`challenge` is None where the server asked for nothing. `by_device`: nobody is sent from here. Raises
        `LoginFailed`, `LoginUnavailable`, `Unfit`."""
        own = await self.resource(settings, challenge)
        if own is None and had_metadata:
            raise LoginFailed(f"{settings.server} no longer says which authorization server is its own")
        if own is None and challenge is None and not (settings.issuer or settings.token):
            raise LoginFailed(f"{settings.server} asks for no login")
        at = await self._server(settings, own, by_device)
        resource = settings.resource if settings.resource is not None else own.resource if own else ""
        return Discovered(at, resource, own.scopes if own else (), own is not None)

    async def resource(self, settings: LoginSettings, challenge: BearerChallenge | None) -> ResourceMetadata | None:
        named = challenge.resource_metadata if challenge else ""
        for url in metadata.resource_urls(settings.url, named):
            document = await self._network.document(settings, url)
            if document is not None:
                return metadata.read_resource(document, settings.url, checked=not settings.resource)
        if named:
            raise LoginFailed(f"{settings.server} names metadata that is not there")
        return None

    async def _server(
        self, settings: LoginSettings, own: ResourceMetadata | None, by_device: bool
    ) -> AuthorizationServer:
        issuer = _issuer(settings, own)
        if settings.token:
            at = AuthorizationServer(
                issuer, settings.token, settings.authorize or "", revoke=settings.revoke or "", has_s256=True
            )
        else:
            at = await self.described(settings, issuer, old=own is None and settings.issuer is None)
            at = replace(at, revoke=settings.revoke) if settings.revoke else at
        if by_device and not at.device:
            raise Unfit("its authorization server has no device flow: see --paste")
        if settings.is_machine or by_device:
            return at
        if not at.authorize:
            raise Unfit("its authorization server has no authorization endpoint")
        if not at.has_s256 and settings.pkce == "required":
            raise Unfit("its authorization server does not say that it does PKCE with S256 (login.pkce)")
        return at

    async def described(self, settings: LoginSettings, issuer: str, old: bool = False) -> AuthorizationServer:
        """Raises `LoginFailed`, `LoginUnavailable` and `Unfit`."""
        places = metadata.server_urls(issuer)
        for url in places[:1] if old else places:
            document = await self._network.document(settings, url, [(_VERSION, _OLD.encode())] if old else None)
            if document is not None:
                return metadata.read_server(document, issuer, old=old)
        if old:
            return metadata.old_server(issuer)
        raise LoginFailed(f"the authorization server {urls.host(issuer)} has no metadata")

    async def provoke(self, settings: LoginSettings) -> BearerChallenge | None:
        """What the server answers to who has no token; None where it answers everything. Raises `LoginUnavailable` and
        `LoginFailed`."""
        answer = await self._ask_modern(settings, "server/discover")
        if answer.status < 300 and _challenge(answer) is None:
            answer = await self._ask_modern(settings, "tools/list")
        if answer.status < 300 or _challenge(answer) is not None:
            return _challenge(answer)
        answer = await self._ask(settings, "initialize", legacy_server.initialize(_SLUICE, {}), [])
        if (challenge := _challenge(answer)) is not None or answer.status >= 300:
            return challenge
        session: Headers = [(b"mcp-session-id", one.encode("latin-1")) for one in answer.all(b"mcp-session-id")]
        session.append((_VERSION, NEWEST_LEGACY.encode()))
        challenge = _challenge(await self._ask(settings, "tools/list", {}, session))
        if len(session) > 1:
            await self._end(settings, session)
        return challenge

    async def _ask_modern(self, settings: LoginSettings, method: str) -> Fetched:
        params: Json = {"_meta": modern_server.envelope(_SLUICE, {})}
        headers = [(_VERSION, MODERN.encode()), *modern_server.headers(method, params)]
        return await self._ask(settings, method, params, headers)

    async def _ask(self, settings: LoginSettings, method: str, params: Json, more: Headers) -> Fetched:
        body = dump({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        headers = _BOTH + [header for header in more if header[0].lower() not in (b"content-type", b"accept")]
        try:
            return await self._network.send(settings, settings.url, headers, body, most=0)
        except Unfetched as error:
            raise unreached(error, settings.url) from None

    async def _end(self, settings: LoginSettings, session: Headers) -> None:
        try:
            await self._network.send(settings, settings.url, session, method="DELETE", within=2.0, most=0)
        except Unfetched:
            return


def _challenge(answer: Fetched) -> BearerChallenge | None:
    found = challenges.read(answer.all(b"www-authenticate"))
    if answer.status == 401:
        return found or BearerChallenge()
    return found if answer.status == 403 and found is not None and found.wants_scopes else None


def _issuer(settings: LoginSettings, own: ResourceMetadata | None) -> str:
    named = own.issuers if own is not None else ()
    if settings.issuer is not None:
        # Servers on version 1 of the Python SDK add a slash to each issuer that has no path.
        if named and not {settings.issuer, f"{settings.issuer}/"} & set(named):
            raise LoginFailed(f"{settings.server} does not name the authorization server of login.issuer")
        return settings.issuer
    if named:
        return urls.secure(named[0], "issuer")
    if own is not None:
        raise Unfit("its metadata names no authorization server")
    return urls.root(settings.token or settings.url)
