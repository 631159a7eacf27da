"""What the matrix runs on: every server of it, Sluice twice (serving HTTP and started over stdio), every client of it.

Each client is one process that goes through all situations with all servers; while questions of all servers are open
the servers are killed and started again. Knows processes; what must come of it stands in matrix.py.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from e2e.matrix import CLIENTS, SERVERS, Side
from e2e.sluice_process import Sluice, clean_environment, sluice, stdio_command
from e2e.wire import META
from frames.watch import Watch
from peers.fleet import free_port, running, stop, wait_for_port
from peers.install import MCP1, MCP2

Json = dict[str, Any]
HERE = Path(__file__).parent
SERVER_OF = {1: [str(MCP1 / "python"), str(HERE / "every1_server.py")],
             2: [str(MCP2 / "python"), str(HERE / "every2_server.py")]}  # fmt: skip
CLIENT_OF = {1: [str(MCP1 / "python"), str(HERE / "every1_client.py")],
             2: [str(MCP2 / "python"), str(HERE / "every2_client.py")]}  # fmt: skip
MAX_TIME = 60  # a machine that starts a hundred servers beside it answers within that
SECONDS = 420.0


class Servers:
    """Those that are reached over a network, and where; a process each, though Sluice knows it under two names."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self.journal.touch()
        self._log = folder / "servers.log"
        self._ports = {(sdk, how): free_port() for sdk in (1, 2) for how in ("http", "sse")}
        self._stack = ExitStack()

    def __enter__(self) -> "Servers":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self) -> None:
        begun = []
        for (sdk, how), port in self._ports.items():
            command = [*SERVER_OF[sdk], str(self.journal), str(port), how]
            begun.append((port, self._stack.enter_context(running(command, self._log, stdout=subprocess.DEVNULL))))
        for port, process in begun:
            wait_for_port(port, process, self._log)

    def die(self) -> None:
        """All at once, with those that Sluice started."""
        said = [json.loads(line) for line in self.journal.read_text().splitlines()]
        for pid in {note["pid"] for note in said}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # ended by itself
        self._stack.close()

    def configured(self, side: Side) -> Json:
        bounds = {"timeout": f"{MAX_TIME}s", "max_time": f"{MAX_TIME}s", "pin": "off", "era": side.configured}
        if side.transport == "stdio":
            command, *arguments = SERVER_OF[side.sdk]
            return bounds | {"command": command, "args": [*arguments, str(self.journal)]}
        path = "sse" if side.transport == "sse" else "mcp"
        return bounds | {"url": f"http://127.0.0.1:{self._ports[side.sdk, side.transport]}/{path}"}


class Driver:
    """One client process."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("a") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def said(self, give_up: float) -> Any:
        line = self._lines.get(timeout=max(1.0, give_up - time.monotonic()))
        assert line, f"a client broke:\n{self._log.read_text()[-3000:]}"
        return json.loads(line)

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        stop(self.process)
        assert self.process.stdin is not None
        self.process.stdin.close()


def key_of(client: str) -> str:
    return f"the key of {client}, which is used nowhere else"


def settings(servers: Json) -> Json:
    named = [*CLIENTS, *(f"{client}-other" for client in CLIENTS)]
    keys = {name: {"hash": f"sha256:{sha256(key_of(name).encode()).hexdigest()}"} for name in named}
    return {"servers": servers, "clients": {"keys": keys, "local": {"roles": []}}}


def targets(name: str, side: Side, process: Sluice, command: list[str]) -> tuple[Json, Json]:
    """A client's own way in, and another client's: of a stateless one that is another principal, so not over stdio,
    where all are the same person."""

    def way(name: str, transport: str) -> Json:
        if transport == "stdio":
            return {"command": command, "env": clean_environment()}
        url = process.url if transport == "http" else process.url.removesuffix("/mcp") + "/sse"
        return {"url": url, "headers": {"Authorization": f"Bearer {key_of(name)}"}, "sse": transport == "sse"}

    is_one_person = side.transport == "stdio" and not side.is_legacy
    return way(name, side.transport), way(f"{name}-other", "http" if is_one_person else side.transport)


@contextmanager
def who_stays(command: list[str], log: Path) -> Iterator[None]:
    """Who comes first runs the firewall for all that come over stdio: a client that is there before all others, and
    until they have gone."""
    first = Driver(command, log, clean_environment())
    try:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": META}}
        first.tell(json.dumps(hello))
        assert "result" in first.said(time.monotonic() + 60)
        yield
    finally:
        first.close()


@contextmanager
def matrix(folder: Path) -> Iterator[dict[str, dict[str, Json]]]:
    """{client: {server: {situation: what came of it}}}; every frame of Sluice's is judged when the block ends."""
    (piped := folder / "piped").mkdir()
    with ExitStack() as stack:
        servers = stack.enter_context(Servers(folder))
        behind = {name: servers.configured(side) for name, side in SERVERS.items()}
        watch = stack.enter_context(Watch(piped))
        process = stack.enter_context(sluice(settings(behind), folder, watched=True))
        command = watch.front_pipe(stdio_command(settings(watch.behind(behind)), piped))
        stack.enter_context(who_stays(command, folder / "first.log"))
        drivers: dict[str, Driver] = {}
        for name, side in CLIENTS.items():
            target, other = targets(name, side, process, command)
            job = {"target": target, "other": other, "servers": list(SERVERS), "journal": str(servers.journal),
                   "max_time": MAX_TIME}  # fmt: skip
            words = [*CLIENT_OF[side.sdk], json.dumps(job), side.era]
            drivers[name] = Driver(words, folder / f"{name}.log")
            stack.callback(drivers[name].close)
            # One after the other: an SDK takes what is slow to begin, as eight at once are, for one of the other era.
            assert drivers[name].said(time.monotonic() + SECONDS) == "begun"
        for driver in drivers.values():
            driver.tell()
        give_up = time.monotonic() + SECONDS
        for word in ("ready", "parked"):
            for driver in drivers.values():
                assert driver.said(give_up) == word
            if word == "parked":
                servers.die()
                servers.start()
            for driver in drivers.values():
                driver.tell()
        reports = {name: driver.said(give_up) for name, driver in drivers.items()}
        for driver in drivers.values():
            driver.process.wait(60)
        assert "Traceback" not in process.log()
        yield reports
