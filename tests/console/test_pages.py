"""The console in a real browser, over a real Sluice: what people do, and what hostile text cannot."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from console.browser import browser, page
from peers.fleet import peers
from playwright.sync_api import Browser, Page, Response, expect
from policy_bed import Bed, bearer, bed, client_keys, key_of, recorder

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:approvals, *, allow
p, role:lead, sluice, admin:servers, read, allow
p, role:dev, sluice, admin:approvals, *, allow
p, local, sluice, admin:*, *, allow
"""
HOSTILE = "<img src=x onerror=alert(1)>\u202eevil\u2066</pre><form action=//evil><base href=//evil>" + "a\u0301" * 300
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("pages")
    keys = client_keys(ann=["role:dev"], lea=["role:lead"], leo=["role:lead"])
    servers = {"bank": recorder(folder, "bank", tools=["wire", "look"])}
    with bed(folder, ROWS, servers, clients={"keys": keys}, approvals={"hold_for": "100ms"}) as running:
        yield running


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def link(town: Bed) -> str:
    """Logged in by a link: attempts with a key are counted by address."""
    token = (town.folder / "state" / "operator.token").read_text()
    answer = httpx.post(f"{town.process.admin}/console/codes", headers={"Authorization": f"Bearer {token}"})
    return f"{town.process.admin}/console#code={answer.json()['code']}"


@pytest.fixture(scope="module")
def session(town: Bed, chrome: Browser) -> Json:
    """What a browser keeps of a session: that of the operator, who may approve here."""
    context = chrome.new_context()
    tab = context.new_page()
    tab.goto(town.process.admin + "/console")
    tab.get_by_label("Client key").fill(key_of("lea"))
    tab.get_by_role("button", name="Log in").click()
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    kept: Json = context.storage_state()  # type: ignore[assignment]
    context.close()
    return kept


def asked(town: Bed, who: str = "ann", **arguments: Any) -> str:
    answer = town.call(who, "bank__wire", **arguments).json()
    return str(answer["result"]["_meta"]["dev.sluice/approval"]["id"])


def state(town: Bed, id: str) -> Json:
    found: Json = httpx.get(f"{town.process.admin}/api/v1/approvals/{id}", headers=bearer("lea")).json()
    return found


def open_card(tab: Page, town: Bed, id: str) -> None:
    tab.goto(f"{town.process.admin}/console/approvals/{id}")
    expect(tab.locator("article.card")).to_be_visible()


def test_an_approval_is_found_read_and_approved_by_keyboard_alone(town: Bed, chrome: Browser, session: Json) -> None:
    id = asked(town, amount=1, to="acme")
    with page(chrome, storage_state=session) as tab:
        open_card(tab, town, id)
        expect(tab.get_by_label("Arguments", exact=True)).to_contain_text('to: "acme"')
        expect(tab.locator("article")).to_contain_text("policy.csv:2")
        tab.locator("article h2").click()
        tab.keyboard.press("a")
        confirm = tab.get_by_role("button", name=re.compile("Confirm: wire on bank"))
        expect(confirm).to_be_focused()
        tab.keyboard.press("Enter")
        assert state(town, id)["state"] == "pending", "whoever holds a key down has not confirmed"
        expect(confirm).to_have_attribute("aria-disabled", "false")
        tab.keyboard.press("Enter")
        expect(tab.locator("[class~=over]")).to_contain_text("key:lea")
    votes = state(town, id)["votes"]
    assert [(vote["principal"], vote["channel"]) for vote in votes] == [("key:lea", "console")]


def test_a_denial_is_one_step_and_takes_the_comment(town: Bed, chrome: Browser, session: Json) -> None:
    id = asked(town, amount=2)
    with page(chrome, storage_state=session) as tab:
        open_card(tab, town, id)
        tab.get_by_placeholder("Comment").fill("not today")
        tab.get_by_role("button", name="Deny").click()
        expect(tab.locator("[class~=over]")).to_contain_text("denied")
    assert (state(town, id)["state"], state(town, id)["comment"]) == ("denied", "not today")


