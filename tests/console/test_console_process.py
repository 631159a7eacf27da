"""The console of a real Sluice as a browser, a page of somebody else and other processes reach it: who gets in, with
what, and until when."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from peers.fleet import peers
from policy_bed import Bed, bearer, bed, client_keys, key_of, recorder

from sluicegate.console import HEADERS

Json = dict[str, Any]
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:approvals, *, allow
p, role:lead, sluice, admin:servers, read, allow
p, role:lead, sluice, admin:secrets, read, allow
p, local, sluice, admin:*, *, allow
"""
NAMES = {"ann": ["role:dev"], "lea": ["role:lead"], "leo": ["role:lead"]}
WRITES = [("POST", "/console/session"), ("DELETE", "/console/session"), ("DELETE", "/console/sessions"),
          ("POST", "/console/session/step-up"), ("POST", "/api/v1/approvals/apr_000000000000/decisions"),
          ("POST", "/api/v1/pins"), ("DELETE", "/api/v1/grants/x")]  # fmt: skip
LEADS = {"approvals": ["read", "write"], "servers": ["read"], "secrets": ["read"]}
READS = ["/console/session", "/api/v1/me", "/api/v1/servers", "/api/v1/approvals", "/api/v1/approvals/events"]
STREAMS = pytest.mark.parametrize("stream", ["approvals/events", "events"])
__all__ = ["peers"]


def front(folder: Path, **config: Any) -> Any:
    settings: Json = {"clients": {"keys": client_keys(**NAMES)}, "approvals": {"hold_for": "100ms"}}
    return bed(folder, ROWS, {"bank": recorder(folder, "bank", tools=["wire", "look"])}, **settings | config)


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with front(tmp_path_factory.mktemp("console")) as running:
        yield running


class Tab:
    """A page of the console in a browser: it has both halves, and says where it comes from."""

    def __init__(self, town: Bed) -> None:
        self.client = httpx.Client(base_url=town.process.admin, timeout=20)
        self.client.headers = httpx.Headers({"Origin": town.process.admin, "Sec-Fetch-Site": "same-origin"})
        self.page_key = ""

    def __enter__(self) -> "Tab":
        return self

    def __exit__(self, *why: object) -> None:
        self.client.close()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"X-Sluice-Page": self.page_key} | options.pop("headers", {})
        return self.client.request(method, path, headers={k: v for k, v in headers.items() if v is not None}, **options)

    def log_in(self, who: str = "lea") -> httpx.Response:
        return self.begins(self.ask("POST", "/console/session", json={"key": key_of(who)}))

    def begins(self, answer: httpx.Response) -> httpx.Response:
        if answer.status_code == 200:
            self.page_key = answer.json()["page_key"]
        return answer


def operator(town: Bed) -> dict[str, str]:
    token = (town.folder / "state" / "operator.token").read_text()
    return {"Authorization": f"Bearer {token}"}


def new_code(town: Bed) -> str:
    answer = httpx.post(f"{town.process.admin}/console/codes", headers=operator(town))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


@pytest.fixture(scope="module")
def tab(town: Bed) -> Iterator[Tab]:
    """Logged in once: an address has five attempts a minute."""
    with Tab(town) as tab:
        assert tab.begins(tab.ask("POST", "/console/session", json={"code": new_code(town)})).status_code == 200
        yield tab


def takes_into_use(town: Bed, settings: Json) -> None:
    draft = town.folder / "draft.yaml"
    draft.write_text(json.dumps(settings))
    draft.replace(town.process.config)


def acts(town: Bed, act: str) -> list[Json]:
    return [record for record in town.audit() if record.get("act") == act]


