"""A server, a client and an approver write hostile text wherever they may; no page of the console is changed by it.

Each page is opened twice: with what Sluice answers, and with the same answers in which no character can be markup. Both
have the same elements and attributes. Nothing runs, nobody else is asked, and no text leaves its box.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from console.browser import browser, page
from console.test_operator_pages import logged_in
from e2e.wire import META, MODERN
from peers.fleet import peers
from playwright.sync_api import Browser, Error, Page, Route, expect
from policy_bed import Bed, bearer, bed, client_keys, encoded

Json = dict[str, Any]
SERVER = str(Path(__file__).with_name("hostile_server.py"))
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p2, *, bank, tool:hostile*, *, one-of-leads
p2, *, bank, tool:breaks, *, confirm
p, role:dev, bank, tool:denied, *, deny
p, role:lead, sluice, admin:*, *, allow
"""
MARKUP = (
    "hostile \"'><img src=x onerror=\"window.ran=1\"><script>window.ran=1</script></pre></bdi></title></textarea>"
    "<form action=//evil.example><base href=//evil.example><meta http-equiv=refresh content='0;url=//evil.example'>"
    "<svg onload=window.ran=1><iframe src=//evil.example><a href='javascript:window.ran=1'>a</a><style>*{display:none}"
    "</style><!-- &lt;b&gt; &#60;b&#62; ${window.ran=1} {{7*7}} \\u003cb\\u003e 'constructor' __proto__ "
)
UNSEEN = (
    "hostile <b>\u202e\u2066evil\u200b\u00ad\u115f\u17b4\u2800\ufe0f"
    + "".join(chr(0xE0000 + ord(one)) for one in "tags")
    + "w" * 600 + "<b>" * 100 + "a" + "\u0301" * 1_000 + "\u0489" * 300
)
TEXTS = {"markup": MARKUP, "unseen": UNSEEN}
# What of a text could be markup, and what stands for it in the answers that a page is compared with.
PAIRS = {"<": "\u2039", ">": "\u203a", "&": "\uff06", "'": "\u2019"}
HARMLESS, FORTH = str.maketrans(PAIRS), str.maketrans({new: old for old, new in PAIRS.items()})
BACK = {quote(new): quote(old) for old, new in PAIRS.items()}
GONE = "import pathlib, sys; text = pathlib.Path(sys.argv[1]).read_text(); print(text); sys.exit(text)"
SHAPE = """() => [...document.querySelectorAll("#app *")].filter((one) => !one.closest("svg, .tiles, .foot"))
  .map((one) => `${one.tagName} ${[...one.attributes].map((of) => of.name).sort()} ${one.className}`)"""
FOREIGN = "#app :is(img, form[action], base, script, style, meta, iframe, a[href^=javascript]), [onerror], [onload]"
HIDDEN = "\u202e\u2066\u200b\u00ad\u115f\u17b4\u2800\ufe0f"
# Boxes that leave the page at its side, or text that leaves its box there and is not cut off.
OUTSIDE = """() => [...document.querySelectorAll("#app :is(bdi, pre, h1, h2, h3, p, dd, td, .row)")].filter((one) => {
  if (!one.checkVisibility() || one.closest(".scroll, .hidden")) return false;
  const box = one.getBoundingClientRect();
  let [left, right] = [box.left, box.right];
  for (let at = one.parentElement; at; at = at.parentElement) if (getComputedStyle(at).overflowX !== "visible") {
    const cut = at.getBoundingClientRect();
    [left, right] = [Math.max(left, cut.left), Math.min(right, cut.right)];
  }
  return left < -1 || right > innerWidth + 1;
}).map((one) => one.outerHTML.slice(0, 200))"""
# Texts that nothing cuts off above and below: marks that are stacked on a letter reach as far as there are marks.
STACKED = """() => [...document.querySelectorAll("#app bdi.peer")].filter((one) => {
  if (!one.checkVisibility()) return false;
  for (let at = one.parentElement; at.id !== "app"; at = at.parentElement) {
    const { display, overflowY } = getComputedStyle(at);
    if (display !== "inline" && overflowY !== "visible") return false;
  }
  return true;
}).map((one) => one.parentElement.outerHTML.slice(0, 200))"""
__all__ = ["peers"]


