"""Activity in a real browser: what clients called, why it was denied, and what proves it."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from console.browser import browser, page
from hook_service import hook_service
from peers.fleet import peers
from playwright.sync_api import Browser, Page, expect
from policy_bed import Bed, bearer, bed, client_keys, key_of, recorder

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p, role:everyone, *, tool:*wire*, *, deny
p, role:lead, sluice, admin:*, *, allow
p, role:dev, sluice, admin:servers, read, allow
"""
HOSTILE = "<img src=x onerror=alert(1)>\u202eevil</pre><form action=//evil><base href=//evil>" + "a\u0301" * 300
TIME = "2026-11-23T12:04:05.678932101Z"
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("activity")
    keys = client_keys(ann=["role:dev"], lea=["role:lead"])
    servers = {"bank": recorder(folder, "bank", tools=["wire", "look", "pay"])}
    with hook_service() as service:
        service.answers = lambda asked: {"verdict": "deny", "reason": "over the limit"}
        gate = {"url": service.url, "on": ["call"], "tools": ["pay"], "timeout": "20s"}
        with bed(folder, ROWS, servers, clients={"keys": keys}, hooks={"gate": gate}) as running:
            yield running


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def logged_in(town: Bed, chrome: Browser, who: str) -> Json:
    context = chrome.new_context()
    tab = context.new_page()
    tab.goto(town.process.admin + "/console")
    tab.get_by_label("Client key").fill(key_of(who))
    tab.get_by_role("button", name="Log in").click()
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    state: Json = context.storage_state()  # type: ignore[assignment]
    context.close()
    return state


@pytest.fixture(scope="module")
def lead(town: Bed, chrome: Browser) -> Json:
    return logged_in(town, chrome, "lea")


@pytest.fixture(scope="module")
def dev(town: Bed, chrome: Browser) -> Json:
    return logged_in(town, chrome, "ann")


def calls(town: Bed, **query: str) -> list[Json]:
    answer = httpx.get(f"{town.process.admin}/api/v1/calls", headers=bearer("lea"), params=query)
    found: list[Json] = answer.json()["calls"]
    return found


def called(town: Bed, tool: str, **arguments: Any) -> str:
    """Its id, once the log has its end."""
    before = {row["id"] for row in calls(town)}
    town.call("ann", f"bank__{tool}", **arguments)
    town.until(lambda: any(row["id"] not in before and not row["is_open"] for row in calls(town)))
    return str(next(row["id"] for row in calls(town) if row["id"] not in before))


def row(number: int, **changes: Any) -> Json:
    at = f"2026-11-23T12:{number // 60 % 60:02}:{number % 60:02}.000000000Z"
    return {"id": f"c{number}", "time": at, "principal": "key:ann", "method": "tools/call", "server": "bank",
            "own": "look", "outcome": "ok", "verdict": "allow", "seconds": 0.01, "is_open": False,
            **changes}  # fmt: skip


def answer_calls(tab: Page, rows: list[Json], **more: Any) -> None:
    body = {"calls": rows, "searched_to": TIME, "partial": False, **more}
    tab.route("**/api/v1/calls?*", lambda route: route.fulfill(json=body))


def answer_story(tab: Page, body: Json) -> None:
    tab.route("**/api/v1/calls/c1", lambda route: route.fulfill(json=body))


def story(text: str, state: str = "proved", **more: Any) -> Json:
    own = row(1, principal=text, server=text, own=text, owner=text, reason=text, trace=text, roles=[text],
              client={"name": text, "version": text}, rule=text)  # fmt: skip
    own |= {"arguments": {text: text}, "result": [text], "result_cut": True, "is_open": False,
            "decision": {"verdict": "allow", "rule": text, "policy": text},
            "approvals": [{"id": text, "time": TIME, "state": text, "approver": text, "comment": text}],
            "hooks": [{"hook": text, "on": text, "verdict": text, "reason": text, "redacted": [text], "seconds": 1.0}],
            "rounds": [row(2, id=text, outcome=text)],
            "timing": [{"stage": text, "time": TIME, "seconds": 1.0}]}  # fmt: skip
    proof = {"writer": text, "seq": 7, "type": "outcome", "state": state, "signed": 81220, "why": text, **more}
    return {"call": own, "records": [], "partial": False, "proof": {"state": state, "records": [proof]}}


def test_why_a_call_was_denied_is_one_click_from_the_overview(town: Bed, chrome: Browser, lead: Json) -> None:
    called(town, "wire", to="acme")
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console")
        denied = tab.get_by_role("region", name="Denied in the last hour")
        denied.locator(".row").filter(has_text="wire").first.click()
        card = tab.locator("article.card")
        expect(card).to_contain_text("policy.csv:2")
        expect(card.get_by_label("Arguments")).to_contain_text('"to": "acme"')
        proof = re.compile("behind: no checkpoint covers it yet|proved: signed up to")
        expect(card.locator(".proof")).to_contain_text(proof)
        card.get_by_role("link", name="Explain it in Policy").click()
        expect(tab.locator("article.answer .line.deciding")).to_contain_text("tool:*wire*, *, deny")
        expect(tab.get_by_label("Arguments")).to_have_value(re.compile('"to": "acme"'))
        assert "acme" not in tab.url, "arguments may be secret"


