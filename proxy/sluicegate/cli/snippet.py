"""What goes into a client's file in place of its servers, in the client's own form. Pure."""

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Any


class Desktop(StrEnum):
    """The clients whose form is known."""

    CLAUDE_DESKTOP = "claude-desktop"
    CLAUDE_CODE = "claude-code"
    CURSOR = "cursor"
    VS_CODE = "vscode"
    WINDSURF = "windsurf"
    ZED = "zed"
    CODEX = "codex"
    GEMINI = "gemini"
    GOOSE = "goose"
    CLINE = "cline"


_BY_ROOT = {
    "servers": Desktop.VS_CODE,
    "context_servers": Desktop.ZED,
    "mcp_servers": Desktop.CODEX,
    "extensions": Desktop.GOOSE,
}
_BY_NAME = {
    ".claude.json": Desktop.CLAUDE_CODE,
    ".mcp.json": Desktop.CLAUDE_CODE,
    "cline_mcp_settings.json": Desktop.CLINE,
    "mcp_config.json": Desktop.WINDSURF,
    ".cursor": Desktop.CURSOR,
    ".gemini": Desktop.GEMINI,
}


def client_of(file: Path, root: str) -> Desktop:
    """Whose file it is, by the name of the section that holds the servers, and by where it lies."""
    names = file.absolute().parts[-2:]
    by_name = (_BY_NAME[name] for name in reversed(names) if name in _BY_NAME)
    return _BY_ROOT.get(root) or next(by_name, Desktop.CLAUDE_DESKTOP)


def snippet(client: Desktop, command: str, args: list[str]) -> str:
    entry: dict[str, Any] = {"command": command, "args": args}
    match client:
        case Desktop.VS_CODE:
            return _json({"servers": {"sluice": {"type": "stdio"} | entry}})
        case Desktop.ZED:
            return _json({"context_servers": {"sluice": entry | {"env": {}}}})
        case Desktop.CLAUDE_CODE:
            added = shlex.join(["claude", "mcp", "add", "--scope", "user", "sluice", "--", command, *args])
            return f"{_json({'mcpServers': {'sluice': {'type': 'stdio'} | entry}})}\nor run: {added}"
        case Desktop.CODEX:  # its own 10 seconds are short for a first start of many servers
            lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items())
            return "\n".join(["[mcp_servers.sluice]", *lines, "startup_timeout_sec = 60"])
        case Desktop.GOOSE:
            about = {"type": "stdio", "name": "sluice", "enabled": True, "cmd": command, "args": args, "timeout": 300}
            lines = (f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in about.items())
            return "\n".join(["extensions:", "  sluice:", *lines])
    return _json({"mcpServers": {"sluice": entry}})


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
