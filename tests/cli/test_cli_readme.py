"""README and docs/ agree with the code: snippets load, commands exist, reasons are those of the code."""

import json
import re
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest

from sluicegate import config
from sluicegate.cli.commands import COMMANDS, GROUPS
from sluicegate.protocol.model import Reason

ROOT = Path(__file__).parents[2]
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]


def snippets(language: str, pages: list[Path] = PAGES) -> list[str]:
    block = re.compile(rf"^( *)```{language}\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
    return [dedent(text) for page in pages for _, text in block.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize("text", snippets("yaml"))
def test_every_yaml_snippet_is_a_config(text: str) -> None:
    whole = text if "policy:" in text else f"policy: {{use: open}}\n{text}"
    environ = {name: "value" for name in re.findall(r"\$\{env:(\w+)\}", text)}
    checked = config.check_text(whole, "README.md", Path("/base"), environ)
    wrong = [error for error in checked.errors if error.code != "unreadable-file"]  # its files stand in other snippets
    assert not wrong, wrong


def test_the_snippet_for_a_desktop_client_starts_stdio() -> None:
    entries = [json.loads(text)["mcpServers"]["sluice"] for text in snippets("json")]
    assert entries
    for entry in entries:
        assert Path(entry["command"]).name == "sluice" and Path(entry["command"]).is_absolute()
        assert entry["args"][:2] == ["stdio", "-c"] and Path(entry["args"][2]).is_absolute()


def test_every_command_in_a_shell_snippet_exists() -> None:
    known = COMMANDS.keys() | GROUPS.keys()
    used = {match for text in snippets("sh") for match in re.findall(r"^sluice ([a-z]+)", text, re.MULTILINE)}
    assert used and used <= known
    targets = {match for text in snippets("sh") for match in re.findall(r"^make ([a-z]+)", text, re.MULTILINE)}
    assert re.findall(r"^make (\w+)", snippets("sh", [README])[0], re.MULTILINE) == ["demo", "test"]
    dry = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


def test_every_option_of_a_shell_snippet_exists() -> None:
    declared = (ROOT / "proxy" / "sluicegate" / "cli").glob("*.py")
    source = "".join(path.read_text() for path in declared)
    for text in snippets("sh"):
        for option in re.findall(r"^sluice .*?(--[a-z-]+)", text, re.MULTILINE):
            assert f'"{option}"' in source or option == "--url", option


def test_every_reason_of_the_code_is_explained_or_left_to_a_later_version() -> None:
    page = (DOCS / "reference" / "reasons.md").read_text("utf-8")
    explained = set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE))
    assert explained <= set(get_args(Reason))
    used = {
        reason
        for path in (ROOT / "proxy" / "sluicegate").rglob("*.py")
        for reason in re.findall(r'(?:refuse|messages\.answer)\([^"\n]*"([a-z_]+)"', path.read_text())
    }
    assert used == explained


def test_the_tree_of_the_architecture_page_is_the_tree() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    tree = page.split("```text\nproxy/sluicegate/\n")[1].split("```")[0]
    named = re.findall(r"^  (\w+(?:\.py|/))", tree, re.MULTILINE)
    real = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "proxy" / "sluicegate").iterdir()
        if path.name != "__pycache__"
    }
    assert set(named) == real


def test_each_file_that_the_architecture_page_names_exists() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", page))
    package = ROOT / "proxy" / "sluicegate"
    assert len(named) > 30 and not [one for one in named if not (package / one).exists() and not (ROOT / one).exists()]


def test_the_words_of_the_project_are_kept() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        assert "upstream" not in page.read_text("utf-8").lower()
