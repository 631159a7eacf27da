"""The stateless dialect towards a server: what a call becomes, and what an answer is."""

from typing import Any

import pytest

from sluicegate.protocol import modern_server as dialect
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import LOG_LEVEL, Call, Client, Failure, InputRequired, Outcome, Result
from sluicegate.protocol.pieces import in_one_step

INFO = {"name": "sluice", "version": "1"}
MODERN = Client("key:a", capabilities={"elicitation": {"form": {}}})
LEGACY = Client("key:a", revision="2025-11-25", capabilities={"sampling": {}})
PREFIX = "io.modelcontextprotocol/"


def call(method: str = "tools/call", client: Client = MODERN, **meta: Any) -> Call:
    params = {"uri": "x:a"} if method == "resources/read" else {"name": "t", "requestState": "s"}
    return Call(client, method, params, {key.replace("__", "/"): value for key, value in meta.items()})


# ---------------------------------------------------------------- requests


def test_a_request_says_who_asks_and_carries_our_token_for_the_clients() -> None:
    asked = call(progressToken="mine", traceparent="00-1", **{LOG_LEVEL: "info"})
    assert dialect.params(asked, 9, INFO) == {
        "name": "t",
        "requestState": "s",
        "_meta": {
            PREFIX + "protocolVersion": "2026-07-28",
            PREFIX + "clientInfo": INFO,
            PREFIX + "clientCapabilities": {"elicitation": {"form": {}}},
            LOG_LEVEL: "info",
            "progressToken": 9,
            "traceparent": "00-1",
        },
    }
    assert asked.meta["progressToken"] == "mine"


def test_nothing_is_asked_for_that_the_client_did_not_ask_for() -> None:
    assert set(dialect.params(call(), 9, INFO)["_meta"]) == {
        PREFIX + name for name in ("protocolVersion", "clientInfo", "clientCapabilities")
    }


def test_a_legacy_client_declares_what_it_said_in_its_handshake() -> None:
    declared = dialect.params(call(client=LEGACY), 1, INFO)["_meta"][PREFIX + "clientCapabilities"]
    assert declared == {"sampling": {}}


@pytest.mark.parametrize(
    ("method", "params", "headers"),
    [
        ("tools/list", {}, [(b"Mcp-Method", b"tools/list")]),
        ("tools/call", {"name": "my-tool"}, [(b"Mcp-Method", b"tools/call"), (b"Mcp-Name", b"my-tool")]),
        ("prompts/get", {"name": "p q"}, [(b"Mcp-Method", b"prompts/get"), (b"Mcp-Name", b"p q")]),
        (
            "resources/read",
            {"uri": "file:///a%20b?id=1"},
            [(b"Mcp-Method", b"resources/read"), (b"Mcp-Name", b"file:///a%20b?id=1")],
        ),
        (
            "tools/call",
            {"name": "a\r\nX: y"},
            [(b"Mcp-Method", b"tools/call"), (b"Mcp-Name", b"=?base64?YQ0KWDogeQ==?=")],
        ),
        ("completion/complete", {"name": "not mirrored"}, [(b"Mcp-Method", b"completion/complete")]),
    ],
)
def test_the_body_is_mirrored_into_headers(method: str, params: Json, headers: list[tuple[bytes, bytes]]) -> None:
    assert dialect.headers(method, params) == headers


def test_annotated_parameters_are_mirrored_where_they_have_a_value() -> None:
    names = {
        "text": "string",
        "number": "integer",
        "flag": "boolean",
        "empty": "string",
        "none": "string",
        "gone": "string",
    }
    properties: Json = {key: {"type": kind, "x-mcp-header": key} for key, kind in names.items()}
    properties["deep"] = {"properties": {"er": {"type": "string", "x-mcp-header": "Deep-Er"}}}
    annotated = dialect.asked_for({"inputSchema": {"properties": properties}})
    arguments = {"text": "a", "number": 42.0, "flag": False, "empty": "", "none": None, "deep": {"er": "é"}, "other": 1}
    made = dialect.headers("tools/call", {"name": "t", "arguments": arguments}, annotated)[2:]
    assert dict(made) == {
        b"Mcp-Param-text": b"a",
        b"Mcp-Param-number": b"42",
        b"Mcp-Param-flag": b"false",
        b"Mcp-Param-empty": b"",
        b"Mcp-Param-Deep-Er": b"=?base64?w6k=?=",
    }


@pytest.mark.parametrize("item", [None, {}, {"inputSchema": 5}, {"inputSchema": {"items": {"x-mcp-header": "A"}}}])
def test_a_tool_without_valid_annotations_mirrors_nothing(item: Json | None) -> None:
    assert dialect.asked_for(item) == {}


