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
