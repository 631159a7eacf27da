"""Servers in a sandbox: a real one by a real bubblewrap, and what docker is told by a stand-in that writes it down."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.sluice_process import COMMAND, Sluice, clean_environment, settings_for, sluice, write_config
from e2e.test_strays import runs
from peers.debian import provide
from peers.install import MCP1
from waiting import until_so as until

from sluicegate.downstream.transport import stray_processes

Json = dict[str, Any]
SERVER = Path(__file__).with_name("prying_server.py").resolve()
RECORDER = Path(__file__).parents[1] / "recording_server.py"
SECRET = "correct-horse-battery"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux"), pytest.mark.usefixtures("peers")
]  # fmt: skip


@pytest.fixture(autouse=True)
def bwrap() -> str:
    return provide("bwrap", "bubblewrap")


def installation() -> list[str]:
    """What the server needs: its virtual environment, the Python below it where that is no part of the system."""
    python = Path(os.path.realpath(MCP1 / "python"))
    base = [] if python.is_relative_to("/usr") else [str(python.parents[1])]
    return [os.path.realpath(MCP1.parent), *base, str(SERVER)]


def prying(**more: Any) -> Json:
    return {"command": str(MCP1 / "python"), "args": [str(SERVER)], "era": "legacy", **more}


def boxed(read: list[str] | None = None, **more: Any) -> Json:
    return prying(sandbox={"read": installation() + (read or []), **more})


def call(process: Sluice, name: str, **arguments: Any) -> str:
    headers = {
        "Accept": "application/json, text/event-stream", "Mcp-Name": name,
        "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
    }  # fmt: skip
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": name, "arguments": arguments, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = httpx.post(process.url, json=body, headers=headers, timeout=60).json()
    return str(answer["result"]["content"][0]["text"])


def rows(process: Sluice) -> dict[str, Json]:
    return {row["key"]: row for row in json.loads(shown(process, "--json"))["servers"]}


def shown(process: Sluice, *words: str) -> str:
    done = run(process.config.parent, "servers", "-c", process.config.name, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of Sluice and what it starts, with a secret in it."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "secret").write_text(SECRET)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_server_in_a_sandbox_works_and_has_what_it_was_given_alone(tmp_path: Path, home: Path, listener: int) -> None:
    given, written = tmp_path / "given", tmp_path / "written"
    given.mkdir()
    written.mkdir()
    (given / "file").write_text("given")
    servers = {
        "free": prying(), "boxed": boxed([str(given)], write=[str(written)]) | {"env": {"TOKEN": SECRET}},
        "wired": boxed(network="all"),
    }  # fmt: skip
    with sluice({"servers": servers}, tmp_path) as process:
        secret, shadow = str(home / "secret"), "/etc/shadow"
        assert call(process, "free__read", path=secret) == f"ok {SECRET}"  # what is refused below is there
        assert call(process, "free__reach", port=listener).startswith("ok")

        for hidden in (secret, shadow, str(process.config), str(tmp_path / "state" / "sluice.db"), "/root/.bashrc"):
            assert call(process, "boxed__read", path=hidden) == "no No such file or directory", hidden
        assert call(process, "boxed__reach", port=listener) == "no Connection refused"
        assert call(process, "wired__reach", port=listener).startswith("ok")
        assert call(process, "wired__read", path=secret) == "no No such file or directory"

        assert call(process, "boxed__read", path=str(given / "file")) == "ok given"
        for closed in (str(given / "file"), str(given / "new"), "/usr/new", "/new", str(SERVER)):
            assert call(process, "boxed__write", path=closed, text="x") == "no Read-only file system", closed
        for open_ in (str(written / "new"), "/tmp/new", "/box/new"):
            assert call(process, "boxed__write", path=open_, text="x") == "ok 1", open_
        assert (written / "new").read_text() == "x" and not Path("/tmp/new").exists()

        about = json.loads(call(process, "boxed__about"))
        assert about["home"] == "/box ['new']" and about["cwd"] == "/box" and about["token"] == SECRET
        assert int(about["rights"], 16) == 0 and about["session"] != "0"  # 0: one outside
        assert int(about["others"]) < 6 and not {"var", "sys", "run", "boot"} & set(about["root"].split())

        for pid in stray_processes.below([process.process.pid]):
            assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        paths = len(installation())
        assert rows(process)["boxed"]["sandbox"] == f"bubblewrap: no network, {paths + 1} to read, 1 to write"
        assert rows(process)["wired"]["sandbox"] == f"bubblewrap: network, {paths} to read, 0 to write"
        assert "sandbox" not in rows(process)["free"] and "SANDBOX" in shown(process)
        assert process.interrupt() == 0


def test_a_working_directory_that_the_sandbox_has_is_that_of_the_server(tmp_path: Path, home: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with sluice({"servers": {"a": boxed(write=[str(work)]) | {"cwd": "work"}}}, tmp_path) as process:
        assert json.loads(call(process, "a__about"))["cwd"] == str(work)


def sleeping(process: Sluice) -> list[int]:
    return [pid for pid in stray_processes.below([process.process.pid]) if sleeps(pid)]


def sleeps(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"sleep")
    except OSError:
        return False


@pytest.mark.parametrize("how", ["killed", "stopped", "server killed"])
def test_nothing_that_a_server_in_a_sandbox_started_outlives_it(tmp_path: Path, home: Path, how: str) -> None:
    deaf = {"command": "sleep", "args": ["600"], "required": False, "era": "legacy", "sandbox": {}}  # its input may end
    with sluice({"servers": {"a": boxed(), "deaf": deaf}}, tmp_path) as process:
        assert call(process, "a__leave") == "ok"
        (outer,) = rows(process)["a"]["pids"]
        until(lambda: len(sleeping(process)) == 2)
        inside = stray_processes.below([outer])
        assert len(inside) >= 4 and all(map(runs, inside))  # bwrap, its init, the server and what left it
        if how != "server killed":
            inside += sleeping(process)
        if how == "server killed":
            os.kill(outer, 9)
        elif how == "killed":
            process.process.kill()
        else:
            assert process.interrupt() == 0
        until(lambda: not any(map(runs, inside)))


def doctor(file: Path, *before: str) -> dict[tuple[str, str], Json]:
    command = [*before, *COMMAND, "doctor", "-c", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return {(one["check"], one["subject"]): one for one in json.loads(done.stdout)["checks"]}


def test_what_keeps_a_sandbox_from_being_made_is_said_and_no_server_starts(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is not in it; namespaces that the kernel refuses; no bubblewrap."""
    servers = {"a": boxed(), "b": prying(sandbox={}), "npx": {"command": "npx", "enabled": False, "sandbox": {}}}
    file = write_config(settings_for({"servers": servers}, tmp_path), tmp_path)
    found = doctor(file)
    (early,) = [one for (check, _), one in found.items() if check == "config" and "installs" in one["message"]]
    assert early["message"] == "npx installs its package when it starts, and the sandbox has no network"
    assert early["hint"].startswith("install the package first") and early["state"] == "warning"
    assert found["sandboxes", "a"]["message"].startswith("bubblewrap: no network")
    assert found["servers", "a"]["state"] == "ok"
    lacking = found["sandboxes", "b"]
    assert lacking["message"] == "its sandbox cannot be made: its program is not in it"
    assert lacking["hint"] == f"add to sandbox.read: {', '.join(sorted(installation()[:-1]))}"
    assert lacking["hint"] in found["servers", "b"]["message"] and found["servers", "b"]["state"] == "failed"

    # A namespace of its own in which the kernel makes no further ones.
    none = 'for one in user pid mnt net; do echo 0 > /proc/sys/user/max_${one}_namespaces; done; exec "$@"'
    found = doctor(file, "unshare", "--user", "--map-root-user", "sh", "-ec", none, "sh")
    refused = found["sandboxes", "a"]
    assert refused["message"] == "its sandbox cannot be made: bubblewrap was refused what it needs"
    assert refused["hint"].startswith("bwrap: ") and "namespace" in refused["hint"]
    assert refused["message"] in found["servers", "a"]["message"] and found["servers", "a"]["state"] == "failed"

    monkeypatch.setenv("PATH", str(home))
    missing = doctor(file)["servers", "a"]["message"]
    assert "bubblewrap is not installed (apt-get install bubblewrap, on Linux)" in missing


