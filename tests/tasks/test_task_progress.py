"""Progress of a task that a legacy client has begun, from the server to that client: its token is good for the task's
whole life (2025-11-25 basic/utilities/tasks#task-progress-notifications)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice, stdio_command
from e2e.test_stdio_shared import Desktop

from sluicegate.downstream.session.legacy import Begun
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.model import Call, Client, Target, TaskNotification

Json = dict[str, Any]
CHILD = [str(Path(__file__).parents[1] / "downstream" / "asking_child.py"), "tasks"]
SERVERS: Json = {"later": {"command": sys.executable, "args": CHILD}}
LATER: Json = {"name": "later__later", "arguments": {}, "task": {}, "_meta": {"progressToken": "mine"}}


def is_progress(message: Json) -> bool:
    return message.get("method") == "notifications/progress"


def test_over_stdio_it_comes_when_the_call_has_been_answered(tmp_path: Path) -> None:
    client = Desktop(stdio_command({"servers": SERVERS}, tmp_path), "one")
    try:
        client.hello()
        assert client.ask("tools/call", **LATER)["result"]["task"]["status"] == "working"
        client.begin("tools/call", name="later__works", arguments={})
        heard: list[Json] = []
        while sum(map(is_progress, heard)) < 2:
            heard.append(client.hear())
        told = [message["params"] for message in heard if is_progress(message)]
        assert told == [{"progressToken": "mine", "progress": number} for number in (1, 2)]
        assert client.leave() == 0
    finally:
        client.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Sluice]:
    with sluice({"servers": SERVERS}, tmp_path) as process:
        yield process


def test_over_http_it_comes_on_the_stream_of_the_session_that_has_the_task(process: Sluice) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "one", "version": "1"}}
    with httpx.Client(headers=accept, timeout=20, trust_env=False) as http:

        def send(**message: Any) -> httpx.Response:
            return http.post(process.url, json={"jsonrpc": "2.0", **message})

        agreed = send(id=1, method="initialize", params=hello)
        http.headers["Mcp-Session-Id"] = agreed.headers["mcp-session-id"]
        send(method="notifications/initialized")
        with http.stream("GET", process.url) as stream:
            begun = send(id=2, method="tools/call", params=LATER)
            assert '"status":"working"' in begun.text
            send(id=3, method="tools/call", params={"name": "later__works", "arguments": {}})
            told = []
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    told.append(json.loads(line[5:]))
                if sum(map(is_progress, told)) == 2:
                    break
        assert [message["params"]["progressToken"] for message in told if is_progress(message)] == ["mine"] * 2


def test_it_says_which_tool_it_is_about() -> None:
    heard: list[tuple[str | None, Notification]] = []
    begun, target = Begun(lambda *news: heard.append(news)), Target("later", "tool", "later", "later__later")
    client = Client("key:ann", revision="2025-11-25", session="s1")
    begun.add(7, Call(client, "tools/call", {}, {"progressToken": "mine"}, target))
    begun.progressed(Notification("notifications/progress", {"progressToken": 7, "progress": 1}))
    ((_, told),) = heard
    assert isinstance(told, TaskNotification) and told.target == target and told.params["progressToken"] == "mine"
