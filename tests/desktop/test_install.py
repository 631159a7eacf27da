"""`sluice install`, `uninstall` and `status`: the files of desktop clients, edited by the byte and put back."""

import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import listing_server
import pytest
from command_line import run
from ruamel.yaml import YAML

from sluicegate.desktop.clients import CLIENTS
from sluicegate.desktop.edit import CannotEdit, edited
from sluicegate.desktop.read import parse

Json = dict[str, Any]
SECRET = "hunter2-and-more"


def sluice(home: Path, *words: str) -> "CompletedProcess[str]":
    """Their servers are not started: most are none."""
    return run(home, *words, *(["--no-start"] if words[:1] == ("install",) else []))


def text_of(client: str) -> str:
    """A file with two servers, and settings beside them."""
    about = CLIENTS[client]
    suffix = about.file().suffix
    if suffix == ".toml":
        return (
            '# mine\nmodel = "x"\n\n[mcp_servers.one]\ncommand = "/bin/sh" # why\nargs = ["-c", "a"]\n'
            f'[mcp_servers.one.env]\nA_TOKEN = "{SECRET}"\n\n[mcp_servers.two]\nurl = "https://example.com/mcp"\n\n'
            '[tui]\ncolour = true\n'
        )  # fmt: skip
    if suffix == ".yaml":
        return (
            "# mine\nGOOSE_MODE: auto\nextensions:\n  developer:  # stays\n    type: builtin\n    enabled: true\n"
            "  one:\n    type: stdio\n    cmd: /bin/sh\n    args: [-c, a]\n    envs:\n"
            f"      A_TOKEN: {SECRET}\n  two:\n    type: streamable_http\n    uri: https://example.com/mcp\nlast: 1\n"
        )
    servers = {"one": {"command": "/bin/sh", "args": ["-c", "a"], "env": {"A_TOKEN": SECRET}},
               "two": {"type": "http", "url": "https://example.com/mcp"}}  # fmt: skip
    return json.dumps({"theme": "dark {", about.root: servers, "last": [1, {"a": "]"}]}, indent=2) + "\n"


def variant(text: str, suffix: str, name: str) -> bytes | None:
    in_json = text.replace("{\n", '{ // a "comment" {\n /* two\n lines */\n', 1)
    commented = in_json if suffix == ".json" else f"# more\n{text}"
    texts: dict[str, bytes | None] = {
        "crlf": text.replace("\n", "\r\n").encode(), "bom": b"\xef\xbb\xbf" + text.encode(),
        "comments": commented.encode(), "empty": b"", "absent": None,
        "tabs": (text.replace("  ", "\t") if suffix == ".json" else text.replace(" = ", "\t=\t")).encode(),
        "one line": json.dumps(json.loads(text)).encode() if suffix == ".json" else text.rstrip("\n").encode(),
        "compact": json.dumps(json.loads(text), separators=(",", ":")).encode() if suffix == ".json" else text.encode(),
        "trailing comma": text.replace("]\n}", "],\n}").encode() if suffix == ".json" else text.encode(),
    }  # fmt: skip
    return texts.get(name, text.encode())


VARIANTS = (
    "lf", "crlf", "bom", "comments", "tabs", "one line", "compact", "trailing comma", "symlink", "0600", "empty",
    "absent",
)  # fmt: skip


