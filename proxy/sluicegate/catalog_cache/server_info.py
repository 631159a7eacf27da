"""What a server says of itself, and what it lists without saying so.

Knows questions and answers; nothing of who waits for them.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from typing import Final

from sluicegate.catalog_cache.list_walk import ask, page_of
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Client, Failure, McpServer, Outcome, Result

UNDECLARED_TIME: Final = 1.5  # seconds for an answer from a server that may not know the question
TRIES: Final = 3  # of a question that it does not answer, one with each walk

log = logging.getLogger(__name__)


class ServerInfos:
    def __init__(self) -> None:
        self._undeclared: defaultdict[str, set[str]] = defaultdict(set)
        self._tries: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def forget(self, server_key: str) -> None:
        self._undeclared.pop(server_key, None)
        self._tries.pop(server_key, None)

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
    """Whether the server itself has answered."""
    return isinstance(outcome, Result) or (isinstance(outcome, Failure) and outcome.code == METHOD_NOT_FOUND)
