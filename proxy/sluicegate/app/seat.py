"""Which of several processes with one config runs the firewall: whoever holds the lock. The others reach it there.

The lock is the system's and ends with its process, however that ends. Knows files and sockets, no MCP.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sluicegate.listen.bridge import Streams
from sluicegate.store import private

if sys.platform != "win32":
    import fcntl

MAX_PATH: Final = 100
"""Longer addresses of sockets are refused by some systems."""
OPEN_FILES: Final = Path("/proc/self/fd")
"""Where a directory that we have open has a short name, on Linux."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Seat:
    """`name` stands for the whole config: who was started with another one shares nothing with us."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._path = directory / f"stdio-{name}.sock"
        self._lock = self._place = -1

    def __repr__(self) -> str:
        return f"Seat({self._path}, {'ours' if self._lock >= 0 else 'not ours'})"

    @property
    def can_be_shared(self) -> bool:
        return sys.platform != "win32" and (self._is_short or OPEN_FILES.is_dir())

    @property
    def _is_short(self) -> bool:
        return len(os.fsencode(self._path)) <= MAX_PATH

    @property
    def _address(self) -> Path:
        return self._path if self._is_short else OPEN_FILES / str(self._place) / self._path.name

    def take(self) -> bool:
        """Whether it is ours from now on, until this process ends."""
        if sys.platform == "win32":
            return True
        private.make_directory(self._directory)
        private.check(self._directory, private.DIRECTORY)  # or somebody else could sit there
        if self._place < 0:
            self._place = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private.FILE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    @asynccontextmanager
    async def open(self, serve: Serve) -> AsyncIterator[None]:
        """Lets others in while the block runs; they are cut off at its end. Only for who holds the lock."""
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

        self._path.unlink(missing_ok=True)  # of a holder that could not clean up
        server = await asyncio.start_unix_server(one, self._address)
        os.chmod(self._path, private.FILE)
        try:
            yield
        finally:
            server.close()
            self._path.unlink(missing_ok=True)
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def connect(self) -> Streams | None:
        """A way to whoever holds it; None where nobody answers."""
        try:
            return Streams(*await asyncio.open_unix_connection(self._address))
        except OSError:
            return None
