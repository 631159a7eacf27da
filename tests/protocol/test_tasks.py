"""What may be said of a task, in both forms of it."""

from typing import Any

import pytest

from sluicegate.protocol import legacy_client, legacy_server, modern_client, modern_server, tasks
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Request, Response
from sluicegate.protocol.model import Call, Client, Failure, Result, TaskStarted
from sluicegate.protocol.modern_client import Parsed, Rejection

TIMES: Json = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:01Z"}
MODERN: Json = {"taskId": "x", "status": "working", **TIMES, "ttlMs": 60_000, "pollIntervalMs": 500}
LEGACY: Json = {"taskId": "x", "status": "working", **TIMES, "ttl": 60_000, "pollInterval": 500}
NEW, OLD = Client("key:a"), Client("key:a", revision="2025-11-25")
EXTENSION: Json = {"extensions": {tasks.EXTENSION: {}}}


def test_both_forms_say_the_same() -> None:
    assert tasks.read(LEGACY) == tasks.read(MODERN) == MODERN
    assert tasks.to_legacy(MODERN) == LEGACY


@pytest.mark.parametrize(
    ("key", "said", "kept"),
    [
        ("ttlMs", None, tasks.MAX_TTL), ("ttlMs", 10**12, tasks.MAX_TTL), ("ttlMs", -1, 1), ("ttlMs", 1.5, 1),
        ("ttlMs", "1", tasks.MAX_TTL), ("ttlMs", True, tasks.MAX_TTL), ("ttlMs", float("nan"), tasks.MAX_TTL),
        ("pollIntervalMs", 0, tasks.MIN_POLL), ("pollIntervalMs", 10**9, tasks.MAX_POLL), ("pollIntervalMs", "x", 1000),
        ("statusMessage", "m" * 9999, "m" * tasks.MAX_TEXT),
        ("createdAt", "2" * 9999, "2" * 64), ("lastUpdatedAt", "2" * 9999, "2" * 64),
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_brought_within(key: str, said: Any, kept: Any) -> None:
    read = tasks.read({**MODERN, key: said})
    assert read is not None and read[key] == kept and type(read[key]) is type(kept)


@pytest.mark.parametrize("other", ["InputRequests", "input_requests", "Result", "ERROR", "result_type", "Task"])
def test_a_task_asks_nothing_under_another_spelling(other: str) -> None:
    """A client that ignores case would read it, and be asked what nobody judged."""
    assert tasks.read({**MODERN, "x": 1}) == {**MODERN, "x": 1}
    for task in (MODERN, LEGACY):
        assert tasks.read({**task, "x": 1, other: {}}) == MODERN
    done = {**MODERN, "status": "completed", "result": {"content": []}, "resultType": "complete"}
    told = modern_server.result("tasks/get", {**done, other: {}})
    assert told == Result({**MODERN, "status": "completed", "result": {"content": []}})


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {**MODERN, "taskId": ""}, {**MODERN, "taskId": 1}, {**MODERN, "status": "done"},
     {**MODERN, "taskId": "x" * (tasks.MAX_ID + 1)}, {**MODERN, "status": []}, {**MODERN, "createdAt": 1}],
)  # fmt: skip
def test_what_is_no_task_is_none(value: Any) -> None:
    assert tasks.read(value) is None


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({**MODERN, "result": {}, "requestState": "s"}, MODERN),
        ({**MODERN, "status": "completed"}, None),
        ({**MODERN, "status": "failed", "error": "no"}, None),
        ({**MODERN, "status": "input_required", "inputRequests": {}},
         {**MODERN, "status": "input_required", "inputRequests": {}}),
        ({**MODERN, "status": "completed", "result": {"_meta": {tasks.RELATED: {"taskId": "x"}}}},
         {**MODERN, "status": "completed", "result": {}}),
    ],
)  # fmt: skip
def test_a_status_has_its_own_part_and_no_other(value: Json, kept: Json | None) -> None:
    assert tasks.detailed(value) == kept


def test_only_the_extension_makes_a_task_of_a_result() -> None:
    call = Call(NEW, "tools/call", {"name": "t"})
    parts = {"result": {"content": []}, "error": {"code": 1, "message": "m"}, "requestState": "s", "inputRequests": {}}
    answer = Response(1, {"resultType": "task", **MODERN, **parts, "extra": [1]})
    assert modern_server.outcome(call, answer) == TaskStarted(MODERN)
    for method in ("prompts/get", "resources/read", "tools/list"):
        outcome = modern_server.outcome(Call(NEW, method, {}), answer)
        assert isinstance(outcome, Failure) and outcome.code == INTERNAL_ERROR
    broken = modern_server.outcome(call, Response(1, {"resultType": "task", "taskId": "x"}))
    assert isinstance(broken, Failure) and broken.code == INTERNAL_ERROR


