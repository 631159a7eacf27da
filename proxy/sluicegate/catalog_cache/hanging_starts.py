"""Which servers hang at their start, in this run or in the last one: no list waits for those."""

from typing import Final

import anyio

from sluicegate.catalog_cache.snapshot_store import SnapshotStore
from sluicegate.protocol.model import McpServer


class HangingStarts:
    def __init__(self, kept: SnapshotStore) -> None:
        self._kept: Final = kept
        self._hung: set[str] = set()

    def hangs(self, server: McpServer) -> bool:
        """It is past the time for a start, or was at its last one, and has not listed since."""
        return server.status == "starting" and (server.key in self._hung or server.start_left <= 0)

    async def recall(self, server: McpServer) -> None:
        if await self._kept.has_hung(server):  # also of one that is up by now: its list takes the mark away
            self._hung.add(server.key)

    async def wait(self, server: McpServer) -> None:
        """Until its first start has ended, well or badly. That it hangs is remembered for the next run."""
        if server.status == "starting":
            with anyio.move_on_after(server.start_left):
                return await server.ready(is_needed=True)
            self._hung.add(server.key)
            await self._kept.note_hung(server, is_hung=True)
        await server.ready(is_needed=True)

    async def listed(self, server: McpServer) -> None:
        if server.key in self._hung:
            self._hung.discard(server.key)
            await self._kept.note_hung(server, is_hung=False)
