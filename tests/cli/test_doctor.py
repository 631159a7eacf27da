"""`sluice doctor`: each fault is planted, found, and mended by doing what its hint says."""

import base64
import json
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from e2e.sluice_process import sluice
from peers.fleet import free_port
from waiting import until_so

Json = dict[str, Any]
SERVER = """\
import json, sys
{first}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {{"error": {{"code": -32601, "message": "no"}}}}
    if message["method"] == "initialize":
        info, tools = {{"name": "n", "version": "1"}}, {{"tools": {{}}}}
        answer = {{"result": {{"protocolVersion": "2025-06-18", "capabilities": tools, "serverInfo": info}}}}
    elif message["method"] == "tools/list":
        tool = {{"name": "x", "description": "d" * {size}, "inputSchema": {{"type": "object"}}}}
        small = {{"name": "y", "description": "", "inputSchema": {{"type": "object"}}}}
        answer = {{"result": {{"tools": [tool, small] if {size} > 1 else [tool]}}}}
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], **answer}}), flush=True)
"""


@dataclass
class Machine:
    """A folder that is the home, the working folder and the only place of programs beside the system's."""

    home: Path
    env: dict[str, str]
    config: Json
    text: str | None = None
    """The config file as it is, where it is no JSON."""
    stack: list[Callable[[], None]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.home / "sluice.yaml"

    def write(self) -> None:
        self.file.write_text(json.dumps(self.config, indent=1) if self.text is None else self.text)

    def script(self, name: str, text: str, folder: str = "bin") -> Path:
        path = self.home / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def server(self, key: str = "fs", first: str = "", size: int = 1, **more: Any) -> None:
        path = self.script(f"{key}.py", SERVER.format(first=first, size=size), "servers")
        self.config["servers"][key] = {"command": "/usr/bin/python3", "args": [str(path)], **more}

    def doctor(self, *words: str) -> Json:
        done = run(self.home, "doctor", "--json", *words, env=self.env)
        assert done.returncode in (0, 1), done.stderr
        found: Json = json.loads(done.stdout)
        assert found["ok"] == (done.returncode == 0) == all(one["state"] != "failed" for one in found["checks"])
        return found

    def faults(self) -> list[Json]:
        return [one for one in self.doctor()["checks"] if one["state"] in ("failed", "warning")]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    home = tmp_path / "home"
    home.mkdir()
    listen = {"mcp": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}"}
    config: Json = {"policy": {"use": "open"}, "listen": listen, "state": {"dir": str(home / "state")}, "servers": {}}
    config["clients"] = {"anonymous": {"roles": []}}
    config["audit"] = {"path": str(home / "audit" / "sluice.jsonl")}
    env = {"HOME": str(home), "PATH": f"{home}/bin:/usr/local/bin:/usr/bin:/bin", "XDG_CONFIG_HOME": f"{home}/.config"}
    made = Machine(home, env, config)
    made.server()
    yield made
    for end in reversed(made.stack):
        end()


def test_a_machine_without_faults_has_none(machine: Machine) -> None:
    machine.write()
    found = machine.doctor()
    assert [one for one in found["checks"] if one["state"] in ("failed", "warning")] == []
    names = ["install", "config", "commands", "ports", "state", "clients", "servers", "sizes", "console"]
    assert list(dict.fromkeys(one["check"] for one in found["checks"])) == names
    assert found["ok"] and found["fixed"] == []
    text = run(machine.home, "doctor", env=machine.env)
    assert "ok       servers: fs: 1 tool, after" in text.stdout and text.returncode == 0
    assert not (machine.home / "state").exists()  # it only looks


# ---------------------------------------------------------------- faults, and what their hints say


def no_config(m: Machine) -> Callable[[Json], None]:
    m.file.unlink(missing_ok=True)
    m.write = lambda: None  # type: ignore[method-assign]

    def mend(fault: Json) -> None:
        assert "`sluice install` or `sluice init` writes one" in fault["hint"]
        assert run(m.home, "init", env=m.env).returncode == 0

    return mend


def a_tab(m: Machine) -> Callable[[Json], None]:
    m.text = "policy: {use: open}\nlisten:\n\tmcp: 127.0.0.1:7410\n"
    return lambda fault: rewrite(m, fault, "use spaces", "\t", "  ")


def rewrite(m: Machine, fault: Json, hint: str, before: str, after: str) -> None:
    assert hint in fault["hint"], fault
    assert m.text is not None
    m.text = m.text.replace(before, after)


def a_key_with_a_typing_mistake(m: Machine) -> Callable[[Json], None]:
    m.config["listne"] = m.config.pop("listen")

    def mend(fault: Json) -> None:
        assert "listen" in fault["hint"]
        m.config["listen"] = m.config.pop("listne")

    return mend


def a_row_with_a_typing_mistake(m: Machine) -> Callable[[Json], None]:
    rows = m.home / "policy.csv"
    rows.write_text("p, role:a, *, tool:*, raed, allow\n")
    m.config["policy"] = {"files": ["policy.csv"]}

    def mend(fault: Json) -> None:
        assert "read" in fault["hint"] and fault["subject"].endswith("policy.csv:1")
        rows.write_text("p, role:a, *, tool:*, read, allow\n")

    return mend


def a_variable_that_is_not_set(m: Machine) -> Callable[[Json], None]:
    m.server(env={"TOKEN": "${env:FS_TOKEN}"})

    def mend(fault: Json) -> None:
        assert fault["hint"].startswith("set it")
        m.env["FS_TOKEN"] = "x"

    return mend


def a_program_that_is_not_there(m: Machine) -> Callable[[Json], None]:
    m.config["servers"]["fs"]["command"] = "fs-server"

    def mend(fault: Json) -> None:
        assert fault["hint"] == "install it, or write its path"
        source = m.home / "servers" / "fs.py"
        path = m.script("fs-server", f"#!/usr/bin/python3\n{source.read_text()}")
        m.config["servers"]["fs"] = {"command": str(path)}

    return mend


def a_program_that_clients_do_not_find(m: Machine) -> Callable[[Json], None]:
    source = m.home / "servers" / "fs.py"
    path = m.script("fs-server", f"#!/usr/bin/python3\n{source.read_text()}")
    m.config["servers"]["fs"] = {"command": "fs-server"}

    def mend(fault: Json) -> None:
        assert fault["hint"] == f"write {path}" and fault["fixable"]
        m.config["servers"]["fs"]["command"] = fault["hint"].removeprefix("write ")

    return mend


def an_interpreter_that_clients_do_not_find(m: Machine) -> Callable[[Json], None]:
    (m.home / "bin").mkdir()
    (m.home / "bin" / "mynode").symlink_to("/usr/bin/python3")
    source = m.home / "servers" / "fs.py"
    path = m.script("fs-server", f"#!/usr/bin/env mynode\n{source.read_text()}", "other")
    m.config["servers"]["fs"] = {"command": str(path)}

    def mend(fault: Json) -> None:
        found = re.fullmatch(r'write env: \{PATH: "(.*)"\} for fs', fault["hint"])
        assert found is not None, fault
        m.config["servers"]["fs"]["env"] = {"PATH": found[1]}

    return mend


def a_folder_that_is_not_there(m: Machine) -> Callable[[Json], None]:
    m.server(cwd=str(m.home / "project"))

    def mend(fault: Json) -> None:
        assert fault["hint"].startswith(f"make {m.home / 'project'}")
        (m.home / "project").mkdir()

    return mend


def a_state_that_others_can_read(m: Machine) -> Callable[[Json], None]:
    (m.home / "state").mkdir(mode=0o755)
    return lambda fault: chmod(fault)


def a_token_that_others_can_read(m: Machine) -> Callable[[Json], None]:
    (m.home / "state").mkdir(mode=0o700)
    (m.home / "state" / "operator.token").write_text("x")
    (m.home / "state" / "operator.token").chmod(0o644)
    return lambda fault: chmod(fault)


def chmod(fault: Json) -> None:
    found = re.fullmatch(r"if nobody can have read it: chmod (\d+) (\S+)", fault["hint"])
    assert found is not None and fault["fixable"], fault
    Path(found[2]).chmod(int(found[1], 8))


def a_state_that_is_a_file(m: Machine) -> Callable[[Json], None]:
    (m.home / "state").write_text("")

    def mend(fault: Json) -> None:
        assert fault["hint"].startswith("move it away")
        (m.home / "state").rename(m.home / "moved")

    return mend


def a_port_of_another_program(m: Machine) -> Callable[[Json], None]:
    listener = socket.create_server(("127.0.0.1", 0))
    m.stack.append(listener.close)
    m.config["listen"]["admin"] = f"127.0.0.1:{listener.getsockname()[1]}"

    def mend(fault: Json) -> None:
        assert f"(process {os.getpid()})" in fault["message"]
        assert fault["hint"] == "end that program, or write another listen.admin"
        m.config["listen"]["admin"] = f"127.0.0.1:{free_port()}"

    return mend


def a_server_that_ends(m: Machine) -> Callable[[Json], None]:
    lines = "error: FS_TOKEN is not set\\nhint: read the manual"  # as uv writes
    m.server(first=f'import os\nif "FS_TOKEN" not in os.environ: sys.exit("{lines}")')

    def mend(fault: Json) -> None:
        assert fault["message"].endswith("ended with status 1; it wrote: error: FS_TOKEN is not set")
        assert fault["hint"] == "run its command by hand, and read what it says"
        m.config["servers"]["fs"]["env"] = {"FS_TOKEN": "x"}

    return mend


def a_server_that_writes_to_stdout(m: Machine) -> Callable[[Json], None]:
    m.server(first='print("FS is running", flush=True)')

    def mend(fault: Json) -> None:
        assert "FS is running" in fault["message"] and fault["hint"].startswith("make it log to stderr")
        m.server(first='print("FS is running", file=sys.stderr, flush=True)')

    return mend


def a_large_list(m: Machine) -> Callable[[Json], None]:
    m.server("big", size=100_000)

    def mend(fault: Json) -> None:
        assert fault["hint"].startswith("name the tools that you use in tools.allow of big")
        m.server("big", size=100_000, tools={"allow": ["y"]})

    return mend


def a_large_list_in_one_piece(m: Machine) -> Callable[[Json], None]:
    m.server("big", size=100_000)

    def mend(fault: Json) -> None:
        assert fault["hint"].endswith("or write search: auto")
        m.config["search"] = "auto"

    return mend


def long_names(m: Machine) -> Callable[[Json], None]:
    m.config["names"] = {"max": 100}

    def mend(fault: Json) -> None:
        assert fault["hint"].startswith("write names: {max: 50}")
        m.config["names"] = {"max": 50}

    return mend


def a_key_that_ends(m: Machine) -> Callable[[Json], None]:
    soon = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%d")
    digest = f"sha256:{sha256(b'x').hexdigest()}"
    m.config["clients"] = {"keys": {"laptop": {"hash": digest, "roles": [], "expires": soon}}}

    def mend(fault: Json) -> None:
        assert fault["hint"] == "sluice keys new laptop makes another"
        made = run(m.home, "keys", "new", "laptop", "--expires", "90d", env=m.env)
        found = re.search(r'hash: "?(sha256:[0-9a-f]{64})', made.stdout + made.stderr)
        until = re.search(r"expires: (\S+?)[,}]", made.stdout + made.stderr)
        assert found is not None and until is not None, made
        m.config["clients"]["keys"]["laptop"] |= {"hash": found[1], "expires": until[1]}

    return mend


def a_client_with_an_old_program(m: Machine) -> Callable[[Json], None]:
    path = m.home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": {"sluice": {"command": "/gone/sluice", "args": ["stdio"]}}}))

    def mend(fault: Json) -> None:
        assert fault["hint"] == "sluice install cursor"
        assert run(m.home, "install", "cursor", "--yes", env=m.env).returncode == 0

    return mend


def a_client_with_a_broken_file(m: Machine) -> Callable[[Json], None]:
    path = m.home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": {"a": }}')

    def mend(fault: Json) -> None:
        assert fault["hint"] == f"mend {path}" and "1:22" in fault["message"]
        path.write_text('{"mcpServers": {}}')

    return mend


def a_server_that_the_client_starts_too(m: Machine) -> Callable[[Json], None]:
    path = m.home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    fs = m.config["servers"]["fs"]
    path.write_text(json.dumps({"mcpServers": {"fs": fs}}))
    m.write()
    assert run(m.home, "install", "cursor", "--keep", "--yes", env=m.env).returncode == 0

    def mend(fault: Json) -> None:
        assert f"take fs out of {path}" in fault["hint"]
        assert fault["hint"].startswith("sluice install cursor moves them to Sluice; or ")
        entries = json.loads(path.read_text())
        del entries["mcpServers"]["fs"]
        path.write_text(json.dumps(entries))

    return mend


def two_files_of_a_client(m: Machine) -> Callable[[Json], None]:
    second = m.home / ".codeium" / "windsurf" / "mcp_config.json"
    for path in (m.home / ".config" / "devin" / "mcp_config.json", second):
        path.parent.mkdir(parents=True)
        path.write_text('{"mcpServers": {}}')
    m.write()
    assert run(m.home, "install", "windsurf", "--yes", env=m.env).returncode == 0

    def mend(fault: Json) -> None:
        assert fault["hint"].startswith(f"remove {second}")
        second.unlink()

    return mend


def two_programs(m: Machine) -> Callable[[Json], None]:
    for folder in ("bin", "old"):
        m.script("sluice", "#!/bin/sh\n", folder)
    m.env["PATH"] = f"{m.home}/old:{m.env['PATH']}"

    def mend(fault: Json) -> None:
        assert "uninstall the one that you do not want" in fault["hint"]
        (m.home / "old" / "sluice").unlink()

    return mend


class Web(BaseHTTPRequestHandler):
    """A server behind a token, whose clock is `ahead` by so many seconds."""

    token, ahead = "", 0.0

    def do_HEAD(self) -> None:
        self.answer(405, None)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.token and self.headers.get("authorization") != f"Bearer {self.token}":
            return self.answer(401, None)
        if "id" not in message:
            return self.answer(202, None)
        result: Json = {"tools": []}
        if message["method"] == "initialize":
            about = {"name": "web", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        elif message["method"] != "tools/list":
            return self.answer(200, {"error": {"code": -32601, "message": "no"}, "id": message["id"]})
        self.answer(200, {"result": result, "id": message["id"]})

    def answer(self, status: int, value: Json | None) -> None:
        body = b"" if value is None else json.dumps({"jsonrpc": "2.0", **value}).encode()
        self.send_response_only(status)
        self.send_header("date", format_datetime(datetime.now(UTC) + timedelta(seconds=self.ahead), usegmt=True))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def web(m: Machine, **about: Any) -> type[Web]:
    own = type("Own", (Web,), about)
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    m.stack += [server.server_close, server.shutdown]
    m.config["servers"]["web"] = {"url": f"http://127.0.0.1:{server.server_address[1]}/mcp"}
    return own


def token(until: float) -> str:
    parts = [{"alg": "none"}, {"exp": int(until)}]
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in parts), ""])


