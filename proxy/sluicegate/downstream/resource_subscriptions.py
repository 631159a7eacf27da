"""Resources whose updates clients want to hear: counted, watched once on each connection, and again on the next one.

A `WatchBoard` has who wants which resource of one connection, and whom an update is for. How the whole set is told to
the server depends on its era: one by one in the initialize era, as one stream in the modern one.
<= 2025-11-25 server/resources#subscriptions, 2026-07-28 basic/patterns/subscriptions.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from string import ascii_letters, digits
from typing import Final

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import Lost
from sluicegate.downstream.pool import ConnectionKey, ConnectionPool
from sluicegate.downstream.session.change_streams import OVERLAP, ChangeStream
from sluicegate.downstream.session.connection import UPDATED, ServerConnection, Watching
from sluicegate.protocol import legacy_server
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Notification, Response
from sluicegate.protocol.model import Call, Client, Era, Failure, Subscribed, Updated, not_found
from sluicegate.runtime.concurrency_limit import ConcurrencyLimit
from sluicegate.telemetry import DEFAULT_BACKOFF

AT_ONCE: Final = 8
AT_ONCE_TOLD: Final = 100
"""Resources of which is told, or listeners that are told, in one step of the event loop."""
MAX_WHY: Final = 200
"""Characters of a refusal: a client hears a thousand of them at once."""
FEW: Final = 8
"""Listeners that are told of an update in the step that read it. One step may read seventy updates."""
MAX_COUNTED: Final = 10_000
_NOBODY: Final = Client("")
_NOTHING: Final[Counter[str]] = Counter()

Ask = Callable[[str, Json], Awaitable[Response]]
"""(method, params) -> the server's answer."""


def tell_in_steps(news: Iterator[tuple[Updated, str]]) -> None:
    """Says to each that a resource may have changed, with turns for others where they are many."""
    some = list(islice(news, AT_ONCE_TOLD))
    for tell, uri in some:
        tell({"uri": uri})
    if len(some) == AT_ONCE_TOLD:
        asyncio.get_running_loop().call_soon(tell_in_steps, news)


def _in_steps(uris: Collection[str]) -> Iterator[list[str]]:
    left = iter(uris)
    while some := sorted(islice(left, AT_ONCE)):
        yield some


