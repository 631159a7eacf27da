"""Several processes that serve over HTTP as one: a supervisor, its workers, and the orders that it gives them.

The supervisor starts workers, again when they end, tells them of signals and ends them together. It has the sockets,
which live as long as it does, and the admin port; it serves no client. A worker is the same command once more, with an
option that nobody else gives it. It is told at its start what to serve, and drains when nobody gives orders any more.
A signal from elsewhere, such as to all processes of a service, drains it as well; only an order cuts open calls.
"""

import asyncio
import logging
import pickle
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sluicegate import telemetry
from sluicegate.admin.gateway import Gateway
from sluicegate.admin.peers import Peer, note_at_peers
from sluicegate.app import policy_loading, replicas, settings, state
from sluicegate.app.admin_app import with_console
from sluicegate.app.instance_lock import WorkerSockets, new_worker_sockets
from sluicegate.app.partition import Partition
from sluicegate.app.reload import InForce, Reload, ToldReload
from sluicegate.app.serve import (
    Announce,
    RunningServer,
    WorkerPlacement,
    admin_port,
    announce_servers,
    greeting,
    policy_line,
    running,
    stopping,
    url,
)
from sluicegate.config import Config
from sluicegate.downstream.transport import stray_processes
from sluicegate.listen.server import bind
from sluicegate.policy.files import LoadedPolicy
from sluicegate.runtime import process_limits
from sluicegate.store.keys import Sealer, new_operator_token, publish_operator_token
from sluicegate.telemetry import Backoff

Word = Literal["drain", "cut", "reload", "hangup"]
"""`reload`: an operator had it reloaded, which is recorded. `hangup`: a signal to this process alone wants it."""
Order = Word | list[str] | InForce
"""A word, the keys of all servers that are disabled now, or what is in force from now on."""
UP: Final = b"u"
"""What a worker says when it serves."""
ASKED: Final = b"r"
"""What it says when it wants the files to be read: workers do not read them, or each could find something else."""
_LENGTH: Final = 4


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is told at its start. `config` is that by which all were started, and `in_force` what they have by
    now. `sockets` are file descriptors it has; `admin` is the admin port's URL, and `token` the operator's there;
    `is_first`: it is the one that says what needs to be said once."""

    config: Config
    in_force: InForce = field(repr=False)
    file: Path
    partition: Partition
    folder: Path
    sockets: tuple[int, ...]
    admin: str
    token: str = field(repr=False)
    is_first: bool


def packed(message: Task | Order) -> bytes:
    """As a worker reads it: a config goes along as it was read and checked, with all that came from variables."""
    data = pickle.dumps(message)
    return len(data).to_bytes(_LENGTH, "big") + data


def read_task(orders: socket.socket) -> Task:
    """The first thing that comes. Only from the process that started us: nobody else has the other end."""
    task = pickle.loads(_read(orders, int.from_bytes(_read(orders, _LENGTH), "big")))
    assert isinstance(task, Task)
    return task


def _read(orders: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := orders.recv(size - len(data))):
            raise EOFError("whoever starts workers has ended")
        data += part
    return data


async def serve_worker(task: Task, orders: socket.socket, announce: Announce) -> None:
    """Serves until the supervisor ends it. Raises what `running` raises."""
    config, partition = task.config, task.partition
    section = task.in_force.config.log
    telemetry.configure(section.level, section.format)
    telemetry.name_process(worker=partition.index + 1)
    folder = WorkerSockets(task.folder)
    sockets = [socket.socket(fileno=one) for one in task.sockets]
    for one in (orders, *sockets):
        one.set_inheritable(False)  # not for servers that are started
    placement = WorkerPlacement(partition, sockets, folder, task.admin, task.token, task.in_force)
    into, out = anyio.create_memory_object_stream[Order](100)
    async with anyio.create_task_group() as group:
        group.start_soon(_hear_signals, into)
        async with running(config, task.file, placement) as sluice:
            reload = sluice.core.services.judging.reload
            assert isinstance(reload, ToldReload)
            reader, writer = await asyncio.open_unix_connection(sock=orders)
            reload.ask_reader.set(partial(writer.write, ASKED))
            group.start_soon(_hear, reader, into)
            writer.write(UP)
            group.start_soon(announce_servers, sluice, announce if task.is_first else _silent)
            await _obey(sluice, reload, out)
            sluice.core.services.notes.act("drain", by="SIGTERM")
            group.start_soon(_obey, sluice, reload, out, True)
            await sluice.retire(config.drain_delay)
        group.cancel_scope.cancel()


async def _obey(
    sluice: RunningServer, reload: ToldReload, out: MemoryObjectReceiveStream[Order], is_draining: bool = False
) -> None:
    """Returns when it has to drain; one that `is_draining` obeys to its end, and does not reload."""
    async for order in out:
        if isinstance(order, list):
            sluice.core.behind.control.switch_off(order)
        elif isinstance(order, InForce):  # open calls are judged once more, when they were waiting
            reload.tell(order)
        elif order == "cut":
            sluice.stop()
        elif order in ("reload", "hangup") and not is_draining:
            sluice.core.services.notes.act("reload", by="SIGHUP")
            if order == "hangup":
                reload.ask()
        if order in ("drain", "cut") and not is_draining:
            return


async def _hear(reader: asyncio.StreamReader, into: MemoryObjectSendStream[Order]) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = int.from_bytes(await reader.readexactly(_LENGTH), "big")
            data = await reader.readexactly(size)
            into.send_nowait(await anyio.to_thread.run_sync(pickle.loads, data))  # a large policy takes 200 ms
    into.send_nowait("drain")  # whoever started us has ended


async def _hear_signals(into: MemoryObjectSendStream[Order]) -> None:
    hangups = () if sys.platform == "win32" else (signal.SIGHUP,)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangups) as signals:
        async for one in signals:
            into.send_nowait("hangup" if one in hangups else "drain")


def _silent(line: str) -> None:
    """Another worker says it."""


OPTION: Final = "--as-worker"
"""Of the command line: the file descriptor by which a worker gets its orders."""

_AGAIN: Final = Backoff(first=0.1, last=30.0, healthy=60.0)
_KILLED: Final = 70

log = logging.getLogger(__name__)


async def serve_workers(config: Config, count: int, *, announce: Announce, file: Path) -> int:
    """Until SIGTERM or SIGINT, as `serve`: an exit code. It is 0, or that of a worker which could not be started in the
    first place. Raises `OSError` where a port cannot be had, `PolicyError` where the policy cannot be used, and
    `KeyboardInterrupt` at the end if it was SIGINT."""
    telemetry.configure(config.log.level, config.log.format)
    loaded = await anyio.to_thread.run_sync(policy_loading.load, config)
    for finding in loaded.warnings:
        log.warning(str(finding))
    directory = Path(config.state.dir)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(new_worker_sockets(directory))
        sockets = bind(config.listen.mcp.host, config.listen.mcp.port)
        token = new_operator_token()
        crew = Crew(config, loaded, file, count, folder, sockets, token)
        gateway = Gateway(crew.up, crew.down, Partition(count=count).owner, settings.names(config),
                          crew.server_changed, crew.notes)  # fmt: skip
        store = await stack.enter_async_context(state.open_store(config))
        await stack.enter_async_context(replicas.join(config, store))
        sealer = Sealer(state.ring(config, "seal"))
        served = with_console(config, gateway, partial(note_at_peers, crew.up), store, token, sealer)
        backstage = admin_port(config, served, process_limits.raise_open_files() // 8)
        here = replace(config.listen.admin, port=backstage.bind())
        publish_operator_token(directory, token, str(here), file)
        admin = url(here, here.port)
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        await group.start(backstage.run)
        group.start_soon(telemetry.supervise, "reload", crew.reload.run)
        endpoint = url(config.listen.mcp, sockets[0].getsockname()[1]) + "/mcp"
        policy = policy_line(config, loaded.policy.revision, policy_loading.make(config, loaded).is_shadow)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            group.start_soon(crew.hear, signals, announce)
            async with anyio.create_task_group() as lives:
                if await crew.start(lives, admin):
                    lines = (*greeting(config, endpoint, admin), f"  workers   {count}", policy)
                    for line in lines:
                        announce(line)
    if crew.ended_by == signal.SIGINT:
        raise KeyboardInterrupt
    return crew.code


class _Worker:
    """One place among the workers, whoever has it."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.writer: asyncio.StreamWriter | None = None
        self.mark: int | None = None  # of the process that is up
        self.came = anyio.Event()  # once it is up for the first time, or never will be
        self.was_up = False

    def tell(self, order: bytes) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(order)