class Stage:
    """A Sluice to which everybody wrote `text`, and what a lead's browser keeps of a session."""

    def __init__(self, town: Bed, chrome: Browser, text: str) -> None:
        self.town, self.chrome, self.text = town, chrome, text
        self.session = logged_in(town, chrome, "lea")
        self.made = self._prepared()

    def _calls(self, name: str, capabilities: Json | None = None, **more: Any) -> Json:
        """By a client that names itself so, and says why it calls."""
        client = {"name": self.text, "version": self.text, "title": self.text}
        meta = META | {
            "dev.sluice/reason": self.text, "io.modelcontextprotocol/clientInfo": client,
            "io.modelcontextprotocol/clientCapabilities": capabilities or {},
        }  # fmt: skip
        arguments = {"to": self.text, self.text: {self.text: [self.text]}}
        params = {"name": name, "arguments": arguments, "_meta": meta} | more
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": encoded(name)}
        answer: Json = self.town.post("ann", body, headers).json()
        return answer

    def _waits(self, name: str, **more: Any) -> str:
        return str(self._calls(name, **more)["result"]["_meta"]["dev.sluice/approval"]["id"])

    def _prepared(self) -> dict[str, str]:
        """Names of what is opened, in the paths of pages."""
        odd = next(name for name in self.town.names("ann") if "hostile" in name)
        made = {"odd": odd, "named": self._waits(odd), "decided": self._waits("bank__wire", arguments={"n": self.text}),
                "granted": self._waits(odd, arguments={"g": self.text})}  # fmt: skip
        with httpx.Client(base_url=f"{self.town.process.admin}/api/v1/", headers=bearer("lea"), timeout=30) as ask:
            comment = {"comment": self.text[:400]}
            for what in ("decided", "granted"):
                digest = ask.get(f"approvals/{made[what]}").json()["digest"]
                yes = {"decision": "approve", "scope": "15m", "seen_digest": digest}
                body = comment | ({"decision": "deny"} if what == "decided" else yes)
                assert ask.post(f"approvals/{made[what]}/decisions", json=body).status_code == 200
            self._calls(odd, arguments={"g": self.text})
            for name in ("bank__denied", "bank__fails", f"bank__{self.text}"):
                self._calls(name)
            asked = self._calls("bank__asks", capabilities={"elicitation": {}})["result"]
            answers = {key: {"action": "accept", "content": {"one": self.text}} for key in asked["inputRequests"]}
            again = {"inputResponses": answers, "requestState": asked["requestState"]}
            self._calls("bank__asks", capabilities={"elicitation": {}}, **again)
            asked = self._calls("bank__breaks", capabilities={"elicitation": {"url": {}}})["result"]
            (question,) = asked["inputRequests"].values()
            made["page"] = question["params"]["url"]
            for tool in ("denied", "fails", "asks", "wire"):
                self.town.until(lambda tool=tool: ask.get(f"calls?tool={tool}").json()["calls"] != [])  # type: ignore[misc]
                made[f"call {tool}"] = ask.get(f"calls?tool={tool}").json()["calls"][0]["id"]
        return made

    def turns(self) -> None:
        """Its definitions change. What waits for an approval of the old ones is over."""
        self.town.folder.joinpath("text.turned").touch()
        with httpx.Client(base_url=f"{self.town.process.admin}/api/v1/", headers=bearer("lea"), timeout=30) as ask:
            assert ask.post("servers/bank/restart", json={}).status_code == 200
            self.town.until(lambda: ask.get("tools").is_success and ask.get("pins?waiting=1").json()["pins"] != [])


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module", params=TEXTS.values(), ids=TEXTS)
def stage(request: Any, peers: None, chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "text").write_text(request.param)
    bank = {"command": sys.executable, "args": [SERVER, str(folder / "text")], "era": "legacy"}
    gone = {"command": sys.executable, "args": ["-c", GONE, str(folder / "text")], "required": False}
    keys = client_keys(ann=["role:dev"], lea=["role:lead"])
    config: Json = {"clients": {"keys": keys}, "approvals": {"hold_for": "100ms"}, "audit": {"results": "redacted"}}
    with bed(folder, ROWS, {"bank": bank, "gone": gone}, **config) as town:
        yield Stage(town, chrome, request.param)


def harmless(route: Route) -> None:
    """The answer without anything that could be markup; what the page asks about is asked as it is named."""
    url, body = route.request.url, route.request.post_data
    for new, old in BACK.items():
        url = url.replace(new, old)
    headers = route.request.all_headers() | {"sec-fetch-site": "same-origin"}
    with suppress(Error):  # a page that is left takes no answer any more
        answer = route.fetch(url=url, headers=headers, post_data=None if body is None else body.translate(FORTH))
        route.fulfill(response=answer, body=answer.text().translate(HARMLESS))


@pytest.fixture(scope="module")
def tabs(stage: Stage) -> Iterator[dict[bool, Page]]:
    """For what Sluice answers, and (True) for what has no markup: what a browser does to make one takes longer than a
    page."""
    with ExitStack() as stack:
        small: Json = {"storage_state": stage.session, "viewport": {"width": 360, "height": 640}}
        made = {is_harmless: stack.enter_context(page(stage.chrome, **small)) for is_harmless in (False, True)}
        made[True].route(lambda url: "/api/v1/" in url and "/events" not in url, harmless)
        yield made


def show(tab: Page, stage: Stage, place: str) -> None:
    path, act = PLACES[place]
    tab.goto(f"{stage.town.process.admin}/console{path.format(**stage.made)}")
    expect(tab.locator(".status")).to_contain_text("live")
    expect(tab.locator("[aria-busy=true]")).to_have_count(0)
    expect(tab.locator("main :is(.row, article.card, .panel)").filter(visible=True).first).to_be_visible()
    act(tab)
    expect(tab.locator("main").get_by_text("hostile").filter(visible=True).first).to_be_visible()
    tab.locator("main details").evaluate_all("all => all.forEach((one) => { one.open = true; })")


