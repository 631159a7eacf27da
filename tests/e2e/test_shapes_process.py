"""Shaped tools and prompts at a real Sluice: what a client sees, what its server gets, and what people are shown."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.desktop_clients import Desktop
from e2e.sluice_process import ROOT, stdio_command
from e2e.test_toolset_endpoints import BOTH, Endpoint
from policy_bed import RECORDER, Bed, bearer, bed, client_keys, reason, recorder

Json = dict[str, Any]
ROWS = """\
p, role:authenticated, *, *, *, allow
p, *, git, tool:secret, *, deny
p2, *, git, tool:merge, *, one-of-leads
p, local, sluice, admin:*, *, allow
p, role:lead, sluice, admin:*, *, allow
"""
SCHEMA: Json = {
    "type": "object", "properties": {"owner": {"type": "string"}, "page": {"type": "integer"}, "token": {}},
    "required": ["owner"],
}  # fmt: skip
TOOLS: list[Any] = [{"name": name, "inputSchema": SCHEMA} for name in ("list_issues", "merge", "secret", "other")]
FIXED: Json = {"defaults": {"owner": "acme"}, "hide": ["token"]}
SHAPES: Json = {
    "list_issues": {"name": "issues", "description": "Issues of Acme.", **FIXED}, "merge": FIXED, "secret": FIXED,
    "lost": {"title": "x"}, "other": {"hide": ["none"]},
}  # fmt: skip
PROMPT: Json = {"name": "sum", "arguments": [{"name": "owner", "required": True}, {"name": "month"}]}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("shapes")
    rules = folder / "arguments" / "git"
    rules.mkdir(parents=True)
    rule = {"properties": {"owner": {"const": "acme"}}, "required": ["owner"]}
    (rules / "list_issues.json").write_text(json.dumps(rule))
    server = recorder(folder, "git", tools=TOOLS, prompts=[PROMPT])
    server |= {"tools": {"shape": SHAPES}, "prompts": {"shape": {"sum": {"defaults": {"owner": "acme"}}}}}
    config: Json = {
        "clients": {"keys": client_keys(ann=[], lea=["role:lead"])}, "approvals": {"hold_for": "100ms"},
        "policy": {"files": ["policy.csv"], "arguments": "arguments"},
    }  # fmt: skip
    with bed(folder, ROWS, {"git": server}, **config) as process:
        yield process


@BOTH
def test_a_shaped_tool_is_listed_called_and_judged_with_its_fixed_arguments(town: Bed, era: str) -> None:
    client = Endpoint(town, "ann", "", era)
    listed = {tool["name"]: tool for tool in client.post("tools/list", {}).json()["result"]["tools"]}
    assert sorted(listed) == ["git__issues", "git__merge", "git__other"]
    assert listed["git__issues"]["description"] == "Issues of Acme."
    assert listed["git__issues"]["inputSchema"] == {"type": "object", "properties": {"page": {"type": "integer"}}}
    done = client.post("tools/call", {"name": "git__issues", "arguments": {"page": 2}}).json()
    assert "isError" not in done["result"], "the argument rule wants the fixed argument, and has it"
    assert town.seen("git")[-1]["params"]["arguments"] == {"page": 2, "owner": "acme"}
    assert town.seen("git")[-1]["params"]["name"] == "list_issues"
    before = len(town.seen("git"))
    for given in ({"owner": "acme"}, {"owner": "evil"}, {"OWNER": "evil"}, {"token": "x"}):
        refused = client.post("tools/call", {"name": "git__issues", "arguments": given})
        assert reason(refused) == "invalid_arguments" and "evil" not in refused.text and "acme" not in refused.text
    hidden = client.post("tools/call", {"name": "git__secret", "arguments": {"owner": "x"}}).text
    unknown = client.post("tools/call", {"name": "git__nothing", "arguments": {"owner": "x"}}).text
    assert hidden.replace("secret", "nothing") == unknown, "an argument tells nothing of what is denied"
    assert "error" in client.post("tools/call", {"name": "git__list_issues", "arguments": {}}).json()
    assert len(town.seen("git")) == before


@BOTH
def test_prompts_likewise_and_nothing_completes_what_is_fixed(town: Bed, era: str) -> None:
    client = Endpoint(town, "ann", "", era)
    (listed,) = client.post("prompts/list", {}).json()["result"]["prompts"]
    assert listed["arguments"] == [{"name": "month"}]
    assert "result" in client.post("prompts/get", {"name": "git__sum", "arguments": {"month": "May"}}).json()
    assert town.seen("git")[-1]["params"]["arguments"] == {"month": "May", "owner": "acme"}
    refused = client.post("prompts/get", {"name": "git__sum", "arguments": {"owner": "x"}})
    assert refused.json()["error"]["code"] == -32602 and reason(refused) == "invalid_arguments"
    ref = {"type": "ref/prompt", "name": "git__sum"}
    asked = client.post("completion/complete", {"ref": ref, "argument": {"name": "owner", "value": "a"}})
    assert asked.json()["error"]["code"] == -32602


def test_people_are_shown_what_the_server_gets_and_the_log_has_both_names(town: Bed) -> None:
    client = Endpoint(town, "ann", "", "modern")
    held = client.post("tools/call", {"name": "git__merge", "arguments": {"page": 3}}).json()["result"]
    id = held["_meta"]["dev.sluice/approval"]["id"]
    shown = httpx.get(f"{town.process.admin}/api/v1/approvals/{id}", headers=bearer("lea"), timeout=20).json()
    assert shown["arguments"] == {"page": 3, "owner": "acme"}, shown
    client.post("tools/call", {"name": "git__issues", "arguments": {"page": 77}})

    def found() -> list[Json]:
        return [one for one in town.audit() if one["type"] == "intent" and one.get("arguments", {}).get("page") == 77]

    town.until(lambda: found() != [])
    (record,) = found()
    assert (record["own"], record["public"], record["arguments"]["owner"]) == ("list_issues", "git__issues", "acme")


def test_explain_knows_both_names_and_check_what_fits_nothing(town: Bed) -> None:
    def said(*words: str) -> "CompletedProcess[str]":
        return run(ROOT, *words, "-c", str(town.process.config))

    Endpoint(town, "ann", "", "modern").names("tools")
    for name in ("git__issues", "git/list_issues"):
        done = said("explain", "call", name, "--as", "ann")
        assert done.returncode == 0 and "list_issues" in done.stdout, done.stdout + done.stderr
        assert "note: git/list_issues is shown as issues, always with owner" in done.stderr

    for given, code in (({"page": 1}, 0), ({"owner": "acme"}, 1), ({"token": 1}, 1)):
        done = said("explain", "call", "git__issues", "--as", "ann", "--args", json.dumps(given))
        assert done.returncode == code, done.stdout + done.stderr

    rows = json.loads(said("pins", "list", "--all", "--json").stdout)["pins"]
    both = {row["name"]: row["shown_as"] for row in rows if row["server"] == "git"}
    assert both == {"list_issues": "issues", "merge": "", "secret": "", "other": "", "sum": ""}
    assert "list_issues (shown as issues)" in said("pins", "list", "--all").stdout
    assert "list_issues (shown as issues): first_use" in said("pins", "diff", "git", "list_issues").stdout

    def warnings() -> list[str]:
        found = json.loads(said("check", "--json").stdout)["findings"]
        return sorted(one["message"] for one in found if one["code"].startswith("unknown-"))

    town.until(lambda: len(warnings()) >= 2)
    assert warnings() == ["git has no tool of this name", "other has no argument none"]


def test_a_changed_shape_is_in_force_without_a_restart(town: Bed) -> None:
    client = Endpoint(town, "ann", "", "modern")
    assert "git__merge" in client.names("tools")
    settings = json.loads(town.process.config.read_text())
    settings["servers"]["git"]["tools"]["shape"]["merge"]["name"] = "join"
    del settings["servers"]["git"]["prompts"]
    town.write(json.dumps(settings), town.process.config.name)
    town.until(lambda: "git__join" in client.names("tools"))
    assert "git__merge" not in client.names("tools")
    town.until(lambda: len(client.post("prompts/list", {}).json()["result"]["prompts"][0]["arguments"]) == 2)


def test_where_unlisted_names_are_relayed_the_own_name_leads_to_the_same_shape(tmp_path: Path) -> None:
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "catalog.json").write_text(json.dumps({"tools": TOOLS}))
    (tmp_path / "git" / "seen.jsonl").touch()
    server = {"command": sys.executable, "args": [RECORDER, str(tmp_path / "git")], "era": "legacy", "prefix": "",
              "unlisted": "forward"}  # fmt: skip
    server["tools"] = {"shape": {"list_issues": SHAPES["list_issues"], "gone": FIXED}}
    desktop = Desktop(stdio_command({"servers": {"git": server}}, tmp_path), "client")
    try:
        desktop.hello()
        assert "issues" in desktop.tools()
        for name in ("issues", "list_issues", "List_Issues"):
            assert "result" in desktop.ask("tools/call", name=name, arguments={"page": 1})
            refused = desktop.ask("tools/call", name=name, arguments={"owner": "evil"})
            assert refused["result"]["_meta"]["dev.sluice/reason"] == "invalid_arguments", name
        for name in ("gone", "GONE"):  # it is not listed, and nothing says how it is called
            assert "error" in desktop.ask("tools/call", name=name, arguments={"owner": "evil"}), name
        seen = [json.loads(line) for line in (tmp_path / "git" / "seen.jsonl").read_text().splitlines()]
        given = [one["params"]["arguments"] for one in seen if one["method"] == "tools/call"]
        assert given == [{"page": 1, "owner": "acme"}] * 3
    finally:
        desktop.close()
