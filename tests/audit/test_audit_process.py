"""The audit log of a real Sluice, as an operator has it: what it says, what it never says, and how it is proved."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEY = f"slc_{secrets.token_urlsafe(32)}"
CANARIES = {name: f"canary{name}{secrets.token_hex(8)}" for name in ("env", "argument", "password", "url", "guess")}
GITHUB = f"ghp_{secrets.token_hex(18)}"


@dataclass
class Sluice:
    folder: Path
    process: "subprocess.Popen[bytes]"
    mcp: int
    admin: int

    @property
    def log(self) -> Path:
        return self.folder / "audit" / "sluice.jsonl"

    def seen(self) -> list[str]:
        path = self.folder / "seen"
        return path.read_text().splitlines() if path.exists() else []

    def call(self, tool: str, arguments: Any = None, key: str = KEY) -> httpx.Response:
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "probe", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {}}  # fmt: skip
        params = {"name": tool, "arguments": arguments or {}, "_meta": meta}
        headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream",
                   "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return httpx.post(f"http://127.0.0.1:{self.mcp}/mcp", json=body, headers=headers, timeout=30, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.admin}{path}", timeout=30, trust_env=False)

    def wait(self, path: str, status: int) -> None:
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            assert self.process.poll() is None, (self.folder / "stderr").read_text()
            try:
                if self.get(path).status_code == status:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{path} never answered {status}")

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run(self.folder, *args)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", *args]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(folder: Path) -> Sluice:
    mcp, admin = free_port(), free_port()
    script = [str(HERE / "recording_server.py"), str(folder / "seen")]
    child = {
        "command": sys.executable,
        "args": script,
        "env": {"LEAK": CANARIES["env"]},
        "required": True,
        "pin": "off",
    }
    key = {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}", "roles": ["role:ci"], "owner": "team"}
    config = {
        "policy": {"use": "open"}, "servers": {"rec": child}, "clients": {"keys": {"probe": key}},
        "listen": {"mcp": f"127.0.0.1:{mcp}", "admin": f"127.0.0.1:{admin}"}, "state": {"dir": "state"}, "drain": "2s",
    }  # fmt: skip
    (folder / "sluice.yaml").write_text(json.dumps(config))
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    with (folder / "stderr").open("ab") as stderr:
        command = [sys.executable, "-m", "proxy", "serve"]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=stderr)
    found = Sluice(folder, process, mcp, admin)
    found.wait("/readyz", 200)
    return found


@pytest.fixture
def sluice(tmp_path: Path) -> Iterator[Sluice]:
    found = start(tmp_path)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait(30)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit" / "sluice.jsonl").read_text().splitlines()]


def test_a_call_leaves_an_intent_and_an_outcome_and_the_log_is_proved(sluice: Sluice) -> None:
    assert sluice.call("rec__note", {"title": "x"}).json()["result"]["content"][0]["text"] == "noted"
    assert sluice.call("rec__made_up").status_code in (200, 400)
    assert sluice.run("audit", "verify").returncode == 0, "a running log can be proved, too"
    sluice.stop()
    found = {(record["type"], record.get("public", record.get("asked"))): record for record in records(sluice.folder)}
    intent, outcome = found["intent", "rec__note"], found["outcome", "rec__note"]
    assert intent["call"] == outcome["call"] and intent["seq"] < outcome["seq"]
    assert (intent["principal"], intent["owner"], intent["roles"]) == ("key:probe", "team", ["role:ci"])
    assert outcome["outcome"] == "ok" and intent["client"] == {"name": "probe", "version": "1"}
    assert found["outcome", "rec__made_up"]["reason"] == "not_found"
    done = sluice.run("audit", "verify", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["writers"][0]["tail"] == 0


def test_a_log_is_proved_elsewhere_with_the_public_key_alone(sluice: Sluice, tmp_path: Path) -> None:
    for number in range(3):
        sluice.call("rec__note", {"n": number})
    sluice.stop()
    other = tmp_path / "other"
    other.mkdir()
    (other / "copy.jsonl").write_bytes(sluice.log.read_bytes())
    state = sluice.folder / "state" / "audit"
    (other / "sign.pub").write_bytes((state / "sign.pub").read_bytes())
    (other / "kept").write_bytes((state / "sluice.checkpoint").read_bytes())
    command = ["audit", "verify", "copy.jsonl", "--key", "sign.pub", "--checkpoint", "kept"]
    assert run(other, *command).returncode == 0
    whole = (other / "copy.jsonl").read_bytes()
    (other / "copy.jsonl").write_bytes(whole.replace(b'"n":1', b'"n":7', 1))
    done = run(other, *command)
    line = next(number for number, text in enumerate(whole.splitlines(), 1) if b'"n":1' in text)
    assert done.returncode == 1 and f"BAD  copy.jsonl:{line}: record {line}:" in done.stdout
    (other / "copy.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:-3]))
    done = run(other, *command)
    assert done.returncode == 1 and "cut off" in done.stdout
    assert run(other, "audit", "verify", "nothing", "--key", "sign.pub").returncode == 1
    assert run(other, "audit", "verify", "copy.jsonl", "--key", "kept").returncode == 2


def test_the_log_is_read_searched_and_exported(sluice: Sluice) -> None:
    sluice.call("rec__note", {"title": "x"})
    sluice.call("rec__fail")
    sluice.stop()
    tail = sluice.run("audit", "tail", "-n", "20", "--type", "outcome", "--tool", "rec/*")
    assert [line.split()[3:5] for line in tail.stdout.splitlines()] == [
        ["rec__note", "ok"],
        ["rec__fail", "protocol_error"],
    ]
    assert sluice.run("audit", "search", "--principal", "key:probe", "--outcome", "ok").returncode == 0
    assert sluice.run("audit", "search", "--principal", "key:nobody").returncode == 1
    for format, key in (("jsonl", "seq"), ("ocsf", "class_uid"), ("ecs", "@timestamp")):
        lines = sluice.run("audit", "export", "--format", format).stdout.splitlines()
        assert len(lines) == len(records(sluice.folder)) and all(key in json.loads(line) for line in lines)
    assert sluice.run("audit", "export", "--format", "xml").returncode == 2
    assert sluice.run("audit", "approvals").stdout.startswith("APPROVAL")


def test_without_a_log_nothing_reaches_the_server_and_service_returns(sluice: Sluice) -> None:
    sluice.call("rec__note", {"n": 1})
    directory = sluice.folder / "audit"
    directory.rename(sluice.folder / "away")
    refused = [sluice.call("rec__note", {"n": 2}).json()["result"] for _ in range(3)]
    assert all(result["isError"] and "NOT EXECUTED" in result["content"][0]["text"] for result in refused)
    assert all(result["_meta"]["dev.sluice/reason"] == "audit_unavailable" for result in refused)
    assert len(sluice.seen()) == 1
    sluice.wait("/readyz", 503)
    (sluice.folder / "away").rename(directory)
    sluice.wait("/readyz", 200)
    assert "isError" not in sluice.call("rec__note", {"n": 3}).json()["result"]
    metrics = sluice.get("/metrics").text
    assert 'sluice_audit_records_total{result="refused",sink="file"} 3.0' in metrics
    assert "sluice_audit_lost_total 0.0" in metrics
    sluice.stop()
    assert sluice.run("audit", "verify").returncode == 0


def test_a_killed_sluice_closes_what_was_open_as_unknown(sluice: Sluice) -> None:
    sluice.call("rec__note")
    sluice.process.kill()
    sluice.process.wait(30)
    again = start(sluice.folder)
    try:
        again.call("rec__note")
    finally:
        again.stop()
    assert sluice.run("audit", "verify").returncode == 0
    found = [json.loads(line) for path in sorted(sluice.log.parent.glob("*.jsonl*"))
             for line in path.read_text().splitlines()]  # fmt: skip
    intents = {record["call"] for record in found if record["type"] == "intent"}
    assert intents <= {record["call"] for record in found if record["type"] == "outcome"}
    assert {record["epoch"] for record in found} == {1, 2}


def test_no_planted_secret_comes_out(sluice: Sluice) -> None:
    arguments = {
        "note": f"the token is {GITHUB} and http://u:{CANARIES['url']}@h/", "password": CANARIES["password"],
        "headers": {"Authorization": f"Bearer {CANARIES['argument']}"},
    }  # fmt: skip
    for tool in ("rec__note", "rec__fail", f"rec__{GITHUB}"):
        sluice.call(tool, arguments)
    assert sluice.call("rec__note", arguments, key=CANARIES["guess"]).status_code == 401
    metrics = sluice.get("/metrics").text
    sluice.stop()
    audit = sluice.log.read_text()
    assert audit.count("[redacted:") >= 8
    for name, secret in {**CANARIES, "key": KEY, "github": GITHUB}.items():
        assert secret not in audit and secret not in metrics, name
    said = (sluice.folder / "stderr").read_text()
    assert KEY not in said and CANARIES["guess"] not in said
    identity = [record for record in records(sluice.folder) if record["type"] == "identity"]
    assert [(record["address"], record["count"], record["reasons"]) for record in identity] == [
        ("127.0.0.1", 1, {"credential": 1})
    ]
