"""A real Sluice with an audit log and a server that writes down what reaches it, as the audit tests start it."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import command_line
import httpx
from audit_kit import fits_schema
from peers.fleet import free_port

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEY = f"slc_{secrets.token_urlsafe(32)}"
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "proxy"), "NO_COLOR": "1"}
VERSION = {"mcp-protocol-version": "2026-07-28"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "probe", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


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
        params = {"name": tool, "arguments": arguments or {}, "_meta": META}
        headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream",
                   "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return self.send(json.dumps(body).encode(), headers)

    def ask(self, method: str, named: str, **params: Any) -> httpx.Response:
        """Any request that names one thing."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        return self.send(json.dumps(body).encode(), {**VERSION, "mcp-method": method, "mcp-name": named})

    def send(self, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        """Bytes as they are, to the port for clients."""
        told = {"authorization": f"Bearer {KEY}", "accept": "application/json, text/event-stream",
                "content-type": "application/json", **(headers or {})}  # fmt: skip
        url = f"http://127.0.0.1:{self.mcp}/mcp"
        return httpx.post(url, content=body, headers=told, timeout=30, trust_env=False)

    def get(self, path: str, key: str = "") -> httpx.Response:
        """From the admin port."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.get(f"http://127.0.0.1:{self.admin}{path}", headers=headers, timeout=30, trust_env=False)

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
    return command_line.run(folder, *args, env={"HOME": str(folder)})


def start(folder: Path, pin: str = "off", environment: Mapping[str, str] | None = None, **changes: Any) -> Sluice:
    """`changes` are sections of the config instead of the usual ones."""
    mcp, admin = free_port(), free_port()
    script = [str(HERE / "recording_server.py"), str(folder / "seen")]
    child = {
        "command": sys.executable,
        "args": script,
                "required": True,
        "pin": pin,
    }
    key = {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}", "roles": ["role:ci"], "owner": "team"}
    config = {
        "policy": {"use": "open"}, "servers": {"rec": child}, "clients": {"keys": {"probe": key}},
        "listen": {"mcp": f"127.0.0.1:{mcp}", "admin": f"127.0.0.1:{admin}"}, "state": {"dir": "state"}, "drain": "2s",
        **changes,
    }  # fmt: skip
    (folder / "sluice.yaml").write_text(json.dumps(config))
    environ = {**ENVIRONMENT, **(environment or {}), "HOME": str(folder)}
    with (folder / "stderr").open("ab") as stderr:
        command = [sys.executable, "-m", "sluicegate", "serve"]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=stderr)
    found = Sluice(folder, process, mcp, admin)
    found.wait("/readyz", 200)
    return found


def records(folder: Path, type: str = "") -> list[dict[str, Any]]:
    """What the first writer's newest segment says; every line of it fits the published schema."""
    whole = (folder / "audit" / "sluice.jsonl").read_text().split("\n")[:-1]  # the last one may just be written
    found = [json.loads(line) for line in whole]
    for record in found:
        fits_schema(record)
    return [record for record in found if not type or record["type"] == type]
