"""Rates and inspection as their users meet them: `sluice serve`, keys, and a server that says what it should not."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice

RUDE = {"command": sys.executable, "args": [str(Path(__file__).parent / "rude_server.py")], "pin": "warn"}
KEYS = {name: f"key-of-{name}-{'0' * 32}" for name in ("a", "b", "busy", "eager")}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    hashes = {name: {"hash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"} for name, key in KEYS.items()}
    servers = {mode: {**RUDE, "results": mode} for mode in ("off", "warn", "block")}
    servers["off"]["tools"] = {"deny": ["far"]}
    config = {
        "servers": servers,
        "clients": {"keys": hashes},
        "limits": {"per_client": "40/h", "per_tool": "3/h"},
    }
    with sluice(config, tmp_path_factory.mktemp("rude")) as running:
        yield running


def ask(process: Sluice, method: str, key: str = "a", **params: Any) -> dict[str, Any]:
    """The whole response of a modern client."""
    headers = {
        "Authorization": f"Bearer {KEYS[key]}", "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method,
        **({"Mcp-Name": params["name"]} if "name" in params else {}),
    }  # fmt: skip
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    answer: dict[str, Any] = httpx.post(process.url, json=body, headers=headers, timeout=20).json()
    return answer


def call(process: Sluice, name: str, key: str = "a") -> dict[str, Any]:
    result: dict[str, Any] = ask(process, "tools/call", key, name=name, arguments={})["result"]
    return result


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def flags(result: dict[str, Any]) -> list[str] | None:
    found: list[str] | None = result.get("_meta", {}).get("dev.sluice/flags")
    return found


def test_what_is_plain_passes_however_strict_sluice_is(process: Sluice) -> None:
    for mode in ("off", "warn", "block"):
        for tool in ("plain", "kept"):
            result = call(process, f"{mode}__{tool}")
            assert flags(result) is None and "isError" not in result
        assert text(call(process, f"{mode}__plain")) == "a plain answer 👩‍💻\n"


def test_warn_takes_out_what_is_obeyed_and_names_what_it_found(process: Sluice) -> None:
    rude = call(process, "warn__rude")
    assert text(rude) == "ab\u202e"
    assert flags(rude) == ["bidi", "tags", "terminal"]
    broken = call(process, "warn__broken")
    assert broken["structuredContent"] == {"n": "one"} and flags(broken) == ["output_schema"]
    assert flags(call(process, "warn__far")) == ["output_schema_unused"]


def test_block_withholds_it_and_says_that_the_tool_was_executed(process: Sluice) -> None:
    for tool in ("rude", "broken"):
        result = call(process, f"block__{tool}")
        assert result["isError"] is True and result["_meta"]["dev.sluice/reason"] == "result_withheld"
        assert text(result).startswith("This was executed") and "SECRET" not in json.dumps(result)
    assert flags(call(process, "block__far")) == ["output_schema_unused"]


def test_off_looks_away(process: Sluice) -> None:
    assert text(call(process, "off__rude")).startswith("a\x1b[2J")
    assert flags(call(process, "off__broken")) is None


def test_a_tool_over_its_quota_is_refused_and_the_server_sees_nothing(process: Sluice) -> None:
    before = json.loads(text(call(process, "warn__calls", "b")))
    answers = [call(process, "warn__plain", "b") for _ in range(5)]
    reasons = [answer.get("_meta", {}).get("dev.sluice/reason") for answer in answers]
    assert reasons == [None, None, None, "rate_limited", "rate_limited"]
    assert answers[3]["isError"] is True and "3 per hour are allowed; try again in" in text(answers[3])
    assert json.loads(text(call(process, "warn__calls", "b")))[len(before) :] == ["plain"] * 3
    assert "isError" not in call(process, "block__plain", "b"), "another tool"
    assert "isError" not in call(process, "warn__plain", "a"), "another client"


def test_a_hidden_tool_never_says_that_it_is_over_a_quota(process: Sluice) -> None:
    answers = [ask(process, "tools/call", "busy", name=name) for name in ["off__far", "off__fat"] * 5]
    assert {answer["error"]["code"] for answer in answers} == {-32602}


def test_a_new_session_starts_nothing_anew_and_every_method_counts(process: Sluice) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    headers = {"Authorization": f"Bearer {KEYS['eager']}", "Accept": "application/json, text/event-stream"}
    answers = [httpx.post(process.url, json=body, headers=headers, timeout=20).text for _ in range(42)]
    assert [("rate_limited" in answer) for answer in answers] == [False] * 40 + [True] * 2
    for method in ("tools/list", "prompts/list", "resources/list", "server/discover"):
        error = ask(process, method, "eager")["error"]
        assert (error["code"], error["data"]) == (-32603, {"reason": "rate_limited"})
    assert "result" in ask(process, "tools/list", "a")
