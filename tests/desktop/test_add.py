"""`sluice add` and `sluice remove`: servers in the config file, whose other bytes stay as they are."""

import io
import json
import os
import pty
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import listing_server
import pytest
from command_line import run
from e2e.sluice_process import sluice
from policy_bed import recorder
from ruamel.yaml import YAML
from waiting import until_so

from sluicegate.cli.template import with_server_last, without_server
from sluicegate.desktop.read import parse

SECRET = "hunter2-and-more"
CONFIG = """\
# mine
version: 1  # first
policy: {use: personal}

servers:   # all of them
  # one is for notes
  one:
    command: sh   # why
    args:
      - -c
      - |
        echo
        two:
    # the end of one

  # two is for mail
  "two":
    url: https://example.com/mcp

  # three: {command: later}
# what follows is the rest
names: {max: 40}
"""
FORMS = {
    "plain": CONFIG, "four spaces": CONFIG.replace("\n  ", "\n    "), "crlf": CONFIG.replace("\n", "\r\n"),
    "byte order mark": f"\ufeff{CONFIG}", "servers last": CONFIG.split("\n  # three")[0],
    "no comments behind": CONFIG.replace("  # three: {command: later}\n", ""),
}  # fmt: skip


def servers(text: str) -> dict[str, Any]:
    return dict(parse(text.encode(), ".yaml")["servers"] or {})


@pytest.fixture
def config(home: Path) -> Path:
    path = home / ".config/sluice/sluice.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_server_that_is_added_and_removed_leaves_every_other_byte(form: str, config: Path) -> None:
    before = FORMS[form].encode()
    config.write_bytes(before)
    done = run(config.parent, "add", "new", "--", "sh", "-c", "exit 1", "--flag")
    assert done.returncode == 0, done.stderr
    added = config.read_bytes()
    assert list(servers(added.decode())) == ["one", "two", "new"], "no other server changes its rank"
    assert servers(added.decode())["new"]["args"] == ["-c", "exit 1", "--flag"]
    assert added.count(b"\r\n") == (added.count(b"\n") if form == "crlf" else 0)
    assert run(config.parent, "remove", "new").returncode == 0
    assert config.read_bytes().rstrip() == before.rstrip()


@pytest.mark.parametrize("form", FORMS)
def test_a_server_goes_with_its_own_lines_and_no_comment_beside_it(form: str) -> None:
    text = FORMS[form]
    without = without_server(text, "one")
    assert list(servers(without)) == ["two"]
    for comment in ("# mine", "# first", "# all of them", "# one is for notes", "# two is for mail"):
        assert comment in without
    assert "# the end of one" not in without and "echo" not in without
    assert set(without.splitlines()) < set(text.splitlines())
    assert servers(without_server(without, "two")) == {}
    assert list(servers(with_server_last(without, "x", {"command": "y"}))) == ["two", "x"]


def test_the_last_server_can_be_removed_and_another_one_be_added(config: Path) -> None:
    for name in ("one", "two"):
        assert run(config.parent, "remove", name).returncode == 0
    assert servers(config.read_text()) == {} and "# two is for mail" in config.read_text()
    assert run(config.parent, "add", "web", "https://example.com/mcp").returncode == 0
    assert servers(config.read_text()) == {"web": {"url": "https://example.com/mcp"}}


@pytest.mark.parametrize("words", [["remove", "one"], ["add", "web", "https://example.com/mcp"], ["classes", "one"]])
def test_a_file_that_is_no_yaml_is_named_with_its_mistake_alone(config: Path, words: list[str]) -> None:
    config.write_text(before := config.read_text() + "\n\tx: 1\n")
    done = run(config.parent, *words)
    assert done.returncode == 3 and config.read_text() == before
    said = [line for line in done.stderr.splitlines() if line]
    assert len(said) == 1 and "a tab cannot indent" in said[0]


def test_a_file_of_comments_alone_is_yaml_without_servers(config: Path) -> None:
    config.write_text("# servers come later\n")
    done = run(config.parent, "remove", "one")
    assert done.returncode == 1 and "it has none" in done.stderr


