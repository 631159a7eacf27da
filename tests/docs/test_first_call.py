"""First steps: the README's call without a client gets the answer that is shown, and `init` does what is said of it."""

import json
import re
import shlex
from pathlib import Path

import httpx
from command_line import run
from e2e.servers import MCP2
from e2e.sluice_process import sluice
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SECTION = README.split("## A first call without a client")[1].split("\n## ")[0]


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_call_of_the_readme_gets_the_answer_that_is_shown(tmp_path: Path) -> None:
    config = YAML(typ="safe").load(block("yaml"))
    assert config["servers"]["time"] == {"command": "uvx", "args": ["mcp-server-time"]}
    config["servers"]["time"] = {"command": str(MCP2 / "mcp-server-time"), "args": []}
    _, _, url, *words = shlex.split(block("sh").split("sluice tools -c sluice.yaml\n")[1].replace("\\\n", ""))
    said = dict(zip(words[::2], words[1::2], strict=True))["-d"]
    headers = dict(word.split(": ", 1) for flag, word in zip(words[::2], words[1::2], strict=True) if flag == "-H")
    assert url == "http://127.0.0.1:7410/mcp"
    with sluice(config, tmp_path) as process:
        answer = httpx.post(process.url, headers=headers, content=said, timeout=30)
        result = answer.json()["result"]
    shown = json.loads("{" + block("text") + "}")["structuredContent"]
    assert result["isError"] is False and result["structuredContent"].keys() == shown.keys()
    assert block("text").partition("2026")[0] in answer.text


def test_the_commands_of_the_desktop_tutorial_take_a_clients_servers_over(tmp_path: Path) -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "desktop.md").read_text("utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uvx").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "uvx").chmod(0o755)
    own = {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}
    (tmp_path / "claude_desktop_config.json").write_text(json.dumps(own))
    lines = tutorial.split("```sh\n")[1].split("```")[0].splitlines()
    assert all(line in README for line in lines)
    init, check = (run(tmp_path, *line.split()[1:], env={"PATH": str(tmp_path / "bin")}) for line in lines)
    assert (init.returncode, check.returncode) == (0, 0), init.stderr + check.stderr
    assert json.loads((tmp_path / "claude_desktop_config.json").read_text()) == own
    config = YAML(typ="safe").load(tmp_path / "sluice.yaml")
    assert config["servers"]["time"]["command"] == str(tmp_path / "bin" / "uvx")
    (entry,) = json.loads(init.stderr[init.stderr.index("{") :])["mcpServers"].values()
    shown = json.loads(tutorial.split("```json\n")[1].split("```")[0])["mcpServers"]["sluice"]
    assert entry["args"] == [*shown["args"][:2], str(tmp_path / "sluice.yaml")] and entry.keys() == shown.keys()
