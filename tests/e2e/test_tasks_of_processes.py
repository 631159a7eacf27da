"""Tasks of a server that is started: they end with its process, and the same id of another process is another task."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.counting_tasks_server import EXTENSION
from policy_bed import Bed, bearer, bed, client_keys

Json = dict[str, Any]
SERVER = str(Path(__file__).with_name("counting_tasks_server.py"))
ROWS = """\
p, role:authenticated, *, *, *, allow
p, key:ann, *, tool:secret, *, deny
"""
MODERN = "2026-07-28"
ASKS: Json = {"elicitation": {"form": {}}}
KNOWS: Json = {"extensions": {EXTENSION: {}}, **ASKS}


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Bed]:
    servers: Json = {"count": {"command": sys.executable, "args": [SERVER, str(tmp_path / "pids")]}}
    with bed(tmp_path, ROWS, servers, clients={"keys": client_keys(ann=[], bob=[])}) as process:
        yield process


def ask(town: Bed, who: str, method: str, capabilities: Json = KNOWS, **params: Any) -> Json:
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": MODERN, f"{prefix}clientInfo": {"name": "t", "version": "1"},
            f"{prefix}clientCapabilities": capabilities}  # fmt: skip
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if "name" in params or "taskId" in params:
        headers["Mcp-Name"] = params.get("name", params.get("taskId"))
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    text = town.post(who, body, headers).text
    answer: Json = json.loads(text[text.index("{") :].strip().splitlines()[0])
    return answer


def began(town: Bed, who: str, tool: str, **arguments: Any) -> str:
    answer = ask(town, who, "tools/call", name=f"count__{tool}", arguments={"for": who, **arguments})
    return str(answer["result"]["taskId"])


def end(town: Bed) -> None:
    """Kills the server's process, and waits until Sluice has another one."""
    pids = town.folder / "pids"
    before = pids.read_text().split()
    os.kill(int(before[-1]), signal.SIGKILL)
    town.until(lambda: len(pids.read_text().split()) > len(before))


def test_the_same_id_of_another_process_is_another_task(town: Bed) -> None:
    task = began(town, "ann", "open")
    mine = ask(town, "ann", "tasks/get", taskId=task)["result"]
    assert mine["result"]["content"][0]["text"] == "open for ann"
    end(town)
    other = began(town, "bob", "secret")
    gone = ask(town, "ann", "tasks/get", taskId=task)["result"]
    assert gone["status"] == "failed" and "secret" not in json.dumps(gone)
    ask(town, "ann", "tasks/cancel", taskId=task)
    theirs = ask(town, "bob", "tasks/get", taskId=other)["result"]
    assert theirs["result"]["content"][0]["text"] == "secret for bob", "ann has not cancelled it"


def test_a_question_of_a_task_is_answered_to_its_own_process_alone(town: Bed) -> None:
    """For a client that knows no tasks: what names the task is in the state of its round."""
    call: Json = {"name": "count__open", "arguments": {"for": "ann", "ask": True}}
    asked = ask(town, "ann", "tools/call", ASKS, **call)["result"]
    assert asked["resultType"] == "input_required"
    answers = {key: {"action": "accept", "content": {"name": "x"}} for key in asked["inputRequests"]}
    end(town)
    other = began(town, "bob", "secret", ask=True)
    again = ask(town, "ann", "tools/call", ASKS, **call, requestState=asked["requestState"], inputResponses=answers)
    assert again["result"]["_meta"]["dev.sluice/reason"] == "outcome_unknown" and "secret" not in json.dumps(again)
    assert ask(town, "bob", "tasks/get", taskId=other)["result"]["status"] == "input_required"


def test_a_question_of_a_task_is_answered(town: Bed) -> None:
    call: Json = {"name": "count__open", "arguments": {"for": "ann", "ask": True}}
    asked = ask(town, "ann", "tools/call", ASKS, **call)["result"]
    answers = {key: {"action": "accept", "content": {"name": "x"}} for key in asked["inputRequests"]}
    done = ask(town, "ann", "tools/call", ASKS, **call, requestState=asked["requestState"], inputResponses=answers)
    assert done["result"]["content"][0]["text"] == "open for ann"


MORE_THAN_TEN = "asked for input more than 10 times"


def test_a_task_that_asks_without_end_ends_by_the_number_of_its_rounds(town: Bed) -> None:
    call: Json = {"name": "count__open", "arguments": {"for": "ann", "ask": "roots"}}
    answer, rounds = ask(town, "ann", "tools/call", {"roots": {}}, **call), 0
    while "result" in answer and rounds < 20:
        asked, rounds = answer["result"], rounds + 1
        answers = {key: {"roots": []} for key in asked["inputRequests"]}
        retry = {**call, "requestState": asked["requestState"], "inputResponses": answers}
        answer = ask(town, "ann", "tools/call", {"roots": {}}, **retry)
    assert rounds == 10 and MORE_THAN_TEN in answer["error"]["message"]


def test_and_so_it_does_for_a_client_with_a_session(town: Bed) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    with httpx.Client(headers=accept | bearer("ann"), timeout=20, trust_env=False) as http:

        def body(**message: Any) -> Json:
            return {"json": {"jsonrpc": "2.0", **message}}

        who = {"name": "a", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": who}
        agreed = http.post(town.process.url, **body(id=1, method="initialize", params=hello))
        http.headers["Mcp-Session-Id"] = agreed.headers["mcp-session-id"]
        http.post(town.process.url, **body(method="notifications/initialized"))
        call = body(id=2, method="tools/call", params={"name": "count__open", "arguments": {"ask": "roots"}})
        rounds, message = 0, dict[str, Any]()
        with http.stream("POST", town.process.url, **call) as stream:
            for line in stream.iter_lines():
                message = json.loads(line[5:]) if line.startswith("data: {") else {}
                if message.get("method") == "roots/list" and rounds < 20:
                    rounds += 1
                    http.post(town.process.url, **body(id=message["id"], result={"roots": []}))
                elif message:
                    break
    assert (rounds, MORE_THAN_TEN in json.dumps(message)) == (10, True), message
