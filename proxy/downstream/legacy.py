"""A connection of the initialize era: handshake, one log level for all, cancels as messages.

Knows that what the server asks cannot reach a client yet: nothing is declared, and everything is refused at once.
"""

import logging

from anyio.abc import TaskGroup

from proxy.call import LOG_LEVEL, Call, Era, Outcome
from proxy.downstream.connection import Connection
from proxy.downstream.exchange import Exchange, severity
from proxy.downstream.settings import Lost
from proxy.era import legacy_server as dialect
from proxy.era.revisions import LOG_LEVELS
from proxy.message import Notification, Request, Response, encode

log = logging.getLogger(__name__)

# Starting is not calling: package runners download first.
HANDSHAKE_TIME = 60.0
_LEVEL_TIME = 5.0


class LegacyConnection(Connection):
    era: Era = "legacy"
    _level = len(LOG_LEVELS)  # none was asked for yet

    async def open(self, group: TaskGroup) -> None:
        await self.wire.open(group)
        answer = await self.ask("initialize", dialect.initialize(self.client_info), HANDSHAKE_TIME)
        if answer.result is None:
            raise Lost(f"the server refused initialize: {(answer.error or {}).get('message')}", sent=False)
        revision = dialect.negotiated(answer.result)
        if revision is None:
            raise Lost(f"the server wants to speak {str(answer.result.get('protocolVersion'))[:40]!r}", sent=False)
        self.revision = revision.name
        self.discovered = dialect.discovered(answer.result)
        self._may_batch = revision.batches
        self.wire.agreed(revision)
        await self.wire.notify(encode(Notification("notifications/initialized", {})))

    async def handle(self, call: Call) -> Outcome:
        if LOG_LEVEL in call.meta:
            await self._lower(severity(call.meta[LOG_LEVEL]))
        exchange = Exchange(next(self._ids), call)
        params = dialect.params(call, exchange.id)
        response = await self.perform(exchange, call.method, params, self.patience(call.method), [])
        return dialect.outcome(call, response)

    async def _lower(self, level: int) -> None:
        """The level is the connection's: the lowest that anyone wanted, and each call filters for itself."""
        if level < 0 or level >= self._level or "logging" not in self.capabilities:
            return
        self._level = level  # before the answer, so that a hundred calls do not ask a hundred times
        try:
            await self.ask("logging/setLevel", {"level": LOG_LEVELS[level]}, _LEVEL_TIME)
        except TimeoutError:
            log.warning("server does not answer logging/setLevel", extra={"server": self.settings.key})

    async def check(self) -> None:
        await self.ask("ping", {}, self.settings.list_timeout)

    async def live(self) -> None:
        await self.wire.live()

    def _abandon(self, exchange: Exchange, why: str) -> None:
        params = {"requestId": exchange.id, "reason": why}
        self.wire.tell(encode(Notification("notifications/cancelled", params)))

    def _asked(self, request: Request) -> None:
        if request.method == "ping":
            self.wire.tell(encode(Response(request.id, {})))
        else:
            self.refuse(request)

    def _noticed(self, notification: Notification, exchange: Exchange | None) -> Exchange | None:
        self.publish(notification)
        return None
