"""Sluice as its users run it: a process, a config file, two ports. Knows the command line and the contract, no code.

with sluice({"servers": {...}}, folder) as process:
    process.url, process.admin, process.log()
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from frames.watch import Watch
from peers.fleet import free_port, running

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "sluicegate"]
OPEN: Json = {"policy": {"use": "open"}, "clients": {"anonymous": {"roles": []}, "local": {"roles": []}}}


class Sluice:
    def __init__(self, process: "subprocess.Popen[str]", config: Path, log: Path, settings: Json) -> None:
        self.process = process
        self.config = config
        self._log = log
        self.url = f"http://{settings['listen']['mcp']}/mcp"
        self.admin = f"http://{settings['listen']['admin']}"

    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        """A GET on the admin port: status and body; status 0 while nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.admin}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self, seconds: float = 60) -> None:
        """Readiness has no signal but its own page: ask until it says so."""
        give_up = time.monotonic() + seconds
        answer: tuple[int, str] = (0, "")
        while time.monotonic() < give_up:
            assert self.process.poll() is None, f"Sluice ended ({self.process.returncode}):\n{self.log()}"
            answer = self.get("/readyz")
            if answer[0] == 200:
                return
            time.sleep(0.05)
        raise AssertionError(f"not ready after {seconds} s: {answer}\n{self.log()}")

    def wait_answering(self, seconds: float = 60) -> None:
        """Ready or not."""
        give_up = time.monotonic() + seconds
        while self.get("/livez")[0] != 200:
            assert self.process.poll() is None and time.monotonic() < give_up, self.log()
            time.sleep(0.05)

    def interrupt(self, seconds: float = 30) -> int:
        """SIGTERM and its exit code; fails if the process does not end."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def settings_for(config: Json, folder: Path) -> Json:
    """A whole config: `config` over open policy, free loopback ports and a state directory of its own. Servers are
    required unless they say otherwise, so that ready means that all of them are up."""
    ports: Json = {"mcp": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}"}
    base: Json = {"version": 1, **OPEN, "state": {"dir": str(folder / "state")}, "drain": "2s"}
    servers = {key: {"required": True} | server for key, server in config["servers"].items()}
    return base | config | {"servers": servers, "listen": ports | config.get("listen", {})}


def write_config(settings: Json, folder: Path) -> Path:
    file = folder / "sluice.yaml"
    file.write_text(json.dumps(settings, indent=2))  # JSON is YAML
    return file


@contextmanager
def sluice(
    config: Json, folder: Path, ready: bool = True, watched: bool = False, arguments: Sequence[str] = ()
) -> Iterator[Sluice]:
    """`sluice serve` with this config, ready for clients; its log is shown when the block fails. Where it is
    `watched`, the block also fails if Sluice said anything to anybody that is not of its revision."""
    with Watch(folder) if watched else nullcontext() as watch:
        if watch is not None:
            config = config | {"servers": watch.behind(config["servers"])}
        with _serving(config, folder, ready, arguments) as process:
            if watch is not None:
                process.url = watch.front(process.url)
            yield process


@contextmanager
def _serving(config: Json, folder: Path, ready: bool, arguments: Sequence[str]) -> Iterator[Sluice]:
    settings = settings_for(config, folder)
    file, log = write_config(settings, folder), folder / "sluice.log"
    command = [*COMMAND, "serve", "-c", str(file), *arguments]
    with running(command, log, 30, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE) as process:
        process_ = Sluice(process, file, log, settings)
        try:
            if ready:
                process_.wait_ready()
            yield process_
        except BaseException:
            print(f"--- Sluice's log ---\n{log.read_text()[-8000:]}")
            raise


def stdio_command(config: Json, folder: Path) -> list[str]:
    """The command that a desktop client would start."""
    file = write_config(settings_for(config, folder), folder)
    return [*COMMAND, "stdio", "-c", str(file)]


def clean_environment() -> dict[str, str]:
    """Without what a developer may have set for Sluice, and with the package found from any directory."""
    ours = {name: value for name, value in os.environ.items() if name == "SLUICE_SLOW_TURNS" or name[:7] != "SLUICE_"}
    return ours | {"PYTHONPATH": str(ROOT / "proxy"), "NO_COLOR": "1"}
