"""Replicas as they are deployed: real PostgreSQL, three real processes, and nginx with the file from deploy/fleet.

`make fleet` starts them for a person to look at, and stops them.
"""

import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from database_bed import ROWS, Json, machine, settings
from e2e.sluice_process import ROOT
from e2e.wire import LEGACY
from peers.debian import provide
from peers.fleet import free_port, running, wait_for_port
from peers.postgres import postgres
from policy_bed import Bed, bearer, bed, client_keys, key_of

NAMES = ("r0", "r1", "r2")
ACCEPT = {"Accept": "application/json, text/event-stream"}
CONF = ROOT / "deploy" / "fleet" / "nginx.conf"


@dataclass
class Replica:
    """One that can be ended and started anew, on the same ports."""

    name: str
    folder: Path
    database: str
    config: Json
    ports: tuple[int, int, int] = field(default_factory=lambda: (free_port(), free_port(), free_port()))
    bed: Bed | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> Bed:
        mcp, admin, peer = self.ports
        whole = {
            **settings(self.folder, self.database),
            "listen": {"mcp": f"127.0.0.1:{mcp}", "admin": f"127.0.0.1:{admin}"},
            "fleet": {"name": self.name, "peer": {"listen": f"127.0.0.1:{peer}", "url": f"http://127.0.0.1:{peer}"}},
            **self.config,
        }
        self.bed = self._stack.enter_context(bed(self.folder, ROWS, **whole))
        return self.bed

    def stop(self, received: signal.Signals = signal.SIGTERM) -> None:
        assert self.bed is not None
        self.bed.process.process.send_signal(received)
        self.bed.process.process.wait(60)
        self.close()

    def close(self) -> None:
        self._stack.close()


@contextmanager
def staged(folder: Path, database: str, clients: int = 8, **config: object) -> Iterator[tuple[list[Replica], str]]:
    """The replicas, and the URL of the balancer. Its clients are `c0` to `cN`, and `lea`, who approves."""
    keys = client_keys(**{f"c{number}": [] for number in range(clients)}, lea=["role:lead"])
    whole = {"clients": {"keys": keys, "local": {"roles": ["role:lead"]}}, "drain_delay": "2s", **config}
    replicas = [Replica(name, machine(folder, name), database, whole) for name in NAMES]
    with ExitStack() as stack:
        for one in replicas:
            stack.callback(one.close)
            one.start()
        yield replicas, stack.enter_context(balancer(replicas, folder)) + "/mcp"


@contextmanager
def balancer(replicas: list[Replica], folder: Path) -> Iterator[str]:
    """nginx with the shipped file, of which the addresses alone are others."""
    program, port = provide("nginx", "nginx-light"), free_port()
    text = CONF.read_text().replace("listen 8080;", f"listen 127.0.0.1:{port};")
    for at, one in enumerate(replicas):
        text = text.replace(f"10.0.0.1{at}:7410", f"127.0.0.1:{one.ports[0]}")
    assert not re.search(r"server 10\.", text)
    paths = " ".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file, log = folder / "nginx.conf", folder / "nginx.log"
    file.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log stderr warn; worker_processes 1;\n"
        f"events {{}}\nhttp {{ access_log off; {paths}\n{text}\n}}\n"
    )
    with running([program, "-c", str(file), "-e", "stderr"], log) as process:
        wait_for_port(port, process, log)
        yield f"http://127.0.0.1:{port}"


# ---------------------------------------------------------------- clients


class Session:
    """A legacy session, whose requests go to whichever replica is named."""

    def __init__(self, at: Bed | str, who: str = "ann") -> None:
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        answer = self._post(at, who, {}, {"id": 1, "method": "initialize", "params": hello})
        assert answer.status_code == 200, answer.text
        self.id = answer.headers["mcp-session-id"]
        self.who, self._number = who, 1
        self.headers = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": LEGACY}
        assert self.send(at, {"method": "notifications/initialized"}).status_code == 202

    def _post(self, at: Bed | str, who: str, headers: dict[str, str], message: Json) -> httpx.Response:
        body = {"jsonrpc": "2.0", **message}
        return httpx.post(_url(at), json=body, headers={**ACCEPT, **headers, **bearer(who)}, timeout=20)

    def send(self, at: Bed | str, message: Json, who: str | None = None) -> httpx.Response:
        return self._post(at, who or self.who, self.headers, message)

    def call(self, at: Bed | str, name: str, who: str | None = None, **arguments: Any) -> httpx.Response:
        self._number += 1
        params = {"name": name, "arguments": arguments}
        return self.send(at, {"id": self._number, "method": "tools/call", "params": params}, who)

    def stream(self, at: Bed | str) -> Any:
        return httpx.stream("GET", _url(at), headers={**ACCEPT, **self.headers, **bearer(self.who)}, timeout=20)


def _url(at: Bed | str) -> str:
    return at if isinstance(at, str) else at.process.url


def forwarded(at: Bed) -> dict[str, float]:
    text = httpx.get(f"{at.process.admin}/metrics", timeout=20).text
    rows = [line for line in text.splitlines() if line.startswith("sluice_forwarded_total{")]
    return {row.partition('result="')[2].partition('"')[0]: float(row.rpartition(" ")[2]) for row in rows}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-fleet-") as place, postgres() as cluster:
        with staged(Path(place), cluster.url) as (replicas, url):
            print(f"balancer   {url}   (key: {key_of('c0')}; approver: {key_of('lea')})")
            for one in replicas:
                assert one.bed is not None
                print(f"{one.name}         {one.bed.process.url}   admin {one.bed.process.admin}   files {one.folder}")
            print(f"PostgreSQL {cluster.url}\nCtrl-C stops all of it.", flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    sys.exit(main())