def test_what_somebody_else_decides_is_shown_at_once(town: Bed, chrome: Browser, session: Json) -> None:
    with page(chrome, storage_state=session) as tab:
        tab.goto(f"{town.process.admin}/console/approvals")
        expect(tab.locator(".status")).to_contain_text("live")
        id = asked(town, amount=3)
        row = tab.locator(f"a[href*={id}]")
        expect(row).to_be_visible()
        expect(tab).to_have_title(re.compile(r"^\(\d+\) Approvals"))
        row.click()
        tab.get_by_placeholder("Comment").fill("typed before")
        body = {"decision": "approve", "seen_digest": state(town, id)["digest"]}
        ask = f"{town.process.admin}/api/v1/approvals/{id}/decisions"
        assert httpx.post(ask, headers=bearer("leo"), json=body).status_code == 200
        expect(tab.locator("[class~=over]")).to_contain_text("key:leo")


def test_what_is_long_has_to_be_opened_before_a_yes(town: Bed, chrome: Browser, session: Json) -> None:
    id = asked(town, text="\n".join(f"line {n}" for n in range(100)))
    with page(chrome, storage_state=session) as tab:
        open_card(tab, town, id)
        approve = tab.get_by_role("button", name="Approve once")
        expect(approve).to_be_disabled()
        tab.get_by_role("button", name=re.compile("Show all 101 lines")).click()
        expect(approve).to_be_enabled()
        expect(tab.get_by_label("Arguments", exact=True)).to_contain_text("line 99")


def test_hostile_text_changes_no_structure_and_leaves_no_box(town: Bed, chrome: Browser, session: Json) -> None:
    shapes = []
    for text in ("harmless", HOSTILE):
        id = asked(town, to=text, amount=len(shapes) + 10)
        with page(chrome, storage_state=session) as tab:
            open_card(tab, town, id)
            shape = "e => [...e.querySelectorAll('*')].map(one => one.tagName + '.' + one.className).join(' ')"
            shapes.append(tab.locator("article.card > .block").first.evaluate(shape))
            if text == HOSTILE:
                expect(tab.get_by_label("Arguments", exact=True)).to_contain_text("⟨U+202E⟩")
                box = "e => e.scrollWidth <= e.clientWidth"
                assert tab.locator("article.card").evaluate(box)
                assert tab.evaluate("document.querySelectorAll('img, form[action], base').length") == 0
    plain = [re.sub(r"SPAN\.(badge bad|line ?)", "", shape).split() for shape in shapes]
    assert plain[0] == plain[1]


def test_nobody_decides_on_their_own_call_and_the_page_says_why(town: Bed, chrome: Browser, session: Json) -> None:
    id = asked(town, "lea", amount=4)
    with page(chrome, storage_state=session) as tab:
        open_card(tab, town, id)
        expect(tab.locator("[class~=over]")).to_contain_text("nobody decides on what they asked for themselves")
        expect(tab.get_by_role("button", name="Approve once")).to_have_count(0)


def test_a_region_without_the_right_says_which_row_grants_it(town: Bed, chrome: Browser) -> None:
    with page(chrome) as tab:
        tab.goto(f"{town.process.admin}/console/servers")
        tab.get_by_label("Client key").fill(key_of("ann"))
        tab.get_by_role("button", name="Log in").click()
        expect(tab.locator(".no-right")).to_contain_text("p, key:ann, sluice, admin:servers, read, allow")


def test_a_link_logs_in_leaves_the_address_and_nothing_is_shown_after_the_logout(town: Bed, chrome: Browser) -> None:
    with page(chrome) as tab:
        tab.goto(link(town))
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        assert tab.url == f"{town.process.admin}/console"
        assert "code=" not in tab.evaluate("JSON.stringify([document.referrer, {...localStorage}, history.state])")
        tab.get_by_role("link", name="Servers", exact=True).click()
        expect(tab.locator(".row").filter(has_text="bank").first).to_be_visible()
        tab.locator(".who summary").click()
        tab.get_by_role("button", name="Log out", exact=True).click()
        expect(tab.get_by_label("Client key")).to_be_visible()
        tab.go_back()
        expect(tab.get_by_label("Client key")).to_be_visible()
        expect(tab.locator(".row")).to_have_count(0)
        assert tab.evaluate("localStorage.getItem('sluice.page')") is None


