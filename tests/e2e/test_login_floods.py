"""Many people behind one address, and one of them floods the pages for logins: whoever holds something that Sluice made
goes on."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.client_login import ClientLogin, query
from e2e.client_login import gateway as issuing
from e2e.test_login_pages import base, browsing, gateway, link, typed
from peers.login.browser import Browser
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import bearer, key_of

FLOOD = 610
"""Requests: more than one address may send in a minute."""


def flooded(client: httpx.Client, url: str, **options: Any) -> None:
    assert [client.post(url, **options).status_code for _ in range(FLOOD)][-1] == 429


def test_a_flood_ends_no_grant_and_no_login_that_has_begun(peers: None, tmp_path: Path) -> None:
    with issuing(tmp_path) as there, httpx.Client(timeout=20) as mallory, Browser("ann") as browser:
        client = ClientLogin(there, browser)
        tokens, code, asked = client.log_in(), client.told()["code"], client.consent()
        signed_in = browser.stop_at(client.request(), f"{there.issuer}/oauth/callback")
        flooded(mallory, f"{there.issuer}/oauth/token", data={"grant_type": "refresh_token", "refresh_token": "slrt_x"})
        assert browser.open(client.request()).status_code == 429, "so far nobody knows who that is"
        tokens = client.refresh(tokens["refresh_token"]).raise_for_status().json()
        assert client.exchange(code).status_code == 200
        assert "Allow this client?" in browser.open(signed_in).text
        assert client.exchange(query(client.answer(asked))["code"]).status_code == 200
        for number in range(19):
            assert client.refresh(tokens["refresh_token"]).status_code == 200, number
        assert client.refresh(tokens["refresh_token"]).status_code == 429, "nothing of ours is without a bound"
        assert mallory.post(f"{there.issuer}/oauth/register", json={}).status_code == 429
        for odd in ("callback?state=x", "callback?state=x&state=y", f"callback?{'a=1&' * 60}"):
            assert mallory.get(f"{there.issuer}/oauth/{odd}").status_code == 429
        for path in ("consent", "token", "revoke"):
            assert mallory.post(f"{there.issuer}/oauth/{path}", content=b"\xff&&" * 60).status_code == 429


@pytest.fixture
def site() -> Any:
    with misbehaving() as found:
        yield found


def test_wrong_keys_of_one_lock_nobody_out_who_has_a_link_or_has_come_in_before(
    tmp_path: Path, site: Misbehaving
) -> None:
    with gateway(tmp_path, site) as there, browsing(there) as browser, httpx.Client(timeout=20) as mallory:
        url, page, api = link(there), f"{base(there)}login/mail", f"{base(there)}login/api/mail"
        origin = {"Origin": browser.headers["Origin"]}
        wrong = [mallory.post(page, data={"key": "wrong"}, headers=origin).status_code for _ in range(6)]
        assert wrong[-1] == 429
        asked = {"redirect_uri": "http://127.0.0.1:7499/callback"}
        wrong = [mallory.post(api, json=asked, headers=bearer("nobody")).status_code for _ in range(6)]
        assert wrong == [401] * 5 + [429]
        flooded(mallory, page, data={"key": "wrong"}, headers=origin)
        assert mallory.post(page, content="a=1&" * 9, headers=origin).status_code == 429
        assert mallory.get(f"{base(there)}login/callback/mail?state=x").status_code == 429
        assert typed(browser, url, "ann").status_code == 200
        assert mallory.post(api, json=asked, headers=bearer("ann")).status_code == 200
        assert mallory.post(api, json=asked, headers=bearer("bob")).status_code == 429, "it could be a guess"
        tries = [browser.press(browser.open(url), key="wrong").status_code for _ in range(5)]
        assert tries == [403] * 4 + [429] and key_of("ann") not in there.process.log()
