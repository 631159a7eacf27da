"""What is measured and what it is measured with: the fast server; nginx, Sluice and FastMCP's proxy before it.

Each runs pinned to a core and is ended with the bench. Knows processes and files; knows no load and no figures.
"""

import base64
import hashlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

SUBJECT_CORE, LOAD_CORE = 0, 1
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SERVERS = 10
# FastMCP's proxy answers some 20 calls a second, and those that are open at the end are no calls.
FASTMCP_SECONDS = 8
NEEDS = {"nginx": "nginx-light", "wrk": "wrk", "taskset": "util-linux"}


class NotMeasured(SystemExit):
    """What is to be measured does not start, or answers wrongly. It ends the bench, unless who measures goes on."""

    def __init__(self, why: str, details: str = "") -> None:
        super().__init__(f"bench: {why}\n{details}".strip())
        self.why = why


@dataclass(frozen=True, slots=True)
class Subject:
    """A running process: `url` is where MCP is, `headers` what a client must send, `tool` what `echo` is called."""

    pid: int
    url: str
    tool: str = "echo"
    headers: tuple[tuple[str, str], ...] = ()

    def cpu(self) -> float:
        """Seconds of CPU used so far, all threads. The clock of another process (clock_getcpuclockid(3)): /proc counts
        in hundredths of a second."""
        return time.clock_gettime(~self.pid << 3 | 2)

    def rest(self) -> None:
        """Returns when it is done with what a load left behind: a call of a legacy client goes on without it."""
        for _ in range(500):
            before = self.cpu()
            time.sleep(0.02)
            if self.cpu() - before < 0.002:
                return

    def memory(self) -> float:
        """Resident MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def provide_tools() -> None:
    """nginx and wrk, from Debian where we may install. Ends the bench with a clear text where they cannot be had."""
    missing = [package for program, package in NEEDS.items() if shutil.which(program, path=_path()) is None]
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"bench: installing {' '.join(missing)} with apt-get", file=sys.stderr)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "-qq", "update"], ["apt-get", "-qq", "install", "-y", *missing]):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    if any(shutil.which(program, path=_path()) is None for program in NEEDS):
        sys.exit(
            f"\nBENCH NOT RUN: {' and '.join(missing)} missing, and only root on a Debian machine can install it from "
            f"here.\nRun this first:\n\n    sudo apt-get install -y {' '.join(missing)}\n"
        )


def _path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def pinned(core: int | Sequence[int], command: list[str]) -> list[str]:
    """`command` on one core or on some; as it is on a machine that has not all of them."""
    cores = [core] if isinstance(core, int) else core
    where = ",".join(map(str, cores))
    return ["taskset", "-c", where, *command] if os.sched_getaffinity(0).issuperset(cores) else command


@contextmanager
def running(core: int | Sequence[int], command: list[str], log: Path, is_ready: Callable[[], bool]) -> Iterator[int]:
    with log.open("wb") as output:
        process = subprocess.Popen(pinned(core, command), cwd=ROOT, stdout=output, stderr=output, env=_environment())
    try:
        _await(process, log, is_ready)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _path(), "PYTHONPATH": str(ROOT / "proxy")}


def _await(process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotMeasured("did not start", f"{process.args!r}:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


def _listens(port: int) -> Callable[[], bool]:
    def is_ready() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    return is_ready


def _answers(url: str) -> Callable[[], bool]:
    def is_ready() -> bool:
        try:
            return httpx.get(url, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    return is_ready


@contextmanager
def fast_server(folder: Path, core: int) -> Iterator[Subject]:
    port = free_port()
    command = [sys.executable, str(HERE / "fast_server.py"), str(port)]
    with running(core, command, folder / "fast_server.log", _listens(port)) as pid:
        yield Subject(pid, f"http://127.0.0.1:{port}/mcp")


@contextmanager
def allowing_hook(folder: Path, core: int) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(HERE / "allowing_hook.py"), str(port)]
    with running(core, command, folder / "allowing_hook.log", _listens(port)):
        yield f"http://127.0.0.1:{port}/"


# One process and no master, so that its CPU time is all there is; no files for what is large. (`upstream` is nginx's
# word, not ours.)
NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log error;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  proxy_buffers 64 32k; proxy_max_temp_file_size 0;
  upstream backend {{ server {backend}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, core: int, backend: Subject) -> Iterator[Subject]:
    port = free_port()
    conf = folder / "nginx.conf"
    conf.write_text(NGINX.format(folder=folder, port=port, backend=httpx.URL(backend.url).netloc.decode()))
    command = ["nginx", "-c", str(conf), "-e", str(folder / "nginx-error.log")]
    with running(core, command, folder / "nginx.log", _listens(port)) as pid:
        yield Subject(pid, f"http://127.0.0.1:{port}/mcp")


@dataclass(frozen=True, slots=True)
class Setup:
    """What of Sluice is switched on. `rules`: rows of the policy, of which one lets the call pass; none is
    `policy.use: open`. `audit` is its durability, empty where no log is kept. `child`: the server that is called is
    not behind HTTP but started, on the load's core. `search`: tools are found, not listed. `hook` is the URL of one
    that is asked about each call to the server `fast0`. `database`: its URL, where state is in PostgreSQL, as
    `replica` has it."""

    name: str
    metrics: bool = False
    rules: int = 0
    audit: str = ""
    child: bool = False
    search: bool = False
    hook: str = ""
    database: str = ""
    replica: str = "r0"


# Each step keeps what the one before it had; the last is what the contract's figure is about, with defaults beside it.
BARE = Setup("Sluice, bare")
RULES = Setup("+ 100 rules", metrics=True, rules=100)
FULL = Setup("full: + fsync", metrics=True, rules=100, audit="fsync")
STEPS = (
    BARE,
    Setup("+ metrics", metrics=True),
    RULES,
    Setup("+ audit, no sync", metrics=True, rules=100, audit="write"),
    FULL,
)
CHILD = Setup("full, stdio child", metrics=True, rules=100, audit="fsync", child=True)


def policy(setup: Setup, folder: Path) -> dict[str, object]:
    if not setup.rules:
        return {"use": "open"}
    file = folder / "policy.csv"
    rows = [f"p, role:team-{n}, fast{n % SERVERS}, tool:get_{n}, read, allow" for n in range(setup.rules - 1)]
    file.write_text("\n".join([*rows, "p, role:bench, *, tool:*, *, allow"]) + "\n")
    return {"files": [str(file)]}


def state(setup: Setup, folder: Path) -> dict[str, object]:
    found: dict[str, object] = {"dir": str(folder / "state")}
    if not setup.database:
        return {"state": found}
    ring = base64.b64encode(hashlib.sha256(setup.database.encode()).digest()).decode()  # the same for all replicas
    peer = f"127.0.0.1:{free_port()}"
    shared = {"url": setup.database, "keys": dict.fromkeys(("seal", "digest", "sign"), ring)}
    fleet = {"name": setup.replica, "peer": {"listen": peer, "url": f"http://{peer}"}}
    return {"state": {**found, **shared}, "fleet": fleet}


def config(setup: Setup, folder: Path, url: str, port: int, admin: int, key: str) -> dict[str, object]:
    """As a user would write it; JSON is YAML, too."""
    common = {"concurrency": 256, "tools": {"allow": ["echo*", "say_*"], "deny": ["say_no"]}}
    servers: dict[str, object] = {f"fast{n}": {"url": url, **common} for n in range(SERVERS)}
    if setup.child:
        program, *args = pinned(LOAD_CORE, [sys.executable, str(HERE / "fast_server.py"), "--stdio"])
        servers["fast0"] = {"command": program, "args": args, **common}
    digest = hashlib.sha256(key.encode()).hexdigest()
    audit = {"path": str(folder / "audit" / "sluice.jsonl"), "durability": setup.audit}
    return {
        "version": 1,
        "listen": {"mcp": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{admin}"},
        "servers": servers,
        "clients": {"keys": {"bench": {"hash": f"sha256:{digest}", "roles": ["role:bench"]}}},
        "policy": policy(setup, folder),
        **({"search": "on"} if setup.search else {}),
        **({"hooks": {"allow": {"url": setup.hook, "on": ["call"], "servers": ["fast0"]}}} if setup.hook else {}),
        "audit": audit if setup.audit else {"enabled": False},
        "limits": {"streams": 20_000},
        **state(setup, folder),
        "telemetry": {"metrics": setup.metrics},
        "log": {"level": "warning"},
        "drain": "1s",
    }


@contextmanager
def sluice(
    folder: Path, core: int | Sequence[int], backend: Subject, command: list[str], setup: Setup = FULL, key: str = ""
) -> Iterator[Subject]:  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    port, admin, key = free_port(), free_port(), key or secrets.token_urlsafe(32)
    conf = folder / "sluice.yaml"
    conf.write_text(json.dumps(config(setup, folder, backend.url, port, admin, key), indent=2))
    ready = _answers(f"http://127.0.0.1:{admin}/readyz")
    with running(core, [*command, "serve", "-c", str(conf)], folder / "sluice.log", ready) as pid:
        headers = (("Authorization", f"Bearer {key}"),)
        yield Subject(pid, f"http://127.0.0.1:{port}/mcp", "fast0__echo", headers)


@contextmanager
def fastmcp(folder: Path, core: int, backend: Subject, python: str) -> Iterator[Subject]:
    """FastMCP's proxy, as its own command makes one of a URL; `python` is of the environment it is installed in."""
    port = free_port()
    program = Path(python).with_name("fastmcp")
    options = ["--transport", "http", "--port", str(port), "--no-banner", "--log-level", "ERROR"]
    with running(core, [str(program), "run", backend.url, *options], folder / "fastmcp.log", _listens(port)) as pid:
        yield Subject(pid, f"http://127.0.0.1:{port}/mcp")
