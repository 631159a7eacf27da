"""How one server is reached: it is started, dialled and dialled again here, and a connection is chosen for each call.

Says which era a client is served in as soon as that is known. Counts failures, and knows nothing of what calls become.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream import failures
from sluicegate.downstream.call_limits import Breaker, RetryBackoff
from sluicegate.downstream.connector import Connector
from sluicegate.downstream.pool import MODERN_KEY, ConnectionKey, ConnectionPool, key_for, spare_for
from sluicegate.downstream.resource_subscriptions import ResourceWatches
from sluicegate.downstream.server_output import ServerHealth
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.suspended import SuspendedCalls
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.tasks import task_ids
from sluicegate.protocol import input_requests_server
from sluicegate.protocol.jsonrpc import Json, decode_fast
from sluicegate.protocol.methods import ABOUT_A_TASK, ASKING, SEEN_BY_ALL
from sluicegate.protocol.model import Call, Client, Era, holder
from sluicegate.protocol.modern_client import capability_key

log = logging.getLogger(__name__)

T = TypeVar("T")

HEALTHY: Final = 30.0
"""Seconds that a connection must live for its end to be no sign of trouble."""
_SWEEP: Final = 30.0
_SOON: Final = 1.0
_UNTIL_LOGIN: Final = 300.0
_PATIENT: Final = 2.0  # a call waits that long for the end of a back-off, no longer
MAX_LANES: Final = 32
"""Connections of one client on which a call may be asked back, parked ones among them."""
_MOMENT: Final = 0.1
"""Seconds: most calls end sooner than another process starts."""
_MAX_REMEMBERED: Final = 1024


class _Selection(NamedTuple):
    """Where the calls of a client go, as long as these are the server's eras."""

    eras: frozenset[Era]
    key: ConnectionKey
    scope: str


