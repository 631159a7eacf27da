"""Intents that a sink must have, too, before their calls go on: on the event loop, beside the thread of that sink.

The sink gets the records that the log has by then in one batch. All calls whose intent is in it go on together. While
the sink is down, these calls are refused at once, as with a full disk. If it hangs, they are refused after `WITHIN`.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import anyio

from sluicegate.audit.sinks import AuditSink

WITHIN: Final = 5.0
"""Seconds that a call waits for the sink."""


class SinkConfirmation:
    """`classes` are those of the calls that wait."""

    def __init__(self, sink: AuditSink, classes: Iterable[str]) -> None:
        self.sink, self.classes = sink, tuple(classes)
        self.refused = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[bool], int] = {}
        sink.told = self._tell

    @property
    def problem(self) -> str:
        if not self.sink.is_down:
            return ""
        return f"the audit sink {self.sink.name} confirms nothing: calls that {' or '.join(self.classes)} are refused"

    def awaits(self, class_: str) -> bool:
        """Whether calls of this class wait. Empty: nobody knows what the call does, so that it waits."""
        return not class_ or class_ in self.classes

    async def has(self, seq: int) -> bool:
        """Whether the sink has the record of that number; waits for it."""
        if self.sink.arrived >= seq or await self._waited(seq):
            return True
        self.refused += 1
        return False

    async def _waited(self, seq: int) -> bool:
        if self.sink.is_down:
            return False
        done: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[done] = seq
        self.sink.ring()
        try:
            with anyio.move_on_after(WITHIN):
                return await done
            return False
        finally:
            self._waiting.pop(done, None)

    def _tell(self) -> None:
        """In the sink's thread."""
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        for done, seq in self._waiting.items():
            if not done.done() and (self.sink.arrived >= seq or self.sink.is_down):
                done.set_result(self.sink.arrived >= seq)
