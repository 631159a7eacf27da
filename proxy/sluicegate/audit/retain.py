"""Retention: old segments go, their checkpoints stay, and the log itself says what went.

Only whole segments at the beginning of a chain, never the one that is written to. The record of it is durable and
signed before the file is deleted: whoever may write the files can delete some and add a line, but not sign that.
"""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from sluicegate.audit import chain, record_templates
from sluicegate.audit.recover import list_files
from sluicegate.audit.settings import sync_directory
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store import private

KEPT: Final = ".checkpoints"  # beside the log; no segment, so that nobody reads it as one


@dataclass(frozen=True, slots=True)
class Old:
    """A segment that may go. `hash` is that of its last record."""

    path: Path
    writer: str
    first: int
    last: int
    hash: str

    def to_json(self) -> Json:
        return {"file": self.path.name, "first": self.first, "last": self.last, "hash": self.hash}


def find_old(path: Path, writer: str, before: float, delivered: int | None = None) -> list[Old]:
    """Segments, oldest first, all of whose records were written before that second, and which every sink has."""
    files = [file for file in list_files(path.parent) if file.first is not None and file.first.writer == writer]
    found: list[Old] = []
    for file, following in pairwise(files):
        after = following.after
        if after is None or following.first is None or record_templates.seconds(following.first.time) >= before:
            break
        if delivered is not None and following.seq - 1 > delivered:
            break
        found.append(Old(file.path, writer, file.seq, after.seq, after.hash))
    return found


def delete(path: Path, old: Old) -> None:
    """The file is gone when this returns; its checkpoints are appended to the ones kept."""
    kept = path.with_name(f"{old.writer}{KEPT}")
    with open(kept, "ab", opener=_private) as target, old.path.open("rb") as source:
        while line := source.readline(chain.MAX_LINE):
            place = chain.read(line[:-1])
            if place is not None and place.type == "checkpoint":
                target.write(line)
    old.path.unlink()
    sync_directory(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, private.FILE)
