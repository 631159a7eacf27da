"""Other gateways beside Sluice: the same calls of a legacy client to the same server, through each, in one run.

Each gets the smallest config that its documents have for one HTTP server: no key, no policy, no log. Go and pip install
what they can, into a folder outside of this one. A program that is in no registry is named on the command line. One
that is not there, does not start or answers wrongly has no row, and the result says why. Driven by run.py.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import gateway_page
import httpx
import interpreter
from bed import Json, is_open
from fast_server import TEXTS
from load import Kind, legacy_session, make_call, message, result_of
from machine import disk
from rows import CONCURRENCIES, Row, measure
from subjects import (
    BARE,
    FASTMCP_SECONDS,
    FULL,
    LOAD_CORE,
    SUBJECT_CORE,
    NotMeasured,
    Subject,
    fast_server,
    fastmcp,
    free_port,
    nginx,
    running,
    sluice,
)

from sluicegate import __version__

ROUNDS: Final = 5
KIND: Final = Kind("legacy JSON")
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice-bench"
_TRIES: Final = 100  # tenths of a second that a gateway may take to list its server's tools
_NO_PROGRAM: Final = "in no registry that this bench installs from, and no --peer names its program"


@dataclass(frozen=True, slots=True)
class PeerGateway:
    """`package` is what Go installs, empty for a program that has to be named. `configure` writes its config for the
    server at a URL and a port of its own, and gives its arguments; MCP is at its `path`."""

    name: str
    shown: str
    package: str
    configure: Callable[[Path, str, int], list[str]]
    path: str = "/mcp"

    @property
    def title(self) -> str:
        return f"{self.shown} {self.package.partition('@')[2].removeprefix('v')}".strip()


def _written(folder: Path, config: Json) -> str:
    """JSON is YAML, too."""
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return str(file)


def _vmcp(folder: Path, url: str, port: int) -> list[str]:
    config: Json = {
        "name": "bench",
        "groupRef": "bench",
        "incomingAuth": {"type": "anonymous"},
        "outgoingAuth": {"source": "inline", "default": {"type": "unauthenticated"}},
        "aggregation": {"conflictResolution": "prefix", "conflictResolutionConfig": {"prefixFormat": "{workload}_"}},
        "backends": [{"name": "fast", "url": url, "transport": "streamable-http"}],
    }
    return ["serve", "--config", _written(folder, config), "--host", "127.0.0.1", "--port", str(port)]


def _mcp_proxy(folder: Path, url: str, port: int) -> list[str]:
    address = f"127.0.0.1:{port}"
    proxy = {"baseURL": f"http://{address}", "addr": address, "name": "bench", "version": "1"}
    servers = {"fast": {"transportType": "streamable-http", "url": url}}
    return ["-config", _written(folder, {"mcpProxy": {**proxy, "type": "streamable-http"}, "mcpServers": servers})]


def _agentgateway(folder: Path, url: str, port: int) -> list[str]:
    own = {name: f"127.0.0.1:{free_port()}" for name in ("adminAddr", "statsAddr", "readinessAddr")}
    mcp = {"port": port, "targets": [{"name": "fast", "mcp": {"host": url}}]}
    return ["-f", _written(folder, {"config": own, "mcp": mcp})]


GATEWAYS: Final = (
    PeerGateway("vmcp", "ToolHive vMCP", "github.com/stacklok/toolhive/cmd/vmcp@v0.47.0", _vmcp),
    PeerGateway("mcp-proxy", "TBXark mcp-proxy", "", _mcp_proxy, "/fast/mcp"),
    PeerGateway("agentgateway", "agentgateway", "", _agentgateway),
)
NAMES: Final = tuple(gateway.name for gateway in GATEWAYS)


def named(text: str) -> tuple[str, Path]:
    """`--peer NAME=PATH`."""
    name, _, path = text.partition("=")
    if name not in NAMES or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"NAME=PATH, with one of {', '.join(NAMES)} and a program, not {text!r}")
    return name, Path(path).resolve()


def provide(gateway: PeerGateway, given: Mapping[str, Path]) -> Path:
    """Its program. Raises `NotMeasured` where there is none."""
    if gateway.name in given:
        return given[gateway.name]
    if not gateway.package:
        raise NotMeasured(_NO_PROGRAM)
    path, _, version = gateway.package.partition("@")
    program = _CACHE / f"{gateway.name}-{version}" / path.rpartition("/")[2]
    if not program.exists():
        print(f"bench: go install {gateway.package}; the first time it takes minutes", file=sys.stderr)
        environment = {**os.environ, "GOBIN": str(program.parent), "GOFLAGS": "-mod=mod"}
        try:
            subprocess.run(
                ["go", "install", gateway.package], env=environment, check=True, capture_output=True, text=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
            raise NotMeasured(f"go install {gateway.package}: {last[:200]}") from None
    return program


def _version(program: Path) -> str:
    """As it says itself."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "of no known version"
    return (done.stdout or done.stderr or "of no known version").splitlines()[0][:40]


