"""Toolsets at a real Sluice: endpoints of HTTP in both eras and stdio show one part, and know nothing of another."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.desktop_clients import Desktop
from e2e.sluice_process import ROOT, stdio_command
from e2e.wire import LEGACY, META, MODERN
from policy_bed import RECORDER, Bed, bearer, bed, client_keys, encoded, recorder

Json = dict[str, Any]
ROWS = """\
p, role:authenticated, *, *, *, allow
p, *, bank, tool:wire, *, deny
p, local, sluice, admin:*, *, allow
"""
TOOLSETS: Json = {
    "money": {"tools": ["bank/*"], "prompts": ["bank/*"], "for": ["role:clerk"], "budget": 100},
    "twin": {"tools": ["bank/*"]},
    "found": {"tools": ["*/*"], "search": "on", "budget": 100},
    "reading": {"tools": ["*/look"], "resources": ["mail/file:///a"], "default_for": ["role:reader"]},
}
KEYS = {"ann": ["role:clerk"], "bob": [], "rob": ["role:reader"]}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("toolsets")
    catalog = {"tools": ["wire", "look", "save"], "resources": ["file:///a", "file:///b"], "prompts": ["sum"]}
    servers = {key: recorder(folder, key, **catalog) for key in ("bank", "mail")}
    with bed(folder, ROWS, servers, clients={"keys": client_keys(**KEYS)}, toolsets=TOOLSETS,
             limits={"page": 1}, policy={"files": ["policy.csv"], "on_deny": "explain"}) as process:
        yield process


class Endpoint:
    """One client at one path, in one era."""

    def __init__(self, town: Bed, who: str, path: str, era: str) -> None:
        self.url, self.who, self.era = town.process.url + path, who, era
        self.session: dict[str, str] = {}
        if era == "legacy":
            info = {"name": "t", "version": "1"}
            opened = self.post("initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info})
            self.session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}

    def post(self, method: str, params: Json) -> httpx.Response:
        body: Json = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Accept": "application/json, text/event-stream", **bearer(self.who), **self.session}
        if self.era == "modern":
            body["params"] = {**params, "_meta": META}
            headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            if named := params.get("name", params.get("uri")):
                headers["Mcp-Name"] = encoded(named)
        return httpx.post(self.url, json=body, headers=headers, timeout=20)

    def names(self, what: str, field: str = "name") -> list[str]:
        found, params = [], Json()
        while True:
            page = self.post(f"{what}/list", params).json()["result"]
            found += [item[field] for item in page[what]]
            if "nextCursor" not in page:
                return sorted(found)
            params = {"cursor": page["nextCursor"]}

    def is_executed(self, name: str) -> bool:
        answer = self.post("tools/call", {"name": name, "arguments": {}}).json()
        return "result" in answer and not answer["result"].get("isError")


BOTH = pytest.mark.parametrize("era", ["modern", "legacy"])


@BOTH
def test_what_is_listed_is_what_works_and_policy_comes_first(town: Bed, era: str) -> None:
    money, whole = Endpoint(town, "ann", "/money", era), Endpoint(town, "ann", "", era)
    assert money.names("tools") == ["bank__look", "bank__save"], "the policy denies bank/wire"
    assert whole.names("tools") == ["bank__look", "bank__save", "mail__look", "mail__save", "mail__wire"]
    for name in ("bank__look", "bank__wire", "mail__look"):
        assert money.is_executed(name) is (name in money.names("tools"))
    assert (money.names("prompts"), whole.names("prompts")) == (["bank__sum"], ["bank__sum", "mail__sum"])
    assert money.names("resources", "uri") == ["bank+file:///a", "bank+file:///b"]
    outside, nothing = (
        money.post("tools/call", {"name": name, "arguments": {}}).text.replace(name, "NAME")
        for name in ("mail__look", "mail__nothing")
    )
    assert outside == nothing


@BOTH
def test_resources_are_those_of_the_toolset(town: Bed, era: str) -> None:
    reading = Endpoint(town, "rob", "/reading", era)
    assert reading.names("resources", "uri") == ["mail+file:///a"]
    assert "result" in reading.post("resources/read", {"uri": "mail+file:///a"}).json()
    assert "error" in reading.post("resources/read", {"uri": "mail+file:///b"}).json()
    assert reading.names("prompts") == ["bank__sum", "mail__sum"], "those of the servers that its tools name"


@BOTH
def test_a_role_has_its_toolset_at_the_plain_path_and_may_not_go_elsewhere(town: Bed, era: str) -> None:
    assert Endpoint(town, "rob", "", era).names("tools") == ["bank__look", "mail__look"]
    assert Endpoint(town, "bob", "", era).names("tools") != ["bank__look", "mail__look"]


def test_a_toolset_that_is_not_for_a_client_answers_as_a_path_that_is_none(town: Bed) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    accept = {"Accept": "application/json, text/event-stream"}
    headers = {**accept, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
    answers = [
        httpx.post(town.process.url + path, json=body, headers=headers | who, timeout=20)
        for who in (bearer("bob"), {}) for path in ("/money", "/nothing")
    ]  # fmt: skip
    assert [one.status_code for one in answers] == [404, 404, 401, 401]
    assert answers[0].content == answers[1].content and answers[2].content == answers[3].content
    assert httpx.post(f"{town.process.url}/money/more", json=body, headers=headers, timeout=20).status_code == 404


def test_a_session_of_one_toolset_is_unknown_at_another(town: Bed) -> None:
    money = Endpoint(town, "ann", "/money", "legacy")
    stray = Endpoint(town, "ann", "", "legacy")
    stray.session = money.session
    assert stray.post("tools/list", {}).status_code == 404
    ended = httpx.delete(town.process.url, headers=bearer("ann") | money.session, timeout=20)
    assert ended.status_code == 404 and money.names("tools") != []


@BOTH
def test_a_cursor_of_one_toolset_is_none_at_another_that_shows_the_same(town: Bed, era: str) -> None:
    money, twin = Endpoint(town, "ann", "/money", era), Endpoint(town, "ann", "/twin", era)
    assert money.names("tools") == twin.names("tools")
    cursor = money.post("tools/list", {}).json()["result"]["nextCursor"]
    assert "result" in money.post("tools/list", {"cursor": cursor}).json()
    assert twin.post("tools/list", {"cursor": cursor}).json()["error"]["code"] == -32602


def test_audit_and_metrics_name_the_toolset(town: Bed) -> None:
    money = Endpoint(town, "ann", "/money", "modern")
    assert money.names("tools") != []  # or the list of mail is not known yet
    money.is_executed("mail__save")

    def found() -> list[Json]:
        return [one for one in town.audit() if one.get("decision", {}).get("rule", "").startswith("toolset money")]

    town.until(lambda: found() != [])
    assert found()[-1]["toolset"] == "money", found()
    assert 'sluice_toolset_calls_total{outcome="unknown",toolset="money"}' in town.process.get("/metrics")[1]


def test_the_cost_of_a_list_is_shown_and_warned_of(town: Bed) -> None:
    cost = partial(run, ROOT, "tools", "--cost", "-c", str(town.process.config), "--as", "ann")
    done = cost("--toolset", "money")
    assert done.returncode == 0, done.stderr
    assert "key:ann gets a list of about 26 tokens at money; the budget is 100" in done.stderr
    assert [row.split()[0] for row in done.stdout.splitlines()] == ["NAME", "bank__look", "bank__save"]
    whole = json.loads(cost("--json").stdout)
    assert (whole["list"], whole["all"], whole["search"], len(whole["tools"])) == (66, 66, "off", 5)
    short = json.loads(cost("--json", "--toolset", "found").stdout)
    assert short["is_searched"] and short["all"] == 66 and short["list"] > 100
    assert "it is over the budget" in cost("--toolset", "found").stderr
    assert cost("--toolset", "nothing").returncode != 0
    Endpoint(town, "ann", "/money", "modern").names("tools")
    assert 'sluice_tools_list_tokens{client="key:ann",toolset="money"} 26' in town.process.get("/metrics")[1]
    assert "a list of tools is over its budget" in town.process.log()


def test_stdio_has_the_toolset_that_it_names_also_where_it_joins_and_takes_over(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "catalog.json").write_text(json.dumps({"tools": ["wire", "look"]}))
    (tmp_path / "bank" / "seen.jsonl").touch()
    server = {"command": sys.executable, "args": [RECORDER, str(tmp_path / "bank")], "era": "legacy"}
    command = stdio_command({"servers": {"bank": server}, "toolsets": {"reading": {"tools": ["bank/look"]}}}, tmp_path)
    whole, part = Desktop(command, "whole"), None
    try:
        whole.hello()
        assert whole.tools() == {"bank__look", "bank__wire"}
        part = Desktop([*command, "--toolset", "reading"], "part")
        part.hello()
        assert part.tools() == {"bank__look"}
        whole.process.kill()
        assert part.tools() == {"bank__look"}
        part.wait_until_owner()
        again = Desktop(command, "again")
        again.hello()
        assert again.tools() == {"bank__look", "bank__wire"}
        again.close()
        again = Desktop(command, "says so itself")
        assert again.process.stdin is not None
        again.process.stdin.write(b"toolset reading\n")
        again.hello()
        assert again.tools() == {"bank__look", "bank__wire"}, "a client does not choose its own"
        again.close()
        wrong = Desktop([*command, "--toolset", "nothing"], "wrong")
        assert wrong.process.wait(30) == 2 and "it has reading" in wrong.said()
        wrong.close()
    finally:
        for one in (whole, part):
            if one is not None:
                one.close()


def test_the_admin_api_explains_a_call_at_the_toolset_that_the_client_has(town: Bed) -> None:
    token = (town.folder / "state" / "operator.token").read_text().strip()

    def explained(who: str) -> Json:
        asked = {"as": who, "method": "tools/call", "target": "bank/save"}
        url = f"{town.process.admin}/api/v1/policy/explain"
        answer = httpx.post(url, json=asked, headers={"Authorization": f"Bearer {token}"}, timeout=20)
        found: Json = answer.json()
        return found

    assert explained("bob")["verdict"] == "allow"
    assert (explained("rob")["verdict"], explained("rob")["rule"]) == ("deny", "toolset reading")