def test_a_path_that_became_a_link_after_the_start_is_not_mounted(tmp_path: Path, home: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    with sluice({"servers": {"a": boxed([str(given)])}}, tmp_path) as process:
        (outer,) = rows(process)["a"]["pids"]
        given.rmdir()
        given.symlink_to(home)
        os.kill(outer, 9)
        until(lambda: "leads over a link" in rows(process)["a"]["last_error"])
        assert rows(process)["a"]["pids"] == []


DOCKER = """\
#!/bin/sh
printf '%s\\n' "$@" > {folder}/argv
env > {folder}/env
exec {python} {recorder} {folder}
"""


@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_an_image_is_started_by_a_command_line_without_secrets(
    tmp_path: Path, home: Path, runtime: str, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No container runs here: the program is a stand-in that writes down what it was given."""
    programs, data, out = tmp_path / "bin", tmp_path / "data", tmp_path / "out"
    for folder in (programs, data, out):
        folder.mkdir()
    users = {"docker": ["--user", f"{os.getuid()}:{os.getgid()}"], "podman": ["--userns=keep-id"]}
    (tmp_path / "catalog.json").write_text('{"tools": ["look"]}')
    stand_in = programs / runtime
    stand_in.write_text(DOCKER.format(folder=tmp_path, python=sys.executable, recorder=RECORDER))
    stand_in.chmod(0o755)
    for name in ("sh", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("DOCKER_HOST", "unix:///somewhere")
    writable = {"write": [str(out)]} if writes else {}
    server = {
        "image": "example/server:1.2", "args": ["--root", str(data)], "env": {"TOKEN": SECRET, "LEVEL": "1"},
        "sandbox": {"read": [str(data)], "network": "all", **writable}, "era": "legacy",
    }  # fmt: skip
    plain = {"image": "example/plain", "required": False}
    with sluice({"servers": {"a": server, "b": plain | {"enabled": False}}}, tmp_path) as process:
        assert call(process, "a__look") == "ran look"
        argv = (tmp_path / "argv").read_text().splitlines()
        assert argv == [
            "run", "--rm", "-i", "--init", "--network", "bridge", "--read-only", "--tmpfs", "/tmp", "--cap-drop=ALL",
            "--security-opt=no-new-privileges", *(users[runtime] if writes else []), "-v", f"{data}:{data}:ro",
            *(["-v", f"{out}:{out}:rw"] if writes else []), "-e", "TOKEN", "-e", "LEVEL", "example/server:1.2",
            "--root", str(data),
        ]  # fmt: skip
        env = (tmp_path / "env").read_text()
        assert f"TOKEN={SECRET}" in env and "DOCKER_HOST=unix:///somewhere" in env and f"HOME={home}" in env
        has = f"network, 1 to read, {int(writes)} to write"
        assert rows(process)["a"]["sandbox"] == f"container of example/server:1.2: {has}"


def test_an_image_without_a_program_for_it_says_so(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    file = write_config(settings_for({"servers": {"a": {"image": "example/plain"}}}, tmp_path), tmp_path)
    found = doctor(file)
    assert found["commands", "a"]["message"] == "neither docker nor podman is on PATH"
    assert found["sandboxes", "a"]["message"] == "its sandbox cannot be made: neither docker nor podman is installed"
    assert found["servers", "a"]["state"] == "skipped"
