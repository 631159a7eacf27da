"""What one client may take of a real Sluice: requests of every kind, streams, approvals. A new session gives no more,
and nobody else gets less."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bearer, bed, client_keys, reason, recorder

ROWS = "p, role:user, *, *, *, allow\np2, *, fs, tool:drop, *, two-person\n"
REQUESTS, STREAMS, APPROVALS = 12, 2, 2
ACCEPT = {"Accept": "application/json, text/event-stream"}
KINDS: dict[str, Json] = {
    "server/discover": {},
    "tools/list": {},
    "prompts/list": {},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "fs+x:y"},
    "prompts/get": {"name": "fs__ask"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "fs__ask"}, "argument": {"name": "a", "value": ""}},
    "tools/call": {"name": "fs__read", "arguments": {}},
    "subscriptions/listen": {"notifications": {"resourceSubscriptions": ["fs+x:y"]}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("bounds")
    servers = {"fs": recorder(folder, "fs", tools=["read", "drop"], prompts=["ask"], resources=["x:y"])}
    names = ["busy", "streams", "asks", "calm", "large"]
    limits = {"per_client": f"{REQUESTS}/h", "streams": STREAMS, "pending_approvals": APPROVALS}
    keys = {"keys": client_keys(**{name: ["role:user"] for name in names})}
    with bed(folder, ROWS, servers, clients=keys, limits=limits, approvals={"hold_for": "0s"}) as made:
        yield made


def session(place: Bed, who: str) -> dict[str, str]:
    """The headers of a new legacy session, or none if there is none to be had."""
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = place.post(who, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, {})
    id = answer.headers.get("mcp-session-id")
    return {} if id is None else {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": id}


def test_requests_of_every_kind_are_counted_together(place: Bed) -> None:
    for _ in range(REQUESTS):
        assert reason(place.ask("busy", "resources/read", uri="fs+x:y")) == ""
    before = len(place.seen("fs"))
    for method, params in KINDS.items():
        assert reason(place.ask("busy", method, **params)) == "rate_limited", method
    assert session(place, "busy") == {}
    assert len(place.seen("fs")) == before
    assert reason(place.ask("calm", "tools/list")) == ""


def listening(place: Bed) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {"notifications": {}, "_meta": META}}
    head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen", **ACCEPT, **bearer("streams")}
    return httpx.stream("POST", place.process.url, json=body, headers=head, timeout=20)


def test_streams_of_every_kind_are_counted_together(place: Bed) -> None:
    one, two = session(place, "streams"), session(place, "streams")
    with ExitStack() as stack:

        def get(head: dict[str, str], path: str = "") -> int:
            url = place.process.url.removesuffix("/mcp") + (path or "/mcp")
            told = {"Accept": "text/event-stream", **head, **bearer("streams")}
            return stack.enter_context(httpx.stream("GET", url, headers=told, timeout=20)).status_code

        assert stack.enter_context(listening(place)).status_code == 200
        assert get(one) == 200
        assert (get(two), get({}, "/sse")) == (429, 429)
        assert stack.enter_context(listening(place)).status_code == 429
    place.until(lambda: opens_again(place))


def opens_again(place: Bed) -> bool:
    with listening(place) as stream:
        return stream.status_code == 200 and str(stream.headers["content-type"]).startswith("text/event-stream")


def test_approvals_that_wait_are_counted_together(place: Bed) -> None:
    told = [reason(place.call("asks", "fs__drop", number=number)) for number in range(APPROVALS + 1)]
    assert told == ["approval_pending"] * APPROVALS + ["rate_limited"]
    assert reason(place.call("asks", "fs__drop", number=0)) == "approval_pending"  # it is the one that waits already
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "fs__drop", "arguments": {"x": 1}}}
    assert reason(place.post("asks", body, session(place, "asks"))) == "rate_limited"
    assert reason(place.call("calm", "fs__drop")) == "approval_pending"
    assert not [message for message in place.seen("fs") if message["method"] == "tools/call"]


def test_a_large_request_is_served_and_one_that_the_rate_refuses_is_not_read(place: Bed) -> None:
    assert reason(place.call("large", "fs__read", text="x" * 1_000_000)) == ""
    for _ in range(REQUESTS + 1):
        place.ask("large", "tools/list")
    before = len(place.seen("fs"))
    assert place.call("large", "fs__read", text="x" * 1_000_000).status_code == 429
    assert len(place.seen("fs")) == before
