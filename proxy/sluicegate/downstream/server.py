"""One configured server as the middle sees it: a Handler that keeps its connections alive and its failures to itself.

It decides which era a client is served in, what may be sent again, and when to stop trying. Whatever
goes wrong here is an outcome: a server that hangs, dies or lies costs its own calls and nobody else's.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Container, Coroutine
from functools import partial
from typing import Any, Final, Literal

from sluicegate.downstream import failures
from sluicegate.downstream.connector import Connector
from sluicegate.downstream.pool import describe
from sluicegate.downstream.server_life import ServerLife
from sluicegate.downstream.session import suspended, url_elicitation
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.suspended import SuspendedCalls
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.transport.http_transport import http_client
from sluicegate.http.client.pool import HttpClient
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json, Notification
from sluicegate.protocol.methods import LISTS, ROOTS_CHANGED
from sluicegate.protocol.model import (
    Ask,
    Call,
    Client,
    Era,
    Failure,
    Outcome,
    Publish,
    Result,
    Subscribed,
    Updated,
    holder,
)
from sluicegate.runtime.concurrency_limit import ConcurrencyLimit, room
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

log = logging.getLogger(__name__)

_OWN: Final = ("server/discover", ROOTS_CHANGED)
ANEW: Final = "dev.sluice/began_anew"
_NO_PART: Final = "takes fewer calls at once than Sluice has replicas, and none of them from this one."


async def _era(era: Era) -> Era:
    return era


class ServerCalls:
    """The calls to one server: how many at once, on which connection, what is sent again, and what their ends say about
    the server."""

    def __init__(
        self, settings: ServerSettings, life: ServerLife, connector: Connector, suspended_calls: SuspendedCalls,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._settings, self._life, self._connector, self._suspended = settings, life, connector, suspended_calls
        self._breaker, self._selector = life.breaker, life.selector
        self.limit = ConcurrencyLimit(settings.concurrency, room(settings.concurrency), clock)
        self.resumed = 0
        """Those that go on after their client's answer."""

    async def own(self, call: Call) -> Outcome:
        if call.method == ROOTS_CHANGED:
            self._selector.tell_roots_changed(call.client)
            return Result({})
        era = self._selector.era_for(call.client)
        discovered = self._connector.discovered.get(era) if era is not None and self._life.status == "up" else None
        return await self.start(call) if discovered is None else Result(discovered)

    async def start(self, call: Call) -> Outcome:
        who = call.client.principal
        if not self._breaker.admits(who):
            why = f"it has failed repeatedly and is left alone for a moment: {self._life.health.error.text}"
            return failures.failed(call, self._settings.key, failures.Lost(why, sent=False), self._life.health.lines)
        try:
            has_waited = not self.limit.enter_at_once(who)
            if has_waited and not await self.limit.enter(who, self._settings.timeout):
                why = _NO_PART if self.limit.is_closed else "has too many calls waiting."
                return failures.unavailable(call, self._settings.key, why)
            try:
                is_late = has_waited and not self._settings.may_still(call)
                return self._failed(call, failures.too_late()) if is_late else await self.relay(call)
            finally:
                self.limit.leave(who)
        finally:
            self._breaker.ended(who)

    async def go_on(self, call: Call) -> Outcome:
        """The next round of a call. One that a legacy server did not end is taken up there, and nowhere else."""
        state = call.params["requestState"]
        if suspended.is_state(state):
            return await self._resume(call, state)
        try:
            era = self._selector.era_for(call.client)
            era = era or await self._life.in_time(self._settings.timeout, call.client, _era)
        except failures.Lost as lost:
            return self._failed(call, lost)
        if era == "modern":
            return await self.start(call)
        if url_elicitation.is_state(state):
            again = url_elicitation.consented(call)
            return await self.start(again) if isinstance(again, Call) else again
        return failures.over(call, self._settings.key)

    async def _resume(self, call: Call, state: str) -> Outcome:
        parked = self._suspended.take(state, holder(call.client.principal, call.client.credential))
        if parked is None:
            return failures.over(call, self._settings.key)
        self.resumed += 1
        try:
            outcome = await parked.resume(call)
        except failures.AnswerTooLarge as error:
            return await self._too_large(call, error)
        except (failures.Lost, TimeoutError) as error:
            return self._failed(call, error)
        finally:
            self.resumed -= 1
        self._breaker.succeeded()
        return outcome

    async def relay(self, call: Call, is_again: bool = False) -> Outcome:
        try:
            connection, has_waited = self._selector.find(call), is_again
            if connection is None:
                connection, has_waited = await self._connect(call), True
            if has_waited and not self._settings.may_still(call):
                raise failures.too_late()
            if call.method == "server/discover":
                return Result(connection.discovered)
            if (failure := undeclared(call, connection)) is not None:
                return failure
            outcome = await connection.handle(call)
            if connection.anew:
                outcome = began_anew(call, outcome, connection)
        except failures.AnswerTooLarge as error:
            return await self._too_large(call, error)
        except (failures.Lost, TimeoutError) as error:
            if is_again or not isinstance(error, failures.Lost) or not failures.may_resend(call.method, error):
                return self._failed(call, error)
            self._life.lost(error, call.client.principal)
            return await self.relay(call, is_again=True)
        self._breaker.succeeded()
        if self._life.is_suspect:
            self._life.mark_up(is_heard=True)
        return outcome

    def _connect(self, call: Call) -> Awaitable[ServerConnection]:
        timeout = self._settings.list_timeout if call.method in LISTS else self._settings.timeout
        return self._life.in_time(timeout, call.client, partial(self._selector.get, call))

    async def _too_large(self, call: Call, error: failures.AnswerTooLarge) -> Outcome:
        """A refusal; where the answer was kept, its parts are in the trail."""
        if error.spool is not None and self._settings.large is not None:
            call.trail.oversized = await self._settings.large.split(error.spool, error.id, call.method)
        return self._failed(call, error)

    def _failed(self, call: Call, error: failures.Lost | TimeoutError | failures.AnswerTooLarge) -> Outcome:
        if isinstance(error, failures.AnswerTooLarge):
            self._breaker.succeeded()
        elif isinstance(error, TimeoutError):
            self._breaker.failed(call.client.principal)
            self._life.health.failed(error, f"no answer to {call.method} in time")
        elif not isinstance(error, failures.Full | failures.LoginRequired | failures.Withheld):
            self._life.lost(error, call.client.principal)
        return failures.failed(call, self._settings.key, error, self._life.health.lines)


