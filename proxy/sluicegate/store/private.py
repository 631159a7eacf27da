"""Directories and files that only their owner may read, and locks on them.

Made with the narrow mode from the first moment on (never widened, never "fixed" afterwards): what was
readable for a while may have been read, so that a wider mode is an error for a person to look at.
"""

import os
import secrets
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

DIRECTORY = 0o700
FILE = 0o600


class Exposed(PermissionError):
    """Others may reach what only the owner should. The text says which path and what to do."""


def make_directory(path: Path) -> None:
    """Make the directory, and every missing one above it, 0700 (as the XDG base directory specification has it).
    What is there is left as it is; see `check`."""
    for missing in (*reversed(path.parents), path):
        if not missing.is_dir():
            missing.mkdir(mode=DIRECTORY, exist_ok=True)


def check(path: Path, mode: int) -> None:
    """Raises `Exposed` if the path has any permission beyond `mode` or belongs to another user."""
    if os.name != "posix":  # modes say nothing there; the user's profile is the border
        return
    status = path.stat()
    if status.st_uid != os.geteuid():
        uid, ours = status.st_uid, os.geteuid()
        run = f"run this as uid {uid}, or " if uid else ""
        raise Exposed(f"{path} belongs to another user (uid {uid}): {run}give it to uid {ours}")
    if extra := status.st_mode & 0o777 & ~mode:
        raise Exposed(
            f"{path} may be used by others (mode {status.st_mode & 0o777:04o}, {extra:04o} too much): "
            f"if nobody can have read it, run: chmod {mode:04o} {path}; else delete it, Sluice makes a new one"
        )


def write(path: Path, data: bytes, *, replace: bool, mode: int = FILE) -> bool:
    """Write a 0600 file that appears whole or not at all, unless a wider `mode` is its owner's wish. False if it exists
    and `replace` is off."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode != FILE:
            scratch.chmod(mode)
        if replace:
            os.replace(scratch, path)
            return True
        try:
            os.link(scratch, path)  # unlike a rename it fails if another process was first
        except FileExistsError:
            return False
        return True
    finally:
        scratch.unlink(missing_ok=True)


def append(path: Path, lines: bytes) -> None:
    """Adds lines to a 0600 file, made where there is none. On return they survive a power cut. Raises `OSError`, also
    where the disk took a part of them alone: whoever adds the next ones ends that line first."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, FILE)
    try:
        left = lines
        if os.fstat(opened).st_size > 0:
            os.lseek(opened, -1, os.SEEK_END)
            left = lines if os.read(opened, 1) == b"\n" else b"\n" + lines
        while left:
            left = left[os.write(opened, left) :]
        os.fsync(opened)
    finally:
        os.close(opened)


def lock(opened: int, *, wait: bool = False) -> bool:
    """Whether an open file or directory is locked for this process now, until it is closed. The lock is the system's
    and ends with its process, however that ends."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if wait:
            raise
        return False
    return True


def take_lock(path: Path) -> int | None:
    """A file, made where there is none, open and locked for this process until it is closed; None if another process
    holds it."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT, FILE)
    if lock(opened):
        return opened
    os.close(opened)
    return None
