"""Processes that a server started and that left its process group: they end with the server. Linux.

A child that forks twice and calls setsid(2) is in no group that we know, and its parent has gone. Sluice has the kernel
hand such orphans to it (PR_SET_CHILD_SUBREAPER, prctl(2)), so that they stay below it. Whose they are is said by their
parents, as long as these live, and by a variable that each server is started with (/proc/PID/environ, proc(5)). One
that has neither ends with Sluice itself. No other system has this: there only the process group ends.

Where Sluice itself was killed, what it had started is ended by the next Sluice of the same user: the variable
says which Sluice that was.

Orphans that ended are reaped here. Those that somebody in this process waits for are left to them: they are in our
session, or were started by `spawn`.
"""

import ctypes
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

log = logging.getLogger(__name__)

MARK: Final = "SLUICE_SERVER_PROCESS"
"""The variable; its value is another one at each start: `NAMESPACE.PID.STARTED.RANDOM`, of the Sluice that started it.
"""
GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL, and for SIGKILL."""
POLL: Final = 0.02
_PR_SET_CHILD_SUBREAPER: Final = 36
_EVERY: Final = 5.0
_MOST_COUNTED: Final = 2_000


class Stray(NamedTuple):
    """A process; numbers are used again, but not with the same time of start (clock ticks since boot)."""

    pid: int
    started: int


class _Status(NamedTuple):
    state: str
    session: int
    started: int


_lock: Final = threading.Lock()
_spawned: Final[set[int]] = set()


def spawn(command: Any, **settings: Any) -> "subprocess.Popen[bytes]":
    """`Popen`, whose end is for the caller to wait for and then to tell with `waited`."""
    with _lock:
        popen = subprocess.Popen(command, **settings)
        _spawned.add(popen.pid)
        return popen


def waited(pid: int) -> None:
    _spawned.discard(pid)


def new_mark() -> str:
    pid, status = os.getpid(), _status(os.getpid())
    return f"{_namespace(pid)}.{pid}.{status.started if status else 0}.{secrets.token_hex(8)}"


def forsaken() -> set[Stray]:
    """What a Sluice of this user has started that was killed: it runs, and that Sluice does not. Processes of other
    containers are not looked at: there the number of a process means another one. Nor is whoever has the variable from
    such a server's shell and is a Sluice, or runs this one."""
    here = _namespace(os.getpid())
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")] if here else []
    owners = {pid: owner for pid in pids if (owner := _owner(pid, here)) is not None}
    spared = {owner.pid for owner in owners.values() if _runs(owner)}.union(_with_parents(os.getpid()))
    return _running(pid for pid, owner in owners.items() if pid not in spared and not _runs(owner))


def _with_parents(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return


def _owner(pid: int, namespace: str) -> Stray | None:
    """The Sluice that started that process, by its variable."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        mark = next((one for one in variables if one.startswith(f"{MARK}=".encode())), b"").decode("ascii")
        there, owner, started, _ = mark.partition("=")[2].split(".")
        return Stray(int(owner), int(started)) if there == namespace == _namespace(pid) else None
    except (OSError, ValueError):
        return None


def _namespace(pid: int) -> str:
    """Where numbers of processes mean what they mean; empty where that cannot be told."""
    try:
        return str(os.stat(f"/proc/{pid}/ns/pid").st_ino)
    except OSError:
        return ""


def below(pids: Iterable[int]) -> list[int]:
    """These processes and all that descend from them, as long as their parents live."""
    found = list(pids)
    for pid in found:  # which grows meanwhile
        if len(found) > _MOST_COUNTED:
            break
        with suppress(OSError, ValueError):  # it has ended meanwhile
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def of_server(mark: str, pid: int | None = None) -> set[Stray]:
    """What the server that was started with that mark has started and what still runs, but for itself. `pid` is its
    process, if that has not been waited for: later the number may be another's."""
    marked = {one for one in below([os.getpid()])[1:] if _has_mark(one, mark)}
    return _running(marked if pid is None else marked.union(below([pid])) - {pid})


def adopted() -> set[Stray]:
    """Orphans that were handed to this process, and all below them."""
    return _running(below(_orphans()))


def _left(find: Callable[[], set[Stray]], known: set[Stray]) -> set[Stray]:
    """What is known and what is found, as far as it still runs."""
    return {one for one in known | find() | _running(below(one.pid for one in known)) if _runs(one)}


def end_in_steps(find: Callable[[], set[Stray]], found_before: Iterable[Stray] = ()) -> Iterator[None]:
    """Ends what is known and what is found, until nothing is. `POLL` seconds belong between two steps. They read many
    files: not for an event loop."""
    if sys.platform != "linux":
        return
    known = _left(find, set(found_before))
    for number in (signal.SIGTERM, signal.SIGKILL):
        give_up, signalled = time.monotonic() + GRACE, set[Stray]()
        while known and time.monotonic() < give_up:
            for one in known - signalled:
                _send(one, number)
            signalled |= known
            yield
            known = _left(set, known) or _left(find, known)  # to find all takes long where there are hundreds
    reap()


def end(find: Callable[[], set[Stray]], found_before: Iterable[Stray] = ()) -> None:
    """The same. Takes up to twice `GRACE`."""
    for _ in end_in_steps(find, found_before):
        time.sleep(POLL)


def end_forsaken() -> None:
    """Takes up to twice `GRACE`: not for an event loop."""
    if sys.platform == "linux" and (found := forsaken()):
        log.warning("servers of a Sluice that was killed still run, and are ended", extra={"count": len(found)})
        end(set, found)


def reap() -> None:
    """Takes the status of orphans that have ended, which nobody else waits for."""
    with _lock:
        for pid in _orphans():
            status = _status(pid)
            if status is not None and status.state == "Z":
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


@contextmanager
def adopting() -> Iterator[None]:
    """Orphans of servers are handed to this process, and the last of them ends with the block."""
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        yield
        return
    over = threading.Event()
    reaper = threading.Thread(target=_reap_until, args=[over], name="reaper", daemon=True)
    reaper.start()
    try:
        yield
    finally:
        over.set()
        reaper.join()
        end(adopted)


def _reap_until(over: threading.Event) -> None:
    while not over.wait(_EVERY):
        reap()


def _orphans() -> list[int]:
    """Our children that others started. What we start is in our session, or known; what a server starts is neither."""
    ours, children = os.getsid(0), list[int]()
    for tasks in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError):
            children += map(int, tasks.read_text().split())
    found = ((pid, _status(pid)) for pid in children if pid not in _spawned)
    return [pid for pid, status in found if status is not None and status.session != ours]


def _running(pids: Iterable[int]) -> set[Stray]:
    found = ((pid, _status(pid)) for pid in pids)
    return {Stray(pid, status.started) for pid, status in found if status is not None and status.state not in "ZX"}


def _runs(one: Stray) -> bool:
    status = _status(one.pid)
    return status is not None and status.started == one.started and status.state not in "ZX"


def _status(pid: int) -> _Status | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _Status(fields[0].decode(), int(fields[3]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _has_mark(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _send(one: Stray, number: signal.Signals) -> None:
    """By way of a descriptor, which cannot come to mean another process."""
    if sys.platform != "linux":
        return
    with suppress(OSError):  # it has ended, or belongs to another user
        handle = os.pidfd_open(one.pid)
        try:
            if _runs(one):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
