"""A resource or a prompt for whoever asks at the admin port: a call of their own, through all guards.

The policy judges it as theirs, rates count it, and the audit log records it. It has no capabilities: nobody answers
what a server asks meanwhile.
"""

import secrets
from dataclasses import replace
from typing import Final

import anyio

from sluicegate import __version__
from sluicegate.app.core import Core
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, Trail

MAX_OPEN: Final = 8
SECONDS: Final = 20.0
_INFO: Final = {"name": "sluice-preview", "version": __version__}


class Previews:
    """Eight at a time, of 20 seconds each at most."""

    def __init__(self, core: Core) -> None:
        self._core, self._open = core, 0

    async def show(self, client: Client, method: str, params: Json) -> Json | str:
        """The id of the call with its result or its failure; or why there was no call."""
        if self._open >= MAX_OPEN:
            return "too many previews are open: try again in a moment"
        call = Call(replace(client, info=_INFO), method, params, trail=Trail(secrets.token_hex(16)))
        outcome: Outcome | None = None
        self._open += 1
        try:
            with anyio.move_on_after(SECONDS):
                outcome = await self._core.handler(call)
        finally:
            self._open -= 1
        return {"call": call.trail.id, **self._shown(call, outcome)}

    def _shown(self, call: Call, outcome: Outcome | None) -> Json:
        match outcome:
            case Result(value):
                return {"result": value}
            case Failure(_, message, data, reason):
                about = data if isinstance(data, dict) else {}
                return {"failure": {"message": message, "reason": reason or "", "data": about}}
            case None:
                return {"failure": {"message": f"it took longer than {SECONDS:.0f} seconds", "reason": "", "data": {}}}
        self._core.abandon(call.trail.id)
        return {"failure": {"message": "the server asks its client something first", "reason": "", "data": {}}}
