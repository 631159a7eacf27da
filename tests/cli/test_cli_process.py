"""The command line as real processes: what stands on stdout, what on stderr, and every exit code."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from socket import socket
from typing import Any

import anyio
import pytest
from command_line import run
from ruamel.yaml import YAML

from sluicegate import __version__, cli, config
from sluicegate.audit.chain import ChainHead, link_all

ROOT = Path(__file__).parents[2]
GOOD = "policy: {use: open}\nclients: {anonymous: {}}\nservers: {a: {command: /bin/sh}}\n"


@pytest.fixture
def sluice(tmp_path: Path) -> Any:
    """Runs the command in an empty directory with an empty home."""

    def run(*args: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "proxy"), "HOME": str(tmp_path), "NO_COLOR": "1"}
        env |= environ
        command = [sys.executable, "-m", "sluicegate", *args]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, input=stdin)

    return run


def test_version_and_help_are_data(sluice: Any) -> None:
    assert sluice("--version").stdout == f"sluice {__version__}\n"
    helped = sluice("--help")
    assert helped.returncode == 0
    for command in ("init", "serve", "stdio", "demo", "check", "servers", "tools", "keys", "config"):
        assert re.search(rf"^  {command}\b", helped.stdout, re.MULTILINE)


@pytest.mark.parametrize("args", [["nope"], ["serve", "--nope"], ["keys", "new"], ["keys", "new", "Bad Name"]])
def test_wrong_usage_exits_2(sluice: Any, args: list[str]) -> None:
    done = sluice(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_without_a_config_every_command_that_needs_one_exits_3_and_says_where_it_looked(sluice: Any) -> None:
    for command in ("check", "serve", "stdio", "servers", "tools"):
        done = sluice(command)
        assert done.returncode == 3
        assert "looked at sluice.yaml and" in done.stdout + done.stderr
        assert command == "check" or done.stdout == ""


def test_check_prints_every_finding_and_exits_3_on_errors(sluice: Any, tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text("lissten: {}\ndrain: soon\n")
    done = sluice("check")
    assert done.returncode == 3
    assert [line.split(" ")[:2] for line in done.stdout.splitlines()] == [
        ["sluice.yaml:1:1", "missing-key"],
        ["sluice.yaml:1:1", "unknown-key"],
        ["sluice.yaml:2:8", "bad-duration"],
    ]
    assert done.stderr == "sluice.yaml: 3 errors\n"
    as_json = json.loads(sluice("check", "--json").stdout)
    assert as_json["ok"] is False
    assert as_json["findings"][2] == {
        "file": "sluice.yaml", "line": 2, "column": 8, "code": "bad-duration", "severity": "error", "hint": "",
        "message": "not a duration; write a number and a unit, such as 500ms, 5s, 10m, 1h or 30d",
    }  # fmt: skip


def test_check_exits_0_on_warnings(sluice: Any, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("policy: {use: open}\n")
    for done in (sluice("check", "-c", "other.yaml"), sluice("check", SLUICE_CONFIG="other.yaml")):
        assert done.returncode == 0
        assert done.stdout.count("warning:") == 1
        assert done.stderr == "other.yaml: fine, 1 warning\n"
    (tmp_path / "sluice.yaml").write_text(GOOD)
    assert (sluice("check").stdout, sluice("check").stderr) == ("", "sluice.yaml: fine\n")


@pytest.mark.parametrize("command", ["serve", "stdio"])
def test_a_bad_config_does_not_start(sluice: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "sluice.yaml").write_text("servers: {a: {command: x}}\n")
    done = sluice(command)
    assert (done.returncode, done.stdout) == (3, "")
    assert "sluice.yaml:1:1 missing-key there is no policy" in done.stderr
    assert "policy: {use: personal}" in done.stderr


@pytest.mark.parametrize("key", ["mcp", "admin"])
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_a_port_that_is_taken_is_said_with_its_address_key_and_line(
    sluice: Any, tmp_path: Path, key: str, workers: list[str]
) -> None:
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ports = {"mcp": "127.0.0.1:0", "admin": "localhost:0", key: address}
        text = f"{GOOD}listen:\n  mcp: {ports['mcp']}\n  admin: {ports['admin']}\nstate: {{dir: state}}\n"
        (tmp_path / "sluice.yaml").write_text(text.replace("command: /bin/sh", "command: /bin/sh, lazy: true"))
        done = sluice("serve", *workers)
    assert (done.returncode, done.stdout) == (3, "")
    line = 5 if key == "mcp" else 6
    where = f"cannot-listen cannot listen on {address} (listen.{key}): Address already in use"
    assert f"sluice.yaml:{line}:3 {where}" in done.stderr
    assert f"set listen.{key} to a free port" in done.stderr


def test_an_address_that_the_machine_does_not_have_is_said(sluice: Any, tmp_path: Path) -> None:
    config = "policy: {use: team}\nservers: {a: {command: x, lazy: true}}\nstate: {dir: state}\n"
    for host in ("192.0.2.1", "nowhere.invalid"):
        (tmp_path / "sluice.yaml").write_text(f"{config}listen: {{mcp: '{host}:7499'}}\n")
        done = sluice("serve")
        assert done.returncode == 3
        assert f"sluice.yaml:4:10 cannot-listen cannot listen on {host}:7499 (listen.mcp): " in done.stderr
        assert "this machine has no such address: set listen.mcp to one that it has" in done.stderr


def test_serve_says_that_no_http_client_gets_in_and_stdio_does_not(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way, so that neither starts")
    (tmp_path / "sluice.yaml").write_text("policy: {use: open}\nservers: {}\nstate: {dir: state}\n")
    commands = ("serve", "stdio", "check")
    assert ["no-clients" in run(tmp_path, command).stderr for command in commands] == [True, False, False]


@pytest.mark.parametrize("command", ["serve", "stdio"])
def test_a_state_directory_that_others_can_read_is_said_with_its_line(
    sluice: Any, tmp_path: Path, command: str
) -> None:
    (tmp_path / "sluice.yaml").write_text(f"{GOOD}state: {{dir: state}}\n")
    (tmp_path / "state" / "keys").mkdir(mode=0o755, parents=True)
    done = sluice(command)
    assert (done.returncode, done.stdout) == (3, "")
    assert "sluice.yaml:4:9 cannot-start" in done.stderr
    assert "chmod 0700" in done.stderr


@pytest.mark.parametrize("command", ["serve", "stdio"])
def test_what_the_system_refuses_at_the_start_is_said_with_what_finds_the_cause(
    sluice: Any, tmp_path: Path, command: str
) -> None:
    (tmp_path / "sluice.yaml").write_text(f"{GOOD}state: {{dir: state}}\naudit: {{path: audit/log.jsonl}}\n")
    hint = f"`sluice doctor -c {tmp_path / 'sluice.yaml'}` looks at state.dir and audit.path, and says what to do"
    for name, at in (("state", "4:9"), ("audit", "5:9")):
        (tmp_path / name).write_text("in the way")
        done = sluice(command)
        assert done.returncode == 3
        what = f"sluice.yaml:{at} cannot-start cannot start: File exists: {tmp_path / name} ({hint})"
        assert what in done.stderr, done.stderr
        (tmp_path / name).unlink()


def test_stdio_refuses_a_url_that_is_none(sluice: Any) -> None:
    done = sluice("stdio", "--url", "ftp://x/")
    assert (done.returncode, done.stdout) == (3, "")
    assert "bad-url" in done.stderr


def test_the_schema_is_json(sluice: Any) -> None:
    done = sluice("config", "schema")
    assert json.loads(done.stdout) == config.schema()


def test_init_writes_a_private_file_that_loads_and_never_overwrites(sluice: Any, tmp_path: Path) -> None:
    done = sluice("init")
    file = tmp_path / "sluice.yaml"
    assert (done.returncode, done.stdout) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sluice("check").returncode == 0
    snippet = json.loads(done.stderr[done.stderr.index("{\n") :])
    entry = snippet["mcpServers"]["sluice"]
    assert Path(entry["command"]).is_absolute()
    assert entry["args"][-3:] == ["stdio", "-c", str(file)]

    file.write_text("mine")
    again = sluice("init")
    assert (again.returncode, file.read_text()) == (1, "mine")
    assert "--force" in again.stderr
    assert sluice("init", "--force").returncode == 0
    assert file.read_text() != "mine"
    assert [path.name for path in tmp_path.iterdir() if "sluice" in path.name] == ["sluice.yaml"]


def test_init_from_a_client_says_what_it_left_out_and_never_a_secret(sluice: Any, tmp_path: Path) -> None:
    secret = "ghp_0123456789abcdefghij"
    entries = {
        "GitHub": {"command": "npx", "env": {"GITHUB_TOKEN": secret}},
        "Old": {"type": "ws", "url": "wss://x/"},
        "sluice": {"command": "sluice", "args": ["stdio"]},
        "web": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer ${WEB_TOKEN}"}},
    }
    (tmp_path / "client.json").write_text(json.dumps({"mcpServers": entries}))
    done = sluice("init", "--from", "client.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert secret not in done.stderr
    for said in (
        "note  GitHub: env.GITHUB_TOKEN holds a secret in plain text",
        "note  Old: left out",
        "note  sluice: left out, this is Sluice itself",
        "wrote sluice.yaml with 2 servers",
        "unset-variable the server web is disabled: the environment variable WEB_TOKEN is not set",
    ):
        assert said in done.stderr
    assert sluice("check", WEB_TOKEN="t").returncode == 0


@pytest.mark.parametrize(
    ("content", "code"), [(None, 2), ("{", 3), ('{"mcpServers": {}}', 1), ('{"mcpServers": {"a": 1}}', 1)]
)
def test_init_from_nothing_useful_writes_nothing(sluice: Any, tmp_path: Path, content: str | None, code: int) -> None:
    if content is not None:
        (tmp_path / "client.json").write_text(content)
    assert sluice("init", "--from", "client.json").returncode == code
    assert not (tmp_path / "sluice.yaml").exists()


FORMS = {
    "client.json": ("servers", "vscode", {"sluice": {"type": "stdio"}}),
    "settings.json": ("context_servers", "zed", {"sluice": {"env": {}}}),
    ".mcp.json": ("mcpServers", "claude-code", {"sluice": {"type": "stdio"}}),
    "claude_desktop_config.json": ("mcpServers", "claude-desktop", {"sluice": {}}),
    ".cursor/mcp.json": ("mcpServers", "cursor", {"sluice": {}}),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_snippet_has_the_form_of_the_clients_own_file(tmp_path: Path, name: str) -> None:
    root, client, expected = FORMS[name]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(json.dumps({root: {"a": {"command": "/bin/sh"}}}))
    done = run(tmp_path, "init", "--from", name)
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote sluice.yaml with 1 server\n" in done.stderr and f"client ({client}):" in done.stderr
    text, _, command = done.stderr[done.stderr.index("{\n") :].partition("or run: ")
    snippet = json.loads(text)
    entry = snippet[root]["sluice"]
    assert Path(entry["command"]).is_absolute() and entry["args"][-1] == str(tmp_path / "sluice.yaml")
    assert {key: value for key, value in entry.items() if key not in ("command", "args")} == expected["sluice"]
    assert bool(command) is (client == "claude-code")
    if command:
        assert shlex.split(command) == [
            "claude", "mcp", "add", "--scope", "user", "sluice", "--", entry["command"], *entry["args"],
        ]  # fmt: skip
    # what was pasted is known again, and not imported
    (tmp_path / "again.json").write_text(text)
    again = run(tmp_path, "init", "--from", "again.json", "-c", "other.yaml")
    assert again.returncode == 1 and "this is Sluice itself" in again.stderr


def test_codex_and_goose_get_toml_and_yaml(tmp_path: Path) -> None:
    said = run(tmp_path, "init", "--for", "codex").stderr
    codex = tomllib.loads(said[said.index("[mcp_servers") :])["mcp_servers"]["sluice"]
    said = run(tmp_path, "init", "--for", "goose", "--force").stderr
    goose = YAML(typ="safe").load(said[said.index("extensions:") :])["extensions"]["sluice"]
    assert codex["command"] == goose["cmd"] and codex["args"] == goose["args"]
    assert Path(goose["cmd"]).is_absolute() and goose["args"][-1] == str(tmp_path / "sluice.yaml")
    refused = run(tmp_path, "init", "--for", "emacs")
    assert refused.returncode == 2
    assert refused.stderr.startswith("emacs is not a client that Sluice knows; --for takes one of claude-desktop, ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"mcpServers": {\n  "a": }}', "client.json:2:8 a value is missing here"),
        (None, "cannot read client.json: No such"),
    ],
)
def test_a_broken_or_missing_client_file_is_said_with_its_place(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "client.json").write_text(content)
    done = run(tmp_path, "init", "--from", "client.json")
    assert done.returncode == (2 if content is None else 3) and said in done.stderr


def test_a_missing_variable_is_an_error_of_check_and_in_a_disabled_server_a_warning(tmp_path: Path) -> None:
    servers = "servers: {a: {command: sh, enabled: true, env: {A: '${env:NOT_SET_ANYWHERE}'}}, b: {command: sh}}\n"
    (tmp_path / "sluice.yaml").write_text(f"policy: {{use: open}}\nclients: {{anonymous: {{}}}}\n{servers}")
    done = run(tmp_path, "check")
    assert (done.returncode, done.stderr) == (3, "sluice.yaml: 1 error; Sluice starts without a\n")
    assert done.stdout.startswith("sluice.yaml:3:52 unset-variable the server a is disabled: ")
    assert json.loads(run(tmp_path, "check", "--json").stdout)["disabled"] == ["a"]
    (tmp_path / "sluice.yaml").write_text((tmp_path / "sluice.yaml").read_text().replace("true", "false"))
    done = run(tmp_path, "check")
    assert (done.returncode, done.stderr) == (0, "sluice.yaml: fine, 1 warning\n")


def test_check_warns_of_commands_that_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("own", "child-only"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    servers = {
        "gone": {"command": "surely-not-there"},
        "words": {"command": "npx -y thing"},
        "short": {"command": "own"},
        "path": {"command": "/nowhere/own"},
        "off": {"command": "surely-not-there", "enabled": False},
        "its-own": {"command": "child-only", "env": {"PATH": str(tmp_path / "bin")}},
        "good": {"command": "sh"},
        "relative": {"command": "./bin/own"},
        "folder": {"command": "sh", "cwd": "nowhere"},
    }
    lines = "".join(f"  {key}: {json.dumps(server)}\n" for key, server in servers.items())
    (tmp_path / "sluice.yaml").write_text(f"policy: {{use: open}}\nclients: {{anonymous: {{}}}}\nservers:\n{lines}")
    path = f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    done = run(tmp_path, "check", env={"PATH": path})
    assert done.returncode == 0 and done.stderr == "sluice.yaml: fine, 5 warnings\n"
    found = [line.partition(" ") for line in done.stdout.splitlines()]
    assert [(where, text.split(" ")[0]) for where, _, text in found] == [
        ("sluice.yaml:4:21", "command-not-found"),
        ("sluice.yaml:5:22", "command-not-found"),
        ("sluice.yaml:6:22", "command-not-absolute"),
        ("sluice.yaml:7:21", "command-not-found"),
        ("sluice.yaml:12:36", "folder-not-found"),
    ]
    assert "arguments go into args" in found[1][2] and f"(write {tmp_path}/bin/own)" in found[2][2]


def test_a_new_key_is_printed_once_and_its_line_fits_the_config(sluice: Any, tmp_path: Path) -> None:
    done = sluice("keys", "new", "ci-bot")
    key, line = done.stdout.splitlines()
    assert key.startswith("slc_") and len(key) >= 47
    (tmp_path / "sluice.yaml").write_text(
        f"policy: {{use: open}}\nservers: {{a: {{command: /bin/sh}}}}\nclients:\n  keys:\n    {line}\n"
    )
    assert (sluice("check").returncode, sluice("check").stdout) == (0, "")
    held = config.load(tmp_path / "sluice.yaml").clients.keys["ci-bot"].hash.get_secret_value()
    assert held == f"sha256:{sha256(key.encode()).hexdigest()}"
    as_json = json.loads(sluice("keys", "new", "ci-bot", "--json").stdout)
    assert as_json["hash"] == f"sha256:{sha256(as_json['key'].encode()).hexdigest()}"
    assert as_json["key"] != key


class Admin(BaseHTTPRequestHandler):
    """A scripted admin port: what it was asked, and what it answers."""

    asked: list[tuple[str, str | None]]
    answer: tuple[int, Any]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers["Authorization"]))
        status, body = type(self).answer
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[type[Admin]]:
    Admin.asked, Admin.answer = [], (200, {})
    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (tmp_path / "sluice.yaml").write_text(
            f"{GOOD}listen: {{admin: '127.0.0.1:{server.server_port}'}}\nstate: {{dir: state}}\n"
        )
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "operator.token").write_text("t0ken\n")
        (tmp_path / "state" / "operator.address").write_text(f"127.0.0.1:{server.server_port}")
        yield Admin
        server.shutdown()
        thread.join()


def test_servers_are_asked_for_at_the_admin_port_with_the_operator_token(sluice: Any, admin: type[Admin]) -> None:
    servers = [{"key": "a", "status": "up", "tools": 3, "detail": None}, {"key": "b", "status": "down", "tools": 0}]
    admin.answer = (200, {"servers": servers})
    done = sluice("servers", http_proxy="http://127.0.0.1:9", ALL_PROXY="http://127.0.0.1:9")
    assert done.stdout == "KEY  STATUS  TOOLS\na    up      3\nb    down    0\n"
    assert admin.asked == [("/api/v1/servers", "Bearer t0ken")]
    assert json.loads(sluice("servers", "--json").stdout) == {"servers": servers}


@pytest.mark.parametrize(("known", "code"), [("", 4), ("127.0.0.1", 5), ("192.0.2.1:7411", 5), ("127.0.0.1:1", 4)])
def test_the_operator_token_is_shown_nowhere_but_where_the_running_sluice_listens(
    sluice: Any, admin: type[Admin], tmp_path: Path, known: str, code: int
) -> None:
    """Something else may listen at `listen.admin`, as after a change of it."""
    place = tmp_path / "state" / "operator.address"
    place.write_text(known) if known else place.unlink()
    done = sluice("servers")
    assert (done.returncode, done.stdout, admin.asked) == (code, "", []), done.stderr
    assert {"": "operator.address", "127.0.0.1:1": "listen.admin is another address"}.get(known, "token") in done.stderr


def test_a_folder_that_another_config_shares_does_not_send_a_command_astray(
    sluice: Any, admin: type[Admin], tmp_path: Path
) -> None:
    """Blocked would be a client of the Sluice that was started last."""
    place = tmp_path / "state" / "operator.address"
    here = place.read_text()
    place.write_text(f"127.0.0.1:1\n{tmp_path / 'other.yaml'}")
    done = sluice("servers")
    assert (done.returncode, done.stdout, admin.asked) == (4, "", []) and "other.yaml" in done.stderr
    admin.answer = (200, {"servers": []})
    for name in ("sluice.yaml", "copied.yaml"):
        place.write_text(f"{here}\n{(tmp_path / name).resolve()}")
        assert sluice("servers").returncode == 0 and admin.asked.pop()


@pytest.mark.parametrize(("what", "name", "long"), [("tools", "name", "description"), ("servers", "key", "last_error")])
def test_a_long_text_in_one_row_leaves_the_others_short(
    what: str, name: str, long: str, sluice: Any, admin: type[Admin]
) -> None:
    admin.answer = (200, {what: [{name: "a", long: "d" * 900, "kind": "k"}, {name: "b", long: "s", "kind": "k"}]})
    head, *rows = sluice(what).stdout.splitlines()
    assert head.split()[-1] == long.upper() and rows == [f"{'a':<{len(name)}}  k     {'d' * 900}",
                                                         f"{'b':<{len(name)}}  k     s"]  # fmt: skip


def test_tools_are_asked_for_as_a_client_and_cannot_steer_the_terminal(sluice: Any, admin: type[Admin]) -> None:
    admin.answer = (200, {"tools": [{"name": "a__\x1b[31mred\nx", "server": "a"}]})
    done = sluice("tools", "--as", "ci-bot", "--key", "slc_x")
    assert done.stdout == "NAME                SERVER\na__\\u001b[31mred x  a\n"
    sluice("tools", "--as", "local", SLUICE_KEY="slc_y")
    assert admin.asked == [
        ("/api/v1/tools?as=key%3Aci-bot", "Bearer slc_x"),
        ("/api/v1/tools?as=local", "Bearer slc_y"),
    ]


@pytest.mark.parametrize("source", ["file", "stdin", "environment"])
def test_a_key_is_read_from_where_no_other_user_sees_it(
    sluice: Any, admin: type[Admin], tmp_path: Path, source: str
) -> None:
    (tmp_path / "key").write_text("slc_secret\n")
    environ = {"SLUICE_KEY": "slc_secret" if source == "environment" else "slc_other"}
    words = {"file": ["--key-file", "key"], "stdin": ["--key-file", "-"], "environment": []}[source]
    done = sluice("servers", *words, stdin="slc_secret\n", **environ)
    assert (done.returncode, admin.asked) == (0, [("/api/v1/servers", "Bearer slc_secret")]), done.stderr
    assert "--key" not in done.stderr and "slc_" not in done.stderr


def test_a_key_in_the_arguments_works_and_is_warned_of_without_showing_it(sluice: Any, admin: type[Admin]) -> None:
    done = sluice("servers", "--key", "slc_secret", "--json")
    assert (done.returncode, admin.asked) == (0, [("/api/v1/servers", "Bearer slc_secret")])
    assert "--key-file" in done.stderr and "SLUICE_KEY" in done.stderr and "slc_" not in done.stderr
    json.loads(done.stdout)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words\n", b"two\nlines\n", b"\xff\n", b"x" * 70_000])
def test_a_file_that_holds_no_key_exits_2_and_is_not_shown(
    sluice: Any, admin: type[Admin], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "key").write_bytes(content)
    done = sluice("servers", "--key-file", "key")
    assert (done.returncode, done.stdout, admin.asked) == (2, "", [])
    assert "key does not hold a key" in done.stderr and "lines" not in done.stderr and "xx" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["servers", "--key-file", "nowhere"],
        ["servers", "--key-file", "key", "--key", "x"],
        ["servers", "--key-file", "key", "--operator"],
        ["stdio", "--url", "http://127.0.0.1:1/mcp", "--key-file", "-"],
        ["stdio", "--url", "http://127.0.0.1:1/mcp", "--key-file", "nowhere"],
    ],
)
def test_a_key_that_cannot_be_read_or_is_given_twice_exits_2(sluice: Any, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "sluice.yaml").write_text(GOOD)
    (tmp_path / "key").write_text("slc_secret\n")
    done = sluice(*words, stdin="slc_secret\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr and "slc_secret" not in done.stderr


@pytest.mark.parametrize(("status", "code"), [(401, 5), (403, 5), (404, 1), (500, 4), (503, 4)])
def test_what_the_admin_port_refuses_has_its_exit_code(sluice: Any, admin: type[Admin], status: int, code: int) -> None:
    admin.answer = (status, {})
    done = sluice("servers")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr and "t0ken" not in done.stderr


def test_without_a_running_sluice_servers_exits_4(sluice: Any, tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text(f"{GOOD}listen: {{admin: '127.0.0.1:1'}}\nstate: {{dir: state}}\n")
    done = sluice("servers")
    assert done.returncode == 4
    assert "operator.token" in done.stderr
    done = sluice("servers", "--key", "x")
    assert done.returncode == 4
    assert "no Sluice answers at 127.0.0.1:1" in done.stderr


def test_what_nobody_foresaw_exits_70(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(words: list[str]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(import_module("sluicegate.cli.commands"), "application", broken)
    monkeypatch.setattr(sys, "argv", ["sluice", "check"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "words"), [("sluicegate.cli.stdio", ["--url", "http://127.0.0.1:1/mcp"]), ("sluicegate.cli.run", ["-c"])]
)
def test_ctrl_c_exits_130(module: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "sluice.yaml").write_text("policy: {use: open}\nservers: {}\n")
    monkeypatch.setattr(import_module(module), "serve_stdio", interrupted)
    monkeypatch.setattr(sys, "argv", ["sluice", "stdio", *words, *([str(file)] if words == ["-c"] else [])])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130


async def interrupted(loaded: config.Config, file: Path | None, toolset: str = "") -> None:
    raise KeyboardInterrupt


KEYS = f"""policy: {{use: team}}
servers: {{a: {{command: x, lazy: true}}}}
listen: {{admin: '127.0.0.1:1'}}
state: {{dir: state}}
clients:
  keys:
    ann: {{hash: "sha256:{"a" * 64}", roles: [role:ops, role:lead], owner: ann}}
    bob: {{hash: "sha256:{"b" * 64}", expires: 2020-01-31}}
    cat: {{hash: "sha256:{"c" * 64}"}}
