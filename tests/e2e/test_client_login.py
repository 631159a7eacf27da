"""Clients log in by themselves at Sluice where the identity provider knows none of them: the way, and attacks on it."""

import json
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from console import browser as chromium
from e2e.client_login import CALLBACK, ClientLogin, Gateway, Json, events, gateway, query, well_known
from e2e.sluice_process import clean_environment, free_port
from peers.fleet import node_environment, stop
from peers.install import INSPECTOR, MCP1, MCP2, MCP_REMOTE, NODE
from peers.login.browser import Browser
from policy_bed import bearer, bed, reason, recorder
from waiting import until_so

from sluicegate.app.issuer_pages import FAILURES_A_MINUTE

TESTS = Path(__file__).parents[1]
SDK_LOGIN = TESTS / "peers" / "login" / "sdk_login.py"


@pytest.fixture(scope="module")
def there(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
def ann(there: Gateway) -> Iterator[ClientLogin]:
    """The client of a person, in her browser."""
    with Browser("ann") as browser:
        client = ClientLogin(there, browser)
        client.register().raise_for_status()
        yield client


@pytest.fixture
def mallory(there: Gateway) -> Iterator[ClientLogin]:
    """Another client, in another browser; its person may use nothing."""
    with Browser("mallory") as browser:
        client = ClientLogin(there, browser, name="Editor", redirect_uri="http://127.0.0.1:666/steal")
        client.register().raise_for_status()
        yield client


# ---------------------------------------------------------------- the way


@pytest.mark.parametrize("prefix", ["", "/tools", "/oauth", "/a%20b"])
def test_a_client_finds_the_way_by_itself(peers: None, tmp_path: Path, prefix: str) -> None:
    with gateway(tmp_path, prefix) as there, Browser("ann") as browser:
        refused = there.list("nothing")
        assert refused.status_code == 401
        named = refused.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
        resource = httpx.get(named, timeout=20).json()
        assert resource["resource"] == there.resource and resource["authorization_servers"] == [there.issuer]
        told = httpx.get(well_known(there.issuer), timeout=20).json()
        assert told["issuer"] == there.issuer and told["code_challenge_methods_supported"] == ["S256"]
        client = ClientLogin(there, browser)
        asked = client.register()
        assert asked.status_code == 201 and asked.json()["token_endpoint_auth_method"] == "none"
        page = client.consent()
        assert "Editor" in page.text and "http://127.0.0.1:33418" in page.text and "#ann" in page.text
        answer = query(client.answer(page))
        assert answer["state"] == client.state and answer["iss"] == there.issuer
        tokens = client.exchange(answer["code"]).json()
        assert tokens["token_type"] == "Bearer" and 0 < tokens["expires_in"] <= 600
        assert "fs__read" in there.list(tokens["access_token"]).text
        assert set(tokens) == {"access_token", "token_type", "expires_in", "refresh_token"}
        there.bed.until(lambda: "client_logged_in" in "".join(events(there.bed)))  # which is written behind the answer
        record = [one for one in events(there.bed) if "client_logged_in" in one]
        assert record and "#ann" in record[0]
        for secret in (tokens["access_token"], tokens["refresh_token"], answer["code"]):
            assert secret not in "".join(events(there.bed)) and secret not in there.bed.process.log()


def test_a_person_allows_a_client_in_a_real_browser(there: Gateway, ann: ClientLogin) -> None:
    with chromium.browser() as opened, chromium.page(opened) as tab:
        tab.route(f"{CALLBACK}?*", lambda route: route.fulfill(body="the client has it"))
        tab.goto(ann.request())
        tab.click("button[value=allow]")
        tab.get_by_text("the client has it").wait_for()
        assert f"{CALLBACK}?code=" in tab.url


def test_rights_are_those_of_the_person(there: Gateway, ann: ClientLogin, mallory: ClientLogin) -> None:
    assert "fs__read" in there.list(ann.log_in()["access_token"]).text
    assert '"tools":[]' in there.list(mallory.log_in()["access_token"]).text


def test_a_refresh_token_turns_and_an_old_one_ends_the_grant(there: Gateway, ann: ClientLogin) -> None:
    first = ann.log_in()
    second = ann.refresh(first["refresh_token"]).json()
    assert second["refresh_token"] != first["refresh_token"]
    assert ann.refresh(first["refresh_token"]).status_code == 200, "two windows may ask at once"
    third = ann.refresh(second["refresh_token"]).json()
    assert "fs__read" in there.list(third["access_token"]).text
    assert ann.refresh(first["refresh_token"]).json()["error"] == "invalid_grant"
    assert ann.refresh(third["refresh_token"]).json()["error"] == "invalid_grant"
    there.bed.until(lambda: there.list(third["access_token"]).status_code == 401)


def test_while_nothing_can_be_kept_a_client_is_told_to_ask_again(there: Gateway, ann: ClientLogin) -> None:
    """Another program holds the database. What was not turned is still good afterwards."""
    tokens = ann.log_in()
    with closing(sqlite3.connect(there.bed.folder / "state" / "sluice.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        answer = ann.refresh(tokens["refresh_token"])
        assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
        holder.execute("ROLLBACK")
    there.bed.until(lambda: ann.refresh(tokens["refresh_token"]).status_code == 200)


def test_who_logs_out_is_out_within_seconds(there: Gateway, ann: ClientLogin) -> None:
    tokens = ann.log_in()
    assert there.list(tokens["access_token"]).status_code == 200
    form = {"token": tokens["refresh_token"], "client_id": ann.id}
    assert httpx.post(f"{there.issuer}/oauth/revoke", data=form, timeout=20).status_code == 200
    there.bed.until(lambda: there.list(tokens["access_token"]).status_code == 401)
    assert ann.refresh(tokens["refresh_token"]).json()["error"] == "invalid_grant"
    assert httpx.post(f"{there.issuer}/oauth/revoke", data=form | {"token": "x"}, timeout=20).status_code == 200


def test_what_is_no_access_token_of_ours_opens_nothing(there: Gateway, ann: ClientLogin) -> None:
    tokens = ann.log_in()
    altered = tokens["access_token"][:-6] + "AAAAAA"
    assert there.list(altered).status_code == 401
    assert there.list(tokens["refresh_token"]).status_code == 401, "a refresh token is no access token"


@pytest.mark.parametrize("python", [MCP1, MCP2], ids=["SDK 1", "SDK 2"])
def test_both_sdks_log_in_by_themselves(there: Gateway, python: Path) -> None:
    command = [str(python / "python"), str(SDK_LOGIN), there.resource]
    environment = clean_environment() | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == '["fs__read"]', done.stderr[-3000:]


def test_mcp_remote_logs_in_by_itself(there: Gateway, tmp_path: Path) -> None:
    port = free_port()
    command = [str(NODE), str(MCP_REMOTE), there.resource, str(port), "--allow-http"]
    own = {"HOME": str(tmp_path), "MCP_REMOTE_CONFIG_DIR": str(tmp_path)}
    environment = clean_environment() | node_environment() | own
    log = tmp_path / "mcp-remote.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                         text=True, start_new_session=True) as process,
    ):  # fmt: skip
        try:
            assert process.stdin is not None and process.stdout is not None
            until_so(lambda: "/oauth/authorize?" in log.read_text(), 60, log.read_text)
            found = re.search(rf"{there.issuer}/oauth/authorize\S+", log.read_text())
            assert found
            with Browser("ann") as browser:
                answer = ClientLogin(there, browser).answer(browser.login(found[0]))
                del browser.headers["Origin"]
                assert "successful" in browser.open(answer.headers["location"]).text
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            messages: list[Json] = [
                {"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"},
                {"id": 2, "method": "tools/list"},
            ]  # fmt: skip
            for message in messages:
                process.stdin.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
                process.stdin.flush()
            assert '"name":"sluice"' in process.stdout.readline() and "fs__read" in process.stdout.readline()
        finally:
            stop(process)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_logs_in_by_itself(there: Gateway, tmp_path: Path, era: str) -> None:
    command = [str(NODE), str(INSPECTOR), "--cli", "--format", "json", "--protocol-era", era, "--method", "tools/list",
               "--server-url", there.resource, "--transport", "http",
               "--callback-url", f"http://127.0.0.1:{free_port()}/oauth/callback"]  # fmt: skip
    environment = clean_environment() | node_environment() | {"HOME": str(tmp_path), "MCP_AUTO_OPEN_ENABLED": "true"}
    log = tmp_path / "inspector.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                         text=True, start_new_session=True) as process,
    ):  # fmt: skip
        try:
            until_so(lambda: "/oauth/authorize?" in log.read_text(), 60, log.read_text)
            found = re.search(rf"{there.issuer}/oauth/authorize\S+", log.read_text())
            assert found
            with Browser("ann") as browser:
                answer = ClientLogin(there, browser).answer(browser.login(found[0]))
                del browser.headers["Origin"]
                assert browser.open(answer.headers["location"]).status_code == 200
            shown, _ = process.communicate(timeout=60)
            assert [tool["name"] for tool in json.loads(shown)["result"]["tools"]] == ["fs__read"], log.read_text()
        finally:
            stop(process)


# ---------------------------------------------------------------- attacks


@pytest.mark.parametrize("uri", [
    "http://127.0.0.1:33418/callback/../steal", "http://127.0.0.1:33418/callback2", "http://127.0.0.1:33418/",
    "http://127.0.0.1.evil.example/callback", "http://localhost:33418/callback", "https://127.0.0.1:33418/callback",
    "http://evil@127.0.0.1:33418/callback", "http://127.0.0.1:33418/callback?x=1", "http://127.0.0.1:33418/callback#x",
    "http://127.0.0.1:33418\\@evil.example/callback", "HTTP://127.0.0.1:33418/callback", "", "//evil.example/callback",
])  # fmt: skip
def test_a_look_alike_of_a_redirect_uri_gets_nothing(ann: ClientLogin, uri: str) -> None:
    answer = ann.browser.open(ann.request(redirect_uri=uri))
    assert answer.status_code == 400 and "location" not in answer.headers


def test_the_port_of_loopback_is_the_clients_choice(ann: ClientLogin) -> None:
    ann.redirect_uri = "http://127.0.0.1:50123/callback"
    assert "code" in ann.told()


@pytest.mark.parametrize("uri", [
    "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "http://evil.example/", "https://", "/callback",
    "https://a.example/#x", "https://user@a.example/", "cursor:\n//x", "https://a.example/\\b", "vbscript:x", "",
])  # fmt: skip
def test_no_client_registers_what_leads_to_no_application(ann: ClientLogin, uri: str) -> None:
    answer = ann.register(redirect_uris=[uri])
    assert answer.status_code == 400 and answer.json()["error"] == "invalid_redirect_uri", answer.text


def test_an_application_of_its_own_scheme_can_be_registered(ann: ClientLogin) -> None:
    ann.redirect_uri = "cursor://anysphere.cursor-mcp/oauth/callback"
    assert ann.register().status_code == 201
    page = ann.consent()
    assert "form-action 'self' cursor:;" in page.headers["content-security-policy"]
    assert ann.answer(page).headers["location"].startswith("cursor://anysphere.cursor-mcp/oauth/callback?code=")


@pytest.mark.parametrize("more", [
    {"code_challenge": "", "code_challenge_method": ""}, {"code_challenge_method": "plain"},
    {"code_challenge": "short"}, {"code_challenge_method": ""},
])  # fmt: skip
def test_pkce_cannot_be_left_out_or_weakened(ann: ClientLogin, more: dict[str, str]) -> None:
    told = query(ann.browser.open(ann.request(**more)))
    assert told["error"] == "invalid_request" and told["state"] == ann.state and "code" not in told


def test_a_code_is_worth_nothing_without_its_verifier(ann: ClientLogin) -> None:
    code = ann.told()["code"]
    for wrong in ("", "x" * 43, ann.verifier + "x"):
        assert ann.exchange(code, code_verifier=wrong).json()["error"] == "invalid_grant"
    assert ann.exchange(code).status_code == 200, "a wrong guess spends nothing"


def test_a_code_of_one_client_is_none_for_another(ann: ClientLogin, mallory: ClientLogin) -> None:
    code = ann.told()["code"]
    stolen = mallory.exchange(code, code_verifier=ann.verifier, redirect_uri=ann.redirect_uri)
    assert stolen.json()["error"] == "invalid_grant"
    other_uri = ann.exchange(code, redirect_uri=mallory.redirect_uri)
    assert other_uri.json()["error"] == "invalid_grant"


def test_a_code_that_comes_twice_ends_what_it_gave(there: Gateway, ann: ClientLogin) -> None:
    code = ann.told()["code"]
    tokens = ann.exchange(code).json()
    assert there.list(tokens["access_token"]).status_code == 200
    assert ann.exchange(code).json()["error"] == "invalid_grant"
    there.bed.until(lambda: there.list(tokens["access_token"]).status_code == 401)
    assert ann.refresh(tokens["refresh_token"]).json()["error"] == "invalid_grant"


def test_a_refresh_token_of_one_client_is_none_for_another(ann: ClientLogin, mallory: ClientLogin) -> None:
    tokens = ann.log_in()
    assert mallory.refresh(tokens["refresh_token"]).json()["error"] == "invalid_grant"
    assert ann.refresh(tokens["refresh_token"]).status_code == 200


def test_each_client_is_allowed_by_itself_and_at_each_login(ann: ClientLogin, there: Gateway) -> None:
    """The provider has her session already, and asks nothing: only Sluice's page stands before a second client."""
    ann.log_in()
    second = ClientLogin(there, ann.browser, name="Another", redirect_uri="http://127.0.0.1:666/steal")
    second.register().raise_for_status()
    page = second.consent()
    assert page.status_code == 200 and "Another" in page.text and "http://127.0.0.1:666" in page.text
    again = ann.consent()
    assert "Allow" in again.text


def test_a_consent_is_given_on_our_page_in_the_same_browser_and_once(
    there: Gateway, ann: ClientLogin, mallory: ClientLogin
) -> None:
    page = ann.consent()
    mallory.browser.headers["Origin"] = there.issuer
    assert mallory.answer(page).status_code == 400, "no cookie of that browser"
    ann.browser.headers["Origin"] = "https://evil.example"
    ticket = page.text.partition('name="ticket" value="')[2].partition('"')[0]
    form = {"ticket": ticket, "answer": "allow"}
    assert ann.browser.post(f"{there.issuer}/oauth/consent", form).status_code == 403
    assert "code" in query(ann.answer(page))
    assert ann.answer(page).status_code == 400


def test_who_refuses_gives_nothing(ann: ClientLogin, there: Gateway) -> None:
    told = query(ann.answer(ann.consent(), "refuse"))
    assert told["error"] == "access_denied" and "code" not in told
    there.bed.until(lambda: "client_refused" in "".join(events(there.bed)))


def test_a_sign_in_of_one_browser_is_none_for_another(ann: ClientLogin, mallory: ClientLogin, there: Gateway) -> None:
    """Mallory begins, and has Ann open what the provider answered; or Ann begins, and Mallory opens hers."""
    answer = mallory.browser.stop_at(mallory.request(), f"{there.issuer}/oauth/callback")
    assert ann.browser.open(answer).status_code == 400
    mine = ann.browser.stop_at(ann.request(), f"{there.issuer}/oauth/callback")
    assert mallory.browser.open(mine).status_code == 400
    assert ann.browser.open(mine.replace("iss=", "iss=x")).status_code == 400, "another issuer's answer"


def test_a_client_that_was_not_registered_here_is_unknown(ann: ClientLogin) -> None:
    for id in ("", "editor", ann.id[:-4] + "AAAA", "https://127.0.0.1/client.json", "http://a.example/x", "a" * 9000):
        answer = ann.browser.open(ann.request(client_id=id))
        assert answer.status_code == 400 and "location" not in answer.headers


def test_tokens_are_for_this_resource_alone(ann: ClientLogin) -> None:
    told = query(ann.browser.open(ann.request(resource="https://other.example/mcp")))
    assert told["error"] == "invalid_target"
    code = ann.told()["code"]
    assert ann.exchange(code, resource="https://other.example/mcp").json()["error"] == "invalid_target"


def test_a_token_of_another_gateway_opens_nothing(
    there: Gateway, ann: ClientLogin, peers: None, tmp_path: Path
) -> None:
    tokens = ann.log_in()
    with gateway(tmp_path) as other:
        assert other.list(tokens["access_token"]).status_code == 401
        code = ann.told()["code"]
        stolen = httpx.post(f"{other.issuer}/oauth/token", timeout=20, data={
            "grant_type": "authorization_code", "code": code, "client_id": ann.id, "code_verifier": ann.verifier,
            "redirect_uri": CALLBACK})  # fmt: skip
        assert stolen.json()["error"] == "invalid_grant"


@pytest.mark.parametrize("twice", ["client_id", "redirect_uri", "state", "code_challenge", "response_type"])
def test_what_comes_twice_is_refused(ann: ClientLogin, twice: str) -> None:
    answer = ann.browser.open(f"{ann.request()}&{twice}=other")
    assert answer.status_code == 400 and "location" not in answer.headers


def test_the_name_of_a_client_is_text(ann: ClientLogin) -> None:
    ann.name = "<script>alert(1)</script>\u202e & \"Co\""
    ann.register().raise_for_status()
    page = ann.consent()
    assert "<script>" not in page.text and "\u202e" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_no_link_of_ours_leads_to_any_site_before_a_person_was_asked(ann: ClientLogin) -> None:
    ann.redirect_uri = "https://evil.example/phish"
    ann.register().raise_for_status()
    for wrong in ({"response_type": "token"}, {"code_challenge": "x"}, {"resource": "https://other.example/"}):
        answer = ann.browser.open(ann.request(**wrong))
        assert answer.status_code == 400 and "location" not in answer.headers
    assert "https://evil.example" in ann.consent().text


def test_a_name_says_nothing_in_our_place(ann: ClientLogin) -> None:
    ann.name = "Editor wants to use Sluice. What it gets is sent to http://127.0.0.1:33418."
    ann.register().raise_for_status()
    page = ann.consent().text
    assert page.index("What it gets is sent to") < page.index("It calls itself: Editor wants")


def test_two_clients_of_one_browser_log_in_at_once(ann: ClientLogin, there: Gateway) -> None:
    second = ClientLogin(there, ann.browser, name="Another")
    second.register().raise_for_status()
    pages = ann.consent(), second.consent()
    assert [query(one.answer(page))["iss"] for one, page in zip((ann, second), pages, strict=True)]


def test_what_was_not_made_here_fills_no_log(there: Gateway, ann: ClientLogin) -> None:
    before = len(there.bed.audit())
    for number in range(40):
        assert ann.refresh(f"slrt_{number}").json()["error"] == "invalid_grant"
        assert ann.exchange("").json()["error"] == "invalid_grant"
    assert ann.exchange(ann.told()["code"]).status_code == 200
    there.bed.until(lambda: "client_logged_in" in "".join(events(there.bed)[-3:]))
    assert len(there.bed.audit()) < before + 10


def test_what_has_ended_fills_no_log_either(there: Gateway, ann: ClientLogin) -> None:
    token = ann.log_in()["refresh_token"]
    form = {"token": token, "client_id": ann.id}
    assert httpx.post(f"{there.issuer}/oauth/revoke", data=form, timeout=20).status_code == 200
    before = len(events(there.bed))
    for _ in range(2 * FAILURES_A_MINUTE):
        assert ann.refresh(token).json()["error"] == "invalid_grant"
    ann.log_in()
    there.bed.until(lambda: "client_logged_in" in "".join(events(there.bed)[-3:]))
    assert len(events(there.bed)) < before + FAILURES_A_MINUTE + 10


@pytest.mark.parametrize("body", [
    {"client_name": ["x"]}, {"client_name": {"a": 1}}, {"client_name": "\ud800"}, {"client_name": 10**400},
    {"client_name": "x" * 60_000}, {"client_name": None}, {"redirect_uris": [1]}, {"redirect_uris": ["\ud800:x"]},
    {"redirect_uris": {"a": "b"}}, {"redirect_uris": "https://a.example/"}, {"redirect_uris": ["https://[::1/x"]},
    {"redirect_uris": ["https://a.example:99999/"]}, {"redirect_uris": ["http://127.0.0.1:\u0661/"]},
])  # fmt: skip
def test_whatever_a_registration_says_is_answered(ann: ClientLogin, body: Any) -> None:
    assert ann.register(**body).status_code in (201, 400)


def test_whatever_a_form_says_is_answered(there: Gateway, ann: ClientLogin) -> None:
    odd = b"\xff\xfe", b"a&" * 60, b"client_id=%ff&client_id=%00", b"grant_type=refresh_token&refresh_token=%ed"
    for path in ("token", "revoke", "consent"):
        for form in odd:
            answer = httpx.post(f"{there.issuer}/oauth/{path}", content=form, timeout=20)
            assert answer.status_code < 500, (path, form)
    for query_ in ("", "state=%ff", "state=x&state=y", "state=" + "x" * 20_000, "code=1&iss=%00"):
        assert ann.browser.open(f"{there.issuer}/oauth/callback?{query_}").status_code < 500


def test_requests_are_bounded(peers: None, tmp_path: Path) -> None:
    with gateway(tmp_path) as there:
        large = httpx.post(f"{there.issuer}/oauth/register", content=b"x" * 70_000, timeout=20)
        assert large.status_code == 413
        assert httpx.post(f"{there.issuer}/oauth/register", content=b"[" * 60_000, timeout=20).status_code == 400
        many = {"redirect_uris": [f"https://a.example/{number}" for number in range(30)]}
        assert httpx.post(f"{there.issuer}/oauth/register", json=many, timeout=20).status_code == 400
        with httpx.Client(timeout=20) as client:
            codes = [client.post(f"{there.issuer}/oauth/token", data={}).status_code for _ in range(610)]
        assert codes[0] == 400 and codes[-1] == 429
        assert there.metadata()["issuer"] == there.issuer


def test_no_address_has_us_ask_others_all_the_time(peers: None, tmp_path: Path) -> None:
    with gateway(tmp_path) as there, Browser() as browser:
        client = ClientLogin(there, browser)
        asked = [client.request(client_id=f"https://127.0.0.1:1/{number}") for number in range(21)]
        assert [browser.open(url).status_code for url in asked] == [400] * 20 + [429]
        client.register().raise_for_status()
        assert client.consent().status_code == 200
        blocked = [one for one in there.bed.audit() if one.get("what") == "ssrf_blocked"]
        assert len(blocked) <= 20


@pytest.mark.parametrize("change", [None, {"roles_from": ["teams"]}, {"client_id": "another"}], ids=str)
def test_what_a_person_got_by_another_config_has_ended(
    peers: None, tmp_path: Path, change: dict[str, Any] | None
) -> None:
    """Its groups may be none any more; and without the section no such token is good."""
    with gateway(tmp_path) as there, Browser("ann") as browser:
        client = ClientLogin(there, browser)
        tokens = client.log_in()
        code, page = client.told()["code"], client.consent()
        assert there.list(tokens["access_token"]).status_code == 200
        settings = json.loads(there.bed.process.config.read_text())
        settings["clients"]["login"] = change and settings["clients"]["login"] | change
        there.bed.process.config.write_text(json.dumps(settings))
        there.bed.process.process.send_signal(signal.SIGHUP)
        there.bed.until(lambda: there.list(tokens["access_token"]).status_code == 401)
        assert client.refresh(tokens["refresh_token"]).status_code in (400, 404)
        assert client.exchange(code).status_code in (400, 404)
        answer = client.answer(page)
        assert answer.status_code in (303, 404)
        if answer.status_code == 303:
            assert client.exchange(query(answer)["code"]).json()["error"] == "invalid_grant"


def test_who_can_write_into_the_store_becomes_nobody_else(peers: None, tmp_path: Path) -> None:
    with gateway(tmp_path) as there, Browser("ann") as ann, Browser("mallory") as mallory:
        first, second = ClientLogin(there, ann).log_in(), (client := ClientLogin(there, mallory)).log_in()
        assert "fs__read" in there.list(first["access_token"]).text
        with closing(sqlite3.connect(tmp_path / "state" / "sluice.db", isolation_level=None)) as store:
            rows = dict(store.execute("SELECT key, value FROM item WHERE key LIKE 'issuer-grant/%'").fetchall())
            assert len(rows) == 2 and not any(b"ann" in value for value in rows.values())
            for key, value in zip(rows, reversed(rows.values()), strict=True):
                store.execute("UPDATE item SET value = ? WHERE key = ?", (value, key))
        assert client.refresh(second["refresh_token"]).json()["error"] == "invalid_grant"
        there.bed.until(lambda: there.list(first["access_token"]).status_code == 401)


def test_without_the_section_there_is_no_authorization_server(tmp_path: Path) -> None:
    with bed(tmp_path, "p, *, *, *, *, allow\n", {"fs": recorder(tmp_path, "fs", tools=["read"])}) as made:
        origin = made.process.url.removesuffix("/mcp")
        for path in ("/oauth/authorize", "/oauth/token", "/.well-known/oauth-authorization-server"):
            assert httpx.get(f"{origin}{path}", timeout=20).status_code == 404


def test_a_client_that_logged_in_gets_its_call_approved(tmp_path: Path, peers: None) -> None:
    rows = "p, jwt:ISSUER#ann, fs, *, *, allow\np2, *, fs, tool:read, *, a-lead\n"
    rows += "p, role:lead, sluice, admin:*, *, allow\n"
    with gateway(tmp_path, rows=rows) as there, Browser("ann") as browser:
        token = ClientLogin(there, browser).log_in()["access_token"]
        assert reason(there.call(token, "fs__read")) == "approval_pending"
        api = f"{there.bed.process.admin}/api/v1/approvals"
        (asked,) = httpx.get(api, headers=bearer("bob"), timeout=20).json()["approvals"]
        vote = {"decision": "approve", "seen_digest": asked["digest"]}
        decided = httpx.post(f"{api}/{asked['id']}/decisions", json=vote, headers=bearer("bob"), timeout=20)
        assert decided.status_code == 200, decided.text
        assert "ran read" in there.call(token, "fs__read").text
