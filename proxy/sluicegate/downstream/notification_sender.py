"""What an HTTP server is told without anybody waiting for it: notifications, answers to its questions.

Bounded in number and time. Knows no transport.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream.settings import Lost

TIME: Final = 10.0
MOST: Final = 64
"""At once: a server that asks faster than it reads is not answered."""

log = logging.getLogger(__name__)


class NotificationSender:
    """Sends whole messages one after the other; what one call hands over stays in order."""

    def __init__(self, server: str, group: TaskGroup, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._server, self._group, self._send = server, group, send
        self._busy = 0

    def __repr__(self) -> str:
        return f"NotificationSender({self._server}, {self._busy} at once)"

    def __call__(self, *bodies: bytes) -> None:
        if self._busy < MOST:
            self._busy += 1
            self._group.start_soon(self._tell, bodies)

    async def _tell(self, bodies: tuple[bytes, ...]) -> None:
        try:
            with anyio.move_on_after(TIME):
                for body in bodies:
                    await self._send(body)
        except Lost as error:
            log.debug("server could not be told", extra={"server": self._server, "why": error.text})
        finally:
            self._busy -= 1
