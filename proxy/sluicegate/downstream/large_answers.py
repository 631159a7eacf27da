"""Answers over `limits.max_result` of servers with `results_over: page`. Sluice keeps each in a file as it comes, and
another process cuts it into parts. This process never decodes what is in it.

That one is `python -m sluicegate.downstream.large_answers BYTES CPU_SECONDS < message > parts`. The parts stand one
behind the other, as UTF-8; then what they are, as one JSON line; then its length in 8 bytes. It may have so many bytes
of memory and seconds of processor time: a few megabytes of brackets are a gigabyte of lists.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any, Final
from weakref import finalize

import anyio
import anyio.to_thread

from sluicegate.protocol import reserved_keys
from sluicegate.protocol.jsonrpc import Json, Malformed, decode_fast, dump
from sluicegate.protocol.methods import TARGET_KINDS
from sluicegate.runtime.spool import Spool, SpoolFull, Spools

if sys.platform != "win32":
    import resource

MEMORY: Final = 1024 * 1024 * 1024
"""Bytes that the process may have, and less for a smaller answer."""
_BASE, _FOR_EACH = 256 * 1024 * 1024, 12  # bytes: of Python, and for each one of the answer
SECONDS: Final = 20
"""Of the processor time of that process."""
WITHIN: Final = 30.0
"""Seconds by the clock, with the wait for its turn."""
_AT_ONCE: Final = 8
"""Answers of the largest size that are kept in files at once, of one server."""
PROCESSES: Final = 4
"""For all servers together; each has one at a time."""
# `-P`: no module comes from the folder that Sluice was started in.
_WORKER: Final = (sys.executable, "-P", "-m", "sluicegate.downstream.large_answers")
PART: Final = 64 * 1024
"""Characters of a part at most. One that ends a line is up to a tenth shorter."""
MAX_PARTS: Final = 4_096
_SHORTER: Final = PART // 10
_LENGTH: Final = 8
_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_TYPE: Final = re.compile(r"[A-Za-z0-9.+-]{1,60}/[A-Za-z0-9.+-]{1,60}")


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
    """With what its parts are, as `cut_answer` returned it; None where they answer another request. Raises `ValueError`
    for a file that ends early."""
    end = made.file.seek(0, os.SEEK_END) - _LENGTH
    made.file.seek(max(end, 0))
    start = end - int.from_bytes(made.file.read(_LENGTH), "big")
    if start < 0:
        raise ValueError("no parts")
    made.file.seek(start)
    index = decode_fast(made.file.read(end - start))
    if not isinstance(index, dict) or type(index["id"]) is not int or index["id"] != id:
        return None
    made.documents, made.is_error = index["documents"], index["is_error"]
    return made


Document = tuple[str, str]
"""(MIME type, text)."""


def documents(result: Json) -> list[Document]:
    """What a person or a model would read of a result: its texts as they are, all else as JSON."""
    found = [document for document in map(_document, _items(result)) if document[1]]
    if "structuredContent" in result and not _says(found, result["structuredContent"]):
        found.append(_as_json(result["structuredContent"]))
    return found or [_as_json(result)]


def _items(result: Json) -> list[Any]:
    """The blocks of a tool's result, or the contents of a resource."""
    given = result.get("content", result.get("contents"))
    return given if isinstance(given, list) else []


def _document(item: Any) -> Document:
    if isinstance(item, dict):
        inner = item.get("resource") if item.get("type") == "resource" else item
        if isinstance(inner, dict) and isinstance(inner.get("text"), str):
            kind = inner.get("mimeType")
            return kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else _TEXT, inner["text"]
    return _as_json(item)


def _as_json(value: Any) -> Document:
    return _JSON, dump(value).decode()


def _says(found: Sequence[Document], structured: Any) -> bool:
    """Whether the one text is the same JSON (2025-06-18 server/tools#structured-content: it should be)."""
    try:
        return len(found) == 1 and bool(decode_fast(found[0][1].encode()) == structured)
    except Malformed:
        return False


def cut(text: str) -> Iterator[str]:
    """The text in parts, each of which ends a line where one ends near."""
    start = 0
    while start < len(text):
        end = start + PART
        if end < len(text):
            end = text.rfind("\n", end - _SHORTER, end) + 1 or end
        yield text[start:end]
        start = end


def cut_answer(data: bytes, out: IO[bytes]) -> Json:
    """Writes the parts of a message to `out`. Returns what they are: the `id` that it answers, and for each document
    its MIME type and the bytes of its parts. Raises `Malformed` for what is no result that has an end."""
    message = decode_fast(data)
    reserved_keys.from_server(message, data)
    result = message.get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict) or result.get("resultType", "complete") != "complete":
        raise Malformed(0, "no result")
    found = documents(result)
    if sum(len(text) // (PART - _SHORTER) + 1 for _, text in found) > MAX_PARTS:
        found = [_as_json(result)]
    written = []
    for kind, text in found:
        lengths = [out.write(part.encode()) for part in cut(text)]
        written.append((kind, lengths))
    return {"id": message.get("id"), "documents": written, "is_error": result.get("isError") is True}


def main(memory: int, seconds: int) -> int:
    if sys.platform != "win32":  # there nobody has tried it: only time is bounded
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(10)
    try:
        index = dump(cut_answer(sys.stdin.buffer.read(), sys.stdout.buffer))
    except (Malformed, MemoryError, OSError):
        return 1
    sys.stdout.buffer.write(index + len(index).to_bytes(_LENGTH, "big"))
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
