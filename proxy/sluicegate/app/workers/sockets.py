"""The folder where workers meet: a Unix socket for each, in the state directory, and its owner's alone.

Whoever started them holds its lock, so that what one left behind who was killed is known for that and cleared away.
Knows files; no MCP.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sluicegate.app.instance_lock import MAX_PATH, OPEN_FILES
from sluicegate.store import private

_PREFIX: Final = "workers-"
_LONGEST: Final = "99.asked"


class WorkerSockets:
    """`path` is there already. Raises `OSError` where addresses in it would be too long for the system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        return str(self.path / name if self._is_short else OPEN_FILES / str(self._directory) / name)

    def lock(self) -> bool:
        """Whether it is ours from now on, until this process ends."""
        return private.lock(self._directory)

    def close(self) -> None:
        os.close(self._directory)


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
        made.lock()
        yield made
        made.close()
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _clear(state: Path) -> None:
    for path in state.glob(f"{_PREFIX}*"):
        left = WorkerSockets(path)
        if left.lock():
            shutil.rmtree(path, ignore_errors=True)
        left.close()