def test_the_document_has_no_data_and_forbids_everything_it_does_not_need(town: Bed) -> None:
    first, second = httpx.get(f"{town.process.admin}/console"), httpx.get(f"{town.process.admin}/console/approvals/x")
    assert first.status_code == 200 and first.text == second.text
    assert {name: first.headers[name] for name in HEADERS} == dict(HEADERS)
    assert httpx.get(f"{town.process.admin}/").headers["location"] == "/console"
    script = first.text.partition('src="')[2].partition('"')[0]
    answer = httpx.get(f"{town.process.admin}{script}")
    assert answer.status_code == 200 and answer.headers["cache-control"].endswith("immutable")
    for path in ("/../../__init__.py", "/%2e%2e/sessions.py", "/vendor/..%2f..%2fsessions.py"):
        answer = httpx.get(f"{town.process.admin}{script.rpartition('/')[0]}{path}")
        assert answer.status_code in (400, 404) or answer.text == first.text


def test_a_session_has_the_rights_of_its_principal_and_shows_itself(tab: Tab, town: Bed) -> None:
    about = tab.ask("GET", "/console/session").json()
    assert (about["principal"], about["way"]) == ("local", "link") and about["seconds_left"] > 11 * 3600
    assert tab.ask("GET", "/api/v1/me").json()["principal"] == "local"
    assert [row["key"] for row in tab.ask("GET", "/api/v1/servers").json()["servers"]] == ["bank"]
    assert tab.ask("GET", "/api/v1/servers").headers["cache-control"] == "no-store"
    (cookie,) = [one for one in tab.client.cookies.jar]
    assert cookie.name == f"sluice-{town.process.admin.rpartition(':')[2]}"
    assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "Strict"


@pytest.mark.parametrize("path", READS)
def test_neither_half_alone_reads(tab: Tab, town: Bed, path: str) -> None:
    assert tab.ask("GET", path, headers={"X-Sluice-Page": None}).status_code == 401, "the cookie alone"
    assert tab.ask("GET", path, headers={"X-Sluice-Page": "x" * 22}).status_code == 401
    only_page = {"X-Sluice-Page": tab.page_key, "Sec-Fetch-Site": "same-origin"}
    assert httpx.get(f"{town.process.admin}{path}", headers=only_page).status_code == 401, "the page key alone"


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_neither_half_alone_writes(tab: Tab, town: Bed, method: str, path: str) -> None:
    if (method, path) == ("POST", "/console/session"):
        return  # whoever logs in has no half yet
    assert tab.ask(method, path, headers={"X-Sluice-Page": None}, json={}).status_code == 401
    headers = {"X-Sluice-Page": tab.page_key, "Origin": town.process.admin, "Sec-Fetch-Site": "same-origin"}
    assert httpx.request(method, f"{town.process.admin}{path}", headers=headers, json={}).status_code == 401


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", None])
def test_no_page_of_somebody_else_writes(tab: Tab, method: str, path: str, origin: str | None) -> None:
    client = httpx.Client(base_url=tab.client.base_url, cookies=tab.client.cookies)
    headers = {"X-Sluice-Page": tab.page_key, "Sec-Fetch-Site": "same-origin"} | ({"Origin": origin} if origin else {})
    with client:
        assert client.request(method, path, headers=headers, json={}).status_code == 403


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", None])
def test_only_what_our_own_pages_fetch_is_answered(tab: Tab, path: str, site: str | None) -> None:
    with httpx.Client(base_url=tab.client.base_url, cookies=tab.client.cookies) as client:
        headers = {"X-Sluice-Page": tab.page_key} | ({"Sec-Fetch-Site": site} if site else {})
        assert client.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/console", "/console/session", "/api/v1/servers"])
def test_another_host_name_is_not_served(tab: Tab, path: str) -> None:
    assert tab.ask("GET", path, headers={"Host": "rebound.evil.com"}).status_code == 421


def test_forms_and_plain_text_are_no_requests_of_ours(tab: Tab) -> None:
    for method, path in WRITES:
        if method == "POST":
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
                answer = tab.ask(method, path, headers={"Content-Type": kind}, content=b"{}")
                assert answer.status_code == 415, path


def test_a_bearer_and_a_session_exclude_one_another(tab: Tab) -> None:
    assert tab.ask("GET", "/api/v1/servers", headers=bearer("lea")).status_code == 400