class OneByOne:
    """A session that remembers what was subscribed to."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._watched: set[str] = set()
        self._begun: set[str] = set()  # those too of whose answer nobody knows

    async def watch(
        self, uris: frozenset[str], first: Collection[str] = (), others_wait: Callable[[], bool] = lambda: False
    ) -> Watching:
        """Asks for `first` first. Where others wait it stops after a step, for thousands take minutes at a slow server;
        and whoever has all of `first` does not wait for the rest, of which each may be slow."""
        refused: dict[str, Failure] = {}
        new = uris - self._watched
        for part in (new.intersection(first), new.difference(first)):
            for some in _in_steps(part):
                await asyncio.gather(*(self._subscribe(uri, refused) for uri in some))
                if others_wait():
                    return frozenset(self._watched), refused
            if first and others_wait():
                return frozenset(self._watched), refused
        for some in _in_steps(self._begun - uris):
            self._watched.difference_update(some)
            self._begun.difference_update(some)
            await asyncio.gather(*(self._ask("resources/unsubscribe", {"uri": uri}) for uri in some))
            if others_wait():
                break
        return frozenset(self._watched), refused

    async def _subscribe(self, uri: str, refused: dict[str, Failure]) -> None:
        params = {"uri": uri}
        self._begun.add(uri)
        answer = await self._ask("resources/subscribe", params)
        if answer.error is None:
            self._watched.update({uri} & self._begun)  # else it was ended before its answer came
        else:
            self._begun.discard(uri)
            why = legacy_server.failure(Call(_NOBODY, "resources/read", params), answer.error)
            is_missing = isinstance(why.data, dict) and why.data.get("uri") == uri
            refused[uri] = Failure(why.code, why.message[:MAX_WHY], params if is_missing else None)


Begin = Callable[[Json, Callable[[Notification], None], Callable[[bool], None]], ChangeStream]
"""(filter, who is told of notifications, and of acknowledgements) -> a stream that runs."""


class OneStream:
    """A stream for the whole set; a stream for another set takes its place. While both are open an update comes on
    both: of a resource is told as often as the one says that says it more often. Where they differ in the end (what the
    server sent before the second was open may come after its acknowledgement), it is told once more."""

    def __init__(self, begin: Begin, tell: Callable[[Json], None], patience: float) -> None:
        self._begin, self._tell, self._patience = begin, tell, patience
        self._stream: ChangeStream | None = None
        self._watched: frozenset[str] = frozenset()
        self._open: dict[
            ChangeStream, Counter[str]
        ] = {}  # how often each has told of a resource, while there are several
        self._reported: Counter[str] = Counter()

    async def watch(self, uris: frozenset[str], *_: object) -> Watching:
        """Asks for all at once: nobody has to wait for a turn."""
        refused = await self._open_for(uris)
        return uris - refused.keys(), refused

    async def _open_for(self, uris: frozenset[str]) -> Mapping[str, Failure]:
        if uris == self._watched:
            return {}
        if not uris:
            self._replace(None, uris)
            return {}
        heard: Counter[str] = Counter()
        wanted = {"resourceSubscriptions": sorted(uris)}
        stream = self._begin(wanted, partial(self._hear, heard), partial(self._live, heard, uris))
        self._open[stream] = heard
        try:
            with anyio.fail_after(self._patience):
                await stream.settled.wait()
        except BaseException:
            self._close(stream)
            raise
        if stream.honoured is None:  # also where the set has only shrunk: the larger one is as good
            self._close(stream)
            return dict.fromkeys(uris - self._watched, Failure(INTERNAL_ERROR, stream.problem))
        promised = stream.honoured.get("resourceSubscriptions")
        listed = promised if isinstance(promised, list) else ()
        honoured = uris.intersection(uri for uri in listed if isinstance(uri, str))
        self._replace(stream, honoured)
        return {uri: not_found("resources/read", {"uri": uri}) for uri in uris - honoured}

    def _replace(self, stream: ChangeStream | None, watched: frozenset[str]) -> None:
        old, self._stream, self._watched = self._stream, stream, watched
        if old is not None and stream is not None:
            asyncio.get_running_loop().call_later(OVERLAP, self._retire, old)
        elif old is not None:
            self._close(old)

    def _retire(self, stream: ChangeStream) -> None:
        heard, successor = self._open.get(stream, _NOTHING), self._open.get(self._stream or stream, _NOTHING)
        both = self._watched.intersection(stream.wanted["resourceSubscriptions"])
        differing = [uri for uri in both if heard[uri] != successor[uri]]
        self._close(stream)
        tell_in_steps(zip(repeat(self._tell), differing))

    def _close(self, stream: ChangeStream) -> None:
        stream.close()
        self._open.pop(stream, None)
        if len(self._open) <= 1:
            self._begin_to_count()

    def _begin_to_count(self) -> None:
        for counts in (self._reported, *self._open.values()):
            counts.clear()

    def _live(self, heard: Counter[str], uris: frozenset[str], is_again: bool) -> None:
        heard.clear()
        heard.update(self._reported)
        if is_again:
            tell_in_steps(zip(repeat(self._tell), uris))

    def _hear(self, heard: Counter[str], notification: Notification) -> None:
        uri = notification.params.get("uri")
        if notification.method != UPDATED or not isinstance(uri, str) or len(uri) > MAX_URI:
            return
        if len(self._open) > 1:
            if len(self._reported) >= MAX_COUNTED:
                self._begin_to_count()
            heard[uri] += 1
            if heard[uri] <= self._reported[uri]:
                return
            self._reported[uri] = heard[uri]
        self._tell(notification.params)


MAX_WATCHED: Final = 10_000
"""Resources on one connection, whoever wants them."""
MAX_WATCHED_CHARS: Final = 4 * 1024 * 1024
"""Of their URIs, as `written`: a stateless server gets all of them in one request, and says them again."""
MAX_WANTED: Final = 50_000
"""Resources that the listeners of one principal want on one connection, each counted for each listener."""
MAX_UNWATCHED: Final = 1_000
MAX_NEWS: Final = 1_000  # updates that wait for their turn
MAX_URI: Final = 4096
_MAX_PARTS: Final = 64
_BOUNDARY: Final = re.compile(r"[/?#:]")
_PLAIN: Final = f" !#$%()*,-./:;=?@[]^_{{|}}~{ascii_letters}{digits}".encode()
_ESCAPE: Final = len(r"\u0026")

_TOO_MANY: Final = Failure(INTERNAL_ERROR, f"More than {MAX_WATCHED} resources of this server are subscribed to")
_TOO_LONG: Final = Failure(INTERNAL_ERROR, "The URIs of this server's resources that are subscribed to are too long")

log = logging.getLogger(__name__)


def written(uri: str) -> int:
    """How long it may be in a server's JSON: some write all but ASCII as escapes, and `&` or `/`, too. A thousand are
    measured in one step of the event loop, which an expression for their characters would hold up for half a second."""
    others = uri.encode("utf-8", "surrogatepass").translate(None, _PLAIN).decode("utf-8", "surrogatepass")
    units = len(others.encode("utf-16-le", "surrogatepass")) // 2
    return len(uri) - len(others) + _ESCAPE * units + uri.count("/")


@dataclass(slots=True, eq=False)
class ResourceWatch:
    """The resources of which one listener wants updates. `whose` is its principal."""

    uris: set[str]
    tell: Updated
    whose: str = ""
    refused: dict[str, Failure] = field(default_factory=dict)


class WatchBoard:
    """What is wanted of one connection. `connection` is where it was asked for last, `asked` which resources. `most` is
    how long their URIs may be together, as they are `written`. Whose request the server hears next goes by `turns`."""

    def __init__(self, key: ConnectionKey, most: int = MAX_WATCHED_CHARS) -> None:
        self.key, self._most = key, most
        self.turns = ConcurrencyLimit(1, MAX_WANTED, time.monotonic)
        self.connection: ServerConnection | None = None
        self.asked: frozenset[str] | None = None
        self.missed = frozenset[str]()  # no connection told of them for a time
        self.is_maintained = False
        self._wants: dict[str, dict[ResourceWatch, None]] = {}
        self._chars = 0
        self._first: dict[str, str] = {}  # URI -> the principal that wanted it first
        self._number, self._length = Counter[str](), Counter[str]()  # of what each principal wanted first
        self._wanted = Counter[str]()
        self._members: dict[ResourceWatch, None] = {}
        self._news: dict[str, tuple[Json, Iterator[ResourceWatch]]] = {}  # updates, with who has not heard of them yet

    @property
    def uris(self) -> frozenset[str]:
        return frozenset(self._wants)

    def join(self, want: ResourceWatch) -> None:
        self._members[want] = None
        whose = want.whose
        for uri in tuple(want.uris):
            if self._wanted[whose] >= MAX_WANTED:
                self._turn_down(want, uri, _TOO_MANY)
                continue
            if uri not in self._wants:
                # As much as is left for others: half of all, half of the rest, and so on.
                if self._number[whose] >= MAX_WATCHED - len(self._wants):
                    self._turn_down(want, uri, _TOO_MANY)
                    continue
                if self._length[whose] + written(uri) > self._most - self._chars:
                    self._turn_down(want, uri, _TOO_LONG)
                    continue
                self._count(uri, whose, 1)
                self._first[uri] = whose
            self._wants.setdefault(uri, {})[want] = None
            self._wanted[whose] += 1
            self._unwatched.pop(uri, None)

    def _count(self, uri: str, whose: str, times: int) -> None:
        size = times * written(uri)
        self._chars += size
        self._number[whose] += times
        self._length[whose] += size
        if not self._number[whose]:
            del self._number[whose], self._length[whose]

    @property
    def _unwatched(self) -> dict[str, None]:
        return {} if self.connection is None else self.connection.unwatched

    def leave(self, want: ResourceWatch, uri: str | None = None) -> None:
        """With all that it wants, or with one URI of it."""
        # in one order, so that the same are forgotten first each time
        for gone in sorted(want.uris) if uri is None else want.uris & {uri}:
            want.uris.discard(gone)
            self._forget(gone, want)
        if not want.uris:
            self._members.pop(want, None)

    def refuse(self, uri: str, failure: Failure) -> None:
        for want in tuple(self._wants.get(uri, ())):
            self._forget(uri, want)
            self._turn_down(want, uri, failure)

    def _turn_down(self, want: ResourceWatch, uri: str, failure: Failure) -> None:
        want.uris.discard(uri)
        want.refused[uri] = failure

    def _forget(self, uri: str, want: ResourceWatch) -> None:
        wants = self._wants.get(uri, {})
        if want in wants:
            del wants[want]
            self._wanted[want.whose] -= 1
            if not self._wanted[want.whose]:
                del self._wanted[want.whose]
        if not wants and self._wants.pop(uri, None) is not None:
            self._count(uri, self._first.pop(uri), -1)
            unwatched = self._unwatched
            unwatched[uri] = None
            if len(unwatched) > MAX_UNWATCHED:
                del unwatched[next(iter(unwatched))]

    def heard(self, params: Json) -> None:
        """Where very many listen, others have their turn between them. Of updates of one resource that wait, the newest
        counts; where too many wait, the oldest are forgotten."""
        uri = params.get("uri")
        if not isinstance(uri, str) or len(uri) > MAX_URI:
            return
        params = {"uri": uri}  # its server may have written megabytes beside it, and nobody is told of them
        concerned = self._concerned(uri)
        if not self._news and len(concerned) <= FEW:
            for want in concerned:
                want.tell(params)
            return
        is_idle = not self._news
        self._news[uri] = params, iter(tuple(concerned))
        if len(self._news) > MAX_NEWS:
            del self._news[next(iter(self._news))]
        if is_idle:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        most = AT_ONCE_TOLD
        try:
            while self._news and most > 0:
                uri, (params, wants) = next(iter(self._news.items()))
                for want in islice(wants, most):
                    most -= 1
                    if want in self._members:
                        want.tell(params)
                if most > 0:
                    del self._news[uri]
        finally:
            if self._news:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _concerned(self, uri: str) -> Collection[ResourceWatch]:
        """Whoever wants that resource, or one that it is a part of (<= 2025-11-25 and 2026-07-28 schema: it may be a
        sub-resource of the one subscribed to). What sub-resources are called is the server's own affair: one that
        looks like nobody's may be anybody's."""
        whole = list(_wholes(uri))
        found = [part for part in whole if part in self._wants]
        if found:
            return dict.fromkeys(want for part in found for want in self._wants[part])
        return () if any(part in self._unwatched for part in whole) else tuple(self._members)

    def tell_missed(self, asked: frozenset[str]) -> None:
        """Announces what is watched again: a new connection replays nothing, so each may have changed."""
        uris, self.missed = self.missed & asked, (self.missed - asked).intersection(self._wants)
        tell_in_steps((want.tell, uri) for uri in uris for want in tuple(self._wants.get(uri, ())))


def _wholes(uri: str) -> Iterator[str]:
    """Yields the URI and the resources of which, by its path, it may be a part."""
    yield uri
    for count, found in enumerate(_BOUNDARY.finditer(uri)):
        if count >= _MAX_PARTS:
            return
        yield uri[: found.start()]
        yield uri[: found.end()]


class ResourceWatches:
    """All boards of one server."""

    def __init__(
        self, pool: ConnectionPool, key_of: Callable[[Client, Era], ConnectionKey], patience: float, max_result: int
    ) -> None:
        """`patience`: seconds to wait until a connection hears what its server says by itself. `max_result`: a server
        that says more in one message loses its connection, with everybody's calls; a legacy one says no two URIs in
        one."""
        self._pool = pool
        self._most: dict[Era, int] = {
            "modern": min(MAX_WATCHED_CHARS, max_result // 2), "legacy": MAX_WATCHED_CHARS,
        }  # fmt: skip
        self._key_of = key_of
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
        """Returns once the server sends updates. Raises the errors of dialling."""
        board = self._board(client, era)
        want = ResourceWatch(set(uris), tell, client.principal)
        board.join(want)
        try:
            while not await self._sync(board, want):
                pass
        except BaseException:
            self._leave(board, want)
            raise
        if not want.uris:
            self._leave(board, want)
        return partial(self._leave, board, want), want.refused

    def _board(self, client: Client, era: Era) -> WatchBoard:
        key = self._key_of(client, era)
        board = self._boards.get(key)
        if board is None:
            board = self._boards[key] = WatchBoard(key, self._most[key.era])
            self._pool.needs.require(key, True)
        return board

    def _leave(self, board: WatchBoard, want: ResourceWatch, uri: str | None = None) -> None:
        board.leave(want, uri)
        self._maintain(board)

    def renew(self) -> None:
        """Connections may have ended: what was watched on them is watched on their successors."""
        for board in tuple(self._boards.values()):
            self._maintain(board)

    def _is_done(self, board: WatchBoard) -> bool:
        if not board.uris:
            return False
        return board.asked == board.uris and board.connection is self._pool.find(board.key)

    def _maintain(self, board: WatchBoard) -> None:
        if self._group is not None and not board.is_maintained:
            board.is_maintained = True
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
            board.is_maintained = False

    async def _sync(self, board: WatchBoard, want: ResourceWatch | None = None) -> bool:
        """Asks the server for a part of what is wanted, or for all of it. Clients take turns, and so does what has no
        client. Returns whether it has been asked for all of `want`."""
        whose = "" if want is None else want.whose
        if not await board.turns.enter(whose, None):  # a client's deadline is its own; what is watched again has none
            raise TimeoutError
        try:
            if not board.uris:
                await self._clear(board)
                return True
            connection = await self._pool.get(board.key)
            if connection is not board.connection:
                board.missed |= frozenset() if board.connection is None else board.uris
                board.connection = connection
                for uri in board.uris:
                    connection.unwatched.pop(uri, None)
                with anyio.move_on_after(self._patience):
                    await connection.live()
            asked = await self._ask(board, connection, board.missed if want is None else want.uris)
            return want is None or want.uris <= asked
        finally:
            board.turns.leave(whose)

    async def _ask(self, board: WatchBoard, connection: ServerConnection, first: Collection[str]) -> frozenset[str]:
        board.asked = None
        asked, refused = await connection.watch(board.uris, board.heard, first, lambda: board.turns.waiting > 0)
        board.asked = asked
        for uri, failure in refused.items():
            log.info("a subscription is refused", extra={"code": failure.code})
            board.refuse(uri, failure)
        board.tell_missed(asked)
        return asked

    async def _clear(self, board: WatchBoard) -> None:
        """Ends the subscriptions of a board that nobody watches, if its connection is open: none is made for that."""
        connection, left = board.connection, frozenset[str]()
        if connection is not None and connection is self._pool.find(board.key):
            with suppress(Lost, TimeoutError):  # what it still says is for nobody
                left, _ = await connection.watch(frozenset(), board.heard, (), lambda: board.turns.waiting > 0)
        if not board.uris and not left and self._boards.get(board.key) is board:
            del self._boards[board.key]
            self._pool.needs.require(board.key, False)
