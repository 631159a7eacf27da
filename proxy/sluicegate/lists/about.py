"""What a server says of itself, and what it lists without saying so.

Knows questions and answers; nothing of who waits for them.
"""

import asyncio
import logging
from typing import Final

from sluicegate.call import Call, Client, Result, Server
from sluicegate.era.revisions import LISTS
from sluicegate.lists.walk import ask, page_of
from sluicegate.message import Json

UNDECLARED_TIME: Final = 1.5  # seconds for an answer from a server that may not know the question

log = logging.getLogger(__name__)


class Abouts:
    def __init__(self) -> None:
        self._undeclared: dict[str, frozenset[str]] = {}

    async def about(self, server: Server, client: Client, timeout: float) -> Json | None:
        """Its capabilities, with those that it has without declaring them, and its instructions; None if it does not
        say. A connection may have to be made for the answer."""
        outcome = await ask(server, Call(client, "server/discover", {}), max(timeout, server.start_timeout))
        if not isinstance(outcome, Result) or not isinstance(outcome.value.get("capabilities"), dict):
            return None
        said: Json = {key: outcome.value[key] for key in ("capabilities", "instructions") if key in outcome.value}
        if server.key not in self._undeclared:
            self._undeclared[server.key] = await _undeclared(server, client, said["capabilities"])
        undeclared: Json = {name: {} for name in self._undeclared[server.key]}
        return {**said, "capabilities": undeclared | said["capabilities"]}


async def _undeclared(server: Server, client: Client, declared: Json) -> frozenset[str]:
    """Some servers list what they do not declare, and the SDKs ask them all the same. Asked once in a run."""
    missing = [method for method, entry in LISTS.items() if entry.capability not in declared]
    asking = (ask(server, Call(client, method, {}), UNDECLARED_TIME) for method in missing)
    answers = zip(missing, await asyncio.gather(*asking), strict=True)
    has = frozenset(LISTS[method].capability for method, outcome in answers if page_of(outcome, method))
    for capability in sorted(has):
        log.warning("server %s lists %s without declaring them", server.key, capability)
    return has
