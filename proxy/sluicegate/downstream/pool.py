"""Which connections there are, whose they are, and how long they live.

Knows keys, connections and their lives; knows no transport, no call and no reason to connect. One task is one
connection's whole life: dialling, living, closing; so nothing of it can outlive it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from sluicegate.call import Client, Era
from sluicegate.downstream.connection import Connection
from sluicegate.downstream.settings import Lost, NotModern, ServerSettings
from sluicegate.message import Json

IDLE: Final = 600.0
IDLE_LANE: Final = 60.0
MAX_CONNECTIONS: Final = 512


class Key(NamedTuple):
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
    def is_spare(self) -> bool:
        return self.owner == _SPARE


Open = Callable[[Key, TaskGroup], Awaitable[Connection]]

_SPARE: Final = ("spare",)
MODERN_KEY: Final = Key("modern")
SPARE: Final = Key("legacy", _SPARE)
SHARED: Final = Key("legacy")


def key_for(client: Client, era: Era, settings: ServerSettings, scope: str, declared: str) -> Key:
    """A legacy connection is a session, and belongs to who may see what another left in it. To a modern server there
    is one for all, a process too: it must not take either for a client (2026-07-28 basic/index#statelessness), what it
    keeps has a handle that is in the request, and the process of a client that is idle for long would end with it."""
    if era == "modern":
        return MODERN_KEY
    if settings.sharing == "shared":
        return SHARED
    if settings.sharing == "session" and client.session is not None:
        return Key("legacy", ("session", client.principal, client.session), scope, declared)
    return Key("legacy", ("client", client.principal), scope, declared)


def nobodys_key(era: Era, settings: ServerSettings) -> Key:
    """Of a connection that is open so that one is."""
    if era == "modern":
        return MODERN_KEY
    return SHARED if settings.sharing == "shared" else SPARE


def spare_for(key: Key) -> Key:
    """Nobody's connection, that could become this one's: nothing was done on it but to look at its lists."""
    return SHARED if key == SHARED else Key("legacy", _SPARE, None, key.declared)


@dataclass(slots=True, eq=False)
class Slot:
    """One connection's place in the pool, from dialling to its end."""

    key: Key
    opened: float
    used: float
    connection: Connection | None = None
    error: Exception | None = None
    arrived: anyio.Event = field(default_factory=anyio.Event)
    is_wanted: bool = True  # False when we end it ourselves: then its end is no failure

    @property
    def is_live(self) -> bool:
        return self.connection is not None and not self.connection.is_over


class Hold:
    """Ends one need, once. There is one for each idle session and server, so it is small."""

    __slots__ = ("_need", "_pool")

    def __init__(self, pool: "Pool", need: Key) -> None:
        self._pool = pool
        self._need: Key | None = need

    def __call__(self) -> None:
        need, self._need = self._need, None
        if need is not None:
            self._pool.release(need)


def _place(slot: Slot) -> tuple[Era, str | None]:
    return slot.key.era, slot.key.scope


def _is_heard(need: Key, heard: Container[tuple[Era, str | None]]) -> bool:
    return (need.era, need.scope) in heard or (need.era, None) in heard


class Pool:
    """`ended` is told of each connection that ends by itself: (seconds that it lived, why)."""

    def __init__(
        self, open: Open, ended: Callable[[float, str], None], clock: Callable[[], float], nobodys: Key = SPARE
    ) -> None:
        """`nobodys` is the key of a connection that was to be modern and turned out to be legacy."""
        self._open = open
        self._nobodys = nobodys
        self._ended = ended
        self._clock = clock
        self._slots: dict[Key, Slot] = {}
        self._holds: dict[Key, tuple[Key, int]] = {}  # need -> itself, so that equal ones are one object, and how often
        self._kept: set[Key] = set()
        self._group: TaskGroup | None = None

    def start(self, group: TaskGroup) -> None:
        self._slots.clear()
        self._group = group

    def stop(self) -> None:
        """Nothing is dialled any more."""
        self._group = None

    # ------------------------------------------------------------ finding

    def find(self, key: Key) -> Connection | None:
        """The live connection of that key. On the hot path."""
        slot = self._slots.get(key)
        if slot is None or slot.connection is None or slot.connection.is_over:
            return None
        slot.used = self._clock()
        return slot.connection

    def find_like(self, key: Key) -> Connection | None:
        """A live connection that sees the same lists: one of that scope, else a spare of the same capabilities."""
        for slot in self._slots.values():
            if slot.is_live and _place(slot) == (key.era, key.scope):
                slot.used = self._clock()
                return slot.connection
        return self.find(spare_for(key))

    def find_hearing(self, key: Key) -> Connection | None:
        """A live connection on which the same changes are heard: one of that scope, or any spare."""
        heard = ((key.era, key.scope), (key.era, None))
        live = (slot.connection for slot in self._slots.values() if slot.is_live and _place(slot) in heard)
        return next(live, None)

    def is_there(self, key: Key) -> bool:
        """Whether that key has a connection, or will."""
        return key in self._slots

    async def get(self, key: Key) -> Connection:
        """The same as `find`, dialled where it is missing; who asks twice at once waits for the same one. Raises
        what dialling raises."""
        connection = self.find(key) or await self._spare_for(key) or self.find(key)
        if connection is not None:
            return connection
        slot = self._slots.get(key)
        if slot is None or slot.connection is not None:
            slot = self._dial(key)
        await slot.arrived.wait()
        if slot.connection is None or slot.error is not None:
            raise slot.error or Lost("dialling failed", sent=False)
        return slot.connection

    async def _spare_for(self, key: Key) -> Connection | None:
        """The spare becomes the connection of the first client that has none; also one that is on its way."""
        spare = self._slots.get(spare_for(key))
        if key.era != "legacy" or key in self._slots or spare is None:
            return None
        await spare.arrived.wait()
        return self._adopt(spare, key)

    def _adopt(self, spare: Slot, key: Key) -> Connection | None:
        before = spare.key
        if key in self._slots or self._slots.get(before) is not spare or not before.is_spare or not spare.is_live:
            return None
        assert spare.connection is not None
        if not spare.connection.belong(key.scope, key.session):
            return None
        del self._slots[before]
        spare.key, spare.used = key, self._clock()
        self._slots[key] = spare
        return spare.connection

    def _dial(self, key: Key) -> Slot:
        if self._group is None:
            raise Lost("the server is not running", sent=False)
        if len(self._slots) >= MAX_CONNECTIONS:
            raise Lost("too many connections to this server", sent=False)
        now = self._clock()
        slot = self._slots[key] = Slot(key, now, now)
        self._group.start_soon(self._live, slot)
        return slot

    # ------------------------------------------------------------ one connection's life

    async def _live(self, slot: Slot) -> None:
        connection: Connection | None = None
        try:
            async with anyio.create_task_group() as group:
                try:
                    connection = slot.connection = await self._open(slot.key, group)
                    if connection.era != slot.key.era:
                        self._move(slot)
                    connection.belong(slot.key.scope, slot.key.session)
                    if self._slots.get(slot.key) is not slot:
                        connection.retire("not needed any more")
                except (OSError, TimeoutError) as error:
                    slot.error = error
                finally:
                    slot.arrived.set()
                if connection is not None:
                    self._drop_spares(slot)
                    await connection.over.wait()
                    self._forget(slot)
                    await connection.drained.wait()
                group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            slot.is_wanted = False  # the server stops: no end of a connection is news any more
            raise
        finally:
            self._forget(slot)
            if connection is not None:
                connection.retire("closed")
                await connection.wire.close()

    def _move(self, slot: Slot) -> None:
        """It has not become the connection that was wanted: nobody may use it who waited for that one."""
        slot.error = NotModern(gone=True)
        self._slots.pop(slot.key, None)
        slot.key = self._nobodys
        self._slots.setdefault(slot.key, slot)

    def _forget(self, slot: Slot) -> None:
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
        if slot.is_wanted and slot.connection is not None:
            slot.is_wanted = False
            self._ended(self._clock() - slot.opened, slot.connection.why)

    def _end(self, slot: Slot, why: str) -> None:
        slot.is_wanted = False
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
        if slot.connection is not None:
            slot.connection.retire(why)

    # ------------------------------------------------------------ who needs what

    def hold(self, key: Key) -> Callable[[], None]:
        """Somebody wants to hear of changes as a connection of that key would: another of its scope will do. Gives
        what ends the need."""
        need = key._replace(owner=(), lane=0)
        need, count = self._holds.get(need, (need, 0))
        self._holds[need] = need, count + 1
        return Hold(self, need)

    def release(self, need: Key) -> None:
        need, count = self._holds.pop(need)
        if count > 1:
            self._holds[need] = need, count - 1

    def keep(self, key: Key, is_kept: bool) -> None:
        """Whether that very connection is needed: what was done on it would be lost with it."""
        (self._kept.add if is_kept else self._kept.discard)(key)

    def missing(self) -> list[Key]:
        """Keys of connections that are needed so that everybody hears what they want to. One spare does for all."""
        heard = self._heard()
        lacking = {need.era: need for need in self._holds if not _is_heard(need, heard)}
        return [MODERN_KEY if era == "modern" else spare_for(need) for era, need in lacking.items()]

    def _heard(self) -> Counter[tuple[Era, str | None]]:
        """Where changes are heard, and on how many connections. What is heard on one of no scope, all hear."""
        return Counter(_place(slot) for slot in self._slots.values() if slot.is_live)

    def _is_needed(self, slot: Slot) -> bool:
        """Whether somebody would not hear any more what they want to if this one ended."""
        if slot.key in self._kept:
            return True
        heard = self._heard()
        without = heard - Counter([_place(slot)])
        return any(_is_heard(need, heard) and not _is_heard(need, without) for need in self._holds)

    def _drop_spares(self, but: Slot) -> None:
        """A spare that was made ready for other clients costs a process: nobody seems to want it."""
        if but.key.era == "legacy" and but.key.declared != "{}":
            for slot in tuple(self._slots.values()):
                is_idle = slot is not but and slot.key.is_spare and slot.is_live and not self._is_busy(slot)
                if is_idle and not self._is_needed(slot):
                    self._end(slot, "not needed any more")

    def live(self) -> list[Connection]:
        return [slot.connection for slot in self._slots.values() if slot.connection is not None and slot.is_live]

    def describe(self) -> Json:
        live = self.live()
        pids = [connection.wire.pid for connection in live if connection.wire.pid is not None]
        revisions = sorted({connection.revision for connection in live})
        return {"revisions": revisions, "pids": pids, "connections": len(live)}

    def end_session(self, session: str) -> None:
        for slot in tuple(self._slots.values()):
            if slot.key.session == session:
                self._end(slot, "the client's session ended")

    def sweep(self) -> None:
        """Closes what nobody has used for long; the last connection stays, as the next client's."""
        for slot in tuple(self._idle()):
            if len(self._slots) > 1 and not self._is_needed(slot):
                self._end(slot, "idle")

    def _idle(self) -> Iterator[Slot]:
        now = self._clock()
        for slot in self._slots.values():
            is_idle = slot.is_live and now - slot.used >= (IDLE_LANE if slot.key.lane else IDLE)
            if is_idle and slot.key.session is None and not self._is_busy(slot):  # sessions end with their client's
                yield slot

    def _is_busy(self, slot: Slot) -> bool:
        return slot.connection is not None and slot.connection.in_flight > 0

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"<Pool {len(self.live())}/{len(self._slots)} live, {len(self._holds)} held>"
