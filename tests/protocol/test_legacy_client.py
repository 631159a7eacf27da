"""A legacy client: what its revision knows goes out, what it does not is said in words."""

from typing import Any

import pytest

from sluicegate.protocol.jsonrpc import Request
from sluicegate.protocol.legacy_client import (
    Handshake,
    initialize,
    initialize_result,
    notification,
    parse,
    respond,
)
from sluicegate.protocol.model import LOG_LEVEL, Failure, InputRequired, Notification, Result
from sluicegate.protocol.modern_client import Parsed
from sluicegate.protocol.revisions import LEGACY

ME = {"name": "Sluice", "version": "1"}


@pytest.mark.parametrize("revision", LEGACY)
def test_every_legacy_revision_is_negotiated_as_itself(revision: str) -> None:
    handshake = initialize({"protocolVersion": revision, "capabilities": {"roots": {}}, "clientInfo": {"name": "c"}})
    assert handshake == Handshake(revision, {"name": "c"}, {"roots": {}}, '{"roots":{}}')


@pytest.mark.parametrize("asked", ["2026-07-28", "1999-01-01", ""])
def test_another_revision_gets_our_newest_of_this_era(asked: str) -> None:
    handshake = initialize({"protocolVersion": asked, "capabilities": {}, "clientInfo": {}})
    assert isinstance(handshake, Handshake) and handshake.revision == "2025-11-25"


@pytest.mark.parametrize("params", [{}, {"protocolVersion": 1}, {"protocolVersion": "2025-11-25", "capabilities": []}])
def test_a_handshake_without_its_fields_is_an_error(params: Any) -> None:
    assert isinstance(initialize(params), Failure)


def test_a_session_keeps_no_long_description_of_its_client() -> None:
    long = {"experimental": {"x": "a" * 1_000}}
    params = {"protocolVersion": "2025-11-25", "capabilities": long}
    handshake = initialize(params | {"clientInfo": {"name": "a" * 10_000}})
    assert isinstance(handshake, Handshake) and len(handshake.capability_key) == 64
    other = initialize({"protocolVersion": "2025-11-25", "capabilities": {"experimental": {"x": "a" * 1_001}}})
    assert isinstance(other, Handshake) and other.capability_key != handshake.capability_key
    for part in ("capabilities", "clientInfo"):
        refused = initialize({"protocolVersion": "2025-11-25", part: {"experimental": {"x": "a" * 16_384}}})
        assert refused == Failure(-32602, f"{part} has more than 16384 characters")


def test_a_session_keeps_the_name_of_its_client_and_nothing_else_that_it_says_of_itself() -> None:
    about = {"name": "n" * 1_000, "version": 7, "icons": [[] for _ in range(5_000)]}
    handshake = initialize({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about})
    assert isinstance(handshake, Handshake) and handshake.info == {"name": "n" * 128}


def test_the_initialize_result_is_made_of_what_discover_says() -> None:
    found = Result({"capabilities": {"tools": {}, "completions": {}, "extensions": {"x": {}}}, "instructions": "hi"})
    new, old = Handshake("2025-11-25", {}, {}, "{}"), Handshake("2024-11-05", {}, {}, "{}")
    assert initialize_result(new, found, ME) == Result(
        {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "completions": {}}, "serverInfo": ME,
         "instructions": "hi"}
    )  # fmt: skip
    older = initialize_result(old, found, ME)
    assert isinstance(older, Result) and older.value["capabilities"] == {"tools": {}}


def test_a_request_loses_its_meta_to_the_call_and_cannot_pose_as_modern() -> None:
    meta = {"progressToken": "a", "io.modelcontextprotocol/protocolVersion": "2026-07-28", "vendor/x": 1}
    parsed = parse(Request(1, "tools/call", {"name": "t", "_meta": meta}), "2025-11-25", "error")
    assert isinstance(parsed, Parsed)
    assert parsed.params == {"name": "t"}
    assert parsed.meta == {"progressToken": "a", "vendor/x": 1, LOG_LEVEL: "error"}


def test_ping_is_answered_here_and_other_eras_methods_are_not_found() -> None:
    assert parse(Request(1, "ping", {}), "2025-11-25", None) == Result({})
    for method in ("server/discover", "subscriptions/listen", "no/such", "initialize"):
        answer = parse(Request(1, method, {}), "2025-11-25", None)
        assert isinstance(answer, Failure) and answer.code == -32601


def test_modern_fields_do_not_reach_a_legacy_client() -> None:
    response = respond(1, "tools/list", Result({"tools": [], "ttlMs": 1, "cacheScope": "private"}), "2025-11-25")
    assert response.result == {"tools": []}
    response = respond(1, "tools/call", InputRequired({"q": {}}, "s"), "2025-11-25")
    assert response.error is not None and response.error["code"] == -32603


@pytest.mark.parametrize(("method", "code"), [("resources/read", -32002), ("tools/call", -32602)])
def test_a_missing_resource_has_its_own_code_before_2026(method: str, code: int) -> None:
    response = respond(1, method, Failure(-32602, "no", {"uri": "x"}), "2025-11-25")
    assert response.error == {"code": code, "message": "no", "data": {"uri": "x"}}


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_modern_error_codes_are_never_shown(code: int) -> None:
    response = respond(1, "tools/call", Failure(code, "no"), "2025-11-25")
    assert response.error is not None and response.error["code"] == -32603


LINK = {"type": "resource_link", "uri": "a:b", "name": "n"}
AUDIO = {"type": "audio", "data": "", "mimeType": "audio/wav"}
TEXT = {"type": "text", "text": "t"}


@pytest.mark.parametrize(
    ("revision", "kinds", "structured"),
    [("2024-11-05", ["text", "text", "text"], False), ("2025-03-26", ["text", "audio", "text"], False),
     ("2025-06-18", ["resource_link", "audio", "text"], True),
     ("2025-11-25", ["resource_link", "audio", "text"], True)],
)  # fmt: skip
def test_content_that_a_revision_lacks_is_said_in_text(revision: str, kinds: list[str], structured: bool) -> None:
    value = {"content": [LINK, AUDIO, TEXT], "structuredContent": {"a": 1}}
    response = respond(1, "tools/call", Result(value), revision)
    assert response.result is not None
    assert [item["type"] for item in response.result["content"]] == kinds
    assert ("structuredContent" in response.result) is structured
    prompt = respond(1, "prompts/get", Result({"messages": [{"role": "user", "content": LINK}]}), revision)
    assert prompt.result is not None and prompt.result["messages"][0]["content"]["type"] == kinds[0]


def test_old_clients_get_no_message_with_progress_and_no_acknowledgement_at_all() -> None:
    progress = Notification("notifications/progress", {"progressToken": 1, "progress": 1, "message": "m"})
    old = notification(progress, "2024-11-05")
    assert old is not None and "message" not in old.params
    assert notification(progress, "2025-03-26") is progress
    assert notification(Notification("notifications/subscriptions/acknowledged", {}), "2025-11-25") is None
    assert notification(Notification("notifications/tools/list_changed", {}), "2024-11-05") is not None
