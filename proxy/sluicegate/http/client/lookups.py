"""Looks up host names, each in a thread of its own: a silent name server delays only its own lookups.

The system's call holds a thread for as long as no name server answers, 10 to 30 seconds, whatever its caller's patience
is. The event loop has four threads for it: whoever names a few such hosts would keep everybody from connecting. So each
lookup has a thread of its own. One host is looked up once for all who wait, and few at once that others named.
"""

import asyncio
import socket
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import anyio.lowlevel

from sluicegate.http.addresses import is_literal

AT_ONCE: Final = 32
NAMED_AT_ONCE: Final = 16
"""Lookups at once of hosts that clients named, and as many for each issuer and each login. More wait."""

Info = tuple[int, int, int, str, tuple[Any, ...]]
_Found = Sequence[Info] | OSError | UnicodeError


class _Lookups:
    """Those of one event loop. A place is free again when its thread ends, even if its caller gave up earlier."""

    def __init__(self) -> None:
        self.running: dict[tuple[str, int], asyncio.Future[_Found]] = {}
        self._places = defaultdict(lambda: asyncio.Semaphore(NAMED_AT_ONCE), {"": asyncio.Semaphore(AT_ONCE)})

    async def find(self, host: str, port: int, named_by: str) -> _Found:
        key = host.lower(), port
        if (future := self.running.get(key)) is None:
            places = self._places[named_by]
            await places.acquire()
            if (future := self.running.get(key)) is None:
                future = self._start(key, places)
            else:
                places.release()  # somebody was first meanwhile
        return await asyncio.shield(future)

    def _start(self, key: tuple[str, int], places: asyncio.Semaphore) -> asyncio.Future[_Found]:
        loop = asyncio.get_running_loop()
        future = self.running[key] = loop.create_future()

        def end(found: _Found) -> None:
            places.release()
            del self.running[key]
            future.set_result(found)

        def run() -> None:
            found: _Found = OSError("the lookup broke off")
            try:
                found = _ask(*key)
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(end, found)

        try:
            threading.Thread(target=run, name="lookup", daemon=True).start()
        except RuntimeError as full:  # as many as the system permits
            end(OSError(str(full)))
        return future


def _ask(host: str, port: int) -> _Found:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return error


_lookups: Final = anyio.lowlevel.RunVar[_Lookups]("lookups")


async def look_up(host: str, port: int, named_by: str = "") -> Sequence[Info]:
    """The addresses of a host, as `getaddrinfo` gives them. `named_by` is what kind of peer named it, empty for the
    operator. Raises `OSError` and `UnicodeError`."""
    if is_literal(host):  # nobody is asked
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        lookups = _lookups.get()
    except LookupError:
        lookups = _Lookups()
        _lookups.set(lookups)
    found = await lookups.find(host, port, named_by)
    if isinstance(found, Exception):
        raise found.with_traceback(None)  # each of those who wait would add to it
    return found
