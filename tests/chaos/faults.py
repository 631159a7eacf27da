"""The table of faults: what each does to a running Sluice and its servers, how it is healed, and which bar it has.

A fault is a block: it is injected where the block is entered, and healed where it is left. Adding a row is enough.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import bad_wire as ways
import psycopg
from bad_wire import Way
from chaos_stage import Plan, Stage
from peers.fleet import stop
from waiting import until
from workers.workers_kit import owner, workers

Make = Callable[[Stage], AbstractAsyncContextManager[None]]
Bar = Literal["beside", "slower", "waits", "denied", "down", "worker"]
BARS: Final[dict[Bar, str]] = {
    "beside": "no healthy call fails; p99 at most 1.5 times",
    "slower": "no healthy call fails; p99 at most 1.5 times, and three syncs",
    "waits": "no healthy call fails",
    "denied": "calls are refused with `audit_unavailable` and not executed",
    "down": "calls fail at their connection alone, until it is started again",
    "worker": "no healthy call of another worker's client fails; their p99 at most 1.5 times",
}
SYNC: Final = 50
"""Milliseconds that each sync takes longer under `slow-fsync`."""
MAIN: Final = Plan(all_servers=True)
OWN: Final = Plan(group=True)
DISK: Final = Plan(disk=64)
FILES: Final = Plan(files=64)
WORKERS: Final = Plan(workers=2)
DATABASE: Final = Plan(database=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """`tool` is what the faulted clients call, and what has to get the `good` answer again; `needs` what the machine
    must permit. Where it is `for_the_test`, it proves that the suite can fail, and is no part of a whole run."""

    name: str
    about: str
    make: Make
    tool: str = "b__note"
    plan: Plan = MAIN
    bar: Bar = "beside"
    needs: str = ""
    good: str = "ok"
    for_the_test: bool = False


# ---------------------------------------------------------------- the network, and what servers say


def wire(way: Way, server: str) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        at = stage.wires[server]
        at.hits = 0
        at.turn(way)
        yield
        stage.met = at.hits
        at.heal()

    return make


def listing(way: Way, server: str) -> Make:
    """The list is read anew at the start of the server's connections."""

    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        async with wire(way, server)(stage):
            await stage.act(server, "restart")
            yield
        await stage.act(server, "restart")

    return make


@asynccontextmanager
async def refuse(stage: Stage) -> AsyncIterator[None]:
    await stage.wires["b"].refuse()
    yield
    await stage.wires["b"].listen()


@asynccontextmanager
async def expire(stage: Stage) -> AsyncIterator[None]:
    at = stage.wires["t"]
    for number in (1, 0):
        await at.refuse()
        at.tls = stage.contexts[number]
        await at.listen()
        if number:
            yield


def named(address: str | None) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        before, stage.names.address = stage.names.asked, address
        stage.wires["d"].cut()
        yield
        stage.met = stage.names.asked - before
        stage.names.address = "127.0.0.1"

    return make


@asynccontextmanager
async def move(stage: Stage) -> AsyncIterator[None]:
    """The server is at another address from now on, and nothing listens at the old one."""
    before, stage.names.address = stage.names.asked, "127.0.0.2"
    await stage.wires["d"].refuse()
    yield
    stage.met = stage.names.asked - before
    await stage.wires["d"].listen()
    stage.names.address = "127.0.0.1"
    stage.wires["d2"].cut()


# ---------------------------------------------------------------- children


def child(mode: str, server: str, kill: bool = False, restart: bool = False) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        place = stage.folder / server / "pid"
        before = place.read_text()
        stage.mode(server, mode)
        if kill:
            stage.kill_child(server)
        if kill and restart:  # once there is a process in that mode
            await until(lambda: place.read_text() != before, 30)
            await asyncio.sleep(0.5)
        if restart:
            await stage.act(server, "restart")
        yield
        stage.met = place.read_text() != before or mode == "floods stderr"  # which nobody notices
        stage.mode(server, "healthy")

    return make


def kill_again_and_again(server: str) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        async def kill() -> None:
            while True:
                stage.kill_child(server)
                stage.met += 1
                await asyncio.sleep(0.5)

        task = asyncio.create_task(kill())
        yield
        task.cancel()

    return make


