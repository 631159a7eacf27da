"""Each person of a team logs in to servers on pages beside the public endpoint, and nobody for anybody else."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from console import browser as chromium
from e2e.sluice_process import COMMAND, ROOT, clean_environment, free_port
from e2e.wire import META
from peers.login.authorities import Authority, oidc_provider
from peers.login.browser import Browser
from peers.login.by_hand import ByHand
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import Bed, bearer, bed, client_keys, key_of, reason, recorder

Json = dict[str, Any]
ROWS = "p, role:everyone, mail, *, *, allow\np, key:ann, sluice, admin:logins, write, allow\n"


@pytest.fixture
def site() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


@contextmanager
def gateway(folder: Path, site: Misbehaving, prefix: str = "", rows: str = ROWS, **config: Any) -> Iterator[Bed]:
    """Its public URL is its own, below a prefix that no proxy takes away."""
    port = config.pop("port", None) or free_port()
    listen = {"mcp": f"127.0.0.1:{port}", "public_url": f"http://127.0.0.1:{port}{prefix}/mcp"}
    server = {"url": site.mcp, "required": False} | config.pop("server", {})
    keys = client_keys(ann=[], bob=[])
    clients = {"keys": keys} | config.pop("clients", {})
    with bed(folder, rows, {"mail": server}, clients=clients, listen=listen, **config) as there:
        yield there


def known_tools(there: Bed, who: str = "ann") -> None:
    """Of a login that is over: who was shown a tool calls it again."""
    with browsing(there, who) as browser:
        done = browser.login(way_on(typed(browser, f"{base(there)}login/mail", who)))
        assert "You are logged in" in done.text, done.text
    there.until(lambda: "mail__echo" in str(ask(there, who, "tools/list")))
    assert run(ROOT, "logout", "mail", "--all", "-c", str(there.process.config)).returncode == 0
    there.until(lambda: reason(there.call(who, "mail__echo")) == "login_required")
    there.until(lambda: "mail__echo" in str(ask(there, who, "tools/list")))


def ask(there: Bed, who: str = "ann", method: str = "tools/call", **more: Any) -> Json:
    """What a client asks that can open pages."""
    meta = META | {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}}}
    call = {"name": "mail__echo", "arguments": {"text": "hello"}, **more} if method == "tools/call" else {}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**call, "_meta": meta}}
    return dict(there.post(who, body, headers | ({"Mcp-Name": "mail__echo"} if call else {})).json()["result"])


def link(there: Bed) -> str:
    """What such a client is to open for ann."""
    known_tools(there)
    ((_, question),) = ask(there)["inputRequests"].items()
    assert question["params"]["mode"] == "url"
    return str(question["params"]["url"])


def base(there: Bed) -> str:
    listen = json.loads(there.process.config.read_text())["listen"]
    return str(listen["public_url"]).removesuffix("mcp")


def typed(browser: Browser, url: str, who: str) -> httpx.Response:
    """The page after the key."""
    page = browser.open(url)
    assert page.status_code == 200, page.text
    return browser.press(page, key=key_of(who))


def way_on(page: httpx.Response) -> str:
    found = re.search(r'<a href="([^"]+)"', page.text)
    assert page.status_code == 200 and found, page.text
    return unescape(found[1])


# Browsers send it with every form; this one's pages say from where they came.
def as_page(browser: Browser, there: Bed) -> Browser:
    browser.headers["Origin"] = "/".join(base(there).split("/")[:3])
    return browser


@contextmanager
def browsing(there: Bed, user: str = "ann") -> Iterator[Browser]:
    with Browser(user) as browser:
        yield as_page(browser, there)


@pytest.mark.parametrize("prefix", ["", "/tools", "/login", "/a%20b"])
def test_a_person_types_the_key_and_the_call_goes_through(tmp_path: Path, site: Misbehaving, prefix: str) -> None:
    with gateway(tmp_path, site, prefix) as there, browsing(there) as browser:
        url = f"{base(there)}login/mail"
        refused = there.call("ann", "mail__whoami")
        assert reason(refused) == "login_required" and f"Open {url} or run" in refused.text
        assert not site.of("authorize")
        asked = typed(browser, url, "ann")
        assert site.issuer in asked.text and "__Host-sluice-login" in browser.cookies
        done = browser.login(way_on(asked))
        assert "You are logged in to mail" in done.text and "code=" not in str(done.url)
        assert str(done.url).startswith(f"{base(there)}login/done/mail")
        there.until(lambda: "mail__whoami" in there.names("ann"))
        said = there.call("ann", "mail__whoami").json()["result"]["content"][0]["text"]
        assert json.loads(said)["subject"] == "ann" and there.names("bob") == []
        (registered,) = site.of("register")
        assert json.loads(registered.body)["redirect_uris"] == [f"{base(there)}login/callback/mail"]
        for page in (asked, done):
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "<script" not in page.text
            assert page.headers["cache-control"] == "no-store" and page.headers["referrer-policy"] == "no-referrer"
        assert key_of("ann") not in there.process.log()


def test_a_key_is_typed_in_a_real_browser(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, chromium.browser() as opened, chromium.page(opened) as tab:
        tab.goto(f"{base(there)}login/mail")
        tab.fill("input[name=key]", key_of("ann"))
        tab.click("button")
        tab.get_by_role("heading", name="Log in to mail").wait_for()


def test_a_client_that_opens_pages_gets_the_link_and_calls_again(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, browsing(there) as browser:
        known_tools(there)
        asked = ask(there)
        ((key, question),) = asked["inputRequests"].items()
        browser.login(way_on(typed(browser, question["params"]["url"], "ann")))
        again = {"requestState": asked["requestState"], "inputResponses": {key: {"action": "accept"}}}
        assert ask(there, **again)["content"][0]["text"] == '{"text": "hello"}'
        assert len(site.calls("echo")) == 1


def test_a_link_is_no_credential_and_another_ones_link_leads_nowhere(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, browsing(there) as browser:
        url = link(there)
        begun = len(site.of("authorize"))
        assert typed(browser, url, "bob").status_code == 403
        assert len(site.of("authorize")) == begun
        there.until(lambda: "its link was opened by key:bob" in [one.get("why") for one in there.audit()])
        assert typed(browser, url, "nobody").status_code == 403
        for broken in (f"{url}x", url.replace("/mail?", "/post?"), f"{url[:-4]}AAAA"):
            assert browser.open(broken).status_code == 400


def test_an_answer_counts_in_the_browser_that_asked_alone(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, browsing(there) as browser:
        way = way_on(typed(browser, link(there), "ann"))
        callback = browser.stop_at(way, f"{base(there)}login/callback/")
        with browsing(there, "bob") as other:
            stolen = other.open(callback)
            assert stolen.status_code == 400 and "another browser" in stolen.text
        elsewhere = callback.replace("/callback/mail", "/callback/post")
        spent = len(site.of("token"))
        assert browser.open(elsewhere).status_code == 400 and len(site.of("token")) == spent
        assert "You are logged in" in browser.login(callback).text  # who was wrong has ended nothing
        assert browser.open(callback).status_code == 400 and len(site.of("token")) == spent + 1


def test_without_a_link_whoever_types_a_key_logs_in_for_that_key(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, browsing(there, "bert") as browser:
        unknown, known = browser.open(f"{base(there)}login/nope"), browser.open(f"{base(there)}login/mail")
        assert unknown.text == known.text.replace("/mail", "/nope")
        assert browser.press(unknown, key=key_of("bob")).status_code == 404
        browser.login(way_on(browser.press(known, key=key_of("bob"))))
        there.until(lambda: "mail__whoami" in there.names("bob"))
        assert there.names("ann") == []


def test_a_server_without_a_right_on_it_is_as_one_that_is_not_there(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site, rows="p, key:ann, mail, *, *, allow\n") as there, browsing(there) as browser:
        hidden = typed(browser, f"{base(there)}login/mail", "bob")
        unknown = typed(browser, f"{base(there)}login/post", "bob")
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.text == unknown.text.replace("post", "mail")
        api = f"{base(there)}login/api"
        answers = [httpx.post(f"{api}/{server}", json={}, headers=bearer("bob")) for server in ("mail", "post")]
        assert [one.status_code for one in answers] == [404, 404]
        assert answers[0].text == answers[1].text.replace("post", "mail") and not site.of("authorize")


def test_keys_are_typed_five_times_a_minute_and_from_our_own_page_alone(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, browsing(there) as browser:
        page = browser.open(f"{base(there)}login/mail")
        browser.headers["Origin"] = "https://evil.example"
        assert browser.press(page, key=key_of("ann")).status_code == 403
        as_page(browser, there)
        assert [browser.press(page, key="wrong").status_code for _ in range(6)] == [403] * 5 + [429]
        assert browser.press(page, key=key_of("ann")).status_code == 429 and not site.of("authorize")
        large = httpx.post(f"{base(there)}login/mail", content=b"key=" + b"x" * 70_000, headers=browser.headers)
        assert large.status_code == 413


def test_without_a_body_no_length_is_wanted_and_other_methods_learn_what_is_served(
    tmp_path: Path, site: Misbehaving
) -> None:
    with gateway(tmp_path, site) as there:
        page = f"{base(there)}login/mail"
        whole, head = httpx.get(page), httpx.head(page)
        assert (head.status_code, head.headers["content-length"]) == (200, whole.headers["content-length"])
        for method, path, served in (
            ("OPTIONS", page, "GET, HEAD, POST"), ("DELETE", page, "GET, HEAD, POST"),
            ("DELETE", f"{base(there)}login/client/mail.json", "GET, HEAD"),
            ("HEAD", f"{base(there)}login/api/mail", "POST"),
        ):  # fmt: skip
            answer = httpx.request(method, path)
            assert (answer.status_code, sorted(answer.headers["allow"].split(", "))) == (405, served.split(", "))
        for method in ("GET", "POST"):
            assert httpx.request(method, page, content=iter([b"key=x"])).status_code == 411, "in chunks"


def test_no_page_sends_a_browser_where_a_link_says(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, browsing(there) as browser:
        paths = "mail", "callback/mail", "done/mail", "idp/callback", "client/mail.json", "/evil.example", "..%2f..%2fx"
        for path in paths:
            for query in ("next=https://evil.example", "redirect=//evil.example", "redirect_uri=https://evil.example"):
                answer = browser.open(f"{base(there)}login/{path}?{query}")
                assert answer.status_code in (200, 400, 404), answer.url
                assert "evil.example" not in answer.text and "location" not in answer.headers


def test_the_key_page_can_be_off(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site, login={"key_page": False}) as there:
        with browsing(there) as browser:
            assert browser.open(f"{base(there)}login/mail").status_code == 404


def test_an_account_for_all_is_lent_by_whom_the_policy_names(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site, server={"login": {"per": "gateway"}}) as there, browsing(there) as browser:
        url = link(there)
        assert "inputRequests" not in ask(there, "bob")
        assert typed(browser, f"{base(there)}login/mail", "bob").status_code == 403
        browser.login(way_on(typed(browser, url, "ann")))
        there.until(lambda: reason(there.call("bob", "mail__whoami")) == "")


def _revoke(there: Bed) -> None:
    assert run(ROOT, "keys", "revoke", "ann", "-c", str(there.process.config)).returncode == 0


def _take_the_right(there: Bed) -> None:
    there.write(ROWS.replace("p, key:ann, sluice, admin:logins, write, allow\n", ""), "policy.csv")
    there.until(lambda: any("config reloaded" in note for note in there.process.log().splitlines()))


@pytest.mark.parametrize(
    ("per", "take_away"), [("gateway", _revoke), ("gateway", _take_the_right), ("client", _revoke)]
)
def test_a_login_ends_with_the_right_of_whoever_began_it(
    tmp_path: Path, site: Misbehaving, per: str, take_away: Callable[[Bed], None]
) -> None:
    with gateway(tmp_path, site, server={"login": {"per": per}}) as there, browsing(there) as browser:
        way = way_on(typed(browser, f"{base(there)}login/mail", "ann"))
        callback = browser.stop_at(way, f"{base(there)}login/callback/")
        take_away(there)
        if take_away is _revoke:
            there.until(lambda: there.call("ann", "mail__echo").status_code == 401)
        spent = len(site.of("token"))
        refused = browser.open(callback)
        assert refused.status_code == 400 and "may not log in there any more" in refused.text
        assert len(site.of("token")) == spent and browser.open(callback).status_code == 400
        if per == "gateway":
            assert reason(there.call("bob", "mail__echo")) == "login_required"
        there.until(lambda: "login_failed" in str(there.audit()))
        failed = [one for one in there.audit() if one["type"] == "identity" and one["what"] == "login_failed"]
        assert [one["by"] for one in failed] == ["key:ann"]


def test_a_browser_of_another_machine_logs_in_over_the_api(tmp_path: Path, site: Misbehaving) -> None:
    callback = "http://127.0.0.1:7499/callback"
    with gateway(tmp_path, site) as there, Browser() as browser:
        api = f"{base(there)}login/api/mail"
        assert httpx.post(api, json={}).status_code == 401
        assert httpx.post(api, json={"redirect_uri": "https://evil.example/"}, headers=bearer("ann")).status_code == 400
        begun = httpx.post(api, json={"redirect_uri": callback}, headers=bearer("ann"), timeout=30)
        assert begun.status_code == 200, begun.text
        query = browser.stop_at(begun.json()["url"], callback).partition("?")[2]
        body = {"query": query, "redirect_uri": callback}
        stolen = httpx.post(f"{api}/code", json=body, headers=bearer("bob"), timeout=30)
        assert stolen.status_code == 409 and not site.of("token")
        done = httpx.post(f"{api}/code", json=body, headers=bearer("ann"), timeout=30)
        assert done.status_code == 200 and done.json()["state"] == "ok", done.text
        there.until(lambda: "mail__whoami" in there.names("ann"))


def test_a_command_on_another_machine_logs_in_with_a_key(tmp_path: Path, site: Misbehaving) -> None:
    with gateway(tmp_path, site) as there, browsing(there) as browser:
        words = ["login", "mail", "--url", f"{base(there)}mcp", "--no-open", "--json"]

        def command(who: str) -> "subprocess.Popen[str]":
            environment = clean_environment() | {"SLUICE_KEY": key_of(who), "HOME": str(tmp_path)}
            return subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=environment, cwd=tmp_path)  # fmt: skip

        with command("ann") as process:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            assert line, process.stderr.read()
            assert "Logged in" in browser.login(json.loads(line)["url"]).text
            assert json.loads(process.stdout.readline())["server"] == "mail" and process.wait(10) == 0
        there.until(lambda: "mail__whoami" in there.names("ann"))
        with command("nobody") as process:
            _, said = process.communicate(timeout=30)
            assert process.returncode == 5 and "refuses this key" in said and key_of("nobody") not in said
        words[1] = "post"
        with command("ann") as process:
            _, said = process.communicate(timeout=30)
            assert process.returncode == 1 and "there is no server post" in said


def test_a_login_over_the_api_ends_in_no_browser_and_is_no_flood(tmp_path: Path, site: Misbehaving) -> None:
    """Ann begins, and has Bob open the link: his account must not become hers."""
    with gateway(tmp_path, site) as there:
        api, head = f"{base(there)}login/api/mail", bearer("ann")
        ours = {"redirect_uri": f"{base(there)}login/callback/mail"}
        assert httpx.post(api, json=ours, headers=head, timeout=30).status_code == 400
        deep = httpx.post(api, content=b"[" * 60_000, headers=head, timeout=30)
        long = httpx.post(api, json={"redirect_uri": f"http://127.0.0.1:1/{'x' * 9000}"}, headers=head, timeout=30)
        odd = httpx.post(api, json={"redirect_uri": "http://127.0.0.1:\u0661/"}, headers=head, timeout=30)
        assert [deep.status_code, long.status_code, odd.status_code] == [400, 400, 400]
        query = {"query": "state=\ud800", "redirect_uri": "x"}
        body = json.dumps(query).encode()
        assert httpx.post(f"{api}/code", content=body, headers=head, timeout=30).status_code == 400
        asked = {"redirect_uri": "http://127.0.0.1:7499/callback"}
        codes = [httpx.post(api, json=asked, headers=head, timeout=30).status_code for _ in range(11)]
        assert codes == [200] * 10 + [429]


def test_what_is_no_answer_and_no_form_is_refused_in_words(tmp_path: Path) -> None:
    """Also where nobody can log in to any server."""
    port = free_port()
    listen = {"mcp": f"127.0.0.1:{port}", "public_url": f"http://127.0.0.1:{port}/mcp"}
    servers, clients = {"fs": recorder(tmp_path, "fs", tools=["read"])}, {"keys": client_keys(ann=[])}
    with bed(tmp_path, "p, *, fs, *, *, allow\n", servers, listen=listen, clients=clients) as there:
        with browsing(there) as browser:
            assert browser.open(f"{base(there)}login/callback/mail?state=x&code=y").status_code == 400
            many = {str(number): "x" for number in range(20)}
            assert browser.post(f"{base(there)}login/mail", many).status_code == 400


# ---------------------------------------------------------------- at an identity provider


@contextmanager
def with_provider(folder: Path, site: Misbehaving) -> Iterator[tuple[Bed, Authority]]:
    """People whose clients show tokens of an identity provider sign in there."""
    port = free_port()
    public_url = f"http://127.0.0.1:{port}/mcp"
    client: Json = {
        "client_id": "sluice", "client_secret": "s3cret", "application_type": "native",
        "redirect_uris": [f"http://127.0.0.1:{port}/login/idp/callback"], "grant_types": ["authorization_code"],
    }  # fmt: skip
    with oidc_provider(folder, clients=[client]) as provider:
        idp = {"issuer": provider.issuer, "client_id": "sluice", "client_secret": "s3cret"}
        clients = {"jwt": {"issuers": [{"issuer": provider.issuer, "audience": public_url}]}}
        with gateway(folder, site, port=port, login={"idp": idp}, clients=clients) as there:
            yield there, provider


def test_who_signs_in_logs_in_for_the_subject_of_the_clients_tokens(
    peers: None, tmp_path: Path, site: Misbehaving
) -> None:
    with with_provider(tmp_path, site) as (there, provider), browsing(there) as browser:
        tokens = ByHand(provider.metadata(), f"{base(there)}mcp").login("ann")
        headers = {"Authorization": f"Bearer {tokens['access_token']}", "MCP-Protocol-Version": "2026-07-28"}

        def listed() -> str:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
            more = {"Mcp-Method": "tools/list", "Accept": "application/json, text/event-stream"}
            return httpx.post(f"{base(there)}mcp", json=body, headers=headers | more, timeout=20).text

        assert '"tools":[]' in listed()
        asked = browser.login(way_on(browser.open(f"{base(there)}login/mail")))
        assert "Log in to mail" in asked.text and site.issuer in asked.text
        assert "You are logged in to mail" in browser.login(way_on(asked)).text
        there.until(lambda: "mail__whoami" in listed())
        assert there.names("ann") == [], "the key of that name is somebody else"


def test_a_sign_in_counts_once_and_in_its_own_browser_alone(peers: None, tmp_path: Path, site: Misbehaving) -> None:
    with with_provider(tmp_path, site) as (there, _), browsing(there) as browser:
        back = f"{base(there)}login/idp/callback"
        answer = browser.stop_at(way_on(browser.open(f"{base(there)}login/mail")), back)
        with browsing(there, "bob") as other:
            assert other.open(answer).status_code == 400
        assert browser.open(answer.replace("iss=", "iss=x")).status_code == 400
        assert browser.open(answer).status_code == 200
        assert browser.open(answer).status_code == 400
        assert browser.open(f"{back}?error=access_denied&state=x").status_code == 400
        assert not site.of("authorize")
