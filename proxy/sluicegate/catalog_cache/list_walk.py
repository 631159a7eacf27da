"""One whole list of one server, page by page, within bounds that a hostile server cannot stretch.

Knows pages and cursors, and nothing of names, scopes or who wants the list.
"""

from dataclasses import dataclass
from typing import Any

import anyio

from sluicegate.catalog.list_bounds import Bounds, Intake
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Client, Failure, McpServer, Outcome, Result


@dataclass(frozen=True, slots=True)
class Walked:
    """`cut` says why the walk ended before the server's list did, "" if it did not."""

    items: tuple[Any, ...]
    ttl_ms: int
    cut: str = ""


async def ask(server: McpServer, call: Call, timeout: float) -> Outcome | None:
    """What the server answers in time; None for a server that is dead or too slow."""
    try:
        with anyio.fail_after(timeout):
            return await server(call)
    except OSError:  # ConnectionError and TimeoutError are such
        return None


async def walk(server: McpServer, client: Client, method: str, timeout: float, bounds: Bounds) -> Walked | None:
    """All items of a list. A server without that method has none; None if a page fails, so that half a list is
    never taken for the whole."""
    try:
        with anyio.fail_after(timeout):
            return await _pages(server, client, method, bounds)
    except OSError:
        return None


async def _pages(server: McpServer, client: Client, method: str, bounds: Bounds) -> Walked | None:
    items: list[Any] = []
    ttls: list[int] = []
    intake = Intake(bounds)
    params: Json = {}
    while True:
        outcome = await server(Call(client, method, params))
        if isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND and not params:
            return Walked((), 0)
        page = page_of(outcome, method)
        if page is None or not isinstance(outcome, Result):
            return None
        ttls.append(ttl_of(outcome.value))
        cursor = next_cursor(outcome.value)
        taken, cut = intake.take(page, cursor)
        items += taken
        if cursor is None or cut:
            return Walked(tuple(items), min(ttls), cut)
        params = {"cursor": cursor}


def page_of(outcome: Outcome | None, method: str) -> list[Any] | None:
    """The items of a page, None if the outcome is none."""
    page = outcome.value.get(LISTS[method].key) if isinstance(outcome, Result) else None
    return page if isinstance(page, list) else None


def next_cursor(value: Json) -> str | None:
    """A missing cursor is the end, the empty one is a cursor (2026-07-28 server/utilities/pagination)."""
    cursor = value.get("nextCursor")
    return cursor if isinstance(cursor, str) else None


def ttl_of(value: Json) -> int:
    """Absent or negative is 0 (2026-07-28 server/utilities/caching)."""
    ttl_ms = value.get("ttlMs")
    return max(0, ttl_ms) if isinstance(ttl_ms, int) and not isinstance(ttl_ms, bool) else 0
