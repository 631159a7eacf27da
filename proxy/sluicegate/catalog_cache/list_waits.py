"""Who waits how long for lists that are still on their way. Knows walks as tasks, and servers by how they are doing.

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
from sluicegate.protocol.model import McpServer

PATIENCE: Final = 2.0
MOMENT: Final = 0.2
ANSWERING: Final = 0.5
"""Seconds of a start that are left for the list itself, so that it is out when the start is over."""

Walks = Mapping[asyncio.Task[None], ServerCatalog]


async def wait(walks: Walks, shelves: Iterable[ServerCatalog], timeout: float, for_starts: bool, is_list: bool) -> None:
    """`timeout` is that of the list of a server that is up; `for_starts` is whether a list (`is_list`) waits for
    servers that start."""
    stored = {walk for walk, shelf in walks.items() if shelf.recalled and shelf.server.status == "up"}
    if stored:
        await asyncio.wait(stored, timeout=MOMENT)
    unknown = {walk: shelf for walk, shelf in walks.items() if not shelf.recalled and not walk.done()}
    await (_until_listed(unknown, timeout) if for_starts and is_list else _briefly(unknown, shelves, timeout))
    for walk, shelf in unknown.items():
        is_left = not for_starts or (is_list and shelf.server.status != "starting")
        shelf.late = shelf.late or (is_left and not walk.done())


async def start(server: McpServer, timeout: float, for_starts: bool) -> None:
    """Waits for a server that is still starting, as long as a list of its resources does."""
    with anyio.move_on_after(max(server.start_left - ANSWERING, 0.0) if for_starts else timeout):
        await server.ready(is_needed=True)


async def _until_listed(walks: Walks, timeout: float) -> None:
    async with anyio.create_task_group() as group:
        for walk, shelf in walks.items():
            group.start_soon(_until_one_listed, walk, shelf, timeout)


async def _until_one_listed(walk: asyncio.Task[None], shelf: ServerCatalog, timeout: float) -> None:
    server = shelf.server
    with anyio.move_on_after(max(server.start_left - ANSWERING, timeout if server.status == "up" else 0.0)):
        await server.ready(is_needed=True)
        if server.status != "down":
            await asyncio.wait({walk})


async def _briefly(walks: Walks, shelves: Iterable[ServerCatalog], timeout: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    pending = set(walks)
    while pending:
        left = max(0.0, end - loop.time())
        arrived = any(shelf.snapshot is not None for shelf in shelves)
        patience = min(left, PATIENCE) if arrived else left
        done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