@contextmanager
def serving(gateway: PeerGateway, program: Path, folder: Path, backend: Subject) -> Iterator[Subject]:
    """It keeps what it writes in the folder."""
    folder.mkdir()
    port = free_port()
    own = ["env", f"HOME={folder}", f"XDG_CONFIG_HOME={folder}"]
    command = [*own, str(program), *gateway.configure(folder, backend.url, port)]
    with running(SUBJECT_CORE, command, folder / "log", lambda: is_open(port)) as pid:
        yield Subject(pid, f"http://127.0.0.1:{port}{gateway.path}")


def with_tool(subject: Subject, client: httpx.Client) -> Subject:
    """What `echo` is called there, once it is listed. Raises `NotMeasured`."""
    for _ in range(_TRIES):
        try:
            headers = legacy_session(subject, client)
            answer = client.post(subject.url, headers=headers, json=message("tools/list", {})).raise_for_status()
            names = [tool["name"] for tool in result_of(answer).get("tools", ())]
        except httpx.HTTPError:
            names = []
        if tool := next((name for name in names if name.endswith("echo")), ""):
            return replace(subject, tool=tool)
        time.sleep(0.1)
    raise NotMeasured(f"it lists none of {len(TEXTS)} tools")


@dataclass(frozen=True, slots=True)
class _Stage:
    """What all rows share: `rows` begins with nginx, `missing` says of the others why they have none."""

    folder: Path
    backend: Subject
    client: httpx.Client
    stack: ExitStack
    rows: list[Row]
    missing: dict[str, str]

    def add(self, title: str, subject: Subject, seconds: int = 1, may_fail: bool = False) -> None:
        call = replace(make_call(KIND, subject, self.client), is_numbered=True)
        base = self.rows[0] if self.rows else None
        self.rows.append(Row(KIND.name, title, subject, call, CONCURRENCIES, base, seconds, may_fail))

    def try_to_add(self, title: str, start: Callable[[], Subject], seconds: int = 1) -> None:
        try:
            self.add(title, with_tool(start(), self.client), seconds, may_fail=True)
        except NotMeasured as error:
            print(error, file=sys.stderr)
            self.leave_out(title, error.why)
        except httpx.HTTPError as error:
            self.leave_out(title, f"does not answer: {type(error).__name__}")

    def leave_out(self, title: str, why: str) -> None:
        print(f"bench: {title.upper()} IS NOT MEASURED: {why}", file=sys.stderr)
        self.missing[title] = why


def add_gateways(stage: _Stage, gateways: Mapping[PeerGateway, Path]) -> None:
    """Those whose programs are there."""
    for gateway, program in gateways.items():

        def start(gateway: PeerGateway = gateway, program: Path = program) -> Subject:
            return stage.stack.enter_context(serving(gateway, program, stage.folder / gateway.name, stage.backend))

        is_ours = _CACHE in program.parents
        stage.try_to_add(gateway.title if is_ours else f"{gateway.shown} {_version(program)}", start)


def measured(stage: _Stage, rounds: int) -> Json:
    """The rows that all rounds were right for, and what has none."""
    measure(stage.rows, rounds, stage.folder, warms_up=True)
    for row in stage.rows:
        if row.stopped:
            stage.leave_out(row.name, row.stopped)
    rows = [row.result() for row in stage.rows if not row.stopped]
    return {"rounds": rounds, "rows": rows, "missing": stage.missing}


def main(machine: Json, command: list[str], folder: Path, given: Mapping[str, Path]) -> None:
    with ExitStack() as stack:
        backend = stack.enter_context(fast_server(folder, LOAD_CORE))
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        stage = _Stage(folder, backend, client, stack, [], {})
        programs = dict[PeerGateway, Path]()
        for gateway in GATEWAYS:
            try:
                programs[gateway] = provide(gateway, given)
            except NotMeasured as why:
                stage.leave_out(gateway.title, why.why)
        stage.add("nginx", stack.enter_context(nginx(folder, SUBJECT_CORE, backend)))
        for name, setup in {"Sluice, bare": BARE, "Sluice, full": FULL}.items():
            stage.add(name, stack.enter_context(sluice(folder / setup.name, SUBJECT_CORE, backend, command, setup)))
        add_gateways(stage, programs)
        title = f"FastMCP proxy {interpreter.PEER_VERSION}"
        if (python := interpreter.provide_peer()) is None:
            stage.leave_out(title, "pip cannot install it")
        else:
            own = folder / "fastmcp"
            own.mkdir()
            stage.try_to_add(
                title, lambda: stack.enter_context(fastmcp(own, SUBJECT_CORE, backend, python)), FASTMCP_SECONDS
            )
        disk_us = [round(one) for one in disk(folder)]
        result = {"machine": {**machine, "sluice": __version__, "disk_us": disk_us}, **measured(stage, ROUNDS)}
    gateway_page.keep(result)
    print(gateway_page.table(result))
