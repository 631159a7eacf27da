"""The misbehaving authorization server and its MCP servers without Sluice: good by omission, and each switch."""

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from peers.fleet import CLIENTS, Json, run_client
from peers.install import MCP1, MCP2
from peers.login.by_hand import CALLBACK, ByHand
from peers.login.faults import closing, failing, flooding, html, losing, redirecting, refusing, silent, slow, telling
from peers.login.good_authority import DEVICE, EXCHANGE, JWT_BEARER
from peers.login.misbehaving import OAUTH, OPENID, PRM, Misbehaving, misbehaving
from waiting import until_so

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


@pytest.fixture
def site() -> Iterator[Misbehaving]:
    with misbehaving() as site:
        yield site


@pytest.fixture
def hand(site: Misbehaving) -> ByHand:
    return ByHand(metadata(site), site.mcp, scope="read")


def metadata(site: Misbehaving) -> Json:
    return dict(httpx.get(f"{site.url}{OAUTH}{site.switches.issuer_path}").json())


def ask(site: Misbehaving, method: str, token: str | None, modern: bool = False, **params: Any) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    if modern:
        headers["mcp-protocol-version"] = "2026-07-28"
        params["_meta"] = META
    return httpx.post(site.mcp, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers=headers)


def call(site: Misbehaving, tool: str, token: str | None) -> httpx.Response:
    return ask(site, "tools/call", token, name=tool, arguments={})


def test_the_way_from_the_challenge_to_the_tools(site: Misbehaving) -> None:
    challenge = ask(site, "tools/list", None).headers["www-authenticate"]
    at = challenge.removeprefix('Bearer resource_metadata="').removesuffix('"')
    assert at == f"{site.url}{PRM}/mcp"
    told = httpx.get(at).json()
    assert told == {"resource": site.mcp, "authorization_servers": [site.issuer]}
    hand = ByHand(metadata(site), told["resource"], scope="read")
    tokens = hand.login(user="bob")
    whoami = call(site, "whoami", tokens["access_token"]).json()["result"]["content"][0]["text"]
    assert json.loads(whoami) == {"subject": "bob", "scopes": ["read"], "client": hand.client}
    assert [seen.endpoint for seen in site.seen] == [
        "mcp", "prm", "metadata", "register", "authorize", "token", "mcp",
    ]  # fmt: skip
    assert [seen.status for seen in site.seen] == [401, 200, 200, 201, 302, 200, 200]
    assert site.calls("whoami")[0].bearer == tokens["access_token"]
    (exchange,) = site.of("token", grant_type="authorization_code")
    assert exchange.form["resource"] == site.mcp and exchange.form["code_verifier"] == hand.verifier
    assert {tokens["access_token"], tokens["refresh_token"], hand.verifier, exchange.form["code"]} < site.secrets()


@pytest.mark.parametrize("python", [MCP1, MCP2])
def test_the_official_clients_find_nothing_wrong_with_it(peers: None, site: Misbehaving, python: Path) -> None:
    seen = run_client([str(python / "python"), str(CLIENTS / "oauth_login.py"), site.mcp, "bob"], {}, 60)
    assert seen["before"]["subject"] == "bob" and seen["write"] == '{"text": "x"}'
    assert len(site.of("register")) == 1 and len(site.of("authorize")) == 2  # the second for `write`
    assert [token.form["grant_type"] for token in site.of("token")] == [
        "authorization_code", "authorization_code", "refresh_token",
    ]  # fmt: skip


def test_both_eras(site: Misbehaving, hand: ByHand) -> None:
    token = hand.login()["access_token"]
    assert ask(site, "server/discover", token, modern=True).json()["result"]["supportedVersions"] == ["2026-07-28"]
    assert ask(site, "tools/list", token, modern=True).json()["result"]["resultType"] == "complete"
    about = ask(site, "initialize", token, protocolVersion="2025-06-18").json()["result"]
    assert about["protocolVersion"] == "2025-06-18"
    assert "resultType" not in ask(site, "tools/list", token).json()["result"]
    site.switches.eras = ("legacy",)
    assert ask(site, "server/discover", token, modern=True).status_code == 400
    site.switches.eras = ("modern",)
    assert ask(site, "initialize", token).json()["error"]["code"] == -32601


def test_refresh_tokens_rotate_and_a_reused_one_ends_the_grant(site: Misbehaving, hand: ByHand) -> None:
    first = hand.login()
    second = hand.refresh(first["refresh_token"]).json()
    site.switches.reuse_grace = 60
    assert hand.refresh(first["refresh_token"]).json() == second
    site.switches.reuse_grace = 0
    assert call(site, "echo", second["access_token"]).status_code == 200
    assert hand.refresh(first["refresh_token"]).json() == {"error": "invalid_grant"} and site.authority.reused == 1
    assert hand.refresh(second["refresh_token"]).json() == {"error": "invalid_grant"}
    assert call(site, "echo", second["access_token"]).status_code == 401
    site.switches.rotation = False
    other = hand.login()
    assert "refresh_token" not in hand.refresh(other["refresh_token"]).json()


