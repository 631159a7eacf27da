"""What a server writes of a task whose result hooks judge: no way to its client shows more of it than `tasks/get`."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import sluice
from hook_service import hook_service

Json = dict[str, Any]
SERVER: Json = {"command": sys.executable, "args": [str(Path(__file__).with_name("talking_tasks_server.py"))]}
HELLO: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "one", "version": "1"}}


@pytest.mark.parametrize(("hooked", "is_told"), [("later", False), ("other", True)])
def test_lists_and_notifications_of_tasks_show_no_more_than_is_shown_of_one(
    tmp_path: Path, hooked: str, is_told: bool
) -> None:
    with (
        hook_service() as hook,
        sluice(
            {
                "servers": {"later": SERVER, "other": SERVER},
                "hooks": {"dlp": {"url": hook.url, "on": ["result"], "servers": [hooked]}},
            },
            tmp_path,
        ) as process,
        httpx.Client(headers={"Accept": "application/json, text/event-stream"}, timeout=20, trust_env=False) as http,
    ):

        def ask(method: str, **params: Any) -> Json:
            answer = http.post(process.url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            http.headers.setdefault("Mcp-Session-Id", answer.headers.get("mcp-session-id", ""))
            lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data: {")]
            return dict(json.loads(lines[-1] if lines else answer.text)["result"])

        ask("initialize", **HELLO)
        http.post(process.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        with http.stream("GET", process.url) as stream:
            begun = ask("tools/call", name="later__t", arguments={}, task={})["task"]
            got = ask("tasks/get", taskId=begun["taskId"])
            heard = (json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data: {"))
            told = next(message["params"] for message in heard if message.get("method") == "notifications/tasks/status")
        (listed,) = ask("tasks/list")["tasks"]
        for shown in (begun, told, got, listed):
            assert (shown["taskId"], shown["status"]) == (begun["taskId"], "working")
            assert ("SECRET" in str(shown)) is is_told
