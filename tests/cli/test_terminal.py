"""What a terminal gets beside text, and what a program gets in its place: colours, progress, errors as JSON."""

import base64
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import command_line
import pytest

from sluicegate.audit.chain import ChainHead, link_all
from sluicegate.cli import output

CONFIG = "version: 1\npolicy: {use: open}\nservers: {a: {command: nowhere-at-all}}\nstate: {dir: state}\n"
ESCAPE = "\x1b["


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sluice.yaml").write_text(CONFIG)
    return tmp_path


def at_terminal(folder: Path, *words: str, env: dict[str, str] | None = None) -> str:
    """What a person sees: both streams, as they come."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sluicegate", *words]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"} | (env or {})
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 1 << 16)
            except OSError:  # the other end was closed
                break
    os.close(ours)
    assert process.returncode is not None
    return seen.decode()


def test_what_somebody_wrote_into_a_file_steers_no_terminal(folder: Path) -> None:
    odd = r'"\e]0;odd\a\e[2J"'
    (folder / "tests.yaml").write_text(f"- {{{odd}: 1}}\n")
    (folder / "policy.csv").write_text("p, *, *, *, *, allow\n")
    (folder / "sluice.yaml").write_text(CONFIG.replace("use: open", "files: [policy.csv], tests: tests.yaml"))
    tests = command_line.run(folder, "check")
    (folder / "sluice.yaml").write_text(f"{CONFIG}{odd}: 1\n{odd}: 2\n")
    keys = command_line.run(folder, "check")
    for done in (tests, keys):
        assert done.returncode == 3 and "\\u001b]0;odd\\u0007" in done.stdout + done.stderr
        assert all(line.isprintable() for line in (done.stdout + done.stderr).split("\n"))


# ---------------------------------------------------------------- errors as objects


def failure(folder: Path, *words: str) -> tuple[int, dict[str, object]]:
    """The exit code and the error on the last line of stderr; stdout has nothing."""
    done = command_line.run(folder, *words)
    assert done.stdout == ""
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["exit"] == done.returncode
    return done.returncode, error


def test_with_json_a_command_that_reaches_nobody_says_so_in_an_object(folder: Path) -> None:
    code, error = failure(folder, "tools", "--json")
    assert (code, error["code"]) == (4, "unreachable")
    assert "no Sluice runs" in str(error["message"]) and "sluice serve" in str(error["hint"])


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("audit", "search", "--json", "--type", "nope"), "nope"),
        (("tools", "--json", "--nope"), "--nope"),
        (("explain", "--json", "call", "a/b", "--as", "local", "--args", "[]"), "JSON object"),
    ],
)
def test_with_json_a_wrong_word_is_said_in_an_object(folder: Path, words: tuple[str, ...], about: str) -> None:
    code, error = failure(folder, *words)
    assert (code, error["code"]) == (2, "usage")
    assert about in str(error["message"])


def test_with_json_each_finding_of_a_broken_config_has_its_place(folder: Path) -> None:
    (folder / "sluice.yaml").write_text(CONFIG.replace("version: 1", "version: 2"))
    code, _ = failure(folder, "tools", "--json")
    done = json.loads(command_line.run(folder, "tools", "--json").stderr.splitlines()[-1])
    assert code == 3
    assert [(one["line"], one["code"]) for one in done["findings"]] == [(1, "wrong-value")]


def test_without_json_the_same_is_said_in_words(folder: Path) -> None:
    done = command_line.run(folder, "tools")
    assert done.returncode == 4 and done.stderr.startswith("no Sluice runs")
    usage = command_line.run(folder, "tools", "--nope")
    assert usage.returncode == 2 and "Usage: " in usage.stderr and "--nope" in usage.stderr


# ---------------------------------------------------------------- colours


def test_a_terminal_gets_colours_and_the_same_words_without_them(folder: Path) -> None:
    plain = command_line.run(folder, "check")
    shown = at_terminal(folder, "check")
    assert ESCAPE not in plain.stdout + plain.stderr
    assert re.search(r"\x1b\[33m\S*sluice\.yaml:\d+:\d+\x1b\[0m ", shown)
    assert re.sub(r"\x1b\[\d+m", "", shown).split() == (plain.stdout + plain.stderr).split()


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_no_colours_gets_none(folder: Path, env: dict[str, str]) -> None:
    assert ESCAPE not in at_terminal(folder, "check", env=env)


def test_every_coloured_word_is_one_that_says_the_same() -> None:
    assert set(output.COLOURS.values()) == {31, 32, 33, 90}
    assert all(word.isascii() and word == word.lower() for word in output.COLOURS)


# ---------------------------------------------------------------- progress


@pytest.fixture
def log(tmp_path: Path) -> Path:
    bodies = [f'"type":"admin","time":"2026-01-01T00:00:00.000000000Z","act":"{n}"'.encode() for n in range(500)]
    lines, _ = link_all(ChainHead(0, "0" * 64), "sluice", 1, bodies)
    (tmp_path / "sluice.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "keys").write_text(base64.b64encode(bytes(32)).decode())
    return tmp_path


def test_a_terminal_sees_how_far_a_verification_is(log: Path) -> None:
    words = "audit", "verify", "sluice.jsonl", "--key", "keys"
    assert "verifying" in at_terminal(log, *words)
    assert ESCAPE not in at_terminal(log, *words, env={"TERM": "dumb"})
    assert "verifying" not in command_line.run(log, *words).stderr
