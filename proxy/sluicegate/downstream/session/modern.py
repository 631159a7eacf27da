"""A connection of the stateless era: every request stands alone, one listen stream tells what changes.

Over HTTP the body is mirrored into headers, and a stream is closed to cancel its request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.catalog.list_bounds import Intake
from sluicegate.downstream.failures import AnswerTooLarge, Lost, Withheld, code_of, over, too_late
from sluicegate.downstream.known_lists import KnownList
from sluicegate.downstream.resource_subscriptions import OneStream
from sluicegate.downstream.session.change_streams import ChangeStream, tag_of
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.tasks import polling, task_ids
from sluicegate.downstream.tasks.polling import ModernTask, PolledTask
from sluicegate.policy.pins import fingerprint
from sluicegate.protocol import modern_server as dialect
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import Json, Notification, Request, Response, encode
from sluicegate.protocol.methods import ABOUT_A_TASK, LISTS
from sluicegate.protocol.model import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    MODERN,
    UNSUPPORTED_VERSION,
    Call,
    Era,
    Outcome,
    Result,
    TaskStarted,
)
from sluicegate.protocol.modern_server import Annotations
from sluicegate.protocol.revisions import REVISIONS
from sluicegate.runtime.loop_budget import budget_of

log = logging.getLogger(__name__)

PROBE_TIME: Final = 10.0
LISTEN: Final = "subscriptions/listen"
MAX_TOLD: Final = 20  # tools of a list that are not offered, each with a line in the log
_CHANGED: Final = "The server has changed this tool since it was listed. List the tools again."


class ModernConnection(ServerConnection):
    era: Era = "modern"
    _changes: ChangeStream | None = None

    async def open(self, group: TaskGroup) -> None:
        """Connects and lets `answer` be judged by the caller: it may prove the server to be of the other era."""
        self.revision = MODERN
        if self.settings.url is not None:
            self.mark = task_ids.FREE
        self._streams: list[ChangeStream] = []
        await self._connect(group)
        self.transport.agreed(REVISIONS[MODERN])

    async def discover(self) -> Response:
        return await self._own("server/discover", {}, PROBE_TIME)

    def ask_first(self) -> PendingRequest:
        """Sends a child `server/discover` and waits for nothing: its answer may be that of the other era."""
        exchange = PendingRequest(next(self._ids))
        self.pending[exchange.id] = exchange
        params = {"_meta": dialect.envelope(self.client_info, {})}
        self.transport.send_soon(encode(Request(exchange.id, "server/discover", params)))
        return exchange

    def start(self, discovered: Json) -> None:
        """The server speaks this era: hear what it announces."""
        self.discovered = dialect.discovered(discovered)
        if self.settings.sharing == "shared":  # nothing is declared to it, and so it makes no tasks
            self.discovered["capabilities"] = tasks.without_extension(self.capabilities)
        self._watch = OneStream(self._stream, lambda params: self._updated(params), self.settings.list_timeout).watch
        if wanted := self._announced():
            self._changes = self._stream(wanted, self.publish, self._catch_up)

    async def _own(self, method: str, params: Json, timeout: float, declared: Json | None = None) -> Response:
        params = {**params, "_meta": dialect.envelope(self.client_info, declared or {})}
        return await self.ask(method, params, timeout, dialect.headers(method, params))

    async def check(self) -> None:
        answer = await self.discover()
        if answer.error is not None:
            raise Lost(f"the server refused server/discover: {code_of(answer.error)}", sent=False)
        if self._changes is not None:  # what was missed is announced first, and so told once
            await self._changes.reopen()

    async def live(self) -> None:
        if self._changes is not None:
            await self._changes.settled.wait()

    async def handle(self, call: Call) -> Outcome:
        # Step 10 of docs/explanation/performance.md
        if call.method in ABOUT_A_TASK:
            inner = task_ids.inwards(call)
            return task_ids.outwards(call, dialect.outcome(inner, await self._send(inner)), self.mark)
        if "requestState" in call.params and (task := polling.resumed_task(call)) is not None:
            return await self._task(call, task).run() if task.mark == self.mark else over(call, self.settings.key)
        exchange = PendingRequest(next(self._ids), call)
        response = await self._send(call, exchange)
        if response.error is not None and not exchange.has_begun:
            response = await self._as_wanted(call, response, response.error)
        known_list = self.settings.known_lists.of(call.method, response.result)
        if known_list is not None and known_list.outcome is not None:
            return known_list.outcome
        outcome = dialect.outcome(call, response)
        if isinstance(outcome, TaskStarted):
            if tasks.takes(call.client) and self.settings.sharing != "shared":  # to which no task was offered
                if self.mark != task_ids.FREE:
                    self.tasks_until = max(self.tasks_until, self._loop.time() + outcome.task["ttlMs"] / 1000)
                return task_ids.outwards(call, outcome, self.mark)
            return await self._task(call, PolledTask(outcome.task["taskId"], mark=self.mark)).run()
        if call.method == "tools/list" and isinstance(outcome, Result):
            return await self._offered(outcome, known_list)
        if known_list is not None and isinstance(outcome, Result):
            known_list.outcome = outcome
        return outcome

    async def _as_wanted(self, call: Call, response: Response, error: Json) -> Response:
        """The answer to the same call once more, where the error says how its server wants it; else that error."""
        code = error.get("code")
        again: Callable[[Call], Awaitable[Response]] = self._send
        if code == HEADER_MISMATCH and call.method == "tools/call" and self.transport.is_private:
            # 2026-07-28 basic/transports/streamable-http#client-behavior: its schema may have changed since it was
            # listed. Then pins, policy and persons have judged another one, and the client has mirrored by that.
            item, target = await self._current(call.params.get("name")), call.target
            if item is None or target is None or fingerprint(item) != fingerprint(target.item):
                self.publish(Notification(LISTS["tools/list"].changed, {}))
                if item is None or target is None:
                    return response
                raise Withheld("server_unavailable", _CHANGED)
        elif code == MISSING_CAPABILITY and polling.may_retry(call, response, self.settings):
            again = self._begin_task
        elif code != UNSUPPORTED_VERSION or MODERN not in _supported(error):
            return response
        if not self.settings.may_still(call):
            raise too_late()
        return await again(call)

    async def _begin_task(self, call: Call) -> Response:
        """In a life of its own: a task is also cancelled that was made for a call which ended meanwhile."""
        begun: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        async def begin() -> None:
            try:
                response = await self._send(call, with_tasks=True)
            except (Lost, TimeoutError, AnswerTooLarge) as error:
                return None if begun.done() else begun.set_exception(error)
            if not begun.done():
                begun.set_result(response)
            else:
                await cancel(response)

        async def cancel(response: Response) -> None:
            if isinstance(outcome := dialect.outcome(call, response), TaskStarted):
                await self._task(call, PolledTask(outcome.task["taskId"])).cancel()

        self.start_chore(begin)
        try:
            return await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled() and begun.exception() is None:  # it came in the same moment
                self.start_chore(partial(cancel, begun.result()))
            raise

    def _task(self, call: Call, task: PolledTask) -> ModernTask:
        declared = dialect.declared(call, self.settings.sharing == "shared", with_tasks=True)

        async def ask(method: str, params: Json) -> Response:
            return await self._own(method, params, self.settings.timeout, declared)

        return ModernTask(call, task, ask, self.start_chore, self.settings)

    def _send(
        self, call: Call, exchange: PendingRequest | None = None, with_tasks: bool = False
    ) -> Awaitable[Response]:  # fmt: skip
        if exchange is None:
            exchange = PendingRequest(next(self._ids), call)
        is_shared, to_sluice = self.settings.sharing == "shared", self.settings.is_sluice
        params = dialect.params(call, exchange.id, self.client_info, is_shared, with_tasks, to_sluice)
        headers = dialect.headers(call.method, params, _annotated(call)) if self.transport.is_private else []
        return self.perform(exchange, call.method, params, self.patience(call.method), headers)

    async def _current(self, name: Any) -> Json | None:
        """A tool's definition as the server has it now; None where that cannot be had in time. Then the refusal stands,
        which proves that the call was not executed."""
        params: Json = {}
        intake = Intake(self.settings.bounds)
        with anyio.move_on_after(self.settings.list_timeout), suppress(Lost, TimeoutError):
            while True:
                answer = (await self._own("tools/list", params, self.settings.list_timeout)).result or {}
                listed = dialect.complete("tools/list", answer)
                tools, further = listed.get("tools"), listed.get("nextCursor")
                cursor = further if isinstance(further, str) else None
                taking = intake.take(tools if isinstance(tools, list) else (), cursor)
                taken, cut = await budget_of(self.settings.key).in_pieces(taking)
                found = next((tool for tool in taken if isinstance(tool, dict) and tool.get("name") == name), None)
                if found is not None or cut or cursor is None:
                    current: Json | None = tasks.without_execution(found)  # as it was listed
                    return current
                params = {"cursor": cursor}
        return None

    async def _offered(self, outcome: Result, known_list: KnownList | None) -> Result:
        if known_list is None:
            return Result(await self._offerable(outcome.value))
        async with known_list.turn:
            if known_list.outcome is None:
                known_list.outcome = Result(await self._offerable(outcome.value))
            return known_list.outcome

    async def _offerable(self, value: Json) -> Json:
        if not isinstance(tools := value.get("tools"), list):
            return value
        work = dialect.offerable(tools, self.transport.is_private)
        offered, dropped = await budget_of(self.settings.key).in_pieces(work)
        for name, why in islice(dropped.items(), MAX_TOLD):
            log.warning("tool is not offered", extra={"server": self.settings.key, "tool": name, "why": why})
        if len(dropped) > MAX_TOLD:
            more = {"server": self.settings.key, "count": len(dropped) - MAX_TOLD}
            log.warning("further tools are not offered", extra=more)
        return {**value, "tools": offered}

    def _announced(self) -> dict[str, bool]:
        """The filter of what the server declares that it announces."""
        declared: Mapping[str, Any] = self.capabilities
        return {
            entry.filter: True
            for entry in LISTS.values()
            if isinstance(kind := declared.get(entry.capability), dict) and kind.get("listChanged") is True
        }

    def _stream(self, wanted: Json, tell: Callable[[Notification], None], live: Callable[[bool], None]) -> ChangeStream:
        """A subscription that is kept open from now on."""
        self._streams = [stream for stream in self._streams if not stream.is_over]
        stream = ChangeStream(wanted, self._subscribe, tell, live)
        self._streams.append(stream)
        self.start_chore(stream.keep)
        return stream

    def _subscribe(self, wanted: Json) -> tuple[PendingRequest, Awaitable[Response]]:
        exchange = PendingRequest(next(self._ids))
        params = {"notifications": wanted, "_meta": dialect.envelope(self.client_info, {})}
        headers = dialect.headers(LISTEN, params)
        return exchange, self.perform(exchange, LISTEN, params, None, headers)

    def _catch_up(self, is_again: bool) -> None:
        wanted = self._announced() if is_again else {}
        for method in {entry.changed for entry in LISTS.values() if entry.filter in wanted}:
            self.publish(Notification(method, {}))

    def _noticed(self, notification: Notification, exchange: PendingRequest | None) -> PendingRequest | None:
        if notification.method == "notifications/cancelled":
            # basic/patterns/cancellation: the server's way to end a subscription
            if stream := self._stream_of(notification.params.get("requestId"), None):
                stream.end()
        elif stream := self._stream_of(tag_of(notification.params), exchange):
            stream.hear(notification)
        return exchange

    def _stream_of(self, id: Any, exchange: PendingRequest | None) -> ChangeStream | None:
        """Finds the stream by the id of its request, or by the HTTP stream that it came on."""
        for stream in self._streams:
            if (own := stream.exchange) is not None and (own is exchange or (type(id) is int and id == own.id)):
                return stream
        return None

    def _abandon(self, exchange: PendingRequest, why: str) -> None:
        # 2026-07-28 basic/patterns/cancellation: over HTTP the closed stream says it
        if not self.transport.is_private:
            params = {"requestId": exchange.id, "reason": why}
            self.transport.send_soon(encode(Notification("notifications/cancelled", params)))

    def _asked(self, request: Request, exchange: PendingRequest | None) -> None:
        # 2026-07-28 basic/transports: servers never ask so, and clients never send responses
        log.warning("server sent a request", extra={"server": self.settings.key, "method": request.method[:80]})


def _annotated(call: Call) -> Annotations | None:
    """The mirrored headers that the called tool declares."""
    return dialect.asked_for(call.target.item) if call.target is not None and call.method == "tools/call" else None


def _supported(error: Json) -> list[str]:
    data = error.get("data")
    return dialect.versions(data.get("supported")) if isinstance(data, dict) else []