def test_one_bad_tool_does_not_hide_the_others() -> None:
    bad = [
        {"name": "number", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}},
        {"name": "token", "inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": "A\r\n"}}}},
        {"name": "empty", "inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": ""}}}},
        {
            "name": "twice",
            "inputSchema": {
                "properties": {
                    "a": {"type": "string", "x-mcp-header": "A"},
                    "b": {"type": "string", "x-mcp-header": "a"},
                }
            },
        },
        {"name": "items", "inputSchema": {"properties": {"a": {"items": {"type": "string", "x-mcp-header": "A"}}}}},
    ]
    good = [
        {"name": "plain", "inputSchema": {"type": "object"}},
        {"name": "named so", "inputSchema": {"properties": {"x-mcp-header": {"type": "string"}}}},
    ]
    kept, dropped = in_one_step(dialect.offerable([*bad, *good], over_http=True))
    assert kept == good
    assert list(dropped) == [tool["name"] for tool in bad]
    assert in_one_step(dialect.offerable([*bad, *good], over_http=False)) == ([*bad, *good], {})


def test_what_is_said_of_a_bad_tool_is_not_made_of_what_its_server_wrote_in_the_place_of_a_word() -> None:
    held = ["\x7f" * 1_000]  # written out, each character takes four
    bad = {"name": held, "inputSchema": {"properties": {"a": {"type": held, "x-mcp-header": "A"}}}}
    _, dropped = in_one_step(dialect.offerable([bad], over_http=True))
    assert len(str(dropped)) < 100


def test_tools_are_looked_at_in_pieces_and_say_nothing_of_the_tasks_of_before() -> None:
    work = dialect.offerable([{"name": f"t{n}", "execution": {"taskSupport": "optional"}} for n in range(1_000)], True)
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            offered, dropped = end.value
            break
        steps += 1
    assert steps >= 10 and offered == [{"name": f"t{n}"} for n in range(1_000)] and not dropped


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("method", "result", "outcome"),
    [
        ("tools/call", {"content": []}, Result({"content": []})),
        ("tools/call", {"content": [], "resultType": "complete"}, Result({"content": []})),
        ("tools/call", {"content": [], "_meta": {PREFIX + "serverInfo": {}, "k": 1}},
         Result({"content": [], "_meta": {"k": 1}})),
        ("tools/call", {"_meta": {PREFIX + "serverInfo": {}}}, Result({"content": []})),
        ("prompts/get", {"resultType": "complete"},
         Failure(-32603, "The server's answer to prompts/get has no messages")),
        ("tools/list", {"tools": []}, Result({"tools": [], "ttlMs": 0, "cacheScope": "private"})),
        (
            "tools/list",
            {"tools": [], "ttlMs": 10**400},
            Result({"tools": [], "ttlMs": 86_400_000, "cacheScope": "private"}),
        ),
        (
            "tools/list",
            {"tools": [], "ttlMs": 5, "cacheScope": "public", "nextCursor": ""},
            Result({"tools": [], "ttlMs": 5, "cacheScope": "private", "nextCursor": ""}),
        ),
        # Here a policy decides who gets it, of which its server knows nothing.
        ("resources/read", {"contents": [], "ttlMs": 5, "cacheScope": "public"},
         Result({"contents": [], "ttlMs": 5, "cacheScope": "private"})),
        (
            "prompts/list",
            {"prompts": [], "ttlMs": -1, "cacheScope": 1, "nextCursor": None},
            Result({"prompts": [], "ttlMs": 0, "cacheScope": "private"}),
        ),
        (
            "tools/call",
            {"resultType": "input_required", "inputRequests": {"k": {"method": "roots/list"}}},
            InputRequired({"k": {"method": "roots/list"}}, None),
        ),
        ("prompts/get", {"resultType": "input_required", "requestState": ""}, InputRequired({}, "")),
    ],
)  # fmt: skip
def test_a_result_is_an_outcome(method: str, result: Json, outcome: Outcome) -> None:
    assert dialect.outcome(call(method), Response(1, result)) == outcome