def a_server_that_wants_a_login(m: Machine) -> Callable[[Json], None]:
    web(m, token="abcdefgh")

    def mend(fault: Json) -> None:
        assert fault["hint"].startswith("login needed: put a valid token into headers of web")
        m.config["servers"]["web"]["headers"] = {"Authorization": "Bearer abcdefgh"}

    return mend


def a_token_that_ends(m: Machine) -> Callable[[Json], None]:
    web(m)
    m.config["servers"]["web"]["headers"] = {"Authorization": f"Bearer {token(time.time() + 86400)}"}

    def mend(fault: Json) -> None:
        assert fault["subject"] == "web, header Authorization"
        assert fault["hint"] == "put a new token where the old one is"
        m.config["servers"]["web"]["headers"] = {"Authorization": f"Bearer {token(time.time() + 30 * 86400)}"}

    return mend


def a_clock_that_is_behind(m: Machine) -> Callable[[Json], None]:
    own = web(m, ahead=3600.0)

    def mend(fault: Json) -> None:
        assert re.search(r"clock is 3[56]\d\d seconds behind web's", fault["message"]) and "NTP" in fault["hint"]
        own.ahead = 0.0

    return mend


FAULTS: dict[str, tuple[str, str, Callable[[Machine], Callable[[Json], None]]]] = {
    "no config": ("config", "failed", no_config),
    "a tab": ("config", "failed", a_tab),
    "a key with a typing mistake": ("config", "failed", a_key_with_a_typing_mistake),
    "a row with a typing mistake": ("config", "failed", a_row_with_a_typing_mistake),
    "a variable that is not set": ("config", "failed", a_variable_that_is_not_set),
    "a program that is not there": ("commands", "failed", a_program_that_is_not_there),
    "a program that clients do not find": ("commands", "warning", a_program_that_clients_do_not_find),
    "an interpreter that clients do not find": ("commands", "warning", an_interpreter_that_clients_do_not_find),
    "a folder that is not there": ("commands", "failed", a_folder_that_is_not_there),
    "a state that others can read": ("state", "failed", a_state_that_others_can_read),
    "a token that others can read": ("state", "failed", a_token_that_others_can_read),
    "a state that is a file": ("state", "failed", a_state_that_is_a_file),
    "a port of another program": ("ports", "warning", a_port_of_another_program),
    "a server that ends": ("servers", "failed", a_server_that_ends),
    "a server that writes to stdout": ("servers", "warning", a_server_that_writes_to_stdout),
    "a server that wants a login": ("servers", "failed", a_server_that_wants_a_login),
    "a token that ends": ("tokens", "warning", a_token_that_ends),
    "a key that ends": ("tokens", "warning", a_key_that_ends),
    "a clock that is behind": ("clock", "warning", a_clock_that_is_behind),
    "a large list": ("sizes", "warning", a_large_list),
    "a large list in one piece": ("sizes", "warning", a_large_list_in_one_piece),
    "long names": ("sizes", "warning", long_names),
    "a client with an old program": ("clients", "failed", a_client_with_an_old_program),
    "a client with a broken file": ("clients", "failed", a_client_with_a_broken_file),
    "a server that the client starts too": ("clients", "warning", a_server_that_the_client_starts_too),
    "two files of a client": ("clients", "warning", two_files_of_a_client),
    "two programs": ("install", "warning", two_programs),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_mended_by_what_its_hint_says(machine: Machine, name: str) -> None:
    check, state, plant = FAULTS[name]
    mend = plant(machine)
    machine.write()
    faults = [one for one in machine.faults() if one["check"] == check]
    assert [one["state"] for one in faults] == [state], faults
    mend(faults[0])
    machine.write()
    assert [one for one in machine.faults() if one["check"] == check and one["state"] == state] == []


def test_a_hint_for_another_config_shows_commands_that_are_about_it(machine: Machine) -> None:
    """Without `-c` they would mend, install or fix the config of the folder that they are typed in."""
    for plant in (a_client_with_an_old_program, a_program_that_clients_do_not_find):
        plant(machine)
    machine.write()
    elsewhere = machine.home / "bin"
    file = machine.file.rename(machine.home / "an other.yaml")
    done = run(elsewhere, "doctor", "-c", "../an other.yaml", env=machine.env)
    (hint,) = [line.strip() for line in done.stdout.splitlines() if "sluice install" in line]
    assert hint == f"sluice install cursor -c '{elsewhere}/../{file.name}'"
    assert run(elsewhere, *shlex.split(hint)[1:], "--yes", env=machine.env).returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "--fix" in line]
    assert line.startswith(f"sluice doctor --fix -c '{elsewhere}/../{file.name}' mends")


