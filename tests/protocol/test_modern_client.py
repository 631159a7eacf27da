"""A modern client's requests: the ladder of checks, and outcomes as it may see them."""

import base64
from typing import Any

import pytest

from sluicegate.protocol.jsonrpc import Request
from sluicegate.protocol.model import MODERN, Failure, InputRequired, Notification, Result
from sluicegate.protocol.modern_client import (
    Parsed,
    Rejection,
    is_modern,
    notification,
    parse,
    respond,
    routing,
)
from sluicegate.protocol.revisions import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
)

ME = {"name": "Sluice", "version": "1"}
ENVELOPE = {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: {}}


def request(method: str = "tools/call", meta: Any = ENVELOPE, **params: Any) -> Request:
    return Request(7, method, {**params, "_meta": meta})


def headers(method: str = "tools/call", name: str | None = "echo", version: str = MODERN, **more: str) -> Any:
    pairs = [(b"mcp-protocol-version", version.encode()), (b"mcp-method", method.encode())]
    if name is not None:
        pairs.append((b"mcp-name", name.encode()))
    return pairs + [(key.replace("_", "-").encode(), value.encode()) for key, value in more.items()]


def rejected(answer: Any) -> tuple[int, int]:
    assert isinstance(answer, Rejection) and answer.response.id == 7
    assert answer.response.error is not None
    return answer.status, answer.response.error["code"]


BAD_META = {
    "none": None,
    "no object": [],
    "empty": {},
    "no revision": {CLIENT_CAPABILITIES: {}},
    "no capabilities": {PROTOCOL_VERSION: MODERN},
    "capabilities a list": {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: []},
    "revision a number": {PROTOCOL_VERSION: 20260728, CLIENT_CAPABILITIES: {}},
    "info a string": {**ENVELOPE, CLIENT_INFO: "x"},
    "token an object": {**ENVELOPE, "progressToken": {}},
    "token true": {**ENVELOPE, "progressToken": True},
    "large capabilities": {**ENVELOPE, CLIENT_CAPABILITIES: {"experimental": {"x": "a" * 16_384}}},
    "large info": {**ENVELOPE, CLIENT_INFO: {"name": "a" * 16_384}},
}


@pytest.mark.parametrize("meta", BAD_META.values(), ids=BAD_META.keys())
def test_an_incomplete_envelope_is_refused_first(meta: Any) -> None:
    assert rejected(parse(request(meta=meta, name="echo"), routing(headers()))) == (400, -32602)


BAD_HEADERS = {
    "none at all": [],
    "no method": headers()[:1] + headers()[2:],
    "another method": headers("tools/list"),
    "no name": headers(name=None),
    "another name": headers(name="ech0"),
    "a name in another case": headers(name="Echo"),
    "another revision": headers(version="2025-11-25"),
    "a name twice": [*headers(), (b"mcp-name", b"echo")],
    "a parameter twice": [*headers(), (b"mcp-param-a", b"1"), (b"mcp-param-a", b"1")],
    "a broken sentinel": headers(name="=?base64?!?="),
}


@pytest.mark.parametrize("pairs", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_headers_must_say_what_the_body_says(pairs: Any) -> None:
    assert rejected(parse(request(name="echo"), routing(pairs))) == (400, -32020)


def test_names_beyond_ascii_and_blanks_around_are_understood() -> None:
    encoded = f"=?base64?{base64.b64encode('naïve'.encode()).decode()}?="
    assert isinstance(parse(request(name="naïve"), routing(headers(name=encoded))), Parsed)
    assert isinstance(parse(request(name="echo"), routing(headers(name="  echo\t"))), Parsed)


def test_a_foreign_revision_is_answered_with_ours() -> None:
    meta = {**ENVELOPE, PROTOCOL_VERSION: "v999.0.0"}
    answer = parse(request(meta=meta, name="echo"), routing(headers(version="v999.0.0")))
    assert rejected(answer) == (400, -32022)
    assert isinstance(answer, Rejection) and answer.response.error is not None
    assert answer.response.error["data"]["requested"] == "v999.0.0"
    assert MODERN in answer.response.error["data"]["supported"]


@pytest.mark.parametrize(
    "method",
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/list", "no/such"],
)
def test_removed_and_unknown_methods_are_not_found(method: str) -> None:
    assert rejected(parse(request(method), routing(headers(method, None)))) == (404, -32601)


def test_a_good_request_comes_in_the_middles_words() -> None:
    meta = {**ENVELOPE, CLIENT_INFO: {"name": "c"}, "progressToken": 3, "traceparent": "00-x"}
    parsed = parse(request(meta=meta, name="echo", arguments={"a": 1}), routing(headers(mcp_param_a="1")))
    assert isinstance(parsed, Parsed)
    assert parsed.params == {"name": "echo", "arguments": {"a": 1}}
    assert parsed.meta == {"progressToken": 3, "traceparent": "00-x"}
    assert parsed.info == {"name": "c"} and parsed.mirrored == {"a": "1"} and parsed.capability_key == "{}"


def test_on_a_pipe_there_are_no_headers_to_check() -> None:
    parsed = parse(request(name="echo"), None)
    assert isinstance(parsed, Parsed) and parsed.mirrored is None
    assert is_modern(request()) and not is_modern(Request(1, "ping", {}))


def test_results_are_complete_and_say_who_answered() -> None:
    status, response = respond(7, "tools/call", Result({"content": [], "_meta": {"x": 1}}), ME)
    assert status == 200 and response.result == {
        "content": [], "resultType": "complete", "_meta": {"x": 1, SERVER_INFO: ME},
    }  # fmt: skip


def test_cacheable_results_always_carry_their_hints() -> None:
    _, response = respond(7, "tools/list", Result({"tools": [], "ttlMs": 5}), ME)
    assert response.result is not None
    assert response.result["ttlMs"] == 5 and response.result["cacheScope"] == "private"


def test_an_ask_is_a_result_of_three_methods_only() -> None:
    ask = InputRequired({"q": {"method": "roots/list"}}, "")
    _, response = respond(7, "prompts/get", ask, ME)
    assert response.result is not None and response.result["requestState"] == ""
    assert "requestState" not in (respond(7, "tools/call", InputRequired({"q": {}}), ME)[1].result or {})
    assert respond(7, "tools/list", ask, ME)[1].error is not None


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [(-32020, 400, -32020), (-32021, 400, -32021), (-32022, 400, -32022), (-32601, 404, -32601),
     (-32602, 200, -32602), (-32603, 200, -32603), (-32002, 200, -32602), (17, 200, 17)],
)  # fmt: skip
def test_errors_keep_their_data_and_only_fixed_statuses_differ(code: int, status: int, shown: int) -> None:
    got, response = respond(7, "tools/call", Failure(code, "m", {"uri": "x"}), ME)
    assert (got, response.error) == (status, {"code": shown, "message": "m", "data": {"uri": "x"}})


def test_a_listen_stream_carries_its_subscription_and_nothing_of_calls() -> None:
    changed = Notification("notifications/tools/list_changed", {})
    stamped = notification(changed, "subscriptions/listen", 0)
    assert stamped is not None and stamped.params["_meta"] == {SUBSCRIPTION_ID: 0}
    progress = Notification("notifications/progress", {"progressToken": 1, "progress": 1})
    assert notification(progress, "subscriptions/listen", 0) is None
    assert notification(progress, "tools/call", 0) is progress
    assert notification(changed, "tools/call", 0) is None
    _, response = respond(0, "subscriptions/listen", Result({}), ME)
    assert response.result is not None and response.result["_meta"][SUBSCRIPTION_ID] == 0