def leave_daemons(server: str) -> Make:
    """They are looked for after the end: Sluice says that it leaves none."""

    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        async with child("leaves a grandchild", server)(stage):
            yield
        pid = int((stage.folder / server / "grandchild").read_text())
        with suppress(TimeoutError):
            await until(lambda: not is_there(pid), 10)
        if is_there(pid):
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("Sluice left a daemon of its server")

    return make


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def starve_child(server: str) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        assert stage.group is not None
        stage.group.bound(64 << 20)
        (stage.folder / server / "group").write_text(str(stage.group.path))
        before = stage.group.kills()
        async with child("eats", server)(stage):
            yield
        stage.met = stage.group.kills() - before

    return make


# ---------------------------------------------------------------- hooks and clients


def hook(received: signal.Signals) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        process = stage.children["hook"]
        os.killpg(process.pid, received)
        yield
        if received == signal.SIGKILL:
            process.wait()
            await stage.start_hook()
        else:
            os.killpg(process.pid, signal.SIGCONT)

    return make


@asynccontextmanager
async def read_slowly(stage: Stage) -> AsyncIterator[None]:
    readers = stage.readers
    assert readers.stdin is not None and readers.stdout is not None
    print("+", file=readers.stdin, flush=True)
    count = await asyncio.to_thread(readers.stdout.readline)
    yield
    print("-", file=readers.stdin, flush=True)
    reading = await asyncio.to_thread(readers.stdout.readline)
    stage.met = int(reading) if reading == count else 0  # all of them, or it is not the fault that its row names


@asynccontextmanager
async def crowd(stage: Stage) -> AsyncIterator[None]:
    """More idle connections than there may be open files."""
    port, made = int(stage.process.url.rpartition(":")[2].partition("/")[0]), []

    async def come() -> None:
        for _ in range(200):
            made.append(await asyncio.open_connection("127.0.0.1", port))
            await asyncio.sleep(0.02)

    task = asyncio.create_task(come())
    yield
    stage.met = len(made)
    task.cancel()
    for _, writer in made:
        writer.close()


# ---------------------------------------------------------------- disk and clock


def preloaded(**what: int) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        assert stage.shim is not None
        stage.shim.set(**what)
        yield
        stage.met = stage.shim.is_hit() if "full" in what else 1
        stage.shim.set()

    return make


@asynccontextmanager
async def fill(stage: Stage) -> AsyncIterator[None]:
    filler = stage.folder / "audit" / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        filler.unlink()


@asynccontextmanager
async def forbid_writing(stage: Stage) -> AsyncIterator[None]:
    """What is open stays writable, as the kernel has it; a new segment is due every second or two."""
    audit = str(stage.folder / "audit")
    for words in (("--bind", audit, audit), ("-o", "remount,ro,bind", audit)):
        subprocess.run(["mount", *words], check=True)  # noqa: ASYNC221
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", audit], check=True)  # noqa: ASYNC221


# ---------------------------------------------------------------- the database


@asynccontextmanager
async def kill_database(stage: Stage) -> AsyncIterator[None]:
    await asyncio.to_thread(stage.cluster.stop, signal.SIGKILL)
    yield
    await asyncio.to_thread(stage.cluster.start)


@asynccontextmanager
async def hold_database(stage: Stage) -> AsyncIterator[None]:
    stage.cluster.pause()
    try:
        yield
    finally:  # also at Ctrl-C: what stands still does not end
        stage.cluster.resume()


@asynccontextmanager
async def lock_tables(stage: Stage) -> AsyncIterator[None]:
    url = stage.cluster.url.rpartition("/")[0] + "/sluice"
    async with await psycopg.AsyncConnection.connect(url) as connection:
        found = await connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        names = [name for (name,) in await found.fetchall()]
        await connection.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE".encode())
        yield
        await connection.rollback()


