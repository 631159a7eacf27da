"""First steps: what the README and the desktop pages show is what `curl`, `sluice install` and `sluice init` do."""

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest
from command_line import run
from e2e.servers import MCP2
from e2e.sluice_process import sluice
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SECTION = README.split("## A first call without a client")[1].split("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block(language: str) -> str:
    return blocks(SECTION, language)[0]


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


@pytest.fixture
def client_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a Claude Desktop whose one server is `time`."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    programs = tmp_path / ".local" / "bin"
    programs.mkdir(parents=True)
    (programs / "uvx").write_text("#!/bin/sh\n")
    (programs / "uvx").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    file = tmp_path / ".config" / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}))
    return file


def test_the_commands_of_the_desktop_tutorial_print_what_is_shown(client_file: Path, tmp_path: Path) -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "desktop.md").read_text("utf-8")
    lines = [line.partition("  ")[0] for lines in blocks(tutorial, "sh") for line in lines.splitlines()]
    dry, install, status, classes, servers, tools, approvals, approve, doctor = lines
    assert blocks(README, "sh")[1].splitlines()[1:] == [install, status] and dry == f"{install} --dry-run"
    shown, note = (text.replace("/home/ann", str(tmp_path)) for text in blocks(tutorial, "text"))
    before = client_file.read_bytes()
    done = run(tmp_path, *dry.split()[1:])
    assert (done.returncode, done.stderr) == (0, note) and client_file.read_bytes() == before
    again = run(tmp_path, *install.split()[1:], "--yes")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    (entry,) = json.loads(client_file.read_text())["mcpServers"].values()
    ours, in_tutorial = (text.splitlines().pop(1) for text in (done.stdout, shown))  # tests start it another way
    assert done.stdout.replace(ours, in_tutorial) == shown
    assert ours.startswith("  + sluice: ") and json.loads(ours.partition(": ")[2]) == entry
    said = json.loads(in_tutorial.partition(": ")[2])
    assert said.keys() == entry.keys() and said["args"] == entry["args"][-3:]
    assert re.search(r"^claude-desktop +installed ", run(tmp_path, *status.split()[1:]).stdout, re.MULTILINE)
    asked = run(tmp_path, *classes.split()[1:])
    assert asked.returncode == 2 and "--yes writes classes" in asked.stderr
    for command in (servers, tools, approvals, approve):  # nothing has started it yet
        asked = run(tmp_path, *command.split()[1:])
        assert asked.returncode == 4 and "no Sluice runs with" in asked.stderr
    found = run(tmp_path, *doctor.split()[1:])
    assert found.returncode == 1 and "failed   servers: time: the server's process ended with status 0" in found.stdout
    for command in (tutorial, README):
        assert "`sluice uninstall --all`" in command
    assert run(tmp_path, "uninstall", "--all", "--yes").returncode == 0 and client_file.read_bytes() == before


def test_the_commands_of_the_guide_take_a_clients_servers_over(client_file: Path, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "how-to" / "clients.md").read_text("utf-8").split("## Edit the client's file yourself")[1]
    own = client_file.read_bytes()
    (tmp_path / client_file.name).write_bytes(own)
    init, check = (run(tmp_path, *line.split()[1:]) for line in blocks(guide, "sh")[0].splitlines())
    assert (init.returncode, check.returncode) == (0, 0), init.stderr + check.stderr
    assert (tmp_path / client_file.name).read_bytes() == own
    config = YAML(typ="safe").load(tmp_path / "sluice.yaml")
    assert config["servers"]["time"]["command"] == str(tmp_path / ".local" / "bin" / "uvx")
    (entry,) = json.loads(init.stderr[init.stderr.index("{") :])["mcpServers"].values()
    shown = json.loads(blocks(guide, "json")[0])["mcpServers"]["sluice"]
    assert entry["args"] == [*shown["args"][:2], str(tmp_path / "sluice.yaml")] and entry.keys() == shown.keys()
