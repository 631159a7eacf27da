"""Logins to servers, from the command line to the call: whose account is used, what is asked, and what is kept."""

import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from e2e.desktop_clients import Desktop
from e2e.sluice_process import COMMAND, clean_environment, stdio_command
from peers.login.browser import Browser
from peers.login.faults import redirecting
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import Bed, bed, client_keys, key_of, reason
from waiting import until_so

Json = dict[str, Any]
ROWS = "p, role:everyone, mail, *, *, allow\n"
MODERN = "2026-07-28"


@pytest.fixture
def site() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


@contextmanager
def served(folder: Path, site: Misbehaving, **login: Any) -> Iterator[Bed]:
    server: Json = {"url": site.mcp, "required": False} | ({"login": login} if login else {})
    keys = client_keys(ann=[], bob=[])
    with bed(folder, ROWS, {"mail": server}, clients={"keys": keys}) as there:
        yield there


def command(folder: Path, *words: str) -> list[str]:
    return [*COMMAND, *words, "-c", str(folder / "sluice.yaml")]


def log_in(folder: Path, *words: str, user: str = "ann") -> Json:
    """The whole way of a person: the command, the browser, and what the command says in the end."""
    asked = command(folder, "login", "mail", "--no-open", "--json", *words)
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=clean_environment()) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        with Browser(user) as browser:
            page = browser.login(json.loads(line)["url"])
        assert page.status_code == 200 and "Logged in" in page.text and "code=" not in str(page.url)
        said = json.loads(process.stdout.readline())
        assert process.wait(10) == 0, process.stderr.read()
    return dict(said)


def expire(site: Misbehaving) -> None:
    """A server that refuses a token of less than 5 seconds refuses every token."""
    time.sleep(5.1)
    site.expire_tokens()


def said(answer: Any) -> str:
    return str(answer.json()["result"]["content"][0]["text"])


