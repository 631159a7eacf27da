"""The Catalog as a client gets it, beside what it lacks: class, verdict and pin of each tool, and what decided them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from console.browser import browser, page
from console.test_operator_pages import logged_in
from peers.fleet import peers
from playwright.sync_api import expect
from policy_bed import Bed, bearer, bed, client_keys, recorder

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, role:everyone, bank, tool:*, destroy, confirm
p, role:dev, bank, tool:wire, *, deny
p, role:lead, sluice, admin:*, *, allow
"""
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("look", "wire", "drop", "hide", "moved")]
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """One definition has changed since it was pinned."""
    folder = tmp_path_factory.mktemp("judged")
    bank = recorder(folder, "bank", tools=TOOLS)
    bank["tools"] = {"classes": {"look": "read", "dr*": "destroy"}, "deny": ["hide"]}
    keys = client_keys(ann=["role:dev"], lea=["role:lead"])
    with bed(folder, ROWS, {"bank": bank}, clients={"keys": keys}) as made:
        made.until(lambda: len(judged(made)) == 5)
        changed = [tool | ({"description": "Moved."} if tool["name"] == "moved" else {}) for tool in TOOLS]
        (folder / "bank" / "catalog.json").write_text(json.dumps({"tools": changed}))
        ask = f"{made.process.admin}/api/v1/servers/bank/restart"
        assert httpx.post(ask, headers=bearer("lea"), json={}).status_code == 200
        made.until(lambda: judged(made).get("moved", {}).get("pin") == "withheld")
        yield made


def judged(town: Bed, who: str = "key:ann") -> dict[str, Json]:
    """By their own names."""
    told = httpx.get(f"{town.process.admin}/api/v1/tools/judged?as={who}", headers=bearer("lea")).raise_for_status()
    assert told.json()["as"] == who
    return {row["own"]: row for row in told.json()["tools"]}


def test_each_tool_has_its_class_pin_and_verdict_and_what_decided_it(town: Bed) -> None:
    rows, base = judged(town), {"server": "bank", "pin": "first_use"}
    where = "servers.bank.tools"
    assert rows == {
        "look": {"name": "bank__look", "own": "look", "given": True, "verdict": "allow", "rule": "policy.csv:1",
                 "class": "read", "class_source": f"{where}.classes: look", **base},
        "wire": {"name": "bank__wire", "own": "wire", "given": False, "verdict": "deny", "rule": "policy.csv:3",
                 "class": "write", "class_source": "no class was given", **base},
        "drop": {"name": "bank__drop", "own": "drop", "given": True, "verdict": "ask", "rule": "policy.csv:2",
                 "class": "destroy", "class_source": f"{where}.classes: dr*", **base},
        "hide": {"name": "bank__hide", "own": "hide", "given": False, "verdict": "deny", "rule": f"{where}.deny: hide",
                 "class": "write", "class_source": "no class was given", **base},
        "moved": {"name": "bank__moved", "own": "moved", "given": False, "verdict": "allow", "rule": "policy.csv:1",
                  "class": "write", "class_source": "no class was given", **base, "pin": "withheld"},
    }  # fmt: skip
    assert judged(town, "key:lea")["wire"]["given"] is True
    given = {row["name"] for row in rows.values() if row["given"]}
    assert {name for name in town.names("ann") if name.startswith("bank__")} == given


def test_what_cannot_be_asked_is_refused(town: Bed) -> None:
    ask = f"{town.process.admin}/api/v1/tools/judged"
    for query, status in (("?as=key:nobody", 404), ("?as=a&as=b", 400), ("?who=a", 400)):
        assert httpx.get(ask + query, headers=bearer("lea")).status_code == status
    assert httpx.get(ask, headers=bearer("ann")).status_code == 403


def test_what_a_client_lacks_is_struck_through_and_each_row_says_why(town: Bed) -> None:
    with browser() as chrome, page(chrome, storage_state=logged_in(town, chrome, "lea")) as tab:
        tab.goto(f"{town.process.admin}/console/catalog?as=key:ann")
        rows = tab.locator(".leaf")
        expect(rows.locator("s")).to_have_text(["bank__wire", "bank__hide", "bank__moved"])
        expect(tab.locator(".sum")).to_contain_text("3 tools not given")
        drop = rows.filter(has_text="bank__drop")
        expect(drop).to_contain_text("destroy")
        expect(drop.locator(".verdict")).to_contain_text("ask")
        expect(rows.filter(has_text="bank__moved")).to_contain_text("withheld")
        rows.filter(has_text="bank__wire").click()
        card = tab.locator("article.card")
        expect(card).to_contain_text("key:ann is not given it")
        expect(card).to_contain_text("policy.csv:3")
        expect(card).to_contain_text("no class was given")
        card.get_by_role("link", name="What the policy says of it").click()
        expect(tab.locator("article.answer .verdict").first).to_contain_text("deny")


def test_what_is_typed_as_a_client_stays_when_the_list_arrives(town: Bed) -> None:
    with browser() as chrome, page(chrome, storage_state=logged_in(town, chrome, "lea")) as tab:
        tab.goto(f"{town.process.admin}/console/catalog")
        expect(tab.locator(".leaf").first).to_be_visible()
        tab.get_by_label("View as").fill("key:a")
        tab.route("**/api/v1/tools?*", lambda route: route.fulfill(json={"as": "local", "tools": []}))
        tab.get_by_role("button", name="Reload").click()
        expect(tab.locator(".branch h3")).to_have_count(1)
        expect(tab.locator(".branch h3")).to_contain_text(["Tools it does not get"])
        expect(tab.get_by_label("View as")).to_have_value("key:a")
        tab.unroute_all()
        tab.get_by_role("button", name="View", exact=True).click()
        expect(tab.locator("main .problem")).to_contain_text("no such client: key:a")


def test_the_lines_around_a_row_end_where_its_file_does(town: Bed) -> None:
    question = {"as": "key:ann", "method": "tools/call", "target": "bank/wire"}
    told = httpx.post(f"{town.process.admin}/api/v1/policy/explain", headers=bearer("lea"), json=question).json()
    assert told["source"] == {"first": 1, "lines": ROWS.splitlines()}
