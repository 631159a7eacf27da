"""How tests run the foreign programs: start a server, drive a client, read its report.

All of it is plain processes and threads: nothing here shares an event loop with what is under test.
"""

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from peers.install import AGENT, HERE, INSPECTOR, MCP1, MCP2, MODULES, NODE, SERVER_EVERYTHING, install

Json = dict[str, Any]

FIXTURE = [str(MCP2 / "python"), str(HERE / "fixture_server.py")]
TASKS = [str(MCP2 / "python"), str(HERE / "task_server.py")]
LEGACY_TASKS = [str(MCP1 / "python"), str(HERE / "legacy_task_server.py")]
CLIENTS = HERE / "clients"
DRIVERS: dict[str, list[str]] = {
    "py2-modern": [str(MCP2 / "python"), str(CLIENTS / "py2.py"), "{job}", "modern"],
    "py2-legacy": [str(MCP2 / "python"), str(CLIENTS / "py2.py"), "{job}", "legacy"],
    "py1": [str(MCP1 / "python"), str(CLIENTS / "py1.py"), "{job}"],
    "ts2": [str(NODE), str(CLIENTS / "ts2.cjs"), "{job}"],
    "ts1": [str(NODE), str(CLIENTS / "ts1.cjs"), "{job}"],
}
AGENT_DRIVER = [str(AGENT / "python"), str(CLIENTS / "agent.py"), "{job}"]
MODERN_DRIVERS = {"py2-modern", "ts2"}
_FIRST_PORT, _PORTS_EACH, _PARTS = 10_000, 200, 100
_turns = count(random.randrange(_PORTS_EACH))
CROWD = [str(MCP2 / "python"), str(CLIENTS / "crowd.py"), "{job}"]


@pytest.fixture(scope="session")
def peers() -> None:
    """Makes `.peers/` complete; a machine on which it cannot be installed fails, it does not skip."""
    install()