def test_without_a_config_the_first_server_makes_one(home: Path) -> None:
    done = run(home, "add", "web", "https://example.com/mcp", "--json")
    shown = json.loads(done.stdout)
    path = home / ".config/sluice/sluice.yaml"
    assert shown == {"config": str(path), "added": "web", "classes": {}, "notes": [], "problems": []}
    assert parse(path.read_bytes(), ".yaml")["policy"]["use"] == "personal"
    assert run(home, "check").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("one", "--", "sh"), 1, "already"), (("Bad_Name", "--", "sh"), 2, "1 to 20 of a-z"),
        (("sluice", "--", "sh"), 2, "Sluice itself"), (("new",), 2, "sluice add NAME URL"),
        (("new", "ftp://a/b"), 2, "https://"), (("new", "https://a/b", "more"), 2, "stands alone"),
        (("new", "https://a/b", "--env", "A=b"), 2, "--header"), (("new", "--header", "A: b", "--", "sh"), 2, "--env"),
        (("new", "https://a/b", "--header", "A"), 2, "NAME: VALUE"),
        (("new", "https://a/b", "--header", "Host: x"), 3, "written by Sluice itself"),
        (("new", "https://user:pass@a/b"), 3, "no user name"), (("new", "--", "sh", "${what}"), 3, "means nothing"),
    ],
)  # fmt: skip
def test_what_is_no_server_changes_nothing_and_is_named(
    words: tuple[str, ...], code: int, why: str, config: Path
) -> None:
    done = run(config.parent, "add", *words)
    assert (done.returncode, why in done.stderr, done.stdout) == (code, True, ""), done.stderr
    assert config.read_text() == CONFIG


def test_an_unknown_server_is_answered_with_those_that_are_there(config: Path) -> None:
    done = run(config.parent, "remove", "three")
    assert done.returncode == 1 and "one, two" in done.stderr and config.read_text() == CONFIG


@pytest.mark.parametrize("form", ["servers: {one: {command: sh}}\n", "servers:\n  one: {command: sh,\n  args: [a]}\n"])
def test_a_form_that_cannot_be_edited_by_lines_is_refused(form: str, config: Path) -> None:
    text = f"version: 1\npolicy: {{use: personal}}\n{form}"
    config.write_text(text)
    for words in (("remove", "one"), ("add", "new", "--", "sh")):
        done = run(config.parent, *words)
        if done.returncode:
            assert "cannot edit" in done.stderr and config.read_text() == text
            continue
        wanted = {"add": ["one", "new"], "remove": []}[words[0]]
        assert list(servers(config.read_text())) == wanted, "an edit that was made is exact"
        config.write_text(text)


def test_a_config_that_is_wrong_already_is_answered_with_its_findings(config: Path) -> None:
    config.write_text(CONFIG + "servers: {}\n")
    done = run(config.parent, "add", "new", "--", "sh")
    assert done.returncode == 3 and "duplicate-key" in done.stderr and "new" not in config.read_text()


def test_a_secret_is_in_a_file_for_its_owner_alone_and_goes_with_its_server(config: Path) -> None:
    words = ("--env", f"API_TOKEN={SECRET}", "--env", "PLAIN=1", "--env", "FROM_SHELL", "--", "sh", f"--token={SECRET}")
    done = run(config.parent, "add", "new", *words)
    assert done.returncode == 0 and SECRET not in done.stdout + done.stderr + config.read_text()
    folder = Path(config.parents[2]) / ".local/state/sluice/secrets"
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["new.API_TOKEN", "new.argument-1"]
    assert files[0].read_text() == SECRET and files[1].read_text() == f"--token={SECRET}"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    env = servers(config.read_text())["new"]["env"]
    assert env == {"API_TOKEN": f"${{file:{files[0]}}}", "PLAIN": "1", "FROM_SHELL": "${env:FROM_SHELL}"}
    assert run(config.parent, "remove", "new").returncode == 0 and not list(folder.iterdir())


