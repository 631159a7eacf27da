"""Changes of clients' files that can be undone: each is in a journal before it is made, with what was there before.

The journal of a client is a file in `state.dir/desktop`, for its owner alone: a client's file may hold secrets.
"""

import base64
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from sluicegate.desktop.edit import CannotEdit, edited
from sluicegate.desktop.read import NotAClientConfig, parse
from sluicegate.desktop.read import is_sluice as is_sluice
from sluicegate.store import private

NAME = "sluice"


class Changed(Exception):
    """A file is not what it was a moment ago."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """Of one file. `before` is None where there was none; `moved` are the client's entries that were taken out."""

    path: str
    root: str
    before: bytes | None = field(repr=False)
    after: bytes = field(repr=False)
    mode: int
    moved: dict[str, Any] = field(repr=False)
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class Journal:
    """What was changed in the files of one client, the oldest first."""

    def __init__(self, state: Path, client: str) -> None:
        self._file = state / "desktop" / f"{client}.json"

    def written_at(self) -> float | None:
        """None also where this user may not look."""
        try:
            return self._file.stat().st_mtime
        except OSError:
            return None

    def changes(self) -> list[FileChange]:
        """Raises `OSError`, and `Changed` where the journal is not as it was written."""
        try:
            private.check(self._file, private.FILE)
            rows = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return []
        except ValueError:
            raise Changed(f"{self._file} cannot be read") from None
        return [self._change(row) for row in rows]

    def _change(self, row: dict[str, Any]) -> FileChange:
        hashes = row.pop("sha256")
        for name in ("before", "after"):
            row[name] = None if row[name] is None else base64.b64decode(row[name])
        if hashes != [_hash(row["before"]), _hash(row["after"])]:
            raise Changed(f"{self._file} was edited")
        return FileChange(**row)

    def write(self, changes: Iterable[FileChange]) -> None:
        rows = []
        for one in changes:
            texts = {
                name: None if data is None else base64.b64encode(data).decode("ascii")
                for name, data in (("before", one.before), ("after", one.after))
            }
            rows.append(asdict(one) | texts | {"sha256": [_hash(one.before), _hash(one.after)]})
        if not rows:
            self._file.unlink(missing_ok=True)
            return
        private.make_directory(self._file.parent)
        private.write(self._file, json.dumps(rows).encode("ascii"), replace=True)


def _hash(data: bytes | None) -> str:
    return "" if data is None else sha256(data).hexdigest()


def contents(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def require_writable(path: Path) -> None:
    """Raises `PermissionError` where a change would fail, or where the file is marked as read-only."""
    target = path.resolve()
    if target.exists() and not target.stat().st_mode & 0o222:
        raise PermissionError(errno.EACCES, "the file is read-only")
    folder = next(one for one in target.parents if one.exists())
    if not all(os.access(one, os.W_OK) for one in (target, folder) if one.exists()):
        raise PermissionError(errno.EACCES, "you may not write there")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777 if path.exists() else private.FILE


def make(change: FileChange, journal: Journal) -> None:
    """Notes it, then makes it. Raises `Changed` if the file is not as it was when the change was planned."""
    path = Path(change.path)
    if contents(path) != change.before:
        raise Changed(f"{path} was changed meanwhile: run the command again")
    journal.write([*journal.changes(), change])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, change.after, change.mode)


def plan_of(steps: Sequence[FileChange]) -> str:
    """What undoing them all will do to the file, in words."""
    found = contents(Path(steps[-1].path))
    if found is None:
        return "is gone: nothing is written"
    for at, step in reversed([*enumerate(steps)]):
        if found not in (step.after, step.before):
            back = ", ".join(_coming_back(found, steps[: at + 1]))
            return f"was edited since: {NAME} goes, your edits stay{f', these come back: {back}' if back else ''}"
        found = step.before
    return "is removed, as it was not there before" if found is None else "becomes what it was before, byte for byte"