@asynccontextmanager
async def refuse_connections(stage: Stage) -> AsyncIterator[None]:
    ask = stage.cluster.ask
    await asyncio.to_thread(ask, "ALTER DATABASE sluice CONNECTION LIMIT 0")
    await asyncio.to_thread(ask, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'sluice'")
    yield
    await asyncio.to_thread(ask, "ALTER DATABASE sluice CONNECTION LIMIT -1")


@asynccontextmanager
async def lose_confirmations(stage: Stage) -> AsyncIterator[None]:
    before, stage.relay.loses = stage.relay.lost, True
    yield
    stage.met, stage.relay.loses = stage.relay.lost - before, False


def database(name: str, about: str, make: Make) -> "Fault":
    return Fault(name, about, make, plan=DATABASE, needs="PostgreSQL", good="approval_pending")


# ---------------------------------------------------------------- Sluice itself


@asynccontextmanager
async def stand_still(stage: Stage) -> AsyncIterator[None]:
    os.kill(stage.process.process.pid, signal.SIGSTOP)
    stage.met = 1
    try:
        yield
    finally:
        os.kill(stage.process.process.pid, signal.SIGCONT)


def end(received: signal.Signals) -> Make:
    @asynccontextmanager
    async def make(stage: Stage) -> AsyncIterator[None]:
        stage.process.process.send_signal(received)
        yield
        await asyncio.to_thread(stop, stage.process.process)  # its children, too, as a supervisor ends them
        await stage.start_sluice()

    return make


EATER: Final = """
import sys, time
open("/proc/self/oom_score_adj", "w").write("-1000")
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
eaten = [bytearray(b"x" * (1 << 20)) for _ in range(64)]
time.sleep(60)
"""


@asynccontextmanager
async def starve(stage: Stage) -> AsyncIterator[None]:
    """Another process of its group takes what is left, and the kernel ends the one that it may: Sluice."""
    assert stage.group is not None
    before = stage.group.kills()
    stage.group.bound(stage.group.used() + (16 << 20))
    eater = subprocess.Popen([sys.executable, "-c", EATER, str(stage.group.path)])  # noqa: ASYNC220
    yield
    stage.met = stage.group.kills() - before
    eater.kill()
    eater.wait()
    stage.group.bound(1 << 40)
    await asyncio.to_thread(stop, stage.process.process)
    await stage.start_sluice()


@asynccontextmanager
async def kill_worker(stage: Stage) -> AsyncIterator[None]:
    """That of the first two keys."""
    found = workers(stage.process)
    stage.worker_pids = [pid if pid in found else next(iter(set(found) - set(stage.worker_pids)))
                         for pid in stage.worker_pids or found]  # fmt: skip
    os.kill(stage.worker_pids[0], signal.SIGKILL)
    stage.met = 1
    yield


def of_killed_worker(who: str) -> bool:
    return owner(who, WORKERS.workers) == 0


# ---------------------------------------------------------------- for the test of the suite


@asynccontextmanager
async def break_healthy(stage: Stage) -> AsyncIterator[None]:
    """And somebody removes a line of the log once Sluice has ended."""
    os.killpg(stage.children["a"].pid, signal.SIGKILL)
    stage.met = 1

    def remove() -> None:
        log = stage.folder / "audit" / "sluice.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if b'"type":"intent"' in line)
        log.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))

    stage.before_audit = remove
    yield


_numbers = itertools.count(1)


def net(name: str, about: str, way: Way, make: Callable[[Way, str], Make] = wire) -> Fault:
    server = f"b{next(_numbers)}"
    return Fault(name, about, make(way, server), f"{server}__note")


def started(name: str, about: str, make: Callable[[str], Make], needs: str = "") -> Fault:
    server = f"c{next(_numbers)}"
    return Fault(name, about, make(server), f"{server}__note", needs=needs)


def acts(mode: str, **how: bool) -> Callable[[str], Make]:
    return lambda server: child(mode, server, **how)


