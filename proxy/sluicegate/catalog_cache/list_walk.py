"""What one server says of itself, and one whole list of it, within bounds that a hostile server cannot stretch.

Knows cursors, and nothing of names, scopes or who wants the list.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Final

import anyio

from sluicegate.catalog.list_bounds import PIECE, Bounds, Intake
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


class ServerInfos:
    """What each server says of itself, and what it lists without declaring it. `walked` has its last long list of each
    method, with the answer object from which it was made. If that same object comes again, the list is used again."""

    def __init__(self) -> None:
        self.walked: defaultdict[str, dict[str, tuple[Outcome, Walked]]] = defaultdict(dict)
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
    walked: dict[str, tuple[Outcome, Walked]] | None = None,
) -> Walked | None:  # fmt: skip
    """All items of a list. A server without that method has none; None if a page fails, so that half a list is
    never taken for the whole. `walked` are its last long lists of one page."""
    try:
        with anyio.fail_after(timeout):
            return await _pages(server, client, method, bounds, {} if walked is None else walked)
    except OSError:
        return None


async def _pages(
    server: McpServer, client: Client, method: str, bounds: Bounds, walked: dict[str, tuple[Outcome, Walked]]
) -> Walked | None:  # fmt: skip
    items: list[Any] = []
    ttls: list[int] = []
    intake = Intake(bounds)
    params: Json = {}
    while True:
        outcome = await server(Call(client, method, params))
        if isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND and not params:
            return Walked((), 0)
        if not params and method in walked and walked[method][0] is outcome:
            return walked[method][1]
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
                walked[method] = outcome, found
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