def test_through_a_proxy_without_https_there_is_no_console(town: Bed) -> None:
    forwarded = {"X-Forwarded-For": "10.1.2.3"}
    assert httpx.get(f"{town.process.admin}/console", headers=forwarded).status_code == 404
    answer = httpx.post(f"{town.process.admin}/console/codes", headers=operator(town) | forwarded)
    assert answer.status_code == 404


def test_only_the_operator_makes_a_code_and_no_page_does(town: Bed) -> None:
    ask = f"{town.process.admin}/console/codes"
    assert httpx.post(ask).status_code == 401
    assert httpx.post(ask, headers=bearer("lea")).status_code == 401
    assert httpx.post(ask, headers=operator(town) | {"Origin": town.process.admin}).status_code == 403


def test_the_command_opens_a_file_that_only_its_user_can_read(town: Bed) -> None:
    shown = run(town.folder, "console", "-c", "sluice.yaml", "--no-browser")
    assert shown.returncode == 0 and shown.stdout.startswith(f"{town.process.admin}/console#code=")
    opener = town.folder / "opener"
    opener.write_text('#!/bin/sh\necho "$1" > opened\n')
    opener.chmod(0o700)
    done = run(town.folder, "console", "-c", "sluice.yaml", env={"BROWSER": f"{opener} %s"})
    assert done.returncode == 0 and "code=" not in done.stdout + done.stderr
    town.until(lambda: (town.folder / "opened").exists() and "file://" in (town.folder / "opened").read_text())
    assert "code=" not in (town.folder / "opened").read_text(), "no process list shows the code"
    file = town.folder / "state" / "console.html"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "/console#code=" in file.read_text()


def test_without_a_right_there_is_no_data_and_every_action_is_recorded_first(peers: None, tmp_path: Path) -> None:
    with front(tmp_path) as town, Tab(town) as ann, Tab(town) as lea:
        assert ann.log_in("ann").json()["principal"] == "key:ann" and lea.log_in("lea").status_code == 200
        for path in ("/api/v1/servers", "/api/v1/approvals", "/api/v1/approvals/events"):
            answer = ann.ask("GET", path)
            assert answer.status_code == 403 and set(answer.json()) == {"error"}
        id = town.call("ann", "bank__wire", n=1).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        card = lea.ask("GET", f"/api/v1/approvals/{id}").json()
        assert card["objection"] == "" and card["has_voted"] is False
        path = f"/api/v1/approvals/{id}/decisions"
        assert lea.ask("POST", path, json={"decision": "approve", "seen_digest": "sha256:0"}).status_code == 409
        assert lea.ask("POST", f"/api/v1/approvals/{id}/reveal", json={}).json()["step_up"] == "key"
        assert lea.ask("POST", "/console/session/step-up", json={"key": key_of("leo")}).status_code == 401
        assert [one["principal"] for one in acts(town, "console_refused")] == ["key:lea"]
        old = lea.page_key
        assert lea.begins(lea.ask("POST", "/console/session/step-up", json={"key": key_of("lea")})).status_code == 200
        assert lea.page_key != old
        assert lea.ask("GET", "/console/session", headers={"X-Sluice-Page": old}).status_code == 401
        assert lea.ask("POST", f"/api/v1/approvals/{id}/reveal", json={}).json()["arguments"] == {"n": 1}
        done = lea.ask("POST", path, json={"decision": "approve", "seen_digest": card["digest"]})
        assert done.json()["votes"][0]["channel"] == "console"
        (record,) = [one for one in acts(town, "console_action") if one["object"].endswith("decisions")][-1:]
        assert (record["principal"], record["way"], record["address"]) == ("key:lea", "key", "127.0.0.1")
        written = (town.folder / "audit" / "sluice.jsonl").read_text() + town.process.log()
        for secret in (key_of("lea"), lea.page_key, *lea.client.cookies.values()):
            assert secret not in written
        assert lea.ask("DELETE", "/console/sessions").status_code == 200
        assert lea.ask("GET", "/api/v1/approvals").status_code == 401