class DownstreamServer:
    """`run` is its life and must be running for calls to be answered."""

    def __init__(
        self, settings: ServerSettings, *, publish: Publish, client_info: Json,
        http: HttpClient | None = None, clock: Callable[[], float] = time.monotonic,
        ask: Ask | None = None, store: Store | None = None, moved: Callable[[str], None] = lambda server: None,
        is_idle: Callable[[str], bool] = lambda session: False, client_wait: float = 0.0,
    ) -> None:  # fmt: skip
        """`ask` reaches the client of a legacy session outside of any call; `store` keeps what the server speaks;
        `moved` is told that it came up or went down; `is_idle` whether a session has no open stream and call. The start
        waits `client_wait` seconds at most for the first client (`expect`)."""
        self.settings, self.key, self.identity = settings, settings.key, settings.identity
        self.start_timeout = settings.start_timeout
        self._publish: Publish | None = publish
        self._http = http or http_client(settings)
        self.suspended = SuspendedCalls(ask)
        eras = store or MemoryStore(clock)
        self._connector = Connector(settings, self._heard, client_info, self._http, eras, self.suspended)
        self.life = ServerLife(settings, self._connector, self.suspended, clock, moved, is_idle, client_wait)
        self._calls = ServerCalls(settings, self.life, self._connector, self.suspended, clock)
        self._selector = selector = self.life.selector
        self.era_for, self.scope, self.capability_set = selector.era_for, selector.scope, selector.capability_set
        self.run, self.ready, self.expect = self.life.run, self.life.ready, self.life.expect
        self.reconnect, self.abandon = self.life.reconnect, self.suspended.abandon
        self.set_limit = self._calls.limit.set_limit

    @property
    def status(self) -> Literal["starting", "up", "down"]:
        return self.life.status

    @property
    def start_left(self) -> float:
        return self.life.start_left

    async def hold(self, client: Client) -> Callable[[], None]:
        hearing = await self.life.in_time(self.settings.list_timeout, client, partial(self._selector.hearing, client))
        return await self._selector.hold(*hearing)

    async def subscribe(self, client: Client, uris: Collection[str], tell: Updated) -> Subscribed:
        add = partial(self.life.subscriptions.add, client, uris, tell)
        return await self.life.in_time(self.settings.list_timeout, client, add)

    def retain(self, holders: Container[str]) -> None:
        """Nobody else can come in any more: nobody waits for their answers, or uses what their keys have opened."""
        self.suspended.retain(holders)
        if self.life.pool.retain(holders):
            self.life.changed.set()

    def end_session(self, session: str) -> None:
        """A legacy client's session is over, and with it the connections that were its own."""
        self.life.pool.end_session(session)
        self.life.changed.set()

    def describe(self) -> Json:
        eras, parked = sorted(self._connector.eras or ()), len(self.suspended)
        own = {"key": self.key, "transport": self._connector.transport, "status": self.life.status, "eras": eras}
        boxed = {} if self.settings.sandbox is None else {"sandbox": str(self.settings.sandbox)}
        live = describe(self.life.pool.live())
        return own | boxed | live | self.numbers() | {"parked": parked} | self.life.health.describe()

    def output(self, after: str) -> Json:
        """Returns what the server wrote to stderr after a position."""
        about = {"server": self.key, "transport": self._connector.transport, "status": self.life.status}
        return about | self.life.health.output(after)

    def numbers(self) -> Json:
        """The figures that each scrape reads."""
        limit = {"in_flight": self._calls.limit.busy, "waiting": self._calls.limit.waiting}
        return {"restarts": self.life.health.restarts, **limit, "circuit": self.life.breaker.state}

    @property
    def concurrency(self) -> int:
        return self._calls.limit.limit

    @property
    def most_in_flight(self) -> int:
        return self._calls.limit.busy

    @property
    def open_calls(self) -> int:
        """Those that wait for their client's answer, or go on after it, are open at the server, too."""
        return self._calls.limit.busy + len(self.suspended) + self._calls.resumed

    def account(self, client: Client) -> Json | str | None:
        """As of `AccountServers`: nobody logs in to this one."""

    def unavailable(self, call: Call) -> Outcome:
        if (needed := self.life.login_needed) is not None:
            return failures.failed(call, self.key, needed)
        why = "it has not said yet what it offers."
        if self._calls.limit.is_closed:
            return failures.unavailable(call, self.key, _NO_PART)
        if self.life.status != "up":
            why = self.life.health.why(call.client)
        elif self.life.pool.is_full:
            why = f"{self.life.pool.all_in_use}."
        return failures.unavailable(call, self.key, f"is not available: {why}")

    def shows(self, client: Client) -> bool:
        return self.life.status != "down" or self.life.login_needed is not None

    def __call__(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        if call.method in _OWN:
            return self._calls.own(call)
        if "requestState" in call.params:
            return self._calls.go_on(call)
        return self._calls.relay(call) if call.method == "tasks/result" else self._calls.start(call)  # waits apart

    def _heard(self, scope: str | None, notification: Notification) -> None:
        if self._publish is not None:
            self._publish(self.key, "" if scope is None and self.settings.sharing == "shared" else scope, notification)

    def retire(self, why: str | failures.LoginRequired) -> None:
        """It is not configured any more, or another takes its place: its calls end, and nobody hears of it again."""
        self._publish = None
        self.life.retire(why)

    def inherit(self, before: "DownstreamServer") -> None:
        """It takes the key of that one: sessions that were open there are told."""
        self.life.pool.lost.inherit(before.life.pool.lost)

    async def aclose(self) -> None:
        await self.life.aclose()
        if self._http is not None:
            await self._http.aclose()


def undeclared(call: Call, connection: ServerConnection) -> Failure | None:
    """2026-07-28 basic/index#capabilities: what a server does not declare, it does not have. Lists are asked for all
    the same, by whoever keeps them: some servers have tools and do not declare that."""
    if call.method != "completion/complete" or "completions" in connection.capabilities:
        return None
    if connection.revision == "2024-11-05":  # has the method and no capability for it
        return None
    return Failure(METHOD_NOT_FOUND, "Method not found")


def began_anew(call: Call, outcome: Outcome, connection: ServerConnection) -> Outcome:
    """Says in the session's next result that what the server kept of the session before is gone."""
    if not isinstance(outcome, Result) or call.method in LISTS:
        return outcome
    why, connection.anew = connection.anew, ""
    meta = outcome.value.get("_meta")
    anew = {**(meta if isinstance(meta, dict) else {}), ANEW: why}
    return Result({**outcome.value, "_meta": anew}, reason=outcome.reason)
