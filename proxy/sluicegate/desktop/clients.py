"""The desktop clients: where each keeps its servers, in which form, and under which names it runs. One table.

Paths of Windows and macOS are from the clients' documentation: no test here runs there.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class DesktopClient:
    """`root` is the section that holds the servers. `linux`, `mac` and `windows` are its files, the first that exists
    counts. `marks` are names of files and folders that only this client uses. `processes` are names of its programs.
    An entry has `first` before its command, which is called `command`, and `last` behind its args."""

    root: str = "mcpServers"
    linux: tuple[str, ...] = ()
    mac: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    first: Mapping[str, Any] = field(default_factory=dict)
    command: str = "command"
    last: Mapping[str, Any] = field(default_factory=dict)

    def files(self, platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> list[Path]:
        home = Path(environ.get("USERPROFILE" if platform == "win32" else "HOME") or Path.home())
        folders = {
            "~": home,
            "CONFIG": Path(environ.get("XDG_CONFIG_HOME") or home / ".config"),
            "SUPPORT": home / "Library" / "Application Support",
            "APPDATA": Path(environ.get("APPDATA") or home / "AppData" / "Roaming"),
            "CLAUDE": Path(environ.get("CLAUDE_CONFIG_DIR") or home),
            "CODEX": Path(environ.get("CODEX_HOME") or home / ".codex"),
        }
        paths = {"darwin": self.mac, "win32": self.windows}.get(platform, self.linux)
        return [folders[first].joinpath(*rest) for first, *rest in (path.split("/") for path in paths)]

    def file(self) -> Path:
        """The file that is there, or the one that the client would make."""
        found = self.files()
        return next((path for path in found if path.exists()), found[0])

    def shadowed(self) -> list[Path]:
        """Other files of the client that are there, too: which of them it reads depends on its version."""
        first = self.file()
        return [path for path in self.files() if path.exists() and not path.samefile(first)]

    def is_here(self) -> bool:
        """Whether its file is on this machine, or the folder that only this client makes."""
        found = self.file()
        return found.exists() or (found.parent.is_dir() and found.parent != Path.home())

    def sluice(self, command: str, args: list[str]) -> dict[str, Any]:
        """The entry that starts Sluice."""
        return {**self.first, self.command: command, "args": args, **self.last}


def _everywhere(path: str, **more: Any) -> DesktopClient:
    return DesktopClient(linux=(path,), mac=(path,), windows=(path,), **more)


def _code(path: str, **more: Any) -> DesktopClient:
    """In the folder of VS Code's user."""
    return DesktopClient(
        linux=(f"CONFIG/Code/User/{path}",), mac=(f"SUPPORT/Code/User/{path}",),
        windows=(f"APPDATA/Code/User/{path}",), processes=("code", "Code"), **more,
    )  # fmt: skip


_STDIO: Final = {"type": "stdio"}
CLIENTS: Final = {
    "claude-desktop": DesktopClient(
        linux=("CONFIG/Claude/claude_desktop_config.json", "CONFIG/claude/claude_desktop_config.json"),
        mac=("SUPPORT/Claude/claude_desktop_config.json",),
        windows=("APPDATA/Claude/claude_desktop_config.json",),
        processes=("Claude", "claude-desktop"),
    ),
    "claude-code": _everywhere(
        "CLAUDE/.claude.json", marks=(".claude.json", ".mcp.json"), processes=("claude",), first=_STDIO
    ),
    "cursor": _everywhere("~/.cursor/mcp.json", marks=(".cursor",), processes=("cursor", "Cursor")),
    "vscode": _code("mcp.json", root="servers", first=_STDIO),
    "windsurf": DesktopClient(
        linux=("CONFIG/devin/mcp_config.json", "~/.codeium/windsurf/mcp_config.json"),
        mac=("~/.config/devin/mcp_config.json", "~/.codeium/windsurf/mcp_config.json"),
        windows=("APPDATA/devin/mcp_config.json", "~/.codeium/windsurf/mcp_config.json"),
        marks=("mcp_config.json",), processes=("windsurf", "Windsurf", "devin", "Devin"),
    ),
    "zed": DesktopClient(
        root="context_servers", linux=("CONFIG/zed/settings.json",), mac=("~/.config/zed/settings.json",),
        windows=("APPDATA/Zed/settings.json",), processes=("zed", "zed-editor", "Zed"), last={"env": {}},
    ),
    # its own 10 seconds are short for a first start of many servers
    "codex": _everywhere(
        "CODEX/config.toml", root="mcp_servers", processes=("codex",), last={"startup_timeout_sec": 60}
    ),
    "gemini": _everywhere("~/.gemini/settings.json", marks=(".gemini",), processes=("gemini",)),
    "goose": DesktopClient(
        root="extensions", linux=("CONFIG/goose/config.yaml",), mac=("~/.config/goose/config.yaml",),
        windows=("APPDATA/Block/goose/config/config.yaml",), processes=("goose", "goosed", "Goose"),
        first={"type": "stdio", "name": "sluice", "enabled": True}, command="cmd", last={"timeout": 300},
    ),
    "cline": _code(
        "globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json", marks=("cline_mcp_settings.json",)
    ),
}  # fmt: skip


def client_of(file: Path, root: str) -> str:
    """Whose file it is, by the name of the section that holds the servers, and by the names of file and folder."""
    by_root = {about.root: client for client, about in CLIENTS.items() if about.root != "mcpServers"}
    by_mark = {mark: client for client, about in CLIENTS.items() for mark in about.marks}
    found = (by_mark[name] for name in reversed(file.absolute().parts[-2:]) if name in by_mark)
    return by_root.get(root) or next(found, "claude-desktop")
