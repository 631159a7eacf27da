"""The initialize era's dialect towards a server: requests down, answers up to the newest form."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluicegate.protocol import legacy_server as dialect
from sluicegate.protocol import modern_server
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.protocol.jsonrpc import Json, Response, dump
from sluicegate.protocol.model import LOG_LEVEL, Call, Client, Failure, Result

MODERN = Client("key:a")
LEGACY = Client("key:a", revision="2025-11-25")


def test_the_handshake_offers_the_newest_legacy_revision_and_declares_what_it_is_told() -> None:
    assert dialect.initialize({"name": "sluice"}, {"roots": {}}) == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "sluice"},
    }


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_legacy_revision_is_accepted(version: str) -> None:
    revision = dialect.negotiated({"protocolVersion": version})
    assert revision is not None and revision.name == version


@pytest.mark.parametrize("version", ["2026-07-28", "1.0", None, 5, ["2025-11-25"]])
def test_nothing_else_is(version: Any) -> None:
    assert dialect.negotiated({"protocolVersion": version}) is None


@pytest.mark.parametrize(
    ("meta", "sent"),
    [
        ({}, None),
        ({LOG_LEVEL: "info"}, None),
        ({"progressToken": "x"}, {"progressToken": 4}),
        ({"progressToken": 0, "traceparent": "00", "com.example/k": 1},
         {"progressToken": 4, "traceparent": "00", "com.example/k": 1}),
    ],
)  # fmt: skip
def test_modern_keys_stay_here_and_the_token_is_ours(meta: Json, sent: Json | None) -> None:
    params = dialect.params(Call(MODERN, "tools/call", {"name": "t"}, meta), 4)
    assert params == ({"name": "t"} if sent is None else {"name": "t", "_meta": sent})


@pytest.mark.parametrize(
    ("method", "result", "lifted"),
    [
        ("tools/call", {"content": [], "isError": True}, {"content": [], "isError": True}),
        (
            "tools/list",
            {"tools": [{"name": "a", "execution": {"taskSupport": "optional"}}, {"name": "b"}], "nextCursor": None},
            {"tools": [{"name": "a"}, {"name": "b"}], "ttlMs": 0, "cacheScope": "private"},
        ),
        ("tools/list", {"nextCursor": ""}, {"nextCursor": "", "ttlMs": 0, "cacheScope": "private"}),
        ("resources/read", {"contents": []}, {"contents": [], "ttlMs": 0, "cacheScope": "private"}),
        ("prompts/get", {"messages": []}, {"messages": []}),
    ],
)
def test_results_are_lifted(method: str, result: Json, lifted: Json) -> None:
    before = repr(result)
    assert dialect.outcome(Call(MODERN, method, {}), Response(1, result)) == Result(lifted)
    assert repr(result) == before


@pytest.mark.parametrize(
    ("method", "client", "error", "code", "data"),
    [
        ("resources/read", MODERN, {"code": -32002}, -32602, {"uri": "x:a"}),
        ("resources/read", MODERN, {"code": -32002, "data": {"uri": "x:b", "k": 1}}, -32602, {"uri": "x:b", "k": 1}),
        ("tools/call", MODERN, {"code": -32002, "data": "d"}, -32002, "d"),
        ("tools/call", MODERN, {"code": -32021, "data": {}}, -32603, {}),
        ("tools/call", MODERN, {"code": -32021, "data": {"requiredCapabilities": {"roots": {}}}}, -32021,
         {"requiredCapabilities": {"roots": {}}}),
        ("tools/call", LEGACY, {"code": -32050}, -32603, None),
        ("tools/call", LEGACY, {"code": -32019}, -32019, None),
        ("tools/call", MODERN, {"code": True}, -32603, None),
        ("tools/call", LEGACY, {"code": 7, "data": {"elicitations": [{}], "x": 1}}, 7, {"x": 1}),
        ("tools/call", LEGACY, {"code": "x", "data": {"elicitations": [{}]}}, -32603, {}),
    ],
)
def test_errors_are_lifted(method: str, client: Client, error: Json, code: int, data: Any) -> None:
    outcome = dialect.outcome(Call(client, method, {"uri": "x:a"}), Response(1, error={"message": "no", **error}))
    assert outcome == Failure(code, "no", data)


def test_an_initialize_result_is_a_discover_value() -> None:
    result = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {"listChanged": True}, "tasks": {}, "logging": {}},
        "serverInfo": {"name": "s"},
        "instructions": "hi",
    }
    assert dialect.discovered(result) == {
        "supportedVersions": ["2025-06-18"],
        "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        "instructions": "hi",
        "ttlMs": 0,
        "cacheScope": "private",
    }
    assert dialect.discovered({"capabilities": None})["capabilities"] == {}


TEXT = "x" * 7_000_000
MANY: Json = {"serverInfo": {"name": TEXT}, "extra": [[]] * 48_000, "_meta": {"y": TEXT}, "instructions": TEXT}


@pytest.mark.parametrize("discovered", [dialect.discovered, modern_server.discovered], ids=["legacy", "modern"])
@pytest.mark.parametrize(
    "capabilities",
    [
        {"tools": {"listChanged": True}, "x": TEXT}, {"tools": {"listChanged": True}, "logging": {"x": [[]] * 48_000}},
        {"tools": {"listChanged": True}, TEXT: {}},
        {"tools": {"listChanged": True}, **{f"x{n}": {} for n in range(10_000)}},
    ],
)  # fmt: skip
def test_whatever_a_server_says_of_itself_a_few_bytes_of_it_are_kept(
    discovered: Callable[[Json], Json], capabilities: Json
) -> None:
    version = {"protocolVersion": "2025-11-25", "supportedVersions": ["2026-07-28", TEXT, *["2026-07-28"] * 10_000]}
    made = discovered({**version, **MANY, "capabilities": capabilities})
    assert made["capabilities"]["tools"] == {"listChanged": True}
    assert set(made["capabilities"]) <= {"tools", "logging"} and len(made["supportedVersions"]) == 1
    assert len(dump(made)) < 20_000


PAGE: Json = {"mode": "url", "message": "Log in", "url": "https://a.test/", "elicitationId": "e"}


def test_pages_to_visit_first_are_an_error_for_one_revision_and_words_for_all_others() -> None:
    error = {"code": -32042, "message": "no", "data": {"elicitations": [PAGE]}}
    opens = replace(LEGACY, capabilities={"elicitation": {"url": {}}})
    assert dialect.outcome(Call(opens, "tools/call", {}), Response(1, error=error)) == Failure(
        -32042, "no", error["data"]
    )
    words = "no\nLog in: https://a.test/"
    for client in (MODERN, LEGACY, Client("key:a", revision="2025-06-18")):
        told = dialect.outcome(Call(client, "tools/call", {}), Response(1, error=error))
        assert told == Result({"content": [{"type": "text", "text": words}], "isError": True})
        assert dialect.outcome(Call(client, "prompts/get", {}), Response(1, error=error)) == Failure(-32603, words)
    bare = dialect.outcome(Call(LEGACY, "prompts/get", {}), Response(1, error={**error, "data": {}}))
    assert bare == Failure(-32603, "no")
    own = OwnUrls(["a.test"])
    told = dialect.outcome(Call(MODERN, "prompts/get", {}), Response(1, error=error), own=own)
    assert told == Failure(-32603, "no"), "a page of Sluice's own"


def test_what_every_result_has_is_added_to_a_tools_and_missed_in_others() -> None:
    def of(method: str, result: Json) -> Any:
        return dialect.outcome(Call(MODERN, method, {}), Response(1, result))

    text = [{"type": "text", "text": '{"a":1}'}]
    assert of("tools/call", {"structuredContent": {"a": 1}}) == Result(
        {"structuredContent": {"a": 1}, "content": text}
    )
    assert of("tools/call", {}) == Result({"content": []})
    for method in ("prompts/get", "resources/read", "completion/complete"):
        failed = of(method, {"x": 1})
        assert isinstance(failed, Failure) and failed.code == -32603 and method in failed.message
