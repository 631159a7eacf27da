"""How many files this process may have open: its sockets, the pipes of its servers, the audit log, its state."""

import sys
from typing import Final

if sys.platform != "win32":
    import resource

_WANTED: Final = 65_536
_WINDOWS: Final = 8_192
_OWN: Final = 32
"""Log, state, pipes, and connections to servers: where few files are allowed, connections of clients took all."""


def raise_limit() -> int:
    """Takes as many as the system lets us take, 65,536 at most; how many of them connections to our ports may share."""
    allowed = _raise_limit()
    return max(allowed - _OWN, allowed // 2)


def _raise_limit() -> int:
    if sys.platform == "win32":
        return _WINDOWS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