class Crew:
    """All workers. `code` and `ended_by` are known when the last one has ended. The config and policy are read here
    alone, so that each worker has the same in force, whenever it was started."""

    def __init__(
        self, config: Config, loaded: LoadedPolicy, file: Path, count: int, folder: WorkerSockets,
        sockets: Sequence[socket.socket], token: str,
    ) -> None:  # fmt: skip
        self._config, self._file, self._folder, self._sockets = config, file, folder, sockets
        self._token = token
        self._loaded = loaded
        self.reload = Reload(config, loaded.policy.revision, file, "http", self._apply, on_read=self._publish)
        self._workers = [_Worker(Partition(index, count)) for index in range(count)]
        self._marks = 0
        self._kept_down_by: dict[int, tuple[str, ...]] = {}  # what the files say and cannot be used, by worker
        self._switched_off: set[str] = set()
        self._stopped = anyio.Event()
        self.code = 0
        self.ended_by: signal.Signals | None = None

    def up(self) -> list[Peer]:
        there = ((one.partition.index, one.mark) for one in self._workers)
        return [Peer(index, mark, self._folder.asked(index)) for index, mark in there if mark is not None]

    def down(self) -> list[str]:
        """Returns why Sluice as a whole is not ready."""
        if self._stopped.is_set():
            return ["Sluice is stopping: open calls may end"]
        return [f"worker {one.partition.index + 1} is not up" for one in self._workers if one.mark is None]

    def notes(self) -> list[str]:
        """Returns why workers are not started."""
        found = sorted(self._kept_down_by.items())
        return [f"worker {index + 1} is not started: {problem}" for index, problems in found for problem in problems]

    def server_changed(self, server: str, action: str) -> None:
        """A server that an operator disabled stays so in workers that are started later."""
        if action == "disable":
            self._switched_off.add(server)
        elif action == "enable":
            self._switched_off.discard(server)

    def _apply(self, config: Config, loaded: LoadedPolicy) -> None:
        if config.log != self.reload.config.log:
            telemetry.configure(config.log.level, config.log.format)
        self._loaded = loaded

    def _in_force(self) -> InForce:
        now = self.reload
        return InForce(now.wanted, self._loaded, now.at, now.problems, now.found, now.retained)

    def _publish(self) -> None:
        self._tell(self._in_force())

    async def start(self, lives: TaskGroup, admin: str) -> bool:
        """Starts all workers; returns whether they came up. `admin` is the URL of the admin port."""
        for worker in self._workers:
            lives.start_soon(self._keep, worker, admin)
        for worker in self._workers:
            await worker.came.wait()
        return not self._stopped.is_set()

    async def hear(self, signals: AsyncIterator[signal.Signals], announce: Announce) -> None:
        async for received in signals:
            if received == signal.SIGHUP:
                self._tell("reload")
                self.reload.ask()
            elif self._stopped.is_set():
                self._tell("cut")
            else:
                self.ended_by = received
                announce(stopping(self._config))
                self._stop()

    def _stop(self) -> None:
        self._stopped.set()
        for one in self._sockets:
            one.close()
        self._tell("drain")

    def _tell(self, order: Order) -> None:
        data = packed(order)
        for worker in self._workers:
            worker.tell(data)

    async def _keep(self, worker: _Worker, admin: str) -> None:
        failures = 0
        while not self._stopped.is_set():
            started = time.monotonic()
            if worker.was_up and not await self._may_start(worker, failures + 1):
                failures += 1
                await self._wait(_AGAIN.pause(failures))
                continue
            if self._stopped.is_set():  # meanwhile: there are no sockets any more
                break
            code = await self._live(worker, admin)
            is_expected = self._stopped.is_set()
            with anyio.CancelScope(shield=True):  # the servers of one that was killed
                await anyio.to_thread.run_sync(stray_processes.end, stray_processes.adopted)
            if is_expected or not worker.was_up:
                self.code = self.code or (code if code >= 0 else _KILLED)
                break
            failures = 1 if time.monotonic() - started >= _AGAIN.healthy else failures + 1
            pause = _AGAIN.pause(failures)
            about = {"number": worker.partition.index + 1, "code": code, "failures": failures, "restart_in": pause}
            log.error("worker ended", extra=about)
            await self._wait(pause)
        worker.came.set()
        if not self._stopped.is_set():
            self._stop()

    async def _may_start(self, worker: _Worker, failures: int) -> bool:
        """What is in force is known, and yet a Sluice whose files cannot be used is no place for a new process."""
        index = worker.partition.index
        if problems := await self.reload.unusable():
            self._kept_down_by[index] = problems
            about = {"number": index + 1, "failures": failures, "problems": problems}
            log.error("worker is not started: what the files say cannot be used", extra=about)
            return False
        self._kept_down_by.pop(index, None)
        return True

    async def _wait(self, pause: float) -> None:
        with anyio.move_on_after(pause):
            await self._stopped.wait()

    async def _live(self, worker: _Worker, admin: str) -> int:
        """Runs one process from its start to its end; returns its exit code."""
        orders, theirs = socket.socketpair()
        with theirs:
            sockets = tuple(one.fileno() for one in self._sockets)
            command = [sys.executable, *sys.orig_argv[1:], OPTION, str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=(theirs.fileno(), *sockets)
            )
        reader, writer = await asyncio.open_unix_connection(sock=orders)
        with closing(writer):
            if worker is not self._workers[0]:  # what is made, or goes wrong, at a first start is made and said once
                await self._workers[0].came.wait()
            switched_off = frozenset(self._switched_off)
            writer.write(packed(Task(
                self._config, self._in_force(), self._file, replace(worker.partition, switched_off=switched_off),
                self._folder.path, sockets, admin, self._token,
                is_first=worker.partition.index == 0 and not worker.was_up,
            )))  # fmt: skip
            worker.writer = writer  # in the same step of the loop: what comes into force from here on it is told
            if self._stopped.is_set():
                worker.tell(packed("drain"))
            try:
                while message := await reader.read(1):
                    self._hear_worker(worker, message, switched_off)
            except OSError:
                pass  # it ended before it had read all
            try:
                return await process.wait()
            finally:
                worker.mark = worker.writer = None

    def _hear_worker(self, worker: _Worker, message: bytes, switched_off: frozenset[str]) -> None:
        if message == ASKED:
            self.reload.ask()
        elif message == UP:
            if self._switched_off != switched_off:  # changed since, where only those that are up were asked
                worker.tell(packed(sorted(self._switched_off)))
            self._marks += 1
            worker.mark, worker.was_up = self._marks, True
            worker.came.set()
