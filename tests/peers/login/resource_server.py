"""A real MCP server that wants a token, on the official SDK: 1.x or 2.x, by the Python that runs it.

    .peers/mcp2/bin/python tests/peers/login/resource_server.py --issuer http://127.0.0.1:4000
    .peers/mcp1/bin/python tests/peers/login/resource_server.py --issuer http://127.0.0.1:4000

Prints its URL. Tools: `whoami` (JSON of the token: subject, scopes, client, resource, expires_at), `echo` (its text),
and `write`, which answers 403 `insufficient_scope` to a token without `mcp:write`. The SDK checks tokens: a JWT by the
keys of the authorization server, any other by introspection; each must be for this server, and have the scopes of
`--required`.

Ours are the metadata of RFC 9728, because the SDK 1.x adds a slash to an issuer without a path (`--sdk-metadata` leaves
them to it), and the 403, which the SDK has for whole servers only. GET /__seen lists the messages that came, as
[{"method", "tool", "token", "status"}].
"""

import argparse
import asyncio
import json
import socket
import warnings
from functools import cached_property
from typing import Any

import httpx
import jwt
import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

try:
    from mcp.server.mcpserver import Context, MCPServer
except ModuleNotFoundError:  # 1.x
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

WRITE = "mcp:write"
ASKER = ("resource-server", "secret-of-the-resource-server")  # a client that oidc_provider.cjs knows
WELL_KNOWN = "/.well-known/oauth-protected-resource"


class Verifier:
    def __init__(self, issuer: str, resource: str) -> None:
        self._issuer = issuer
        self._resource = resource

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        url = f"{self._issuer}/.well-known/oauth-authorization-server"
        return dict(httpx.get(url, timeout=10).raise_for_status().json())

    @cached_property
    def _keys(self) -> jwt.PyJWKClient:
        return jwt.PyJWKClient(self._metadata["jwks_uri"])

    async def verify_token(self, token: str) -> AccessToken | None:
        return await asyncio.to_thread(self.verify, token)

    def verify(self, token: str) -> AccessToken | None:
        try:
            claims = self._claims(token)
        except (jwt.PyJWTError, httpx.HTTPError):
            return None
        if not claims.get("active", True):
            return None
        return AccessToken(
            token=token, client_id=claims.get("client_id", ""), scopes=claims.get("scope", "").split(),
            expires_at=claims.get("exp"), resource=claims.get("aud"), subject=claims.get("sub"), claims=claims,
        )  # fmt: skip

    def _claims(self, token: str) -> dict[str, Any]:
        if token.count(".") == 2:
            key = self._keys.get_signing_key_from_jwt(token).key
            return jwt.decode(token, key, ["RS256"], audience=self._resource, issuer=self._issuer)
        asked = httpx.post(self._metadata["introspection_endpoint"], data={"token": token}, auth=ASKER, timeout=10)
        return dict(asked.raise_for_status().json())


class Door:
    """Records what comes, says where tokens are to be had, and refuses one tool to those without its scope."""

    def __init__(self, app: ASGIApp, verifier: Verifier, metadata: dict[str, Any] | None, at: str, asked: str) -> None:
        self._app = app
        self._verifier = verifier
        self._metadata = metadata
        self._at = at
        self._asked = asked
        self._seen: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope, receive)
        if scope["path"] == "/__seen":
            return await JSONResponse(self._seen)(scope, receive, send)
        if scope["path"].startswith(WELL_KNOWN) and self._metadata is not None:
            return await JSONResponse(self._metadata)(scope, receive, send)
        return await self._message(request, send)

    async def _message(self, request: Request, send: Send) -> None:
        body = await request.body()
        message = json.loads(body) if body else {}
        params = message.get("params") or {}
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        noted = {"method": message.get("method"), "tool": params.get("name"), "token": token}
        self._seen.append(noted)

        async def noting(sent: Message) -> None:
            if sent["type"] == "http.response.start":
                noted["status"] = sent["status"]
            await send(sent)

        delivered = False

        async def again() -> Message:
            nonlocal delivered
            if delivered:
                return await request.receive()
            delivered = True
            return {"type": "http.request", "body": body, "more_body": False}

        is_write = noted["method"] == "tools/call" and noted["tool"] == "write"
        access = await self._verifier.verify_token(token) if is_write and token else None
        if access is not None and WRITE not in access.scopes:
            challenge = f'Bearer error="insufficient_scope", scope="{self._asked}", resource_metadata="{self._at}"'
            refusal = JSONResponse({"error": "insufficient_scope"}, 403, {"www-authenticate": challenge})
            return await refusal(request.scope, again, noting)
        return await self._app(request.scope, again, noting)


def add_tools(server: Any) -> None:
    @server.tool()  # type: ignore[untyped-decorator]
    def whoami(ctx: Context) -> str:
        """Whose token came with this request."""
        token: AccessToken = ctx.request_context.request.user.access_token
        return json.dumps(
            {
                "subject": token.subject, "scopes": token.scopes, "client": token.client_id,
                "resource": token.resource, "expires_at": token.expires_at,
            }
        )  # fmt: skip

    @server.tool()  # type: ignore[untyped-decorator]
    def echo(text: str) -> str:
        """The same text."""
        return text

    @server.tool()  # type: ignore[untyped-decorator]
    def write(text: str) -> str:
        """Needs the further scope mcp:write."""
        return f"wrote {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--issuer", required=True, help="the authorization server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--required", default="mcp:read", help="scopes without which nothing is answered")
    parser.add_argument("--supported", default="mcp:read", help="`scopes_supported` of the metadata")
    parser.add_argument("--sdk-metadata", action="store_true", help="the metadata are the SDK's")
    parser.add_argument("--terse", action="store_true", help="the 403 names the further scope alone, not all it needs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    listener = socket.create_server(("127.0.0.1", options.port))
    origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    url = f"{origin}/mcp"
    verifier = Verifier(options.issuer, url)
    named = {"issuer_url": options.issuer, "resource_server_url": url, "required_scopes": options.required.split()}
    auth = AuthSettings.model_validate({**named, "validate_token_resource": True})  # 2.x keeps strings as they are
    server = MCPServer("guarded", token_verifier=verifier, auth=auth)
    add_tools(server)
    metadata = {
        "resource": url, "authorization_servers": [options.issuer], "scopes_supported": options.supported.split(),
        "bearer_methods_supported": ["header"],
    }  # fmt: skip
    ours = None if options.sdk_metadata else metadata
    asked = WRITE if options.terse else f"{options.required} {WRITE}"
    app = Door(server.streamable_http_app(), verifier, ours, f"{origin}{WELL_KNOWN}/mcp", asked)
    print(url, flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