def test_codes_are_bound_and_spent(site: Misbehaving, hand: ByHand) -> None:
    hand.register()
    code = hand.answered()["code"]
    assert hand.exchange(code, code_verifier="wrong").json()["error"] == "invalid_grant"
    assert hand.exchange(code).json()["error"] == "invalid_grant"  # spent
    page = httpx.get(hand.authorization_url(redirect_uri=CALLBACK.replace("7412", "7413")))
    assert page.status_code == 400


def test_what_the_callback_is_told(site: Misbehaving, hand: ByHand) -> None:
    hand.register()
    assert hand.answered()["iss"] == site.issuer
    site.switches.iss = None
    assert "iss" not in hand.answered()
    site.switches.iss, site.switches.state = "https://other.example", "other"
    assert (hand.answered()["iss"], hand.answered()["state"]) == ("https://other.example", "other")
    site.switches.denies = "access_denied"
    assert hand.answered()["error"] == "access_denied"


def test_metadata_with_members_of_the_tests_choice(site: Misbehaving) -> None:
    site.switches.prm |= {"resource": site.url, "scopes_supported": ["a"]}
    site.switches.metadata |= {"authorization_endpoint": "javascript:alert(1)\n", "registration_endpoint": None}
    assert httpx.get(f"{site.url}{PRM}/mcp").json()["scopes_supported"] == ["a"]
    told = metadata(site)
    assert told["authorization_endpoint"] == "javascript:alert(1)\n" and "registration_endpoint" not in told


def test_metadata_at_other_places(site: Misbehaving) -> None:
    site.switches.prm_at, site.switches.issuer_path = "root", "/tenant1"
    site.switches.metadata_at = ("openid-appended",)
    assert httpx.get(f"{site.url}{PRM}/mcp").status_code == 404
    assert httpx.get(site.url + PRM).json()["authorization_servers"] == [f"{site.url}/tenant1"]
    assert httpx.get(f"{site.url}{OAUTH}/tenant1").status_code == 404
    assert httpx.get(f"{site.url}/tenant1{OPENID}").json()["issuer"] == f"{site.url}/tenant1"
    site.switches.prm_at = "nowhere"
    assert ask(site, "tools/list", None).headers["www-authenticate"].strip() == "Bearer"
    site.switches.prm_at = "/here"
    assert httpx.get(f"{site.url}/here").json()["resource"] == site.mcp


def test_odd_answers_of_the_token_endpoint(site: Misbehaving, hand: ByHand) -> None:
    site.switches.token = {"expires_in": "verbatim:1e400", "token_type": "mac", "scope": None}
    hand.register()
    text = hand.exchange(hand.answered()["code"]).text
    assert '"expires_in": 1e400,' in text and '"token_type": "mac"' in text and "scope" not in text


def test_tools_that_want_more(site: Misbehaving, hand: ByHand) -> None:
    token = hand.login()["access_token"]
    refused = call(site, "write", token)
    assert refused.status_code == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    assert 'scope="write"' in refused.headers["www-authenticate"]
    hand.scope = "read write"
    assert call(site, "write", hand.login()["access_token"]).status_code == 200
    site.switches.ever_new_scopes = True
    asked = [call(site, "echo", token).headers["www-authenticate"].split("scope=")[-1] for _ in range(2)]
    assert asked == ['"more-1"', '"more-2"']


def test_tokens_that_are_refused(site: Misbehaving, hand: ByHand) -> None:
    token = hand.login()["access_token"]
    assert httpx.post(f"{site.url}/mcp2", headers={"authorization": f"Bearer {token}"}).status_code == 401  # audience
    site.switches.refuses_tokens = True
    assert 'error="invalid_token"' in call(site, "echo", token).headers["www-authenticate"]
    site.switches.refuses_tokens = False
    assert call(site, "echo", token).status_code == 200
    site.expire_tokens()
    assert call(site, "echo", token).status_code == 401


def test_revocation_and_clients_without_a_person(site: Misbehaving, hand: ByHand) -> None:
    tokens = hand.login()
    revoked = {"token": tokens["refresh_token"], "client_id": hand.client}
    httpx.post(hand.metadata["revocation_endpoint"], data=revoked).raise_for_status()
    assert call(site, "echo", tokens["access_token"]).status_code == 401
    site.authority.add_client("machine", "a&b=c")
    hand.client, hand.secret = "machine", "a%26b%3Dc"  # RFC 6749 2.3.1: both are form-encoded
    assert "refresh_token" not in hand.token(grant_type="client_credentials", resource=site.mcp).json()
    begun = httpx.post(hand.metadata["device_authorization_endpoint"], data={"client_id": "machine"}).json()
    polls = [hand.token(grant_type=DEVICE, device_code=begun["device_code"]).json() for _ in range(2)]
    assert polls[0] == {"error": "authorization_pending"} and polls[1]["refresh_token"]
    wanted = "urn:ietf:params:oauth:token-type:id-jag"
    given = hand.token(grant_type=EXCHANGE, subject_token="x", requested_token_type=wanted, resource=site.mcp).json()
    assert given["issued_token_type"] == wanted
    told = hand.token(grant_type=JWT_BEARER, assertion=given["access_token"]).json()
    assert call(site, "echo", told["access_token"]).status_code == 200


