"""A preview is a call of whoever looks: judged by the policy as theirs, and recorded."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from console.browser import browser, page
from console.test_operator_pages import HOSTILE, answer, logged_in
from peers.fleet import peers
from playwright.sync_api import expect
from policy_bed import Bed, bearer, bed, client_keys, recorder

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p, role:lead, bank, res:*secret, *, deny
p2, *, bank, prompt:careful, *, one-of-leads
p, role:lead, sluice, admin:*, *, allow
"""
READ, GET = "resources/read", "prompts/get"
PROMPT = {"name": "ask", "arguments": [{"name": "city", "required": True}]}
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("preview")
    servers = {"bank": recorder(folder, "bank", resources=["memo:///a", "memo:///secret"], prompts=[PROMPT, "careful"])}
    keys = client_keys(ann=["role:dev"], lea=["role:lead"], leo=["role:lead"])
    with bed(folder, ROWS, servers, clients={"keys": keys}, approvals={"hold_for": "100ms"}) as running:
        yield running


def preview(town: Bed, who: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{town.process.admin}/api/v1/preview", headers=bearer(who), json=body, timeout=30)


def recorded(town: Bed, call: str) -> Json:
    found: list[Json] = []

    def has_ended() -> bool:
        found[:] = [one for one in town.audit() if one.get("call") == call and one["type"] == "outcome"]
        return found != []

    town.until(has_ended)
    return found[0]


def test_a_preview_is_what_the_client_gets_and_a_call_of_its_own(town: Bed) -> None:
    for method, target, more in ((READ, "bank+memo:///a", {}), (GET, "bank__ask", {"arguments": {"city": "Oslo"}})):
        before = len(town.seen("bank"))
        told = preview(town, "lea", method=method, target=target, **more).json()
        named = {"uri": target} if method == READ else {"name": target, **more}
        own = town.ask("lea", method, **named).json()["result"]
        assert {name: told["result"][name] for name in ("contents", "messages") if name in told["result"]} == {
            name: own[name] for name in ("contents", "messages") if name in own
        }
        assert len(town.seen("bank")) == before + 2
        record = recorded(town, told["call"])
        assert (record["principal"], record["method"], record["outcome"]) == ("key:lea", method, "ok")
        assert record["client"]["name"] == "sluice-preview"


def test_what_the_policy_denies_to_whoever_looks_is_not_previewed(town: Bed) -> None:
    before = len(town.seen("bank"))
    told = preview(town, "lea", method=READ, target="bank+memo:///secret").json()
    assert "result" not in told and told["failure"]["message"]
    assert recorded(town, told["call"])["outcome"] == "denied" and len(town.seen("bank")) == before
    assert preview(town, "ann", method=READ, target="bank+memo:///a").status_code == 403
    assert len(town.seen("bank")) == before, "who has no right to the catalog calls nothing there"


@pytest.mark.parametrize(
    "body",
    [{"method": "tools/call", "target": "bank__wire"}, {"method": READ}, {"method": READ, "target": 1},
     {"method": READ, "target": "a", "as": "key:ann"}, {"method": GET, "target": "a"},
     {"method": GET, "target": "a", "arguments": {"city": 1}}],
)  # fmt: skip
def test_nothing_but_a_read_and_a_prompt_is_previewed_and_nobody_else_is_named(town: Bed, body: Json) -> None:
    before = len(town.seen("bank"))
    assert preview(town, "lea", **body).status_code == 400 and len(town.seen("bank")) == before


def test_the_catalog_previews_and_says_as_whom(town: Bed) -> None:
    with browser() as chrome, page(chrome, storage_state=logged_in(town, chrome, "lea")) as tab:
        tab.goto(f"{town.process.admin}/console/catalog?as=key:ann&of=resource%20bank%2Bmemo:///a")
        card = tab.locator("article.card")
        expect(card).to_contain_text("a call of your own: judged and recorded as key:lea")
        tab.get_by_role("button", name="Read it").click()
        expect(card.get_by_label("memo:///a")).to_be_visible()
        tab.goto(f"{town.process.admin}/console/catalog?as=key:ann&of=resource%20bank%2Bmemo:///secret")
        tab.get_by_role("button", name="Read it").click()
        expect(card.locator(".note.bad")).to_be_visible()
        tab.goto(f"{town.process.admin}/console/catalog?of=prompt%20bank__ask&as=key:ann")
        tab.get_by_label("city").fill("Oslo")
        tab.get_by_role("button", name="Get it").click()
        expect(card).to_contain_text("The answer is empty.")
        expect(card.get_by_role("link", name="This call in Activity")).to_be_visible()


def test_a_preview_that_needs_an_approval_links_to_it_and_is_made_once_it_is_approved(town: Bed) -> None:
    with browser() as chrome, page(chrome, storage_state=logged_in(town, chrome, "lea")) as tab:
        tab.goto(f"{town.process.admin}/console/catalog?as=key:ann&of=prompt%20bank__careful")
        card, before = tab.locator("article.card"), len(town.seen("bank"))
        tab.get_by_role("button", name="Get it").click()
        link = card.get_by_role("link", name="Its approval")
        expect(link).to_be_visible()
        assert len(town.seen("bank")) == before
        id = (link.get_attribute("href") or "").rpartition("/")[2]
        with httpx.Client(base_url=f"{town.process.admin}/api/v1", headers=bearer("leo")) as leo:
            body = {"decision": "approve", "seen_digest": leo.get(f"/approvals/{id}").json()["digest"]}
            assert leo.post(f"/approvals/{id}/decisions", json=body).status_code == 200
        tab.get_by_role("button", name="Get it").click()
        expect(card).to_contain_text("The answer is empty.")
        assert len(town.seen("bank")) == before + 1
        link = card.get_by_role("link", name="Its approval")
        expect(link).to_have_count(0)


def test_hostile_content_changes_no_structure(town: Bed) -> None:
    shapes = []
    with browser() as chrome:
        session = logged_in(town, chrome, "lea")
        for text in ("harmless", HOSTILE):
            with page(chrome, storage_state=session, viewport={"width": 360, "height": 640}) as tab:
                contents = [{"uri": text, "mimeType": text, "text": text}, {"uri": text, "blob": text}]
                body = {"call": "c1", "result": {"contents": contents}, "failure": {"message": text, "reason": text}}
                answer(tab, "/api/v1/preview", body)
                tab.goto(f"{town.process.admin}/console/catalog?as=key:ann&of=resource%20bank%2Bmemo:///a")
                tab.get_by_role("button", name="Read it").click()
                expect(tab.get_by_text("harmless" if text == "harmless" else "U+202E").first).to_be_visible()
                shape = "e => [...e.querySelectorAll('*')].map(one => one.tagName).join(' ')"
                shapes.append(tab.locator("main").evaluate(shape))
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert tab.evaluate("document.querySelectorAll('img, form[action], base').length") == 0
    assert shapes[0] == shapes[1]
