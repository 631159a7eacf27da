"""What hostile markup could do in a page if it came to be there, and where a hostile address leads: nothing, nowhere.

Text becomes no markup (other tests): so elements are put here by the debugger, as a defect of ours might.
"""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from console.browser import browser, page
from console.test_pages import ROWS, link
from peers.fleet import peers
from playwright.sync_api import Browser, Page, expect
from policy_bed import Bed, bed, client_keys, recorder

__all__ = ["peers"]
# How a page makes markup of a text. `trusted-types 'none'` lets no sink take one.
SINKS = ["document.body.innerHTML = TEXT", "document.body.outerHTML = TEXT", "document.write(TEXT)",
         "document.body.insertAdjacentHTML('beforeend', TEXT)", "new DOMParser().parseFromString(TEXT, 'text/html')",
         "document.createRange().createContextualFragment(TEXT)", "document.createElement('iframe').srcdoc = TEXT",
         "document.createElement('script').text = 'window.ran = 1'", "setTimeout('window.ran = 1')",
         "trustedTypes.createPolicy('own', {createHTML: (text) => text})"]  # fmt: skip
# What is made without a text. Each is put into the page, used as its kind is used, and must lead and run nowhere.
ELEMENTS = {
    "form": "const one = make('form', {action: EVIL + '/form'}); one.submit();",
    "button": "const one = make('form', {action: EVIL + '/button'}); const button = document.createElement('button');"
              "one.append(button); button.click();",
    "formaction": "const one = make('form', {}); const button = document.createElement('button');"
                  "button.setAttribute('formaction', EVIL + '/formaction'); one.append(button); button.click();",
    "base": "make('base', {href: EVIL + '/base/'}, document.head); fetch('relative').catch(() => {});",
    "policy": "make('meta', {'http-equiv': 'Content-Security-Policy', content: 'default-src *'}, document.head);"
              "make('img', {src: EVIL + '/policy'});",
    "image": "make('img', {src: EVIL + '/image', onerror: 'window.ran = 1', onload: 'window.ran = 1'});",
    "script": "make('script', {src: EVIL + '/script'});",
    "style": "make('link', {rel: 'stylesheet', href: EVIL + '/style'});"
             "make('style', {}).textContent = 'body { background: url(' + EVIL + '/css) }';",
    "frame": "make('iframe', {src: EVIL + '/frame'}); make('object', {data: EVIL + '/object'});"
             "make('embed', {src: EVIL + '/embed'});",
    "handler": "make('button', {onclick: 'window.ran = 1'}).click();",
    "address": "make('a', {href: 'javascript:window.ran = 1'}).click();",
    "media": "make('video', {src: EVIL + '/video', autoplay: ''}); make('audio', {src: EVIL + '/audio'}).load();",
    "prefetch": "make('link', {rel: 'prefetch', href: EVIL + '/prefetch'});"
                "make('link', {rel: 'preload', as: 'image', href: EVIL + '/preload'});",
    "own": "for (const name of ['sluice-approve', 'x-row']) make(name, {'data-decide': '', 'data-key': 'a',"
           " onclick: 'window.ran = 1', href: '/console/health'}).click();",
}  # fmt: skip
MAKE = """const make = (name, attributes, where = document.querySelector("main")) => {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    try { one.setAttribute(key, value); } catch (error) { if (!(error instanceof TypeError)) throw error; }
  }
  where.append(one);
  return one;
};"""
PATHS = ["//evil.example/", "/console//evil.example/", "/console/%2F%2Fevil.example", "/console/%5C%5Cevil.example",
         "/console/\\evil.example", "/console?next=//evil.example", "/console/approvals?tab=//evil.example",
         "/console/approvals/%2F%2Fevil.example", "/console/servers/%5Cevil.example", "/console/approvals/%zz",
         "/console/activity/%E0%A4%A", "/console/constructor", "/console/catalog?of=%zz&as=%zz",
         "/console/approvals?tab=constructor"]  # fmt: skip


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("injected")
    servers = {"bank": recorder(folder, "bank", tools=["wire", "look"])}
    with bed(folder, ROWS, servers, clients={"keys": client_keys(lea=["role:lead"])}) as running:
        yield running


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def evil() -> Iterator[tuple[str, list[str]]]:
    """Another site, and what it was asked."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def tab(town: Bed, chrome: Browser) -> Iterator[Page]:
    """What our policy refuses is complained of in the page's console, so nothing here checks that."""
    context = chrome.new_context()
    tab = context.new_page()
    tab.goto(link(town))
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    expect(tab.locator(".status")).to_contain_text("live")  # its address and title change no more
    yield tab
    context.close()


def test_no_sink_takes_a_text(tab: Page) -> None:
    for sink in SINKS:
        outcome = tab.evaluate(f"() => {{ const TEXT = '<img src=x>'; try {{ {sink}; return 'done'; }}"
                               " catch (error) { return error.name; } }")  # fmt: skip
        assert outcome == "TypeError", sink
    assert tab.evaluate("window.ran === undefined && document.querySelectorAll('img').length === 0")


@pytest.mark.parametrize("kind", ELEMENTS)
def test_an_element_that_is_there_all_the_same_does_nothing(
    tab: Page, evil: tuple[str, list[str]], kind: str
) -> None:
    (there, asked), state = evil, "[location.href, document.baseURI, window.ran ?? null, document.title]"
    before = tab.evaluate(state)
    tab.evaluate(f"async (EVIL) => {{ {MAKE} {ELEMENTS[kind]}"
                 " await new Promise((done) => setTimeout(done, 500)); }", there)  # fmt: skip
    assert asked == [] and tab.evaluate(state) == before and before[2] is None


def test_the_other_site_would_have_been_seen(evil: tuple[str, list[str]], chrome: Browser) -> None:
    there, asked = evil
    context = chrome.new_context()
    tab = context.new_page()
    tab.evaluate("(EVIL) => { const one = document.createElement('img'); one.src = EVIL + '/seen';"
                 " document.body.append(one); return new Promise((done) => { one.onerror = done; }).then(() => 1); }",
                 there)  # fmt: skip
    context.close()
    assert asked.pop() == "/seen"


@pytest.mark.parametrize("path", PATHS)
def test_an_address_leads_to_no_other_site_and_breaks_no_page(town: Bed, chrome: Browser, path: str) -> None:
    """Before and after the login, and by a link in the page."""
    asked: list[str] = []
    with page(chrome) as tab:
        tab.on("request", lambda one: asked.append(one.url))
        code = link(town).partition("#")[2]
        there = tab.goto(f"{town.process.admin}{path}#{code}")
        if there is not None and there.status == 200:
            expect(tab.get_by_role("navigation", name="Pages")).to_be_visible()
            assert tab.url.startswith(f"{town.process.admin}/console") and "code=" not in tab.url
        tab.goto(f"{town.process.admin}/console")
        if there is not None and there.status == 200:
            tab.evaluate("path => { const one = document.createElement('a'); one.setAttribute('href', path);"
                         " document.body.append(one); one.click(); }", path)  # fmt: skip
            tab.wait_for_load_state()
            expect(tab.get_by_role("navigation", name="Pages")).to_be_visible()
    assert {url.split("/")[2] for url in asked} == {town.process.admin.removeprefix("http://")}
