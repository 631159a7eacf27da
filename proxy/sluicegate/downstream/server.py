"""One configured server as the middle sees it: a Handler that keeps its connections alive and its failures to itself.

It decides which era a client is served in, what may be sent again, and when to stop trying. Whatever
goes wrong here is an outcome: a server that hangs, dies or lies costs its own calls and nobody else's.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Container, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, TypeVar

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream import failures
from sluicegate.downstream.call_limits import Breaker, ConcurrencyLimit, RetryBackoff, room
from sluicegate.downstream.connector import Connector
from sluicegate.downstream.pool import MODERN_KEY, ConnectionKey, ConnectionPool, describe
from sluicegate.downstream.resource_subscriptions import ResourceWatches
from sluicegate.downstream.selector import ConnectionSelector
from sluicegate.downstream.server_output import ServerHealth
from sluicegate.downstream.session import suspended, url_elicitation
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.suspended import SuspendedCalls
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.transport.http_transport import http_client
from sluicegate.http.client.pool import HttpClient
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json, Notification, decode_fast
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
from sluicegate.store import Store
from sluicegate.store.memory import MemoryStore

log = logging.getLogger(__name__)

T = TypeVar("T")

HEALTHY: Final = 30.0
"""Seconds that a connection must live for its end to be no sign of trouble."""
_SWEEP: Final = 30.0
_SOON: Final = 1.0
_UNTIL_LOGIN: Final = 300.0
_PATIENT: Final = 2.0  # a call waits that long for the end of a back-off, no longer
_OWN: Final = ("server/discover", ROOTS_CHANGED)


ANEW: Final = "dev.sluice/began_anew"


_NO_PART: Final = "takes fewer calls at once than Sluice has replicas, and none of them from this one."


def _unheard(*news: object) -> None:
    """Whom a server tells that is not configured any more."""


async def _era(era: Era) -> Era:
    return era


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
        self.settings = settings
        self._publish, self._moved = publish, moved
        self._clock = clock
        self._started: float | None = None
        self._http = http or http_client(settings)
        self.suspended = SuspendedCalls(ask)
        eras = store or MemoryStore(clock)
        self._connector = Connector(settings, self._heard, client_info, self._http, eras, self.suspended)
        self._pool = ConnectionPool(self._open, self._ended, clock, settings, is_idle)
        self._selector = ConnectionSelector(settings, self._pool, self._connector, self.suspended)
        self._subscriptions = ResourceWatches(self._pool, self._selector.key, settings.list_timeout)
        self._limit = ConcurrencyLimit(settings.concurrency, room(settings.concurrency), clock)
        self._breaker = Breaker(clock)
        self._status: Literal["starting", "up", "down"] = "starting"
        self._health = ServerHealth(settings, lambda: self._connector.stderr)
        self._backoff = RetryBackoff(clock)
        self._is_suspect = False
        self._resumed = 0
        self._settled, self._changed, self._stopped = anyio.Event(), anyio.Event(), anyio.Event()
        self._client_wait, self._expected = client_wait, anyio.Event()
        self._is_needed = not settings.lazy
        self._life: anyio.CancelScope | None = None
        self._is_retired, self._nudged = False, anyio.Event()

    @property
    def key(self) -> str:
        return self.settings.key

    @property
    def identity(self) -> str:
        return self.settings.identity

    @property
    def status(self) -> Literal["starting", "up", "down"]:
        return self._status

    def era_for(self, client: Client) -> Era | None:
        return self._selector.era_for(client)

    def scope(self, client: Client) -> str:
        return self._selector.scope(client)

    def capability_set(self, client: Client, era: Era) -> str:
        return self._selector.capability_set(client, era)

    @property
    def start_timeout(self) -> float:
        return self.settings.start_timeout

    @property
    def start_left(self) -> float:
        waited = 0.0 if self._started is None else self._clock() - self._started
        return 0.0 if self._status == "down" else max(0.0, self.settings.start_timeout - waited)

    async def ready(self, is_needed: bool = False) -> None:
        if is_needed or not self.settings.lazy:
            self._need()
            await self._settled.wait()

    async def hold(self, client: Client) -> Callable[[], None]:
        hearing = await self._in_time(self.settings.list_timeout, client, partial(self._selector.hearing, client))
        return await self._selector.hold(*hearing)

    async def subscribe(self, client: Client, uris: Collection[str], tell: Updated) -> Subscribed:
        add = partial(self._subscriptions.add, client, uris, tell)
        return await self._in_time(self.settings.list_timeout, client, add)

    def expect(self, client: Client) -> None:
        """This client comes first. A legacy server learns at its start what a client can be asked, so its first
        connection is this client's from its first word on: then it need not be started once more."""
        if not self._expected.is_set():
            self._pool.reserve_first(self._selector.key(client, "legacy"))
            self._expected.set()

    def abandon(self, call_id: str) -> None:
        self.suspended.abandon(call_id)  # nobody will answer what its server asked

    def retain(self, holders: Container[str]) -> None:
        """Nobody else can come in any more: nobody waits for their answers, or uses what their keys have opened."""
        self.suspended.retain(holders)
        if self._pool.retain(holders):
            self._changed.set()

    def end_session(self, session: str) -> None:
        """A legacy client's session is over, and with it the connections that were its own."""
        self._pool.end_session(session)
        self._changed.set()

    def describe(self) -> Json:
        eras, parked = sorted(self._connector.eras or ()), len(self.suspended)
        own = {"key": self.key, "transport": self._connector.transport, "status": self._status, "eras": eras}
        boxed = {} if self.settings.sandbox is None else {"sandbox": str(self.settings.sandbox)}
        return own | boxed | describe(self._pool.live()) | self.numbers() | {"parked": parked} | self._health.describe()

    def output(self, after: str) -> Json:
        """Returns what the server wrote to stderr after a position."""
        about = {"server": self.key, "transport": self._connector.transport, "status": self._status}
        return about | self._health.output(after)

    def numbers(self) -> Json:
        """The figures that each scrape reads."""
        limit = {"in_flight": self._limit.busy, "waiting": self._limit.waiting}
        return {"restarts": self._health.restarts, **limit, "circuit": self._breaker.state}

    @property
    def concurrency(self) -> int:
        return self._limit.limit

    @property
    def most_in_flight(self) -> int:
        return self._limit.busy

    def share(self, limit: int, is_settled: bool) -> None:
        self._limit.share(limit, is_settled)

    @property
    def open_calls(self) -> int:
        """Those that wait for their client's answer, or go on after it, are open at the server, too."""
        return self._limit.busy + len(self.suspended) + self._resumed

    @property
    def login_needed(self) -> failures.LoginRequired | None:
        """Why it answers nothing until somebody logs in, where that is so."""
        if self._status != "down":
            return None
        return error if isinstance(error := self._health.error, failures.LoginRequired) else None

    def account(self, client: Client) -> Json | str | None:
        """As of `AccountServers`: nobody logs in to this one."""

    def unavailable(self, call: Call) -> Outcome:
        if (needed := self.login_needed) is not None:
            return failures.failed(call, self.key, needed)
        why = "it has not said yet what it offers."
        if self._limit.is_closed:
            return failures.unavailable(call, self.key, _NO_PART)
        if self._status != "up":
            why = self._health.why(call.client)
        elif self._pool.is_full:
            why = f"{self._pool.all_in_use}."
        return failures.unavailable(call, self.key, f"is not available: {why}")

    def shows(self, client: Client) -> bool:
        return self._status != "down" or self.login_needed is not None

    def __call__(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        if call.method in _OWN:
            return self._own(call)
        if "requestState" in call.params:
            return self._go_on(call)
        return self._relay(call) if call.method == "tasks/result" else self._start(call)  # waits apart

    async def _own(self, call: Call) -> Outcome:
        if call.method == ROOTS_CHANGED:
            self._selector.tell_roots_changed(call.client)
            return Result({})
        discovered = self._discovered(call.client)
        return await self._start(call) if discovered is None else Result(discovered)

    async def _start(self, call: Call) -> Outcome:
        if not self._breaker.admits():
            why = f"it has failed repeatedly and is left alone for a moment: {self._health.error.text}"
            return failures.failed(call, self.key, failures.Lost(why, sent=False), self._health.lines)
        who = call.client.principal
        try:
            waits = not self._limit.enter_at_once(who)
            if waits and not await self._limit.enter(who, self.settings.timeout):
                self._breaker.gave_up()
                why = _NO_PART if self._limit.is_closed else "has too many calls waiting."
                return failures.unavailable(call, self.key, why)
            try:
                is_late = waits and not self.settings.may_still(call)
                return self._failed(call, failures.too_late()) if is_late else await self._relay(call)
            finally:
                self._limit.leave(who)
        except BaseException:
            self._breaker.gave_up()
            raise

    def _discovered(self, client: Client) -> Json | None:
        era = self.era_for(client)
        return self._connector.discovered.get(era) if era is not None and self._status == "up" else None

    async def _go_on(self, call: Call) -> Outcome:
        """The next round of a call. One that a legacy server did not end is taken up there, and nowhere else."""
        state = call.params["requestState"]
        if suspended.is_state(state):
            return await self._resume(call, state)
        try:
            era = self.era_for(call.client) or await self._in_time(self.settings.timeout, call.client, _era)
        except failures.Lost as lost:
            return self._failed(call, lost)
        if era == "modern":
            return await self._start(call)
        if url_elicitation.is_state(state):
            again = url_elicitation.consented(call)
            return await self._start(again) if isinstance(again, Call) else again
        return failures.over(call, self.key)

    async def _resume(self, call: Call, state: str) -> Outcome:
        parked = self.suspended.take(state, holder(call.client.principal, call.client.credential))
        if parked is None:
            return failures.over(call, self.key)
        self._resumed += 1
        try:
            outcome = await parked.resume(call)
        except failures.AnswerTooLarge as error:
            return await self._too_large(call, error)
        except (failures.Lost, TimeoutError) as error:
            return self._failed(call, error)
        finally:
            self._resumed -= 1
        self._breaker.succeeded()
        return outcome

    async def _relay(self, call: Call, is_again: bool = False) -> Outcome:
        try:
            connection, has_waited = self._selector.find(call), is_again
            if connection is None:
                connection, has_waited = await self._connect(call), True
            if has_waited and not self.settings.may_still(call):
                raise failures.too_late()
            if call.method == "server/discover":
                return Result(connection.discovered)
            if (failure := undeclared(call, connection)) is not None:
                self._breaker.gave_up()
                return failure
            outcome = await connection.handle(call)
            if connection.anew:
                outcome = began_anew(call, outcome, connection)
        except failures.AnswerTooLarge as error:
            return await self._too_large(call, error)
        except (failures.Lost, TimeoutError) as error:
            if is_again or not isinstance(error, failures.Lost) or not failures.may_resend(call.method, error):
                return self._failed(call, error)
            self._lost(error)
            return await self._relay(call, is_again=True)
        self._breaker.succeeded()
        if self._is_suspect:
            self._mark_up(is_heard=True)
        return outcome

    def _connect(self, call: Call) -> Awaitable[ServerConnection]:
        timeout = self.settings.list_timeout if call.method in LISTS else self.settings.timeout
        return self._in_time(timeout, call.client, partial(self._selector.get, call))

    async def _too_large(self, call: Call, error: failures.AnswerTooLarge) -> Outcome:
        """A refusal; where the answer was kept, its parts are in the trail."""
        if error.spool is not None and self.settings.large is not None:
            call.trail.oversized = await self.settings.large.split(error.spool, error.id, call.method)
        return self._failed(call, error)

    def _failed(self, call: Call, error: failures.Lost | TimeoutError | failures.AnswerTooLarge) -> Outcome:
        if isinstance(error, failures.Full | failures.LoginRequired | failures.Withheld):
            self._breaker.gave_up()
        elif isinstance(error, failures.Lost):
            self._lost(error)
        elif isinstance(error, failures.AnswerTooLarge):
            self._breaker.succeeded()
        else:
            self._breaker.failed()
            self._health.failed(error, f"no answer to {call.method} in time")
        return failures.failed(call, self.key, error, self._health.lines)

    def _lost(self, lost: failures.Lost) -> None:
        if lost.gone and not lost.sent:
            return  # the server is there; only that connection is not
        self._breaker.failed()
        self._health.failed(lost)
        if self.settings.url and not lost.sent and lost.status is None:
            self._is_suspect = True  # nothing listens there: find out when it does again
            self._mark_down(lost)
            self._changed.set()

    async def _in_time(self, timeout: float, client: Client, reach: Callable[[Era], Awaitable[T]]) -> T:
        """What `reach` finds or makes, once it is known how to speak to the server. Raises `Lost`."""
        with anyio.move_on_after(timeout):
            if not self._settled.is_set():
                self._need(client)
                await self._settled.wait()
            if (era := self.era_for(client)) is None:
                raise failures.as_lost(self._health.error, "it cannot be reached")
            try:
                return await reach(era)
            except TimeoutError:
                raise failures.Lost("it does not answer", sent=False) from None
            except failures.Lost:
                raise
            except OSError as error:
                raise failures.as_lost(error) from None
        why = "all its connections are taken" if self._status == "up" else "it is still starting"
        raise failures.Full(why, sent=False)

    async def _open(self, key: ConnectionKey, group: TaskGroup) -> ServerConnection:
        """Opens a connection, after the end of a back-off. Every dial passes here."""
        legacy = self._pool.first if key == MODERN_KEY else key  # the era may turn out to be the other one
        if self._backoff.left > _PATIENT:
            raise failures.as_lost(self._health.error, "it failed a moment ago")
        if (wait := self._backoff.left) > 0:
            await anyio.sleep(wait)
        is_start = self._status != "up"
        if is_start:
            self._health.note("connecting")
        try:
            declared = decode_fast(legacy.declared.encode())
            connection = await self._connector.open(key.era, group, declared, legacy.session)
        except (OSError, TimeoutError) as error:
            if isinstance(error, failures.Lost) and error.sent:
                error.sent = error.gone = False  # the handshake was sent, no call
            self._health.failed(error)
            self._health.note("failed", str(self._health.error))
            self._backoff.failed()
            raise
        if is_start:
            self._health.note("connected", f"{connection.era}, {self._connector.transport}")
        self._mark_up(is_heard=True)
        return connection

    def _ended(self, lived: float, why: str) -> None:
        self._health.ended(why)
        self._health.note("ended", why)
        log.warning("connection ended", extra=self._health.log(lived=round(lived, 1)))
        if lived < HEALTHY:
            self._backoff.failed()
        else:
            self._backoff.succeeded()
        self._changed.set()

    def reconnect(self) -> None:
        """Tries at once to reach it, though it failed a moment ago; what is open stays open."""
        self._backoff.forget()
        self._breaker.succeeded()
        self._nudged.set()

    def logged_in(self) -> None:
        """It wanted a login, and has one now: calls wait for what comes of that, as at the start."""
        self._status, self._settled = "starting", anyio.Event()
        self.reconnect()

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._nudged.wait()
        self._nudged = anyio.Event()

    def retire(self, why: str) -> None:
        """It is not configured any more, or another takes its place: its calls end, and nobody hears of it again."""
        self._publish, self._moved = _unheard, _unheard
        self._is_retired, self._status = True, "down"
        self._health.failed(failures.Lost(why, sent=False))
        self._pool.retire(why)
        if self._life is not None:
            self._life.cancel()

    def inherit(self, before: "DownstreamServer") -> None:
        """It takes the key of that one: sessions that were open there are told."""
        self._pool.lost.inherit(before._pool.lost)

    async def run(self) -> None:
        """Keeps the server reachable until it is cancelled or `aclose` is called."""
        if self._is_retired:
            self._settled.set()
            return
        self._stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                self._life = group.cancel_scope
                self._pool.start(group)
                self._subscriptions.start(group)
                try:
                    await self._maintain()
                finally:
                    # From here on the group waits for what it has: anyio would cancel nothing that begins later.
                    self._pool.stop()
        finally:
            self._pool.stop()
            self._subscriptions.stop()
            self.suspended.close()
            self._settled.set()
            self._stopped.set()

    async def aclose(self) -> None:
        if self._life is not None:
            self._life.cancel()
            await self._stopped.wait()
        if self._http is not None:
            await self._http.aclose()

    async def _maintain(self) -> None:
        while not self._is_needed:
            await self._await_change(_SWEEP)
        with anyio.move_on_after(self._client_wait):
            await self._expected.wait()
        self._started = self._clock()
        while True:
            try:
                await self._attend()
            except (OSError, TimeoutError) as error:
                if self._is_suspect or not self._pool.live():
                    self._mark_down(error)
                self._settled.set()
                # Nobody has logged in: another attempt helps when somebody has, and `reconnect` says so.
                needs_login = isinstance(self._health.error, failures.LoginRequired)
                await self._pause(_UNTIL_LOGIN if needs_login else max(self._backoff.left, 0.05))
            else:
                is_there = bool(self._pool.live())  # else a call is dialling: `_open` says what comes of that
                if is_there:
                    self._mark_up()
                self._settled.set()
                await self._await_change(min(_SWEEP, self.settings.idle or _SWEEP) if is_there else _SOON)
                self._pool.sweep()

    def _need(self, client: Client | None = None) -> None:
        if not self._is_needed:
            if client is not None and self._expected.is_set():  # a lazy server is started for who needs it
                self._pool.reserve_first(self._selector.key(client, "legacy"))
            self._is_needed = True
            self._changed.set()

    async def _await_change(self, timeout: float) -> None:
        with anyio.move_on_after(timeout):
            await self._changed.wait()
        self._changed = anyio.Event()

    async def _attend(self) -> None:
        """Brings about what should be: the eras known, every held connection open, at least one in any case."""
        if (left := self._backoff.left) > 0:
            await self._pause(left)
        if len(self._pool) == 0:
            await self._connector.recall()
            if self._connector.eras is None and self._status == "up":
                self._settled = anyio.Event()  # calls wait, as at the start
        if self._connector.eras is None:
            with suppress(failures.NotModern):  # then there is a legacy one
                await self._pool.get(MODERN_KEY)
        if self._is_suspect:
            await self._check()
        for key in self._pool.missing():
            if key.era in (self._connector.eras or ()):
                await self._pool.get(key)
        if len(self._pool) == 0:
            await self._pool.get(MODERN_KEY if "modern" in (self._connector.eras or ()) else self._pool.first)
        self._subscriptions.renew()

    async def _check(self) -> None:
        try:
            for connection in self._pool.live()[:1]:
                await connection.check()
                self._mark_up(is_heard=True)
        except (failures.Lost, TimeoutError) as error:
            self._health.failed(error, "no answer")
            self._backoff.failed()
            raise

    def _heard(self, scope: str | None, notification: Notification) -> None:
        self._publish(self.key, "" if scope is None and self.settings.sharing == "shared" else scope, notification)

    def _mark_up(self, is_heard: bool = False) -> None:
        """`is_heard`: it was, just now, so that the breaker which opened because nothing listened there is closed."""
        if is_heard and self._is_suspect:
            self._is_suspect = False
            self._breaker.succeeded()
        if self._status != "up" and not self._is_suspect:
            self._status = "up"
            self._health.note("up")
            self._moved(self.key)

    def _mark_down(self, error: Exception) -> None:
        self._health.failed(error)
        if self._status != "down":
            self._health.note("down", str(self._health.error))
            log.warning("server is down", extra=self._health.log())
            self._status = "down"
            self._moved(self.key)


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
    return Result({**outcome.value, "_meta": {**(meta if isinstance(meta, dict) else {}), ANEW: why}})
