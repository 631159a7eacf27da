"""Where a client learns who gives tokens for this Sluice, when nobody said what it is called outside."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from listen_harness import site

from sluicegate.http.hosts import ServedNames
from sluicegate.listen.auth import IdentitySettings, Principal
from sluicegate.listen.auth.issuers import TokenIssuer
from sluicegate.listen.auth.tokens import TokenSettings
from sluicegate.listen.settings import ListenSettings

TOKENS = IdentitySettings(
    tokens=TokenSettings((TokenIssuer("https://login.test", "x"), TokenIssuer("https://login.test", "y")))
)
TRUSTING = ListenSettings(names=ServedNames(trusted_proxies=("127.0.0.1",)))
WELL_KNOWN = "/.well-known/oauth-protected-resource"
SAID = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "mcp.acme.com", "X-Forwarded-Prefix": "/tools/"}


@pytest.mark.parametrize(
    ("settings", "headers", "origin", "path"),
    [
        (TRUSTING, SAID, lambda port: "https://mcp.acme.com", "/tools/mcp"),
        (TRUSTING, {"X-Forwarded-Proto": "https"}, lambda port: f"https://127.0.0.1:{port}", "/mcp"),
        (TRUSTING, {"X-Forwarded-Host": 'a"b', "X-Forwarded-Proto": "gopher", "X-Forwarded-Prefix": "//evil"},
         lambda port: f"http://127.0.0.1:{port}", "/mcp"),
        (ListenSettings(), SAID, lambda port: f"http://127.0.0.1:{port}", "/mcp"),
        (TRUSTING, {}, lambda port: f"http://127.0.0.1:{port}", "/mcp"),
    ],
    ids=["a trusted proxy", "its scheme alone", "nonsense", "a stranger", "nobody"],
)  # fmt: skip
async def test_the_resource_is_what_the_client_sees_of_us(
    settings: ListenSettings, headers: dict[str, str], origin: Callable[[int], str], path: str
) -> None:
    async with site(settings, identity=TOKENS) as here, here.client(None, **headers) as client:
        refused = await client.post("/mcp", json={})
        assert refused.status_code == 401
        told = f'Bearer resource_metadata="{origin(here.port)}{WELL_KNOWN}{path}"'
        assert refused.headers["www-authenticate"] == told
        for place in (WELL_KNOWN, f"{WELL_KNOWN}/mcp", f"{WELL_KNOWN}{path}", f"{WELL_KNOWN}{path}/"):
            answer = await client.get(place)
            assert answer.json()["resource"] == f"{origin(here.port)}{path}"
            assert answer.json()["authorization_servers"] == ["https://login.test"]
        assert (await client.get(f"{WELL_KNOWN}/elsewhere")).status_code == 404


@pytest.mark.parametrize(
    ("public", "path"), [("https://acme.com", ""), ("https://acme.com/", ""), ("https://a.b/c", "/c")]
)
async def test_a_public_url_is_the_resource_as_it_is_written(public: str, path: str) -> None:
    settings: Any = ListenSettings(names=ServedNames(public_url=public))
    async with site(settings, identity=TOKENS) as here, here.client(None) as client:
        answer = await client.get(f"{WELL_KNOWN}{path}")
        assert answer.status_code == 200 and answer.json()["resource"] == public.rstrip("/")


async def test_without_an_issuer_there_is_no_metadata() -> None:
    async with site(TRUSTING) as here, here.client(None) as client:
        assert (await client.get(WELL_KNOWN)).status_code == 404
        assert (await client.post("/mcp", json={})).headers["www-authenticate"] == "Bearer"


async def test_pages_of_an_allowed_origin_may_read_it() -> None:
    settings = ListenSettings(names=ServedNames(allowed_origins=("https://app.test",)))
    async with site(settings, identity=TOKENS) as here, here.client(None) as client:
        answer = await client.get(WELL_KNOWN, headers={"Origin": "https://app.test"})
        assert answer.headers["access-control-allow-origin"] == "https://app.test"
        assert (await client.options(WELL_KNOWN, headers={"Origin": "https://app.test"})).status_code == 204
        assert (await client.get(WELL_KNOWN, headers={"Origin": "https://evil.test"})).status_code == 403


class OneToolset:
    """`dev` is there for everybody."""

    is_used = True

    def enter(self, principal: Principal, name: str) -> Principal | None:
        return replace(principal, toolset=name) if name in ("", "dev") else None


async def test_a_toolset_is_a_part_of_the_same_resource() -> None:
    async with site(TRUSTING, identity=TOKENS, toolsets=OneToolset()) as here, here.client(None) as client:
        whole = (await client.get(f"{WELL_KNOWN}/mcp")).json()
        for place in ("/mcp/dev", "/mcp/dev/", "/mcp/nothing"):  # who is nobody is not told which there are
            assert (await client.get(f"{WELL_KNOWN}{place}")).json() == whole
            refused = await client.post(place, json={})
            assert refused.status_code == 401 and f"{WELL_KNOWN}/mcp" in refused.headers["www-authenticate"]
        for place in ("/mcp/dev/more", "/mcp/Dev", "/dev", "/mcp//dev", "/mcp//dev/", "//mcp/dev"):
            assert (await client.get(f"{WELL_KNOWN}{place}")).status_code == 404
            assert (await client.post(place, json={})).status_code == 404
