"""Which of several processes with one config file runs the firewall: whoever holds the lock. The others reach it there.

Lock and sockets belong to the state directory and the file's path, not to what the file says: who comes after an edit
finds the Sluice that runs. The lock is the system's and ends with its process, however that ends. Commands reach the
admin socket. Workers meet in a folder of that directory, which is locked by whoever started them, so that what one left
behind who was killed is known for that and cleared away. Knows files and sockets, no MCP.
"""

import asyncio
import os
import secrets
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from sluicegate.store import private

MAX_PATH: Final = 100
"""Longer addresses of sockets are refused by some systems."""
OPEN_FILES: Final = Path("/proc/self/fd")
"""Where a directory that we have open has a short name, on Linux."""
_NAME: Final = 12  # hex digits
_PATIENCE: Final = 5.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OnSocket = Callable[[str], AbstractAsyncContextManager[None]]
"""Serves at the address of a Unix socket inside the block."""


class InstanceLock:
    """The place of all processes that serve `file` on the state directory. Symbolic links are followed."""

    def __init__(self, directory: Path, file: Path) -> None:
        name = sha256(os.fsencode(file.resolve())).hexdigest()[:_NAME]
        self._directory = directory
        self._path, self._admin = (directory / f"{kind}-{name}.sock" for kind in ("stdio", "admin"))
        self._lock: int | None = None
        self._opened = -1

    @property
    def unshared(self) -> str:
        """Why every process is on its own here; empty if it is not."""
        if sys.platform == "win32":
            return "on Windows Sluice has no Unix sockets"
        return "" if self._is_short or OPEN_FILES.is_dir() else "state.dir is too deep for a socket"

    @property
    def is_ours(self) -> bool:
        return self._lock is not None

    @property
    def _is_short(self) -> bool:
        return len(os.fsencode(self._path)) <= MAX_PATH

    def _address(self, path: Path) -> str:
        return str(path if self._is_short else OPEN_FILES / str(self._opened) / path.name)

    def _enter(self) -> None:
        """Raises `OSError` where there is no such directory, `Exposed` where somebody else could sit there."""
        private.check(self._directory, private.DIRECTORY)
        if self._opened < 0:
            self._opened = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def take(self) -> bool:
        """Takes the lock until this process ends; returns whether it was free."""
        if sys.platform == "win32":
            return True
        private.make_directory(self._directory)
        self._enter()
        lock = private.take_lock(self._path.with_suffix(".lock"))
        if lock is None:
            return False
        self._lock = lock
        return True

    @asynccontextmanager
    async def open(self, serve: Serve, admin: OnSocket) -> AsyncIterator[None]:
        """Lets others in while the block runs, and commands at `admin`; they are cut off at its end. Only for who holds
        the lock."""
        tasks: set[asyncio.Task[None]] = set()

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await serve(reader, writer)
            except asyncio.CancelledError:
                pass  # the end of the block
            finally:
                tasks.discard(task)
                writer.close()

        self._clear()  # of a holder that could not clean up
        async with admin(self._address(self._admin)):
            server = await asyncio.start_unix_server(one, self._address(self._path))
            for path in (self._path, self._admin):
                path.chmod(private.FILE)
            try:
                yield
            finally:
                server.close()
                self._clear()
                for task in tuple(tasks):
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _clear(self) -> None:
        for path in (self._path, self._admin):
            path.unlink(missing_ok=True)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connects to the process that holds the lock; None where it does not answer."""
        try:
            self._enter()
            return await asyncio.open_unix_connection(self._address(self._path))
        except OSError:
            return None

    def clients(self) -> str | None:
        """The address of the socket for clients, where `admin` has one."""
        return None if self.admin() is None else self._address(self._path)

    def admin(self) -> str | None:
        """The address of the admin socket of whoever holds it, good as long as this object; None where nobody answers,
        or somebody else could."""
        if self.unshared:
            return None
        try:
            self._enter()
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_PATIENCE)
                probe.connect(self._address(self._admin))
        except OSError:
            return None
        return self._address(self._admin)


_PREFIX: Final = "workers-"
_LONGEST: Final = "99.asked"


class WorkerSockets:
    """The folder where workers meet: a Unix socket for each, its owner's alone. `path` is there already. Raises
    `OSError` where addresses in it would be too long for the system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._is_short = len(os.fsencode(path / _LONGEST)) <= MAX_PATH
        if not (self._is_short or OPEN_FILES.is_dir()):
            raise OSError(f"{path.parent}: too deep for sockets; choose a shorter state.dir")

    def taking(self, index: int) -> str:
        """Where that worker takes connections."""
        return self._address(f"{index}.taking")

    def asked(self, index: int) -> str:
        """Where its admin port is."""
        return self._address(f"{index}.asked")

    def _address(self, name: str) -> str:
        return str(self.path / name if self._is_short else OPEN_FILES / str(self.directory) / name)

    def close(self) -> None:
        os.close(self.directory)


@contextmanager
def new_worker_sockets(state: Path) -> Iterator[WorkerSockets]:
    """A folder for as long as the block runs. Raises `OSError`."""
    private.make_directory(state)
    private.check(state, private.DIRECTORY)  # or somebody else could sit there
    _clear(state)
    path = state / f"{_PREFIX}{secrets.token_hex(4)}"
    private.make_directory(path)
    try:
        made = WorkerSockets(path)
        private.lock(made.directory)
        yield made
        made.close()
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _clear(state: Path) -> None:
    for path in state.glob(f"{_PREFIX}*"):
        left = WorkerSockets(path)
        if private.lock(left.directory):
            shutil.rmtree(path, ignore_errors=True)
        left.close()
