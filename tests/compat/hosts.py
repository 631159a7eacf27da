"""Hosts that people use (Claude Code, Codex, Gemini CLI, OpenCode), from npm, before `sluice stdio` and three real
servers: what each of them was given when it first listed, next to what the servers define. None of them has an account,
and the models that they would call are at an address where nobody listens.

Each host starts Sluice through a tee that keeps every line, so that the host's own requests are what is looked at.
"""

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat.run import ROOT, Failed, Server, command_of, definitions, last_line, over_stdio
from e2e.sluice_process import settings_for, write_config
from peers import install as peers

Json = dict[str, Any]
TEE = [sys.executable, str(ROOT / "tests" / "frames" / "tee.py")]
NOBODY = "http://127.0.0.1:9"
PATIENCE = 300  # seconds
PROGRAMS = {
    "memory": [str(peers.NODE), str(peers.SERVER_MEMORY)],
    "everything": [str(peers.NODE), str(peers.SERVER_EVERYTHING)],
    "files": [str(peers.NODE), str(peers.SERVER_FILESYSTEM), "."],
}


@dataclass(frozen=True, slots=True)
class Host:
    """A program, the file in its home that names Sluice (`COMMAND` and `ARGS` stand for it), and what makes it list."""

    server: Server
    program: str
    file: str
    text: str
    args: list[str]
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""


def npm(package: str, version: str) -> Server:
    return Server("npm", package, version, {}, "", [])


def requests(*pairs: tuple[str, Json]) -> str:
    return "".join(
        json.dumps({"id": n, "method": method, "params": params}) + "\n" for n, (method, params) in enumerate(pairs)
    )


