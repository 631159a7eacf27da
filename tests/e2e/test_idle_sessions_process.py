"""Clients that never say goodbye, over HTTP, before a Sluice that runs: what becomes of their servers' processes."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from e2e.sluice_process import Sluice, sluice
from policy_bed import bearer, client_keys, recorder
from waiting import until_so

Json = dict[str, Any]
CHILD = Path(__file__).parent.parent / "downstream" / "scripted_child.py"
HELLO: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


class Session:
    """A legacy session without a stream of its own."""

    def __init__(self, process: Sluice, client: httpx.Client, who: str = "") -> None:
        self._url, self._headers = process.url, {"Accept": "application/json, text/event-stream", **bearer(who)}
        self._client = client
        answer = self._post({"id": 0, "method": "initialize", "params": HELLO})
        self._headers |= {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
        self._post({"method": "notifications/initialized"})

    def _post(self, message: Json) -> httpx.Response:
        return self._client.post(self._url, json={"jsonrpc": "2.0", **message}, headers=self._headers)

    def call(self, name: str = "pipe__echo") -> Json:
        answer = self._post({"id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}})
        text = answer.text
        if answer.headers["Content-Type"].startswith("text/event-stream"):
            text = text.rsplit("data:", 1)[1]
        return dict(json.loads(text)["result"])

    @contextmanager
    def stream(self) -> Iterator[None]:
        with self._client.stream("GET", self._url, headers=self._headers | {"Accept": "text/event-stream"}):
            yield


def described(process: Sluice, folder: Path) -> Json:
    token = (folder / "state" / "operator.token").read_text().strip()
    answer = httpx.get(f"{process.admin}/api/v1/servers", headers={"Authorization": f"Bearer {token}"}, timeout=60)
    return dict(answer.json()["servers"][0])


def test_forty_sessions_that_were_never_deleted_come_down_to_a_few_processes(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": ["-I", "-S", str(CHILD)], "era": "legacy", "idle": "1s"}
    clients: Json = {"anonymous": {"roles": []}, "local": {"roles": ["role:owner"]}}
    policy = tmp_path / "policy.csv"
    policy.write_text("p, *, *, *, *, allow\np, local, sluice, admin:*, *, allow\n")
    config = {"servers": {"pipe": server}, "policy": {"files": ["policy.csv"]}, "clients": clients}
    with sluice(config, tmp_path) as process, httpx.Client(timeout=60) as client, ExitStack() as streams:
        sessions = [Session(process, client) for _ in range(40)]
        streams.enter_context(sessions[0].stream())
        for session in sessions:
            assert "dev.sluice/began_anew" not in session.call().get("_meta", {})
        until_so(lambda: described(process, tmp_path)["processes"] <= 2)
        found = described(process, tmp_path)
        alive = [pid for pid in found["pids"] if Path(f"/proc/{pid}").exists()]
        assert len(alive) == found["processes"] <= 2 and found["memory"] > 0
        assert "dev.sluice/began_anew" not in sessions[0].call().get("_meta", {}), "its stream was open"
        assert "its connection was idle" in sessions[7].call()["_meta"]["dev.sluice/began_anew"]
        assert '"server began anew"' in process.log()


ROWS = """\
p, role:authenticated, bank, *, *, allow
p2, *, bank, tool:wire, *, one-of-leads
p, role:lead, sluice, admin:approvals, *, allow
p, local, sluice, admin:*, *, allow
"""


def test_a_session_whose_call_waits_for_its_approval_keeps_its_process(tmp_path: Path) -> None:
    (tmp_path / "policy.csv").write_text(ROWS)
    bank = recorder(tmp_path, "bank", tools=["look", "wire"]) | {"sharing": "session", "idle": "1s"}
    config = {
        "servers": {"bank": bank}, "policy": {"files": ["policy.csv"]}, "approvals": {"hold_for": "10m"},
        "clients": {"keys": client_keys(ann=[], bob=[], lea=["role:lead"])},
    }  # fmt: skip
    with sluice(config, tmp_path) as process, httpx.Client(timeout=60) as client, ThreadPoolExecutor(1) as pool:
        asker = Session(process, client, "ann")
        asker.call("bank__look")
        (kept,) = described(process, tmp_path)["pids"]
        held, place = pool.submit(asker.call, "bank__wire"), f"{process.admin}/api/v1/approvals"
        while not (rows := httpx.get(place, headers=bearer("lea"), timeout=60).json()["approvals"]):
            time.sleep(0.05)
        others = [Session(process, client, "bob") for _ in range(3)]
        for other in others:
            other.call("bank__look")
        while len(pids := described(process, tmp_path)["pids"]) > 2:  # those of the idle sessions go
            time.sleep(0.2)
        assert kept in pids
        at = f"{place}/{rows[0]['id']}"
        seen = httpx.get(at, headers=bearer("lea"), timeout=60).json()["digest"]
        decision = {"decision": "approve", "seen_digest": seen}
        assert httpx.post(f"{at}/decisions", json=decision, headers=bearer("lea"), timeout=60).status_code == 200
        result = held.result(timeout=60)
    assert result["content"][0]["text"] == "ran wire" and "dev.sluice/began_anew" not in result.get("_meta", {})
