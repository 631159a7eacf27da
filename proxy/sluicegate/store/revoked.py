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

log = logging.getLogger(__name__)


class Revoked:
    """What the file of a state directory says. Raises `Exposed` where others may write it, and `OSError` where nobody
    can read it: which keys would be let in is not known."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._mark: tuple[int, int, int] | None = None
        self._hashes: frozenset[str] = frozenset()
        self._names: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}  # by place: what of it cannot be read, in words
        if self._path.exists():
            private.check(self._path, private.FILE)
            self.look()
            if self._mark is None:
                raise OSError(f"{self._path} cannot be read: Sluice does not know which keys are revoked")

    @property
    def problem(self) -> str:
        """Why a key that was revoked may be good; empty where all can be read."""
        return "; ".join(self._problems.values())

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
        except FileNotFoundError:
            self._mark = None
            self._problems.pop(str(self._path), None)
            return False
        except OSError as error:
            log.error("revoked keys cannot be read", extra={"path": str(self._path), "error": error.strerror})
            return False
        self._mark = mark
        return self.take(text.splitlines(), str(self._path), "line")

    def take(self, lines: Iterable[bytes], place: str = "the store", unit: str = "row") -> bool:
        """Whether they say something new. They are all that the place has."""
        before = self._hashes, self._names
        read = [_entry(line) for line in lines]
        self._tell(place, unit, [number for number, entry in enumerate(read, 1) if entry is None])
        found = [entry for entry in read if entry is not None]
        self._hashes |= {hash for _, hash in found if isinstance(hash, str)}
        self._names |= {name for name, hash in found if not isinstance(hash, str) and isinstance(name, str)}
        return before != (self._hashes, self._names)

    def _tell(self, place: str, unit: str, bad: list[int]) -> None:
        before = self._problems.pop(place, "")
        if not bad:
            return
        more = f" and {len(bad) - _TOLD} more" if len(bad) > _TOLD else ""
        which = f"{unit}{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad[:_TOLD]))}{more}"
        problem = f"{place}: a key that was revoked may be good: {which} cannot be read"
        self._problems[place] = problem
        if problem != before:
            log.error(problem)


def _entry(line: bytes) -> tuple[object, object] | None:
    with suppress(ValueError, KeyError, TypeError):
        entry = json.loads(line)
        return entry["name"], entry["hash"]
    return None


def revoke(directory: Path, name: str, hash: str | None) -> None:
    """On return it survives a power cut. Raises `OSError`, also where the disk took a part of it alone."""
    private.make_directory(directory)
    private.append(directory / FILE, entry(name, hash) + b"\n")


def entries(directory: Path) -> Iterator[tuple[str, str | None, bytes]]:
    """Name, hash and line of each that can be read. Raises `OSError` where there is a file that cannot."""
    path = directory / FILE
    if path.exists():
        private.check(path, private.FILE)
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, KeyError, TypeError):
                found = json.loads(line)
                yield str(found["name"]), found["hash"], line


def entry(name: str, hash: str | None) -> bytes:
    return json.dumps({"name": name, "hash": hash, "at": int(time.time())}, ensure_ascii=True).encode("ascii")
