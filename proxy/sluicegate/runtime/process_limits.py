"""What this process may have: open files, and heaps of the C library. Knows the system, and nothing of Sluice."""

import ctypes
import os
import sys
from contextlib import suppress
from typing import Final

if sys.platform != "win32":
    import resource

_WANTED: Final = 65_536
_WINDOWS: Final = 8_192
_OWN: Final = 32
"""Log, state, pipes, and connections to servers: where few files are allowed, connections of clients took all."""
_M_ARENA_MAX: Final = -8  # malloc.h
_HEAPS: Final = 2


def raise_open_files() -> int:
    """Takes as many as the system lets us take, 65,536 at most; how many of them connections to our ports may share."""
    allowed = _raise_open_files()
    return max(allowed - _OWN, allowed // 2)


def _raise_open_files() -> int:
    if sys.platform == "win32":
        return _WINDOWS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def share_heaps() -> None:
    """Lets all threads share two heaps, unless `MALLOC_ARENA_MAX` says otherwise. glibc would make up to eight a core,
    and each keeps the most that its threads ever needed: 29 MiB, free, after 16 minutes of the soak. Threads of Python
    take turns, so that nobody waits for a heap."""
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError):  # musl has one
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