def test_the_legacy_stream_answers(site: Misbehaving, hand: ByHand) -> None:
    headers = {"authorization": f"Bearer {hand.login()['access_token']}"}
    assert httpx.get(f"{site.url}/sse").status_code == 401
    site.switches.sse_endpoint = "http://other.example/messages"
    with httpx.stream("GET", f"{site.url}/sse", headers=headers) as stream:
        lines = stream.iter_lines()
        assert [next(lines), next(lines)] == ["event: endpoint", "data: http://other.example/messages"]
        ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
        assert httpx.post(f"{site.url}/messages", json=ping, headers=headers).status_code == 202
        assert '"id": 7' in next(line for line in lines if line.startswith("data: {"))


def test_endpoints_that_fail(site: Misbehaving, hand: ByHand) -> None:
    def got() -> tuple[int, str]:
        answer = httpx.get(site.url + OAUTH)
        return answer.status_code, answer.headers["content-type"]

    for fault, expected in (
        (failing(503, times=1), (503, "text/plain")),
        (html(times=1), (200, "text/html")),
        (telling("[1", times=1), (200, "application/json")),
        (slow(0.05, times=1), (200, "application/json")),
    ):
        site.faults["metadata"] = fault
        assert got() == expected
        assert got() == (200, "application/json")  # once was enough
    site.faults["metadata"] = redirecting(site.mcp)
    assert httpx.get(site.url + OAUTH).headers["location"] == site.mcp
    del site.faults["metadata"]
    site.faults["token.refresh_token"] = refusing("temporarily_unavailable", 400, times=1)
    tokens = hand.login()
    assert hand.refresh(tokens["refresh_token"]).json()["error"] == "temporarily_unavailable"
    assert site.of("token")[-1].status == 400 and hand.refresh(tokens["refresh_token"]).status_code == 200
    site.faults["authority"] = failing(503)
    assert httpx.get(site.url + OAUTH).status_code == hand.refresh("x").status_code == 503
    assert call(site, "echo", None).status_code == 401
    del site.faults["authority"]
    site.faults["resource"] = failing(502)
    assert call(site, "echo", None).status_code == 502 and httpx.get(site.url + OAUTH).status_code == 200


@pytest.mark.parametrize(("make", "patience"), [(closing, 30), (losing, 30), (silent, 0.5)])
def test_answers_that_never_come(site: Misbehaving, hand: ByHand, make: Callable[..., Any], patience: float) -> None:
    tokens = hand.login()
    site.faults["token"] = make(times=1)
    with pytest.raises(httpx.TransportError):
        httpx.post(hand.metadata["token_endpoint"], timeout=patience, data={
            "grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], "client_id": hand.client,
        })  # fmt: skip
    until_so(lambda: site.of("token", grant_type="refresh_token"))
    assert site.of("token")[-1].status == 0
    assert hand.refresh(tokens["refresh_token"]).status_code == (400 if make is losing else 200)


def test_a_flood_goes_on_as_long_as_it_is_read(site: Misbehaving) -> None:
    site.faults["prm"] = flooding()
    with httpx.stream("GET", f"{site.url}{PRM}/mcp") as answer:
        assert answer.headers["content-length"] == str(1 << 30)
        got = 0
        for block in answer.iter_raw():
            got += len(block)
            if got > 1 << 20:
                break


def test_many_at_once_get_one_refresh_each_time(site: Misbehaving, hand: ByHand) -> None:
    tokens = hand.login()
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: call(site, "echo", tokens["access_token"]).status_code, range(200)))
        assert answers == [200] * 200 and len(site.calls("echo")) == 200
        refreshed = list(pool.map(lambda _: hand.refresh(tokens["refresh_token"]).status_code, range(20)))
    assert refreshed.count(200) == 1 and site.authority.reused == 1  # the first reuse ends the grant


def test_it_ends_though_connections_are_open() -> None:
    with misbehaving() as site:
        site.faults["metadata"] = silent()
        host, port = site.url.removeprefix("http://").split(":")
        idle = socket.create_connection((host, int(port)))
        waiting = socket.create_connection((host, int(port)))
        waiting.sendall(f"GET {OAUTH} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    idle.close()
    waiting.close()
