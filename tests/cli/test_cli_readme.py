"""The README keeps its word: its snippets load, its table is the format, its reasons are those of the code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args

import pytest

from sluicegate import config
from sluicegate.call import Reason
from sluicegate.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def snippets(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", README, re.DOTALL | re.MULTILINE)
    return [dedent(text) for _, text in found]


@pytest.mark.parametrize("text", snippets("yaml"))
def test_every_yaml_snippet_is_a_config(text: str) -> None:
    whole = text if "policy:" in text else f"policy: {{use: open}}\n{text}"
    environ = {name: "value" for name in re.findall(r"\$\{env:(\w+)\}", text)}
    checked = config.check_text(whole, "README.md", Path("/base"), environ)
    wrong = [error for error in checked.errors if error.code != "unreadable-file"]  # its files stand in other snippets
    assert not wrong, wrong


def test_the_snippet_for_a_desktop_client_starts_stdio() -> None:
    (text,) = snippets("json")
    entry = json.loads(text)["mcpServers"]["sluice"]
    assert Path(entry["command"]).name == "sluice" and Path(entry["command"]).is_absolute()
    assert entry["args"][:2] == ["stdio", "-c"] and Path(entry["args"][2]).is_absolute()


def test_every_command_in_a_shell_snippet_exists() -> None:
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    used = {match for text in snippets("sh") for match in re.findall(r"^sluice ([a-z]+)", text, re.MULTILINE)}
    assert used and used <= known
    targets = {match for text in snippets("sh") for match in re.findall(r"^make ([a-z]+)", text, re.MULTILINE)}
    makefile = (ROOT / "Makefile").read_text()
    assert {"demo", "test"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_every_option_of_a_shell_snippet_exists() -> None:
    declared = (ROOT / "proxy" / "sluicegate" / "cli").glob("*.py")
    source = "".join(path.read_text() for path in declared)
    for text in snippets("sh"):
        for option in re.findall(r"^sluice .*?(--[a-z-]+)", text, re.MULTILINE):
            assert f'"{option}"' in source or option == "--url", option


def test_the_table_of_keys_is_the_format() -> None:
    shown = README.split("<!-- keys -->\n")[1]
    assert shown == "\n".join(reference()) + "\n", "\n".join(reference())


def reference() -> Iterator[str]:
    yield "| key | default | what it does |"
    yield "|---|---|---|"
    for key, default, text in rows(config.schema(), config.schema()["$defs"], ""):
        yield f"| `{key}` | {default} | {text} |"


NAMED = {"clients.keys": "Key", "approvals.profiles": "Profile"}


def rows(section: dict[str, Any], all_sections: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    for key, value in section["properties"].items():
        name = f"{prefix}{key}"
        text = " ".join(value["description"].split())
        if name == "servers":
            yield name, "", text
            started, reached = all_sections["StdioServer"], all_sections["HttpServer"]
            own = {key: value for key, value in started["properties"].items() if key not in reached["properties"]}
            yield from rows({**started, "properties": own}, all_sections, "servers.KEY.")
            yield from rows(reached, all_sections, "servers.KEY.")
        elif name in NAMED:
            yield name, "", text
            yield from rows(all_sections[NAMED[name]], all_sections, f"{name}.NAME.")
        elif inner := referred(value):
            yield from rows(all_sections[inner], all_sections, f"{name}.")
        else:
            default = f"`{json.dumps(value['default'])}`" if value.get("default") not in (None, {}, "") else ""
            yield (
                name,
                "required" if key in section.get("required", ()) else default.replace('`"', "`").replace('"`', "`"),
                text,
            )


def referred(value: dict[str, Any]) -> str:
    found = re.search(r'"#/\$defs/(\w+)"', json.dumps(value))
    return found[1] if found else ""


def test_every_reason_of_the_code_is_explained_or_left_to_a_later_version() -> None:
    explained = set(
        re.findall(r"^\| `([a-z_]+)` \|", README.split("## What an answer means")[1].split("\n## ")[0], re.MULTILINE)
    )
    assert explained <= set(get_args(Reason))
    used = {
        reason
        for path in (ROOT / "proxy" / "sluicegate").rglob("*.py")
        for reason in re.findall(r'(?:refuse|words\.answer)\([^"\n]*"([a-z_]+)"', path.read_text())
    }
    assert used == explained


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = README.split("```text\nproxy/sluicegate/\n")[1].split("```")[0]
    named = re.findall(r"^  (\w+(?:\.py|/))", tree, re.MULTILINE)
    real = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "proxy" / "sluicegate").iterdir()
        if path.name != "__pycache__"
    }
    assert set(named) == real


def test_the_words_of_the_project_are_kept() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        assert "upstream" not in (ROOT / name).read_text().lower()
