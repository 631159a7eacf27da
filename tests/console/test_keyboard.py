"""Every page by keyboard alone, the approval card as a screen reader has it, and what a thumb has to hit on a phone."""

import re
from collections.abc import Iterator

import pytest
from console.browser import browser, page
from console.test_accessibility import PAGES, Stage, opened
from peers.fleet import peers
from playwright.sync_api import Browser, Page, expect

PHONE = {"width": 360, "height": 640}
THUMB = 44  # pixels
# What may be done with a pointer: `sticky` and `fixed` boxes above others hide what lies below them.
USABLE = "a[href], button:not([disabled]), summary, input:not([type=hidden]), select, textarea, [tabindex='0']"
REACHED = """() => {
  const one = document.activeElement;
  if (one === null || one === document.body) return null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  const at = document.elementFromPoint(box.left + box.width / 2, box.top + Math.min(box.height, innerHeight) / 2);
  return {
    index: window.usable.indexOf(one), text: one.outerHTML.slice(0, 120),
    isMarked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
    isCovered: at !== null && !one.contains(at) && !at.contains(one),
  };
}"""
KEYS = {"o": "Overview", "a": "Approvals", "y": "Activity", "s": "Servers", "c": "Catalog", "p": "Policy", "u": "Audit",
        "h": "Health"}  # fmt: skip
# The tasks of a phone: to decide, to go to another page, to open a row.
TARGETS = ".buttons button, .side nav a, .side nav summary, a.row, summary.row, .who summary, .back, button.opens"
CARD = """
- article "bank / wire":
  - heading "bank / wire" [level=2]
  - paragraph: /unclassed|read|write|destroy/
  - term: Who
  - definition: /key:ann/
  - heading /Arguments/ [level=3]
  - region "Arguments"
  - term: Asked by
  - definition: /policy.csv:3/
  - term: Needs
  - definition: /1 vote of role:lead/
  - term: Definition
  - definition
  - term: Votes
  - definition: none yet
  - textbox "Comment, the agent reads it"
  - button "Deny"
  - button "Approve once"
"""
__all__ = ["peers"]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened_:
        yield opened_


@pytest.fixture(scope="module")
def stage(peers: None, chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with opened(chrome, tmp_path_factory.mktemp("keyboard")) as made:
        yield made


def tabbed(tab: Page) -> list[dict[str, object]]:
    """What Tab reaches, one after another, from the top of the page to its end."""
    tab.evaluate(
        """(usable) => {
          window.usable = [...document.querySelectorAll(usable)].filter((one) => one.checkVisibility()
            && one.tabIndex >= 0 && !(one.type === "radio" && !one.checked));
          document.activeElement.blur();
        }""", USABLE)  # fmt: skip
    found: list[dict[str, object]] = []
    for _ in range(tab.evaluate("window.usable.length") + 1):
        tab.keyboard.press("Tab")
        reached = tab.evaluate(REACHED)
        if reached is None or (found and reached["index"] == found[0]["index"]):
            break  # a browser begins anew at once, or goes out of the page before
        found.append(reached)
    return found


@pytest.fixture(scope="module")
def wide(stage: Stage) -> Iterator[Page]:
    """One for all pages: what a browser does to make one takes longer than a page."""
    with page(stage.chrome, storage_state=stage.session, viewport={"width": 1280, "height": 800}) as made:
        yield made


@pytest.fixture(scope="module")
def narrow(stage: Stage) -> Iterator[Page]:
    with page(stage.chrome, storage_state=stage.session, viewport=PHONE) as made:
        yield made


@pytest.fixture(scope="module")
def touched(stage: Stage) -> Iterator[Page]:
    with page(stage.chrome, storage_state=stage.session, viewport=PHONE, has_touch=True, is_mobile=True) as made:
        yield made


@pytest.mark.parametrize("name", PAGES)
def test_tab_reaches_everything_in_order_and_shows_where_it_is(
    stage: Stage, wide: Page, narrow: Page, name: str
) -> None:
    for tab in (wide, narrow):
        stage.open(tab, name)
        found = tabbed(tab)
        order = [one["index"] for one in found]
        assert order == list(range(tab.evaluate("window.usable.length"))), order
        assert [one["text"] for one in found if not one["isMarked"]] == [], "where the focus is can be seen"
        assert [one["text"] for one in found if one["isCovered"]] == [], "nothing lies above it"


def test_a_letter_behind_g_opens_each_page_and_j_and_enter_a_row(stage: Stage) -> None:
    with page(stage.chrome, storage_state=stage.session) as tab:
        stage.open(tab, "none")
        for key, title in KEYS.items():
            tab.keyboard.press("g")
            tab.keyboard.press(key)
            expect(tab.get_by_role("heading", name=title, level=1)).to_be_visible()
            if title in ("Approvals", "Activity", "Servers"):
                expect(tab.locator("[data-rows] .row").first).to_be_visible()
                tab.keyboard.press("j")
                tab.keyboard.press("Enter")
                expect(tab.locator("article.card")).to_be_visible()
        tab.keyboard.press("?")
        expect(tab.get_by_role("dialog", name="Keys")).to_be_visible()
        tab.keyboard.press("Escape")
        expect(tab.get_by_role("dialog")).to_have_count(0)


def test_the_skip_link_leads_to_the_content(stage: Stage) -> None:
    with page(stage.chrome, storage_state=stage.session) as tab:
        stage.open(tab, "approvals")
        tab.keyboard.press("Tab")
        expect(tab.get_by_role("link", name="Skip to content")).to_be_focused()
        tab.keyboard.press("Enter")
        expect(tab.locator("#main")).to_be_focused()


def test_an_approval_is_denied_by_keyboard_from_the_overview(stage: Stage) -> None:
    id = stage.town.call("ann", "bank__wire", by="keyboard").json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    with page(stage.chrome, storage_state=stage.session) as tab:
        stage.open(tab, "overview")
        tab.keyboard.press("g")
        tab.keyboard.press("a")
        row = tab.locator(f"[data-rows] a[href*={id}]")
        expect(row).to_be_visible()
        while not row.evaluate("one => one === document.activeElement"):
            tab.keyboard.press("j")
        tab.keyboard.press("Enter")
        expect(tab.locator("article.card")).to_contain_text("keyboard")
        tab.keyboard.press("d")
        expect(tab.locator("[class~=over]")).to_contain_text("denied")


def test_the_card_is_read_in_the_order_of_harm(stage: Stage) -> None:
    with page(stage.chrome, storage_state=stage.session) as tab:
        stage.open(tab, "approval")
        expect(tab.locator(".detail")).to_match_aria_snapshot(CARD)


@pytest.mark.parametrize("name", PAGES)
def test_a_thumb_hits_what_decides_what_navigates_and_each_row(stage: Stage, touched: Page, name: str) -> None:
    stage.open(touched, name)
    boxes = touched.locator(TARGETS).filter(visible=True).evaluate_all(
        "all => all.map((one) => [one.outerHTML.slice(0, 120), one.getBoundingClientRect().height])"
    )
    assert boxes and [box for box in boxes if round(box[1], 1) < THUMB] == []


def test_confirming_on_a_phone_has_a_target_as_large(stage: Stage, touched: Page) -> None:
    stage.open(touched, "approval")
    touched.get_by_role("button", name="Approve once").tap()
    for name in ("Back", re.compile("Confirm")):
        box = touched.get_by_role("button", name=name).bounding_box()
        assert box is not None and box["height"] >= THUMB and box["width"] >= THUMB
