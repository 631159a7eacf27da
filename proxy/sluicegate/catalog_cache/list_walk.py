"""What one server says of itself, and one whole list of it, within bounds that a hostile server cannot stretch; and who
waits how long for lists that are still on their way.

Knows cursors, walks as tasks, and servers by how they are doing; nothing of names or policy.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from sluicegate.catalog.list_bounds import PIECE, Bounds, Intake
from sluicegate.catalog_cache.server_catalog import ServerCatalog
from sluicegate.catalog_cache.snapshot_store import SnapshotStore
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Client, Failure, McpServer, Outcome, Result
from sluicegate.protocol.modern_server import time_to_live
from sluicegate.runtime.loop_budget import budget_of

UNDECLARED_TIME: Final = 1.5  # seconds for an answer from a server that may not know the question
TRIES: Final = 3  # of a question that it does not answer, one with each walk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Walked:
    """`cut` says why the walk ended before the server's list did, "" if it did not. `digest` is equal for equal items,
    and empty where they cannot be told apart by it. `size` is about how many bytes the items have."""

    items: tuple[Any, ...]
    ttl_ms: int
    cut: str = ""
    digest: bytes = b""
    size: int = 0


@dataclass(slots=True)
class WalkedLists:
    """A server's last long list of each method, with the answer object from which it was made. If that same object
    comes again, the list is used again. One is made at a time: `turn`, because several scopes walk at once."""

    last: dict[str, tuple[Outcome, Walked]] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ServerInfos:
    """What each server says of itself, and what it lists without declaring it. `walked` has its last long lists."""

    def __init__(self) -> None:
        self.walked = defaultdict[str, WalkedLists](WalkedLists)
        self._undeclared: defaultdict[str, set[str]] = defaultdict(set)
        self._tries: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def forget(self, server_key: str) -> None:
        self._undeclared.pop(server_key, None)
        self._tries.pop(server_key, None)
        self.walked.pop(server_key, None)

    async def about(self, server: McpServer, client: Client, timeout: float) -> Json | None:
        """Its capabilities, with those that it has without declaring them, and its instructions; None if it does not
        say. A connection may have to be made for the answer."""
        outcome = await ask(server, Call(client, "server/discover", {}), max(timeout, server.start_timeout))
        if not isinstance(outcome, Result) or not isinstance(outcome.value.get("capabilities"), dict):
            return None
        answer: Json = {key: outcome.value[key] for key in ("capabilities", "instructions") if key in outcome.value}
        await self._ask_undeclared(server, client, answer["capabilities"])
        undeclared: Json = {name: {} for name in sorted(self._undeclared[server.key])}
        return {**answer, "capabilities": undeclared | answer["capabilities"]}

    async def _ask_undeclared(self, server: McpServer, client: Client, declared: Json) -> None:
        """Some servers list what they do not declare, and the SDKs ask them all the same. What a server has answered it
        is not asked again in this run, and each capability is warned of once."""
        found, tries = self._undeclared[server.key], self._tries[server.key]
        missing = {
            method: tries[method] + 1 for method, entry in LISTS.items()
            if entry.capability not in declared and tries[method] < TRIES
        }  # fmt: skip
        asking = (ask(server, Call(client, method, {}), UNDECLARED_TIME) for method in missing)
        answers = dict(zip(missing, await asyncio.gather(*asking), strict=True))
        for capability in sorted({LISTS[method].capability for method, one in answers.items() if page_of(one, method)}):
            if capability not in found:
                found.add(capability)
                log.warning("server %s lists %s without declaring them", server.key, capability)
        for method, outcome in answers.items():
            tries[method] = TRIES if _is_final(outcome) else missing[method]


def _is_final(outcome: Outcome | None) -> bool:
    """Whether the server itself has answered: with a list, or that it has none."""
    return isinstance(outcome, Result) or (isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND)


async def ask(server: McpServer, call: Call, timeout: float) -> Outcome | None:
    """What the server answers in time; None for a server that is dead or too slow."""
    try:
        with anyio.fail_after(timeout):
            return await server(call)
    except OSError:  # ConnectionError and TimeoutError are such
        return None


async def walk(
    server: McpServer, client: Client, method: str, timeout: float, bounds: Bounds,
    walked: WalkedLists | None = None,
) -> Walked | None:  # fmt: skip
    """All items of a list. A server without that method has none; None if a page fails, so that half a list is
    never taken for the whole. `walked` are its last long lists of one page."""
    try:
        with anyio.fail_after(timeout):
            return await _pages(server, client, method, bounds, WalkedLists() if walked is None else walked)
    except OSError:
        return None


async def _pages(
    server: McpServer, client: Client, method: str, bounds: Bounds, walked: WalkedLists
) -> Walked | None:  # fmt: skip
    items: list[Any] = []
    ttls: list[int] = []
    intake = Intake(bounds)
    params: Json = {}
    while True:
        outcome = await server(Call(client, method, params))
        if isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND and not params:
            return Walked((), 0)
        async with walked.turn:
            before, known = walked.last.get(method, (None, None))
            if not params and before is outcome:
                return known
            entries = page_of(outcome, method)
            if entries is None or not isinstance(outcome, Result):
                return None
            ttls.append(time_to_live(outcome.value))
            cursor = next_cursor(outcome.value)
            taken, cut = await budget_of(server.key).in_pieces(intake.take(entries, cursor))
            items += taken
            if cursor is None or cut:
                found = Walked(tuple(items), min(ttls), cut, intake.digest, intake.size)
                if not params and intake.size >= PIECE:
                    walked.last[method] = outcome, found
                return found
        params = {"cursor": cursor}


def page_of(outcome: Outcome | None, method: str) -> list[Any] | None:
    """Returns the items of a page; None where the outcome is no page."""
    entries = outcome.value.get(LISTS[method].key) if isinstance(outcome, Result) else None
    return entries if isinstance(entries, list) else None


def next_cursor(value: Json) -> str | None:
    """A missing cursor is the end, the empty one is a cursor (2026-07-28 server/utilities/pagination)."""
    cursor = value.get("nextCursor")
    return cursor if isinstance(cursor, str) else None


# ---------------------------------------------------------------- who waits how long

PATIENCE: Final = 2.0
MOMENT: Final = 0.2
ANSWERING: Final = 0.5
"""Seconds of a start that are left for the list itself, so that it is out when the start is over."""

Walks = Mapping[asyncio.Task[None], ServerCatalog]


async def wait_for_lists(
    walks: Walks, catalogs: Iterable[ServerCatalog], timeout: float, for_starts: bool, is_list: bool
) -> None:  # fmt: skip
    """`timeout` is that of the list of a server that is up; `for_starts` is whether a list (`is_list`) waits for
    servers that start.

    A stored list is shown while its server starts, so only a server that is up is waited for then, and only for a
    moment. Without one it depends on who asks. A client on stdio may keep its first list for ever: it waits for every
    server that is still starting, each at most `start_timeout` after that server's own start. A client over HTTP waits
    for the first servers that answer, and then no longer than PATIENCE after the last answer. A server that is down
    delays no list. Whoever was left behind is not waited for again until it has listed; list_changed follows then. A
    client on stdio leaves nobody behind that is still starting, and nobody at all with what is no list."""
    stored = {walk for walk, catalog in walks.items() if catalog.recalled and catalog.server.status == "up"}
    if stored:
        await asyncio.wait(stored, timeout=MOMENT)
    unknown = {walk: catalog for walk, catalog in walks.items() if not catalog.recalled and not walk.done()}
    await (_until_listed(unknown, timeout) if for_starts and is_list else _briefly(unknown, catalogs, timeout))
    for walk, catalog in unknown.items():
        is_left = not for_starts or (is_list and catalog.server.status != "starting")
        catalog.late = catalog.late or (is_left and not walk.done())


async def wait_for_start(server: McpServer, timeout: float, for_starts: bool) -> None:
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


class HangingStarts:
    """Servers for whose starts nobody waits."""

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