class ConnectionSelector:
    """Which connection carries which call. Three rules hold: lists are equal for all of one scope, so any connection of
    it answers them; everything else goes by the connection of its own client; and where a server's questions could not
    be told apart, one call at a time has a connection for itself.

    The last rule is for servers on one channel for all (stdio) that may ask a client which has no session of its own:
    many clients may be behind one principal, and a question must reach the one whose call caused it. Calls that may be
    asked back take turns on a connection; who waits longer than a moment is given another, for a person may take
    minutes to answer."""

    def __init__(
        self, settings: ServerSettings, pool: ConnectionPool, connector: Connector, suspended: SuspendedCalls
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._connector = connector
        self._capability_keys: dict[tuple[str, str, Era, bool], str] = {}
        self._selections: dict[tuple[str, str, str | None, str, str], _Selection] = {}
        self._suspended = suspended

    def era_for(self, client: Client) -> Era | None:
        eras = self._connector.eras
        if eras is None:
            return None
        if client.era in eras:
            return client.era  # the client's own: nothing needs bridging then
        return "legacy" if client.era == "modern" else "modern"

    def scope(self, client: Client) -> str:
        if self._settings.sharing == "shared":
            return ""
        if (selection := self._select(client)) is not None:
            return selection.scope
        return self._scope(client, client.era)

    def _scope(self, client: Client, era: Era) -> str:
        """Few for each principal, whatever it writes into its capabilities: each has lists of its own."""
        listing = self._declared(client, era, for_lists=True)
        return f"{era} {holder(client.principal, client.credential)} {listing}"

    def capability_set(self, client: Client, era: Era) -> str:
        return input_requests_server.capability_set({} if self._settings.sharing == "shared" else _carried(client, era))

    def _declared(self, client: Client, era: Era, for_lists: bool = False) -> str:
        """The capabilities that the server is told of, as canonical text: what is not carried makes no difference."""
        selection = (client.capability_key, client.revision, era, for_lists)
        found = self._capability_keys.get(selection)
        if found is None:
            if len(self._capability_keys) >= _MAX_REMEMBERED:
                self._capability_keys.clear()
            carried = _carried(client, era)
            text = capability_key(input_requests_server.listing(carried) if for_lists else carried)
            found = self._capability_keys[selection] = text
        return found

    def _select(self, client: Client) -> _Selection | None:
        """None until it is known how to speak to the server. Remembered: every call asks twice, and finding it is a
        dozen calls of functions."""
        eras = self._connector.eras
        about = (client.principal, client.credential, client.session, client.capability_key, client.revision)
        selection = self._selections.get(about)
        if selection is not None and selection.eras is eras:
            return selection
        era = self.era_for(client)
        if era is None or eras is None:
            return None
        if len(self._selections) >= _MAX_REMEMBERED:
            self._selections.clear()
        selection = self._selections[about] = _Selection(eras, self.key(client, era), self._scope(client, era))
        return selection

    def key(self, client: Client, era: Era) -> ConnectionKey:
        return key_for(client, era, self._settings, self._scope(client, era), self._declared(client, era))

    def find(self, call: Call) -> ServerConnection | None:
        """Finds a connection without waiting. On the hot path."""
        if (selection := self._select(call.client)) is None:
            return None
        if call.method in ABOUT_A_TASK:
            return self._with_task(call.params["taskId"])
        key = selection.key
        connection = self._pool.find(key)
        if connection is None:
            return self._pool.find_like(key) if call.method in SEEN_BY_ALL else None
        return None if _is_busy(connection, call) else connection

    def _with_task(self, id: str) -> ServerConnection | None:
        """Most tasks are known on the connection that began them alone. Raises `TaskGone` without it."""
        mark = task_ids.mark_of(id)
        if mark == task_ids.FREE:
            return self._pool.find(MODERN_KEY)
        found = next((connection for connection in self._pool.live() if connection.mark == mark), None)
        if found is None:
            raise failures.TaskGone
        return found

    async def get(self, call: Call, era: Era) -> ServerConnection:
        """Raises what dialling raises. Nothing may be awaited between its return and the use of what it returns."""
        key = self.key(call.client, era)
        if era == "legacy" and call.method in SEEN_BY_ALL:
            is_coming = self._pool.is_there(key)
            wanted = key if is_coming else spare_for(key)
            return self._pool.find_like(key) or await self._pool.get(wanted, key.principal)
        connection = await self._pool.get(key)
        return await self._lane(key, call) if _is_busy(connection, call) else connection

    async def hearing(self, client: Client, era: Era) -> tuple[ServerConnection, ConnectionKey]:
        """A connection on which the client's changes are heard, and the key to hold."""
        key = self.key(client, era)
        if era == "modern":
            return await self._pool.get(key), key
        return self._pool.find_hearing(key) or await self._pool.get(spare_for(key), key.principal), key

    async def hold(self, connection: ServerConnection, key: ConnectionKey) -> Callable[[], None]:
        """Returns when changes are heard on it, or it takes too long; and what ends the need for that."""
        release = self._pool.needs.hold(key)
        try:
            with anyio.move_on_after(self._settings.list_timeout):
                await connection.live()
        except BaseException:
            release()
            raise
        return release

    def tell_roots_changed(self, client: Client) -> None:
        if client.session is not None:
            for connection in self._pool.live():
                if connection.session == client.session:
                    connection.tell_roots_changed()

    async def _lane(self, key: ConnectionKey, call: Call) -> ServerConnection:
        patient_until = anyio.current_time() + _MOMENT
        while True:
            lanes = [key._replace(lane=number) for number in range(MAX_LANES)]
            for lane in lanes:
                connection = self._pool.find(lane)
                if connection is not None and not _is_busy(connection, call):
                    return connection
            missing = next((lane for lane in lanes if not self._pool.is_there(lane)), None)
            if self._pool.is_full:
                missing = None
            left = patient_until - anyio.current_time()
            if missing is not None and left <= 0:
                await self._pool.get(missing)  # who comes first is served first, also by this one
            else:
                with anyio.move_on_after(left if missing is not None else None):
                    await self._suspended.until_free()


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
        self.pool = ConnectionPool(self._open, self._ended, clock, settings, is_idle, self._due)
        self.selector = ConnectionSelector(settings, self.pool, connector, suspended)
        patience, most = settings.list_timeout, settings.max_result
        self.subscriptions = ResourceWatches(self.pool, self.selector.key, patience, most)
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

    def lost(self, lost: failures.Lost, whose: str) -> None:
        if (lost.gone and not lost.sent) or not lost.was_tried or self._is_retired:
            return  # the server is there, only that connection is not; or nobody asked it; or nobody will
        self.breaker.failed(whose)
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
                raise failures.known(self.health.error, "it cannot be reached")
            try:
                return await reach(era)
            except TimeoutError:
                raise failures.Lost("it does not answer", sent=False) from None
            except failures.Lost:
                if self._is_retired:
                    raise failures.known(self.health.error, "it is not running") from None
                raise
            except OSError as error:
                raise failures.as_lost(error) from None
        why = "all its connections are taken" if self.status == "up" else "it is still starting"
        raise failures.Full(why, sent=False)

    async def _open(self, key: ConnectionKey, group: TaskGroup) -> ServerConnection:
        """Opens a connection, after the end of a back-off. Every dial passes here."""
        legacy = self.pool.first if key == MODERN_KEY else key  # the era may turn out to be the other one
        await _pause(self._backoff.left(key.principal), self.health.error)
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

    async def _due(self, whose: str) -> None:
        await _pause(self._backoff.own_left(whose), self.health.error)

    def _ended(self, key: ConnectionKey, lived: float, why: str) -> None:
        self.health.ended(why)
        self.health.note("ended", why)
        log.warning("connection ended", extra=self.health.log(lived=round(lived, 1)))
        if lived < HEALTHY:
            self._backoff.failed(key.principal)
        else:
            self._backoff.succeeded(key.principal)
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

    def retire(self, why: str | failures.LoginRequired) -> None:
        """It is not configured any more, or another takes its place: its calls end, and nobody hears of it again."""
        lost = failures.Lost(why, sent=False) if isinstance(why, str) else why
        self._is_retired, self.status = True, "down"
        self.health.failed(lost)
        self.pool.retire(why if isinstance(why, str) else "its login has ended")  # said of calls that may have run
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
                await self._nudged.wait(_UNTIL_LOGIN if needs_login else max(self._backoff.left(), 0.05))
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
        if (left := self._backoff.left()) > 0:
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


async def _pause(left: float, error: Exception) -> None:
    """Waits for the end of a back-off. Raises what is known where that is too far."""
    if left > _PATIENT:
        raise failures.known(error, "it failed a moment ago")
    if left > 0:
        await anyio.sleep(left)


def _carried(client: Client, era: Era) -> Json:
    """The client capabilities that are declared to a server of that era."""
    return (
        input_requests_server.for_legacy_server(client)
        if era == "legacy"
        else input_requests_server.for_modern_server(client)
    )


def _is_busy(connection: ServerConnection, call: Call) -> bool:
    return connection.is_exclusive and call.method in ASKING and connection.is_taken
