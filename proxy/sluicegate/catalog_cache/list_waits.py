"""Who waits how long for lists that are still on their way, and for which servers nobody does.

Knows walks as tasks, and servers by how they are doing.

A stored list is shown while its server starts, so only a server that is up is waited for then, and only for a moment.
Without one it depends on who asks. A client on stdio may keep its first list for ever: it waits for every server that
is still starting, each at most `start_timeout` after that server's own start. A client over HTTP waits for the first
servers that answer, and then no longer than PATIENCE after the last answer. A server that is down delays no list.
Whoever was left behind is not waited for again until it has listed; list_changed follows then. A client on stdio
leaves nobody behind that is still starting, and nobody at all with what is no list.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import anyio

from sluicegate.catalog_cache.server_catalog import ServerCatalog
from sluicegate.catalog_cache.snapshot_store import SnapshotStore
from sluicegate.protocol.model import McpServer

PATIENCE: Final = 2.0
MOMENT: Final = 0.2
ANSWERING: Final = 0.5
"""Seconds of a start that are left for the list itself, so that it is out when the start is over."""

Walks = Mapping[asyncio.Task[None], ServerCatalog]


async def wait(
    walks: Walks, catalogs: Iterable[ServerCatalog], timeout: float, for_starts: bool, is_list: bool
) -> None:  # fmt: skip
    """`timeout` is that of the list of a server that is up; `for_starts` is whether a list (`is_list`) waits for
    servers that start."""
    stored = {walk for walk, catalog in walks.items() if catalog.recalled and catalog.server.status == "up"}
    if stored:
        await asyncio.wait(stored, timeout=MOMENT)
    unknown = {walk: catalog for walk, catalog in walks.items() if not catalog.recalled and not walk.done()}
    await (_until_listed(unknown, timeout) if for_starts and is_list else _briefly(unknown, catalogs, timeout))
    for walk, catalog in unknown.items():
        is_left = not for_starts or (is_list and catalog.server.status != "starting")
        catalog.late = catalog.late or (is_left and not walk.done())


async def start(server: McpServer, timeout: float, for_starts: bool) -> None:
    """Waits for a server that is still starting, as long as a list of its resources does."""
    with anyio.move_on_after(max(server.start_left - ANSWERING, 0.0) if for_starts else timeout):
        await server.ready(is_needed=True)


async def _until_listed(walks: Walks, timeout: float) -> None:
    async with anyio.create_task_group() as group:
        for walk, catalog in walks.items():
            group.start_soon(_until_one_listed, walk, catalog, timeout)


async def _until_one_listed(walk: asyncio.Task[None], catalog: ServerCatalog, timeout: float) -> None:
    server = catalog.server
    with anyio.move_on_after(max(server.start_left - ANSWERING, timeout if server.status == "up" else 0.0)):
        await server.ready(is_needed=True)
        if server.status != "down":
            await asyncio.wait({walk})


async def _briefly(walks: Walks, catalogs: Iterable[ServerCatalog], timeout: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    pending = set(walks)
    while pending:
        left = max(0.0, end - loop.time())
        arrived = any(catalog.snapshot is not None for catalog in catalogs)
        patience = min(left, PATIENCE) if arrived else left
        done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break


# ---------------------------------------------------------------- starts


class HangingStarts:
    def __init__(self, stored: SnapshotStore) -> None:
        self._stored: Final = stored
        self._hung: set[str] = set()

    def forget(self, server_key: str) -> None:
        self._hung.discard(server_key)

    def hangs(self, server: McpServer) -> bool:
        """It is past the time for a start, or was at its last one, and has not listed since."""
        return server.status == "starting" and (server.key in self._hung or server.start_left <= 0)

    async def recall(self, server: McpServer) -> None:
        if await self._stored.has_hung(server):  # also of one that is up by now: its list takes the mark away
            self._hung.add(server.key)

    async def wait(self, server: McpServer) -> None:
        """Until its first start has ended, well or badly. That it hangs is remembered for the next run."""
        if server.status == "starting":
            with anyio.move_on_after(server.start_left):
                return await server.ready(is_needed=True)
            self._hung.add(server.key)
            await self._stored.note_hung(server, is_hung=True)
        await server.ready(is_needed=True)

    async def listed(self, server: McpServer) -> None:
        if server.key in self._hung:
            self._hung.discard(server.key)
            await self._stored.note_hung(server, is_hung=False)