def test_each_client_uses_its_own_account(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        assert there.names("ann") == there.names("bob") == []
        found = log_in(tmp_path, "--as", "ann")
        assert (found["server"], found["whose"], found["state"]) == ("mail", "key:ann", "ok")
        there.until(lambda: "mail__whoami" in there.names("ann"))
        assert there.names("bob") == []
        log_in(tmp_path, "--as", "bob", user="bert")
        there.until(lambda: "mail__whoami" in there.names("bob"))
        assert json.loads(said(there.call("ann", "mail__whoami")))["subject"] == "ann"
        assert json.loads(said(there.call("bob", "mail__whoami")))["subject"] == "bert"


def test_one_account_of_all_is_used_by_whom_the_policy_lets_in(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site, per="gateway") as there:
        log_in(tmp_path)
        there.until(lambda: "mail__whoami" in there.names("ann"))
        assert json.loads(said(there.call("bob", "mail__whoami")))["subject"] == "ann"


def test_after_a_logout_no_call_is_sent_and_the_tokens_are_revoked(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann"))
        assert said(there.call("ann", "mail__echo", text="hello")) == '{"text": "hello"}'
        done = subprocess.run(command(tmp_path, "logout", "mail", "--as", "ann"), capture_output=True, text=True,
                              env=clean_environment())  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "key:ann is logged out of mail\n"), done.stderr
        assert site.of("revoke")
        there.until(lambda: reason(there.call("ann", "mail__echo", text="again")) == "login_required")
        sent = len(site.calls())
        assert reason(there.call("ann", "mail__echo", text="again")) == "login_required"
        assert len(site.calls()) == sent
        assert "mail__echo" in there.names("ann") and there.names("bob") == []  # what she was shown, she can ask for
        again = subprocess.run(command(tmp_path, "logout", "mail", "--as", "ann"), capture_output=True, text=True,
                               env=clean_environment())  # fmt: skip
        assert again.returncode == 1 and "key:ann is not logged in to mail" in again.stderr


def test_an_expired_token_is_refreshed_and_the_call_is_sent_once(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann"))
        expire(site)
        assert said(there.call("ann", "mail__echo", text="hello")) == '{"text": "hello"}'
        assert len(site.of("token", grant_type="refresh_token")) == 1


def test_a_further_right_is_asked_for(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__write" in there.names("ann"))
        answer = there.call("ann", "mail__write", text="x")
        assert reason(answer) == "login_required" and "write" in said(answer)
        assert "write" in log_in(tmp_path, "--as", "ann")["scopes"]
        there.until(lambda: reason(there.call("ann", "mail__write", text="x")) == "")


def test_no_secret_is_in_what_is_written(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann"))
        expire(site)
        there.call("ann", "mail__echo", text="hello")
        _, metrics = there.process.get("/metrics")
    lines = [line for file in (tmp_path / "audit").glob("*.jsonl") for line in file.read_text().splitlines()]
    events = [record for record in map(json.loads, lines) if record["type"] == "identity"]
    events.sort(key=lambda record: str(record["time"]))
    assert [record["what"] for record in events] == ["login_asked", "login_done", "refreshed"]
    assert {record["principal"] for record in events} == {"key:ann"}
    (intent,) = [record for record in map(json.loads, lines) if record["type"] == "intent"]
    about = intent["login"]
    assert (about["id"], about["per"], about["issuer"]) == (events[1]["login"], "client", site.issuer)
    assert 'sluice_logins{server="mail",state="ok"} 1.0' in metrics
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".py"]
    for secret in site.secrets():
        assert secret not in metrics
        assert not any(secret.encode() in text for text in written)
    with sqlite3.connect(tmp_path / "state" / "sluice.db") as database:
        assert site.authority.issued
        assert not any(secret in line for line in database.iterdump() for secret in site.secrets())


def test_each_token_goes_to_its_own_server(tmp_path: Path, site: Misbehaving) -> None:
    servers: Json = {name: {"url": f"{site.url}/{path}", "required": False}
                     for name, path in (("mail", "mcp"), ("post", "mcp2"))}  # fmt: skip
    rows = ROWS + ROWS.replace("mail", "post")
    with bed(tmp_path, rows, servers, clients={"keys": client_keys(ann=[])}) as there:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann"))
        assert not [name for name in there.names("ann") if name.startswith("post__")]
        tokens = {seen.bearer for seen in site.of("mcp") if seen.path == "/mcp"} - {None}
        assert tokens and not tokens & {seen.bearer for seen in site.of("mcp") if seen.path == "/mcp2"}
        assert not [seen for seen in site.seen if key_of("ann") in str(seen.headers)]


def test_a_key_that_took_anothers_name_has_not_its_login(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann"))
        settings = json.loads((tmp_path / "sluice.yaml").read_text())
        keys = settings["clients"]["keys"]
        keys["ann"]["hash"], keys["bob"]["hash"] = keys["bob"]["hash"], keys["ann"]["hash"]
        there.write(json.dumps(settings), "sluice.yaml")
        there.until(lambda: there.names("ann") == [])  # her key is called bob now, and the other one ann
        assert there.names("bob") == []
        for who in ("ann", "bob"):
            assert reason(there.call(who, "mail__echo", text="x")) == "login_required"


def test_a_key_made_anew_for_another_owner_has_not_the_login_of_the_first(tmp_path: Path, site: Misbehaving) -> None:
    keys = {name: key | {"owner": "Ann"} for name, key in client_keys(ann=[], bob=[]).items()}
    server: Json = {"url": site.mcp, "required": False, "login": {"per": "owner"}}
    with bed(tmp_path, ROWS, {"mail": server}, clients={"keys": keys}) as there:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann") and "mail__echo" in there.names("bob"))
        settings = json.loads((tmp_path / "sluice.yaml").read_text())
        settings["clients"]["keys"]["bob"] = client_keys(eve=[])["eve"] | {"owner": "Eve"}
        there.write(json.dumps(settings), "sluice.yaml")
        there.until(lambda: there.ask("eve", "tools/list").status_code == 200)  # who has the key `bob` from now on
        assert there.ask("bob", "tools/list").status_code == 401 and there.names("eve") == []
        assert reason(there.call("eve", "mail__echo", text="x")) == "login_required"
        assert "mail__echo" in there.names("ann")


def test_who_may_not_use_a_server_does_not_learn_that_it_wants_a_login(tmp_path: Path, site: Misbehaving) -> None:
    rows = "p, key:ann, mail, *, *, allow\n"
    server: Json = {"url": site.mcp, "required": False}
    with bed(tmp_path, rows, {"mail": server}, clients={"keys": client_keys(ann=[], bob=[])}) as there:
        assert reason(there.call("ann", "mail__echo")) == "login_required"
        hidden, unknown = there.call("bob", "mail__echo").json(), there.call("bob", "nope__echo").json()
        assert hidden["error"]["code"] == unknown["error"]["code"] == -32602
        assert hidden["error"]["message"] == unknown["error"]["message"].replace("nope", "mail")


def test_a_redirect_to_another_origin_gets_no_token(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there, misbehaving() as other:
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann"))
        site.faults["mcp.tools/call"] = redirecting(other.mcp, 307)
        assert reason(there.call("ann", "mail__echo", text="x")) == "outcome_unknown"
        assert not other.seen


def test_a_machine_logs_in_by_itself(tmp_path: Path, site: Misbehaving) -> None:
    site.authority.add_client("sluice", "s3cret-of-a-machine")
    login = {"per": "gateway", "grant": "client_credentials", "client_id": "sluice",
             "client_secret": "s3cret-of-a-machine"}  # fmt: skip
    with served(tmp_path, site, **login) as there:
        there.until(lambda: "mail__whoami" in there.names("ann"))
        assert json.loads(said(there.call("ann", "mail__whoami")))["client"] == "sluice"
        assert not site.of("authorize")


def test_a_machines_token_does_not_go_to_the_address_that_its_server_had_before_a_reload(
    tmp_path: Path, site: Misbehaving
) -> None:
    """The session at the former address is ended while the config names another one already."""
    site.switches.eras, site.switches.session = ("legacy",), "s-1"
    login = {"per": "gateway", "grant": "client_credentials", "client_id": "sluice", "client_secret": "s3cret"}
    with served(tmp_path, site, **login) as there, misbehaving() as other:
        for authority in (site.authority, other.authority):
            authority.add_client("sluice", "s3cret")
        there.until(lambda: "mail__whoami" in there.names("ann"))
        said(there.call("ann", "mail__whoami"))
        settings = json.loads((tmp_path / "sluice.yaml").read_text())
        settings["servers"]["mail"]["url"] = other.mcp
        there.write(json.dumps(settings), "sluice.yaml")

        def is_in() -> bool:
            there.names("ann")
            return any(seen.bearer in other.authority.issued for seen in other.of("mcp"))

        there.until(is_in)
    shown = {seen.bearer for seen in site.of("mcp")}
    assert shown & site.authority.issued and not shown & other.authority.issued


def test_a_slash_too_many_behind_an_issuer_is_for_the_config_to_decide(tmp_path: Path, site: Misbehaving) -> None:
    site.switches.prm["authorization_servers"] = [f"{site.issuer}/"]
    with served(tmp_path, site) as there:
        refused = subprocess.run(command(tmp_path, "login", "mail", "--as", "ann"), capture_output=True, text=True,
                                 env=clean_environment())  # fmt: skip
        assert refused.returncode == 1 and "login.issuer says which is right" in refused.stderr
        settings = json.loads((tmp_path / "sluice.yaml").read_text())
        settings["servers"]["mail"]["login"] = {"issuer": site.issuer}
        there.write(json.dumps(settings), "sluice.yaml")
        log_in(tmp_path, "--as", "ann")
        there.until(lambda: "mail__echo" in there.names("ann"))


# ---------------------------------------------------------------- at a desktop


def desktop(folder: Path, site: Misbehaving, **login: str) -> list[str]:
    (folder / "policy.csv").write_text(ROWS + "p, local, sluice, admin:*, *, allow\n")
    config = {"servers": {"mail": {"url": site.mcp}}, "policy": {"files": ["policy.csv"]}, "login": login}
    return stdio_command(config, folder)


def test_a_login_while_a_client_runs_brings_its_tools(tmp_path: Path, site: Misbehaving) -> None:
    client = Desktop(desktop(tmp_path, site), "one")
    try:
        client.hello()
        assert client.tools() == set()
        log_in(tmp_path)
        until_so(lambda: "mail__whoami" in client.tools())
        answer = client.ask("tools/call", name="mail__whoami", arguments={})
        assert json.loads(answer["result"]["content"][0]["text"])["subject"] == "ann"
    finally:
        client.close()


ABOUT = {"name": "one", "version": "1"}
PAGES = {"elicitation": {"url": {}}}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientInfo": ABOUT,
    "io.modelcontextprotocol/clientCapabilities": PAGES,
}  # fmt: skip


@contextmanager
def logged_out(folder: Path, site: Misbehaving, revision: str, **login: str) -> Iterator[Desktop]:
    """A client that knows the server's tools from an earlier login, and can open pages."""
    client = Desktop(desktop(folder, site, **login), "one")
    meta: Json = {"_meta": META} if revision == MODERN else {}
    try:
        if revision != MODERN:
            client.ask("initialize", protocolVersion=revision, capabilities=PAGES, clientInfo=ABOUT)
            client.send(method="notifications/initialized")
        client.ask("tools/list", **meta)
        log_in(folder)
        until_so(lambda: "mail__echo" in str(client.ask("tools/list", **meta)))
        subprocess.run(command(folder, "logout", "mail"), check=True, env=clean_environment(), capture_output=True)
        until_so(lambda: wants_login(folder))
        yield client
    finally:
        client.close()


def wants_login(folder: Path) -> bool:
    asked = run(folder, "servers", "--json", "-c", "sluice.yaml")
    return bool(json.loads(asked.stdout)["servers"][0]["needs_login"])


def test_a_client_that_opens_pages_is_asked_and_the_call_goes_on(tmp_path: Path, site: Misbehaving) -> None:
    with logged_out(tmp_path, site, "2025-11-25") as client:
        id = client.begin("tools/call", name="mail__echo", arguments={"text": "hello"})
        while (message := client.hear()).get("method") != "elicitation/create":
            assert message.get("id") != id, message
        assert message["params"]["mode"] == "url" and "log in to mail" in message["params"]["message"]
        assert message["params"]["url"].startswith(site.url)
        with Browser() as browser:
            assert "Logged in" in browser.login(message["params"]["url"]).text
        client.send(id=message["id"], result={"action": "accept"})
        while (message := client.hear()).get("id") != id:
            pass
        assert message["result"]["content"][0]["text"] == '{"text": "hello"}'
        assert len(site.calls("echo")) == 1


def test_a_legacy_client_gets_the_page_in_an_error_where_the_config_says_so(tmp_path: Path, site: Misbehaving) -> None:
    with logged_out(tmp_path, site, "2025-11-25", legacy="error") as client:
        answer = client.ask("tools/call", name="mail__echo", arguments={"text": "hello"})
        (page,) = answer["error"]["data"]["elicitations"]
        assert answer["error"]["code"] == -32042 and page["mode"] == "url" and page["elicitationId"]
        with Browser() as browser:
            assert "Logged in" in browser.login(page["url"]).text
        until_so(lambda: "result" in client.ask("tools/call", name="mail__echo", arguments={"text": "hello"}))
        assert len(site.calls("echo")) == 1


def test_a_stateless_client_is_asked_and_calls_again(tmp_path: Path, site: Misbehaving) -> None:
    call: Json = {"name": "mail__echo", "arguments": {"text": "hello"}, "_meta": META}
    with logged_out(tmp_path, site, MODERN) as client:
        asked = client.ask("tools/call", **call)["result"]
        assert asked["resultType"] == "input_required", asked
        ((key, question),) = asked["inputRequests"].items()
        with Browser() as browser:
            browser.login(question["params"]["url"])
        again = call | {"requestState": asked["requestState"], "inputResponses": {key: {"action": "accept"}}}
        answer = client.ask("tools/call", **again)["result"]
        assert answer["content"][0]["text"] == '{"text": "hello"}'
        assert len(site.calls("echo")) == 1


def test_who_declines_is_not_logged_in_and_nothing_is_sent(tmp_path: Path, site: Misbehaving) -> None:
    call: Json = {"name": "mail__echo", "arguments": {"text": "hello"}, "_meta": META}
    with logged_out(tmp_path, site, MODERN) as client:
        asked = client.ask("tools/call", **call)["result"]
        ((key, _),) = asked["inputRequests"].items()
        again = call | {"requestState": asked["requestState"], "inputResponses": {key: {"action": "decline"}}}
        answer = client.ask("tools/call", **again)["result"]
        assert answer["_meta"]["dev.sluice/reason"] == "login_required"
        assert "declined" in answer["content"][0]["text"] and not site.calls("echo")
