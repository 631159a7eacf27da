"""A legacy session over Streamable HTTP: its requests in flight, its streams, and what waits for its GET stream.

Knows exchanges; no server and no socket. 2025-11-25 basic/transports#session-management.
"""

import asyncio
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import anyio

from sluicegate.listen.auth import Principal
from sluicegate.listen.client_channel import ask_aside
from sluicegate.listen.http_exchange import HttpExchange, event
from sluicegate.listen.legacy_session import LegacySession, SessionDeps
from sluicegate.listen.replay import PUSH, PushQueue, priming
from sluicegate.listen.resumable_response import ResumableResponse
from sluicegate.listen.session_notifications import PROGRESS, TaskStarter
from sluicegate.protocol import legacy_client
from sluicegate.protocol.jsonrpc import Json, Message, Notification, Request, RequestId, Response, encode
from sluicegate.protocol.model import SLUICE, Asker, Client

# Servers ask for roots right after the handshake, and clients open their stream right after it: no race between them.
STREAM_WITHIN: Final = 5.0
AT_ONCE: Final = 64  # events


@dataclass(slots=True)
class RunningCall:
    """One request in flight. `stopped`: its client or the end of its session cancelled it."""

    task: "asyncio.Task[object]"
    stopped: bool = False

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.task.cancel()


def client_of(principal: Principal, handshake: legacy_client.Handshake, session: str | None) -> Client:
    return Client(
        principal.name, principal.roles, principal.owner, handshake.revision, handshake.info, handshake.capabilities,
        session, handshake.capability_key, principal.credential, toolset=principal.toolset,
    )  # fmt: skip


class HttpSession(LegacySession):
    __slots__ = ("_attached", "_next_stream", "_running", "answers", "ended", "id", "outbox", "principal", "push",
                 "touched")  # fmt: skip

    def __init__(
        self, deps: SessionDeps, id: str, principal: Principal, handshake: legacy_client.Handshake, now: float,
        group: TaskStarter,
    ) -> None:  # fmt: skip
        super().__init__(deps, client_of(principal, handshake, id), self._push, group)
        self.id = id
        self.principal = principal
        self.touched = now
        self.ended = False
        self.outbox = PushQueue()
        self.push: HttpExchange | None = None
        self._attached = asyncio.Event()  # set while `push` is
        self.answers: dict[int, ResumableResponse] = {}
        self._next_stream = PUSH
        self._running: dict[RequestId, list[RunningCall]] = {}

    def client_for(self, principal: Principal) -> Client:
        """The client with the roles its principal has now, which the session acts with from here on."""
        if principal is not self.principal:
            self.client = replace(self.client, roles=principal.roles, owner=principal.owner)
            self.principal = principal
            self.listening.act_as(self.client)
        return self.client

    def adopt(self, answer: ResumableResponse) -> int:
        """The number of a stream that just opened and can be resumed."""
        self._next_stream += 1
        self.answers[self._next_stream] = answer
        return self._next_stream

    @property
    def is_idle(self) -> bool:
        return not self._running and self.push is None

    def begin(self, id: RequestId, loop: asyncio.AbstractEventLoop) -> RunningCall:
        """`loop` is the running one: to ask for it is a system call in CPython 3.11."""
        task = asyncio.current_task(loop)
        assert task is not None
        running = RunningCall(task)
        self._running.setdefault(id, []).append(running)
        return running

    def done(self, id: RequestId, running: RunningCall) -> None:
        same = self._running[id]
        same.remove(running)
        if not same:
            del self._running[id]

    def cancel(self, id: RequestId) -> None:
        """Cancels the newest request of that id: some clients give every request the same one."""
        if same := self._running.get(id):
            same[-1].stop()

    def end(self) -> None:
        self.ended = True
        for same in list(self._running.values()):
            for running in same:
                running.stop()
        super().end()
        for exchange in (self.push, *(answer.sink for answer in self.answers.values())):
            if exchange is not None:
                exchange.end()

    async def attach(self, exchange: HttpExchange, retry: int) -> None:
        """Makes this exchange the session's stream until it ends. A newer one replaces an older: a client whose
        connection died unnoticed must not be locked out by what is left of it."""
        if self.revision.priming:
            exchange.preamble = lambda: priming(PUSH, self.outbox.last, retry)
        try:
            await exchange.open()  # before anything can be written to it
            older, self.push = self.push, exchange
            self._attached.set()
            if older is not None:
                await older.close()
            await self.flush()
            if not self.ended:
                await exchange.until_over()
        finally:
            if self.push is exchange:
                self.push = None
                self._attached.clear()
            await exchange.close()

    async def flush(self) -> None:
        """Several events are one write, and others have their turn after it: a stream may have 1,000."""
        while (push := self.push) is not None:
            before = self.outbox.last
            due = list(islice(iter(self.outbox.take, None), AT_ONCE))
            events = [event(data, id if self.revision.streamable else None) for id, data in due]
            if events and not await push.write(b"".join(events)):
                self.outbox.rewind(before)
                return
            if len(due) < AT_ONCE:
                return
            await asyncio.sleep(0)

    async def _push(self, note: Notification) -> None:
        shown = self.shown(note)
        if shown is None:
            return
        # Neither is a state: nobody who comes later needs it, and it is not sent again
        if shown.method in ("notifications/message", PROGRESS):
            if self.push is not None:
                await self.push.write(event(encode(shown)))
            return
        self.outbox.put(shown, shown.source)
        await self.flush()

    async def ask(self, method: str, params: Json, asker: Asker = SLUICE) -> Response | None:
        """A question on the GET stream, which can be resumed with it."""
        sent: list[Request] = []
        with anyio.move_on_after(STREAM_WITHIN):  # before it is judged: rights may end meanwhile
            await self._attached.wait()

        async def send(message: Message) -> bool:
            if isinstance(message, Request):
                sent.append(message)
            if self.push is None:
                return False
            self.outbox.put(message, asker.server)
            await self.flush()
            return True

        try:
            return await ask_aside(self.asks, lambda: self.client, method, params, send, asker)
        finally:
            for request in sent:
                self.outbox.forget(request, asker.server)