def test_a_legacy_server_makes_a_task_only_where_one_was_wanted() -> None:
    answer = Response(1, {"task": LEGACY, "_meta": {tasks.RELATED: {"taskId": "x"}, "io.modelcontextprotocol/x": 1}})
    wanted = legacy_server.outcome(Call(OLD, "tools/call", {"task": {}}), answer)
    assert wanted == TaskStarted({**MODERN, "_meta": {"io.modelcontextprotocol/x": 1}})
    parts = {"result": {"content": []}, "error": {"code": 1, "message": "m"}, "requestState": "s", "inputRequests": {}}
    said = Response(1, {"task": {**LEGACY, **parts, "extra": [1]}})
    assert legacy_server.outcome(Call(OLD, "tools/call", {"task": {}}), said) == TaskStarted(MODERN)
    looked_at = legacy_server.outcome(Call(OLD, "tasks/get", {}), Response(1, {**LEGACY, **parts}))
    assert looked_at == Result(MODERN), "the result of a task is that of tasks/result"
    assert isinstance(legacy_server.outcome(Call(OLD, "tools/call", {}), answer), Result)


def test_each_edge_says_it_in_its_own_form() -> None:
    started = TaskStarted({**MODERN, "_meta": {"k": 1}})
    status, response = modern_client.respond(7, "tools/call", started, {"name": "me"})
    assert status == 200 and response.result is not None
    assert response.result["resultType"] == "task" and response.result["_meta"]["k"] == 1
    assert legacy_client.respond(7, "tools/call", started, "2025-11-25").result == {"task": LEGACY, "_meta": {"k": 1}}
    listed = legacy_client.respond(7, "tasks/list", Result({"tasks": [MODERN], "nextCursor": "c"}), "2025-11-25")
    assert listed.result == {"tasks": [LEGACY], "nextCursor": "c"}


@pytest.mark.parametrize(("revision", "has"), [("2024-11-05", False), ("2025-06-18", False), ("2025-11-25", True)])
def test_a_wish_for_a_task_is_one_in_its_own_revision_alone(revision: str, has: bool) -> None:
    parsed = legacy_client.parse(Request(1, "tools/call", {"name": "t", "task": {"ttl": 5}}), revision, None)
    assert isinstance(parsed, Parsed) and ("task" in parsed.params) is has
    assert isinstance(legacy_client.parse(Request(1, "tasks/get", {"taskId": "x"}), revision, None), Parsed) is has


def test_a_stateless_client_has_no_wish() -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    parsed = modern_client.parse(Request(1, "tools/call", {"name": "t", "task": {}, "_meta": meta}), None)
    assert isinstance(parsed, Parsed) and parsed.params == {"name": "t"}
    for method in ("tasks/list", "tasks/result"):
        refused = modern_client.parse(Request(1, method, {"_meta": meta}), None)
        assert isinstance(refused, Rejection) and refused.status == 404


@pytest.mark.parametrize(
    ("capabilities", "offered"),
    [
        ({}, None), (EXTENSION, {}), ({"tasks": {}}, None), ({"tasks": {"requests": {"tools": {}}}}, None),
        ({"tasks": {"list": {}, "requests": {"tools": {"call": {}}}}}, {"list": {}}),
        ({"tasks": {"list": {}, "cancel": {}, "x": {}, "requests": {"tools": {"call": {}}}}},
         {"list": {}, "cancel": {}}),
    ],
)  # fmt: skip
def test_what_a_server_offers(capabilities: Json, offered: Json | None) -> None:
    assert tasks.offered(capabilities) == offered


def test_a_task_fails_with_no_pages_to_open() -> None:
    data = {"elicitations": [{"mode": "url", "url": "http://127.0.0.1:7411/", "message": "m"}], "more": 1}
    failed = {"taskId": "t", "status": "failed", "createdAt": "2026-01-01T00:00:00Z", "ttlMs": None}
    told = tasks.detailed({**failed, "error": {"code": -32042, "message": "m", "data": data}})
    assert told is not None and told["error"] == {"code": -32603, "message": "m", "data": {"more": 1}}
    for other in ({"Code": -32042, "Data": data}, {"data": {"elicit_ations": [], "\uff45licitations": []}}):
        told = tasks.detailed({**failed, "error": {"code": 7, "message": "m", **other}})
        assert told is not None and {**told["error"], "data": {}} == {"code": 7, "message": "m", "data": {}}
    told = tasks.detailed({**failed, "error": {"code": 7, "message": "m"}})
    assert told is not None and told["error"] == {"code": 7, "message": "m"}


def test_the_relation_to_a_task_is_written_into_a_copy() -> None:
    value: Json = {"content": [], "_meta": {"k": 1}}
    assert tasks.related(value, "T") == {"content": [], "_meta": {"k": 1, tasks.RELATED: {"taskId": "T"}}}
    assert value == {"content": [], "_meta": {"k": 1}}
