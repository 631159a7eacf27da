"""One request of ours that a server has not answered yet: its answer, and what belongs to it on the way.

No task is spent on it: whoever reads from the server
puts messages in (never waiting), and the task that made the call takes them out.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from sluicegate.downstream.failures import Lost
from sluicegate.protocol.jsonrpc import Notification, Request, Response, weight_of
from sluicegate.protocol.model import LOG_LEVEL, Call, Emit, no_emit
from sluicegate.protocol.reserved_keys import without_hop
from sluicegate.protocol.revisions import LOG_LEVELS
from sluicegate.runtime.deadline import AnswerDeadline

# A server may report faster than a client reads. Of what waits longer than this many, the newest is dropped.
MAX_WAITING = 256
MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Bytes of memory for the notifications of one call, and as many for its questions: as many as a client may send."""
_RANKS = {level: rank for rank, level in enumerate(LOG_LEVELS)}


_PROGRESS = frozenset({"_meta", "message", "progress", "total"})


def with_token(notification: Notification, token: Any) -> Notification:
    """Progress under a client's token. A client that ignores case could read another one, of another call of its own,
    among members that MCP does not have."""
    known = {key: value for key, value in notification.params.items() if key in _PROGRESS}
    return replace(notification, params={**known, "progressToken": token})


def severity(level: Any) -> int:
    """The rank of a log level, -1 for what is none."""
    return _RANKS.get(level, -1) if isinstance(level, str) else -1


class PendingRequest:
    """`id` is the JSON-RPC id and the progress token at once, both ours; `unmet` is a question that was refused,
    `level` the rank from which on log messages are wanted, -1 for none; `once`: it may be sent only once; `has_begun`:
    the server said something of it before the answer, so that no answer proves that nothing was executed; `is_parked`:
    it waits for answers of its client; `only_reads`: what is sent from now on reads its result; `is_unsent`: it waits
    for a token, and was not sent, or was refused with proof; `on_over` is called once nobody waits any more."""

    # Defaults stand in the class: most exchanges keep them, and setting them in each would cost more.
    call: Call | None = None
    answer: Response | None = None
    error: Exception | None = None
    patience: AnswerDeadline | None = None
    unmet: Request | None = None
    is_call = is_parked = once = has_begun = only_reads = is_unsent = False
    level = -1
    _token: Any = None
    _progress = -inf
    _waiting_bytes = 0
    _inbox: deque[tuple[Notification, int]] | None = None
    _waiter: asyncio.Future[None] | None = None
    on_over: Callable[[], object] | None = None

    def __init__(self, id: int, call: Call | None = None) -> None:
        self.id = id
        self.emit: Emit = no_emit
        if call is not None:
            self.call, self.is_call, self.emit = call, True, call.emit
            self._token, self.level = call.meta.get("progressToken"), severity(call.meta.get(LOG_LEVEL))

    def settle(self, answer: Response | None = None, error: Exception | None = None) -> None:
        if not self.is_over:
            if self.has_begun and isinstance(error, Lost):
                error = Lost(error.text, sent=True, gone=error.gone, status=error.status, detail=error.detail)
            self.answer, self.error = answer, error
            self._wake()
            if self.on_over is not None:
                self.on_over()

    def offer(self, notification: Notification) -> None:
        if self.is_over:
            return  # nothing after the response
        if self._inbox is None:
            self._inbox = deque()
        if (params := without_hop(notification.params)) is not notification.params:
            notification = replace(notification, params=params)
        self._waiting_bytes += (size := weight_of(notification.params))
        if not self._inbox or (len(self._inbox) < MAX_WAITING and self._waiting_bytes <= MAX_WAITING_BYTES):
            self._inbox.append((notification, size))
        else:
            self._waiting_bytes -= size
        self._wake()

    def progress(self, notification: Notification) -> None:
        """Restores the client's token. Values must increase (2026-07-28 basic/patterns/progress)."""
        self.has_begun = True
        value = notification.params.get("progress")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= self._progress:
            return
        self._progress = value
        if self.patience is not None:
            self.patience.renew()
        if self._token is not None:
            self.offer(with_token(notification, self._token))

    def log(self, notification: Notification) -> None:
        """A call that names no level gets no log messages (2026-07-28 server/utilities/logging)."""
        self.has_begun = True
        if 0 <= self.level <= severity(notification.params.get("level")):
            self.offer(notification)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_over(self) -> bool:
        return self.answer is not None or self.error is not None

    @property
    def may_be_sent_again(self) -> bool:
        """Whether somebody waits, and nothing has come from the server that proves that it has begun."""
        return not self.is_over and (self.only_reads or not self.has_begun)

    @property
    def ready(self) -> Response | None:
        """The answer where nothing has to be waited for, as after a plain POST: `result` is a coroutine."""
        return None if self._inbox else self.answer

    async def flush(self) -> None:
        """Hands on what has come. After it, the order of what the server sent is kept."""
        while self._inbox:
            notification, size = self._inbox.popleft()
            self._waiting_bytes -= size
            await self.emit(notification)

    async def result(self) -> Response:
        """The answer, once it is there; meanwhile what belongs to the call is emitted."""
        while not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
            await self.flush()
        if self._inbox:
            await self.flush()
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise Lost("the server ended its answer without a response", sent=True)
        return self.answer
