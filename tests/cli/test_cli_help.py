"""What the command line says of itself, over all commands: help, JSON, singular and plural."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import run

from sluicegate import __version__
from sluicegate.cli.commands import application
from sluicegate.cli.output import count

# They run until they are ended, or write a file; or what they print is JSON in any case.
WITHOUT_DATA = {"serve", "stdio", "demo", "detector", "init"}
ALWAYS_JSON = {"audit export", "config schema"}


def commands(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


ALL = dict(commands(typer.main.get_command(application())))
GROUPS = ["", *sorted({name.split()[0] for name in ALL if " " in name})]


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_explained_without_words_of_python(name: str, tmp_path: Path) -> None:
    for option in ("-h", "--help"):
        shown = run(tmp_path, *name.split(), option)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert not re.search(r"<[a-z]|\[[A-Z][a-z]+\]|\{[a-z]+\}", shown.stdout), shown.stdout
    for param in ALL[name].params:
        assert param.hidden or param.help, f"{name}: {param.name}"
    text = shown.stdout.split("Options:")[0]
    assert re.search(r"[a-z)]\.\s", text), f"{name}: a sentence"


@pytest.mark.parametrize("name", GROUPS)
def test_every_list_of_commands_is_whole(name: str, tmp_path: Path) -> None:
    shown = run(tmp_path, *name.split(), "--help")
    assert shown.stdout and "..." not in shown.stdout.replace("[ARGS]...", "")
    alone = run(tmp_path, *name.split())
    assert (alone.returncode, alone.stdout, alone.stderr) == (2, "", shown.stdout)


@pytest.mark.parametrize("name", sorted(ALL.keys() - WITHOUT_DATA - ALWAYS_JSON))
def test_every_command_that_prints_data_prints_json(name: str) -> None:
    assert any("--json" in param.opts for param in ALL[name].params)


def test_the_version_has_a_short_form(tmp_path: Path) -> None:
    for option in ("-V", "--version"):
        shown = run(tmp_path, option)
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"sluice {__version__}\n", "")


@pytest.mark.parametrize("words", [["nothing"], ["keys", "nothing"], ["check", "--nothing"], ["explain"]])
def test_what_does_not_exist_exits_2_and_says_so(words: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr and "Error: " in done.stderr


@pytest.mark.parametrize(("number", "text"), [(0, "0 keys"), (1, "1 key"), (2, "2 keys"), (1200, "1,200 keys")])
def test_one_thing_is_singular(number: int, text: str) -> None:
    assert count(number, "key") == text
