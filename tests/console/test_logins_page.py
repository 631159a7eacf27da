"""The Logins page in a real browser: who is logged in where, as it changes, and how a person ends a login."""

from collections.abc import Iterator
from typing import Any

import pytest
from console.browser import browser, page
from console.test_operator_pages import answer, logged_in
from e2e.test_logins import expire, log_in
from peers.login.misbehaving import Misbehaving, misbehaving
from playwright.sync_api import Browser, expect
from policy_bed import Bed, bed, client_keys, key_of

Json = dict[str, Any]
ROWS = """\
p, role:everyone, mail, *, *, allow
p, role:lead, sluice, admin:logins, *, allow
p, role:lead, sluice, admin:servers, read, allow
p, role:reader, sluice, admin:*, *, allow
"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def site() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


@pytest.fixture(scope="module")
def town(site: Misbehaving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("logins")
    keys = client_keys(ann=[], lea=["role:lead"], rob=["role:reader"])
    with bed(folder, ROWS, {"mail": {"url": site.mcp, "required": False}}, clients={"keys": keys}) as running:
        yield running


def test_a_login_comes_and_is_ended_by_a_person_who_shows_who_they_are(
    town: Bed, chrome: Browser, site: Misbehaving
) -> None:
    with page(chrome, storage_state=logged_in(town, chrome, "lea")) as tab:
        tab.goto(f"{town.process.admin}/console")
        tab.get_by_role("navigation").get_by_role("link", name="Logins").click()
        expect(tab.get_by_role("heading", name="Nobody is logged in to a server")).to_be_visible()
        expect(tab.locator(".empty")).to_contain_text("sluice login SERVER")
        log_in(town.folder, "--as", "ann")
        row = tab.locator("[data-rows] .row")
        expect(row).to_contain_text("mail/key:ann")  # without anybody pressing anything
        expect(row).to_contain_text("logged in")
        expect(row).to_contain_text(site.issuer)
        assert not [secret for secret in site.secrets() if secret in tab.content()]
        row.get_by_role("button", name="Log out").click()
        tab.get_by_role("dialog").get_by_role("button", name="Log out").click()
        asked = tab.get_by_role("dialog")
        expect(asked).to_contain_text("Is it still you?")
        assert not site.of("revoke")
        asked.get_by_label("Client key").fill(key_of("lea"))
        asked.get_by_role("button", name="Continue").click()
        expect(tab.get_by_role("status").filter(has_text="logged out of mail")).to_be_visible()
        expect(tab.get_by_role("heading", name="Nobody is logged in to a server")).to_be_visible()
        assert site.of("revoke")
    acts = [(one["act"], one.get("by", one.get("who", ""))) for one in town.audit() if one["type"] == "admin"]
    assert ("login_end", "key:lea") in acts


def test_a_login_that_ended_says_why(town: Bed, chrome: Browser, site: Misbehaving) -> None:
    log_in(town.folder, "--as", "ann")
    town.until(lambda: "mail__echo" in town.names("ann"))
    for grant in site.authority.refresh.values():
        grant.ended = True
    expire(site)
    town.call("ann", "mail__echo", text="x")
    with page(chrome, storage_state=logged_in(town, chrome, "rob")) as tab:
        tab.goto(f"{town.process.admin}/console/logins")
        row = tab.locator("[data-rows] .row")
        expect(row).to_contain_text("login needed")
        expect(row).to_contain_text("Last error: the authorization server says that the login has ended")
        row.get_by_role("button", name="Log out").click()
        tab.get_by_role("dialog").get_by_role("button", name="Log out").click()
        tab.get_by_role("dialog").get_by_label("Client key").fill(key_of("rob"))
        tab.get_by_role("dialog").get_by_role("button", name="Continue").click()
        expect(tab.locator("main")).to_contain_text("p, key:rob, sluice, admin:logins, write, allow")


def test_what_peers_wrote_is_shown_plainly_on_a_phone(town: Bed, chrome: Browser) -> None:
    evil = "<img src=x onerror=alert(1)>\u202e" + "a" * 300
    row = {"id": "lgn_1", "server": "mail", "principal": evil, "kind": "client", "issuer": f"https://{evil}",
           "client_id": evil, "scopes": [evil], "state": "refused", "expires_at": "2026-01-01T00:00:00Z",
           "renewed_at": "", "last_error": evil, "can_refresh": True}  # fmt: skip
    with page(chrome, storage_state=logged_in(town, chrome, "rob"), viewport={"width": 360, "height": 640}) as tab:
        answer(tab, "/api/v1/logins?limit=200", {"logins": [row], "total": 1})
        tab.goto(f"{town.process.admin}/console/logins")
        expect(tab.locator("[data-rows] .row")).to_contain_text("⟨U+202E⟩")
        assert tab.locator("main img").count() == 0
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_who_may_not_see_logins_learns_which_row_is_missing(town: Bed, chrome: Browser) -> None:
    with page(chrome, storage_state=logged_in(town, chrome, "ann")) as tab:
        tab.goto(f"{town.process.admin}/console/logins")
        expect(tab.locator(".no-right")).to_contain_text("p, key:ann, sluice, admin:logins, read, allow")
