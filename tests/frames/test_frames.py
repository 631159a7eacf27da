"""The harness that judges frames finds what is wrong, over HTTP and over pipes, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frames.record import Web
from frames.rules import REVISIONS, problems, revisions
from frames.schemas import definitions_of, schemas
from frames.tap import Connection
from frames.watch import Watch

Json = dict[str, Any]
TOOL: Json = {"name": "a", "inputSchema": {"type": "object"}}
MODERN: Json = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
CHECKOUT = os.environ.get("SLUICE_SPEC")
# Parts of other definitions, in one of two sources of a schema.
ONLY_PARTS = {"Annotated", "Annotations", "SubscriptionsListenResultMeta", "SubscriptionsListenResultResponse"}


def response(result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": 1, "result": result}


@pytest.mark.parametrize(
    ("revision", "method", "result", "wrong"),
    [
        ("2024-11-05", "tools/list", {"tools": [TOOL]}, None),
        ("2024-11-05", "tools/list", {"tools": [{**TOOL, "title": "A"}]}, "/tools/0/title"),
        ("2024-11-05", "tools/list", {"tools": [{**TOOL, "annotations": {}}]}, "/tools/0/annotations"),
        ("2025-03-26", "tools/list", {"tools": [{**TOOL, "annotations": {}}]}, None),
        ("2025-06-18", "tools/list", {"tools": [{**TOOL, "title": "A"}]}, None),
        ("2025-06-18", "tools/list", {"tools": [{**TOOL, "icons": []}]}, "/tools/0/icons"),
        ("2025-11-25", "tools/list", {"tools": [{**TOOL, "vendor": 1}]}, None),
        ("2025-11-25", "tools/list", {"tools": [TOOL], **MODERN}, "ttlMs"),
        ("2025-11-25", "tools/call", {"content": [{"type": "smell"}]}, "/content/0"),
        ("2025-03-26", "tools/call", {"content": [{"type": "audio", "data": "", "mimeType": "a/b"}]}, None),
        ("2024-11-05", "tools/call", {"content": [{"type": "audio", "data": "", "mimeType": "a/b"}]}, "/content/0"),
        ("2025-11-25", "tools/call", {"content": [], "structuredContent": []}, "structuredContent"),
        ("2026-07-28", "tools/call", {"content": [], "structuredContent": [], "resultType": "complete"}, None),
        ("2026-07-28", "tools/call", {"content": []}, "resultType"),
        ("2026-07-28", "tools/list", {"tools": [{**TOOL, "execution": {}}], **MODERN}, "execution"),
        ("2026-07-28", "resources/list", {"resources": [], "resultType": "complete"}, "ttlMs"),
        ("2026-07-28", "tools/call", {"resultType": "input_required", "inputRequests": {"a": {}}}, "inputRequests"),
    ],
)
def test_a_result_is_judged_by_its_own_revision(revision: str, method: str, result: Json, wrong: str | None) -> None:
    found = problems(response(result), revision, [method])
    assert (found == []) if wrong is None else any(wrong in problem for problem in found), found


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_definition_of_a_revision_can_be_judged_by(revision: str) -> None:
    rules = revisions()[revision]
    assert {"tools/call", "tools/list", "roots/list"} <= rules.methods.keys()
    for name in rules.definitions:
        rules.violations(name, {"jsonrpc": "2.0"})


def plain(value: Any, own: Json, others: Json) -> Any:
    """Without words for people, the order of parts, and names that only one side has for a part."""
    if isinstance(value, list):
        return sorted((plain(part, own, others) for part in value), key=repr)
    if not isinstance(value, dict):
        return value
    name = str(value.get("$ref", "")).rpartition("/")[2]
    if name in own and name not in others:
        return plain(own[name], own, others)
    return {
        key: plain(part, own, others)
        for key, part in value.items()
        if not (key == "description" and isinstance(part, str))
    }


@pytest.mark.skipif(CHECKOUT is None, reason="SLUICE_SPEC is no checkout of the specification")
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_schemas_are_those_of_the_specification(revision: str) -> None:
    ours = definitions_of(schemas()[revision])
    theirs = definitions_of(json.loads((Path(str(CHECKOUT)) / "schema" / revision / "schema.json").read_text()))
    for name in ours.keys() & theirs.keys():
        assert plain(ours[name], ours, theirs) == plain(theirs[name], theirs, ours), name
    assert {name.removesuffix("Object") for name in ours.keys() ^ theirs.keys()} <= ONLY_PARTS


def test_errors_are_judged_by_their_code() -> None:
    def error(code: int, **data: Any) -> Json:
        return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "m", **data}}

    assert problems(error(-32602), "2026-07-28") == []
    assert problems(error(-32002), "2026-07-28") != [] and problems(error(-32002), "2025-11-25") == []
    assert problems(error(-32042), "2025-06-18") != [] and problems(error(-32042), "2025-11-25") != []
    assert problems(error(-32021), "2026-07-28") != []
    assert problems(error(-32021, data={"requiredCapabilities": {"roots": {}}}), "2026-07-28") == []


def http(head: str, body: Json) -> bytes:
    data = json.dumps(body).encode()
    return f"{head}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n".encode() + b"\r\n" + data


def test_what_came_over_http_is_judged_by_its_session() -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
    agreed = {"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2024-11-05"}}
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    session = "Mcp-Session-Id: s"
    one, two = Connection(), Connection()
    one.asked += http("POST /mcp HTTP/1.1", hello)
    one.said += http(f"HTTP/1.1 200 OK\r\n{session}", agreed)
    two.asked += http(f"POST /mcp HTTP/1.1\r\n{session}", listing)
    two.said += http("HTTP/1.1 200 OK", response({"tools": [{"name": "a"}]}))
    listed = next(frame for frame in Web().frames([two, one]) if "tools" in frame.message.get("result", {}))
    assert (listed.revision, listed.answers, listed.by_server) == ("2024-11-05", ("tools/list",), True)
    assert "inputSchema" in listed.problems()[0]


SERVER = """
import json, sys
for line in sys.stdin:
    said = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s"}}
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": said}), flush=True)
"""


def test_a_frame_over_a_pipe_that_is_not_of_its_revision_fails_the_block(tmp_path: Path) -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
    with pytest.raises(AssertionError, match="version"), Watch(tmp_path) as watch:
        command = watch.front_pipe([sys.executable, "-c", SERVER])
        done = subprocess.run(command, input=json.dumps(hello) + "\n", capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout)["result"]["protocolVersion"] == "2025-11-25"


def test_taps_that_nothing_passed_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not in the way"), Watch(tmp_path):
        pass
