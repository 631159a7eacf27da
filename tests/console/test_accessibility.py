"""Every page is checked by axe-core, light and dark, wide and narrow: none breaks a rule of WCAG 2.2 AA that it has."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from console.browser import browser, page
from peers.fleet import peers
from playwright.sync_api import Browser, Page, expect
from policy_bed import Bed, bearer, bed, client_keys, key_of, recorder

Json = dict[str, Any]
AXE = Path(__file__).parent / "axe"
ROWS = """\
# who may do what
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:everyone, bank, tool:close_account, *, deny
p, role:lead, sluice, admin:*, *, allow
"""
TOOLS = [
    {"name": "wire", "description": "Sends money to an account.", "inputSchema": {"type": "object"}},
    {"name": "look", "description": "Shows the balance.", "inputSchema": {"type": "object"}},
    {"name": "close_account", "description": "Closes an account for good.", "inputSchema": {"type": "object"}},
]
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 320, "height": 640}
LOOKS: dict[str, Json] = {
    "light": {"color_scheme": "light", "viewport": WIDE}, "dark": {"color_scheme": "dark", "viewport": WIDE},
    "light, 320 px": {"color_scheme": "light", "viewport": NARROW},
    "dark, 320 px": {"color_scheme": "dark", "viewport": NARROW},
    "forced colours": {"forced_colors": "active", "viewport": WIDE},
    "200 %": {"device_scale_factor": 2, "viewport": {"width": 640, "height": 400}},
}  # fmt: skip
PAGES = {
    "overview": "", "approvals": "/approvals", "approval": "/approvals/{approval}",
    "decided": "/approvals/{decided}?tab=decided", "activity": "/activity", "call": "/activity/{denied}",
    "servers": "/servers", "server": "/servers/bank", "catalog": "/catalog", "tool": "/catalog?of=tool%20bank__wire",
    "policy": "/policy?as=key:ann&method=tools/call&target=bank/close_account", "health": "/health",
    "audit": "/audit", "logins": "/logins", "grants": "/approvals?tab=grants", "asked": "/approvals?tab=asked",
    "question": "/policy", "pin": "/catalog?of=pin%20bank%20legacy%20tool%20look",
    "none": "/no-such-page",
}  # fmt: skip
__all__ = ["peers"]


class Stage:
    """A Sluice with something on each page, and what a lead's browser keeps of a session."""

    def __init__(self, town: Bed, chrome: Browser) -> None:
        self.town, self.chrome, self.url = town, chrome, f"{town.process.admin}/console"
        with httpx.Client(base_url=town.process.admin, headers=bearer("lea")) as ask:
            self.ids = self._prepared(ask)
        self.session = self._log_in()

    def _prepared(self, ask: httpx.Client) -> dict[str, str]:
        town = self.town
        decided = self._asked(to="ACME GmbH", amount=20)
        body = {"decision": "deny", "comment": "The invoice is older than a year."}
        ask.post(f"/api/v1/approvals/{decided}/decisions", json=body)
        for _ in range(3):
            town.call("ann", "bank__look", account="DE00 1234")
        town.call("ann", "bank__close_account", account="DE00 1234")
        approval = self._asked(to="ACME GmbH", amount=1250, reference="Invoice 2026-118", note="urgent\u202e")
        town.until(lambda: len(ask.get("/api/v1/calls?outcome=denied").json()["calls"]) > 0)
        denied = ask.get("/api/v1/calls?tool=close_account").json()["calls"][0]["id"]
        return {"approval": approval, "decided": decided, "denied": denied}

    def _asked(self, **arguments: Any) -> str:
        answer = self.town.call("ann", "bank__wire", **arguments).json()
        return str(answer["result"]["_meta"]["dev.sluice/approval"]["id"])

    def _log_in(self) -> Json:
        context = self.chrome.new_context()
        tab = context.new_page()
        tab.goto(self.url)
        tab.get_by_label("Client key").fill(key_of("lea"))
        tab.get_by_role("button", name="Log in").click()
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        state: Json = context.storage_state()  # type: ignore[assignment]
        context.close()
        return state

    def open(self, tab: Page, name: str) -> None:
        tab.goto(self.url + PAGES[name].format(**self.ids))
        expect(tab.get_by_role("navigation", name="Pages")).to_be_visible()
        expect(tab.locator("[aria-busy=true]")).to_have_count(0)
        expect(tab.locator("main :is(.row, article.card, .verdict, .empty)").filter(visible=True).first).to_be_visible()
        expect(tab.locator(".status")).to_contain_text("live")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@contextmanager
def opened(chrome: Browser, folder: Path) -> Iterator[Stage]:
    settings: Json = {
        "clients": {"keys": client_keys(ann=["role:dev"], lea=["role:lead"])}, "approvals": {"hold_for": "100ms"},
    }  # fmt: skip
    with bed(folder, ROWS, {"bank": recorder(folder, "bank", tools=TOOLS)}, **settings) as town:
        yield Stage(town, chrome)


