"""An authorization server and an MCP server that wants its tokens, in the test's process: small, and rude on demand.

Refresh tokens rotate; one that comes twice ends its family. Everything that arrives is in `seen`.
"""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

Json = dict[str, Any]
Answer = tuple[int, dict[str, str], bytes]
PRM = "/.well-known/oauth-protected-resource"
METADATA = "/.well-known/oauth-authorization-server"


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))


def reply(value: Any, status: int = 200, **headers: str) -> Answer:
    return status, {"content-type": "application/json", **headers}, json.dumps(value).encode()


@dataclass
class Site:
    """A server on a port of its own. `pages` answer before anything else does."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    pages: dict[str, Answer | Callable[[Seen], Answer | None] | None] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, seen: Seen) -> Answer | None:
        raise NotImplementedError

    def paths(self, *names: str) -> list[str]:
        return [one.path for one in self.seen if not names or one.path in names]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                seen = Seen(method, target, headers, body)
                self.seen.append(seen)
                page = self.pages.get(urlsplit(target).path, ...)
                if self.hold is not None:
                    await self.hold.wait()
                made = self.answer(seen) if page is ... else page(seen) if callable(page) else page
                if made is None:
                    return
                status, more, data = made
                lines = "".join(f"{name}: {value}\r\n" for name, value in more.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()


@dataclass
class AuthorizationServer(Site):
    life: Any = 3600
    rotates: bool = True
    metadata: Json = field(default_factory=dict)
    drop: tuple[str, ...] = ()  # of the metadata
    path: str = ""
    clients: dict[str, Json] = field(default_factory=dict)
    codes: dict[str, Json] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)  # refresh token -> family
    spent: set[str] = field(default_factory=set)
    access: dict[str, str] = field(default_factory=dict)  # token -> family
    scopes: dict[str, str] = field(default_factory=dict)  # family -> scope
    dead: set[str] = field(default_factory=set)
    grants: list[str] = field(default_factory=list)
    assertions: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)  # everything that may not be found anywhere

    @property
    def issuer(self) -> str:
        return self.url + self.path

    def document(self) -> Json:
        made = {
            "issuer": self.issuer, "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register", "revocation_endpoint": f"{self.url}/revoke",
            "code_challenge_methods_supported": ["S256"], "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "authorization_response_iss_parameter_supported": True, **self.metadata,
        }  # fmt: skip
        return {name: value for name, value in made.items() if name not in self.drop}

    def answer(self, seen: Seen) -> Answer | None:
        handler = {"/register": self.register, "/token": self.token, "/revoke": self.revoke}.get(seen.path)
        if seen.path == METADATA + self.path:
            return reply(self.document())
        return handler(seen) if handler else reply({}, 404)

    def register(self, seen: Seen) -> Answer:
        asked = json.loads(seen.body)
        id, method = f"client-{len(self.clients) + 1}", asked["token_endpoint_auth_method"]
        made = {"client_id": id, **asked}
        if method != "none":
            made |= {"client_secret": self._secret(), "client_secret_expires_at": 0}
        self.clients[id] = made
        return reply(made, 201)

    def authorize(self, url: str, *, approve: bool = True, **more: str) -> str:
        """What the browser would bring back: the query of the redirect."""
        query = dict(parse_qsl(urlsplit(url).query, strict_parsing=True))
        assert url.startswith(f"{self.url}/authorize?"), url
        assert query["response_type"] == "code" and query["code_challenge_method"] == "S256"
        if query["client_id"] in self.clients:
            assert query["redirect_uri"] in self.clients[query["client_id"]]["redirect_uris"]
        back = {"state": query["state"], "iss": self.issuer}
        if approve:
            back["code"] = self._secret()
            self.codes[back["code"]] = query
        else:
            back |= {"error": "access_denied", "error_description": "no"}
        return urlencode({name: value for name, value in (back | more).items() if value})

    def token(self, seen: Seen) -> Answer:
        form = seen.form
        self.grants.append(form["grant_type"])
        client_id = self._client(seen)
        if form["grant_type"] == "authorization_code":
            query = self.codes.pop(form["code"], None)
            verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            if query is None or base64.urlsafe_b64encode(verifier).rstrip(b"=").decode() != query["code_challenge"]:
                return reply({"error": "invalid_grant"}, 400)
            assert query["client_id"] == client_id and query["redirect_uri"] == form["redirect_uri"]
            assert query.get("resource") == form.get("resource")
            return self.issue(f"family-{len(self.scopes)}", query.get("scope", ""))
        if form["grant_type"] == "client_credentials":
            if "client_assertion" in form:
                self.assertions.append(form["client_assertion"])
            return self.issue(f"family-{len(self.scopes)}", form.get("scope", ""), refresh=False)
        family = self.families.get(form["refresh_token"], "")
        if not family or family in self.dead or form["refresh_token"] in self.spent:
            self.dead.add(family)  # reuse of a rotated token ends the family
            return reply({"error": "invalid_grant"}, 400)
        if self.rotates:
            self.spent.add(form["refresh_token"])
        return self.issue(family, self.scopes[family], refresh=self.rotates)

    def _client(self, seen: Seen) -> str:
        if (basic := seen.headers.get("authorization", "")).startswith("Basic "):
            id, _, secret = base64.b64decode(basic[6:]).decode().partition(":")
            id, secret = unquote_plus(id), unquote_plus(secret)
            assert id not in self.clients or self.clients[id]["client_secret"] == secret
            return id
        return seen.form["client_id"]

    def issue(self, family: str, scope: str, refresh: bool = True) -> Answer:
        self.scopes[family] = scope
        access = self._secret()
        self.access[access] = family
        made = {"access_token": access, "token_type": "Bearer"}
        if self.life is not None:
            made["expires_in"] = self.life
        if scope:
            made["scope"] = scope
        if refresh:
            made["refresh_token"] = self._secret()
            self.families[made["refresh_token"]] = family
        return reply(made)

    def revoke(self, seen: Seen) -> Answer:
        token = seen.form["token"]
        self.dead.add(self.families.get(token) or self.access.get(token) or "")
        return reply({})

    def is_good(self, token: str) -> bool:
        return token in self.access and self.access[token] not in self.dead

    def _secret(self) -> str:
        made = secrets.token_urlsafe(24)
        self.secrets.add(made)
        return made


@dataclass
class ProtectedServer(Site):
    """Answers each POST to /mcp with 401 or 403 unless its token is one of `at`'s and good enough."""

    at: AuthorizationServer = field(default_factory=AuthorizationServer)
    prm: Json | None = field(default_factory=dict)  # over the default; None: there is none
    named: bool = True
    scope: str = ""
    refuses: bool = False
    open: bool = False
    legacy: bool = False

    @property
    def mcp(self) -> str:
        return f"{self.url}/mcp"

    def answer(self, seen: Seen) -> Answer | None:
        if seen.path == f"{PRM}/mcp" and self.prm is not None:
            return reply({"resource": self.mcp, "authorization_servers": [self.at.issuer], **self.prm})
        if seen.path != "/mcp":
            return reply({}, 404)
        if self.legacy and seen.method == "POST" and json.loads(seen.body)["method"] == "server/discover":
            return reply({}, 400)
        if self.legacy and seen.method == "POST" and json.loads(seen.body)["method"] == "initialize":
            return reply({}, 200, **{"mcp-session-id": "s1"})
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if self.open or (self.at.is_good(token) and not self.refuses):
            return reply({"jsonrpc": "2.0", "id": 1, "result": {}})
        return reply({}, 401, **{"www-authenticate": self.challenge()})

    def challenge(self, error: str = "", scope: str = "") -> str:
        parts = {"error": error, "scope": scope or self.scope}
        if self.named and self.prm is not None:
            parts["resource_metadata"] = f"{self.url}{PRM}/mcp"
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parts.items() if value)


@asynccontextmanager
async def listening(*sites: Site) -> AsyncIterator[None]:
    servers = []
    for site in sites:
        server = await asyncio.start_server(site.serve, "127.0.0.1", site.port)
        site.port = server.sockets[0].getsockname()[1]
        servers.append(server)
    try:
        yield
    finally:
        for server in servers:
            server.close()
