"""`sluice classes`: classes for tools of servers that are in the config already, whose other bytes stay as they are."""

import json
import sys
from pathlib import Path
from typing import Any

import listing_server
import pytest
from command_line import run
from e2e.sluice_process import sluice
from ruamel.yaml import YAML
from test_add import FORMS
from waiting import until_so

from sluicegate.cli.template import with_classes
from sluicegate.desktop.read import parse

WANTED = {"get_issue": "read", "whoami": "read", "delete_repo": "destroy"}


def server(text: str, key: str) -> dict[str, Any]:
    return dict(parse(text.encode(), ".yaml")["servers"][key])


@pytest.mark.parametrize("key", ["one", "two"])
@pytest.mark.parametrize("form", FORMS)
def test_classes_are_written_and_every_other_byte_stays(form: str, key: str) -> None:
    before = FORMS[form]
    after = with_classes(before, key, {"get_x": "read"})
    assert server(after, key) == server(before, key) | {"tools": {"classes": {"get_x": "read"}}}
    lines = after.splitlines(keepends=True)
    new = [line for line in lines if line.strip() in ("tools:", "classes: {get_x: read}")]
    assert len(new) == 2
    rest = "".join(line for line in lines if line not in new)
    assert rest.rstrip("\r\n") == before.rstrip("\r\n")


def test_classes_stand_beside_what_a_server_has_in_tools() -> None:
    before = "servers:\n  one:\n    command: sh\n    tools:  # mine\n        deny: [x]\n    lazy: true\n"
    after = with_classes(before, "one", {"get_x": "read"})
    assert after == before.replace("        deny", "        classes: {get_x: read}\n        deny")


def test_a_server_that_listed_no_tools_gets_classes_later_and_keeps_its_variables(home: Path) -> None:
    path = home / ".config" / "sluice" / "sluice.yaml"
    path.parent.mkdir(parents=True)
    git = {"command": sys.executable, "args": [listing_server.__file__], "env": {"A": "b"}}
    rest = f"version: 1\npolicy: {{use: personal}}\nstate: {{dir: {json.dumps(str(home / 'state'))}}}\nservers:\n"
    own = f"  git:\n    command: {json.dumps(git['command'])}\n    args: {json.dumps(git['args'])}\n    env: {{A: b}}\n"
    flow = f"  flow: {json.dumps(git)}\n"
    path.write_text(rest + own + flow + "  gone:\n    command: /bin/false\n")
    before = path.read_text()
    asked = run(home, "classes")
    assert asked.returncode == 2 and "--yes writes classes without a question" in asked.stderr
    done = run(home, "classes", "--yes")
    assert done.returncode == 0, done.stderr
    assert "  git  read: get_issue, whoami\n  git  destroy: delete_repo\n  git  write: create_issue\n" in done.stdout
    assert "gone lists no tools now" in done.stderr and "`sluice classes gone`" in done.stderr
    assert "Sluice cannot edit flow: write its tools.classes by hand" in done.stderr
    text = path.read_text()
    assert server(text, "git") == git | {"tools": {"classes": WANTED}}
    new = "    tools:\n      classes: {get_issue: read, whoami: read, delete_repo: destroy}\n"
    assert text == before.replace(own, own + new)
    again = run(home, "classes", "git", "--yes")
    assert again.returncode == 1 and "have classes already" in again.stderr and path.read_text() == text
    assert run(home, "classes", "unknown").returncode == 1


def test_the_lists_of_a_running_sluice_are_taken_and_nothing_is_started_again(tmp_path: Path) -> None:
    started = tmp_path / "started"
    words = ["-c", f'echo x >> {started}; exec "$0" "$1"', sys.executable, listing_server.__file__]
    late = {"command": "/bin/sh", "args": ["-c", f"echo x >> {started}; exec sleep 1000"], "required": False}
    both = {"git": {"command": "/bin/sh", "args": words}, "late": late | {"era": "legacy"}}
    with sluice({"servers": both}, tmp_path) as process:
        as_json = json.loads(process.config.read_text())
        with process.config.open("w") as file:
            YAML().dump(as_json, file)
        named = ["-c", str(process.config)]
        until_so(lambda: "git__whoami" in run(tmp_path, "tools", *named).stdout and len(started.read_text()) > 2)
        before = started.read_text()
        done = run(tmp_path, "classes", "--yes", *named)
        assert done.returncode == 0, done.stderr
        assert started.read_text() == before
        assert "note  late lists no tools now: the Sluice that runs has no list of it" in done.stderr
        assert server(process.config.read_text(), "git")["tools"] == {"classes": WANTED}