def _coming_back(found: bytes | None, steps: Sequence[FileChange]) -> list[str]:
    """The moved entries that the file does not have by then: one that is there again is an edit, and stays."""
    names = list(dict.fromkeys(name for one in steps for name in one.moved))
    try:
        document = parse(found, Path(steps[-1].path).suffix.lower()) if found and found.strip() else None
    except NotAClientConfig:  # `undo` says so
        return names
    servers = (document or {}).get(steps[-1].root) or {}
    there = servers.keys() - {NAME} if is_sluice(servers.get(NAME)) else servers.keys()
    return [name for name in names if name not in there]


def undo(change: FileChange) -> str:
    """Makes the file what it was before, or, where it was edited since, takes Sluice out of it and puts the entries
    back that were moved. What was done, in words. Raises `CannotEdit`."""
    path = Path(change.path)
    require_writable(path)
    found = contents(path)
    if found == change.before:
        return "is as it was"
    if found is None:
        return "is gone: nothing was written"
    if found == change.after:
        if change.before is None:
            path.unlink()
            return "is removed, as it was not there before"
        replace(path, change.before, change.mode)
        return "is as it was, byte for byte"
    try:
        document = parse(found, path.suffix.lower()) if found.strip() else {}
    except NotAClientConfig as error:
        raise CannotEdit(f"it cannot be read: {error}") from None
    servers = (document or {}).get(change.root) or {}
    ours = frozenset({NAME} if is_sluice(servers.get(NAME)) else ())
    back = {name: entry for name, entry in change.moved.items() if name not in servers.keys() - ours}
    replace(path, edited(found, path.suffix.lower(), change.root, ours, back), mode_of(path))
    return "was edited since: Sluice is taken out" + (f", and put back: {', '.join(back)}" if back else "")


def take_out(path: Path, root: str) -> bool:
    """Removes the entry of Sluice that no journal knows; whether there was one. Raises `CannotEdit`."""
    found = contents(path)
    if found is None or not is_sluice(entry(found, path.suffix.lower(), root)):
        return False
    replace(path, edited(found, path.suffix.lower(), root, frozenset({NAME}), {}), mode_of(path))
    return True


def entry(data: bytes, suffix: str, root: str) -> Any:
    """That of the name `sluice`, whatever it is; None without one. Raises `NotAClientConfig`."""
    document = parse(data, suffix) if data.strip() else None
    section = document.get(root) if isinstance(document, dict) else None
    return section.get(NAME) if isinstance(section, dict) else None


def replace(path: Path, data: bytes, mode: int) -> None:
    """In one step; through a symbolic link, its target. Raises `Changed` where something else is there afterwards."""
    private.write(path.resolve(), data, replace=True, mode=mode)
    if contents(path) != data:
        raise Changed(f"{path} has other contents than were written: a client that runs may have replaced it")


def running(names: Iterable[str]) -> list[int]:
    """The ids of processes that have one of these names. Empty on Windows, where they are not looked for."""
    wanted = set(names)
    if sys.platform == "win32":
        return []
    if Path("/proc/self/comm").exists():
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text("utf-8", "replace").strip() in wanted:
                    found.append(int(process.name))
            except OSError:
                continue  # it ended
        return sorted(found)
    listed = subprocess.run(["/bin/ps", "-axco", "pid=,comm="], capture_output=True, text=True, check=False).stdout
    rows = (line.split(maxsplit=1) for line in listed.splitlines())
    return sorted(int(row[0]) for row in rows if len(row) == 2 and row[1].strip() in wanted)


def began_before(process: int, moment: float) -> bool:
    """Whether a process is older; False where there is no /proc, and where it has ended."""
    try:
        uptime = float(Path("/proc/uptime").read_text("ascii").split()[0])
        began = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except OSError:
        return False
    return time.time() - uptime + int(began) / os.sysconf("SC_CLK_TCK") < moment
