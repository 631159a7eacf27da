"""An official SDK as a client that logs in: `oauth_login.py URL USER`, by the Python of SDK 1.x or 2.x.

Its browser is one of plain HTTP. Prints what it saw as one line of JSON: `tools`, `whoami` before and after `write`,
which needs a further scope, and `renewed`: `whoami` with a token that it has refreshed.
"""

import json
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

try:
    import httpx2 as http
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import AuthorizationCodeResult
except ModuleNotFoundError:  # 1.x
    import httpx as http
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    Client = None

URL, USER = sys.argv[1:]
CALLBACK = "http://127.0.0.1:7412/callback"


class Memory:
    """Where the SDK keeps what it is given."""

    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


class Person:
    """Opens what it is told to, logs in as USER, and hands over what the callback would be told."""

    answer: dict[str, str]

    async def open(self, url: str) -> None:
        async with http.AsyncClient() as browser:
            while not url.startswith(CALLBACK):
                asks = "response_type=" in url
                url = str((await browser.get(f"{url}&login_hint={USER}" if asks else url)).next_request.url)
        self.answer = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    async def callback(self) -> Any:
        told = {name: self.answer.get(name) for name in ("code", "state", "iss")}
        return (told["code"], told["state"]) if Client is None else AuthorizationCodeResult(**told)


async def use(session: Any, auth: OAuthClientProvider) -> dict[str, Any]:
    async def text(tool: str, **arguments: str) -> str:
        return str((await session.call_tool(tool, arguments)).content[0].text)

    seen: dict[str, Any] = {"tools": [tool.name for tool in (await session.list_tools()).tools]}
    seen["before"] = json.loads(await text("whoami"))
    seen["write"] = await text("write", text="x")
    seen["after"] = json.loads(await text("whoami"))
    auth.context.token_expiry_time = 1  # long ago
    seen["renewed"] = json.loads(await text("whoami"))
    return seen


async def main() -> None:
    person = Person()
    kind = {} if Client is None else {"application_type": "native"}
    metadata = OAuthClientMetadata(
        client_name="official SDK", redirect_uris=[AnyUrl(CALLBACK)], token_endpoint_auth_method="none",
        grant_types=["authorization_code", "refresh_token"], **kind,
    )  # fmt: skip
    auth = OAuthClientProvider(URL, metadata, Memory(), person.open, person.callback)
    if Client is None:
        async with streamablehttp_client(URL, auth=auth) as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            seen = await use(session, auth)
    else:
        async with http.AsyncClient(auth=auth, timeout=30) as client:
            async with Client(streamable_http_client(URL, http_client=client)) as session:
                seen = await use(session, auth)
    print(json.dumps(seen))


if __name__ == "__main__":
    anyio.run(main)
