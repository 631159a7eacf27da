"""The servers that stand behind Sluice in end-to-end tests, as its config names them. Knows no Sluice code.

Eight real servers of three SDKs, five over stdio and two over HTTP among them, of both eras.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from peers.fleet import FIXTURE, everything_over_http, fixture_over_http
from peers.install import MCP2, NODE, SERVER_EVERYTHING, SERVER_FILESYSTEM, SERVER_MEMORY

Json = dict[str, Any]


def stdio(command: list[str], **more: Any) -> Json:
    return {"command": command[0], "args": command[1:], **more}


@contextmanager
def eight_servers(folder: Path) -> Iterator[Json]:
    """The `servers:` section; what speaks HTTP runs as long as the block."""
    repository, files = make_repository(folder / "repository"), make_files(folder / "files")
    with ExitStack() as stack:
        yield {
            # these two add tools at run time, which are to be seen
            "web": {
                "url": stack.enter_context(fixture_over_http(folder, "--name", "web", "--page", "7")),
                "pin": "warn",
            },
            "pipe": stdio([*FIXTURE, "--name", "pipe", "--page", "11"], sharing="shared", pin="warn"),
            "time": stdio([str(MCP2 / "mcp-server-time"), "--local-timezone", "UTC"]),
            "git": stdio([str(MCP2 / "mcp-server-git"), "--repository", str(repository)], sharing="shared"),
            "everything": stdio([str(NODE), str(SERVER_EVERYTHING), "stdio"], sharing="shared"),
            "everyweb": {"url": stack.enter_context(everything_over_http(folder))},
            "files": stdio([str(NODE), str(SERVER_FILESYSTEM), str(files)], sharing="shared"),
            "memory": stdio(
                [str(NODE), str(SERVER_MEMORY)],
                sharing="shared",
                env={"MEMORY_FILE_PATH": str(make_memory(folder / "memory.jsonl"))},
            ),
        }


def calls(folder: Path) -> list[tuple[str, Json, str]]:
    """One call a server: public name, arguments, what the answer must contain."""
    return [
        ("time__convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}, "21:00"),
        ("git__git_log", {"repo_path": str(folder / "repository"), "max_count": 1}, "the first commit"),
        ("everything__echo", {"message": "stdio"}, "Echo: stdio"),
        ("everyweb__get-sum", {"a": 2, "b": 40}, "42"),
        ("files__read_text_file", {"path": str(folder / "files" / "note.txt")}, "left on the table"),
        ("memory__search_nodes", {"query": "Sluice"}, "lets through what may pass"),
        ("web__test_simple_text", {}, "This is a simple text response"),
        ("pipe__echo", {"over": "stdio"}, "stdio"),
    ]


def make_repository(path: Path) -> Path:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(path)]
    path.mkdir()
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "the first commit"]):
        subprocess.run([*git, *words], check=True)
    return path


def make_files(path: Path) -> Path:
    path.mkdir()
    (path / "note.txt").write_text("left on the table")
    return path


def make_memory(path: Path) -> Path:
    observations = ["lets through what may pass"]
    path.write_text(
        json.dumps({"type": "entity", "name": "Sluice", "entityType": "proxy", "observations": observations})
    )
    return path
