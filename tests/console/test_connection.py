"""What the pages say while the connection, the clock or other people are not as they were."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from console.browser import browser, page
from console.test_operator_pages import logged_in
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