@pytest.mark.parametrize("method", ["tasks/cancel", "tasks/update"])
def test_what_acknowledges_says_nothing_of_the_task(method: str) -> None:
    """Nobody has judged the question or the sizes in it, and the record of the task would keep it."""
    ask: Json = {"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "javascript:1"}}
    said: Json = {"taskId": "1", "status": ["w"], "statusMessage": "m" * 5_000_000, "pollIntervalMs": "soon"}
    said |= {"inputRequests": {"k": ask}, "result": {"content": []}}
    said["_meta"] = {"k": "m" * 5_000_000}
    for kind in ({}, {"resultType": "complete"}, {"resultType": "task"}):
        assert dialect.outcome(call(method), Response(1, {**said, **kind})) == Result({})
    assert isinstance(dialect.outcome(call(method), Response(1, {"resultType": "input_required"})), Failure)


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/call", {"resultType": "task", "taskId": "1"}),
        ("tools/call", {"resultType": None}),
        ("tools/call", {"resultType": "input_required"}),
        ("tools/call", {"resultType": "input_required", "inputRequests": {}}),
        ("tools/call", {"resultType": "input_required", "inputRequests": [], "requestState": "s"}),
        ("tools/call", {"resultType": "input_required", "requestState": 5}),
        ("tools/list", {"resultType": "input_required", "requestState": "s"}),
    ],
)
def test_a_result_of_an_unknown_kind_is_no_result(method: str, result: Json) -> None:
    outcome = dialect.outcome(call(method), Response(1, result))
    assert isinstance(outcome, Failure) and outcome.code == -32603


@pytest.mark.parametrize(
    ("method", "client", "error", "code", "data"),
    [
        ("tools/call", MODERN, {"code": -32602, "data": {"x": 1}}, -32602, {"x": 1}),
        ("tools/call", MODERN, {"code": 5}, 5, None),
        ("tools/call", MODERN, {"code": -32020}, -32603, None),
        ("tools/call", MODERN, {"code": -32042}, -32603, None),
        ("tools/call", MODERN, {"code": -32042, "data": {"elicitations": [{}], "x": 1}}, -32603, {"x": 1}),
        ("tools/call", LEGACY, {"code": 7, "data": {"elicitations": []}}, 7, {}),
        ("tools/call", MODERN, {"code": -32099}, -32603, None),
        ("tools/call", MODERN, {"code": -32022, "data": {"supported": []}}, -32603, None),
        (
            "tools/call",
            MODERN,
            {"code": -32021, "data": {"requiredCapabilities": {}}},
            -32021,
            {"requiredCapabilities": {}},
        ),
        ("tools/call", LEGACY, {"code": -32021, "data": {"requiredCapabilities": {}}}, -32603, None),
        ("resources/read", MODERN, {"code": -32002}, -32602, {"uri": "x:a"}),
        ("resources/read", MODERN, {"code": -32602, "data": {"uri": "x:b"}}, -32602, {"uri": "x:b"}),
        ("tools/call", MODERN, {"code": "text"}, -32603, None),
        ("tools/call", MODERN, {}, -32603, None),
    ],
)
def test_an_error_is_a_failure_that_the_client_may_see(
    method: str, client: Client, error: Json, code: int, data: Any
) -> None:
    outcome = dialect.outcome(call(method, client), Response(1, error={"message": "no", **error}))
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.data) == (code, data)


def test_what_a_server_discovers_is_the_value_of_the_middle() -> None:
    value = {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28", 5],
        "capabilities": {"tools": {}},
        "instructions": "hi",
        "_meta": {PREFIX + "serverInfo": {"name": "s"}},
    }
    assert dialect.discovered(value) == {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "instructions": "hi",
        "ttlMs": 0,
        "cacheScope": "private",
    }
    assert dialect.discovered({"capabilities": []})["capabilities"] == {}


def test_nothing_is_declared_to_a_server_that_all_share() -> None:
    client = Client("key:a", capabilities={"elicitation": {}}, capability_key='{"elicitation":{}}')
    asked = Call(client, "tools/call", {})
    own, shared = (dialect.params(asked, 1, {}, is_shared) for is_shared in (False, True))
    assert own["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {}}
    assert shared["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


def test_a_legacy_client_is_told_which_capabilities_it_lacks() -> None:
    data = {"requiredCapabilities": {"elicitation": {"url": {}}, "sampling": {}}}
    error = {"code": -32021, "message": "no", "data": data}
    outcome = dialect.outcome(call("tools/call", LEGACY), Response(1, error=error))
    assert isinstance(outcome, Failure)
    assert outcome.message == "The server needs a client with elicitation (url), sampling: no"


def test_a_list_is_asked_for_with_one_value_for_each_set_and_a_call_with_what_its_client_declares() -> None:
    ui = "io.modelcontextprotocol/ui"
    types = {"mimeTypes": ["x/y", "text/html;profile=mcp-app"]}
    own: Json = {"sampling": {"x": 1}, "elicitation": {}, "vendor": {}, "extensions": {ui: types}}
    who = Client("key:a", revision="2026-07-28", capabilities=own)

    def told(method: str) -> Json:
        params = dialect.params(Call(who, method, {}), 1, INFO)
        return dict(params["_meta"][PREFIX + "clientCapabilities"])

    one = {"elicitation": {"form": {}}, "sampling": {}, "extensions": {ui: {"mimeTypes": [types["mimeTypes"][1]]}}}
    for method in ("server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        assert told(method) == one
    assert told("tools/call") == own
