"""Which step of the event loop it is: what one step does is bounded, and no clock proves that on a busy machine."""

import asyncio


class Steps:
    """Counts the steps of the running event loop."""

    def __init__(self) -> None:
        self.now = 0
        self._loop = asyncio.get_running_loop()
        self._count()

    def _count(self) -> None:
        self.now += 1
        self._handle = self._loop.call_soon(self._count)

    def stop(self) -> None:
        self._handle.cancel()


class QuietSteps:
    """Numbers the steps in which somebody looks. The loop has its idle moments, as whoever waits for one needs."""

    def __init__(self) -> None:
        self._now = 0
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    @property
    def now(self) -> int:
        if self._handle is None:
            self._handle = self._loop.call_soon(self._count)
        return self._now

    def _count(self) -> None:
        self._now += 1
        self._handle = None
