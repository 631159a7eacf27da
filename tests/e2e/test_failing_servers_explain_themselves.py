"""Servers that fail, and whom Sluice tells what: the person at its command line, clients with a right and without."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
from command_line import run
from e2e.sluice_process import Sluice, clean_environment, sluice, stdio_command

Json = dict[str, Any]
SECRET = "correct-horse-battery"
KEYS = {name: f"slc_{name}_{'x' * 40}" for name in ("granted", "stranger")}
CRASH = "import os, sys; sys.exit(f'no configuration for {os.environ[\"TOKEN\"]}\\n\\x1b[1mread the manual')"


def config(folder: Path) -> Json:
    (folder / "policy.csv").write_text(
        "p, role:reader, *, *, *, allow\np, local, sluice, admin:*, *, allow\np, local, *, *, *, allow\n"
    )
    hashes = {name: f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" for name, key in KEYS.items()}
    return {
        "policy": {"files": ["policy.csv"]},
        "clients": {
            "keys": {"granted": {"hash": hashes["granted"], "roles": ["role:reader"]},
                     "stranger": {"hash": hashes["stranger"], "roles": []}},
            "local": {"roles": []},
        },
        "servers": {
            "missing": {"command": "no-such-program", "required": False},
            "crash": {"command": "python3", "args": ["-c", CRASH], "env": {"TOKEN": SECRET}, "required": False},
        },
    }  # fmt: skip


def call(process: Sluice, key: str, name: str) -> Json:
    headers = {
        "Authorization": f"Bearer {KEYS[key]}", "Accept": "application/json, text/event-stream", "Mcp-Name": name,
        "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
    }  # fmt: skip
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": name, "arguments": {}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return dict(httpx.post(process.url, json=body, headers=headers, timeout=60).json())


def shown(process: Sluice, *words: str) -> str:
    done = run(process.config.parent, "servers", "-c", process.config.name, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_clients_with_a_right_are_told_why_and_those_without_learn_nothing(tmp_path: Path) -> None:
    with sluice(config(tmp_path), tmp_path) as process:
        absent = call(process, "granted", "missing__x")["result"]
        assert absent["_meta"]["dev.sluice/reason"] == "server_unavailable"
        text = absent["content"][0]["text"]
        assert "the command no-such-program was not found on PATH." in text and "Ask who runs Sluice" in text
        crashed = call(process, "granted", "crash__x")["result"]["content"][0]["text"]
        assert "ended with status 1" in crashed and "configuration" not in crashed
        for name in ("missing__x", "crash__x"):
            assert call(process, "stranger", name) == {
                "jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": f"Unknown tool: {name}"},
            }  # fmt: skip
        table = shown(process)
        assert "…" not in table and "the command no-such-program was not found on PATH (/" in table
        assert "\ncrash is down. The last lines that it wrote to stderr:\n" in table
        assert "  | no configuration for [env:TOKEN]\n  | read the manual\n" in table
        rows = {row["key"]: row for row in json.loads(shown(process, "--json"))["servers"]}
        assert rows["crash"]["exit"] == "status 1" and rows["missing"]["exit"] == ""
        assert "read the manual" in rows["crash"]["stderr"]
        assert "no configuration for [env:TOKEN]" in process.log()
        assert SECRET not in f"{table}{rows}{process.log()}"


def test_a_desktop_client_is_told_in_the_servers_words(tmp_path: Path) -> None:
    hello: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "desk", "version": "1"}}
    lines: list[Json] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "crash__x", "arguments": {}}},
    ]
    with subprocess.Popen(
        stdio_command(config(tmp_path), tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=clean_environment(),
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        for line in lines:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **line}) + "\n")
        process.stdin.flush()
        answers = (json.loads(line) for line in process.stdout)
        text = next(answer for answer in answers if answer.get("id") == 2)["result"]["content"][0]["text"]
        process.stdin.close()
        said = process.stderr.read() if process.stderr else ""
    assert "ended with status 1" in text and "in its own words and not in Sluice's:\n" in text
    assert text.endswith("[stderr of crash] no configuration for [env:TOKEN]\n[stderr of crash] read the manual")
    assert SECRET not in text + said