HOSTS = [
    Host(
        npm("@anthropic-ai/claude-code", "2.1.328"),
        "@anthropic-ai/claude-code-linux-x64/claude",
        "mcp.json",
        '{"mcpServers": {"sluice": {"command": COMMAND, "args": ARGS}}}',
        ["-p", "hello", "--mcp-config", "{home}/mcp.json", "--strict-mcp-config"],
        {"ANTHROPIC_API_KEY": "sk-ant-dummy", "ANTHROPIC_BASE_URL": NOBODY, "MCP_TIMEOUT": "120000",
         "CLAUDE_CODE_MAX_RETRIES": "0", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    Host(
        npm("@openai/codex", "0.169.0"),
        "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
        ".codex/config.toml",
        "[mcp_servers.sluice]\ncommand = COMMAND\nargs = ARGS\nstartup_timeout_sec = 120\n",
        ["app-server"],
        {},
        requests(("initialize", {"clientInfo": {"name": "compat", "version": "1"}}), ("mcpServerStatus/list", {})),
    ),
    Host(
        npm("@google/gemini-cli", "0.61.0"),
        "@google/gemini-cli/bundle/gemini.js",
        ".gemini/settings.json",
        '{"mcpServers": {"sluice": {"command": COMMAND, "args": ARGS, "trust": true, "timeout": 120000}},'
        ' "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}}}',
        ["-p", "hello"],
        {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": NOBODY},
    ),
    Host(
        npm("opencode-ai", "1.18.33"),
        "opencode-linux-x64/bin/opencode",
        ".config/opencode/opencode.json",
        '{"mcp": {"sluice": {"type": "local", "command": WHOLE, "enabled": true, "timeout": 120000}}}',
        ["mcp", "list"],
    ),
]  # fmt: skip


def run(host: Host, place: Path) -> Json:
    """What the host was given, by kind, and what there is."""
    home, state, work = place / "home", place / "state", place / "work"
    for folder in (home, state, work):
        folder.mkdir()
    command_of(host.server)  # installs it
    servers = {key: {"command": program[0], "args": program[1:], "cwd": str(work)} for key, program in PROGRAMS.items()}
    config = write_config(settings_for({"servers": servers}, state), state)
    whole = [*TEE, str(place / "record"), sys.executable, "-m", "sluicegate", "stdio", "-c", str(config)]
    text = host.text.replace("COMMAND", json.dumps(whole[0])).replace("ARGS", json.dumps(whole[1:]))
    (home / host.file).parent.mkdir(parents=True, exist_ok=True)
    (home / host.file).write_text(text.replace("WHOLE", json.dumps(whole)))
    env = {"HOME": str(home), "PATH": peers.environment()["PATH"], "PYTHONPATH": str(ROOT / "proxy"), **host.env}
    program = str(host.server.folder / "node_modules" / host.program)
    node = [str(peers.NODE)] if program.endswith(".js") else []
    command = [*node, program, *(word.replace("{home}", str(home)) for word in host.args)]
    with (place / "host.log").open("w") as log:
        process = subprocess.Popen(
            command, env=env, cwd=work, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True
        )
    assert process.stdin
    process.stdin.write(host.stdin)
    process.stdin.flush()
    if not host.stdin:
        process.stdin.close()
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up and process.poll() is None:
        if answers(place, "tools/list"):  # it asks for prompts then, too, or never; and some try a model for minutes
            give_up = min(give_up, time.monotonic() + 5)
        time.sleep(0.2)
    process.kill()
    process.wait()
    return outcome(place, env)


def outcome(place: Path, env: dict[str, str]) -> Json:
    heard = [params for way, message in record(place) if way == "in" and (params := initialize(message))]
    if not heard:
        raise Failed(f"Sluice was not asked: {last_line((place / 'host.log').read_text(errors='replace'))}")
    row: Json = {"revision": heard[-1]["protocolVersion"]}
    if row["revision"] < "2025-11-25":  # it knows no pages to open (url), whatever the host declares
        heard[-1]["capabilities"].get("elicitation", {}).pop("url", None)
    wanted: dict[str, set[str]] = {"tools": set(), "prompts": set()}
    for key, program in PROGRAMS.items():
        with over_stdio(program, env, place / "work", heard[-1]) as ask:
            direct = definitions(ask)
        for kind in wanted:
            wanted[kind] |= {f"{key}__{item['name']}" for item in direct[kind]}
    for kind, names in wanted.items():
        given = answers(place, f"{kind}/list")
        seen = {item["name"] for item in given[0].get(kind, [])} if given else None
        row[kind] = "not asked" if seen is None else f"{len(seen & names)} of {len(names)}"
        row[f"{kind}_whole"] = seen == names
    return row


def initialize(message: Json) -> Json | None:
    return message.get("params") if message.get("method") == "initialize" else None


def record(place: Path) -> list[tuple[str, Json]]:
    lines = [json.loads(line) for file in place.glob("record.*") for line in file.read_text().splitlines(keepends=True)
             if line.endswith("\n")]  # fmt: skip
    return [(way, json.loads(text)) for way, text in lines]


def answers(place: Path, method: str) -> list[Json]:
    """What Sluice answered to these requests of the host, in order."""
    asked = [message["id"] for way, message in record(place) if way == "in" and message.get("method") == method]
    given = {
        message.get("id"): message["result"] for way, message in record(place) if way == "out" and "result" in message
    }
    return [given[one] for one in asked if one in given]


def row_of(host: Host) -> Json:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        try:
            return run(host, Path(place))
        except (Failed, OSError, subprocess.SubprocessError) as error:
            return {"failed": str(error)}


def main() -> int:
    with ThreadPoolExecutor() as pool:
        rows = dict(zip([host.server.name for host in HOSTS], pool.map(row_of, HOSTS), strict=True))
    print(f"{'host':36}  revision    first tools  first prompts  outcome")
    for name, row in rows.items():
        said = "whole" if row.get("tools_whole") else row.get("failed", "NOT WHOLE")
        print(
            f"{name:36}  {row.get('revision', ''):10}  {row.get('tools', ''):11}  {row.get('prompts', ''):13}  {said}"
        )
    good = sum(bool(row.get("tools_whole")) for row in rows.values())
    print(f"{good} passed, {len(rows) - good} failed")
    return 0 if good == len(rows) else 1
