"""A client on either Python SDK that logs in by itself, run with the SDK's own Python: prints the tools it sees.

    PYTHONPATH=tests .peers/mcp2/bin/python tests/peers/login/sdk_login.py URL

Its person's browser follows every page, and allows what is asked.
"""

import inspect
import json
import sys
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from peers.login.browser import Browser

try:
    import httpx2 as httpx  # what version 2 sends with
except ImportError:
    import httpx

CALLBACK = "http://127.0.0.1:33418/callback"


class Memory:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Person:
    def __init__(self, user: str) -> None:
        self.user, self.told = user, dict[str, str]()

    async def opens(self, url: str) -> None:
        await anyio.to_thread.run_sync(self._allows, url)

    def _allows(self, url: str) -> None:
        with Browser(self.user) as browser:
            page = browser.login(url)
            ticket = unescape(page.text.partition('name="ticket" value="')[2].partition('"')[0])
            action = unescape(page.text.partition('action="')[2].partition('"')[0])
            parts = urlsplit(action)
            browser.headers["Origin"] = f"{parts.scheme}://{parts.netloc}"
            answer = browser.post(action, {"ticket": ticket, "answer": "allow"})
        location = answer.headers["location"]
        assert location.startswith(CALLBACK), location
        self.told = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}

    async def returns(self) -> Any:
        try:
            from mcp.client.auth import AuthorizationCodeResult  # version 2 alone
        except ImportError:
            return self.told["code"], self.told["state"]
        known = inspect.signature(AuthorizationCodeResult).parameters
        return AuthorizationCodeResult(**{name: self.told[name] for name in known if name in self.told})


async def main(url: str) -> None:
    person = Person("ann")
    metadata = OAuthClientMetadata.model_validate({
        "client_name": "SDK", "redirect_uris": [CALLBACK], "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
    })
    auth = OAuthClientProvider(url, metadata, Memory(), person.opens, person.returns)
    async with httpx.AsyncClient(auth=auth, timeout=30) as http:
        async with streamable_http_client(url, http_client=http) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                await session.initialize()
                print(json.dumps([tool.name for tool in (await session.list_tools()).tools]), flush=True)


anyio.run(main, sys.argv[1])