@pytest.fixture(scope="module")
def stage(peers: None, chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with opened(chrome, tmp_path_factory.mktemp("accessibility")) as made:
        yield made


@pytest.fixture(scope="module", params=LOOKS)
def tab(request: Any, stage: Stage) -> Iterator[Page]:
    """One for all pages of a look: what a browser does to make one takes longer than a page."""
    with page(stage.chrome, storage_state=stage.session, **LOOKS[request.param]) as made:
        yield made


def problems(tab: Page) -> list[str]:
    tab.evaluate((AXE / "axe.min.js").read_text())
    found = tab.evaluate("tags => axe.run({runOnly: {type: 'tag', values: tags}})", TAGS)
    assert len(found["passes"]) > 5, "it looked at something"
    return [f"{one['id']}: {node['html'][:160]} {node['failureSummary']}" for one in found["violations"]
            for node in one["nodes"]]  # fmt: skip


def test_axe_is_the_one_that_its_manifest_names() -> None:
    manifest = json.loads((AXE / "manifest.json").read_text())
    assert {path.name for path in AXE.iterdir()} == {"manifest.json", *manifest["sha256"]}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((AXE / name).read_bytes()).hexdigest() == digest, name
    assert f"axe v{manifest['version']}" in (AXE / "axe.min.js").read_text()[:100]


def test_a_rule_that_is_broken_is_found(stage: Stage) -> None:
    with page(stage.chrome, storage_state=stage.session) as tab:
        stage.open(tab, "health")
        tab.evaluate("document.querySelector('main').append(document.createElement('button'))")
        assert [text.split(":")[0] for text in problems(tab)] == ["button-name"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_breaks_no_rule(stage: Stage, tab: Page, name: str) -> None:
    stage.open(tab, name)
    assert problems(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


PIN: Json = {
    "server": "bank", "era": "legacy", "kind": "tool", "name": "look", "state": "changed", "withheld": True,
    "by": "key:lea", "at": "2026-11-20T10:00:00Z", "since": "2026-11-25T10:00:00Z", "waiting": "cd", "current": "cd",
    "flags": ["description: 1 hidden character"], "accepted_text": '{"a":"one"}', "waiting_text": '{"a":"two"}',
    "deny_row": "p, *, bank, tool:look, *, deny",
}  # fmt: skip
ROW: Json = {"transport": "stdio", "in_flight": 0, "restarts": 2, "last_error": "it ended", "exit": "exit status 3"}
IN_NEED: Json = {"servers": [{"key": "bank", "status": "down", "noise": "Starting!", **ROW},
                             {"key": "linear", "status": "down", "needs_login": True, **ROW}]}  # fmt: skip


@pytest.mark.parametrize("look", ["light", "dark", "light, 320 px"])
def test_what_is_rarely_so_breaks_no_rule_either(stage: Stage, look: str) -> None:
    with page(stage.chrome, storage_state=stage.session, **LOOKS[look]) as tab:
        stage.open(tab, "approval")
        tab.get_by_role("button", name="Approve once").click()
        expect(tab.get_by_role("button", name="Confirm")).to_have_attribute("aria-disabled", "false")
        assert problems(tab) == []
        tab.route("**/api/v1/pins*", lambda route: route.fulfill(json={"pins": [PIN]}))
        stage.open(tab, "pin")
        tab.get_by_role("button", name="Deny in config").click()
        assert problems(tab) == []
        tab.get_by_role("button", name="Accept").click()
        expect(tab.get_by_role("dialog")).to_be_visible()
        assert problems(tab) == []
        listed = {"approvals": [], "total": 0, "incomplete": ["worker 3 does not answer"]}
        tab.route("**/api/v1/approvals?*", lambda route: route.fulfill(json=listed))
        tab.route("**/api/v1/servers", lambda route: route.fulfill(json=IN_NEED))
        tab.route("**/api/v1/calls?*", lambda route: route.fulfill(status=503, json={"error": "it cannot be read"}))
        for name in ("overview", "approvals", "server", "activity"):
            stage.open(tab, name)
            assert problems(tab) == [], name
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_with_forced_colours_what_is_chosen_and_what_has_the_focus_is_outlined(stage: Stage) -> None:
    """Grounds and borders of ours are gone then: a verdict is its word and shape."""
    with page(stage.chrome, storage_state=stage.session, **LOOKS["forced colours"]) as tab:
        stage.open(tab, "approval")
        for place in (".row[aria-current]", ".side nav a[aria-current]"):
            line = tab.locator(place).first.evaluate("one => getComputedStyle(one).outlineStyle")
            assert line != "none", place
        tab.keyboard.press("j")
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert tab.locator(".verdict, .class").first.evaluate("one => getComputedStyle(one).borderStyle") == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_and_dialogs_break_no_rule(stage: Stage, scheme: Any) -> None:
    with page(stage.chrome, color_scheme=scheme) as tab:
        tab.goto(stage.url)
        expect(tab.get_by_label("Client key")).to_be_visible()
        assert problems(tab) == []
    with page(stage.chrome, storage_state=stage.session, color_scheme=scheme) as tab:
        stage.open(tab, "server")
        tab.get_by_role("button", name="Restart").click()
        expect(tab.get_by_role("dialog")).to_be_visible()
        assert problems(tab) == []
        tab.keyboard.press("Escape")
        tab.keyboard.press("?")
        expect(tab.get_by_role("dialog", name="Keys")).to_be_visible()
        assert problems(tab) == []


def test_the_picture_in_the_docs_is_small_and_shown(stage: Stage, request: pytest.FixtureRequest) -> None:
    """With --rewrite-pictures it is made anew."""
    root = AXE.parent.parent.parent
    picture = root / "docs/images/approvals.png"
    with page(stage.chrome, storage_state=stage.session, viewport={"width": 1280, "height": 670}) as tab:
        stage.open(tab, "approval")
        expect(tab.get_by_role("button", name="Approve once")).to_be_enabled()
        taken = tab.screenshot()
    if request.config.getoption("--rewrite-pictures"):
        picture.write_bytes(taken)
    for made in (taken, picture.read_bytes()):
        assert made.startswith(b"\x89PNG") and len(made) < 120 * 1024
        assert (int.from_bytes(made[16:20]), int.from_bytes(made[20:24])) == (1280, 670)
    assert "(docs/images/approvals.png)" in (root / "README.md").read_text()
    assert "(../images/approvals.png)" in (root / "docs/how-to/console.md").read_text()