def test_what_hooks_said_of_a_call_is_shown_and_which_ones_would_be_asked(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    id = called(town, "pay", to="acme")
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/activity/{id}")
        card = tab.locator("article.card")
        said = card.locator("section", has_text="Hooks")
        expect(said).to_contain_text(re.compile("gate on call.*deny.*over the limit"))
        card.get_by_role("link", name="Explain it in Policy").click()
        answer = tab.locator("article.answer")
        expect(answer).to_contain_text("Hooks that are asked on call: gate")
        expect(answer).not_to_contain_text("on result")


def test_calls_that_cannot_be_loaded_are_asked_for_again_and_old_ones_are_called_old(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    called(town, "look")
    with page(chrome, storage_state=lead) as tab:
        gone: list[int] = [1]
        answer = {"status": 503, "json": {"error": "the log cannot be read"}}
        tab.route("**/api/v1/calls?*", lambda route: route.fulfill(**answer) if gone else route.continue_())  # type: ignore[arg-type]
        tab.goto(f"{town.process.admin}/console/activity")
        problem = tab.locator(".problem")
        expect(problem).to_contain_text("the log cannot be read")
        gone.clear()
        problem.get_by_role("button", name="Try again").click()
        expect(tab.locator("a.call").first).to_be_visible()
        gone.append(1)
        expect(tab.locator(".note.bad")).to_contain_text("What you see is of")
        expect(tab.locator("a.call").first).to_be_visible()


def test_a_story_names_what_took_the_time_and_the_overview_shows_how_long_calls_take(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    allowed, denied = called(town, "look"), called(town, "wire")
    with page(chrome, storage_state=lead) as tab:
        took = tab.locator("article.card table tr")
        tab.goto(f"{town.process.admin}/console/activity/{allowed}")
        expect(took).to_have_text([re.compile(r"decide, and record the intent\d.* m?s"), re.compile(r"server\d.* m?s")])
        tab.goto(f"{town.process.admin}/console/activity/{denied}")
        expect(took).to_have_text([re.compile(r"decide\d.* m?s")])
        tab.goto(f"{town.process.admin}/console")
        expect(tab.get_by_role("region", name="Newest calls")).to_contain_text("95 % at most")


def test_calls_appear_as_they_end_until_somebody_pauses(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/activity")
        first = called(town, "look")
        expect(tab.locator(f"a.call[href*='{first}']")).to_contain_text("allow")
        tab.get_by_role("button", name="Pause").click()
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        second = called(town, "look")
        tab.wait_for_event("request", lambda request: request.url.endswith("/console/session"))
        assert not any("/api/v1/calls" in url for url in asked), "more than a second went by"
        tab.get_by_role("button", name="Resume").click()
        expect(tab.locator(f"a.call[href*='{second}']")).to_be_visible()


def test_filters_stand_in_the_address_and_are_obeyed(town: Bed, chrome: Browser, lead: Json) -> None:
    allowed, denied = called(town, "look", note="needle"), called(town, "wire")
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/activity?verdict=deny")
        expect(tab.locator(f"a.call[href*='{denied}']")).to_be_visible()
        expect(tab.locator(f"a.call[href*='{allowed}']")).to_have_count(0)
        tab.get_by_label("Verdict").select_option("")
        tab.get_by_label("Text").fill("needle")
        tab.get_by_label("Text").press("Enter")
        expect(tab.locator(f"a.call[href*='{allowed}']")).to_be_visible()
        expect(tab.locator(f"a.call[href*='{denied}']")).to_have_count(0)
        assert tab.url.endswith("/console/activity?q=needle")
        tab.get_by_label("Since").fill("soon")
        tab.get_by_label("Since").press("Enter")
        expect(tab.get_by_role("alert")).to_be_visible()


def test_who_reads_further_down_is_not_moved_and_learns_how_many_are_new(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    with page(chrome, storage_state=lead, viewport={"width": 1280, "height": 400}) as tab:
        answer_calls(tab, [row(number) for number in range(99, 39, -1)])
        tab.goto(f"{town.process.admin}/console/activity")
        expect(tab.locator("a.call")).to_have_count(60)
        tab.evaluate("scrollTo(0, 500)")
        answer_calls(tab, [row(number) for number in range(136, 39, -1)])
        new = tab.get_by_role("button", name="37 new")
        expect(new).to_be_visible()
        expect(tab.locator("a.call")).to_have_count(60)
        assert tab.evaluate("scrollY") == 500
        new.click()
        expect(tab.locator("a.call")).to_have_count(97)
        expect(new).to_have_count(0)


def test_a_list_that_cannot_keep_up_begins_anew_and_says_so(town: Bed, chrome: Browser, lead: Json) -> None:
    """A call that was running and has ended is among the newest: that both lists have it hides no gap."""
    with page(chrome, storage_state=lead) as tab:
        said = tab.get_by_text("Calls come faster than they are shown")
        answer_calls(tab, [row(number, is_open=number == 50) for number in range(99, -1, -1)], next="0")
        tab.goto(f"{town.process.admin}/console/activity")
        expect(tab.locator("a.call")).to_have_count(100)
        expect(said).to_have_count(0)
        rows = [row(350, id="c50") if number == 350 else row(number) for number in range(400, 299, -1)]
        answer_calls(tab, rows[1:], next="300")
        expect(said).to_be_visible()
        expect(tab.locator("a.call")).to_have_count(100)
        expect(tab.locator("a.call[href$='/c99']")).to_have_count(0)
        answer_calls(tab, rows[:100], next="301")
        expect(said).to_have_count(0)
        expect(tab.locator("a.call")).to_have_count(101)


def test_five_hundred_rows_at_most_are_there_and_older_ones_are_a_link_away(
    town: Bed, chrome: Browser, lead: Json
) -> None:
    with page(chrome, storage_state=lead) as tab:

        def reply(route: Any) -> None:
            before = re.search(r"before=(\d+)", route.request.url)
            top = int(before[1]) if before else 1000
            rows = [row(number) for number in range(top - 1, top - 101, -1)]
            route.fulfill(json={"calls": rows, "searched_to": TIME, "partial": before is None, "next": str(top - 100)})

        tab.route("**/api/v1/calls?*", reply)
        tab.goto(f"{town.process.admin}/console/activity")
        expect(tab.locator(".older")).to_contain_text("Searched back to")
        tab.get_by_role("button", name="Go on").click()
        for count in (200, 300, 400):
            expect(tab.locator("a.call")).to_have_count(count)
            tab.get_by_role("button", name="Show older ones").click()
        expect(tab.locator("a.call")).to_have_count(500)
        expect(tab.get_by_role("button", name="Show older ones")).to_have_count(0)
        tab.get_by_role("link", name="Older than these").click()
        assert "until=2026-11-23T" in tab.url
        expect(tab.locator(".filters .note")).to_contain_text("Calls before")


@pytest.mark.parametrize(
    ("state", "words"),
    [("proved", "proved: signed up to record 81,220"), ("behind", "behind: no checkpoint covers it yet"),
     ("not_verified", "not verified: the key"), ("broken", "BROKEN: the key")],
)  # fmt: skip
def test_the_proof_is_said_in_words(town: Bed, chrome: Browser, lead: Json, state: str, words: str) -> None:
    with page(chrome, storage_state=lead) as tab:
        answer_story(tab, story("the key", state))
        tab.goto(f"{town.process.admin}/console/activity/c1")
        expect(tab.locator(".proof")).to_contain_text(words)


def test_a_number_that_a_browser_would_round_is_shown_as_the_log_has_it(town: Bed, chrome: Browser, lead: Json) -> None:
    id = called(town, "look", amount=12345678901234567890)
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/activity/{id}")
        expect(tab.get_by_label("Arguments")).to_contain_text("12345678901234567890")


def test_hostile_text_changes_no_structure(town: Bed, chrome: Browser, lead: Json) -> None:
    shapes: dict[str, list[str]] = {}
    for text in ("harmless", HOSTILE):
        with page(chrome, storage_state=lead, viewport={"width": 360, "height": 640}) as tab:
            hostile = {"principal": text, "server": text, "own": text, "outcome": text, "verdict": text, "rule": text}
            answer_calls(tab, [row(1, **hostile), row(2)])
            answer_story(tab, story(text, "broken"))
            for where in ("", "activity", "activity/c1"):
                tab.goto(f"{town.process.admin}/console/{where}")
                expect(tab.get_by_text("harmless" if text == "harmless" else "U+202E").first).to_be_visible()
                shape = "e => [...e.querySelectorAll('*')].map(one => one.tagName).join(' ')"
                shown = tab.locator("[aria-labelledby=o-denied]" if where == "" else "main")
                shapes.setdefault(where, []).append(shown.evaluate(shape))
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert tab.evaluate("document.querySelectorAll('img, form[action], base').length") == 0
    assert all(benign == hostile for benign, hostile in shapes.values())


def test_the_plots_have_a_text(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        answer_calls(tab, [row(3, outcome="denied", verdict="deny"), row(2, seconds=1.5), row(1)])
        tab.goto(f"{town.process.admin}/console/activity")
        expect(tab.get_by_role("img", name=re.compile(r"3 calls from .*, 1 refused"))).to_be_visible()
        expect(tab.get_by_role("img", name=re.compile(r"Half took at most .*, the slowest 1\.5 s"))).to_be_visible()


def test_without_the_right_the_row_that_grants_it_is_named(town: Bed, chrome: Browser, dev: Json) -> None:
    with page(chrome, storage_state=dev) as tab:
        for where in ("activity", "activity/c1"):
            tab.goto(f"{town.process.admin}/console/{where}")
            expect(tab.locator(".no-right")).to_contain_text("p, key:ann, sluice, admin:audit, read, allow")