def node_environment() -> dict[str, str]:
    return {"NODE_PATH": str(MODULES), "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def free_port() -> int:
    """A port that nobody else is given before its program has taken it. It lies below those that the kernel gives to
    whoever binds port 0 or connects, and a test process counts through its own part of them."""
    for _ in range(_PORTS_EACH):
        port = _FIRST_PORT + _PORTS_EACH * (os.getpid() % _PARTS) + next(_turns) % _PORTS_EACH
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError("no port is free")


@contextmanager
def running(command: list[str], log: Path, patience: float = 10, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with its stderr in a file, in its own process group, gone when the block ends: by itself within
    `patience` seconds, or killed."""
    with log.open("a") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=stderr, text=True, start_new_session=True, **options
        )
    try:
        yield process
    finally:
        stop(process, patience)


def stop(process: subprocess.Popen[Any], seconds: float = 10) -> int:
    """Asks the process to end, then kills its whole group. Its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if process.stdout is not None:
        process.stdout.close()
    return process.wait()


@contextmanager
def fixture_over_http(folder: Path, *arguments: str, port: int = 0) -> Iterator[str]:
    """The fixture server, on a free port if none is given: its URL."""
    command = [*FIXTURE, "--port", str(port), *arguments]
    with running(command, folder / "fixture.log", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http"), (folder / "fixture.log").read_text()
        yield url


@contextmanager
def task_server(folder: Path, *arguments: str) -> Iterator[str]:
    """The server that answers later (the extension of 2026-07-28), on a free port: its URL."""
    with running([*TASKS, "--port", "0", *arguments], folder / "tasks.log", stdout=subprocess.PIPE) as process:
        yield printed_url(process, folder / "tasks.log")


@contextmanager
def legacy_task_server(folder: Path, journal: Path) -> Iterator[str]:
    """The same with the tasks of 2025-11-25, on the SDK 1.x."""
    log = folder / "legacy_tasks.log"
    with running([*LEGACY_TASKS, str(journal), "0"], log, stdout=subprocess.PIPE) as process:
        yield printed_url(process, log)


def printed_url(process: "subprocess.Popen[str]", log: Path) -> str:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url.startswith("http"), log.read_text()
    return url


@contextmanager
def everything_over_http(folder: Path) -> Iterator[str]:
    """The reference server-everything (TypeScript SDK 1.x) over Streamable HTTP: its URL."""
    port = free_port()
    command = [str(NODE), str(SERVER_EVERYTHING), "streamableHttp"]
    environment = os.environ | {"PORT": str(port)}
    log = folder / "everything.log"
    with running(command, log, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for_port(port, process, log)
        yield f"http://127.0.0.1:{port}/mcp"


def wait_for_port(port: int, process: subprocess.Popen[Any], log: Path, seconds: float = 60) -> None:
    """The one way to learn that a foreign server is up is to knock until it opens."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}: {log.read_text()}")


def drive(driver: str, job: Json, seconds: float = 240) -> Json:
    """Runs one client driver to its end: its report."""
    return run_client(DRIVERS[driver], job, seconds)


def run_client(program: list[str], job: Json, seconds: float = 240) -> Json:
    command = [json.dumps(job) if part == "{job}" else part for part in program]
    done = subprocess.run(
        command, env=os.environ | node_environment(), capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0 and done.stdout, f"{command} broke ({done.returncode}):\n{done.stderr[-3000:]}"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def drive_all(job: Json, drivers: list[str] | None = None) -> dict[str, Json]:
    """All drivers at the same time, each adding a tool of its own name."""

    def one(driver: str) -> Json:
        own = {key: f"{job[key]}_{driver.replace('-', '_')}" for key in ("adds", "added")}
        return drive(driver, job | own)

    names = drivers or list(DRIVERS)
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def inspect(target: Json, home: Path, *arguments: str, era: str = "legacy") -> Json:
    """The Inspector's command line, once: what it printed."""
    command = [str(NODE), str(INSPECTOR), "--cli", "--format", "json", "--quiet", "--protocol-era", era]
    if "url" in target:
        command += ["--transport", "sse" if target.get("sse") else "http", "--server-url", target["url"], *arguments]
        for name, value in target.get("headers", {}).items():
            command += ["--header", f"{name}: {value}"]
    else:
        command += [*target["command"], "--transport", "stdio", *arguments]
    environment = os.environ | node_environment() | {"HOME": str(home)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"inspector ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return dict(json.loads(done.stdout))


def job_for(target: Json, prefix: str = "", uris: str = "") -> Json:
    """The drivers' job against the fixture server, reached directly or behind `prefix` and `uris`."""
    tools = {name: f"{prefix}{name}" for name in ("echo", "slow", "was_cancelled", "add_tool")}
    return target | {
        "tools": tools,
        "asking": {
            "twice": f"{prefix}test_input_required_result_multi_round",
            "all": f"{prefix}test_input_required_result_multiple_inputs",
        },
        "adds": "added",
        "added": f"{prefix}added",
        "prompt": f"{prefix}test_prompt_with_arguments",
        "resource": f"{uris}test://static-text",
        "template": f"{uris}test://template/{{id}}/data",
    }


def was_asked(report: Json) -> bool:
    """Whether the tools that ask came to an end: by rounds, and with three questions at once."""
    answers = [report.get(f"ask_{name}", {}).get("value") for name in ("twice", "all")]
    return answers == ["Ada likes blue", "Good morning, Ada!"]


def check(report: Json, modern: bool) -> None:
    """What a driver must have seen, wherever the fixture server stands."""
    errors = {name: why for name, why in report["errors"].items() if not name.startswith("ask_")}
    assert errors == {}, report["client"]
    assert report["revision"] == ("2026-07-28" if modern else "2025-11-25")
    arguments = report["echo"]["value"]["arguments"]
    assert arguments["deep"] == {"list": [1, [2, {"three": 3}], []], "empty": {}, "": "no name"}
    assert arguments["text"] == 'grüße ☃ \u0001 "quoted" \\ / 𝄞'
    assert (arguments["whole"], arguments["real"], arguments["nothing"]) == (9007199254740991, 0.1, None)
    assert report["read"] == "This is the content of the static text resource."
    assert json.loads(report["read_template"])["id"] == "42"
    assert report["prompt"] == "Prompt with arguments: arg1='one', arg2='two'"
    assert report["complete_prompt"] == ["hello", "help"]
    assert report["complete_template"] == ["world", "wonder"]
    assert report["progress"]["seen"] == [[1, 4], [2, 4], [3, 4], [4, 4]]
    assert report["progress"]["answer"]["value"]["state"] == "finished"
    assert report["cancel"]["state"] == "cancelled"
    assert report["list_changed"] == {"listed": True, "answer": {"error": False, "value": "Added at run time."}}
