"""One file of the log while it is written to: bytes in, on the disk, and still the file that its name means. And its
end, when it is older than the log is kept.

Every failure is an `OSError`, after which the segment must not be used again: what a failed write leaves on the
disk nobody knows. Runs in the writer's thread; knows no record.
"""

import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from sluicegate.audit import chain, record_templates
from sluicegate.audit.chain import Link
from sluicegate.audit.recover import list_files
from sluicegate.audit.settings import sync_directory
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import private

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
# fdatasync writes the size, too, where it has changed; not every system has it.
_sync = getattr(os, "fdatasync", os.fsync)
# With O_DSYNC one system call does what write and fdatasync do. So the thread waits only once for the disk and the
# interpreter's lock. On other systems O_DSYNC may guarantee less.
_THROUGH: Final = os.O_DSYNC if sys.platform == "linux" else 0


class Segment:
    """`first` is the sequence number of its first record, `opened` when that was written (seconds, UTC). `is_durable`:
    what was written is on the disk."""

    __slots__ = ("_fd", "_identity", "_is_durable", "first", "opened", "path", "size")

    def __init__(self, path: Path, flags: int, first: int, opened: float, is_durable: bool) -> None:
        self.path, self.first, self.opened, self._is_durable = path, first, opened, is_durable
        self._fd = os.open(path, _FLAGS | flags | (_THROUGH if is_durable else 0), private.FILE)
        status = os.fstat(self._fd)
        self._identity, self.size = (status.st_dev, status.st_ino), status.st_size

    @classmethod
    def create(cls, path: Path, first: int, opened: float, *, is_durable: bool) -> "Segment":
        """A new file, which must not exist; its name is not durable yet."""
        return cls(path, os.O_CREAT | os.O_EXCL, first, opened, is_durable)

    @classmethod
    def resume(cls, path: Path, first: int, opened: float, *, is_durable: bool) -> "Segment":
        """An existing file, to go on at its end; of what is in it nobody knows whether it is durable. Raises `Exposed`
        where others may use it."""
        private.check(path, private.FILE)
        return cls(path, 0, first, opened, is_durable)

    def check(self) -> None:
        """Whatever is appended now can be found under the name; a removed or renamed log is a failure."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path.name} was removed or renamed") from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise FileNotFoundError(f"{self.path.name} was replaced by another file")
        if status.st_size != self.size:
            raise OSError(f"{self.path.name} was changed by somebody else")

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += len(data)
        if self._is_durable and not _THROUGH:
            self.sync()

    def sync(self) -> None:
        """For what is not durable, whoever wrote it."""
        _sync(self._fd)

    def sync_name(self) -> None:
        sync_directory(self.path.parent)

    def close(self) -> None:
        os.close(self._fd)


def retire(path: Path, first: int) -> Path:
    """Give a segment that is full or closed its final name; the sequence number makes names sort as records do."""
    name = f"{path.name}.{first:012d}"
    target = path.with_name(name)
    for number in range(1, 10_000):
        if not os.path.lexists(target):
            break
        target = path.with_name(f"{name}-{number}")
    os.rename(path, target)
    sync_directory(path.parent)
    return target


# ---------------------------------------------------------------- retention


CHECKPOINTS: Final = ".checkpoints"  # beside the log; no segment, so that nobody reads it as one


@dataclass(frozen=True, slots=True)
class Old:
    """A segment that may go, if `following` is signed, the record that says when it ended. `hash` is of its last."""

    path: Path
    writer: str
    first: int
    last: int
    hash: str
    following: Link

    def to_json(self) -> Json:
        return {"file": self.path.name, "first": self.first, "last": self.last, "hash": self.hash}


def find_old(path: Path, writer: str, before: float, delivered: int | None = None) -> list[Old]:
    """Segments, oldest first, all of whose records were written before that second, and which every sink has. Only
    whole ones at the beginning of a chain, never the one that is written to. What goes is recorded, durable and signed,
    before its file is deleted: whoever may write the files can delete some and add a line, but not sign that."""
    files = [file for file in list_files(path.parent) if file.writer == writer]
    found: list[Old] = []
    for file, following in pairwise(files):
        after = following.after
        if after is None or following.first is None or record_templates.seconds(following.first.time) >= before:
            break
        if after.seq >= following.seq or (delivered is not None and following.seq - 1 > delivered):
            break
        found.append(Old(file.path, writer, file.seq, after.seq, after.hash, following.first))
    return found


def delete(path: Path, old: Old) -> None:
    """The file is gone when this returns; its checkpoints are appended to the ones kept."""
    signed = path.with_name(f"{old.writer}{CHECKPOINTS}")
    with open(signed, "ab", opener=_private) as target, old.path.open("rb") as source:
        while line := source.readline(chain.MAX_LINE):
            link = chain.read(line[:-1])
            if link is not None and link.type == "checkpoint":
                target.write(line)
    old.path.unlink()
    sync_directory(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, private.FILE)
