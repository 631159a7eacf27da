"""Answers over `limits.max_result` of servers with `results_over: page`. Sluice keeps each in a file as it comes, and
another process (`answer_parts`) cuts it into parts. This process never decodes what is in it.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Final
from weakref import finalize

import anyio
import anyio.to_thread

from sluicegate.downstream.answer_parts import read_index
from sluicegate.protocol.methods import TARGET_KINDS
from sluicegate.runtime.spool import Spool, SpoolFull, Spools

MEMORY: Final = 1024 * 1024 * 1024
"""Bytes that the process may have, and less for a smaller answer."""
_BASE, _FOR_EACH = 256 * 1024 * 1024, 12  # bytes: of Python, and for each one of the answer
SECONDS: Final = 20
"""Of its processor time."""
WITHIN: Final = 30.0
"""Seconds by the clock, with the wait for its turn."""
_AT_ONCE: Final = 8
"""Answers of the largest size that are kept in files at once, of one server."""
PROCESSES: Final = 4
"""For all servers together; each has one at a time."""
# `-P`: no module comes from the folder that Sluice was started in.
_WORKER: Final = (sys.executable, "-P", "-m", "sluicegate.downstream.answer_parts")


@dataclass(eq=False, slots=True, weakref_slot=True)
class AnswerFile:
    """The parts of an answer of `size` bytes, one behind the other in `file`. `documents` has, for each text of the
    answer, its MIME type and the bytes of its parts."""

    file: IO[bytes]
    size: int
    documents: Sequence[tuple[str, Sequence[int]]] = ()
    is_error: bool = False

    def __post_init__(self) -> None:
        finalize(self, self.file.close)

    def close(self) -> None:
        self.file.close()

    async def read(self, start: int, length: int) -> bytes:
        def work() -> bytes:
            self.file.seek(start)
            return self.file.read(length)

        return await anyio.to_thread.run_sync(work)


class LargeAnswers:
    """The large answers of one server, each of at most `limit` bytes. All servers share `processes`."""

    def __init__(self, limit: int, processes: anyio.Semaphore) -> None:
        self._spools = Spools(limit, limit * _AT_ONCE)
        self._turn, self._processes = anyio.Semaphore(1), processes

    def spool(self, data: bytes | bytearray = b"") -> Spool | None:
        """A spool that begins with this data; None where there is no room for it."""
        try:
            made = self._spools.spool()
            made.write(data)
        except SpoolFull:
            return None
        return made

    async def split(self, spool: Spool, id: int, method: str) -> AnswerFile | None:
        """Cuts the answer to the request with that id and method. None for what is no such answer, for lists, and for
        more than the process could take."""
        try:
            if method not in TARGET_KINDS:
                return None
            with anyio.move_on_after(WITHIN):
                async with self._turn, self._processes:
                    made = AnswerFile(await anyio.to_thread.run_sync(_open), len(spool))
                    spool.file.seek(0)
                    memory = min(MEMORY, _BASE + _FOR_EACH * len(spool))
                    if await _run([*_WORKER, str(memory), str(SECONDS)], spool.file, made.file) == 0:
                        return await anyio.to_thread.run_sync(_read, made, id)
        except (OSError, ValueError):
            pass  # no room for the file, or no process
        finally:
            spool.close()
        return None


async def _run(command: list[str], given: IO[bytes], out: IO[bytes]) -> int:
    """The exit code. The process ends with whoever waits for it."""
    null = subprocess.DEVNULL
    process = await anyio.open_process(command, stdin=given, stdout=out, stderr=null, env=_environment())
    try:
        return await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


def _environment() -> dict[str, str]:
    """What Python needs to find this package; nothing that is secret."""
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT") if name in os.environ}


def _open() -> IO[bytes]:
    made: IO[bytes] = import_module("tempfile").TemporaryFile(prefix="sluice-")
    return made


def _read(made: AnswerFile, id: int) -> AnswerFile | None:
    index = read_index(made.file)
    if type(index["id"]) is not int or index["id"] != id:
        return None
    made.documents, made.is_error = index["documents"], index["is_error"]
    return made
