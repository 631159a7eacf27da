"""The authorization server of the tests without Sluice: each thing that logins need of it, by plain HTTP."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import jwt
import pytest
from peers.fleet import Json
from peers.login.authorities import Authority, oidc_provider
from peers.login.browser import Browser
from peers.login.by_hand import CALLBACK, ByHand

RESOURCE = "http://127.0.0.1:1/mcp"
PREPARED: Json = {
    "client_id": "prepared", "client_secret": "s3cret", "redirect_uris": [CALLBACK],
    "grant_types": ["authorization_code", "refresh_token"],
}  # fmt: skip
MACHINE: Json = {
    "client_id": "machine", "client_secret": "s3cret", "redirect_uris": [], "response_types": [],
    "grant_types": ["client_credentials"],
}  # fmt: skip
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@pytest.fixture(scope="module")
def authority(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with oidc_provider(tmp_path_factory.mktemp("oidc"), access_life=7, clients=[PREPARED, MACHINE]) as authority:
        yield authority


@pytest.fixture
def hand(authority: Authority) -> ByHand:
    hand = ByHand(authority.metadata(), RESOURCE)
    assert hand.register(redirect_uris=["http://127.0.0.1/callback"]).status_code == 201  # without a port
    return hand


def test_both_forms_of_metadata_say_the_same(authority: Authority) -> None:
    told = authority.metadata()
    assert told == httpx.get(f"{authority.issuer}/.well-known/openid-configuration").json()
    assert told["issuer"] == authority.issuer and told["code_challenge_methods_supported"] == ["S256"]
    assert told["authorization_response_iss_parameter_supported"] is True
    assert told["revocation_endpoint"] and told["device_authorization_endpoint"] and told["registration_endpoint"]


def test_a_whole_flow_with_rotation_and_a_reused_token_that_ends_the_grant(authority: Authority, hand: ByHand) -> None:
    told = hand.answered(user="bob")
    assert told["iss"] == authority.issuer and told["state"] == "st"
    first = hand.exchange(told["code"]).json()
    assert first["expires_in"] == 7 and first["scope"] == "mcp:read"
    keys = jwt.PyJWKClient(authority.metadata()["jwks_uri"])
    key = keys.get_signing_key_from_jwt(first["access_token"]).key
    claims = jwt.decode(first["access_token"], key, ["RS256"], audience=RESOURCE, issuer=authority.issuer)
    assert (claims["sub"], claims["client_id"], claims["scope"]) == ("bob", hand.client, "mcp:read")

    before = authority.counts()
    second = hand.refresh(first["refresh_token"]).json()
    assert second["refresh_token"] != first["refresh_token"] and second["access_token"] != first["access_token"]
    for used in (first["refresh_token"], second["refresh_token"]):  # the reuse ends the newer one, too
        assert hand.refresh(used).json()["error"] == "invalid_grant"
    counted = authority.counts() - before
    assert counted["token.refresh_token"] == 3 and counted["token.refresh_token.invalid_grant"] == 2


def test_a_code_is_worth_nothing_without_its_verifier(hand: ByHand) -> None:
    assert hand.answered(code_challenge="", code_challenge_method="")["error"] == "invalid_request"
    stolen = hand.exchange(hand.answered()["code"], code_verifier=secrets.token_urlsafe(48))
    assert stolen.json()["error"] == "invalid_grant"


def test_who_says_no_is_told_so(hand: ByHand) -> None:
    assert hand.answered(user="nobody")["error"] == "access_denied"


def test_a_client_that_was_registered_before_proves_itself(authority: Authority) -> None:
    hand = ByHand(authority.metadata(), RESOURCE, "prepared")
    code = hand.answered()["code"]
    assert hand.exchange(code).json()["error"] == "invalid_client"
    hand.secret = "s3cret"
    assert hand.exchange(code).json()["access_token"]


def test_a_machine_gets_a_token_of_its_own(authority: Authority) -> None:
    hand = ByHand(authority.metadata(), RESOURCE, "machine", "s3cret")
    answer = hand.token(grant_type="client_credentials", resource=RESOURCE, scope="mcp:read mcp:write").json()
    assert answer["scope"] == "mcp:read mcp:write" and "refresh_token" not in answer


def test_a_device_without_a_browser_logs_in(authority: Authority, hand: ByHand) -> None:
    hand.register(grant_types=[DEVICE, "refresh_token"], redirect_uris=[], response_types=[])
    asked = {"client_id": hand.client, "resource": RESOURCE, "scope": "mcp:read"}
    begun = httpx.post(authority.metadata()["device_authorization_endpoint"], data=asked).json()
    assert hand.token(grant_type=DEVICE, device_code=begun["device_code"]).json()["error"] == "authorization_pending"
    with Browser() as browser:
        assert "logged in" in browser.confirm_device(begun["verification_uri_complete"]).text
    assert hand.token(grant_type=DEVICE, device_code=begun["device_code"]).json()["refresh_token"]


def test_a_revoked_refresh_token_ends_the_grant_and_opaque_tokens_can_be_asked_about(
    peers: None, tmp_path: Path
) -> None:
    with oidc_provider(tmp_path, tokens="opaque", registration=False, clients=[PREPARED], user="eve") as authority:
        told = authority.metadata()
        assert "registration_endpoint" not in told
        granted = ByHand(told, RESOURCE, "prepared", "s3cret").login()

        def introspected() -> Json:
            asker = ("resource-server", "secret-of-the-resource-server")
            asked = {"token": granted["access_token"]}
            return dict(httpx.post(told["introspection_endpoint"], data=asked, auth=asker).json())

        active = introspected()
        assert (active["active"], active["sub"], active["aud"], active["scope"]) == (True, "eve", RESOURCE, "mcp:read")
        revoked = {"token": granted["refresh_token"]}
        httpx.post(told["revocation_endpoint"], data=revoked, auth=("prepared", "s3cret")).raise_for_status()
        assert introspected() == {"active": False}
        authority.set(down=True)
        assert httpx.get(told["jwks_uri"]).status_code == 503
        authority.set(down=False)
        assert authority.counts()["down"] == 1
