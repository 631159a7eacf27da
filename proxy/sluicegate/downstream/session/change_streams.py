"""What a modern server tells by itself: `subscriptions/listen` streams, kept open and told apart.

One stream for its lists, one for the resources that are watched; nothing can be added to an open one, so that a set
that changes is a new stream, acknowledged before the old one is closed.
2026-07-28 basic/patterns/subscriptions.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from sluicegate.downstream.failures import AnswerTooLarge, Lost
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.protocol.jsonrpc import Json, Notification, Response, error_text, inside
from sluicegate.protocol.reserved_keys import without_hop
from sluicegate.protocol.revisions import SUBSCRIPTION_ID
from sluicegate.telemetry import DEFAULT_BACKOFF

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
OVERLAP: Final = 0.5
"""Seconds that a stream outlives its successor's acknowledgement: what was said before may still be on its way."""
REOPENING: Final = 2.0
"""Seconds that a server which has returned may take to acknowledge a stream before it counts as up."""

Request = Callable[[Json], tuple[PendingRequest, Awaitable[Response]]]
"""(filter) -> the exchange of a new request, and what sends it and waits for its end."""


class ChangeStream:
    """`settled` once it was acknowledged or refused; `honoured` is what the server promised, None before it did."""

    def __init__(
        self, wanted: Json, request: Request, tell: Callable[[Notification], None], live: Callable[[bool], None]
    ) -> None:
        """`live` is called when it is acknowledged, with whether something may have been missed before."""
        self.wanted = wanted
        self.settled, self._opened, self._retry = anyio.Event(), anyio.Event(), anyio.Event()
        self.honoured: Json | None = None
        self.problem = ""
        self.exchange: PendingRequest | None = None
        self._request, self._tell, self._live = request, tell, live
        self._scope = anyio.CancelScope()
        self._is_live = False

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended for good."""
        return self._scope.cancel_called or bool(self.problem)

    def close(self) -> None:
        self._scope.cancel()

    def end(self) -> None:
        """Notes that the server has ended the stream, so that it is opened anew."""
        if self.exchange is not None:
            self.exchange.settle(Response(self.exchange.id, {}))

    async def keep(self) -> None:
        """Open until it is closed or refused: nothing is replayed, so what was missed is announced on its return."""
        failures = 0
        with self._scope:
            while True:
                error = await self._once(is_again=failures > 0)
                if error is not None and not self._is_live:
                    self.problem = error_text(error)[:200]
                    return self.settled.set()
                failures = 1 if self._is_live else failures + 1
                if self._is_live:
                    self._opened = anyio.Event()
                with anyio.move_on_after(DEFAULT_BACKOFF.pause(failures)):
                    await self._retry.wait()
                self._retry = anyio.Event()

    async def reopen(self) -> None:
        """Ends the pause before the next attempt. Returns when the stream is acknowledged, or that takes too long."""
        self._retry.set()
        with anyio.move_on_after(0 if self.is_over else REOPENING):
            await self._opened.wait()

    async def _once(self, is_again: bool) -> Json | None:
        self._is_live, self._is_again = False, is_again
        self.exchange, answer = self._request(self.wanted)
        try:
            return (await answer).error
        except (Lost, AnswerTooLarge):
            return None
        finally:
            self.exchange = None

    def hear(self, notification: Notification) -> None:
        if notification.method == ACKNOWLEDGED:
            if self._is_live:  # one stream is acknowledged once; a second time means nothing
                return
            honoured = notification.params.get("notifications")
            self.honoured = honoured if isinstance(honoured, dict) else {}
            self._is_live = True
            self.settled.set()
            self._opened.set()
            self._live(self._is_again)
        elif self._is_live:
            self._tell(Notification(notification.method, without_hop(notification.params)))


def tag_of(params: Json) -> int | None:
    """Subscriptions are told apart by the id of their request: ours are numbers."""
    tag = inside(params, "_meta", SUBSCRIPTION_ID)
    return tag if type(tag) is int else None