def test_after_the_logout_the_login_waits_for_the_new_document(town: Bed, chrome: Browser) -> None:
    """A login in the document that ends would lose what somebody types into it."""
    with page(chrome) as tab:
        tab.goto(link(town))
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        tab.evaluate(
            "new MutationObserver(() => { if (document.querySelector('input[name=key]')) sessionStorage.early = '1'; })"
            ".observe(document.body, {subtree: true, childList: true})"
        )
        tab.locator(".who summary").click()
        tab.get_by_role("button", name="Log out", exact=True).click()
        expect(tab.get_by_label("Client key")).to_be_visible()
        assert tab.evaluate("sessionStorage.early") is None


def test_a_frame_of_another_site_shows_nothing(town: Bed, chrome: Browser) -> None:
    context = chrome.new_context()
    tab = context.new_page()
    framing = "".join(f'<iframe src="{town.process.admin}{path}"></iframe>' for path in ("/livez", "/console"))
    tab.route("http://localhost:9/", lambda route: route.fulfill(content_type="text/html", body=framing))
    tab.goto("http://localhost:9/")
    assert "ok" in tab.frames[1].content(), "what may be framed is"
    assert tab.frames[2].locator("#app").count() == 0
    context.close()


@pytest.mark.parametrize("where", ["", "/approvals", "/servers", "card"])
def test_a_phone_needs_no_sideways_scroll(town: Bed, chrome: Browser, session: Json, where: str) -> None:
    where = f"/approvals/{asked(town, to='a' * 300, amount=5)}" if where == "card" else where
    with page(chrome, storage_state=session, viewport={"width": 320, "height": 640}) as tab:
        tab.goto(f"{town.process.admin}/console{where}")
        expect(tab.locator(".row, article.card, .empty").filter(visible=True).first).to_be_visible()
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_cold_page_is_small_and_asks_nobody_else_and_nothing_twice(town: Bed, chrome: Browser) -> None:
    asked(town, to="somebody waits")
    requests: list[str] = []
    answers: list[Response] = []
    with page(chrome) as tab:
        tab.clock.install()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("response", lambda answer: answers.append(answer))
        tab.goto(link(town))
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        expect(tab.locator(".row").filter(has_text="bank").first).to_be_visible()
        expect(tab.locator(".status")).to_contain_text("live")
        tab.clock.run_for(1_000)  # what a change would have asked for again is asked for by now
        expect(tab.locator(".tile").last.locator(".verdict")).to_be_visible()
        sizes = [answer.request.sizes()["responseBodySize"] for answer in answers if "events" not in answer.url]
    assert {url.split("/")[2] for url in requests} == {town.process.admin.removeprefix("http://")}
    assert len(requests) <= 12 and sum(sizes) <= 100 * 1024, requests
    assert len(set(requests)) == len(requests), requests


def test_the_tab_of_a_revoked_key_shows_nothing_any_more(peers: None, chrome: Browser, tmp_path: Path) -> None:
    keys = client_keys(lea=["role:lead"], leo=["role:lead"])
    with bed(tmp_path, ROWS, {"bank": recorder(tmp_path, "bank", tools=["wire"])}, clients={"keys": keys}) as town:
        with page(chrome) as tab:
            tab.goto(f"{town.process.admin}/console")
            tab.get_by_label("Client key").fill(key_of("lea"))
            tab.get_by_role("button", name="Log in").click()
            expect(tab.locator(".row").filter(has_text="bank")).to_be_visible()
            settings = json.loads(town.process.config.read_text())
            del settings["clients"]["keys"]["lea"]
            draft = tmp_path / "draft.yaml"
            draft.write_text(json.dumps(settings))
            draft.replace(town.process.config)
            expect(tab.get_by_label("Client key")).to_be_visible(timeout=30_000)
            expect(tab.locator(".row")).to_have_count(0)
        shown = run(tmp_path, "console", "-c", "sluice.yaml", "--no-browser")
        assert shown.returncode == 0