def test_a_code_works_once_and_is_in_no_log(peers: None, tmp_path: Path) -> None:
    with front(tmp_path) as town, Tab(town) as tab:
        code = new_code(town)
        assert tab.begins(tab.ask("POST", "/console/session", json={"code": code})).json()["principal"] == "local"
        assert tab.ask("POST", "/console/session", json={"code": code}).status_code == 401
        assert [one["way"] for one in acts(town, "console_refused")] == ["link"]
        assert [one["principal"] for one in acts(town, "console_login")] == ["local"]
        written = (town.folder / "audit" / "sluice.jsonl").read_text() + town.process.log()
        assert code not in written
        answers = [tab.ask("POST", "/console/session", json={"key": "wrong"}).status_code for _ in range(5)]
        assert answers == [401, 401, 401, 401, 429], "five attempts a minute, with the code that was used before"
        assert tab.ask("POST", "/console/session", json={"code": "wrong"}).status_code == 429
        good = tab.ask("POST", "/console/session", json={"code": new_code(town)})
        assert good.status_code == 200, "whoever shares an address locks nobody out"


def test_a_code_is_good_on_this_machine_alone(peers: None, tmp_path: Path) -> None:
    names = {"trusted_proxies": ["127.0.0.1"], "allowed_hosts": ["sluice.example"]}
    with front(tmp_path, listen=names) as town, Tab(town) as tab:
        code = new_code(town)
        elsewhere = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "Host": "sluice.example",
                     "X-Forwarded-Host": "sluice.example", "Origin": "https://sluice.example"}  # fmt: skip
        answer = tab.ask("POST", "/console/session", json={"code": code}, headers=elsewhere)
        assert (answer.status_code, answer.cookies) == (401, {})
        assert [(one["way"], one["address"]) for one in acts(town, "console_refused")] == [("link", "203.0.113.7")]
        assert tab.ask("POST", "/console/session", json={"code": code}).status_code == 200, "nobody else spent it"
        tries = []
        for number in range(6):  # one customer's network
            headers = {**elsewhere, "X-Forwarded-For": f"2001:db8::{number}"}
            tries.append(tab.ask("POST", "/console/session", json={"key": "wrong"}, headers=headers).status_code)
        assert tries == [401] * 5 + [429]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_login_is_read_up_to_a_bound(is_chunked: bool, peers: None, tmp_path: Path) -> None:
    with front(tmp_path) as town, Tab(town) as tab:
        parts = [b'{"key": "', *[b"x" * 1024] * 128, b'"}']
        body: Any = iter(parts) if is_chunked else b"".join(parts)
        headers = {"Content-Type": "application/json"}
        answer = tab.ask("POST", "/console/session", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (413, "the body is larger than 131072 bytes")
        assert not acts(town, "console_refused") and tab.log_in("lea").status_code == 200


def test_a_stolen_session_guesses_five_keys_a_minute_and_no_more(peers: None, tmp_path: Path) -> None:
    with front(tmp_path) as town, Tab(town) as lea, Tab(town) as other:
        assert lea.log_in("lea").status_code == other.log_in("lea").status_code == 200
        path = "/console/session/step-up"
        answers = [lea.ask("POST", path, json={"key": "wrong"}).status_code for _ in range(6)]
        assert answers == [401] * 5 + [429]
        assert lea.ask("POST", path, json={"key": key_of("lea")}).status_code == 429
        assert other.ask("POST", path, json={"key": key_of("lea")}).status_code == 200, "counted by session"


@STREAMS
def test_a_key_that_is_revoked_ends_its_sessions_and_their_streams(peers: None, tmp_path: Path, stream: str) -> None:
    with front(tmp_path) as town, Tab(town) as tab:
        tab.log_in("lea")
        headers = {"X-Sluice-Page": tab.page_key, "X-Sluice-Background": "1"}
        with tab.client.stream("GET", f"/api/v1/{stream}", headers=headers) as answer:
            assert answer.status_code == 200
            settings = json.loads(town.process.config.read_text())
            del settings["clients"]["keys"]["lea"]
            takes_into_use(town, settings)
            for _ in answer.iter_raw():
                pass  # until it ends
        town.until(lambda: tab.ask("GET", "/console/session").status_code == 401)


def test_a_session_is_of_the_principal_that_logged_in(peers: None, tmp_path: Path) -> None:
    """Its key is another's by now: each act would be recorded for the one before."""
    with front(tmp_path) as town, Tab(town) as tab:
        tab.log_in("lea")
        settings = json.loads(town.process.config.read_text())
        keys = settings["clients"]["keys"]
        keys["eve"] = keys.pop("lea") | {"roles": ["role:lead"]}
        takes_into_use(town, settings)
        whose = f"{town.process.admin}/api/v1/me"
        town.until(lambda: bool(httpx.get(whose, headers=bearer("lea")).json()["principal"] == "key:eve"))
        answer = tab.ask("POST", "/api/v1/approvals/apr_000000000000/decisions", json={"decision": "deny"})
        assert answer.status_code == 401 and not acts(town, "console_action")
        assert tab.ask("GET", "/api/v1/me").status_code == 401


@STREAMS
def test_a_session_that_ends_ends_its_stream(peers: None, tmp_path: Path, stream: str) -> None:
    with front(tmp_path) as town, Tab(town) as tab:
        tab.log_in("lea")
        with tab.client.stream("GET", f"/api/v1/{stream}", headers={"X-Sluice-Page": tab.page_key}) as answer:
            parts = answer.iter_raw()
            assert next(parts)
            assert tab.ask("DELETE", "/console/session").status_code == 200
            with pytest.raises((StopIteration, httpx.RemoteProtocolError)):
                while True:
                    next(parts)


@pytest.mark.parametrize("arguments", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_a_console_that_is_off_is_not_there(peers: None, tmp_path: Path, arguments: list[str]) -> None:
    with front(tmp_path, console={"enabled": False}, arguments=arguments) as town:
        for path in ("/", "/console", "/console/session", "/console/codes"):
            assert httpx.get(f"{town.process.admin}{path}").status_code == 404
        with_session = {"Cookie": "sluice-1=x", "X-Sluice-Page": "x", **bearer("lea")}
        whose = httpx.get(f"{town.process.admin}/api/v1/me", headers=with_session).json()
        assert whose == {"principal": "key:lea", "rights": LEADS}
        assert run(town.folder, "console", "-c", "sluice.yaml").returncode == 2
        file = town.folder / "sluice.yaml"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"console": {"enabled": True}}))
        late = run(town.folder, "console", "-c", "sluice.yaml", "--no-browser")
        assert late.returncode == 1 and "needs a restart" in late.stderr, "the file says more than what runs"


