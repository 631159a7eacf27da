"""One of several workers, as a process of its own: told at its start what to serve, and later on what to do.

It goes by the orders of whoever started it, and drains when nobody gives any more. A signal from elsewhere, such as to
all processes of a service, drains it as well; only an order cuts open calls.
"""

import asyncio
import pickle
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sluicegate import telemetry
from sluicegate.app.partition import Partition
from sluicegate.app.reload import InForce, ToldReload
from sluicegate.app.serve import Announce, RunningServer, WorkerPlacement, announce_servers, running
from sluicegate.app.workers.sockets import WorkerSockets
from sluicegate.config import Config

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
    log = task.in_force.config.log
    telemetry.configure(log.level, log.format)
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
            group.start_soon(_obey_to_the_end, sluice, reload, out)
            await sluice.retire(config.drain_delay)
        group.cancel_scope.cancel()


async def _obey(sluice: RunningServer, reload: ToldReload, out: MemoryObjectReceiveStream[Order]) -> None:
    async for order in out:
        if isinstance(order, list):
            sluice.core.behind.control.switch_off(order)
        elif isinstance(order, InForce):
            reload.tell(order)
        elif order in ("reload", "hangup"):
            sluice.core.services.notes.act("reload", by="SIGHUP")
            if order == "hangup":
                reload.ask()
        else:
            if order == "cut":
                sluice.stop()
            return


async def _obey_to_the_end(sluice: RunningServer, reload: ToldReload, out: MemoryObjectReceiveStream[Order]) -> None:
    async for order in out:
        if order == "cut":
            sluice.stop()
        elif isinstance(order, list):
            sluice.core.behind.control.switch_off(order)
        elif isinstance(order, InForce):  # open calls are judged once more, when they were waiting
            reload.tell(order)


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
