"""A connection of the stateless era: every request stands alone, one listen stream tells what changes.

Knows that over HTTP the body is mirrored into headers, and that closing a stream is the cancel there.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from proxy.call import HEADER_MISMATCH, MODERN, UNSUPPORTED_VERSION, Call, Era, Outcome, Result
from proxy.downstream.connection import CHANGES, Connection
from proxy.downstream.exchange import Exchange
from proxy.downstream.settings import Lost, TooLarge
from proxy.era import modern_server as dialect
from proxy.era.modern_server import Annotations
from proxy.era.revisions import LISTS, REVISIONS, SUBSCRIPTION_ID
from proxy.message import Json, Notification, Request, Response, encode
from proxy.telemetry import DEFAULT_BACKOFF

log = logging.getLogger(__name__)

PROBE_TIME: Final = 10.0
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_MAX_PAGES: Final = 64
_MAX_SCHEMAS: Final = 4096


class ModernConnection(Connection):
    era: Era = "modern"
    _listening: Exchange | None = None

    async def open(self, group: TaskGroup) -> None:
        """Connects and lets `answer` be judged by the caller: it may prove the server to be of the other era."""
        self.revision = MODERN
        self._live = anyio.Event()
        self._schemas: dict[int, tuple[Json, Annotations]] = {}
        await self.wire.open(group)
        self.wire.agreed(REVISIONS[MODERN])

    async def discover(self) -> Response:
        return await self._own("server/discover", {}, PROBE_TIME)

    def start(self, discovered: Json, group: TaskGroup) -> None:
        """The server speaks this era: hear what it announces."""
        self.discovered = dialect.discovered(discovered)
        if wanted := self._announced():
            group.start_soon(self.chore, lambda: self._listen(wanted))
        else:
            self._live.set()

    async def _own(self, method: str, params: Json, timeout: float) -> Response:
        params = {**params, "_meta": dialect.envelope(self.client_info, {})}
        return await self.ask(method, params, timeout, dialect.headers(method, params))

    async def check(self) -> None:
        answer = await self.discover()
        if answer.error is not None:
            raise Lost(f"the server refused server/discover: {answer.error.get('message')}", sent=False)

    async def live(self) -> None:
        await self._live.wait()

    # ------------------------------------------------------------ calls

    async def handle(self, call: Call) -> Outcome:
        response = await self._send(call)
        code = None if response.error is None else response.error.get("code")
        if code == HEADER_MISMATCH and call.method == "tools/call" and self.wire.is_private:
            # 2026-07-28 basic/transports/streamable-http#client-behavior: its schema has changed since it was listed
            if (item := await self._current(call.params.get("name"))) is not None and call.target is not None:
                response = await self._send(replace(call, target=replace(call.target, item=item)))
        elif code == UNSUPPORTED_VERSION and MODERN in _supported(response.error):
            response = await self._send(call)
        outcome = dialect.outcome(call, response)
        if call.method == "tools/list" and self.wire.is_private and isinstance(outcome, Result):
            return Result(self._offerable(outcome.value))
        return outcome

    async def _send(self, call: Call) -> Response:
        exchange = Exchange(next(self._ids), call)
        params = dialect.params(call, exchange.id, self.client_info, self.settings.sharing == "shared")
        headers = dialect.headers(call.method, params, self._annotations(call)) if self.wire.is_private else []
        return await self.perform(exchange, call.method, params, self.patience(call.method), headers)

    def _annotations(self, call: Call) -> Annotations | None:
        """What the called tool mirrors. Walking a schema costs more than a call, so it is done once for each."""
        item = call.target.item if call.target is not None and call.method == "tools/call" else None
        if item is None:
            return None
        known = self._schemas.get(id(item))
        if known is None or known[0] is not item:
            if len(self._schemas) >= _MAX_SCHEMAS:
                self._schemas.clear()
            known = self._schemas[id(item)] = (item, dialect.asked_for(item))
        return known[1]

    async def _current(self, name: Any) -> Json | None:
        """A tool's definition as the server has it now."""
        params: Json = {}
        for _ in range(_MAX_PAGES):
            answer = await self._own("tools/list", params, self.settings.list_timeout)
            page = answer.result or {}
            tools = page.get("tools")
            for tool in tools if isinstance(tools, list) else []:
                if isinstance(tool, dict) and tool.get("name") == name:
                    return tool
            if not isinstance(cursor := page.get("nextCursor"), str):
                return None
            params = {"cursor": cursor}
        return None

    def _offerable(self, value: Json) -> Json:
        tools = value.get("tools")
        kept, dropped = dialect.offerable(tools if isinstance(tools, list) else [])
        for name, why in dropped.items():
            log.warning("tool is not offered", extra={"server": self.settings.key, "tool": name, "why": why})
        return {**value, "tools": kept} if dropped else value

    # ------------------------------------------------------------ what the server announces

    def _announced(self) -> dict[str, bool]:
        """The filter of what the server declares that it announces."""
        declared: Mapping[str, Any] = self.capabilities
        return {
            entry.filter: True
            for entry in LISTS.values()
            if isinstance(kind := declared.get(entry.capability), dict) and kind.get("listChanged") is True
        }

    async def _listen(self, wanted: dict[str, bool]) -> None:
        """Keeps one subscription open: nothing is replayed, so what was missed is announced on its return."""
        failures = 0
        while True:
            acknowledged, error = await self._listen_once(wanted, is_again=failures > 0 or self._live.is_set())
            if error is not None:
                log.warning("server refused to be listened to", extra={"server": self.settings.key, "error": error})
                return self._live.set()
            failures = 1 if acknowledged else failures + 1
            await anyio.sleep(DEFAULT_BACKOFF.pause(failures))

    async def _listen_once(self, wanted: dict[str, bool], is_again: bool) -> tuple[bool, str | None]:
        exchange = self._listening = Exchange(next(self._ids), emit=self._announce)
        acknowledged = False
        params = {"notifications": wanted, "_meta": dialect.envelope(self.client_info, {})}
        self._may_announce, self._is_again = False, is_again
        try:
            headers = dialect.headers("subscriptions/listen", params)
            response = await self.perform(exchange, "subscriptions/listen", params, None, headers)
        except (Lost, TooLarge):
            return self._may_announce, None
        acknowledged = self._may_announce
        return acknowledged, str(response.error.get("message"))[:200] if response.error and not acknowledged else None

    async def _announce(self, notification: Notification) -> None:
        if notification.method == _ACKNOWLEDGED:
            self._may_announce = True
            self._live.set()
            if self._is_again:
                self._catch_up()
        else:
            self.publish(Notification(notification.method, _untagged(notification.params)))

    def _catch_up(self) -> None:
        wanted = self._announced()
        for method in {entry.changed for entry in LISTS.values() if entry.filter in wanted}:
            self.publish(Notification(method, {}))

    def _noticed(self, notification: Notification, exchange: Exchange | None) -> Exchange | None:
        """Subscriptions are told apart by their id (2026-07-28 basic/patterns/subscriptions)."""
        listening = self._listening
        if listening is None:
            return None
        if notification.method == "notifications/cancelled":
            # basic/patterns/cancellation: the server's way to end a subscription
            if notification.params.get("requestId") == listening.id:
                listening.settle(Response(listening.id, {}))
            return listening
        meta = notification.params.get("_meta")
        tag = meta.get(SUBSCRIPTION_ID) if isinstance(meta, dict) else None
        is_ours = tag == listening.id and type(tag) is int
        if (is_ours or exchange is listening) and notification.method in (CHANGES | {_ACKNOWLEDGED}):
            listening.offer(notification)
        return listening

    # ------------------------------------------------------------ manners of the era

    def _abandon(self, exchange: Exchange, why: str) -> None:
        # 2026-07-28 basic/patterns/cancellation: over HTTP the closed stream says it
        if not self.wire.is_private:
            params = {"requestId": exchange.id, "reason": why}
            self.wire.tell(encode(Notification("notifications/cancelled", params)))

    def _asked(self, request: Request, exchange: Exchange | None) -> None:
        # 2026-07-28 basic/transports: servers never ask so, and clients never send responses
        log.warning("server sent a request", extra={"server": self.settings.key, "method": request.method[:80]})


def _untagged(params: Json) -> Json:
    """Without the subscription id: it is this hop's."""
    meta = params.get("_meta")
    rest = {key: inner for key, inner in meta.items() if key != SUBSCRIPTION_ID} if isinstance(meta, dict) else {}
    bare = {key: value for key, value in params.items() if key != "_meta"}
    return {**bare, "_meta": rest} if rest else bare


def _supported(error: Json | None) -> list[str]:
    data = (error or {}).get("data")
    return dialect.versions(data.get("supported")) if isinstance(data, dict) else []