@pytest.mark.parametrize("form", VARIANTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_uninstall_makes_a_file_what_it_was_in_bytes_and_mode(client: str, form: str, home: Path) -> None:
    about = CLIENTS[client]
    path = about.file()
    assert home in path.parents
    path.parent.mkdir(parents=True, exist_ok=True)
    before = variant(text_of(client), path.suffix, form)
    target = home / "dotfiles" / "theirs" if form == "symlink" else path
    if form == "symlink":
        target.parent.mkdir()
        path.symlink_to(target)
    if before is not None:
        target.write_bytes(before)
        target.chmod(0o600 if form == "0600" else 0o644)
    mode = stat.S_IMODE(target.stat().st_mode) if before is not None else None

    done = sluice(home, "install", client, "--yes")
    assert done.returncode == 0, done.stderr
    after = path.read_bytes()
    document = parse(after, path.suffix)
    assert document[about.root]["sluice"][about.command].startswith("/")
    moved = {"one", "two"} if before else set()
    assert not moved & document[about.root].keys()
    config = parse((home / ".config/sluice/sluice.yaml").read_bytes(), ".yaml")
    assert (config["servers"] or {}).keys() == moved and config["policy"]["use"] == "personal"
    assert after.startswith(b"\xef\xbb\xbf") == (form == "bom")
    assert (b"\r\n" in after) == (form == "crlf") and path.is_symlink() == (form == "symlink")
    assert SECRET not in done.stdout + done.stderr
    if mode is not None:
        assert stat.S_IMODE(target.stat().st_mode) == mode
        rest = {key: value for key, value in document.items() if key != about.root}
        assert rest == {k: v for k, v in (parse(before, path.suffix) if before else {}).items() if k != about.root}
    assert not list(path.parent.glob(".*.??????*")), "no draft is left"
    for private in (home / ".local/state/sluice/desktop").iterdir():
        assert stat.S_IMODE(private.stat().st_mode) == 0o600

    again = sluice(home, "install", client, "--yes")
    assert (again.returncode, path.read_bytes()) == (0, after) and "nothing to do" in again.stdout
    assert f"{client}  " in sluice(home, "status").stdout

    undone = sluice(home, "uninstall", client, "--yes")
    assert undone.returncode == 0, undone.stderr
    assert (path.read_bytes() if path.exists() else None) == before and path.is_symlink() == (form == "symlink")
    if mode is not None:
        assert stat.S_IMODE(target.stat().st_mode) == mode
    assert "not installed" in sluice(home, "uninstall", client, "--yes").stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_a_file_that_was_edited_since_keeps_its_edits_and_gets_its_servers_back(client: str, home: Path) -> None:
    about = CLIENTS[client]
    path = about.file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(client))
    before = parse(path.read_bytes(), path.suffix)
    assert sluice(home, "install", client, "--yes").returncode == 0
    path.write_text(path.read_text().replace("dark {", "light").replace("last", "first").replace('"x"', '"y"'))
    changed = parse(path.read_bytes(), path.suffix)
    undone = sluice(home, "uninstall", client, "--yes")
    assert undone.returncode == 0 and "put back: one, two" in undone.stdout, undone.stderr
    assert parse(path.read_bytes(), path.suffix) == {**changed, about.root: before[about.root]}


