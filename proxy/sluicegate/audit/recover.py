"""What a log says when a writer starts: where its chain ends, what was torn, which calls were interrupted.

Reads only, in bounded memory; decides nothing about whether the log can be believed (that is `verify`). The last
segment is enough, for each one begins with the calls that were open at its beginning.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from errno import ENOENT
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from sluicegate.audit import chain
from sluicegate.audit.chain import START, ChainHead, Link
from sluicegate.audit.checkpoint import Checkpoint
from sluicegate.audit.settings import is_segment

_TRIES: Final = 100
_CHUNK: Final = 1024 * 1024
_MAX_SECONDS: Final = 1e9
_ANY_TIME: Final = "2000-01-01T00:00:00.000Z"


@dataclass(frozen=True, slots=True)
class File:
    """A segment by its first line; `first` is None where that line is no record. `opening` is its JSON."""

    path: Path
    first: Link | None
    size: int
    opening: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def seq(self) -> int:
        return self.first.seq if self.first else 0

    @property
    def writer(self) -> str:
        return self.first.writer if self.first else ""

    @property
    def after(self) -> ChainHead | None:
        """Where the chain stood when this segment was begun, as it says."""
        after = self.opening.get("after")
        if not isinstance(after, dict) or type(after.get("seq")) is not int or not isinstance(after.get("hash"), str):
            return None
        return ChainHead(after["seq"], after["hash"])


def list_files(directory: Path) -> list[File]:
    """Every segment of every writer in a directory, by writer and sequence; unreadable ones last. While names come and
    go, one of them may stand for another file by the time that it is opened, or for none: then all is read again."""
    for _ in range(_TRIES):
        names = _segments(directory)
        with suppress(FileNotFoundError):
            files = [look(path) for path in names]
            if names == _segments(directory):
                return sort_files(files)
    return sort_files([look(path) for path in _segments(directory)])


def open_segment(file: File) -> BinaryIO:
    """A listed segment under the name that it has by now: one that is rotated gets another, and its own goes to the
    next. Raises FileNotFoundError where it was deleted."""
    if file.first is None:
        return file.path.open("rb")
    for _ in range(_TRIES):
        names = _segments(file.path.parent)
        for path in (file.path, *names):
            with suppress(FileNotFoundError):
                stream = path.open("rb")
                if chain.read(stream.readline(chain.MAX_LINE)[:-1]) == file.first:
                    stream.seek(0)
                    return stream
                stream.close()
        if names == _segments(file.path.parent):
            break
    raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(file.path))


def _segments(directory: Path) -> list[Path]:
    return sorted(filter(is_segment, directory.iterdir())) if directory.is_dir() else []


def sort_files(files: Iterator[File] | list[File]) -> list[File]:
    return sorted(files, key=lambda file: (file.first is None, file.writer, file.seq, file.path.name))


def look(path: Path) -> File:
    with path.open("rb") as file:
        line = file.readline(chain.MAX_LINE)
        size = file.seek(0, 2)
    first = chain.read(line[:-1]) if line.endswith(b"\n") else None
    return File(path, first, size, load(line[:-1]) if first is not None else {})


def load(line: bytes | str) -> dict[str, Any]:
    """A record as JSON; empty where it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def load_sound(line: bytes) -> dict[str, Any]:
    """The same for readers that calculate with its times. Whoever may write the files could stop all of them by one
    line; `verify` says which."""
    record = load(line)
    seconds, time = record.get("seconds", 0.0), record.get("time", _ANY_TIME)
    try:
        datetime.fromisoformat(time[:19])
        is_sound = time[20:23].isdecimal() and 0 <= seconds < _MAX_SECONDS
    except (TypeError, ValueError):
        is_sound = False
    return record if is_sound else {}


@dataclass(frozen=True, slots=True)
class Torn:
    """Bytes at the end of a segment that are no part of the chain."""

    bytes: int
    hash: str


@dataclass(slots=True)
class Recovered:
    """`open` are the calls without an outcome, by id, with the sequence number of their intent. `has_signed`: it has
    the record that the newest checkpoint covers."""

    file: File | None = None
    head: ChainHead = START
    epoch: int = 0
    opened: str = ""
    torn: Torn | None = None
    key: str = ""
    open: dict[str, int] = field(default_factory=dict)
    has_signed: bool = False


def recover(path: Path, writer: str, newest: Checkpoint | None = None) -> Recovered:
    """The end of the chain of the writer whose newest file is `path`. `newest` is a checkpoint from outside of it."""
    files = [file for file in list_files(path.parent) if file.writer == writer]
    if not files:
        return Recovered(torn=_remainder(path, 0) if path.exists() else None)
    found = _scan(files[-1], newest)
    if newest is not None and newest.seq < files[-1].seq:
        found.has_signed = newest.seq < files[0].seq or holds(path.parent, newest)  # retention may have deleted it
    if files[-1].path != path and path.exists():  # cut while its first record was written
        found.torn = _remainder(path, 0)
    return found


def holds(directory: Path, signed: Checkpoint) -> bool:
    """Whether the log of its writer has the record that a checkpoint covers. Raises `OSError`."""
    files = [file for file in list_files(directory) if file.writer == signed.writer]
    file = next((file for file in reversed(files) if file.seq <= signed.seq), None)
    if file is None:
        return False
    with open_segment(file) as stream:
        while (line := stream.readline(chain.MAX_LINE)).endswith(b"\n"):
            if (link := chain.read(line[:-1])) is not None and link.seq == signed.seq:
                return chain.digest(line[:-1]) == signed.hash
    return False


def _scan(file: File, newest: Checkpoint | None) -> Recovered:
    found = Recovered(file)
    assert file.first is not None
    found.head, found.opened = ChainHead(file.first.seq - 1, file.first.prev), file.first.time
    end = 0
    with file.path.open("rb") as stream:
        while (line := stream.readline(chain.MAX_LINE)).endswith(b"\n"):
            link = chain.read(line[:-1])
            if link is None or link.seq != found.head.seq + 1 or link.prev != found.head.hash:
                break
            end += len(line)
            found.head, found.epoch = ChainHead(link.seq, chain.digest(line[:-1])), link.epoch
            if newest is not None and link.seq == newest.seq:
                found.has_signed = found.head.hash == newest.hash
            _note(found, link, line)
    found.torn = _remainder(file.path, end)
    return found


def _note(found: Recovered, link: Link, line: bytes) -> None:
    if link.type == "intent":
        found.open[link.call] = link.seq
    elif link.type == "outcome":
        found.open.pop(link.call, None)
    elif link.type == "admin":
        record = load(line)
        key, calls = record.get("key"), record.get("open")
        if isinstance(key, dict) and isinstance(key.get("id"), str):
            found.key = key["id"]
        if isinstance(calls, dict):
            found.open |= {id: seq for id, seq in calls.items() if isinstance(seq, int)}


def _remainder(path: Path, end: int) -> Torn | None:
    with path.open("rb") as stream:
        torn = rest_from(stream, end)
    return torn if torn.bytes else None


def rest_from(stream: BinaryIO, start: int) -> Torn:
    """What stands in a file from a place on."""
    size, hash = 0, sha256()
    stream.seek(start)
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        hash.update(chunk)
    return Torn(size, hash.hexdigest())