def test_a_secret_is_asked_and_never_stands_among_the_arguments(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"Bearer {SECRET}\n"))
    done = run(config.parent, "add", "web", "https://example.com/mcp", "--secret", "Authorization")
    assert done.returncode == 0, done.stderr
    file = Path(config.parents[2]) / ".local/state/sluice/secrets/web.Authorization"
    assert file.read_text() == f"Bearer {SECRET}"
    assert servers(config.read_text())["web"]["headers"] == {"Authorization": f"${{file:{file}}}"}
    config.write_text(CONFIG)
    monkeypatch.setattr("sys.stdin", io.StringIO("another\n"))
    done = run(config.parent, "add", "web", "https://example.com/mcp", "--secret", "Authorization")
    assert done.returncode == 1 and "it exists" in done.stderr, "nobody's secret is overwritten"
    assert file.read_text() == f"Bearer {SECRET}" and config.read_text() == CONFIG


def test_a_typed_secret_is_text_also_at_the_start_that_proposes_classes(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed, got = f"{SECRET}${{env:HOME}}$${{", config.parent / "got"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{typed}\n"))
    words = ("--secret", "TOKEN", "--yes", "--", "sh", "-c", f'printf %s "$TOKEN" > {got}')
    done = run(config.parent, "add", "new", *words)
    assert done.returncode == 0 and got.read_text() == typed, done.stderr
    assert (config.parents[2] / ".local/state/sluice/secrets/new.TOKEN").read_text() == typed


def test_a_refused_server_leaves_no_secret_behind(config: Path) -> None:
    done = run(config.parent, "add", "web", "https://example.com/mcp", "--header", f"Host: sk-{SECRET}-{SECRET}")
    assert done.returncode == 3 and not list((config.parents[2] / ".local/state/sluice/secrets").iterdir())


def test_paths_of_a_command_mean_what_they_meant_in_the_shell(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "server.py").write_text("")
    (folder / "start").write_text("")
    assert run(folder, "add", "a", "--", "python3", "server.py").returncode == 0
    assert run(folder, "add", "b", "--", "./start", "--flag").returncode == 0
    script, program = servers(config.read_text())["a"], servers(config.read_text())["b"]
    assert script["cwd"] == str(folder)
    assert program == {"command": str(folder / "start"), "args": ["--flag"]}


def test_a_running_sluice_starts_what_is_added_and_stops_what_is_removed(tmp_path: Path) -> None:
    first, second = (recorder(tmp_path, name, tools=["read"]) for name in ("one", "two"))
    with sluice({"servers": {"one": first}}, tmp_path) as process:
        yaml = YAML()
        with process.config.open("rb+") as file:
            settings = YAML(typ="safe").load(file)
            file.seek(0)
            file.truncate()
            yaml.dump(settings, file)
        words = ["-c", str(process.config)]

        def states() -> dict[str, str]:
            done = run(tmp_path, "servers", "--json", *words)
            return {row["key"]: row["status"] for row in json.loads(done.stdout)["servers"]}

        env = [word for name, value in second.get("env", {}).items() for word in ("--env", f"{name}={value}")]
        done = run(tmp_path, "add", "two", *words, *env, "--", second["command"], *second["args"])
        assert done.returncode == 0, done.stderr
        until_so(lambda: states() == {"one": "up", "two": "up"}, describe=lambda: (states(), process.log()))
        assert run(tmp_path, "remove", "two", *words).returncode == 0
        until_so(lambda: states() == {"one": "up"}, describe=states)


def test_install_adds_servers_to_a_config_and_keeps_its_line_ends(config: Path) -> None:
    before = CONFIG.replace("\n", "\r\n").encode()
    config.write_bytes(before)
    client = config.parents[2] / ".cursor/mcp.json"
    client.parent.mkdir()
    client.write_text(json.dumps({"mcpServers": {"three": {"url": "https://example.com/three"}}}))
    assert run(config.parent, "install", "cursor", "--yes").returncode == 0
    after = config.read_bytes()
    assert set(servers(after.decode())) == {"one", "two", "three"} and after.count(b"\r\n") == after.count(b"\n")


def typed(home: Path, answer: str, *words: str) -> str:
    """What a person sees who types that answer."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sluicegate", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=home) as process:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        seen = b""
        with suppress(OSError):  # the other end was closed
            while data := os.read(ours, 1 << 16):
                seen += data
    os.close(ours)
    assert process.returncode == 0, seen
    return seen.decode()


ODD_LISTS = [
    {"tools": 5}, {"tools": True}, {"tools": "abc"}, {"tools": {"a": 1}}, {"tools": [1, None, {"name": 5}]}, {}, 5, [],
    {"tools": [{"name": "get_a", "annotations": 5}], "nextCursor": {"a": 1}}, {"tools": None}, {"tools": [[], "x"]},
]  # fmt: skip


def test_an_odd_list_stops_no_command_and_no_other_server(config: Path) -> None:
    home, program = config.parents[2], [sys.executable, listing_server.__file__]
    client = home / ".cursor/mcp.json"
    client.parent.mkdir()
    odd = {f"odd-{number}": {"command": program[0], "args": [program[1], json.dumps(one)]}
           for number, one in enumerate(ODD_LISTS)}  # fmt: skip
    good = {"good": {"command": program[0], "args": program[1:]}}
    client.write_text(json.dumps({"mcpServers": odd | good}))
    config.write_text("version: 1\npolicy: {use: personal}\n")
    done = run(home, "install", "cursor", "--yes")
    assert done.returncode == 0 and "good  read: get_issue, whoami" in done.stdout, done.stderr
    added = servers(config.read_text())
    assert added.keys() == {*odd, "good"} and "tools" in added["good"]
    done = run(home, "add", "another", "--yes", "--", *program, json.dumps(ODD_LISTS[0]))
    assert done.returncode == 0, done.stderr
    rows = json.loads(run(home, "doctor", "--json").stdout)["checks"]
    assert {row["subject"]: row["state"] for row in rows if row["subject"] in ("good", "odd-0")} == {
        "good": "ok", "odd-0": "failed"}  # fmt: skip


def test_an_endless_list_is_taken_as_far_as_its_bound(config: Path) -> None:
    count = config.parent / "count"
    words = ("--", sys.executable, listing_server.__file__, "endless", str(count))
    assert run(config.parent, "add", "endless", "--yes", *words).returncode == 0
    assert int(count.read_text()) == 10, "list_items is 10,000, and a page has 1,000"
    assert len(servers(config.read_text())["endless"]["tools"]["classes"]) == 1_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_whatever_ends_the_command_ends_the_servers_that_it_started(config: Path, number: signal.Signals) -> None:
    file = config.parent / "pid"
    words = ("add", "stays", "--yes", "--", sys.executable, listing_server.__file__, "stay", str(file))
    command = [sys.executable, "-m", "sluicegate", *words]
    with subprocess.Popen(command, cwd=config.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until_so(lambda: file.exists() and file.read_text() != "")
        process.send_signal(number)
    assert process.returncode in (128 + number, 130)
    assert not Path(f"/proc/{file.read_text()}").exists() and config.read_text() == CONFIG


def test_classes_of_a_new_server_are_taken_by_whoever_adds_it(config: Path) -> None:
    words, home = ("--", sys.executable, listing_server.__file__), config.parent
    assert run(home, "add", "unasked", *words).returncode == 0
    assert "Take these classes of its tools? [Y/n]" in typed(home, "n", "add", "refused", *words)
    seen = typed(home, "", "add", "taken", *words)
    assert "taken  read: get_issue, whoami" in seen and "taken  destroy: delete_repo" in seen
    done = run(home, "add", "yes", "--yes", "--json", *words)
    wanted = {"get_issue": "read", "whoami": "read", "delete_repo": "destroy"}
    assert json.loads(done.stdout)["classes"] == wanted
    assert run(home, "add", "no-start", "--yes", "--no-start", *words).returncode == 0
    found = {key: server.get("tools") for key, server in servers(config.read_text()).items()}
    assert [key for key, tools in found.items() if tools == {"classes": wanted}] == ["taken", "yes"]
    assert [key for key, tools in found.items() if tools is None][-3:] == ["unasked", "refused", "no-start"]