FAULTS: Final = (
    Fault("refused", "the server's port is closed", refuse),
    net("black-hole", "the server takes requests and says nothing", ways.swallow),
    net("slow", "each answer comes a second late", ways.slow),
    Fault("dns-gone", "the server's name does not exist any more", named(""), "d__note", needs="a name server"),
    net("reset-before", "connections are reset before a request", ways.reset_at_once),
    net("reset-after", "a connection is reset after its request", ways.reset_after_request),
    net("reset-in-body", "a connection is reset in the middle of the answer", ways.reset_in_body),
    net("byte-a-second", "answers come at a byte a second", ways.drip),
    net("half-closed", "the server ends its half of the connection, without an answer", ways.half_close),
    Fault("dns-silent", "name servers do not answer", named(None), "d__note", needs="a name server"),
    Fault("tls-expired", "the server's certificate expires", expire, "t__note"),
    net("http-500", "each answer has status 500", ways.server_error),
    net("http-429", "each answer has status 429", ways.too_many),
    net("no-json", "answers are no JSON", ways.no_json),
    net("wrong-id", "answers have the id of nobody's request", ways.wrong_id),
    Fault("dns-moved", "the server moves to another address", move, "d__note", needs="a name server"),
    net("two-results", "a request gets two results", ways.two_results),
    net("wrong-type", "answers are text/html", ways.wrong_type),
    net("endless-stream", "an event stream never ends", ways.stream_for_ever),
    net("endless-cursor", "a list has always one more page", ways.endless_cursor, listing),
    net("many-tools", "a list has 10,000 tools", ways.many_tools, listing),
    started("child-exits-0", "a started server ends with 0 in a call", acts("exits with 0")),
    started("child-exits-1", "a started server ends with 1 in a call", acts("exits with 1")),
    started("child-killed", "SIGKILL ends the started server every half second", kill_again_and_again),
    started("child-hangs-at-start", "it hangs before its first answer", acts("hangs at start", kill=True)),
    started("child-hangs-in-list", "it hangs in `tools/list`", acts("hangs in a list", restart=True)),
    started("child-hangs-in-call", "it hangs in calls, and writes nothing", acts("stops writing")),
    started("child-stops-reading", "it does not read any more", acts("stops reading")),
    started("child-hangs-at-end", "it ignores SIGTERM and the end of its input",
            acts("ignores its end", kill=True, restart=True)),
    started("child-floods-stderr", "it writes to stderr without end", acts("floods stderr")),
    started("child-leaves-daemon", "it ends, and leaves a daemon with its pipes", leave_daemons),
    started("child-out-of-memory", "the kernel ends it, as its memory is over 64 MiB", starve_child, "a memory group"),
    Fault("hook-killed", "SIGKILL ends the hook that judges the server's calls", hook(signal.SIGKILL), "h__note"),
    Fault("hook-hangs", "the hook stands still", hook(signal.SIGSTOP), "h__note"),
    Fault("slow-readers", "500 clients come in 10 s, and read 256 KiB at 640 bytes a second", read_slowly, "c__note"),
    Fault("clock-forward", "the clock jumps an hour ahead, and back", preloaded(ahead=3600), needs="gcc"),
    Fault("clock-back", "the clock jumps an hour back, and ahead", preloaded(ahead=-3600), needs="gcc"),
    Fault("slow-fsync", f"each sync of the audit log takes {SYNC} ms longer", preloaded(slow=SYNC), "a__note",
          bar="slower", needs="gcc"),
    Fault("enospc-in-record", "a record is half written, then the disk is full", preloaded(full=1), "a__note",
          bar="denied", needs="gcc"),
    Fault("disk-full", "the audit log's disk is full", fill, "a__note", DISK, "denied", "a disk"),
    Fault("disk-read-only", "the audit log's disk is read-only", forbid_writing, "a__note", DISK, "denied", "a disk"),
    Fault("few-files", "64 open files, and 200 idle connections", crowd, "b__note", FILES),
    database("postgres-killed", "SIGKILL ends PostgreSQL", kill_database),
    database("postgres-stopped", "PostgreSQL stands still", hold_database),
    database("postgres-locked", "another connection has locked all tables", lock_tables),
    database("postgres-full", "PostgreSQL ends all connections, and takes none", refuse_connections),
    database("postgres-unheard", "what is committed is not confirmed: the connection is reset", lose_confirmations),
    Fault("stopped", "SIGSTOP holds Sluice for 30 s", stand_still, "a__note", OWN, "waits"),
    Fault("terminated", "SIGTERM ends Sluice", end(signal.SIGTERM), "a__note", OWN, "down"),
    Fault("killed", "SIGKILL ends Sluice", end(signal.SIGKILL), "a__note", OWN, "down"),
    Fault("out-of-memory", "the kernel ends Sluice, as memory is short", starve, "a__note", OWN, "down",
          "a memory group"),
    Fault("worker-killed", "SIGKILL ends one of two workers", kill_worker, "a__note", WORKERS, "worker"),
    Fault("test-broken", "the healthy server ends, and a record is lost", break_healthy, plan=OWN, for_the_test=True),
)  # fmt: skip
