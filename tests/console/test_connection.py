"""What the pages say while the connection, the clock or other people are not as they were."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from console.browser import browser, page
from console.test_operator_pages import answer, logged_in
from peers.fleet import peers
from playwright.sync_api import Browser, Page, expect
from policy_bed import Bed, bearer, bed, client_keys, recorder

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:*, *, allow
"""
# A stream that opens and then says nothing, as one does whose other end is gone; those after it are real.
SILENT = """
const real = fetch;
window.streams = 0;
window.fetch = (path, options) => {
  if (!String(path).includes("/api/v1/events") || ++window.streams > 1) return real(path, options);
  const body = new ReadableStream({start: (to) => {
    to.enqueue(new TextEncoder().encode("event: open\\nid: 1.1\\ndata: {}\\n\\n"));
    options.signal.addEventListener("abort", () => to.error(new Error("aborted")));
  }});
  return Promise.resolve(new Response(body));
};
"""
AN_HOUR_FAST = "const real = Date.now; Date.now = () => real() + 3600_000;"
SAID = """
window.said = [];
new MutationObserver(() => {
  const text = document.querySelector("#app > [role=status]")?.textContent;
  if (text && text !== window.said.at(-1)) window.said.push(text);
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
__all__ = ["peers"]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("connection")
    keys = client_keys(ann=["role:dev"], lea=["role:lead"], leo=["role:lead"])
    servers = {"bank": recorder(folder, "bank", tools=["wire"])}
    with bed(folder, ROWS, servers, clients={"keys": keys}, approvals={"hold_for": "100ms"}) as running:
        yield running


@pytest.fixture(scope="module")
def lead(town: Bed, chrome: Browser) -> Json:
    return logged_in(town, chrome, "lea")


def asked(town: Bed, **arguments: Any) -> str:
    told = town.call("ann", "bank__wire", **arguments).json()
    return str(told["result"]["_meta"]["dev.sluice/approval"]["id"])


def ahead(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat(timespec="milliseconds")


def decide(town: Bed, id: str, decision: str = "approve", **more: Any) -> None:
    with httpx.Client(base_url=f"{town.process.admin}/api/v1/approvals/", headers=bearer("leo")) as ask:
        body = {"decision": decision, "seen_digest": ask.get(id).json()["digest"], **more}
        assert ask.post(f"{id}/decisions", json=body).status_code == 200


def open_card(tab: Page, town: Bed, id: str) -> None:
    tab.goto(f"{town.process.admin}/console/approvals/{id}")
    expect(tab.get_by_role("button", name="Approve once")).to_be_enabled()


def test_a_stream_that_says_nothing_is_given_up_and_everything_is_asked_again(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.clock.install()
        tab.add_init_script(SILENT)
        tab.goto(f"{town.process.admin}/console/catalog")
        expect(tab.locator(".status")).to_contain_text("live")
        tab.evaluate("window.states = []; new MutationObserver(() => states.push(document.querySelector('.status')"
                     ".textContent)).observe(document.querySelector('.status'), {subtree: true, childList: true,"
                     " characterData: true})")  # fmt: skip
        tab.clock.run_for(30_000)
        assert tab.evaluate("window.streams") == 1, "it may be quiet for a while"
        tab.clock.run_for(15_000)
        expect(tab.locator(".status")).to_contain_text("live")
        assert tab.evaluate("window.streams") == 2
        assert "reconnecting" in tab.evaluate("window.states")


def test_a_browser_whose_clock_is_wrong_shows_how_long_there_is(town: Bed, chrome: Browser, lead: Json) -> None:
    id = asked(town, amount=1)
    ends = httpx.get(f"{town.process.admin}/api/v1/approvals/{id}", headers=bearer("lea")).json()["seconds_left"]
    with page(chrome, storage_state=lead) as tab:
        tab.add_init_script(AN_HOUR_FAST)
        tab.add_init_script(SAID)
        open_card(tab, town, id)
        shown = tab.locator("article .countdown").inner_text()
        found = re.fullmatch(r"(\d+):(\d\d) left", shown)
        assert found, shown
        assert 0 <= ends - (int(found[1]) * 60 + int(found[2])) < 60
        assert tab.evaluate("window.said") == []


def test_that_time_runs_out_is_said_once_and_also_when_the_second_was_missed(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    id = asked(town, amount=2)
    with page(chrome, storage_state=lead) as tab:
        row = httpx.get(f"{town.process.admin}/api/v1/approvals/{id}", headers=bearer("lea")).json()
        row["expires_at"] = ahead(100)
        answer(tab, f"/api/v1/approvals/{id}", row)
        answer(tab, "/api/v1/approvals?*", {"approvals": [row], "total": 1})
        tab.add_init_script(SAID)
        open_card(tab, town, id)
        expect(tab.locator(".countdown")).to_have_count(2)
        row["expires_at"] = ahead(50)
        expect(tab.locator(".countdown.soon")).to_have_count(2)
        tab.wait_for_function("window.said.length > 0")
        (said,) = tab.evaluate("window.said")
        assert re.fullmatch(r"bank wire: [345]\d seconds left", said)


def test_the_state_of_the_connection_is_read_on_a_phone(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead, viewport={"width": 320, "height": 640}) as tab:
        tab.goto(f"{town.process.admin}/console")
        word = tab.locator(".status")
        expect(word).to_contain_text("live")
        box = word.bounding_box()
        assert box and box["width"] >= 20 and box["height"] >= 10
        assert float(word.evaluate("one => parseFloat(getComputedStyle(one).fontSize)")) >= 11
        tab.context.set_offline(True)
        expect(word).to_contain_text("stale since")
        box, nav = word.bounding_box(), tab.locator(".side nav").bounding_box()
        assert box and nav and box["x"] >= nav["x"] + nav["width"] and box["x"] + box["width"] <= 320
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_focus_stays_at_the_decision_that_somebody_else_makes(town: Bed, chrome: Browser, lead: Json) -> None:
    id = asked(town, amount=3)
    with page(chrome, storage_state=lead) as tab:
        open_card(tab, town, id)
        tab.get_by_placeholder("Comment").click()
        decide(town, id)
        expect(tab.locator(".over")).to_contain_text("key:leo")
        expect(tab.locator(".over")).to_be_focused()


def test_focus_stays_at_the_decision_that_one_makes_by_key(town: Bed, chrome: Browser, lead: Json) -> None:
    id = asked(town, amount=4)
    with page(chrome, storage_state=lead) as tab:
        open_card(tab, town, id)
        tab.get_by_role("button", name="Deny").focus()
        tab.keyboard.press("Enter")
        expect(tab.locator(".over")).to_contain_text("denied")
        expect(tab.locator(".over")).to_be_focused()


def test_a_key_held_down_on_back_denies_nothing(town: Bed, chrome: Browser, lead: Json) -> None:
    id = asked(town, amount=7)
    with page(chrome, storage_state=lead) as tab:
        open_card(tab, town, id)
        tab.get_by_role("button", name="Approve once").click()
        tab.get_by_role("button", name="Back").press("Enter")
        expect(tab.get_by_role("button", name="Deny")).to_be_visible()
        expect(tab.locator(".decide")).to_be_focused()
        tab.keyboard.press("Enter")
        expect(tab.locator("article .meta .verdict")).to_contain_text("pending")


def test_a_second_click_on_back_decides_nothing(town: Bed, chrome: Browser, lead: Json) -> None:
    id = asked(town, to="clicked twice")
    with page(chrome, storage_state=lead) as tab:
        open_card(tab, town, id)
        tab.get_by_role("button", name="Approve once").click()
        tab.get_by_role("button", name="Back").dblclick()
        expect(tab.get_by_role("button", name="Deny")).to_be_visible()
        tab.wait_for_timeout(800)  # until a click counts again
        expect(tab.locator("article .meta .verdict")).to_contain_text("pending")
        tab.get_by_role("button", name="Deny").click()
        expect(tab.locator("[class~=over]")).to_contain_text("denied")


@pytest.mark.parametrize("what", ["decided", "changed"])
def test_why_a_decision_was_not_taken_is_said_as_it_is(town: Bed, chrome: Browser, lead: Json, what: str) -> None:
    id = asked(town, amount=5, what=what)
    with page(chrome, storage_state=lead) as tab:
        row = httpx.get(f"{town.process.admin}/api/v1/approvals/{id}", headers=bearer("lea")).json()
        if what == "changed":
            row["digest"] = "another"
        is_sent: list[str] = []
        tab.route(f"**/api/v1/approvals/{id}", lambda route: route.continue_() if is_sent else route.fulfill(json=row))
        tab.on("request", lambda one: is_sent.append(one.url) if one.url.endswith("/decisions") else None)
        open_card(tab, town, id)
        if what == "decided":
            decide(town, id, "deny", comment="no")
        tab.get_by_role("button", name="Approve once").click()
        tab.get_by_role("button", name=re.compile("Confirm")).and_(tab.locator("[aria-disabled=false]")).click()
        alerts = {
            "decided": ["Your decision was not taken: it is denied already."],
            "changed": [
                "What this approval is about changed while you looked at it. Read it again.",
                "Your decision was not taken: it changed while you looked at it: read it again.",
            ],
        }
        expect(tab.locator("article").get_by_role("alert")).to_have_text(alerts[what])


def test_what_a_worker_cannot_tell_is_said(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        listed = {"approvals": [], "total": 0, "incomplete": ["worker 3 does not answer"]}
        answer(tab, "/api/v1/approvals?*", listed)
        tab.goto(f"{town.process.admin}/console/approvals")
        expect(tab.locator(".list .note")).to_have_text("Incomplete: worker 3 does not answer.")


def test_a_server_says_what_it_needs_and_how_it_ended(town: Bed, chrome: Browser, lead: Json) -> None:
    common = {"transport": "stdio", "in_flight": 0, "restarts": 0}
    rows = [
        {"key": "linear", "status": "down", "needs_login": True, "last_error": "it wants a login", **common},
        {"key": "loud", "status": "down", "exit": "exit status 3", "noise": "Starting\u202e!", **common},
    ]
    with page(chrome, storage_state=lead) as tab:
        answer(tab, "/api/v1/servers", {"servers": rows})
        tab.goto(f"{town.process.admin}/console")
        expect(tab.get_by_label("What needs you")).to_contain_text("1 server to log in to: linear")
        expect(tab.get_by_label("What needs you")).to_contain_text("1 server not up: loud")
        expect(tab.locator(".row").filter(has_text="linear")).to_contain_text("sluice login linear")
        tab.goto(f"{town.process.admin}/console/servers/linear")
        card = tab.locator("article")
        expect(card.locator(".verdict").first).to_contain_text("login needed")
        expect(card).to_contain_text("sluice login linear")
        tab.goto(f"{town.process.admin}/console/servers/loud")
        expect(card).to_contain_text("exit status 3")
        expect(card.get_by_label("On stdout")).to_have_text("Starting⟨U+202E⟩!")
        expect(card).to_contain_text("sluice doctor")


def test_a_card_says_who_accepted_the_definition_and_the_question_what_it_aims_at(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    with httpx.Client(base_url=town.process.admin, headers=bearer("lea")) as ask:
        town.until(lambda: town.names("ann") == ["bank__wire"] and ask.get("/api/v1/pins").json()["pins"] != [])
        (pin,) = [row for row in ask.get("/api/v1/pins").json()["pins"] if row["name"] == "wire"]
        accepted = [{"kind": "tool", "name": "wire", "fingerprint": pin["current"]}]
        assert ask.post("/api/v1/pins", json={"server": "bank", "accept": accepted}).status_code == 200
    id = asked(town, amount=6, to="acme")
    with page(chrome, storage_state=lead) as tab:
        open_card(tab, town, id)
        expect(tab.locator(f".row[href*={id}]")).to_contain_text("one-of-leads")
        tab.get_by_role("button", name="Approve once").click()
        confirm = tab.get_by_role("button", name=re.compile("Confirm"))
        expect(confirm).to_have_accessible_description(re.compile("It aims at .*amount 6.*to acme"))
        expect(tab.locator("article")).to_contain_text("accepted by key:lea")
        tab.get_by_role("link", name="its pin").click()
        expect(tab.locator("article h2")).to_have_text("wire")
        expect(tab.locator("article")).to_contain_text("Accepted by key:lea")
