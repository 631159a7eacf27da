"""Which connection carries which call.

Three rules hold: lists are equal for all of one
scope, so any connection of it answers them; everything else goes by the connection of its own client; and where a
server's questions could not be told apart, one call at a time has a connection for itself.

The last rule is for servers on one channel for all (stdio) that may ask a client which has no session of its own:
many clients may be behind one principal, and a question must reach the one whose call caused it. Calls that may be
asked back take turns on a connection; who waits longer than a moment is given another, for a person may take
minutes to answer.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import anyio

from sluicegate.downstream.connector import Connector
from sluicegate.downstream.failures import TaskGone
from sluicegate.downstream.pool import MODERN_KEY, ConnectionKey, ConnectionPool, key_for, spare_for
from sluicegate.downstream.session.connection import ServerConnection
from sluicegate.downstream.session.suspended import SuspendedCalls
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.tasks import task_ids
from sluicegate.protocol import input_requests_server
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.methods import ABOUT_A_TASK, ASKING, SEEN_BY_ALL
from sluicegate.protocol.model import Call, Client, Era, holder
from sluicegate.protocol.modern_client import capability_key

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
            told = _carried(client, era)
            text = capability_key(input_requests_server.listing(told) if for_lists else told)
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
            raise TaskGone
        return found

    async def get(self, call: Call, era: Era) -> ServerConnection:
        """Raises what dialling raises. Nothing may be awaited between its return and the use of what it returns."""
        key = self.key(call.client, era)
        if era == "legacy" and call.method in SEEN_BY_ALL:
            is_coming = self._pool.is_there(key)
            return self._pool.find_like(key) or await self._pool.get(key if is_coming else spare_for(key))
        connection = await self._pool.get(key)
        return await self._lane(key, call) if _is_busy(connection, call) else connection

    async def hearing(self, client: Client, era: Era) -> tuple[ServerConnection, ConnectionKey]:
        """A connection on which the client's changes are heard, and the key to hold."""
        key = self.key(client, era)
        if era == "modern":
            return await self._pool.get(key), key
        return self._pool.find_hearing(key) or await self._pool.get(spare_for(key)), key

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


def _carried(client: Client, era: Era) -> Json:
    """The client capabilities that are declared to a server of that era."""
    return (
        input_requests_server.for_legacy_server(client)
        if era == "legacy"
        else input_requests_server.for_modern_server(client)
    )


def _is_busy(connection: ServerConnection, call: Call) -> bool:
    return connection.is_exclusive and call.method in ASKING and connection.is_taken
