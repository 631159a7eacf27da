"""The pages of whoever runs Sluice, in a real browser: servers, policy and health."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from command_line import run
from console.browser import browser, page
from peers.fleet import peers
from playwright.sync_api import Browser, Page, expect
from policy_bed import Bed, bearer, bed, client_keys, key_of, recorder

Json = dict[str, Any]
ROWS = """\
# who may do what
p, role:everyone, bank, *, *, allow
p, role:everyone, *, tool:*wire*, *, deny
p, role:lead, sluice, admin:*, *, allow
p, role:dev, sluice, admin:servers, read, allow
"""
HOSTILE = "<img src=x onerror=alert(1)>\u202eevil</pre><form action=//evil><base href=//evil>" + "a\u0301" * 300
PAGES = ("servers/bank", "catalog", "policy", "health")
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("pages")
    keys = client_keys(ann=["role:dev"], lea=["role:lead"])
    servers = {"bank": recorder(folder, "bank", tools=["wire", "look"], resources=["memo:///a"],
                                templates=["memo:///{x}"]) | {"required": False}}  # fmt: skip
    with bed(folder, ROWS, servers, clients={"keys": keys}) as running:
        running.until(lambda: status(running) == "up")
        yield running


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def logged_in(town: Bed, chrome: Browser, who: str) -> Json:
    """What a browser keeps of a session."""
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


def answer(tab: Page, path: str, body: Json) -> None:
    tab.route(f"**{path}", lambda route: route.fulfill(json=body))


def status(town: Bed) -> str:
    rows = httpx.get(f"{town.process.admin}/api/v1/servers", headers=bearer("lea")).json()["servers"]
    return str(next(row["status"] for row in rows if row["key"] == "bank"))


def test_a_server_is_disabled_and_enabled_after_a_question(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/servers/bank")
        tab.get_by_role("button", name="Disable").click()
        expect(tab.get_by_role("dialog")).to_contain_text("No call is open now")
        tab.get_by_role("button", name="Cancel").click()
        assert status(town) == "up", "who cancels has done nothing"
        tab.get_by_role("button", name="Disable").click()
        tab.get_by_role("button", name="Disable bank").click()
        expect(tab.locator("article .verdict").first).to_contain_text("disabled")
        assert status(town) == "disabled"
        tab.get_by_role("button", name="Enable").click()
        tab.get_by_role("button", name="Enable bank").click()
        expect(tab.locator("article .verdict").first).to_contain_text("up")
        steps = tab.get_by_role("region", name="How it started").get_by_role("listitem")
        words = ("connecting", r"connected after \d+\.\d s", "up after")
        expect(steps).to_have_text([re.compile(word) for word in words])
    acts = [record.get("act") for record in town.audit() if record.get("object", "").endswith("/disable")]
    assert acts == ["console_action"]


def test_the_question_says_how_many_open_calls_end(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        row = {"key": "bank", "status": "up", "transport": "stdio", "in_flight": 3, "restarts": 0}
        answer(tab, "/api/v1/servers", {"servers": [row]})
        tab.goto(f"{town.process.admin}/console/servers/bank")
        tab.get_by_role("button", name="Restart").click()
        expect(tab.get_by_role("dialog")).to_contain_text("3 calls open now: they end as outcome_unknown")


def test_who_may_only_look_learns_which_row_is_missing(town: Bed, chrome: Browser, dev: Json) -> None:
    with page(chrome, storage_state=dev) as tab:
        tab.goto(f"{town.process.admin}/console/servers/bank")
        tab.get_by_role("button", name="Restart").click()
        tab.get_by_role("button", name="Restart bank").click()
        expect(tab.get_by_role("alert")).to_contain_text("p, key:ann, sluice, admin:servers, write, allow")
        tab.keyboard.press("Escape")
        tab.goto(f"{town.process.admin}/console/policy?as=ann&method=tools/call&target=bank/wire")
        expect(tab.locator(".no-right")).to_contain_text("admin:policy, read")


def test_the_policy_page_says_which_line_denies(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console")
        expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        tab.keyboard.press("g")
        tab.keyboard.press("p")
        tab.keyboard.press("/")
        tab.keyboard.type("ann")
        tab.get_by_label("Target").fill("bank/wire")
        tab.get_by_label("Arguments").fill('{"to": "acme"}')
        tab.get_by_role("button", name="Explain").click()
        card = tab.locator("article.answer")
        expect(card.locator(".verdict").first).to_contain_text("deny")
        expect(card.locator(".line.deciding")).to_contain_text("p, role:everyone, *, tool:*wire*, *, deny")
        expect(card.locator(".source .line")).to_have_count(5)
        expect(card.locator("tbody tr")).to_have_count(2)
        expect(card).to_contain_text("sluice explain tools/call bank/wire --as ann --args")
        assert "acme" not in tab.url, "arguments may be secret"


@pytest.mark.parametrize(
    ("method", "target", "arguments"),
    [("tools/call", "bank__wire", '{"to": "#1"}'), ("tools/call", "bank/look", ""), ("prompts/get", "bank/x", "")],
)
def test_an_answer_is_copied_as_a_test_that_the_policy_keeps(
    town: Bed, chrome: Browser, lead: Json, tmp_path: Path, method: str, target: str, arguments: str
) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/policy?as=ann&method={method}")
        tab.get_by_label("Target").fill(target)
        tab.get_by_label("Arguments").fill(arguments)
        tab.get_by_role("button", name="Explain").click()
        card = tab.locator("article.answer")
        expect(card).to_contain_text("All rows that speak of it")
        copied = card.get_by_label("A row of policy.tests").inner_text()
    settings = json.loads(town.process.config.read_text())
    settings["policy"]["tests"] = "tests.yaml"
    (tmp_path / "policy.csv").write_text(ROWS)
    (tmp_path / "sluice.yaml").write_text(json.dumps(settings))
    for text, code in ((copied, 0), (re.sub('"expect":"[a-z]+"', '"expect":"ask"', copied), 1)):
        (tmp_path / "tests.yaml").write_text(text)
        done = run(tmp_path, "policy", "test", "-c", "sluice.yaml")
        assert done.returncode == code, done.stdout + done.stderr


def test_a_question_that_found_nobody_is_asked_again(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        gone: list[int] = [1]
        tab.route("**/api/v1/policy/explain", lambda route: route.abort() if gone else route.continue_())
        tab.goto(f"{town.process.admin}/console/policy?as=ann&method=tools/call&target=bank/wire")
        expect(tab.get_by_role("alert")).to_contain_text("Sluice does not answer")
        gone.clear()
        tab.get_by_role("alert").get_by_role("button", name="Try again").click()
        expect(tab.locator("article.answer .verdict").first).to_contain_text("deny")


def test_the_catalog_follows_what_a_client_is_given(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/catalog?as=key:ann")
        expect(tab.locator(".status")).to_contain_text("live")
        expect(tab.locator(".leaf s").filter(has_text="wire")).to_have_count(1)
        expect(tab.locator(".leaf s").filter(has_text="look")).to_have_count(0)
        try:
            town.write(ROWS + "p, role:everyone, bank, tool:look, *, deny\n")
            expect(tab.locator(".leaf s").filter(has_text="look")).to_have_count(1)
        finally:
            town.write(ROWS)
        expect(tab.locator(".leaf s").filter(has_text="look")).to_have_count(0)


def test_a_change_counts_that_comes_when_the_page_asks_anyway(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/catalog?as=key:ann")
        expect(tab.locator(".status")).to_contain_text("live")
        expect(tab.locator(".leaf s").filter(has_text="wire")).to_have_count(1)
        tab.evaluate("setInterval(() => document.dispatchEvent(new Event('visibilitychange')), 50)")
        try:
            town.write(ROWS + "p, role:everyone, bank, tool:look, *, deny\n")
            expect(tab.locator(".leaf s").filter(has_text="look")).to_have_count(1)
        finally:
            town.write(ROWS)
        expect(tab.locator(".leaf s").filter(has_text="look")).to_have_count(0)


def test_a_question_that_is_none_is_answered_in_words(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/policy?as=ann&method=tools/call&target=nothing")
        expect(tab.get_by_role("alert")).to_contain_text("is not written SERVER/NAME")
        tab.get_by_label("Arguments").fill("{")
        tab.get_by_label("Target").fill("bank/look")
        tab.get_by_role("button", name="Explain").click()
        expect(tab.get_by_role("alert")).to_contain_text("not JSON")


def test_the_source_of_a_row_is_not_shown_once_the_file_has_another_one(town: Bed) -> None:
    question = {"as": "ann", "method": "tools/call", "target": "bank/wire"}
    ask = f"{town.process.admin}/api/v1/policy/explain"
    first = httpx.post(ask, headers=bearer("lea"), json=question).json()
    assert first["source"]["lines"][2].endswith("deny") and first["source"]["first"] == 1
    assert httpx.post(ask, headers=bearer("lea"), json={**question, "more": 1}).status_code == 400
    assert httpx.post(ask, headers=bearer("lea"), json={**question, "arguments": []}).status_code == 400
    town.write("p, nobody,", "policy.csv")
    try:
        town.until(lambda: "source" not in httpx.post(ask, headers=bearer("lea"), json=question).json())
    finally:
        town.write(ROWS)


def test_health_says_what_runs(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/health")
        expect(tab.locator("main .verdict").first).to_contain_text("ready")
        expect(tab.locator(".figure")).to_contain_text(".")


@pytest.mark.parametrize("where", PAGES)
def test_a_phone_needs_no_sideways_scroll(town: Bed, chrome: Browser, lead: Json, where: str) -> None:
    with page(chrome, storage_state=lead, viewport={"width": 360, "height": 640}) as tab:
        tab.goto(f"{town.process.admin}/console/{where}")
        expect(tab.locator("article.card, .panel, .row").filter(visible=True).first).to_be_visible()
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.get_by_text("More", exact=True).click()
        tab.locator(".more .menu").get_by_text("Policy").click()
        expect(tab.get_by_role("heading", name="Policy")).to_be_visible()


def test_hostile_text_of_a_server_and_of_an_answer_changes_no_structure(town: Bed, chrome: Browser, lead: Json) -> None:
    shapes: dict[str, list[str]] = {}
    for text in ("harmless", HOSTILE):
        with page(chrome, storage_state=lead) as tab:
            row = {"key": "bank", "status": "up", "transport": "stdio", "last_error": text, "stderr": [text]}
            answer(tab, "/api/v1/servers", {"servers": [row]})
            answer(tab, "/api/v1/policy/explain", {
                "verdict": "deny", "rule": "policy.csv:3", "reason": text, "principal": text, "notes": [text],
                "class": text, "class_from": text, "rows": [{"at": text, "says": "deny", "row": text}],
                "roles": [[text]], "revision": text, "source": {"first": 1, "lines": [text, text, text]},
            })  # fmt: skip
            tool = {"name": "bank__look", "description": text, "inputSchema": {"description": text}}
            resource = {"uri": f"bank+{text}", "name": text}
            answer(tab, "/api/v1/tools?*", {"as": text, "tools": [tool]})
            judged = {"server": text, "own": text, "class": text, "class_source": text, "verdict": "deny",
                      "rule": text, "pin": text}  # fmt: skip
            known = [{**judged, "name": tool["name"], "given": True}, {**judged, "name": text, "given": False}]
            answer(tab, "/api/v1/tools/judged?*", {"as": text, "tools": known})
            answer(tab, "/api/v1/prompts?*", {"as": text, "prompts": [{"name": f"bank__{text}"}]})
            answer(tab, "/api/v1/resources?*", {"as": text, "resources": [resource], "templates": []})
            pin = {"server": "bank", "era": "legacy", "kind": "tool", "name": "look", "state": "changed",
                   "flags": [text], "withheld": True, "waiting": text, "current": text, "by": text,
                   "at": text, "since": text,
                   "accepted_text": json.dumps({"a": text}), "waiting_text": json.dumps({"b": text})}  # fmt: skip
            answer(tab, "/api/v1/pins*", {"pins": [pin, {**pin, "name": text}]})
            answer(tab, "/readyz", {"status": "not ready", "reasons": [text], "notes": [text]})
            for where in ("servers/bank", "policy?as=a&method=tools/call&target=b", "health", "catalog",
                          "catalog?of=tool%20bank__look", "catalog?of=pin%20bank%20legacy%20tool%20look",
                          "catalog?of=lacking%20TEXT"):  # fmt: skip
                tab.goto(f"{town.process.admin}/console/{where.replace('TEXT', quote(text))}")
                expect(tab.get_by_text("harmless" if text == "harmless" else "U+202E").first).to_be_visible()
                expect(tab.locator("[aria-busy=true]")).to_have_count(0)
                shape = "e => [...e.querySelectorAll('*')].map(one => one.tagName).join(' ')"
                shapes.setdefault(where, []).append(tab.locator("main").evaluate(shape))
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert tab.evaluate("document.querySelectorAll('img, form[action], base').length") == 0
    assert all(benign == hostile for benign, hostile in shapes.values())


@pytest.mark.parametrize("name", ["tool bank__look", "resource bank+memo:///a", "template bank+memo:///{x}"])
def test_the_catalog_shows_what_a_client_gets_and_what_it_costs(
    town: Bed, chrome: Browser, lead: Json, name: str
) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/catalog?as=key:ann")
        tab.get_by_label("Search names").fill(name.split("__")[-1].split("+")[-1])
        tab.locator(".leaf").filter(has_text=name.split(" ")[1]).first.click()
        card = tab.locator("article.card")
        expect(card.locator("h2")).to_have_text(name.split(" ")[1])
        tab.reload()
        expect(card).to_contain_text("key:ann gets it")
        expect(card).to_contain_text(f"about {-(-bytes_of(town, name) // 4)} tokens")


def bytes_of(town: Bed, name: str) -> int:
    """Of the definition, as a client gets it."""
    kind, own = name.split(" ")
    path = {"tool": "tools", "resource": "resources", "template": "resources"}[kind]
    told = httpx.get(f"{town.process.admin}/api/v1/{path}?as=key:ann", headers=bearer("lea")).json()
    row = next(row for row in told[f"{kind}s"] if own in (row["name"], row.get("uri"), row.get("uriTemplate")))
    return len(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode())


def test_a_client_that_is_not_there_is_said_to_be_none(town: Bed, chrome: Browser, lead: Json) -> None:
    with page(chrome, storage_state=lead) as tab:
        tab.goto(f"{town.process.admin}/console/catalog")
        tab.get_by_label("View as").fill("key:nobody")
        tab.get_by_role("button", name="View").click()
        expect(tab.locator("main .problem")).to_contain_text("no such client: key:nobody")
        tab.get_by_role("button", name="Try again").click()
        expect(tab.locator("main .problem")).to_be_visible()


def test_a_changed_definition_is_accepted_after_a_look_at_what_changed(
    peers: None, chrome: Browser, tmp_path: Path
) -> None:
    tool = {"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}, "x": 1}
    servers = {"bank": recorder(tmp_path, "bank", tools=[tool])}
    with (
        bed(tmp_path, ROWS, servers, clients={"keys": client_keys(lea=["role:lead"])}) as town,
        httpx.Client(base_url=town.process.admin, headers=bearer("lea")) as ask,
    ):

        def rows() -> list[Json]:
            ask.get("/api/v1/tools")
            found: list[Json] = ask.get("/api/v1/pins").json()["pins"]
            return found

        town.until(lambda: rows() != [])
        changed = tool | {"description": "Looks, and sends it to <b>evil</b>.", "x": 12345678901234567890}
        (tmp_path / "bank" / "catalog.json").write_text(json.dumps({"tools": [changed]}))
        assert ask.post("/api/v1/servers/bank/restart", json={}).status_code == 200
        town.until(lambda: any(row["waiting"] for row in rows()))
        with page(chrome, storage_state=logged_in(town, chrome, "lea")) as tab:
            tab.goto(f"{town.process.admin}/console/catalog")
            tab.locator(".waiting .row").click()
            card = tab.locator("article.card")
            expect(card.locator(".line.added")).to_have_count(2)
            expect(card.locator(".line.added").last).to_contain_text("12345678901234567890")
            tab.get_by_role("button", name="Deny in config").click()
            expect(card.get_by_label("The row that denies it")).to_have_text("p, *, bank, tool:look, *, deny")
            tab.get_by_role("button", name="Keep withheld").click()
            expect(card).to_have_count(0)
            assert any(row["waiting"] for row in rows()), "nothing has changed"
            tab.locator(".waiting .row").click()
            tab.get_by_role("button", name="Accept").click()
            tab.get_by_role("button", name="Accept look").click()
            expect(card).to_contain_text("Accepted")
        assert not any(row["waiting"] for row in rows())
