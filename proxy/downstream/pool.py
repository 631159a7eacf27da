"""Which connection serves which client.

Knows keys, connections and their lives; knows no transport, no call and no reason to connect. One task is one
connection's whole life: dialling, living, closing; so nothing of it can outlive it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup

from proxy.call import Client, Era
from proxy.downstream.connection import Connection
from proxy.downstream.settings import Lost, ServerSettings

Open = Callable[[Era, TaskGroup], Awaitable[Connection]]

IDLE: Final = 600.0
MAX_CONNECTIONS: Final = 512


@dataclass(frozen=True, slots=True)
class Key:
    """Equal keys share a connection. `scope` is whose lists it sees, None for everybody's."""

    era: Era
    owner: tuple[str, ...] = ()
    scope: str | None = None


MODERN_KEY: Final = Key("modern")
SPARE: Final = Key("legacy", ("spare",))
SHARED: Final = Key("legacy")


def key_for(client: Client, era: Era, settings: ServerSettings, scope: str) -> Key:
    """Modern servers keep nothing between requests: one connection for all. A legacy connection is a session, and
    belongs to who may see what another left in it."""
    if era == "modern":
        return MODERN_KEY
    if settings.sharing == "shared":
        return SHARED
    if settings.sharing == "session" and client.session is not None:
        return Key("legacy", ("session", client.principal, client.session), scope)
    return Key("legacy", ("client", client.principal, client.capability_key), scope)


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


class Pool:
    """`ended` is told of each connection that ends by itself: (seconds that it lived, why)."""

    def __init__(self, open: Open, ended: Callable[[float, str], None], clock: Callable[[], float]) -> None:
        self._open = open
        self._ended = ended
        self._clock = clock
        self._slots: dict[Key, Slot] = {}
        self._holds: dict[Key, int] = {}
        self._group: TaskGroup | None = None

    def start(self, group: TaskGroup) -> None:
        self._slots.clear()
        self._group = group

    # ------------------------------------------------------------ finding

    def find(self, key: Key) -> Connection | None:
        """The live connection of that key. On the hot path."""
        slot = self._slots.get(key)
        if slot is None or slot.connection is None or slot.connection.is_over:
            return None
        slot.used = self._clock()
        return slot.connection

    async def get(self, key: Key) -> Connection:
        """The same, dialled where it is missing; who asks twice at once waits for the same one. Raises what
        dialling raises."""
        connection = self.find(key) or await self._spare_for(key) or self.find(key)
        if connection is not None:
            return connection
        slot = self._slots.get(key)
        if slot is None or slot.connection is not None:
            slot = self._dial(key)
        await slot.arrived.wait()
        if slot.connection is None:
            raise slot.error or Lost("dialling failed", sent=False)
        return slot.connection

    async def _spare_for(self, key: Key) -> Connection | None:
        """The spare becomes the connection of the first client that has none; also one that is on its way."""
        spare = self._slots.get(SPARE)
        if key.era != "legacy" or key in self._slots or spare is None:
            return None
        await spare.arrived.wait()
        return self._adopt(spare, key)

    def _adopt(self, spare: Slot, key: Key) -> Connection | None:
        if key in self._slots or self._slots.get(SPARE) is not spare or not spare.is_live:
            return None
        del self._slots[SPARE]
        spare.key, spare.used = key, self._clock()
        self._slots[key] = spare
        assert spare.connection is not None
        spare.connection.scope = key.scope
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
                    connection = slot.connection = await self._open(slot.key.era, group)
                    connection.scope = slot.key.scope
                    if self._slots.get(slot.key) is not slot:
                        connection.retire("not needed any more")
                except (OSError, TimeoutError) as error:
                    slot.error = error
                finally:
                    slot.arrived.set()
                if connection is not None:
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

    def hold(self, key: Key) -> None:
        self._holds[key] = self._holds.get(key, 0) + 1

    def release(self, key: Key) -> None:
        self._holds[key] -= 1
        if not self._holds[key]:
            del self._holds[key]

    def missing(self) -> list[Key]:
        """Keys that somebody holds and that have no connection."""
        return [key for key in self._holds if not (slot := self._slots.get(key)) or not slot.is_live]

    def live(self) -> list[Connection]:
        return [slot.connection for slot in self._slots.values() if slot.connection is not None and slot.is_live]

    def end_session(self, session: str) -> None:
        for slot in tuple(self._slots.values()):
            if slot.key.owner[:1] == ("session",) and slot.key.owner[2] == session:
                self._end(slot, "the client's session ended")

    def sweep(self) -> None:
        """Closes what nobody has used for long; the last connection stays, as the next client's."""
        now = self._clock()
        for slot in tuple(self._slots.values()):
            is_idle = slot.is_live and now - slot.used >= IDLE and not self._holds.get(slot.key)
            is_session = slot.key.owner[:1] == ("session",)  # these end with their session
            if is_idle and not is_session and len(self._slots) > 1 and not self._is_busy(slot):
                self._end(slot, "idle")

    def _is_busy(self, slot: Slot) -> bool:
        return slot.connection is not None and slot.connection.in_flight > 0

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"<Pool {len(self.live())}/{len(self._slots)} live, {len(self._holds)} held>"