"""


def test_keys_are_listed_with_what_became_of_them_and_without_their_hashes(sluice: Any, tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text(KEYS)
    revoked = sluice("keys", "revoke", "cat", "--json")
    assert json.loads(revoked.stdout) == {"name": "cat", "state": "revoked", "by": "hash"}
    done = sluice("keys", "list")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["NAME", "STATE", "ROLES", "OWNER", "EXPIRES"],
        ["ann", "good", "role:ops", "role:lead", "ann", "never"],
        ["bob", "expired", "-", "-", "2020-01-31T00:00:00+00:00"],
        ["cat", "revoked", "-", "-", "never"],
    ]
    rows = json.loads(sluice("keys", "list", "--json").stdout)["keys"]
    assert [(row["name"], row["state"], row["roles"]) for row in rows] == [
        ("ann", "good", ["role:ops", "role:lead"]), ("bob", "expired", []), ("cat", "revoked", []),
    ]  # fmt: skip
    assert "aaaa" not in done.stdout + json.dumps(rows)


@pytest.mark.parametrize("value", ["${env:NOT_SET}", "${env:NOT_SET}/x", "${nonsense}", "", "~nobody-of-that-name/x"])
def test_a_key_is_revoked_nowhere_while_the_config_cannot_tell_where_state_is(tmp_path: Path, value: str) -> None:
    (tmp_path / "sluice.yaml").write_text(KEYS.replace("dir: state", f"dir: '{value}'"))
    done = run(tmp_path, "keys", "revoke", "cat")
    assert (done.returncode, done.stdout) == (3, "")
    assert "sluice.yaml:4:14 " in done.stderr and "--state-dir DIR" in done.stderr
    assert run(tmp_path, "stdio").returncode == 3
    assert [path.name for path in tmp_path.iterdir()] == ["sluice.yaml"]
    done = run(tmp_path, "keys", "revoke", "cat", "--state-dir", "there")
    assert done.returncode == 0 and "note: there was no folder there: a Sluice that runs has another" in done.stderr
    assert "note:" not in run(tmp_path, "keys", "revoke", "bob", "--state-dir", "there").stderr


@pytest.mark.parametrize(("state", "place"), [("{dir: mine, more: 1}", "mine"), ("{}", ".local/state/sluice")])
def test_a_key_is_revoked_where_state_is_while_the_config_is_broken(tmp_path: Path, state: str, place: str) -> None:
    (tmp_path / "sluice.yaml").write_text(KEYS.replace("{dir: state}", state) + "nonsense: 1\n")
    assert run(tmp_path, "keys", "revoke", "cat", env={"HOME": str(tmp_path)}).returncode == 0
    assert list((tmp_path / place).iterdir())


def test_a_damaged_list_of_revoked_keys_stops_the_start_and_no_revocation(tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text(KEYS)
    (tmp_path / "state").mkdir(mode=0o700)
    file = tmp_path / "state" / "revoked"
    file.write_text("damaged\n")
    file.chmod(0o600)
    done = run(tmp_path, "keys", "revoke", "cat")
    assert done.returncode == 0 and "cat is revoked" in done.stderr
    done = run(tmp_path, "serve")
    assert done.returncode == 3 and "may be good: line 1 cannot be read. Put that right, or delete it" in done.stderr
    assert run(tmp_path, "keys", "list").returncode == 4
    file.write_text(file.read_text().removeprefix("damaged\n"))
    rows = json.loads(run(tmp_path, "keys", "list", "--json").stdout)["keys"]
    assert [row["name"] for row in rows if row["state"] == "revoked"] == ["cat"]


def test_a_name_that_a_broken_config_does_not_have_is_revoked_and_told(tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text(KEYS + "nonsense: 1\n")
    (tmp_path / "state").mkdir(mode=0o700)
    done = run(tmp_path, "keys", "revoke", "act")
    assert done.returncode == 0 and "note: sluice.yaml has no key act; did you mean \"cat\"?" in done.stderr
    assert "end within seconds" not in done.stderr


@pytest.mark.parametrize("text", ["clients: [", "clients: {keys: '${file:keys.yaml}'}", "- clients", "clients: text"])
def test_a_revocation_says_that_no_name_could_be_compared(tmp_path: Path, text: str) -> None:
    (tmp_path / "sluice.yaml").write_text(text)
    (tmp_path / "state").mkdir(mode=0o700)
    done = run(tmp_path, "keys", "revoke", "act", "--state-dir", "state")
    assert done.returncode == 0 and "note: nothing in sluice.yaml says whether there is a key act\n" in done.stderr
    assert "end within seconds" not in done.stderr


def test_keys_of_sluice_itself_are_rotated_and_counted(sluice: Any, tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text(KEYS)
    assert sluice("keys", "rotate", "seal").stdout.startswith("seal: 2 keys; the newest")
    told = json.loads(sluice("keys", "rotate", "seal", "--json").stdout)
    assert (told["ring"], told["keys"], len(told["newest"])) == ("seal", 3, 8)


def test_with_json_stdout_has_json_or_nothing_and_the_reason_is_on_stderr(sluice: Any, tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text(KEYS)
    for words, code in (
        (["servers"], 4), (["tools"], 4), (["pins", "list"], 4), (["approvals", "list"], 4),
        (["keys", "new", "A B"], 2), (["keys", "rotate", "x"], 2), (["keys", "revoke", "dan"], 1),
        (["audit", "search"], 1), (["pins", "export", "--check", "x"], 4), (["approvals", "revoke", "g"], 4),
        (["policy", "diff", "x"], 2), (["servers", "-c", "nothing.yaml"], 3),
    ):  # fmt: skip
        done = sluice(*words, "--json", **({"SLUICE_KEY": "x"} if code == 4 else {}))
        assert (done.returncode, done.stdout) == (code, ""), words
        assert done.stderr and "Traceback" not in done.stderr, words


def audit_log(folder: Path, count: int) -> dict[str, str]:
    """A config and a log of so many records, and the environment for a process that reads them."""
    (folder / "sluice.yaml").write_text(KEYS)
    (folder / "audit").mkdir()
    body = b'"type":"admin","time":"2026-10-01T12:00:00.000000000Z","act":"reload","by":"%b"' % (b"x" * 2000)
    lines, _ = link_all(ChainHead(0, "0" * 64), "sluice", 1, [body] * count)
    (folder / "audit" / "sluice.jsonl").write_bytes(b"".join(lines))
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "proxy"), "HOME": str(folder)}


@pytest.mark.parametrize("words", ["config schema", "audit export", "audit search --json", "audit tail -n 500"])
@pytest.mark.parametrize("reads", [0, 1])
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path, words: str, reads: int) -> None:
    env, command = audit_log(tmp_path, 200), [sys.executable, "-m", "sluicegate", *words.split()]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(reads)
        process.stdout.close()
        process.stdout = None
        assert process.communicate(timeout=60)[1] == b""


async def test_ctrl_c_ends_what_goes_on_with_130_and_no_trace(tmp_path: Path) -> None:
    env, command = audit_log(tmp_path, 1), [sys.executable, "-m", "sluicegate", "audit", "tail", "-f"]
    with anyio.fail_after(120):  # the process starts slowly on a busy machine
        async with await anyio.open_process(command, cwd=tmp_path, env=env) as process:
            assert process.stdout is not None and process.stderr is not None
            assert b"admin" in await process.stdout.receive()
            process.send_signal(signal.SIGINT)
            assert (await process.wait(), [part async for part in process.stderr]) == (130, [])
