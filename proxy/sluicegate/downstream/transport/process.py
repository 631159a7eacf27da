"""A child process that speaks on stdio, and all that it starts: it gets nothing of ours, and is ended as a group.

`subprocess.Popen` starts it and not the event loop. uvloop hands down every inheritable descriptor, the pipes of
children that start at the same time among them, so that one server could read what is meant for another.
"""

import asyncio
import io
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

import anyio

from sluicegate.downstream.failures import Lost
from sluicegate.downstream.transport import stray_processes
from sluicegate.runtime.pipe_files import pipe_file

_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# A sandbox ends with the thread that started bubblewrap (PR_SET_PDEATHSIG, prctl(2)). This one lives as long as Sluice;
# those of a common pool end when they were idle for a while.
_STARTER: Final = ThreadPoolExecutor(1, "starter")
# To look for what a server left behind reads of all processes below Sluice. Where a client ends hundreds of sessions at
# once, as many threads at that would keep the event loop waiting for the interpreter's lock.
_FINDER: Final = ThreadPoolExecutor(1, "finder")
GRACE: Final = 2.0
"""Seconds for each step of the stop ladder."""
_LONGEST_PAUSE: Final = 0.2  # between two looks at strays


def not_started(command: Sequence[str], env: Mapping[str, str], cwd: str | None, error: Exception) -> Lost:
    """The text names the program; where it was looked for is the detail."""
    program = command[0] if command else ""
    name, path = Path(program).name, env.get("PATH", os.defpath)
    if not isinstance(error, OSError):
        return _lost(f"the command {name} cannot be started: {error}")
    if cwd is not None and not os.path.isdir(cwd):
        return _lost("its working directory does not exist", cwd)
    has_folder = os.path.dirname(program) != ""
    path_of_program = os.path.join(cwd or "", program) if has_folder else shutil.which(program, os.F_OK, path)
    if path_of_program is None:
        return _lost(f"the command {name} was not found on PATH", f"{path}; sluice check says how to get it")
    if not os.path.exists(path_of_program):
        return _lost(f"the command {name} does not exist", path_of_program)
    if not os.path.isfile(path_of_program) or not os.access(path_of_program, os.X_OK):
        return _lost(f"the command {name} is not executable", path_of_program)
    if isinstance(error, FileNotFoundError):
        text = f"the interpreter of the command {name} does not exist"
        return _lost(text, f"{path_of_program} begins with {_first_line(path_of_program)}")
    return _lost(f"the command {name} cannot be started: {error.strerror}", path_of_program)


def _lost(text: str, detail: str = "") -> Lost:
    return Lost(text, sent=False, detail=detail)


def _first_line(path_of_program: str) -> str:
    try:
        with open(path_of_program, "rb") as file:
            return file.readline(200).decode("utf-8", "replace").strip()
    except OSError:
        return "what cannot be read"


