"""A first visit of the Overview, calls a minute, remembered approvals and how they end, and how a log is exported."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from command_line import run
from console.browser import browser, page
from console.test_operator_pages import logged_in
from peers.fleet import peers
from playwright.sync_api import Browser, Locator, Page, expect
from policy_bed import Bed, bearer, bed, client_keys, recorder

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, quick
p, role:lead, sluice, admin:*, *, allow
p, role:dev, sluice, admin:grants, read, allow
p, role:dev, sluice, admin:servers, read, allow
"""
PROFILES = {"quick": {"tier": "other", "approvers": ["role:lead"], "remember": ["once", "15m"]}}
__all__ = ["peers"]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("visit")
    keys = client_keys(ann=["role:dev"], lea=["role:lead"], bob=[])
    approvals = {"hold_for": "100ms", "profiles": PROFILES}
    bank = {"bank": recorder(folder, "bank", tools=["wire", "look"])}
    with bed(folder, ROWS, bank, clients={"keys": keys}, approvals=approvals) as made:
        yield made


@pytest.fixture(scope="module")
def lead(town: Bed, chrome: Browser) -> Json:
    return logged_in(town, chrome, "lea")


def counted(town: Bed) -> Json:
    found: Json = httpx.get(f"{town.process.admin}/api/v1/status", headers=bearer("lea")).json()["counted"]
    return found


def tile_of(tab: Page) -> Locator:
    return tab.locator(".tile").filter(has=tab.get_by_role("heading", name="Calls"))


def test_a_first_visit_shows_steps_that_tick_themselves(town: Bed, chrome: Browser, lead: Json) -> None:
    assert counted(town) == {"requests": 0, "calls": 0, "denied": 0}
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console")
        steps = tab.locator(".first li")
        expect(steps).to_have_text([re.compile("done.*server is up"), re.compile("to do.*client"), re.compile("to do")])
        assert town.names("ann") == ["bank__wire", "bank__look"]
        expect(steps.nth(1)).to_contain_text("done")
        expect(steps.nth(2)).to_contain_text("to do")
        town.call("ann", "bank__look")
        expect(steps).to_have_count(0)
        expect(tile_of(tab)).to_contain_text("1 call since the start, 0 denied")
        tab.reload()
        expect(tile_of(tab)).to_contain_text("1 call since the start")
        expect(steps).to_have_count(0)


def test_calls_a_minute_are_those_of_the_last_minute(town: Bed, chrome: Browser, lead: Json) -> None:
    before = counted(town)["calls"]
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console")
        tile = tile_of(tab)
        expect(tile).to_contain_text(f"{before} call")
        for _ in range(6):
            town.call("ann", "bank__look")
        expect(tile).to_contain_text(f"{before + 6} calls")
        expect(tile.locator(".figure")).to_have_text(re.compile(r"^[1-9]\d* a minute$"))


def test_no_figure_is_shown_to_who_may_not_know_it(town: Bed, chrome: Browser) -> None:
    with page(chrome, storage_state=logged_in(town, chrome, "bob")) as tab:
        tab.goto(f"{town.process.admin}/console")
        for title in ("Sluice", "Calls", "Servers"):
            tile = tab.locator(".tile").filter(has=tab.get_by_role("heading", name=title, exact=True))
            expect(tile.locator("p")).to_have_text(["no right"])


def test_deny_is_the_equal_of_approve(town: Bed, chrome: Browser, lead: Json) -> None:
    asked = town.call("ann", "bank__wire", n=2).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    for width in (1280, 360):
        with page(chrome, storage_state=lead, viewport={"width": width, "height": 740}) as tab:
            tab.goto(f"{town.process.admin}/console/approvals/{asked}")
            deny = tab.get_by_role("button", name="Deny")
            expect(deny).to_be_visible()
            boxes = [tab.get_by_role("button", name=name).bounding_box() for name in ("Deny", "Approve once")]
            assert boxes[0] and boxes[1]
            assert boxes[0]["height"] == boxes[1]["height"] >= 40
            assert boxes[0]["width"] == boxes[1]["width"]
            grounds = "one => getComputedStyle(one).backgroundColor"
            assert deny.evaluate(grounds) != tab.locator(".card").evaluate(grounds), "it is filled, too"


def remembered(town: Bed) -> str:
    """The tool call of ann that lea remembers for a quarter of an hour; its grant."""
    asked = town.call("ann", "bank__wire", n=1).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    with httpx.Client(base_url=f"{town.process.admin}/api/v1/", headers=bearer("lea")) as ask:
        body = {"decision": "approve", "scope": "15m", "seen_digest": ask.get(f"approvals/{asked}").json()["digest"]}
        assert ask.post(f"approvals/{asked}/decisions", json=body).status_code == 200
        town.call("ann", "bank__wire", n=1)
        town.until(lambda: ask.get("grants").json()["total"] == 1)
        return str(ask.get("grants").json()["grants"][0]["id"])


def test_a_remembered_approval_is_shown_and_revoked_after_a_question(town: Bed, chrome: Browser, lead: Json) -> None:
    remembered(town)
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/approvals")
        tab.get_by_role("link", name="Grants").click()
        row = tab.get_by_role("list", name="Remembered approvals").locator("li")
        expect(row).to_contain_text("wire")
        expect(row).to_contain_text("for key:ann for 15 min")
        expect(row).to_contain_text("by key:lea")
        row.get_by_role("button", name="Revoke wire for key:ann").click()
        tab.get_by_role("button", name="Revoke", exact=True).click()
        expect(tab.get_by_role("heading", name="Nothing is remembered")).to_be_visible()
    assert "dev.sluice/approval" in town.call("ann", "bank__wire", n=1).text
    (record,) = [one for one in town.audit() if one.get("act") == "console_action" and "DELETE" in one["object"]]
    assert record["principal"] == "key:lea"


def test_who_may_only_look_at_grants_revokes_none(town: Bed, chrome: Browser) -> None:
    id = remembered(town)
    with page(chrome, storage_state=logged_in(town, chrome, "ann")) as tab:
        tab.goto(f"{town.process.admin}/console/approvals?tab=grants")
        tab.get_by_role("button", name="Revoke wire").click()
        tab.get_by_role("button", name="Revoke", exact=True).click()
        expect(tab.get_by_role("dialog").get_by_role("alert")).to_contain_text("admin:grants, write, allow")
    assert httpx.get(f"{town.process.admin}/api/v1/grants/{id}", headers=bearer("lea")).status_code == 200


@pytest.mark.parametrize("query", ["", "?type=outcome&since=1h", "?principal=key:ann", "?tool=it's $(id) `id`"])
def test_the_command_that_exports_is_that_of_the_filters(
    town: Bed, chrome: Browser, lead: Json, query: str
) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/audit{query}")
        tab.get_by_text("Export these records").click()
        command = tab.get_by_label("Command that exports").inner_text().strip()
    words = shlex.split(command)
    assert words[0] == "sluice" and words[-2:] == [">", "audit.jsonl"]
    assert ("it's $(id) `id`" in words) == ("$(id)" in query), "it is one word of the command"
    done = run(town.folder, *words[1:-2], "-c", "sluice.yaml")
    assert done.returncode == 0 or "no such record" in done.stderr, done.stderr
    assert all(json.loads(line)["type"] for line in done.stdout.splitlines())
    if query == "?principal=key:ann":
        assert done.stdout