def test_a_journal_that_somebody_changed_is_not_used(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    path.write_text(text_of("cursor"))
    sluice(home, "install", "cursor", "--yes")
    after = path.read_bytes()
    journal = home / ".local/state/sluice/desktop/cursor.json"
    rows = json.loads(journal.read_text())
    rows[0]["before"] = "e30="
    journal.write_text(json.dumps(rows))
    refused = sluice(home, "uninstall", "cursor", "--yes")
    assert refused.returncode == 1 and "was edited" in refused.stderr and path.read_bytes() == after


def test_clients_that_wait_for_different_times_have_one_server_with_the_longest(home: Path) -> None:
    entry, program = {"command": "sh", "args": ["-c", "true"]}, shutil.which("sh")
    for client, timeout in (("cursor", {}), ("gemini", {"timeout": 300_000}), ("windsurf", {"timeout": 5_000})):
        CLIENTS[client].file().parent.mkdir(parents=True)
        root = CLIENTS[client].root
        servers = {"one": entry | timeout, "two": {"command": "sh", "args": ["-c", "false"]}}
        CLIENTS[client].file().write_text(json.dumps({root: servers}))
    done = sluice(home, "install", "cursor", "gemini", "windsurf", "--yes", "--no-start")
    assert done.returncode == 0, done.stderr
    config = YAML(typ="safe").load((home / ".config/sluice/sluice.yaml").read_text())
    assert config["servers"].keys() == {"one", "two"} and config["servers"]["one"]["timeout"] == "300000ms"
    notes = [line for line in done.stderr.splitlines() if "is written as" in line]
    assert notes == [f"  note  one, two: sh is written as {program}, because clients do not see your shell's PATH"]


def test_all_installs_for_the_clients_that_are_there_and_a_server_of_two_moves_once(home: Path) -> None:
    for client in ("cursor", "gemini"):
        CLIENTS[client].file().parent.mkdir()
        CLIENTS[client].file().write_text(text_of(client))
    shown = json.loads(sluice(home, "install", "--all", "--dry-run", "--json").stdout)
    assert [row["client"] for row in shown["clients"] if row["changes"]] == ["cursor", "gemini"]
    assert shown["added"] == ["one", "two"] and not (home / ".config/sluice").exists(), "a dry run writes nothing"
    assert CLIENTS["cursor"].file().read_text() == text_of("cursor")
    refused = sluice(home, "install", "--all")
    assert refused.returncode == 2 and "--yes" in refused.stderr, "nobody was asked"
    assert CLIENTS["cursor"].file().read_text() == text_of("cursor")


def test_the_config_keeps_its_bytes_and_gets_the_servers_in_front(home: Path) -> None:
    config = home / ".config" / "sluice" / "sluice.yaml"
    config.parent.mkdir(parents=True)
    own = "# mine\npolicy: {use: personal}\nservers:  # mine, too\n    one: {command: /bin/other}\n# end\n"
    config.write_text(own)
    config.chmod(0o640)
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    path.write_text(text_of("cursor"))
    done = sluice(home, "install", "cursor", "--yes")
    assert done.returncode == 0, done.stderr
    text = config.read_text()
    assert text.startswith("# mine\npolicy: {use: personal}\nservers:  # mine, too\n    one-2:\n")
    assert text.endswith("    one: {command: /bin/other}\n# end\n") and stat.S_IMODE(config.stat().st_mode) == 0o640
    assert parse(text.encode(), ".yaml")["servers"].keys() == {"one", "one-2", "two"}


@pytest.mark.parametrize("own", ["servers: {a: {command: /bin/sh}}\n", "servers:\n  - a\n", "servers: 1\n"])
def test_a_config_that_cannot_get_more_servers_leaves_everything_as_it_was(own: str, home: Path) -> None:
    config = home / "sluice.yaml"
    config.write_text(f"policy: {{use: personal}}\n{own}")
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    path.write_text(text_of("cursor"))
    refused = sluice(home, "install", "cursor", "--yes")
    assert refused.returncode in (1, 3) and refused.stderr
    assert path.read_text() == text_of("cursor") and config.read_text().endswith(own)


def test_a_sluice_that_python_starts_is_found(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    entry = {"command": "/usr/bin/python3", "args": ["-m", "sluicegate", "stdio"]}
    path.write_text(json.dumps({"mcpServers": {"sluice": entry}}))
    done = sluice(home, "uninstall", "cursor", "--yes")
    assert done.returncode == 0 and json.loads(path.read_text()) == {"mcpServers": {}}


def test_kept_servers_stay_in_the_client_and_do_not_move(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    path.write_text(text_of("cursor"))
    assert sluice(home, "install", "cursor", "--yes", "--keep").returncode == 0
    assert json.loads(path.read_text())["mcpServers"].keys() == {"sluice", "one", "two"}
    assert not parse((home / ".config/sluice/sluice.yaml").read_bytes(), ".yaml")["servers"]


@pytest.mark.parametrize(("suffix", "text"), [
    (".json", '{"mcpServers": []}'), (".json", "{"), (".json", '{"a": 1,\r\n "b": 2\n}'), (".json", "[]"),
    (".toml", 'mcp_servers = {a = {command = "x"}}\n'), (".yaml", "- a\n"),
    (".yaml", "mcpServers: {a: {command: x}}\n"),
])  # fmt: skip
def test_a_form_that_cannot_be_edited_by_the_byte_is_refused(suffix: str, text: str) -> None:
    root = "mcp_servers" if suffix == ".toml" else "mcpServers"
    with pytest.raises(CannotEdit):
        edited(text.encode(), suffix, root, frozenset("a"), {"sluice": {"command": "x"}})


def test_a_client_that_runs_is_named_and_not_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = Path("/proc/self/comm")
    if not name.exists():
        pytest.skip("no /proc")
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    mine = name.read_text().strip()
    monkeypatch.setitem(CLIENTS, "cursor", type(CLIENTS["cursor"])(linux=("~/.cursor/mcp.json",), processes=(mine,)))
    done = sluice(home, "install", "cursor", "--dry-run")
    assert str(os.getpid()) in done.stderr and "quit it fully" in done.stderr


def test_unknown_clients_and_none_exit_2(home: Path) -> None:
    for words in (["install"], ["install", "emacs"], ["uninstall"], ["install", "cursor", "--all"]):
        refused = sluice(home, *words)
        assert refused.returncode == 2 and "cursor" in refused.stderr


FOREIGN = {"command": "/opt/other/thing", "args": ["x"]}


@pytest.mark.parametrize(("entry", "words"), [(FOREIGN, ["--keep"]), ({"type": "ws", "url": "wss://x"}, [])])
def test_another_entry_called_sluice_comes_back_into_a_file_that_was_edited(
    entry: Json, words: list[str], home: Path
) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    before = {"mcpServers": {"sluice": entry, "b": {"type": "ws", "url": "wss://y"}}}
    path.write_text(json.dumps(before))
    done = sluice(home, "install", "cursor", "--yes", *words)
    assert done.returncode == 0 and "another entry, sluice, is replaced" in done.stderr, done.stderr
    path.write_text(path.read_text() + "\n")
    assert "put back: sluice" in sluice(home, "uninstall", "cursor", "--yes").stdout
    assert json.loads(path.read_text()) == before


def test_a_read_only_file_is_left_alone_and_nothing_else_is_written(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    path.write_text(text_of("cursor"))
    path.chmod(0o444)
    refused = sluice(home, "install", "cursor", "--yes")
    assert refused.returncode == 1 and f"{path}: the file is read-only\nnothing was changed" in refused.stderr
    assert path.read_text() == text_of("cursor") and not (home / ".config").exists()
    path.chmod(0o644)
    assert sluice(home, "install", "cursor", "--yes").returncode == 0
    path.chmod(0o444)
    refused = sluice(home, "uninstall", "cursor", "--yes")
    assert refused.returncode == 1 and "the file is read-only" in refused.stderr
    path.chmod(0o644)
    assert sluice(home, "uninstall", "cursor", "--yes").returncode == 0 and path.read_text() == text_of("cursor")


def test_one_broken_file_is_named_and_the_other_clients_are_uninstalled(home: Path) -> None:
    paths = {client: CLIENTS[client].file() for client in ("claude-desktop", "cursor", "gemini")}
    for client, path in paths.items():
        path.parent.mkdir(parents=True)
        path.write_text(text_of(client))
    assert sluice(home, "install", "--all", "--yes").returncode == 0
    paths["cursor"].write_text('{"mcpServers": {')
    assert "not readable: 1:17" in sluice(home, "status").stdout
    done = sluice(home, "uninstall", "--all", "--yes")
    assert (
        done.returncode == 1 and f"cursor: Sluice cannot edit {paths['cursor']}: it cannot be read: 1:17" in done.stderr
    )
    assert done.stdout.count("is as it was, byte for byte") == 2 and paths["cursor"].read_text() == '{"mcpServers": {'
    for client in ("claude-desktop", "gemini"):
        assert paths[client].read_text() == text_of(client)


def test_a_broken_file_without_a_journal_is_not_called_uninstalled(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    path.write_text("{,")
    for command in ("install", "uninstall"):
        refused = sluice(home, command, "cursor", "--yes")
        assert refused.returncode == 1 and f"cursor: Sluice cannot edit {path}: 1:2" in refused.stderr
    assert path.read_text() == "{,"


def test_all_says_that_no_client_is_on_the_machine(home: Path) -> None:
    for command in ("install", "uninstall"):
        done = sluice(home, command, "--all", "--yes")
        assert done.returncode == 0 and "none of these clients is on this machine" in done.stderr
    assert not list(home.iterdir())


def test_a_user_without_a_home_folder_gets_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("HOME")
    refused = sluice(home, "install", "--all")
    assert (refused.returncode, refused.stderr) == (3, "this user has no home folder: set $HOME\n")


def test_status_names_a_second_file_of_one_client(home: Path) -> None:
    first, second = CLIENTS["windsurf"].files()
    for path in (first, second):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    assert f"windsurf has a second file, {second}" in sluice(home, "status").stderr
    second.unlink()
    second.symlink_to(first)
    assert "second file" not in sluice(home, "status").stderr, "both are the same"


def test_status_names_a_client_that_runs_since_before_the_change(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = Path("/proc/self/comm")
    if not name.exists():
        pytest.skip("no /proc")
    mine = (name.read_text().strip(),)
    monkeypatch.setitem(CLIENTS, "cursor", type(CLIENTS["cursor"])(linux=("~/.cursor/mcp.json",), processes=mine))
    assert "restart it" not in sluice(home, "status").stderr, "nothing was installed"
    assert sluice(home, "install", "cursor", "--yes").returncode == 0
    journal = home / ".local/state/sluice/desktop/cursor.json"
    os.utime(journal, (2**32, 2**32))  # after this process began
    assert "cursor runs since before the last change" in sluice(home, "status").stderr
    (row,) = (
        row for row in json.loads(sluice(home, "status", "--json").stdout)["clients"] if row["client"] == "cursor"
    )
    assert os.getpid() in row["restart"] and row["shadowed"] == []
    os.utime(journal, (1, 1))
    assert "restart it" not in sluice(home, "status").stderr


def test_uninstall_names_the_mistake_in_a_config_that_was_broken_since(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    path.write_text(text_of("cursor"))
    assert sluice(home, "install", "cursor", "--yes").returncode == 0
    config = home / ".config" / "sluice" / "sluice.yaml"
    right = config.read_text()
    config.write_text("servers:\n  a: [\n")
    after = path.read_bytes()
    refused = sluice(home, "uninstall", "cursor", "--yes")
    assert refused.returncode == 3 and f"{config}:3:1 " in refused.stderr and path.read_bytes() == after
    assert re.search(r"^cursor +installed ", sluice(home, "status").stdout, re.MULTILINE)
    config.write_text(right)
    assert sluice(home, "uninstall", "cursor", "--yes").returncode == 0 and path.read_text() == text_of("cursor")


# ---------------------------------------------------------------- what will change


def test_install_shows_each_entry_that_comes_or_goes_before_it_is_written_and_no_secret(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir(parents=True)
    path.write_text(text_of("cursor"))
    done = sluice(home, "install", "cursor", "--dry-run")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r'  \+ sluice: \{"command": ".*", "args": \["stdio", "-c", ".*sluice.yaml"\]\}', lines[1])
    assert lines[2:4] == ["  - one: moves to sluice.yaml as one", "  - two: moves to sluice.yaml as two"]
    assert lines[5:8] == ["  + one:", '  +   command: "/bin/sh"', '  +   args: ["-c", a]']
    assert SECRET not in done.stdout + done.stderr and "A_TOKEN: " in done.stdout
    assert path.read_text() == text_of("cursor")


def test_a_dry_run_names_each_program_that_is_missing(home: Path) -> None:
    """Nothing is started then that would say so."""
    path = CLIENTS["cursor"].file()
    path.parent.mkdir(parents=True)
    commands = {"name": "surely-not-there", "path": "/opt/gone/server", "there": "/bin/sh"}
    entries: Json = {key: {"command": command} for key, command in commands.items()}
    entries["own"] = {"command": "surely-not-there-either", "env": {"PATH": "/opt/gone"}}
    entries["unknown"] = {"command": "perhaps-there", "env": {"PATH": "${HOME}/bin"}}
    path.write_text(json.dumps({"mcpServers": entries}))
    done = run(home, "install", "cursor", "--dry-run")
    assert [line for line in done.stderr.splitlines() if line.startswith("  note")] == [
        "  note  name: the program surely-not-there is not on your PATH; install it, or write its path",
        "  note  path: there is no program /opt/gone/server; install it, or correct the path",
        "  note  own: the program surely-not-there-either is not on the PATH in its env; install it, or write its path",
    ]


def test_a_server_of_a_single_project_stays_in_the_file_and_the_note_says_so(home: Path) -> None:
    path = CLIENTS["claude-code"].file()
    project = {"mcpServers": {"Of Project": {"command": "/bin/sh", "envFile": ".env"}}}
    path.write_text(json.dumps({"mcpServers": {"of-project": {"command": "/bin/sh"}}, "projects": {"/p": project}}))
    done = sluice(home, "install", "claude-code", "--yes")
    notes = [line for line in done.stderr.splitlines() if line.startswith("  note")]
    assert notes == ["  note  Of Project (of /p): stays where it is, for it belongs to a single project"]
    assert "of-project: moves to sluice.yaml as of-project" in done.stdout
    assert json.loads(path.read_text())["projects"] == {"/p": project}


def test_a_server_that_names_a_file_of_the_home_folder_runs_there(home: Path) -> None:
    """A desktop starts its clients there. Sluice would run the server in the folder of its config."""
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    (home / "server.py").touch()
    (home / "bin").mkdir()
    (home / "bin" / "serve").touch(mode=0o700)
    commands = {"one": ["/bin/sh", "server.py"], "two": ["bin/serve"], "three": ["/bin/sh", "-c", "gone.py", ""]}
    entries: Json = {key: {"command": words[0], "args": words[1:]} for key, words in commands.items()}
    entries["own"] = {"command": "/bin/sh", "args": ["server.py"], "cwd": "/tmp"}
    path.write_text(json.dumps({"mcpServers": entries}))
    done = sluice(home, "install", "cursor", "--yes")
    assert f"note  one, two: names a file of your home folder, so it runs in {home} (cwd)" in done.stderr
    servers = YAML(typ="safe").load(home / ".config" / "sluice" / "sluice.yaml")["servers"]
    assert {key: server.get("cwd") for key, server in servers.items()} == {
        "one": str(home), "two": str(home), "three": None, "own": "/tmp",
    }  # fmt: skip
    assert servers["two"]["command"] == str(home / "bin" / "serve"), "a relative one is below the folder of the config"


def test_a_server_that_an_earlier_sluice_took_without_a_folder_is_not_added_again(home: Path) -> None:
    path = CLIENTS["cursor"].file()
    path.parent.mkdir()
    (home / "server.py").touch()
    config = home / ".config" / "sluice" / "sluice.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("policy: {use: personal}\nservers:\n  one: {command: /bin/sh, args: [server.py]}\n")
    path.write_text(json.dumps({"mcpServers": {"one": {"command": "/bin/sh", "args": ["server.py"]}}}))
    done = sluice(home, "install", "cursor", "--yes")
    assert "one: moves to sluice.yaml as one, which is there already" in done.stdout
    assert f"servers.one may not find its files: give it cwd: {home}, command: /bin/sh" in done.stdout + done.stderr


def test_one_broken_file_stops_an_installation_and_the_way_on_is_said(home: Path) -> None:
    for client, text in (("cursor", '{"mcpServers": {'), ("gemini", text_of("gemini"))):
        CLIENTS[client].file().parent.mkdir()
        CLIENTS[client].file().write_text(text)
    config = home / "own.yaml"
    for options in ([], ["-c", str(config)]):
        done = sluice(home, "install", "--all", "--yes", *options)
        assert done.returncode == 1 and CLIENTS["gemini"].file().read_text() == text_of("gemini")
        hint = " ".join(["sluice install gemini", *options])
        assert done.stderr.endswith(f"nothing was changed; mend that file, or name the other clients: {hint}\n")
    alone = sluice(home, "install", "cursor", "--yes")
    assert alone.returncode == 1 and alone.stderr.endswith("nothing was changed; mend that file first\n")


@pytest.mark.parametrize("named", [False, True])
def test_an_installation_that_fails_halfway_says_which_clients_are_changed(home: Path, named: bool) -> None:
    """Another config may have another journal, so the hint names the one of this installation."""
    for client in ("claude-desktop", "cursor", "gemini"):
        CLIENTS[client].file().parent.mkdir(parents=True)
        CLIENTS[client].file().write_text(text_of(client))
    state = home / ("own" if named else ".local/state/sluice")
    options = ["-c", str(home / "own.yaml")] if named else []
    if named:
        (home / "own.yaml").write_text("version: 1\npolicy: {use: personal}\nstate: {dir: own}\nservers: {}\n")
    desktop = state / "desktop"
    (desktop / "gemini.json").mkdir(mode=0o700, parents=True)
    for folder in (desktop, desktop.parent):
        folder.chmod(0o700)
    done = sluice(home, "install", "--all", "--yes", *options)
    assert done.returncode == 1 and "gemini: Sluice cannot edit" in done.stderr
    words = ["uninstall", "claude-desktop", "cursor", *options]
    hint = f"changed already: claude-desktop, cursor; {' '.join(['sluice', *words])} undoes that\n"
    assert done.stderr.endswith(hint), done.stderr
    assert sluice(home, *words, "--yes").returncode == 0
    for client in ("claude-desktop", "cursor", "gemini"):
        assert CLIENTS[client].file().read_text() == text_of(client)


def test_uninstall_shows_what_becomes_of_each_file_before_it_asks(home: Path) -> None:
    for client in ("cursor", "gemini", "zed"):
        path = CLIENTS[client].file()
        path.parent.mkdir(parents=True, exist_ok=True)
        if client != "zed":
            path.write_text(text_of(client))
    assert sluice(home, "install", "cursor", "gemini", "zed", "--yes").returncode == 0
    edited_since = CLIENTS["gemini"].file()
    edited_since.write_text(edited_since.read_text().replace("dark {", "light"))
    shown = sluice(home, "uninstall", "--dry-run", "cursor", "gemini", "zed", "codex").stdout.splitlines()[1::2]
    assert shown == [
        "  becomes what it was before, byte for byte",
        "  was edited since: sluice goes, your edits stay, these come back: one, two",
        "  is removed, as it was not there before",
        "  Sluice is not installed: nothing to do",
    ]


# ---------------------------------------------------------------- classes of tools


def test_an_open_policy_in_the_folder_is_said_to_ask_for_nothing(home: Path) -> None:
    CLIENTS["cursor"].file().parent.mkdir(parents=True)
    CLIENTS["cursor"].file().write_text(json.dumps({"mcpServers": {"git": {"command": "/bin/false"}}}))
    (home / "sluice.yaml").write_text("version: 1\npolicy: {use: open}\nservers: {}\nclients: {local: {}}\n")
    done = run(home, "install", "cursor", "--dry-run")
    assert f"the servers go into {home / 'sluice.yaml'}, which this folder has" in done.stderr
    assert "its policy is open: no call asks" in done.stderr
    (home / "sluice.yaml").unlink()
    done = run(home, "install", "cursor", "--dry-run")
    assert "which this folder has" not in done.stderr and "policy is open" not in done.stderr


def test_what_to_do_next_is_said_for_the_config_that_was_named(home: Path) -> None:
    """Without `-c` the commands would ask the Sluice of another file."""
    file = CLIENTS["cursor"].file()
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": {"gone": {"command": "/bin/false"}}}))
    path = home / "an other.yaml"
    at = f"-c '{path}'"
    installed = run(home, "install", "cursor", "--yes", "-c", path.name).stderr
    assert f"next: restart cursor; then sluice servers {at}\n" in installed
    assert f"`sluice doctor {at}`. Once it runs, `sluice classes gone {at}`" in installed
    for words in (["add", "web", "https://example.com/mcp", "--no-start"], ["remove", "web"]):
        assert f": sluice servers {at}\n" in run(home, *words, "-c", path.name).stderr
    assert f"`sluice doctor {at}`" in run(home, "classes", "--yes", "-c", path.name).stderr
    for words in (["servers"], ["call", "gone__x"]):
        done = run(home, *words, "-c", path.name)
        assert done.returncode == 4 and f"or `sluice serve {at}`" in done.stderr


def test_classes_are_proposed_shown_and_written_so_that_reading_asks_nobody(home: Path) -> None:
    file = CLIENTS["cursor"].file()
    git = {"command": sys.executable, "args": [listing_server.__file__], "env": {"A_TOKEN": SECRET}}
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": {"git": git, "gone": {"command": "/bin/false"}}}))
    done = run(home, "install", "cursor", "--yes")
    assert done.returncode == 0, done.stderr
    shown = "  git  read: get_issue, whoami\n  git  destroy: delete_repo\n  git  write: create_issue\n"
    assert done.stdout.endswith(shown)
    assert re.search(r"note  gone lists no tools now: .*ended with status 1; each will count as `write`", done.stderr)
    config = home / ".config" / "sluice" / "sluice.yaml"
    assert "tools:\n      classes: {get_issue: read, whoami: read, delete_repo: destroy}\n" in config.read_text()
    verdicts = {name: run(home, "explain", "tools/call", f"git/{name}", "--as", "local", "--offline").returncode
                for name in listing_server.TOOLS}  # fmt: skip
    assert verdicts == {"get_issue": 0, "create_issue": 10, "whoami": 0, "delete_repo": 10}
    other = CLIENTS["gemini"].file()
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps({"mcpServers": {"git": git}}))
    before = config.read_bytes()
    again = run(home, "install", "gemini", "--yes")
    assert "moves to sluice.yaml as git, which is there already" in again.stdout and config.read_bytes() == before


def test_where_nobody_can_be_asked_no_server_is_started_for_nothing(home: Path) -> None:
    started, file = home / "started", CLIENTS["cursor"].file()
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": {"one": {"command": "/usr/bin/touch", "args": [str(started)]}}}))
    done = run(home, "install", "cursor")
    assert done.returncode == 2 and done.stderr.endswith("--yes changes the files without a question\n")
    assert not started.exists()


def test_servers_that_a_client_got_again_move_again_and_come_back_as_was_said(home: Path) -> None:
    file = CLIENTS["cursor"].file()
    file.parent.mkdir(parents=True)
    one, two = ({"command": "/bin/sh", "args": [word]} for word in "ab")
    odd = "two\x1b[2J"  # a link that a stranger made may have put it there
    file.write_text(json.dumps({"mcpServers": {"one": one, odd: two}}))
    assert sluice(home, "install", "cursor", "--yes").returncode == 0
    entries = json.loads(file.read_text())["mcpServers"]
    file.write_text(json.dumps({"mcpServers": entries | {"one": one, "three": two}}))
    again = sluice(home, "install", "cursor", "--yes")
    assert again.returncode == 0 and "Sluice itself" not in again.stderr
    done = run(home, "uninstall", "cursor", "--yes")
    for said in ("these come back", "put back"):
        assert f"{said}: two\\u001b[2J\n" in done.stdout
    assert json.loads(file.read_text())["mcpServers"] == {"one": one, odd: two, "three": two}