def test_with_workers_a_session_is_one_and_its_actions_are_recorded(peers: None, tmp_path: Path) -> None:
    with front(tmp_path, arguments=["--workers", "2"]) as town, Tab(town) as tab:
        tab.log_in("lea")
        id = town.call("ann", "bank__wire", n=1).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        card = tab.ask("GET", f"/api/v1/approvals/{id}").json()
        body = {"decision": "approve", "seen_digest": card["digest"]}
        done = tab.ask("POST", f"/api/v1/approvals/{id}/decisions", json=body).json()
        assert done["votes"][0]["channel"] == "console"
        spoofed = {**bearer("leo"), "sluice-channel": "console"}
        other = town.call("ann", "bank__wire", n=2).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        seen = httpx.get(f"{town.process.admin}/api/v1/approvals/{other}", headers=bearer("leo")).json()["digest"]
        ask = f"{town.process.admin}/api/v1/approvals/{other}/decisions"
        body["seen_digest"] = seen
        assert httpx.post(ask, headers=spoofed, json=body).json()["votes"][0]["channel"] == "api"
        written = "".join(path.read_text() for path in (town.folder / "audit").glob("*.jsonl"))
        assert '"console_login"' in written and '"console_action"' in written
        records = written.count('"type":"admin"')
        for path in ("/note", "/look"):  # which the workers have among themselves
            assert httpx.post(f"{town.process.admin}{path}", json={"act": "forged"}).status_code == 404
            assert httpx.get(f"{town.process.admin}{path}").status_code == 404
        written = "".join(path.read_text() for path in (town.folder / "audit").glob("*.jsonl"))
        assert records and written.count('"type":"admin"') == records
