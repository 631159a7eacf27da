"""A resource or a prompt for whoever asks at the admin port: a call of their own, through all guards.

The policy judges it as theirs, rates count it, and the audit log records it. It has no capabilities: nobody answers
what a server asks meanwhile.
"""

import secrets
from collections import Counter
from dataclasses import replace
from typing import Final

import anyio

from sluicegate import __version__
from sluicegate.app.core import Core
from sluicegate.approval import messages
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, Trail

MAX_PER_PRINCIPAL: Final = 8
MAX_OPEN: Final = 64
SECONDS: Final = 20.0
_INFO: Final = {"name": "sluice-preview", "version": __version__}


class Previews:
    """Eight at a time for each principal and 64 for all, of 20 `seconds` each at most."""

    def __init__(self, core: Core, seconds: float = SECONDS) -> None:
        self._core, self._seconds, self._open = core, seconds, Counter[str]()

    async def show(self, client: Client, method: str, params: Json) -> Json | str:
        """The id of the call with its result or its failure; or why there was no call."""
        who = client.principal
        if self._open[who] >= MAX_PER_PRINCIPAL or self._open.total() >= MAX_OPEN:
            return "too many previews are open: try again in a moment"
        call = Call(replace(client, info=_INFO, is_operator=True), method, params, trail=Trail(secrets.token_hex(16)))
        outcome: Outcome | None = None
        self._open[who] += 1
        try:
            with anyio.move_on_after(self._seconds):
                outcome = await self._core.handler(call)
        finally:
            self._open[who] -= 1
            self._open += Counter()  # those that have none are forgotten
        if outcome is None and call.trail.awaits:
            outcome = await self._waits(call)
        return {"call": call.trail.id, **self._shown(call, outcome)}

    async def _waits(self, call: Call) -> Outcome | None:
        """What names the approval that the call waited for. The approval goes on: the same preview uses it."""
        approval = await self._core.queue.get(call.trail.awaits)
        if approval is None or not approval.is_waiting:
            return None
        text = f"it waits for the approval {approval.id}: preview it again once that is given"
        return messages.answer(call.method, "approval_pending", text, approval)

    def _shown(self, call: Call, outcome: Outcome | None) -> Json:
        match outcome:
            case Result(value):
                return {"result": value}
            case Failure(_, message, data, reason):
                about = data if isinstance(data, dict) else {}
                return {"failure": {"message": message, "reason": reason or "", "data": about}}
            case None:
                why = f"it took longer than {self._seconds:g} seconds"
            case _:
                self._core.abandon(call.trail.id)
                why = "the server asks its client something first"
        return {"failure": {"message": why, "reason": "", "data": {}}}
