"""A real Sluice with a healthy server and faulted ones, load on both, and what was recorded of it. Knows no fault.

The servers: `a` is healthy, `b` and `b1` to `bN` are behind wires, `t` behind a wire with TLS, `d` behind a name, `c`
and `c1` to `cN` are children, `h` is behind a hook. Most faults have a server of their own, as what they do lasts.
What the machine does not permit is left out, and `lacks` says why.
"""

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from authority import issue
from bad_wire import Names, Relay, Wire
from chaos_load import PATIENCE, Spent
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment, settings_for, write_config
from peers.fleet import free_port, running, stop, wait_for_port
from peers.postgres import postgres
from policy_bed import client_keys
from shim import Shim
from workers.workers_kit import names

Json = dict[str, Any]
HERE: Final = Path(__file__).parent
RECORDER: Final = str(HERE.parent / "audit" / "recording_web.py")
RATE: Final = 120.0
NAME_SERVER: Final = "127.9.9.9"
HOST: Final = "d.chaos.test"
FAULTED: Final[Json] = {"pin": "off", "timeout": "2s", "max_time": "4s", "required": False}
ROWS: Final = "p, role:user, *, *, *, allow\np, local, sluice, admin:servers, *, allow\n"
APPROVED: Final = "p2, *, b, tool:*, *, quick\n"
RINGS: Final = {
    name: b64encode(name.encode().ljust(32, b".")).decode() for name in ("seal", "digest", "sign", "login")
}  # fmt: skip
HEALTHY: Final = tuple(names(2, 2))  # keys of two workers, in turns
FAULTY: Final = ("f0", "f1")
CROWD: Final = tuple(f"s{number}" for number in range(10))


@dataclass(frozen=True, slots=True)
class Plan:
    """How this Sluice differs: `workers` (0: one process), open `files`, MiB of a `disk` of its own for the audit log,
    a memory `group`, all servers and not `a` and `b` alone, a `database` for the approvals that `b` wants then."""

    workers: int = 0
    files: int = 0
    disk: int = 0
    group: bool = False
    all_servers: bool = False
    database: bool = False


