"""The one legacy session that a pipe can have; its life is that of the pipe (2025-11-25 basic/lifecycle).

Knows what the handshake settled, what is listened to and what is asked; no lines and no jobs.
"""

import secrets
from dataclasses import dataclass, field
from typing import Final

import anyio

from sluicegate.listen.client_channel import Asks, Send, ask_aside
from sluicegate.listen.session_notifications import SessionNotifications
from sluicegate.protocol import legacy_client
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, Json, Notification, Response
from sluicegate.protocol.model import Client, Failure, Outcome, Result
from sluicegate.protocol.revisions import LOG_LEVELS

READY_WITHIN: Final = 10.0
# A client can outlive the process that asked it: what it answers late must not be taken for an answer to another.
_FIRST_ASKS: Final = 1 << 40


@dataclass(slots=True)
class StdioSession:
    client: Client
    listening: SessionNotifications
    asks: Asks = field(default_factory=lambda: Asks(1 + secrets.randbelow(_FIRST_ASKS)))
    level: str | None = None
    initialized: bool = False  # the client has said so
    ready: anyio.Event = field(default_factory=anyio.Event)  # it has, or never will

    @property
    def revision(self) -> str:
        return self.client.revision

    def shown(self, note: Notification) -> Notification | None:
        """As its client sees it: its revision and its level decide."""
        return legacy_client.notification(note, self.revision, self.level)

    def set_level(self, level: object) -> Outcome:
        if level not in LOG_LEVELS:
            return Failure(INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        self.level = str(level)
        return Result({})

    def tell_servers(self, method: str) -> None:
        """Its client's roots changed."""
        if "roots" in self.client.capabilities:
            self.listening.tell(method)

    async def ask(self, id: str, method: str, params: Json, send: Send) -> Response | None:
        """A question outside of any call; None where this is another session, or its client is never ready. A server
        that was started for this session may ask before the client has said that it is initialized."""
        if self.client.session != id:
            return None
        with anyio.move_on_after(READY_WITHIN):
            await self.ready.wait()
        if not self.initialized:
            return None
        return await ask_aside(self.asks, self.client, method, params, send)

    def end(self) -> None:
        """Nothing more is told, asked or answered."""
        self.initialized = False
        self.ready.set()
        self.asks.close()
        self.listening.stop()
