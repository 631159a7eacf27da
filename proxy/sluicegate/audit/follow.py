"""Reading a log while it grows: one writer's lines in order, over rotations, from any sequence number on.

Knows files and the chain's line prefix; not what records say. Gives a line only when it is whole.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sluicegate.audit import chain
from sluicegate.audit.chain import Link
from sluicegate.audit.recover import File, list_files, open_segment


class Follower:
    """Lines of one writer after `seq`. `read` returns what is there now; call it again later for more."""

    def __init__(self, directory: Path, writer: str, seq: int = 0) -> None:
        self.writer, self.seq = writer, seq
        self._directory = directory
        self._stream: BinaryIO | None = None
        self._first = 0
        self._end: int | None = None  # where the segment's part of the chain ends, if a failure made it end there

    def read(self, limit: int = 1_000) -> list[tuple[Link, bytes]]:
        """At most `limit` records, each with its line, without the break."""
        found: list[tuple[Link, bytes]] = []
        while len(found) < limit:
            if self._stream is None and not self._open():
                break
            entry = self._next()
            if entry is None:
                if self._is_current():
                    break
                entry = self._next()  # what was written to it between the two looks
            if entry is not None:
                found.append(entry)
            elif not self._open():
                break
        return found

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _next(self) -> tuple[Link, bytes] | None:
        stream = self._stream
        assert stream is not None
        while True:
            start = stream.tell()
            line = stream.readline(chain.MAX_LINE)
            if not line.endswith(b"\n"):
                stream.seek(start)  # not whole yet
                return None
            link = chain.read(line[:-1])
            if link is None or link.writer != self.writer or (self._end is not None and link.seq > self._end):
                continue
            if link.seq > self.seq:
                self.seq = link.seq
                return link, line[:-1]

    def _is_current(self) -> bool:
        """Whether what is open is the file that is written to: a glance, for this is asked again and again."""
        assert self._stream is not None
        path = self._stream.name
        try:
            return path.endswith(".jsonl") and os.path.samestat(os.stat(path), os.fstat(self._stream.fileno()))
        except FileNotFoundError:
            return False

    def _open(self) -> bool:
        """Goes on to the segment that holds what follows; False where there is no other one."""
        files = [file for file in list_files(self._directory) if file.writer == self.writer]
        file = self._choose(files)
        if file is None:
            return False
        self.close()
        try:
            self._stream, self._first = open_segment(file), file.seq
        except FileNotFoundError:  # deleted since it was listed
            return False
        following = next((later for later in files if later.seq > file.seq), None)
        after = following.after if following is not None and "loss" in following.opening else None
        self._end = after.seq if after is not None else None
        return True

    def _choose(self, files: list[File]) -> File | None:
        begun = [file for file in files if file.seq <= self.seq + 1]
        later = [file for file in files if file.seq > self.seq + 1]
        if self._stream is None:
            return begun[-1] if begun else later[0] if later else None
        newer = [file for file in files if file.seq > self._first]
        return newer[0] if newer else None


def writers(directory: Path) -> list[str]:
    return sorted({file.writer for file in list_files(directory)} - {""})


def lines(directory: Path, writer: str) -> Iterator[tuple[Link, bytes]]:
    """Everything one writer has written, as the files say it now."""
    follower = Follower(directory, writer)
    try:
        while batch := follower.read():
            yield from batch
    finally:
        follower.close()
