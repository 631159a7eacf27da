"""Real MCP servers that want a token, without Sluice: each official SDK logs in to each of them by itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
from peers.fleet import CLIENTS, run_client
from peers.install import MCP1, MCP2
from peers.login.authorities import Authority, Guarded, guarded_server, oidc_provider
from peers.login.by_hand import ByHand
from waiting import until_so

PYTHONS = {1: MCP1 / "python", 2: MCP2 / "python"}


@pytest.fixture(scope="module", params=["jwt", "opaque"])
def authority(
    peers: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Authority]:
    with oidc_provider(tmp_path_factory.mktemp("oidc"), tokens=request.param) as authority:
        yield authority


@pytest.mark.parametrize("server", [1, 2])
@pytest.mark.parametrize("client", [1, 2])
def test_the_official_client_logs_in_steps_up_and_refreshes(
    authority: Authority, tmp_path: Path, server: Literal[1, 2], client: int
) -> None:
    before = authority.counts()
    with guarded_server(tmp_path, authority.issuer, sdk=server) as guarded:
        program = [str(PYTHONS[client]), str(CLIENTS / "oauth_login.py"), guarded.url, "bob"]
        seen = run_client(program, {}, 60)
        called = [one for one in guarded.seen() if one["method"] == "tools/call"]
    assert seen["tools"] == ["whoami", "echo", "write"] and seen["write"] == "wrote x"
    assert seen["before"]["subject"] == "bob" and seen["before"]["resource"] == guarded.url
    assert seen["before"]["scopes"] == ["mcp:read"] and set(seen["after"]["scopes"]) == {"mcp:read", "mcp:write"}
    assert seen["renewed"]["scopes"] == seen["after"]["scopes"]
    assert [(one["tool"], one["status"]) for one in called] == [
        ("whoami", 200), ("write", 403), ("write", 200), ("whoami", 200), ("whoami", 200),
    ]  # fmt: skip
    assert len({one["token"] for one in called}) == 3
    counted = authority.counts() - before
    assert counted["registration"] == 1 and counted["token"] == 3
    assert counted["token.authorization_code"] == 2 and counted["token.refresh_token"] == 1


def call(guarded: Guarded, token: str | None, tool: str = "echo") -> tuple[int, str]:
    """The status, and the challenge."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}}
    headers = {"accept": "application/json, text/event-stream"}
    headers |= {} if token is None else {"authorization": f"Bearer {token}"}
    answer = httpx.post(guarded.url, json=message, headers=headers)
    return answer.status_code, answer.headers.get("www-authenticate", "")


@pytest.mark.parametrize("sdk", [1, 2])
def test_tokens_that_are_refused(authority: Authority, tmp_path: Path, sdk: Literal[1, 2]) -> None:
    with guarded_server(tmp_path, authority.issuer, "--terse", sdk=sdk) as guarded:
        at = guarded.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
        status, challenge = call(guarded, None)
        assert status == 401 and f'resource_metadata="{at}"' in challenge
        told = httpx.get(at).json()
        assert told["resource"] == guarded.url and told["authorization_servers"] == [authority.issuer]
        hand = ByHand(authority.metadata(), guarded.url)
        status, challenge = call(guarded, hand.login()["access_token"], "write")
        assert status == 403 and 'scope="mcp:write"' in challenge
        hand.scope = "mcp:write"
        assert call(guarded, hand.login()["access_token"])[0] == 403
        hand.resource = guarded.url.replace("/mcp", "/other")
        assert call(guarded, hand.login()["access_token"])[0] == 401


def test_a_token_ends_by_the_clock(peers: None, tmp_path: Path) -> None:
    with oidc_provider(tmp_path, access_life=1) as authority, guarded_server(tmp_path, authority.issuer) as guarded:
        token = ByHand(authority.metadata(), guarded.url).login()["access_token"]
        until_so(lambda: call(guarded, token)[0] == 401, 10)


@pytest.mark.parametrize(("sdk", "slash"), [(1, "/"), (2, "")])
def test_how_the_sdks_themselves_name_an_issuer_without_a_path(
    peers: None, tmp_path: Path, sdk: Literal[1, 2], slash: str
) -> None:
    with guarded_server(tmp_path, "http://127.0.0.1:1", "--sdk-metadata", sdk=sdk) as guarded:
        told = httpx.get(guarded.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")).json()
    assert told["authorization_servers"] == [f"http://127.0.0.1:1{slash}"] and told["resource"] == guarded.url