def prefer(process: "subprocess.Popen[Any]") -> None:
    """Clients and healthy servers stand for other machines: nothing that starts on this one takes their processor."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, process.pid, -10)


class Stage:
    def __init__(self, folder: Path, plan: Plan, servers: Iterable[str]) -> None:
        """`servers` are those beside `a`."""
        self.folder, self.plan, self.wanted = folder, plan, sorted({*servers, "b"} - {"a"})
        self.lacks: dict[str, str] = {}
        self.wires: dict[str, Wire] = {}
        self.names = Names()
        self.seen: list[Path] = []
        self.met = 0
        """What a fault counts that reached somebody."""
        self.group: MemoryGroup | None = None
        self.children: dict[str, subprocess.Popen[Any]] = {}
        self.worker_pids: list[int] = []
        self.recoveries: list[asyncio.Task[None]] = []
        self.before_audit: Callable[[], None] = lambda: None
        self._aims = Counter[str]()
        self.shim: Shim | None = None
        self._read = 0
        self._spent: list[Spent] = []

    # ------------------------------------------------------------ starting

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Stage"]:
        async with AsyncExitStack() as stack:
            self._stack = stack
            # Making one takes 20 ms of a core, which the healthy calls need.
            client = httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
            self._operator = await stack.enter_async_context(client)
            servers = {"a": await self._recorder("a") | {"pin": "off", "concurrency": 64, "required": True}}
            self.upstream = await self._recorder("b")
            for name in self.wanted:
                if name[0] == "b":
                    servers[name] = await self._wired(name)
                elif name[0] == "c":
                    servers[name] = self._child(name)
            if self.plan.all_servers:
                servers |= await self._others()
            if self.plan.disk:
                (self.folder / "audit").mkdir()
                self._need("a disk", lambda: stack.enter_context(small_disk(self.folder / "audit", self.plan.disk)))
            self._need("a memory group", lambda: setattr(self, "group", stack.enter_context(memory_group(self.folder))))
            clients = {"keys": client_keys(**{name: ["role:user"] for name in (*HEALTHY, *FAULTY, *CROWD)})}
            (self.folder / "policy.csv").write_text(ROWS + (APPROVED if self.plan.database else ""))
            config: Json = {"servers": servers, "clients": clients, "policy": {"files": ["policy.csv"]}}
            if self.plan.disk:  # soon there is a new segment
                config["audit"] = {"rotate": {"size": "256KiB"}}
            if self.plan.database:
                config |= await self._database()
            if "h" in servers:
                url = f"http://127.0.0.1:{self.hook_port}/"
                config["hooks"] = {"hook": {"url": url, "on": ["call"], "servers": ["h"], "timeout": "300ms"}}
            settings = settings_for(config, self.folder) | {"log": {"level": "warning"}}
            self.settings, self.config = settings, write_config(settings, self.folder)
            stack.callback(lambda: self.end_sluice())
            await self.start_sluice()
            if self.plan.all_servers:
                await self._start_readers()
            await self._start_load()
            yield self

    def _need(self, what: str, make: Callable[[], object]) -> None:
        try:
            make()
        except (OSError, subprocess.CalledProcessError) as error:
            self.lacks[what] = str(error)

    async def _recorder(self, name: str) -> Json:
        """A server that writes down what reaches it."""
        seen, log = self.folder / f"{name}.seen", self.folder / f"{name}.log"
        self.seen.append(seen)
        command = [sys.executable, RECORDER, str(seen)]
        process = self._stack.enter_context(running(command, log, stdout=subprocess.PIPE))
        assert process.stdout is not None
        self.children[name] = process
        prefer(process)
        return {"url": f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"}

    async def _wired(self, name: str, tls: ssl.SSLContext | None = None) -> Json:
        upstream = self.upstream["url"]
        wire = self.wires[name] = Wire(int(upstream.rpartition(":")[2].removesuffix("/mcp")), tls)
        await wire.listen()
        self._stack.push_async_callback(wire.refuse)
        return {"url": f"http{'s' if tls else ''}://127.0.0.1:{wire.port}/mcp", **FAULTED}

    async def _others(self) -> Json:
        servers: Json = {"h": {**self.upstream, **FAULTED}}
        good, expired = issue("127.0.0.1"), issue("127.0.0.1", lasts=timedelta(seconds=-1))
        self.contexts = [self._context(one, number) for number, one in enumerate((good, expired))]
        ca = self.folder / "ca.pem"
        ca.write_bytes(good[0] + expired[0])
        servers["t"] = await self._wired("t", self.contexts[0]) | {"ca": str(ca)}
        self.hook_port = free_port()
        await self.start_hook()
        if why := await self._serve_names():
            self.lacks["a name server"] = why
        else:
            servers["d"] = await self._wired("d")
            servers["d"]["url"] = servers["d"]["url"].replace("127.0.0.1", HOST)
            self.wires["d2"] = Wire(self.wires["d"].upstream, host="127.0.0.2")
            self.wires["d2"].port = self.wires["d"].port
            await self.wires["d2"].listen()
            self._stack.push_async_callback(self.wires["d2"].refuse)
        return servers

    async def _database(self) -> Json:
        try:
            self.cluster = await asyncio.to_thread(self._stack.enter_context, postgres())
        except (pytest.fail.Exception, pytest.skip.Exception) as error:
            self.lacks["PostgreSQL"] = str(error)
            return {}
        self.cluster.ask("CREATE ROLE sluice LOGIN")  # a superuser has connections beyond the limit
        self.cluster.ask("CREATE DATABASE sluice OWNER sluice")
        self.relay = Relay(self.cluster.port)
        await self.relay.listen()
        self._stack.push_async_callback(self.relay.close)
        url = f"postgresql://sluice@127.0.0.1:{self.relay.port}/sluice"
        profile = {"tier": "other", "approvers": ["role:lead"], "expires": "5s"}
        return {
            "state": {"dir": str(self.folder / "state"), "url": url, "keys": RINGS},
            "limits": {"pending_approvals": 1000},
            "approvals": {"hold_for": "100ms", "profiles": {"quick": profile}},
        }  # fmt: skip

    def _child(self, name: str) -> Json:
        place = self.folder / name
        place.mkdir()
        (place / "mode").write_text("healthy")
        self.seen.append(place / "seen")
        return {"command": sys.executable, "args": [str(HERE / "child.py"), str(place)], "sharing": "shared",
                "era": "legacy", **FAULTED}  # fmt: skip

    def _context(self, issued: tuple[bytes, bytes, bytes], number: int) -> ssl.SSLContext:
        file = self.folder / f"{number}.pem"
        file.write_bytes(issued[1] + issued[2])
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(file)
        return made

    def _run(self, *command: str | Path) -> None:
        subprocess.run(command, check=True, capture_output=True)

    async def _serve_names(self) -> str:
        """Why there is no name server that Sluice alone would ask."""
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            return "it needs root and unshare"
        resolver = self.folder / "resolv.conf"
        resolver.write_text(f"nameserver {NAME_SERVER}\noptions timeout:1 attempts:1\n")
        try:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(lambda: self.names, (NAME_SERVER, 53))
            self._run("unshare", "-m", "mount", "--bind", resolver, "/etc/resolv.conf")
        except (OSError, subprocess.CalledProcessError) as error:
            return str(error)
        self._stack.callback(transport.close)
        return ""

    async def start_hook(self) -> None:
        log = self.folder / "hook.log"
        command = [sys.executable, str(ROOT / "tests/bench/allowing_hook.py"), str(self.hook_port)]
        self.children["hook"] = self._stack.enter_context(running(command, log))
        await asyncio.to_thread(wait_for_port, self.hook_port, self.children["hook"], log)

    async def start_sluice(self) -> None:
        command = [*COMMAND, "serve", "-c", str(self.config)]
        command += ["--workers", str(self.plan.workers)] if self.plan.workers else []
        environment = clean_environment()
        if self.plan.all_servers:
            environment |= self._preloaded()
            if "a name server" not in self.lacks:
                hide = f"mount --bind {self.folder}/resolv.conf /etc/resolv.conf"
                command = ["unshare", "-m", "sh", "-c", f'{hide} && exec "$@"', "sh", *command]
        if self.plan.group and self.group is not None:
            command = ["sh", "-c", f'echo $$ > {self.group.path}/cgroup.procs && exec "$@"', "sh", *command]
        if self.plan.files:
            command = ["prlimit", f"--nofile={self.plan.files}:{self.plan.files}", *command]
        log = self.folder / "sluice.log"
        with log.open("a") as stderr:
            process = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, cwd=ROOT,
                env=environment, start_new_session=True, text=True,
            )  # fmt: skip
        self.process = Sluice(process, self.config, log, self.settings)
        await asyncio.to_thread(self.process.wait_ready)

    def end_sluice(self) -> None:
        if hasattr(self, "process"):
            stop(self.process.process, 30)

    def _preloaded(self) -> dict[str, str]:
        try:
            self.shim = Shim(self.folder)
        except FileNotFoundError as error:
            self.lacks["gcc"] = str(error)
            return {}
        return self.shim.environment

    async def _start_load(self) -> None:
        (self.folder / "calls").touch()
        healthy = self.keys_of_workers() or HEALTHY[:2]
        command = [sys.executable, str(HERE / "chaos_load.py"), self.process.url, str(self.folder / "calls"),
                   str(RATE), ",".join(healthy), ",".join(FAULTY), "2" if self.plan.files else "8"]  # fmt: skip
        self.load = await self._ready(command)
        prefer(self.load)
        self._stack.callback(self.end_load)

    async def _start_readers(self) -> None:
        command = [sys.executable, str(HERE / "slow_readers.py"), self.process.url, ",".join(CROWD), "500", "c__big"]
        self.readers = await self._ready(command)
        self._stack.callback(stop, self.readers)

    async def _ready(self, command: list[str]) -> "subprocess.Popen[str]":
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(  # noqa: ASYNC220
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )  # fmt: skip
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        return process

    def end_load(self) -> None:
        if self.load.poll() is None:
            self.load.terminate()
            self.load.communicate()

    def keys_of_workers(self) -> list[str]:
        return list(HEALTHY) if self.plan.workers else []

    # ------------------------------------------------------------ what faults do

    def aim(self, tool: str, *, stop: bool = False) -> None:
        """The faulted clients call this from now on, or do not any more, unless another fault needs it."""
        assert self.load.stdin is not None
        self._aims[tool] += -1 if stop else 1
        if self._aims[tool] == (0 if stop else 1):
            self.load.stdin.write(f"{'-' if stop else '+'}{tool}\n")
            self.load.stdin.flush()

    def mode(self, child: str, word: str) -> None:
        new = self.folder / child / "mode.new"
        new.write_text(word)
        new.replace(self.folder / child / "mode")

    def kill_child(self, child: str) -> None:
        with suppress(ProcessLookupError, ValueError):  # it may just begin
            os.kill(int((self.folder / child / "pid").read_text()), signal.SIGKILL)

    async def act(self, server: str, action: str) -> None:
        """As an operator does."""
        token = (self.folder / "state" / "operator.token").read_text().strip()
        url = f"{self.process.admin}/api/v1/servers/{server}/{action}"
        answer = await self._operator.post(url, headers={"Authorization": f"Bearer {token}"}, json={})
        assert answer.status_code == 200, answer.text

    # ------------------------------------------------------------ what is known afterwards

    def calls(self, since: float = 0.0) -> list[Spent]:
        """All that have ended, after that time, in that order."""
        with (self.folder / "calls").open() as file:
            file.seek(self._read)
            text = file.read()
        whole = text.rpartition("\n")[0]
        if whole:
            self._read += len(whole) + 1
            self._spent += [Spent.read(line) for line in whole.split("\n")]
        first = bisect_left(self._spent, since, key=lambda one: one.due + one.took)
        return self._spent[first:]

    async def until_steady(
        self, tool: str, since: float, seconds: float = 60, whose: tuple[str, ...] = (), good: str = "ok"
    ) -> float:
        """The monotonic time at which the first of five good calls ended that were made one after the other."""
        found: list[float] = []

        def is_steady() -> bool:
            found.clear()
            sent = [one for one in self.calls(since) if one.tool == tool and one.due > since]
            for one in sorted(sent, key=lambda one: one.due):
                if whose and one.who not in whose:
                    continue
                if one.word == good:
                    found.append(one.due + one.took)
                else:
                    found.clear()
            return len(found) >= 5

        with suppress(TimeoutError):
            await seldom(is_steady, seconds)
            return found[0]
        return float("inf")

    async def until_ended(self, since: float, until_: float) -> int:
        """How many healthy calls that were due in that time have not ended long after it."""
        due = int((until_ - since) * RATE) - 1

        def ended() -> int:
            return sum(one.tool == "a__note" and since <= one.due <= until_ for one in self.calls(since))

        with suppress(TimeoutError):
            await seldom(lambda: ended() >= due, PATIENCE + 5)
        return max(0, due - ended())

    def audited(self) -> "Audited":
        """After the end of Sluice: what the verifier says of the log, and what is missing in it."""
        self.before_audit()
        command = [*COMMAND, "audit", "verify", "-c", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=clean_environment())
        records: list[Json] = []
        for file in sorted((self.config.parent / "audit").iterdir(), key=lambda file: file.stat().st_mtime_ns):
            for line in file.read_bytes().splitlines() if ".jsonl" in file.name else ():
                with suppress(ValueError):  # a torn line, of which the next segment speaks
                    record = json.loads(line)
                    if loss := record.get("loss"):  # it says which records were given up, and are written anew
                        whose, last = record["writer"], loss["durable"]
                        records = [one for one in records if one["writer"] != whose or one["seq"] <= last]
                    records.append(record)
        intents = {record["call"]: int(record.get("arguments", {}).get("n", 0)) for record in records
                   if record["type"] == "intent" and record["method"] == "tools/call"}  # fmt: skip
        outcomes = Counter(record["call"] for record in records if record["type"] == "outcome")
        reached = {int(word) for file in self.seen if file.exists() for word in file.read_text().split()} - {0}
        found = Audited(done.returncode == 0, done.stdout.strip() + done.stderr.strip(), reached)
        found.without_intent = reached - set(intents.values())
        found.without_outcome = {number for id, number in intents.items() if outcomes[id] != 1} & reached
        return found


@dataclass(slots=True)
class Audited:
    """Numbers of calls."""

    is_verified: bool
    said: str
    reached: set[int]
    without_intent: set[int] = field(default_factory=set)
    without_outcome: set[int] = field(default_factory=set)


async def seldom(is_so: Callable[[], bool], seconds: float) -> None:
    """Looks ten times a second, so that looking is no load."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.1)


# ---------------------------------------------------------------- what needs the kernel


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=700", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    path: Path
    limit: str
    usage: str
    events: str

    def bound(self, size: int) -> None:
        (self.path / self.limit).write_text(str(size))

    def used(self) -> int:
        return int((self.path / self.usage).read_text())

    def kills(self) -> int:
        words = dict(line.split() for line in (self.path / self.events).read_text().splitlines())
        return int(words.get("oom_kill", 0))


@contextmanager
def memory_group(folder: Path) -> Iterator[MemoryGroup]:
    """A control group of the kernel, of whichever version there is. Raises `OSError`."""
    root = Path("/sys/fs/cgroup")
    first = (root / "memory").is_dir()
    path = (root / "memory" if first else root) / f"sluice-chaos-{os.getpid()}-{folder.name}"
    path.mkdir()
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
    try:
        made = MemoryGroup(path, *(names if first else ("memory.max", "memory.current", "memory.events")))
        made.used()
        yield made
    finally:
        give_up = time.monotonic() + 5
        while time.monotonic() < give_up:
            with suppress(OSError):  # as long as a process in it is still ending
                path.rmdir()
                break
            time.sleep(0.05)
