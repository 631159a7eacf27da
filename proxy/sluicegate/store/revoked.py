"""Client keys that were taken back: one line each in a file beside the other secrets, for every process to see.

A key is taken back by its hash, so that a new one may have its name; where the hash cannot be known (the config is
broken), by its name alone, for ever. Lines are only added. Knows no key and no config.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluicegate.store import private

FILE: Final = "revoked"
_TOLD: Final = 5  # numbers of lines: the note is in each answer of /readyz
_HINT: Final = ". Put that right, or delete it and revoke again what it may have named"

log = logging.getLogger(__name__)


class Revoked:
    """What the file of a state directory says. Raises `Exposed` where others may write it, and `OSError` where it, or a
    line of it, cannot be read: which keys would be let in is not known."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._mark: tuple[int, int, int] | None = None
        self._hashes: frozenset[str] = frozenset()
        self._names: frozenset[str] = frozenset()
        self.problem = ""
        """Why a key that was revoked may be good: what of a file, which changed since the start, cannot be read."""
        if self._path.exists():
            private.check(self._path, private.FILE)
            self.look()
            if self.problem:
                raise OSError(f"{self.problem}{_HINT}")

    def has(self, name: str, hash: str) -> bool:
        return hash in self._hashes or name in self._names

    def look(self) -> bool:
        """Whether it says something new. What was taken back stays so, even if the file has gone."""
        try:
            stat = self._path.stat()
            mark = stat.st_size, stat.st_mtime_ns, stat.st_ino
            if mark == self._mark:
                return False
            text = self._path.read_bytes()
        except OSError as error:
            self._mark = None
            self._tell("" if isinstance(error, FileNotFoundError) else "it")
            return False
        self._mark = mark
        read = [(number, _entry(line)) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        bad = [number for number, entry in read if entry is None]
        more = f" and {len(bad) - _TOLD} more" if len(bad) > _TOLD else ""
        which = f"line{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad[:_TOLD]))}{more}"
        self._tell(which if bad else "")
        return self.take(entry for _, entry in read if entry is not None)

    def take(self, entries: Iterable[tuple[str, str | None]]) -> bool:
        """Takes names and hashes. Whether they say something new."""
        before = self._hashes, self._names
        found = list(entries)
        self._hashes |= {hash for _, hash in found if hash}
        self._names |= {name for name, hash in found if not hash}
        return before != (self._hashes, self._names)

    def _tell(self, what: str) -> None:
        before, self.problem = self.problem, ""
        if what:
            self.problem = f"{self._path}: a key that was revoked may be good: {what} cannot be read"
            if self.problem != before:
                log.error(self.problem)


def _entry(line: bytes) -> tuple[str, str | None] | None:
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        entry = json.loads(line)
        name, hash = entry["name"], entry["hash"]
        return (name, hash) if isinstance(name, str) and isinstance(hash, str | None) else None
    return None


def revoke(directory: Path, name: str, hash: str | None) -> None:
    """On return it survives a power cut. Raises `OSError`, also where the disk took a part of it alone, and `Exposed`
    where the directory is another user's."""
    private.make_directory(directory)
    private.check(directory, private.DIRECTORY)  # or Sluice could not read the file of another user
    private.append(directory / FILE, entry(name, hash) + b"\n")


def entries(directory: Path) -> Iterator[tuple[str, str | None, bytes]]:
    """Name, hash and line of each. Raises `OSError` where the file, or a line of it, cannot be read."""
    path = directory / FILE
    if path.exists():
        private.check(path, private.FILE)
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if not line.strip():
                continue
            if (found := _entry(line)) is None:
                raise OSError(f"{path}: a key that was revoked may be good: line {number} cannot be read{_HINT}")
            yield *found, line


def entry(name: str, hash: str | None) -> bytes:
    return json.dumps({"name": name, "hash": hash, "at": int(time.time())}, ensure_ascii=True).encode("ascii")
