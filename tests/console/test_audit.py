"""Audit in a real browser: the log is searched, and proved from its first record on."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from console.browser import browser, page
from console.test_operator_pages import HOSTILE, answer, logged_in
from peers.fleet import peers
from playwright.sync_api import Browser, expect
from policy_bed import Bed, bearer, bed, client_keys, recorder

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p, role:everyone, *, tool:*wire*, *, deny
p, role:lead, sluice, admin:*, *, allow
"""
TIME = "2026-11-23T12:04:05.678932101Z"
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("audit")
    keys = client_keys(ann=["role:dev"], lea=["role:lead"])
    with bed(folder, ROWS, {"bank": recorder(folder, "bank", tools=["wire", "look"])}, clients={"keys": keys}) as found:
        found.call("ann", "bank__look", amount=12345678901234567890)
        found.call("ann", "bank__wire", to="acme")
        with httpx.Client(base_url=found.process.admin, headers=bearer("lea")) as ask:
            found.until(lambda: len(ask.get("/api/v1/audit/records?type=outcome").json()["records"]) == 2)
        yield found


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def lead(town: Bed, chrome: Browser) -> Json:
    return logged_in(town, chrome, "lea")


def record(number: int, **changes: Any) -> Json:
    return {"writer": "sluice", "epoch": 1, "seq": number, "type": "outcome", "time": TIME, "call": f"c{number}",
            "principal": "key:ann", "server": "bank", "own": "look", "outcome": "ok", **changes}  # fmt: skip


def verification(**changes: Any) -> Json:
    return {"state": "done", "records": 9, "bytes": 9, "of_bytes": 9, "started_at": TIME, "ended_at": TIME, "ok": True,
            "writers": [], **changes}  # fmt: skip


def chain(**changes: Any) -> Json:
    return {"writer": "sluice", "ok": True, "records": 9, "first": 1, "last": 9, "signed": 9, "signed_at": TIME,
            "tail": 0, "notes": [], "findings": [], **changes}  # fmt: skip


def test_filters_stand_in_the_address_and_a_record_is_shown_whole(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console")
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        tab.keyboard.press("g")
        tab.keyboard.press("u")
        rows = tab.locator("[data-rows] .row")
        expect(rows.filter(has_text="admin").first).to_be_visible()
        tab.get_by_label("Type").select_option("outcome")
        expect(rows).to_have_count(2)
        tab.get_by_label("Outcome or reason").fill("denied")
        tab.get_by_label("Outcome or reason").press("Enter")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("bank / wire")
        assert tab.url.endswith("/console/audit?type=outcome&outcome=denied")
        tab.goto(f"{town.process.admin}/console/audit?type=intent&tool=bank/look")
        rows.click()
        expect(tab.get_by_label("Record, as the log has it")).to_contain_text('"amount": 12345678901234567890')
        tab.get_by_role("link", name="The whole call").click()
        expect(tab.locator("article.card")).to_contain_text("look")


def test_what_is_no_filter_is_said_to_be_none(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/audit?outcome=fine")
        expect(tab.locator("main .problem")).to_contain_text("outcome is one of")
        tab.goto(f"{town.process.admin}/console/audit?principal=key:nobody")
        expect(tab.locator("main .empty")).to_contain_text("No record matches")


def test_a_long_search_says_how_far_it_came_and_goes_on(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:

        def reply(route: Any) -> None:
            before = re.search(r"before=(\w+)", route.request.url)
            more = {"records": [], "partial": True, "next": "half"} if before is None else {"records": [record(1)]}
            route.fulfill(json={"searched_to": TIME, "partial": False, **more})

        tab.route("**/api/v1/audit/records?*", reply)
        tab.goto(f"{town.process.admin}/console/audit?call=c1")
        expect(tab.locator("main .empty")).to_contain_text("so far")
        expect(tab.locator(".older")).to_contain_text("Searched back to")
        tab.get_by_role("button", name="Go on").click()
        expect(tab.locator("[data-rows] .row")).to_have_count(1)
        expect(tab.locator(".older")).to_contain_text("no older ones")


def test_the_log_is_proved_up_to_its_newest_checkpoint(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/audit")
        tab.get_by_role("button", name="Verify the log").click()
        proof = tab.get_by_role("region", name="Proof of the whole log")
        expect(proof).to_contain_text(re.compile("proved: signed up to record|behind: [0-9]+ newer"))
        expect(proof).not_to_contain_text("BROKEN")
        expect(tab.get_by_role("button", name="Verify again")).to_be_enabled()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (verification(writers=[chain()]), ["proved: signed up to record 9"]),
        (verification(writers=[chain(signed=4, tail=4)]), ["proved: signed up to record 4", "behind: 4 newer records"]),
        (verification(writers=[chain(signed=0, tail=9)]), ["behind: 9 newer records, not signed yet"]),
        (
            verification(ok=False, writers=[chain(ok=False, signed=4, findings=[
                {"file": "sluice.jsonl", "line": 7, "seq": 7, "text": "was changed"}])]),
            ["BROKEN", "sluice.jsonl:7", "record 7:", "was changed"],
        ),
        (verification(state="running", records=1234, of_bytes=20), ["1,234 records read"]),
        (verification(state="failed", error="a file could not be read"), ["a file could not be read"]),
    ],
)  # fmt: skip
def test_what_a_proof_found_is_said_in_words(
    town: Bed, chrome: Browser, lead: Json, body: Json, words: list[str]
) -> None:
    with page(chrome, storage_state=lead) as tab:
        answer(tab, "/api/v1/audit/verify", body)
        tab.goto(f"{town.process.admin}/console/audit")
        proof = tab.get_by_role("region", name="Proof of the whole log")
        for text in words:
            expect(proof).to_contain_text(text)
        assert ("BROKEN" in words) == ("BROKEN" in proof.inner_text())
        assert body["ok"] or "proved" not in proof.inner_text()


def test_without_the_right_the_row_that_grants_it_is_named(town: Bed, chrome: Browser) -> None:
    with page(chrome, storage_state=logged_in(town, chrome, "ann")) as tab:
        tab.goto(f"{town.process.admin}/console/audit")
        row = "p, key:ann, sluice, admin:audit, read, allow"
        expect(tab.locator(".no-right").filter(has_text=row)).to_have_count(2)


def test_hostile_text_changes_no_structure(town: Bed, chrome: Browser, lead: Json) -> None:
    shapes = []
    for text in ("harmless", HOSTILE):
        with page(chrome, storage_state=lead, viewport={"width": 360, "height": 640}) as tab:
            named = dict.fromkeys(("principal", "server", "own", "outcome", "reason", "writer", "type"), text)
            hostile = record(1, arguments={text: text}, **named)
            answer(tab, "/api/v1/audit/records?*", {"records": [hostile], "searched_to": TIME, "partial": False})
            finding = {"file": text, "line": 7, "seq": 7, "text": text}
            chains = [chain(writer=text, notes=[text], ok=False, findings=[finding])]
            answer(tab, "/api/v1/audit/verify", verification(ok=False, writers=chains))
            tab.goto(f"{town.process.admin}/console/audit")
            tab.locator("[data-rows] .row").click()
            expect(tab.get_by_label("Record, as the log has it")).to_be_visible()
            shape = "e => [...e.querySelectorAll('*')].map(one => one.tagName).join(' ')"
            shapes.append(tab.locator("main").evaluate(shape))
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert tab.evaluate("document.querySelectorAll('img, form[action], base').length") == 0
    assert shapes[0] == shapes[1]
