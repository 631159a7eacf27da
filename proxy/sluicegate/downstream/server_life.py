"""Whether one server can be reached: it is started, dialled and dialled again here, and its failures are counted.

Says which era a client is served in as soon as that is known. Knows connections and no call.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal, TypeVar

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream import failures
from sluicegate.downstream.call_limits import Breaker, RetryBackoff
from sluicegate.downstream.connector import Connector
from sluicegate.downstream.pool import MODERN_KEY, ConnectionKey, ConnectionPool
from sluicegate.downstream.resource_subscriptions import ResourceWatches
from sluicegate.downstream.selector import ConnectionSelector
from sluicegate.downstream.server_output import ServerHealth
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.suspended import SuspendedCalls
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol.jsonrpc import decode_fast
from sluicegate.protocol.model import Client, Era

log = logging.getLogger(__name__)

T = TypeVar("T")

HEALTHY: Final = 30.0
"""Seconds that a connection must live for its end to be no sign of trouble."""
_SWEEP: Final = 30.0
_SOON: Final = 1.0
_UNTIL_LOGIN: Final = 300.0
_PATIENT: Final = 2.0  # a call waits that long for the end of a back-off, no longer


class Signal:
    """An event that is over once it was waited for."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()


class ServerLife:
    """`run` must be running for connections to be made. `moved` is told that the server came up or went down. The start
    waits `client_wait` seconds at most for the first client (`expect`)."""

    def __init__(
        self, settings: ServerSettings, connector: Connector, suspended: SuspendedCalls, clock: Callable[[], float],
        moved: Callable[[str], None], is_idle: Callable[[str], bool], client_wait: float,
    ) -> None:  # fmt: skip
        self._settings, self._connector, self._suspended, self._clock = settings, connector, suspended, clock
        self._moved = moved
        self.pool = ConnectionPool(self._open, self._ended, clock, settings, is_idle)
        self.selector = ConnectionSelector(settings, self.pool, connector, suspended)
        self.subscriptions = ResourceWatches(self.pool, self.selector.key, settings.list_timeout)
        self.breaker, self._backoff = Breaker(clock), RetryBackoff(clock)
        self.health = ServerHealth(settings, lambda: connector.stderr)
        self.status: Literal["starting", "up", "down"] = "starting"
        self.is_suspect = False
        """Nothing listened there when it was last needed."""
        self._started: float | None = None
        self.changed, self._nudged = Signal(), Signal()
        self._settled, self._stopped = anyio.Event(), anyio.Event()
        self._client_wait, self._expected = client_wait, anyio.Event()
        self._is_needed = not settings.lazy
        self._scope: anyio.CancelScope | None = None
        self._is_retired = False

    @property
    def start_left(self) -> float:
        waited = 0.0 if self._started is None else self._clock() - self._started
        return 0.0 if self.status == "down" else max(0.0, self._settings.start_timeout - waited)

    async def ready(self, is_needed: bool = False) -> None:
        if is_needed or not self._settings.lazy:
            self._need()
            await self._settled.wait()

    def expect(self, client: Client) -> None:
        """This client comes first. A legacy server learns at its start what a client can be asked, so its first
        connection is this client's from its first word on: then it need not be started once more."""
        if not self._expected.is_set():
            self.pool.reserve_first(self.selector.key(client, "legacy"))
            self._expected.set()

    @property
    def login_needed(self) -> failures.LoginRequired | None:
        """Why it answers nothing until somebody logs in, where that is so."""
        if self.status != "down":
            return None
        return error if isinstance(error := self.health.error, failures.LoginRequired) else None

    def lost(self, lost: failures.Lost) -> None:
        if lost.gone and not lost.sent:
            return  # the server is there; only that connection is not
        self.breaker.failed()
        self.health.failed(lost)
        if self._settings.url and not lost.sent and lost.status is None:
            self.is_suspect = True  # nothing listens there: find out when it does again
            self._mark_down(lost)
            self.changed.set()

    async def in_time(self, timeout: float, client: Client, reach: Callable[[Era], Awaitable[T]]) -> T:
        """What `reach` finds or makes, once it is known how to speak to the server. Raises `Lost`."""
        with anyio.move_on_after(timeout):
            if not self._settled.is_set():
                self._need(client)
                await self._settled.wait()
            if (era := self.selector.era_for(client)) is None:
                raise failures.as_lost(self.health.error, "it cannot be reached")
            try:
                return await reach(era)
            except TimeoutError:
                raise failures.Lost("it does not answer", sent=False) from None
            except failures.Lost:
                raise
            except OSError as error:
                raise failures.as_lost(error) from None
        why = "all its connections are taken" if self.status == "up" else "it is still starting"
        raise failures.Full(why, sent=False)

    async def _open(self, key: ConnectionKey, group: TaskGroup) -> ServerConnection:
        """Opens a connection, after the end of a back-off. Every dial passes here."""
        legacy = self.pool.first if key == MODERN_KEY else key  # the era may turn out to be the other one
        if self._backoff.left > _PATIENT:
            raise failures.as_lost(self.health.error, "it failed a moment ago")
        if (wait := self._backoff.left) > 0:
            await anyio.sleep(wait)
        is_start = self.status != "up"
        if is_start:
            self.health.note("connecting")
        try:
            declared = decode_fast(legacy.declared.encode())
            connection = await self._connector.open(key.era, group, declared, legacy.session)
        except (OSError, TimeoutError) as error:
            if isinstance(error, failures.Lost) and error.sent:
                error.sent = error.gone = False  # the handshake was sent, no call
            self.health.failed(error)
            self.health.note("failed", str(self.health.error))
            self._backoff.failed()
            raise
        if is_start:
            self.health.note("connected", f"{connection.era}, {self._connector.transport}")
        self.mark_up(is_heard=True)
        return connection

    def _ended(self, lived: float, why: str) -> None:
        self.health.ended(why)
        self.health.note("ended", why)
        log.warning("connection ended", extra=self.health.log(lived=round(lived, 1)))
        if lived < HEALTHY:
            self._backoff.failed()
        else:
            self._backoff.succeeded()
        self.changed.set()

    def reconnect(self) -> None:
        """Tries at once to reach it, though it failed a moment ago; what is open stays open."""
        self._backoff.forget()
        self.breaker.succeeded()
        self._nudged.set()

    def logged_in(self) -> None:
        """It wanted a login, and has one now: calls wait for what comes of that, as at the start."""
        self.status, self._settled = "starting", anyio.Event()
        self.reconnect()

    def retire(self, why: str) -> None:
        """It is not configured any more, or another takes its place: its calls end, and nobody hears of it again."""
        self._is_retired, self.status = True, "down"
        self.health.failed(failures.Lost(why, sent=False))
        self.pool.retire(why)
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Keeps the server reachable until it is cancelled or `aclose` is called."""
        if self._is_retired:
            self._settled.set()
            return
        self._stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                self.pool.start(group)
                self.subscriptions.start(group)
                try:
                    await self._maintain()
                finally:
                    # From here on the group waits for what it has: anyio would cancel nothing that begins later.
                    self.pool.stop()
        finally:
            self.pool.stop()
            self.subscriptions.stop()
            self._suspended.close()
            self._settled.set()
            self._stopped.set()

    async def aclose(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
            await self._stopped.wait()

    async def _maintain(self) -> None:
        while not self._is_needed:
            await self.changed.wait(_SWEEP)
        with anyio.move_on_after(self._client_wait):
            await self._expected.wait()
        self._started = self._clock()
        while True:
            try:
                await self._attend()
            except (OSError, TimeoutError) as error:
                if self.is_suspect or not self.pool.live():
                    self._mark_down(error)
                self._settled.set()
                # Nobody has logged in: another attempt helps when somebody has, and `reconnect` says so.
                needs_login = isinstance(self.health.error, failures.LoginRequired)
                await self._nudged.wait(_UNTIL_LOGIN if needs_login else max(self._backoff.left, 0.05))
            else:
                is_there = bool(self.pool.live())  # else a call is dialling: `_open` says what comes of that
                if is_there:
                    self.mark_up()
                self._settled.set()
                await self.changed.wait(min(_SWEEP, self._settings.idle or _SWEEP) if is_there else _SOON)
                self.pool.sweep()

    def _need(self, client: Client | None = None) -> None:
        if not self._is_needed:
            if client is not None and self._expected.is_set():  # a lazy server is started for who needs it
                self.pool.reserve_first(self.selector.key(client, "legacy"))
            self._is_needed = True
            self.changed.set()

    async def _attend(self) -> None:
        """Brings about what should be: the eras known, every held connection open, at least one in any case."""
        if (left := self._backoff.left) > 0:
            await self._nudged.wait(left)
        if len(self.pool) == 0:
            await self._connector.recall()
            if self._connector.eras is None and self.status == "up":
                self._settled = anyio.Event()  # calls wait, as at the start
        if self._connector.eras is None:
            with suppress(failures.NotModern):  # then there is a legacy one
                await self.pool.get(MODERN_KEY)
        if self.is_suspect:
            await self._check()
        for key in self.pool.missing():
            if key.era in (self._connector.eras or ()):
                await self.pool.get(key)
        if len(self.pool) == 0:
            await self.pool.get(MODERN_KEY if "modern" in (self._connector.eras or ()) else self.pool.first)
        self.subscriptions.renew()

    async def _check(self) -> None:
        try:
            for connection in self.pool.live()[:1]:
                await connection.check()
                self.mark_up(is_heard=True)
        except (failures.Lost, TimeoutError) as error:
            self.health.failed(error, "no answer")
            self._backoff.failed()
            raise

    def mark_up(self, is_heard: bool = False) -> None:
        """`is_heard`: it was, just now, so that the breaker which opened because nothing listened there is closed."""
        if is_heard and self.is_suspect:
            self.is_suspect = False
            self.breaker.succeeded()
        if self.status != "up" and not self.is_suspect:
            self.status = "up"
            self.health.note("up")
            self._tell()

    def _mark_down(self, error: Exception) -> None:
        self.health.failed(error)
        if self.status != "down":
            self.health.note("down", str(self.health.error))
            log.warning("server is down", extra=self.health.log())
            self.status = "down"
            self._tell()

    def _tell(self) -> None:
        if not self._is_retired:
            self._moved(self._settings.key)