def unchanged(tab: Page) -> None:
    pass


def opens_a_definition_that_changed(tab: Page) -> None:
    tab.locator(".waiting .row").filter(has_text="hostile").first.click()
    expect(tab.get_by_label("Difference to the accepted definition")).to_contain_text("and more")
    tab.get_by_role("button", name="Accept").click()
    expect(tab.get_by_role("dialog")).to_be_visible()


def asks_to_revoke(tab: Page) -> None:
    tab.get_by_role("button", name="Revoke").first.click()
    expect(tab.get_by_role("dialog")).to_be_visible()


def asks_to_approve(tab: Page) -> None:
    while (more := tab.locator("button.opens")).count():
        more.click()
    tab.get_by_role("button", name="Approve once").click()
    expect(tab.get_by_role("button", name="Confirm")).to_be_focused()


def previews(tab: Page) -> None:
    for box in tab.locator("article form input").all():
        box.fill("hostile <b>")
    tab.get_by_role("button", name="it", exact=False).last.click()
    expect(tab.get_by_role("link", name="This call in Activity")).to_be_visible()


def explains(tab: Page) -> None:
    expect(tab.locator("article.answer")).to_be_visible()


Act = Callable[[Page], None]
PLACES: dict[str, tuple[str, Act]] = {
    "overview": ("", unchanged), "approvals": ("/approvals", unchanged),
    "approval": ("/approvals/{named}", asks_to_approve), "decided": ("/approvals/{decided}?tab=decided", unchanged),
    "grants": ("/approvals?tab=grants", asks_to_revoke), "activity": ("/activity", unchanged),
    "denied": ("/activity/{call denied}", unchanged), "failed": ("/activity/{call fails}", unchanged),
    "asked": ("/activity/{call asks}", unchanged), "approved": ("/activity/{call wire}", unchanged),
    "server": ("/servers/bank", unchanged), "ended server": ("/servers/gone", unchanged),
    "tool": ("/catalog?as=key:ann&of=tool%20{odd}", unchanged),
    "prompt": ("/catalog?as=key:ann&of=prompt%20{odd}", previews),
    "resource": ("/catalog?as=key:ann&of=resource%20bank%2Bmemo:///a", previews),
    "template": ("/catalog?as=key:ann&of=template%20bank%2Bmemo:///%7Bx%7D", unchanged),
    "policy": ("/policy?as=key:ann&method=tools/call&target={odd}", explains),
    "audit": ("/audit?tool=*hostile*", unchanged),
    "changed definition": ("/catalog", opens_a_definition_that_changed),
}  # fmt: skip


def looked_at(tab: Page, stage: Stage, place: str) -> list[str]:
    """The elements of the page, which no text left, hid in or ran in."""
    show(tab, stage, place)
    shape: list[str] = tab.evaluate(SHAPE)
    assert tab.evaluate("window.ran") is None and tab.locator(FOREIGN).count() == 0
    assert tab.evaluate(OUTSIDE) == [] and tab.evaluate(STACKED) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    seen = tab.locator("#app").inner_text() + tab.title()
    assert not any(one in HIDDEN or 0xE0000 <= ord(one) <= 0xE007F for one in seen)
    return shape


@pytest.mark.parametrize("place", PLACES)
def test_no_text_changes_a_page_runs_or_leaves_its_box(stage: Stage, tabs: dict[bool, Page], place: str) -> None:
    if place == "changed definition":
        stage.turns()
    looks = (False, True) if stage.text == MARKUP else (False,)
    requests: list[str] = []
    with ExitStack() as stack:
        for tab in tabs.values():
            tab.on("request", listen := lambda request: requests.append(request.url))
            stack.callback(tab.remove_listener, "request", listen)
        for _ in range(5):  # a page changes by itself, as a server is tried again; markup's part is there at each look
            shapes = [looked_at(tabs[is_harmless], stage, place) for is_harmless in looks]
            if shapes[0] == shapes[-1]:
                break
    assert shapes[0] == shapes[-1]
    assert {url.split("/")[2] for url in requests} == {stage.town.process.admin.removeprefix("http://")}


def test_the_page_of_an_approval_without_a_login_is_not_changed_either(stage: Stage) -> None:
    with page(stage.chrome) as tab:
        tab.goto(stage.made["page"])
        expect(tab.locator("body")).to_contain_text("hostile")
        assert tab.evaluate("window.ran") is None and tab.evaluate("document.scripts.length") == 0
        assert tab.locator("img, base, iframe, svg, meta[http-equiv], a[href^=javascript], form").count() == 1
        seen = tab.locator("body").inner_text()
        assert not any(one in HIDDEN or 0xE0000 <= ord(one) <= 0xE007F for one in seen)
