"""The program that decodes an answer which is too large for Sluice, and cuts it into parts.

`python -m sluicegate.downstream.answer_parts BYTES CPU_SECONDS < message > parts`. The parts stand one behind the
other, as UTF-8; then what they are, as one JSON line; then its length in 8 bytes. The process may have so many bytes of
memory and seconds of processor time: a few megabytes of brackets are a gigabyte of lists.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

from sluicegate.protocol import reserved_keys
from sluicegate.protocol.jsonrpc import Json, Malformed, decode_fast, dump

if sys.platform != "win32":
    import resource

PART: Final = 64 * 1024
"""Characters of a part at most. One that ends a line is up to a tenth shorter."""
MAX_PARTS: Final = 4_096
_SHORTER: Final = PART // 10
_LENGTH: Final = 8
_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_TYPE: Final = re.compile(r"[A-Za-z0-9.+-]{1,60}/[A-Za-z0-9.+-]{1,60}")

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


def split(data: bytes, out: IO[bytes]) -> Json:
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


def read_index(file: IO[bytes]) -> Json:
    """What the parts in a file are, as `split` returned it. Raises `ValueError` for a file that ends early."""
    end = file.seek(0, os.SEEK_END)
    if end < _LENGTH:
        raise ValueError("no parts")
    file.seek(end - _LENGTH)
    length = int.from_bytes(file.read(_LENGTH), "big")
    if length > end - _LENGTH:
        raise ValueError("no parts")
    file.seek(end - _LENGTH - length)
    index = decode_fast(file.read(length))
    if not isinstance(index, dict):
        raise ValueError("no parts")
    return index


def main(memory: int, seconds: int) -> int:
    if sys.platform != "win32":  # there nobody has tried it: only time is bounded
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(10)
    try:
        index = dump(split(sys.stdin.buffer.read(), sys.stdout.buffer))
    except (Malformed, MemoryError, OSError):
        return 1
    sys.stdout.buffer.write(index + len(index).to_bytes(_LENGTH, "big"))
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