class Pipe(asyncio.Protocol):
    """Hands on what comes, and that nothing will come any more."""

    def __init__(self, data: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._data = data
        self._lost = lost

    def data_received(self, data: bytes) -> None:
        self._data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()


class Process:
    """One running child. `exited` is called once, with its status."""

    def __init__(self, popen: subprocess.Popen[bytes], mark: str, exited: Callable[[int], None]) -> None:
        self._popen = popen
        self._mark = mark
        self._exited = exited
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._transports: list[asyncio.BaseTransport] = []
        self.pid = popen.pid
        self._watch()

    @staticmethod
    async def start(
        command: Sequence[str], env: Mapping[str, str], cwd: str | None, exited: Callable[[int], None]
    ) -> "Process":
        """Raises `OSError` or `ValueError` where it cannot be started."""
        mark = stray_processes.new_mark()
        starting = partial(_spawn, command, {**env, stray_processes.MARK: mark}, cwd)
        with anyio.CancelScope(shield=True):
            popen = await asyncio.get_running_loop().run_in_executor(_STARTER, starting)
        return Process(popen, mark, exited)

    # Shielded: a connect that is cancelled closes the pipe, and `Popen` would close that number once more. By then it
    # may be the descriptor of something else, such as the one that tells of the end of another child.

    async def write_to(self, lost: Callable[[], None]) -> asyncio.WriteTransport:
        with anyio.CancelScope(shield=True):
            file = _handed_over(self._popen.stdin, "wb")
            transport, _ = await self._loop.connect_write_pipe(lambda: Pipe(_ignore, lost), file)
        self._transports.append(transport)
        return transport

    async def read_from(
        self, number: int, data: Callable[[bytes], None], lost: Callable[[], None]
    ) -> asyncio.ReadTransport:
        pipe: IO[bytes] | None = self._popen.stdout if number == 1 else self._popen.stderr
        with anyio.CancelScope(shield=True):
            file = _handed_over(pipe, "rb")
            transport, _ = await self._loop.connect_read_pipe(lambda: Pipe(data, lost), file)
        self._transports.append(transport)
        return transport

    def _watch(self) -> None:
        try:
            handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # no Linux, or an old one
            threading.Thread(target=self._wait, name=f"wait-{self.pid}", daemon=True).start()
        else:
            self._loop.add_reader(handle, self._reap, handle)

    def _reap(self, handle: int) -> None:
        self._loop.remove_reader(handle)
        os.close(handle)
        status = self._popen.wait()
        stray_processes.waited(self.pid)
        self._end(status)

    def _wait(self) -> None:
        status = self._popen.wait()
        stray_processes.waited(self.pid)
        self._loop.call_soon_threadsafe(self._end, status)

    def _end(self, status: int) -> None:
        self._gone.set()
        self._exited(status)

    async def ended(self) -> None:
        """Returns when the child has been reaped."""
        await self._gone.wait()

    async def stop(self) -> None:
        """After stdin was closed: wait, then signals to the whole group, and to what its leader left behind or what
        left the group (2026-07-28 basic/transports/stdio#shutdown). Returns when the child has been reaped."""
        run = self._loop.run_in_executor
        with anyio.CancelScope(shield=True):
            found_before = await run(_FINDER, self._strays)
            await self._is_gone()
            if self._signal(signal.SIGTERM):
                await self._is_gone()
                with anyio.move_on_after(GRACE if self._gone.is_set() else 0):
                    while self._signal(0):  # noqa: ASYNC110 - a process group has no event
                        await anyio.sleep(0.02)
            self._signal(signal.SIGKILL)
            await self._gone.wait()
            ending = stray_processes.end_in_steps(self._strays, found_before)
            pause = stray_processes.POLL
            while not await run(_FINDER, next, ending, True):
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)  # hundreds at once would keep the thread busy
            for transport in self._transports:
                transport.close()
            if not self._transports:  # cancelled before its pipes were connected
                for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                    if pipe is not None:
                        pipe.close()

    def _strays(self) -> set[stray_processes.Stray]:
        """In another thread, which may come to it late: by then the number of the process may be another's."""
        return stray_processes.of_server(self._mark, None if self._gone.is_set() else self.pid)

    async def _is_gone(self) -> None:
        with anyio.move_on_after(GRACE):
            await self._gone.wait()

    def _signal(self, number: int) -> bool:
        """Whether there was somebody in the child's process group. Its number is not reused while there is."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _spawn(command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return stray_processes.spawn(
        command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, start_new_session=True
    )


def _handed_over(pipe: IO[bytes] | None, mode: str) -> io.FileIO:
    """The same pipe for the event loop alone: `Popen` closes what is its own when it is forgotten."""
    assert pipe is not None
    file = pipe_file(os.dup(pipe.fileno()), mode)
    pipe.close()
    return file


def _ignore(data: bytes) -> None:
    """Nothing comes out of the pipe that one writes to."""


def memory(pids: Iterable[int]) -> int:
    """Bytes that these processes and all that they started have in memory; 0 where the system does not say. Linux."""
    total = 0
    for pid in stray_processes.below(pids):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return total


def describe_exit(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {-status}"