FIXED: dict[str, Callable[[Machine], Callable[[Json], None]]] = {
    name: plant for name, (_, _, plant) in FAULTS.items()
    if name in ("a program that clients do not find", "a state that others can read", "a token that others can read")
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_fix_mends_what_it_can_and_no_other_byte(machine: Machine, name: str) -> None:
    FIXED[name](machine)
    machine.text = f"# mine\n{json.dumps(machine.config, indent=1)}\n# the end\n"
    machine.write()
    found = machine.doctor("--fix")
    assert [one["state"] for one in found["checks"] if one["state"] in ("failed", "warning")] == []
    assert len(found["fixed"]) == 1
    wanted = machine.text.replace('"fs-server"', json.dumps(str(machine.home / "bin" / "fs-server")))
    assert machine.file.read_text() == wanted


def test_a_server_that_hangs_is_given_up(machine: Machine) -> None:
    machine.config["servers"]["slow"] = {"command": "/bin/sleep", "args": ["1000"], "start_timeout": "1s"}
    machine.write()
    (fault,) = machine.faults()
    assert (fault["subject"], fault["message"]) == ("slow", "it did not answer within 1 seconds")
    assert fault["hint"].startswith("run its command by hand and wait")


def test_a_sluice_that_runs_is_asked_and_its_servers_are_not_started_again(machine: Machine, tmp_path: Path) -> None:
    started = machine.home / "started"
    machine.server(first=f'open({str(started)!r}, "a").write("x")')
    (tmp_path / "other").mkdir()
    settings = {name: value for name, value in machine.config.items() if name != "listen"}
    with sluice(settings, tmp_path / "other") as process:
        process.wait_ready()
        found = run(machine.home, "doctor", "--json", "-c", str(process.config), env=machine.env)
        checks = json.loads(found.stdout)["checks"]
        machine.config |= {"listen": json.loads(process.config.read_text())["listen"], "state": {"dir": "another"}}
        machine.write()
        of_other = [one for one in machine.doctor()["checks"] if one["check"] == "ports"]
    assert [one["state"] for one in of_other] == ["warning"] * 2, "another file's Sluice keeps this one from starting"
    assert all("none answers here that runs with this config file" in one["message"] for one in of_other)
    by_check = {(one["check"], one["subject"]): one for one in checks}
    assert by_check["servers", "fs"]["message"] == "up, as the Sluice says that runs"
    assert by_check["console", "console"]["state"] == "ok"
    held = [one["message"] for one in checks if one["check"] == "ports"]
    assert len(held) == 2 and all(one.startswith("held by Sluice") for one in held)
    assert len(started.read_text()) <= 2  # its own starts: one for each era


@pytest.mark.parametrize(("program", "comes_with"), [("uvx", "uv"), ("npx", "Node.js")])
def test_a_program_that_is_missing_is_named_with_what_brings_it(
    machine: Machine, program: str, comes_with: str
) -> None:
    machine.config["servers"]["new"] = {"command": program, "env": {"PATH": str(machine.home)}}
    machine.write()
    (fault,) = machine.faults()
    assert fault["hint"] == f"install {comes_with}, which it comes with, or write its path"


def test_a_client_of_the_usual_config_is_no_fault_of_another_one(machine: Machine) -> None:
    (machine.home / ".cursor").mkdir()
    machine.server()
    machine.write()
    assert run(machine.home, "install", "cursor", "--keep", "--yes", env=machine.env).returncode == 0
    (machine.home / "other.yaml").write_text(machine.file.read_text())
    for words in (["-c", "other.yaml"], []):
        (client,) = [one for one in machine.doctor(*words)["checks"] if one["check"] == "clients"]
        assert client["state"] == "ok" and client["message"].endswith(
            "installed with another command or config" if words else "installed"
        )


def test_a_server_of_a_single_project_is_no_fault_for_no_installation_moves_it(machine: Machine) -> None:
    fs = {"mcpServers": {"fs": machine.config["servers"]["fs"]}}
    (machine.home / ".claude.json").write_text(json.dumps({"projects": {"/p": fs}}))
    machine.write()
    assert run(machine.home, "install", "claude-code", "--keep", "--yes", env=machine.env).returncode == 0
    assert machine.faults() == []


def test_what_a_running_sluice_has_not_finished_is_no_failure(machine: Machine, tmp_path: Path) -> None:
    came = machine.script("came", "#!/bin/sh\nexec sleep 1000\n", "elsewhere")
    sleeping = {"command": "/bin/sleep", "args": ["1000"], "era": "legacy"}
    machine.config["servers"] |= {"late": sleeping | {"start_timeout": "1h"}, "came": {"command": "came", "args": []},
                                  "hangs": sleeping | {"start_timeout": "1s"}}  # fmt: skip
    (tmp_path / "other").mkdir()
    settings = {name: value for name, value in machine.config.items() if name != "listen"}
    settings["policy"] = {"use": "open", "watch": False}
    with sluice(settings, tmp_path / "other", ready=False) as process:
        until_so(lambda: "server is down" in process.log())
        process.config.write_text(process.config.read_text().replace('"came",', f"{json.dumps(str(came))},"))

        def found() -> dict[str, Json]:
            done = run(machine.home, "doctor", "--json", "-c", str(process.config), env=machine.env)
            rows = json.loads(done.stdout)["checks"]
            return {one["subject"]: one for one in rows if one["check"] == "servers"}

        until_so(lambda: found()["hangs"]["state"] == "failed")
        checks = found()
    assert (checks["late"]["state"], checks["came"]["state"]) == ("warning", "warning")
    assert checks["late"]["message"].startswith("it is still starting")
    for name in ("late", "came"):
        assert checks[name]["hint"].endswith(f"run sluice doctor -c {process.config} again")
    assert checks["came"]["message"] == "the Sluice that runs has not found its program, which is there now"
    assert checks["hangs"]["message"] == "it does not answer"
    assert checks["hangs"]["hint"] == "run its command by hand and wait; a first start may download packages"


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 8 MiB, where this user may mount one."""
    folder.mkdir()
    mounted = os.system(f"mount -t tmpfs -o size=8m none {folder} 2>/dev/null") == 0
    try:
        yield mounted
    finally:
        if mounted:
            os.system(f"umount {folder}")


def test_a_disk_without_room_is_found(machine: Machine) -> None:
    with small_disk(machine.home / "disk") as mounted:
        if not mounted:
            pytest.skip("only root outside of a container may mount a small disk")
        machine.config["audit"]["path"] = str(machine.home / "disk" / "audit" / "sluice.jsonl")
        machine.write()
        (fault,) = machine.faults()
        assert fault["check"] == "state" and "has 8 MiB left" in fault["message"]
        assert fault["hint"] == "make room, or move it to another disk"
