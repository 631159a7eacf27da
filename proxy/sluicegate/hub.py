"""Notifications that belong to no call, from whoever hears them to whoever listens.

Knows servers by key and notifications by method; it judges and renames nothing: a subscriber does that. Publishing
never waits: each subscriber has room for one pending event per (server, method, uri), because two "the list
changed" in a row say no more than one (what is said to one session is no such state), and a bound on how many such,
because a listener may be slow for ever.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Final

from sluicegate.protocol.jsonrpc import Notification, weight_of
from sluicegate.protocol.model import session_scope

MAX_PENDING: Final = 1000
MAX_SAID: Final = 4 * 1024 * 1024
"""Bytes of memory of what was said to one session and is not taken yet: its client may read slowly."""
_STEP: Final = 16  # events in one step of the event loop
_AT_ONCE: Final = 32  # subscriptions that hear of one event in a step: each of them wakes a task
_ONE_SESSION: Final = session_scope("")


@dataclass(frozen=True, slots=True)
class Event:
    """`scope` None means every scope of that server."""

    server: str
    scope: str | None
    notification: Notification
    weight: int = field(default=0, compare=False)  # of what is said

    @property
    def is_said(self) -> bool:
        """It says something to one session, where others say that something changed: then only the last counts."""
        return self.scope is not None and self.scope.startswith(_ONE_SESSION)


Accept = Callable[[Event], bool]


class Subscription:
    """An endless iterator over events, which ends when the hub closes. Servers take turns, the oldest first."""

    def __init__(self, accept: Accept, max_pending: int) -> None:
        self._accept = accept
        self._max_pending = max_pending
        self._pending: dict[str, dict[tuple[str, object], Event]] = {}  # of each server, whose turn comes round
        self._count = self._said = 0
        self._numbers = count()
        self._taken = 0
        self._news = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Event:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        self._taken += 1
        if self._taken % _STEP == 0:  # who takes one may have nothing to wait for: a thousand would be one long step
            await asyncio.sleep(0)
        server = next(iter(self._pending))
        held = self._pending.pop(server)
        event = held.pop(next(iter(held)))
        self._count -= 1
        self._said -= event.weight
        if held:
            self._pending[server] = held
        return event

    @property
    def is_behind(self) -> bool:
        return self._count > 0

    def offer(self, event: Event) -> None:
        if self._accept(event):
            self.put(event)

    def put(self, event: Event) -> None:
        """Whether or not it is accepted from others."""
        is_full = self._count >= self._max_pending or self._said + event.weight > MAX_SAID
        if event.is_said and self.is_behind and is_full:
            return  # talk must not push out what changed
        about = next(self._numbers) if event.is_said else str(event.notification.params.get("uri"))
        key = (event.notification.method, about)
        if key not in self._pending.get(event.server, ()):
            if self._count >= self._max_pending:
                self._drop()
            self._count += 1
        self._pending.setdefault(event.server, {})[key] = event
        self._said += event.weight
        self._news.set()

    def _drop(self) -> None:
        """Takes out the oldest of the server that has most: what comes last is closest to the truth, and no server's
        flood pushes out what another one said."""
        server = max(self._pending, key=lambda one: len(self._pending[one]))
        held = self._pending[server]
        self._said -= held.pop(next(iter(held))).weight
        if not held:
            del self._pending[server]
        self._count -= 1

    def close(self) -> None:
        self._closed = True
        self._news.set()


class Hub:
    """Offers events to subscriptions. What a server says to one session is offered to that session's subscriptions
    alone: its flood would otherwise cost work for all of them."""

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._subscriptions: dict[Subscription, int] = {}  # in the order in which they began
        self._of_session: dict[str, dict[Subscription, None]] = {}
        self._numbers = count()
        # Changes that nobody was told of yet. Subscriptions from that number on began too late for them.
        self._waiting: dict[tuple[str, str | None, str, str], tuple[Event, int]] = {}
        self._telling: tuple[Event, int, Iterator[Subscription]] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Hub({len(self._subscriptions)} subscriptions{', closed' if self._closed else ''})"

    def publish(self, event: Event) -> None:
        """Offers the event to a few subscriptions in each step of the loop: ten thousand would be one long step. A
        change that comes again before anybody was told of it is told once."""
        if event.is_said:
            subscriptions = tuple(self._of_session.get(event.scope or "", ()))
            if any(one.is_behind for one in subscriptions):  # else it has its place, whatever it weighs
                event = replace(event, weight=weight_of(event.notification.params))
            for subscription in subscriptions:
                subscription.offer(event)
            return
        note = event.notification
        key = event.server, event.scope, note.method, str(note.params.get("uri"))
        is_idle = self._telling is None and not self._waiting
        self._waiting[key] = event, next(self._numbers)
        if is_idle:
            self._go_on()

    def _go_on(self) -> None:
        try:
            self._offer(_AT_ONCE)
        finally:
            if self._telling is not None or self._waiting:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _offer(self, most: int) -> None:
        """Events in their order, to so many subscriptions in all."""
        while most > 0 and (telling := self._telling or self._next()) is not None:
            self._telling = event, number, those = telling
            for subscription in islice(those, most):
                most -= 1
                if self._subscriptions.get(subscription, number) < number:
                    subscription.offer(event)
            if most > 0:
                self._telling = None

    def _next(self) -> tuple[Event, int, Iterator[Subscription]] | None:
        if not self._waiting:
            return None
        event, number = self._waiting.pop(next(iter(self._waiting)))
        return event, number, iter(tuple(self._subscriptions))

    @contextmanager
    def subscribe(self, accept: Accept, session: str | None = None) -> Iterator[Subscription]:
        """Events published from now on for which `accept` is true. Of what servers say to one session, it has only what
        they say to this one. `accept` must be cheap: whoever publishes calls it."""
        subscription = Subscription(accept, self._max_pending)
        self._subscriptions[subscription] = next(self._numbers)
        scope = None if session is None else session_scope(session)
        if scope is not None:
            self._of_session.setdefault(scope, {})[subscription] = None
        if self._closed:
            subscription.close()
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]
            if scope is not None:
                del self._of_session[scope][subscription]
                if not self._of_session[scope]:
                    del self._of_session[scope]

    def close(self) -> None:
        """Ends every subscription, now and to come: how listeners learn of a shutdown."""
        self._offer(sys.maxsize)
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
