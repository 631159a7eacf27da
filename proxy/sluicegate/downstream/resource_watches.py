"""Resources whose updates clients want to hear: counted, watched once on each connection, and again on the next one.

A connection is told the whole set of what is to be watched there; how that is said is its era's affair. Here is who
wants what, whom an update is for, and what happens when a connection ends. Knows keys, not calls; no wire, no policy.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream.connection import ServerConnection
from sluicegate.downstream.connection_keys import ConnectionKey
from sluicegate.downstream.pool import ConnectionPool
from sluicegate.downstream.selector import ConnectionSelector
from sluicegate.downstream.settings import Lost
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json
from sluicegate.protocol.model import Client, Era, Failure, Subscribed, Updated
from sluicegate.telemetry import DEFAULT_BACKOFF

MAX_WATCHED: Final = 10_000
"""Resources on one connection, whoever wants them."""
MAX_UNWATCHED: Final = 1_000
MAX_URI: Final = 4096
_MAX_PARTS: Final = 64
_BOUNDARY: Final = re.compile(r"[/?#:]")

_TOO_MANY: Final = Failure(INTERNAL_ERROR, f"More than {MAX_WATCHED} resources of this server are subscribed to")

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ResourceWatch:
    """What one listener wants to hear of."""

    uris: set[str]
    tell: Updated
    refused: dict[str, Failure] = field(default_factory=dict)


class WatchBoard:
    """What is wanted of one connection. `connection` is where it was asked for last, `asked` which resources."""

    def __init__(self, key: ConnectionKey) -> None:
        self.key = key
        self.lock = asyncio.Lock()
        self.connection: ServerConnection | None = None
        self.asked: frozenset[str] | None = None
        self.may_have_missed = self.is_tended = False
        self._wants: dict[str, dict[ResourceWatch, None]] = {}
        self._members: dict[ResourceWatch, None] = {}

    def __repr__(self) -> str:
        return f"<WatchBoard of {len(self._members)}, {len(self._wants)} resources>"

    @property
    def uris(self) -> frozenset[str]:
        return frozenset(self._wants)

    def join(self, want: ResourceWatch) -> None:
        self._members[want] = None
        for uri in tuple(want.uris):
            if uri not in self._wants and len(self._wants) >= MAX_WATCHED:
                self._turn_down(want, uri, _TOO_MANY)
            else:
                self._wants.setdefault(uri, {})[want] = None
                self._unwatched.pop(uri, None)

    @property
    def _unwatched(self) -> dict[str, None]:
        return {} if self.connection is None else self.connection.unwatched

    def leave(self, want: ResourceWatch) -> None:
        self._members.pop(want, None)
        for uri in want.uris:
            self._forget(uri, want)

    def refuse(self, uri: str, failure: Failure) -> None:
        for want in tuple(self._wants.get(uri, ())):
            self._forget(uri, want)
            self._turn_down(want, uri, failure)

    def _turn_down(self, want: ResourceWatch, uri: str, failure: Failure) -> None:
        want.uris.discard(uri)
        want.refused[uri] = failure

    def _forget(self, uri: str, want: ResourceWatch) -> None:
        wants = self._wants.get(uri, {})
        wants.pop(want, None)
        if not wants and self._wants.pop(uri, None) is not None:
            unwatched = self._unwatched
            unwatched[uri] = None
            if len(unwatched) > MAX_UNWATCHED:
                del unwatched[next(iter(unwatched))]

    # ------------------------------------------------------------ updates

    def heard(self, params: Json) -> None:
        uri = params.get("uri")
        if isinstance(uri, str) and len(uri) <= MAX_URI:
            for want in self._concerned(uri):
                want.tell(params)

    def _concerned(self, uri: str) -> Collection[ResourceWatch]:
        """Whoever wants that resource, or one that it is a part of (<= 2025-11-25 and 2026-07-28 schema: it may be a
        sub-resource of the one subscribed to). What sub-resources are called is the server's own affair: one that
        looks like nobody's may be anybody's."""
        whole = list(_wholes(uri))
        found = [part for part in whole if part in self._wants]
        if found:
            return dict.fromkeys(want for part in found for want in self._wants[part])
        return () if any(part in self._unwatched for part in whole) else tuple(self._members)

    def tell_all(self) -> None:
        """Nothing is replayed: whatever is watched may have changed."""
        for uri, wants in self._wants.items():
            for want in wants:
                want.tell({"uri": uri})


def _wholes(uri: str) -> Iterator[str]:
    """The URI, and what by its look it is a part of."""
    yield uri
    for count, found in enumerate(_BOUNDARY.finditer(uri)):
        if count >= _MAX_PARTS:
            return
        yield uri[: found.start()]
        yield uri[: found.end()]


class ResourceWatches:
    """All boards of one server."""

    def __init__(self, pool: ConnectionPool, reach: ConnectionSelector, patience: float) -> None:
        """`patience`: seconds to wait until a connection hears what its server says by itself."""
        self._pool = pool
        self._reach = reach
        self._patience = patience
        self._boards: dict[ConnectionKey, WatchBoard] = {}
        self._group: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<ResourceWatches {list(self._boards.values())}>"

    def start(self, group: TaskGroup) -> None:
        self._group = group

    def stop(self) -> None:
        self._group = None

    async def add(self, client: Client, uris: Collection[str], tell: Updated, era: Era) -> Subscribed:
        """Returns when updates are heard. Raises what dialling raises."""
        key = self._reach.key(client, era)
        board = self._boards.get(key)
        if board is None:
            board = self._boards[key] = WatchBoard(key)
            self._pool.keep(key, True)
        want = ResourceWatch(set(uris), tell)
        board.join(want)
        try:
            await self._sync(board)
        except BaseException:
            self._leave(board, want)
            raise
        if not want.uris:
            self._leave(board, want)
        return partial(self._leave, board, want), want.refused

    def _leave(self, board: WatchBoard, want: ResourceWatch) -> None:
        board.leave(want)
        self._tend(board)

    def renew(self) -> None:
        """Connections may have ended: what was watched on them is watched on their successors."""
        for board in tuple(self._boards.values()):
            self._tend(board)

    # ------------------------------------------------------------ making it so

    def _is_done(self, board: WatchBoard) -> bool:
        if not board.uris:
            return False
        return board.asked == board.uris and board.connection is self._pool.find(board.key)

    def _tend(self, board: WatchBoard) -> None:
        if self._group is not None and not board.is_tended and not self._is_done(board):
            board.is_tended = True
            self._group.start_soon(self._catch_up, board)

    async def _catch_up(self, board: WatchBoard) -> None:
        failures = 0
        try:
            while self._boards.get(board.key) is board and not self._is_done(board):
                try:
                    await self._sync(board)
                except (OSError, TimeoutError) as error:
                    failures += 1
                    log.debug("resources cannot be watched yet: %s", error)
                    await anyio.sleep(DEFAULT_BACKOFF.pause(failures))
        finally:
            board.is_tended = False

    async def _sync(self, board: WatchBoard) -> None:
        """One at a time, so that one request has it done for all who came meanwhile."""
        async with board.lock:
            if not board.uris:
                return await self._clear(board)
            connection = await self._pool.get(board.key)
            if connection is not board.connection:
                await self._settle_on(board, connection)
            uris = board.uris
            board.asked = None
            refused = await connection.watch(uris)
            board.asked = uris - refused.keys()
            for uri, failure in refused.items():
                log.info("a subscription is refused", extra={"code": failure.code})
                board.refuse(uri, failure)
            if board.may_have_missed:
                board.may_have_missed = False
                board.tell_all()

    async def _settle_on(self, board: WatchBoard, connection: ServerConnection) -> None:
        board.may_have_missed = board.may_have_missed or board.connection is not None
        board.connection = connection
        for uri in board.uris:
            connection.unwatched.pop(uri, None)
        connection.on_updated = board.heard
        with anyio.move_on_after(self._patience):
            await connection.live()

    async def _clear(self, board: WatchBoard) -> None:
        """Nobody wants anything any more: no connection is made to say so."""
        connection = board.connection
        if connection is not None and connection is self._pool.find(board.key):
            try:
                await connection.watch(frozenset())
            except (Lost, TimeoutError):
                pass  # what it still says is for nobody
        if not board.uris and self._boards.get(board.key) is board:
            del self._boards[board.key]
            self._pool.keep(board.key, False)
