"""Which connections there are, whose they are, and how long they live.

Equal keys share one connection. One task is one connection's whole life: dialling, living, closing; so nothing of it
can outlive it. The pool reads keys and connections; it chooses no transport and reads no call.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import Full, Lost, NotModern
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Client, Era, holder


class ConnectionKey(NamedTuple):
    """Equal keys share a connection. `scope` is whose lists it sees, None for everybody's; `declared` the canonical
    text of the capabilities that the server is told of; `lane` tells connections apart that do not differ. A tuple,
    because every call looks one up, and a dataclass is hashed and compared in Python."""

    era: Era
    owner: tuple[str, ...] = ()
    scope: str | None = None
    declared: str = "{}"
    lane: int = 0

    @property
    def session(self) -> str | None:
        return self.owner[2] if self.owner[:1] == ("session",) else None

    @property
    def principal(self) -> str:
        """The principal of the connection; empty where it belongs to no one client."""
        return self.owner[1] if len(self.owner) > 1 else ""

    @property
    def is_spare(self) -> bool:
        return self.owner == _SPARE


_SPARE: Final = ("spare",)
MODERN_KEY: Final = ConnectionKey("modern")
SPARE: Final = ConnectionKey("legacy", _SPARE)
SHARED: Final = ConnectionKey("legacy")


def key_for(client: Client, era: Era, settings: ServerSettings, scope: str, declared: str) -> ConnectionKey:
    """A legacy connection is a session, and belongs to who may see what another left in it. To a modern server there
    is one for all, a process too: it must not take either for a client (2026-07-28 basic/index#statelessness), what it
    keeps has a handle that is in the request, and the process of a client that is idle for long would end with it."""
    if era == "modern":
        return MODERN_KEY
    if settings.sharing == "shared":
        return SHARED
    if settings.sharing == "session" and client.session is not None:
        return ConnectionKey("legacy", ("session", client.principal, client.session), scope, declared)
    whose = (client.principal, client.credential) if client.credential else (client.principal,)
    return ConnectionKey("legacy", ("client", *whose), scope, declared)


def spare_for(key: ConnectionKey) -> ConnectionKey:
    """Nobody's connection, that could become this one's: nothing was done on it but to look at its lists."""
    return SHARED if key == SHARED else ConnectionKey("legacy", _SPARE, None, key.declared)


log = logging.getLogger(__name__)

IDLE: Final = 600.0
IDLE_LANE: Final = 60.0
MAX_CONNECTIONS: Final = 512
_MAX_TAKEN: Final = 10_000


Open = Callable[[ConnectionKey, TaskGroup], Awaitable[ServerConnection]]
Due = Callable[[str], Awaitable[None]]
"""Returns when that principal may have a spare, as one that has not just ended its own; raises as dialling does."""


async def _at_once(principal: str) -> None:
    """Nobody has to wait."""


@dataclass(slots=True, eq=False)
class PooledConnection:
    """One connection's place in the pool, from dialling to its end."""

    key: ConnectionKey
    opened: float
    used: float
    connection: ServerConnection | None = None
    error: Exception | None = None
    arrived: anyio.Event = field(default_factory=anyio.Event)
    dial: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_wanted: bool = True  # False when we end it ourselves: then its end is no failure
    legacy: ConnectionKey = SPARE  # what it is if its server turns out to speak no modern revision

    @property
    def is_live(self) -> bool:
        return self.connection is not None and not self.connection.is_over

    @property
    def is_at_rest(self) -> bool:
        """Nothing runs on it. An open stream of its session does not keep it from who has less than an equal share."""
        return self.connection is not None and not (self.connection.is_over or self.connection.is_busy)

    @property
    def may_be_taken(self) -> bool:
        """It is one client's, and nothing runs on it but tasks, which may hold it for a day, and calls that wait for
        their client. Only who has an equal share keeps it for those."""
        if self.connection is None or self.connection.is_over:
            return False
        return bool(self.key.principal) and not self.connection.has_running_call

    def end(self, why: str, all_lost: bool) -> None:
        self.is_wanted = False
        if self.connection is not None:
            self.connection.retire(why, all_lost)
        else:
            self.error = Full(why, sent=False)
            self.dial.cancel()


def _scope_of(slot: PooledConnection) -> tuple[Era, str | None]:
    return slot.key.era, slot.key.scope


Scopes = Counter[tuple[Era, str | None]]


def _is_heard(need: ConnectionKey, heard: Container[tuple[Era, str | None]]) -> bool:
    return (need.era, need.scope) in heard or (need.era, None) in heard


class ConnectionUse:
    """Ends one need, once. There is one for each idle session and server, so it is small."""

    __slots__ = ("_need", "_needs")

    def __init__(self, needs: "ConnectionNeeds", need: ConnectionKey) -> None:
        self._needs = needs
        self._need: ConnectionKey | None = need

    def __call__(self) -> None:
        need, self._need = self._need, None
        if need is not None:
            self._needs.release(need)


class ConnectionNeeds:
    """What somebody wants to hear of, and which connections would be missed."""

    def __init__(self) -> None:
        # need -> itself, so that equal ones are one object, and how often
        self._held: dict[ConnectionKey, tuple[ConnectionKey, int]] = {}
        self._wanted = Scopes()  # how often each is needed
        self._required: set[ConnectionKey] = set()

    def hold(self, key: ConnectionKey) -> ConnectionUse:
        """Somebody wants to hear of changes as a connection of that key would: another of its scope will do. Gives
        what ends the need."""
        need = key._replace(owner=(), lane=0)
        need, count = self._held.get(need, (need, 0))
        self._held[need] = need, count + 1
        self._wanted[need.era, need.scope] += 1
        return ConnectionUse(self, need)

    def release(self, need: ConnectionKey) -> None:
        need, count = self._held.pop(need)
        if count > 1:
            self._held[need] = need, count - 1
        place = need.era, need.scope
        self._wanted[place] -= 1
        if not self._wanted[place]:
            del self._wanted[place]

    def require(self, key: ConnectionKey, is_required: bool) -> None:
        """Whether that very connection is needed: what was done on it would be lost with it."""
        (self._required.add if is_required else self._required.discard)(key)

    def lacking(self, slots: Iterable[PooledConnection]) -> list[ConnectionKey]:
        """Keys of connections, one of each era, on which would be heard what nobody hears."""
        heard = _heard(slots)
        lacking = {need.era: need for need in self._held if not _is_heard(need, heard)}
        return [MODERN_KEY if era == "modern" else spare_for(need) for era, need in lacking.items()]

    def may_lose(self, slot: PooledConnection, heard: Scopes) -> bool:
        """Whether everybody would hear what they want to if this one ended, of those on which that is `heard`."""
        mine = era, scope = _scope_of(slot)
        if slot.key in self._required:
            return False
        if heard[mine] > 1:
            return True
        if scope is not None:
            return mine not in self._wanted or heard[era, None] > 0
        return all(one[0] != era or (one != mine and heard[one]) for one in self._wanted)

    def may_lose_idle(self, slot: PooledConnection, heard: Scopes) -> bool:
        """The same of one at rest: of a session that is idle nobody hears what its server announces."""
        return slot.key not in self._required if slot.key.session is not None else self.may_lose(slot, heard)


class LostSessions:
    """Sessions that lost their connection, and why: each learns it with the next result on another one."""

    def __init__(self, server_key: str) -> None:
        self._server_key = server_key
        self._why: dict[str | None, str] = {}

    def add(self, key: ConnectionKey, why: str) -> None:
        if key.session is not None and len(self._why) < _MAX_TAKEN:
            self._why[key.session] = f"the server began anew for this session: {why}"

    def inherit(self, before: "LostSessions") -> None:
        self._why = dict(before._why)

    def forget(self, session: str) -> None:
        self._why.pop(session, None)

    def tell(self, key: ConnectionKey, connection: ServerConnection) -> None:
        """The connection is of that key now. What was announced meanwhile, nobody may have heard."""
        if why := self._why.pop(key.session, ""):
            connection.anew = why
            for method in {entry.changed for entry in LISTS.values() if entry.capability in connection.capabilities}:
                connection.publish(Notification(method, {}))
            log.warning("server began anew", extra={"server": self._server_key, "why": why, "whose": key.owner[1]})


class IdleTimes:
    """For how long connections were not used. `is_idle` says whether a session has no open stream and no open call."""

    def __init__(
        self, settings: ServerSettings, clock: Callable[[], float], is_idle: Callable[[str], bool]
    ) -> None:
        self._patience = settings.idle or (IDLE if settings.url else inf)
        self._clock, self._is_idle = clock, is_idle

    def is_free(self, slot: PooledConnection) -> bool:
        """Whether no client waits for the connection, and its session is idle."""
        session = slot.key.session
        return slot.is_at_rest and (session is None or self._is_idle(session))

    def expired(self, slots: Iterable[PooledConnection]) -> Iterator[PooledConnection]:
        now = self._clock()
        for slot in slots:
            if not self.is_free(slot):
                slot.used = now
            elif now - slot.used >= self._patience_with(slot.key):
                yield slot

    def _patience_with(self, key: ConnectionKey) -> float:
        if key.lane:
            return IDLE_LANE
        return self._patience if key.session is not None or self._patience < inf else IDLE


def _heard(slots: Iterable[PooledConnection]) -> Scopes:
    """Where changes are heard, and on how many connections. What is heard on one of no scope, all hear."""
    return Scopes(_scope_of(slot) for slot in slots if slot.is_live)


def _least_entitled(
    whose: str, slots: Collection[PooledConnection], most: int, free: Sequence[PooledConnection]
) -> PooledConnection | None:
    """Which connection ends for one of that principal, where `most` are there: of the free ones that which was idle
    longest, first of a principal that has more than an equal share. Where none is free, one of such a principal for one
    that has less: last one on which it has tasks, or calls that wait for it. Those of all clients are on what belongs
    to no one of them."""
    counts = Counter(slot.key.principal for slot in slots)
    counts[whose] += 1
    fair_part = max(1, most // len(counts))
    if not free and counts[whose] <= fair_part:
        many = [slot for slot in slots if counts[slot.key.principal] > fair_part]
        free = [slot for slot in many if slot.is_at_rest or slot.may_be_taken]
    return min(
        free, key=lambda slot: (counts[slot.key.principal] <= fair_part, not slot.is_at_rest, slot.used), default=None
    )


class ConnectionPool:
    """`ended` is told of each connection that ends by itself: (key, seconds that it lived, why). A started server has
    at most `settings.processes`, those included that have been told to end and have not yet."""

    def __init__(
        self, open: Open, ended: Callable[[ConnectionKey, float, str], None], clock: Callable[[], float],
        settings: ServerSettings, is_idle: Callable[[str], bool] = lambda session: False, due: Due = _at_once,
    ) -> None:  # fmt: skip
        self._open, self._due, self._ended = open, due, ended
        # The key of what is open so that one is. `first` is also that of what turned out to be legacy, not modern.
        self.first = self._nobodys = SHARED if settings.sharing == "shared" else SPARE
        self._clock = clock
        self._idle = IdleTimes(settings, clock, is_idle)
        self._most = MAX_CONNECTIONS if settings.command is None else settings.processes
        self._room = anyio.CapacityLimiter(self._most)
        self._slots: dict[ConnectionKey, PooledConnection] = {}
        self.needs, self.lost = ConnectionNeeds(), LostSessions(settings.key)
        self._group: TaskGroup | None = None

    def start(self, group: TaskGroup) -> None:
        self._slots.clear()
        self._group = group

    def reserve_first(self, key: ConnectionKey) -> None:
        self.first = key

    def stop(self) -> None:
        self._group = None

    def retire(self, why: str) -> None:
        """Stops dialling, and ends the open connections for that reason."""
        self._group = None
        for slot in tuple(self._slots.values()):
            (self._take if slot.is_live else self._end)(slot, why)

    def find(self, key: ConnectionKey) -> ServerConnection | None:
        """The live connection of that key. On the hot path."""
        slot = self._slots.get(key)
        if slot is None or slot.connection is None or slot.connection.is_over:
            return None
        slot.used = self._clock()
        return slot.connection

    def find_like(self, key: ConnectionKey) -> ServerConnection | None:
        """A live connection that sees the same lists: one of that scope, else a spare of the same capabilities."""
        for slot in self._slots.values():
            if slot.is_live and _scope_of(slot) == (key.era, key.scope):
                slot.used = self._clock()
                return slot.connection
        return self.find(spare_for(key))

    def find_hearing(self, key: ConnectionKey) -> ServerConnection | None:
        """A live connection on which the same changes are heard: one of that scope, or any spare."""
        heard = ((key.era, key.scope), (key.era, None))
        live = (slot.connection for slot in self._slots.values() if slot.is_live and _scope_of(slot) in heard)
        return next(live, None)

    def is_there(self, key: ConnectionKey) -> bool:
        """Whether that key has a connection, or one is being made."""
        return key in self._slots

    async def get(self, key: ConnectionKey, whose: str = "") -> ServerConnection:
        """The same as `find`, dialled where it is missing; who asks twice at once waits for the same one. `whose` is
        the principal that wants a spare. Raises what dialling raises."""
        connection = self.find(key) or await self._spare_for(key) or self.find(key)
        if connection is not None:
            return connection
        slot = self._slots.get(key)
        if slot is None or slot.connection is not None:
            slot = self._dial(key, whose)
        await slot.arrived.wait()
        if slot.connection is None or slot.error is not None:
            error = slot.error or Lost("dialling failed", sent=False)
            try:
                raise error
            finally:
                del slot, error  # or it has this frame, which has it: only the collector would end that circle
        return slot.connection

    async def _spare_for(self, key: ConnectionKey) -> ServerConnection | None:
        """The spare becomes the connection of the first client that has none; also one that is on its way."""
        spare = self._slots.get(spare_for(key))
        if key.era != "legacy" or key in self._slots or spare is None:
            return None
        await self._due(key.principal)
        await spare.arrived.wait()
        return self._adopt(spare, key)

    def _adopt(self, spare: PooledConnection, key: ConnectionKey) -> ServerConnection | None:
        before = spare.key
        if key in self._slots or self._slots.get(before) is not spare or not before.is_spare or not spare.is_live:
            return None
        assert spare.connection is not None
        if not spare.connection.assign(key.scope, key.session):
            return None
        del self._slots[before]
        spare.key, spare.used = key, self._clock()
        self._slots[key] = spare
        self.lost.tell(key, spare.connection)
        return spare.connection

    def _dial(self, key: ConnectionKey, whose: str) -> PooledConnection:
        if self._group is None:
            raise Lost("the server is not running", sent=False)
        if len(self._slots) >= self._most:
            self._make_room(whose or key.principal)
        now = self._clock()
        slot = self._slots[key] = PooledConnection(key, now, now)
        self._group.start_soon(self._live, slot)
        return slot

    def _make_room(self, whose: str) -> None:
        """Raises `Full` where no connection may end for one of that principal."""
        slots, heard = self._slots.values(), _heard(self._slots.values())
        free = [slot for slot in slots if self._idle.is_free(slot) and self.needs.may_lose_idle(slot, heard)]
        if (slot := _least_entitled(whose, slots, self._most, free)) is None:
            raise Full(self.all_in_use, sent=False)
        self._take(slot, "another session needed its place")

    def missing(self) -> list[ConnectionKey]:
        """Keys of connections that are needed so that everybody hears what they want to, as far as there is room. One
        spare does for all, also in place of several idle sessions."""
        if self.is_full:
            return []
        slots, heard = self._slots.values(), _heard(self._slots.values())
        idle = [slot for slot in self._idle.expired(slots) if slot.key.session is not None]
        idle = [slot for slot in idle if self.needs.may_lose_idle(slot, heard)]
        if len(idle) > 1 and not any(self.needs.may_lose(slot, heard) for slot in idle):
            return [spare_for(idle[0].key)]
        return self.needs.lacking(slots)

    def _drop_spares(self, but: PooledConnection) -> None:
        """A spare that was made ready for other clients costs a process: nobody seems to want it."""
        if but.key.era == "legacy" and but.key.declared != "{}":
            heard = _heard(self._slots.values())
            for slot in [one for one in self._slots.values() if one.key.is_spare and one is not but]:
                if self._idle.is_free(slot) and self.needs.may_lose(slot, heard):
                    heard[_scope_of(slot)] -= 1
                    self._end(slot, "not needed any more")

    def sweep(self) -> None:
        """Closes what nobody has used for long; the last connection stays, as the next client's."""
        heard = _heard(self._slots.values())
        for slot in tuple(self._idle.expired(self._slots.values())):
            if len(self._slots) > 1 and self.needs.may_lose(slot, heard):
                heard[_scope_of(slot)] -= 1
                self._take(slot, "its connection was idle")

    @property
    def all_in_use(self) -> str:
        if self._most == 1:
            return "the one process that it may have is in use"
        what = "processes" if self._most < MAX_CONNECTIONS else "connections"
        return f"all {self._most} {what} that it may have are in use"

    @property
    def is_full(self) -> bool:
        return len(self._slots) >= self._most

    async def _live(self, slot: PooledConnection) -> None:
        try:
            with slot.dial:
                async with self._room:  # whose process is ending still has its place
                    await self._live_in_room(slot)
        finally:
            slot.arrived.set()

    async def _live_in_room(self, slot: PooledConnection) -> None:
        connection: ServerConnection | None = None
        try:
            async with anyio.create_task_group() as group:
                try:
                    slot.legacy = self.first
                    connection = slot.connection = await self._open(slot.key, group)
                    if connection.era != slot.key.era:
                        self._move(slot)
                    connection.assign(slot.key.scope, slot.key.session)
                    self.lost.tell(slot.key, connection)
                    if self._slots.get(slot.key) is not slot:
                        connection.retire("not needed any more")
                    self.first = self._nobodys  # the first client has its connection, or has none of its own
                except (OSError, TimeoutError) as error:
                    slot.error = error.with_traceback(None)  # whose frames have the slot
                finally:
                    slot.arrived.set()
                if connection is not None:
                    try:
                        self._drop_spares(slot)
                        await connection.over.wait()
                        self._forget(slot)
                        await connection.drained.wait()
                    finally:
                        connection.retire("closed")  # nothing may begin in a group that is ending
                group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            slot.is_wanted = False  # the server stops: no end of a connection is news any more
            raise
        finally:
            self._forget(slot)
            if connection is not None:
                connection.retire("closed")
                await connection.transport.close()

    def _move(self, slot: PooledConnection) -> None:
        """It has not become the connection that was wanted: nobody may use it who waited for that one."""
        slot.error = NotModern(gone=True)
        self._slots.pop(slot.key, None)
        slot.key = slot.legacy
        if slot.key.session is None or slot.key == self.first:  # else that session has ended meanwhile
            self._slots.setdefault(slot.key, slot)

    def _forget(self, slot: PooledConnection) -> None:
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
        if slot.is_wanted and slot.connection is not None:
            slot.is_wanted = False
            self.lost.add(slot.key, "its connection ended")
            self._ended(slot.key, self._clock() - slot.opened, slot.connection.why)

    def _end(self, slot: PooledConnection, why: str, all_lost: bool = True) -> None:
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
        slot.end(why, all_lost)

    def _take(self, slot: PooledConnection, why: str) -> None:
        """Takes a connection away although its session goes on."""
        self.lost.add(slot.key, why)
        self._end(slot, why)

    def live(self) -> list[ServerConnection]:
        return [slot.connection for slot in self._slots.values() if slot.connection is not None and slot.is_live]

    def end_session(self, session: str) -> None:
        for slot in tuple(self._slots.values()):
            if slot.key.session == session:
                self._end(slot, "the client's session ended")
        if self.first.session == session:
            self.first = self._nobodys
        self.lost.forget(session)

    def retain(self, holders: Container[str]) -> bool:
        """Ends what belongs to the key of a client that is not good any more, once the calls there have their answers.
        Whoever comes with a token has another one soon. Returns whether there was something."""
        over = [slot for slot in self._slots.values() if _is_over(slot.key, holders)]
        for slot in over:
            self._end(slot, "its client's key is over", all_lost=False)
        return bool(over)

    def __len__(self) -> int:
        return len(self._slots)


def describe(live: Collection[ServerConnection]) -> Json:
    pids = [connection.transport.pid for connection in live if connection.transport.pid is not None]
    revisions = sorted({connection.revision for connection in live})
    return {"revisions": revisions, "pids": pids, "connections": len(live), "processes": len(pids)}


def _is_over(key: ConnectionKey, holders: Container[str]) -> bool:
    kind, *whose = key.owner or ("",)
    return kind == "client" and len(whose) > 1 and holder(*whose) not in holders
