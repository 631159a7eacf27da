"""Who asked to be notified learns once, whatever the number of tabs, that a call waits; a click leads to its card."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from console.browser import browser
from console.test_operator_pages import logged_in
from console.test_pages import ROWS, asked
from peers.fleet import peers
from playwright.sync_api import Browser, BrowserContext, Page, expect
from policy_bed import Bed, bed, client_keys, recorder

Json = dict[str, Any]
SECRET = "what-only-the-card-shows"
# A browser without a screen draws no notification. Those that the page makes are remembered, so that a test can read
# and click them; the tab says that it is hidden, as one behind another is.
REMEMBERS = """
window.made = [];
window.Notification = class extends Notification {
  constructor(...words) { super(...words); window.made.push(this); }
};
Object.defineProperty(document, "hidden", {configurable: true, get: () => true});
"""
MADE = "() => window.made.map(({title, body, tag}) => ({title, body, tag}))"
__all__ = ["peers"]

# What a tab says to the others comes two seconds later.
LATE = """{
  const post = BroadcastChannel.prototype.postMessage;
  BroadcastChannel.prototype.postMessage = function (data) { setTimeout(() => post.call(this, data), 2_000); };
}"""


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("notifications")
    keys = client_keys(ann=["role:dev"], lea=["role:lead"])
    servers = {"bank": recorder(folder, "bank", tools=["wire"])}
    with bed(folder, ROWS, servers, clients={"keys": keys}, approvals={"hold_for": "100ms"}) as running:
        yield running


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def session(town: Bed, chrome: Browser) -> Json:
    return logged_in(town, chrome, "lea")


@pytest.fixture
def granted(town: Bed, chrome: Browser, session: Json) -> Iterator[BrowserContext]:
    context = chrome.new_context(storage_state=session, permissions=["notifications"])  # type: ignore[arg-type]
    context.add_init_script(REMEMBERS)
    yield context
    context.close()


def opened(town: Bed, context: BrowserContext, where: str = "") -> Page:
    tab = context.new_page()
    with tab.expect_response(re.compile("/approvals\\?state=pending&for=approver")):
        tab.goto(f"{town.process.admin}/console{where}")
    expect(tab.locator(".status")).to_contain_text("live")
    return tab


def test_what_waits_is_said_once_by_tool_and_principal_and_leads_to_its_card(
    town: Bed, granted: BrowserContext
) -> None:
    tabs = [opened(town, granted), opened(town, granted, "/servers")]
    for number in range(3):
        id = asked(town, to=SECRET, number=number)
        for tab in tabs:
            expect(tab).to_have_title(re.compile(rf"^\({number + 1}\) "))
        found = [one for tab in tabs for one in tab.evaluate(MADE) if one["tag"] == id]
        assert found == [{"title": "Sluice: approval needed", "body": "bank/wire for key:ann", "tag": id}]
    assert SECRET not in str([tab.evaluate(MADE) for tab in tabs])
    saying = next(tab for tab in tabs if any(one["tag"] == id for one in tab.evaluate(MADE)))
    saying.evaluate("(id) => window.made.find((one) => one.tag === id).dispatchEvent(new Event('click'))", id)
    expect(saying).to_have_url(re.compile(f"/console/approvals/{id}$"))
    expect(saying.locator("article.card")).to_contain_text(SECRET)


def test_of_tabs_that_hear_of_it_at_the_same_moment_one_says_it(town: Bed, granted: BrowserContext) -> None:
    granted.add_init_script(LATE)
    tabs = [opened(town, granted), opened(town, granted, "/servers")]
    id = asked(town, to="both")
    for tab in tabs:
        expect(tab.get_by_role("link", name="Approvals").locator(".count")).to_be_visible()
        expect(tab.locator("#app > [role=status]")).to_have_text("Approval needed: bank wire for key:ann")
    assert len([one for tab in tabs for one in tab.evaluate(MADE) if one["tag"] == id]) == 1


def test_what_waited_before_a_tab_was_opened_is_not_said(town: Bed, granted: BrowserContext) -> None:
    asked(town, to="before")
    tab = opened(town, granted)
    expect(tab).to_have_title(re.compile(r"^\(\d+\) "))
    assert tab.evaluate(MADE) == []


def test_without_the_permission_the_title_and_a_live_region_say_it(town: Bed, chrome: Browser, session: Json) -> None:
    context = chrome.new_context(storage_state=session)  # type: ignore[arg-type]
    context.add_init_script(REMEMBERS)
    tab = opened(town, context)
    asked(town, to=SECRET, number=9)
    expect(tab.locator("#app > [role=status]")).to_have_text("Approval needed: bank wire for key:ann")
    expect(tab).to_have_title(re.compile(r"^\(\d+\) "))
    assert tab.evaluate(MADE) == []
    context.close()
