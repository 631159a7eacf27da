"""The state of one legacy client: what `initialize` settled, what is running, what is still to be told.

Knows calls and exchanges, no server and no wire beyond an exchange. 2025-11-25 basic/transports#session-management.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proxy.call import Call, Client, Failure, Handler, Outcome, Result, Trail, not_found
from proxy.era import legacy_client
from proxy.era.revisions import REVISIONS
from proxy.listen.answer import Answer
from proxy.listen.exchange import Exchange, event
from proxy.listen.identity import Principal
from proxy.listen.replay import PUSH, Outbox, priming
from proxy.message import INVALID_PARAMS, Json, Notification, RequestId

_LOG: Final = logging.getLogger(__name__)
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_LISTS: Final = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


@dataclass(slots=True)
class Running:
    """One request in flight. `stopped`: its client or the end of its session cancelled it."""

    task: "asyncio.Task[object]"
    stopped: bool = False

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.task.cancel()


class Session:
    __slots__ = ("_changing", "_listening", "_next_stream", "_running", "_subscribed", "answers", "client", "ended",
                 "id", "level", "outbox", "principal", "push", "revision", "touched")  # fmt: skip

    def __init__(self, id: str, principal: Principal, handshake: legacy_client.Handshake, now: float) -> None:
        self.id = id
        self.principal = principal
        self.revision = REVISIONS[handshake.revision]
        self.client = Client(
            principal.name, principal.roles, principal.owner, handshake.revision, handshake.info,
            handshake.capabilities, id, handshake.capability_key,
        )  # fmt: skip
        self.level: str | None = None
        self.touched = now
        self.ended = False
        self.outbox = Outbox()
        self.push: Exchange | None = None
        self.answers: dict[int, Answer] = {}
        self._next_stream = PUSH
        self._running: dict[RequestId, list[Running]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._changing = asyncio.Lock()  # one change of subscriptions after the other

    def __repr__(self) -> str:
        return f"Session({self.principal.name} {self.revision.name} {len(self._running)} running, {self.outbox})"

    def client_for(self, principal: Principal) -> Client:
        """The client with the roles its principal has now."""
        if principal is not self.principal:
            old = self.client
            self.client = Client(
                principal.name, principal.roles, principal.owner, old.revision, old.info, old.capabilities, self.id,
                old.capability_key,
            )  # fmt: skip
            self.principal = principal
        return self.client

    def adopt(self, answer: Answer) -> int:
        """The number of a stream that just opened and can be resumed."""
        self._next_stream += 1
        self.answers[self._next_stream] = answer
        return self._next_stream

    @property
    def is_idle(self) -> bool:
        return not self._running and self.push is None

    # ------------------------------------------------------------ requests in flight

    def begin(self, id: RequestId) -> Running:
        task = asyncio.current_task()
        assert task is not None
        running = Running(task)
        self._running.setdefault(id, []).append(running)
        return running

    def done(self, id: RequestId, running: Running) -> None:
        same = self._running[id]
        same.remove(running)
        if not same:
            del self._running[id]

    def cancel(self, id: RequestId) -> None:
        """Some clients give every request the same id: the newest is meant."""
        if same := self._running.get(id):
            same[-1].stop()

    def end(self) -> None:
        self.ended = True
        for same in list(self._running.values()):
            for running in same:
                running.stop()
        if self._listening is not None:
            self._listening.cancel()
        for exchange in (self.push, *(answer.sink for answer in self.answers.values())):
            if exchange is not None:
                exchange.end()

    # ------------------------------------------------------------ the GET stream

    async def attach(self, exchange: Exchange, retry: int) -> None:
        """Makes this exchange the session's stream until it ends. A newer one replaces an older: a client whose
        connection died unnoticed must not be locked out by what is left of it."""
        older, self.push = self.push, exchange
        if older is not None:
            await older.close()
        if self.revision.priming:
            exchange.preamble = lambda: priming(PUSH, self.outbox.last, retry)
        try:
            await exchange.open()
            await self.flush()
            if not self.ended:
                await exchange.until_over()
        finally:
            if self.push is exchange:
                self.push = None
            await exchange.close()

    async def tell(self, note: Notification) -> None:
        self.outbox.put(note)
        await self.flush()

    async def flush(self) -> None:
        while self.push is not None and (entry := self.outbox.take()) is not None:
            before = self.outbox.last - 1
            id, data = entry
            if not await self.push.write(event(data, id if self.revision.streamable else None)):
                self.outbox.rewind(before)
                return

    # ------------------------------------------------------------ what the session listens to

    def listen(self, handler: Handler, trail: Callable[[], Trail]) -> None:
        """Starts to listen for changes, once (basic/lifecycle: after `notifications/initialized`)."""
        if self._listening is None and not self.ended:
            self._listening = self._start(handler, trail, frozenset(), None)

    async def subscribe(self, uri: object, wanted: bool, handler: Handler, trail: Callable[[], Trail]) -> Outcome:
        """`resources/subscribe` and its opposite: one listen call with the union takes the place of the old one,
        which ends only when the new one is acknowledged."""
        if not isinstance(uri, str):
            return Failure(INVALID_PARAMS, "uri must be a string")
        async with self._changing:
            return await self._resubscribe(uri, wanted, handler, trail)

    async def _resubscribe(self, uri: str, wanted: bool, handler: Handler, trail: Callable[[], Trail]) -> Outcome:
        union = self._subscribed | {uri} if wanted else self._subscribed - {uri}
        if union == self._subscribed:
            return Result({})
        acknowledged: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        task = self._start(handler, trail, union, acknowledged)
        try:
            await asyncio.wait((task, acknowledged), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        honoured = acknowledged.result().get("resourceSubscriptions", []) if acknowledged.done() else []
        if self.ended or (wanted and uri not in honoured):
            task.cancel()
            return not_found("resources/read", {"uri": uri})
        if not wanted:
            self.outbox.forget(uri)
        older, self._listening, self._subscribed = self._listening, task, union
        if older is not None:
            older.cancel()
        return Result({})

    @property
    def subscribed(self) -> int:
        return len(self._subscribed)

    def _start(
        self,
        handler: Handler,
        trail: Callable[[], Trail],
        uris: frozenset[str],
        acknowledged: "asyncio.Future[Json] | None",
    ) -> "asyncio.Task[None]":
        wanted: Json = {**_LISTS, "resourceSubscriptions": sorted(uris)} if uris else dict(_LISTS)

        async def emit(note: Notification) -> None:
            if note.method == _ACKNOWLEDGED:
                if acknowledged is not None and not acknowledged.done():
                    acknowledged.set_result(note.params.get("notifications", {}))
                return
            shown = legacy_client.notification(note, self.revision.name)
            if shown is not None:
                await self.tell(shown)

        call = Call(self.client, "subscriptions/listen", {"notifications": wanted}, emit=emit, trail=trail())
        task = asyncio.get_running_loop().create_task(self._listen(handler, call))
        task.add_done_callback(_report)
        return task

    async def _listen(self, handler: Handler, call: Call) -> None:
        outcome = await handler(call)
        # An orderly end means that we are about to stop: the client's stream ends with it.
        if isinstance(outcome, Result) and self.push is not None:
            self.push.end()


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _LOG.error("listening for a session ended", exc_info=task.exception())
