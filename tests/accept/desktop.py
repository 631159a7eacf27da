"""Eight servers of a desktop client behind one endpoint: how many commands and how much time that takes, and back.

Six servers are real, on three SDKs; one hangs, and one's command is missing. The home folder is fresh. Prints a row for
each; the time is that of the machine, from the first command to the first list.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from peers.install import MCP2, NODE, SERVER_EVERYTHING, SERVER_FILESYSTEM, SERVER_MEMORY, install

Json = dict[str, Any]
COMMANDS_BAR, SECONDS_BAR = 3, 60.0
CLIENT: Final = "claude-desktop"
FILE: Final = ".config/Claude/claude_desktop_config.json"
INFO: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "accept", "version": "1"}}
WORKING: Final = 6


def main(words: list[str]) -> int:
    """The exit code: 0 if all bars are held."""
    install()
    with tempfile.TemporaryDirectory(prefix="sluice-desktop-") as name:
        home = Path(name)
        file = home / FILE
        file.parent.mkdir(parents=True)
        file.write_bytes(before := json.dumps({"mcpServers": servers(home)}, indent=4).encode())
        file.chmod(0o640)
        began = time.perf_counter()
        commands = [f"install {CLIENT} --yes"]
        said = sluice(home, *commands[0].split())
        tools = first_list(home, json.loads(file.read_text())["mcpServers"])
        seconds = time.perf_counter() - began
        listed = len({tool.partition("__")[0] for tool in tools})
        sluice(home, "uninstall", CLIENT, "--yes")
        is_back = file.read_bytes() == before and file.stat().st_mode & 0o777 == 0o640
    print(said)
    rows = [
        (f"{len(commands)} commands (bar {COMMANDS_BAR})", len(commands) <= COMMANDS_BAR),
        (f"{seconds:.0f} s to the first list (bar {SECONDS_BAR:.0f})", seconds <= SECONDS_BAR),
        (f"{listed} of {WORKING} servers that work are in the first list, with {len(tools)} tools", listed == WORKING),
        ("uninstall leaves the client's file as it was, and its mode", is_back),
    ]
    for row, is_held in rows:
        print(f"{'ok' if is_held else 'NOT HELD':10s}{row}")
    return 0 if all(is_held for _, is_held in rows) else 1


def servers(home: Path) -> Json:
    (files := home / "files").mkdir()
    subprocess.run(["git", "init", "--quiet", home / "repository"], check=True)
    command = {
        "everything": [NODE, SERVER_EVERYTHING, "stdio"], "files": [NODE, SERVER_FILESYSTEM, files],
        "memory": [NODE, SERVER_MEMORY], "time": [MCP2 / "mcp-server-time", "--local-timezone", "UTC"],
        "git": [MCP2 / "mcp-server-git", "--repository", home / "repository"], "fetch": [MCP2 / "mcp-server-fetch"],
        "hangs": ["/bin/sleep", "1000"], "missing": ["no-such-program-anywhere"],
    }  # fmt: skip
    return {key: {"command": str(first), "args": [*map(str, rest)]} for key, (first, *rest) in command.items()}


def environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"}


def sluice(home: Path, *words: str) -> str:
    command = [sys.executable, "-m", "sluicegate", *words]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def first_list(home: Path, configured: Json) -> list[str]:
    """As the client does it, with the one server that it has now."""
    ((_, own),) = configured.items()
    command = [own["command"], *own["args"]]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment(home), stdin=pipe, stdout=pipe, stderr=null, text=True)
    assert process.stdin is not None and process.stdout is not None
    messages: list[Json] = [
        {"id": 1, "method": "initialize", "params": INFO}, {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list", "params": {}},
    ]  # fmt: skip
    try:
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if answer.get("id") == 2:
                assert "nextCursor" not in answer["result"]
                return [tool["name"] for tool in answer["result"]["tools"]]
        raise AssertionError("the Sluice that the client started has ended")
    finally:
        process.stdin.close()
        process.wait(30)
