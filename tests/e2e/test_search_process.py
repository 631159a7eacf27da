"""The search at a real Sluice: a call through `call_tool` is to policy, people, log and server the direct one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.desktop_clients import Desktop
from e2e.sluice_process import stdio_command
from e2e.test_toolset_endpoints import BOTH, Endpoint
from policy_bed import RECORDER, Bed, bearer, bed, client_keys, reason, recorder

Json = dict[str, Any]
ROWS = """\
p, role:authenticated, *, *, *, allow
p, *, bank, tool:forbidden, *, deny
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:*, *, allow
"""
TOOLS: list[Any] = [
    "wire", "forbidden", "look",
    {"name": "draw", "description": "Draws a chart of the balance.",
     "inputSchema": {"type": "object", "properties": {"size": {"type": "integer"}}}},
]  # fmt: skip


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("search")
    rules = folder / "arguments" / "bank"
    rules.mkdir(parents=True)
    (rules / "draw.json").write_text(json.dumps({"properties": {"size": {"maximum": 10}}}))
    config: Json = {
        "clients": {"keys": client_keys(ann=[], lea=["role:lead"])},
        "toolsets": {"all": {"tools": ["*/*"], "search": "on", "pinned": ["bank/look"]}},
        "approvals": {"hold_for": "100ms"},
        "policy": {"files": ["policy.csv"], "arguments": "arguments"},
    }
    with bed(folder, ROWS, {"bank": recorder(folder, "bank", tools=TOOLS)}, **config) as process:
        yield process


def text(answer: httpx.Response) -> Any:
    return answer.json()["result"]["content"][0]["text"]


def through(endpoint: Endpoint, name: str, **arguments: Any) -> httpx.Response:
    return endpoint.post("tools/call", {"name": "call_tool", "arguments": {"name": name, "arguments": arguments}})


def direct(endpoint: Endpoint, name: str, **arguments: Any) -> httpx.Response:
    return endpoint.post("tools/call", {"name": name, "arguments": arguments})


@BOTH
def test_a_tool_is_found_and_called_and_what_is_denied_is_neither(town: Bed, era: str) -> None:
    client = Endpoint(town, "ann", "/all", era)
    assert client.names("tools") == ["bank__look", "call_tool", "find_tools"]
    found = json.loads(text(client.post("tools/call", {"name": "find_tools", "arguments": {"query": "charts"}})))
    assert [tool["name"] for tool in found["tools"]] == ["bank__draw"]
    assert found["tools"][0]["inputSchema"]["properties"] == {"size": {"type": "integer"}}
    before = len(town.seen("bank"))
    assert "result" in through(client, "bank__draw", size=1).json() and "result" in direct(client, "bank__draw").json()
    assert [one["params"]["name"] for one in town.seen("bank")[before:]] == ["draw", "draw"]
    refused = through(client, "bank__forbidden").text.replace("forbidden", "NAME")
    assert refused == through(client, "bank__nothing").text.replace("nothing", "NAME")
    assert refused == direct(client, "bank__forbidden").text.replace("forbidden", "NAME")
    query: Json = {"name": "find_tools", "arguments": {"query": "forbidden"}}
    assert json.loads(text(client.post("tools/call", query)))["tools"] == []
    assert reason(through(client, "bank__draw", size=11)) == "invalid_arguments"
    assert len(town.seen("bank")) == before + 2


def test_the_approver_sees_the_real_tool_and_the_approval_counts_for_either_way(town: Bed) -> None:
    client = Endpoint(town, "ann", "/all", "modern")
    held = through(client, "bank__wire", to="bob").json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    again = direct(client, "bank__wire", to="bob").json()["result"]["_meta"]["dev.sluice/approval"]["id"]
    assert held == again, "it is the same call"
    api = f"{town.process.admin}/api/v1/approvals/{held}"
    shown = httpx.get(api, headers=bearer("lea"), timeout=20).json()
    assert (shown["server"], shown["tool"]) == ("bank", "wire") and "call_tool" not in json.dumps(shown)
    body = {"decision": "approve", "seen_digest": shown["digest"]}
    assert httpx.post(f"{api}/decisions", json=body, headers=bearer("lea"), timeout=20).status_code == 200
    assert "isError" not in through(client, "bank__wire", to="bob").json()["result"]
    assert town.seen("bank")[-1]["params"]["arguments"] == {"to": "bob"}


def test_the_log_and_the_metrics_have_the_same_call(town: Bed) -> None:
    client = Endpoint(town, "ann", "/all", "modern")
    client.names("tools")

    def intents() -> list[Json]:
        return [one for one in town.audit() if one["type"] == "intent" and one.get("arguments") == {"size": 7}]

    through(client, "bank__draw", size=7)
    direct(client, "bank__draw", size=7)
    town.until(lambda: len(intents()) == 2)
    told = [{key: value for key, value in one.items() if key not in VARYING} for one in intents()]
    assert told[0] == told[1]
    metrics = town.process.get("/metrics")[1]
    assert "call_tool" not in metrics and 'tool="draw"' in metrics


VARYING = {"seq", "prev", "time", "call"}


@BOTH
def test_without_the_search_neither_tool_exists(town: Bed, era: str) -> None:
    client = Endpoint(town, "ann", "", era)
    assert client.names("tools") == ["bank__draw", "bank__look", "bank__wire"]
    for name in ("find_tools", "call_tool"):
        assert direct(client, name, query="x").json()["error"]["code"] == -32602


def test_a_server_without_a_prefix_keeps_its_own_tools_of_these_names(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "catalog.json").write_text(json.dumps({"tools": ["find_tools", "look"]}))
    (tmp_path / "only" / "seen.jsonl").touch()
    server = {"command": sys.executable, "args": [RECORDER, str(tmp_path / "only")], "era": "legacy", "prefix": ""}
    desktop = Desktop(stdio_command({"servers": {"only": server}, "search": "on"}, tmp_path), "client")
    try:
        desktop.hello()
        assert desktop.tools() == {"find_tools", "call_tool"}
        answer = desktop.ask("tools/call", name="find_tools", arguments={"query": ""})
        found = {tool["name"] for tool in json.loads(answer["result"]["content"][0]["text"])["tools"]}
        (renamed,) = found - {"look"}
        assert renamed.startswith("find_tools_")
        desktop.ask("tools/call", name="call_tool", arguments={"name": renamed})
        seen = [json.loads(line) for line in (tmp_path / "only" / "seen.jsonl").read_text().splitlines()]
        assert [one["params"]["name"] for one in seen if one["method"] == "tools/call"] == ["find_tools"]
    finally:
        desktop.close()
