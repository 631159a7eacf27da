"""The tasks that clients know of: whose each is, which server has it, and how long that is remembered.

An id of ours is random, and found only for whoever it was made for (`owner` of `protocol/tasks.py`): for anybody else
there is no such task. Bounded for each of them and in all: what has ended leaves first, and who has too many that run
is refused another before anything is executed (but for those that begin at that moment). What runs is never pushed out.
Tasks of stateless servers outlive this process in the store; those of a connection end with it. An id of a server that
comes again is nobody's: the server began anew, or gives it to two. Times are seconds.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from sluicegate.protocol import tasks
from sluicegate.protocol.input_requests_server import MAX_REQUESTS, methods
from sluicegate.protocol.jsonrpc import Json, Malformed, decode_fast, dump
from sluicegate.protocol.model import Call, Client, Handler, McpServer, Target
from sluicegate.store import Store, Write

MAX_TASKS: Final = 1_000  # of one owner
MAX_ALL: Final = 20_000
AT_ONCE: Final = 500  # rows of one transaction, each of which has a lock of the engine
MAX_KEY: Final = 200  # characters of a question's key and method
GRACE: Final = 60.0  # beyond a task's own time to live: its result may just be on its way
_POLL: Final = 1000  # milliseconds, where the server suggests nothing
_PREFIX: Final = "task:"
_ID_BYTES: Final = 24
_ID_CHARS: Final = 32
_MAX_ID: Final = 128  # with a mark


@dataclass(slots=True)
class TaskRecord:
    """`own` is the id as its holder knows it, `task` what was last said of it. `holder` answers for it where it is not
    the server of this `identity`. `order` is when it was made, among those of its owner. `news` is set when it is
    said to have changed. `looked` is when its server was asked or said something last, by the monotonic clock. `asked`
    has the methods of its open questions, as far as this process was told of them and their keys are short."""

    id: str
    owner: str
    session: str | None
    target: Target
    own: str
    task: Json
    expires: float
    order: int
    holder: Handler | None = None
    identity: str = ""
    is_lost: bool = False
    looked: float = float("-inf")
    asked: dict[str, str] = field(default_factory=dict)
    news: anyio.Event = field(default_factory=anyio.Event)

    def stir(self) -> None:
        """Wakes everybody who waits for a change of the task."""
        self.news.set()
        self.news = anyio.Event()

    def is_for(self, client: Client) -> bool:
        """Whether this client of its owner's name may know of it."""
        return not tasks.is_nobody(client) or self.session == client.session

    def is_due(self, now: float) -> bool:
        """Whether a list of tasks may ask its server."""
        return not self.has_ended and now - self.looked >= self.task.get("pollIntervalMs", _POLL) / 1000

    def ask(self, requests: object) -> None:
        """Notes what its server asks, within bounds: the record lives as long as the task."""
        few = requests if isinstance(requests, dict) and len(requests) <= MAX_REQUESTS else {}
        self.asked = {key: method for key, method in methods(few).items() if len(key) + len(method) <= MAX_KEY}

    @property
    def status(self) -> str:
        return str(self.task["status"])

    @property
    def has_ended(self) -> bool:
        return self.is_lost or self.status in tasks.TERMINAL

    def shown(self) -> Json:
        """The last state that its server sent, with the id that the client has."""
        return {**self.task, "taskId": self.id}


class TaskRegistry:
    """`servers` answer for the tasks that they made. Without a `store` none outlives the process. Ids of tasks that
    are not in the store begin with `mark`."""

    def __init__(
        self, servers: Mapping[str, McpServer], store: Store | None = None, clock: Callable[[], float] = time.time,
        mark: str = "",
    ) -> None:  # fmt: skip
        self._servers = servers
        self._store = store
        self._clock = clock
        self._mark = mark
        self._mine: dict[str, dict[str, TaskRecord]] = {}
        self._by_own: dict[tuple[str, str], TaskRecord] = {}
        self.count = 0
        self._order = 0

    # ------------------------------------------------------------ in

    async def is_full(self, owner: str) -> bool:
        """Whether no other task may begin: on the way of every call that could become one."""
        mine = self._mine.get(owner)
        if (mine is None or len(mine) < MAX_TASKS) and self.count < MAX_ALL:
            return False
        gone = self._make_room(owner)
        if self._store is not None:
            rows = [Write(_PREFIX + one.id) for one in gone if _has_row(one) and not self._is_over(one)]
            with suppress(OSError):  # their time ends them, too
                for start in range(0, len(rows), AT_ONCE):  # nothing stands under the prefix itself
                    await self._store.swap(_PREFIX, None, rows[start : start + AT_ONCE])
        return not gone

    async def add(self, call: Call, target: Target, task: Json, holder: Handler | None = None) -> TaskRecord | None:
        """A task that has begun; None where that id is another's: neither has it then, for nobody knows whose it is.
        Without a `holder` it is the server's."""
        owner = tasks.owner(call.client)
        existing = self._by_own.get((target.server, task["taskId"]))
        if existing is not None and self.handler(existing) is None:
            await self._lose(existing)  # another server has its place
        elif existing is not None and not self._is_over(existing):
            is_same = existing.owner == owner and existing.target == target
            if is_same and not existing.has_ended:
                return existing
            await self._lose(existing)
            if not is_same:
                return None
        self._order += 1
        is_stored = self._store is not None and holder is None and _is_free(task["taskId"])
        id = ("" if is_stored else self._mark) + secrets.token_urlsafe(_ID_BYTES)
        record = TaskRecord(
            id, owner, call.client.session, target, task["taskId"], tasks.state(task),
            self._clock() + task["ttlMs"] / 1000 + GRACE, self._order, holder, self._servers[target.server].identity,
        )  # fmt: skip
        await self._admit(record)
        return record

    async def _lose(self, record: TaskRecord) -> None:
        """What the server says under that id is not believed to be of this task any more."""
        record.is_lost = True
        del self._by_own[record.target.server, record.own]
        record.stir()
        if self._store is not None and _has_row(record):
            await self._store.delete(_PREFIX + record.id)

    def handler(self, record: TaskRecord) -> Handler | None:
        """Who answers for a task; None where another server has the place of the one that made it."""
        if record.holder is not None:
            return record.holder
        server = self._servers.get(record.target.server)
        return server if server is not None and server.identity == record.identity else None

    async def _admit(self, record: TaskRecord) -> None:
        self._keep(record)
        if self._store is not None and _has_row(record):
            await self._store.put(_PREFIX + record.id, _pack(record), record.expires - self._clock())

    def _keep(self, record: TaskRecord) -> None:
        self._mine.setdefault(record.owner, {})[record.id] = record
        self._by_own[record.target.server, record.own] = record
        self.count += 1

    # ------------------------------------------------------------ out

    async def find(self, owner: str, id: str) -> TaskRecord | None:
        record = self._mine.get(owner, {}).get(id)
        if record is None and self._store is not None and _is_possible(id):
            record = self._restore(owner, await self._store.get(_PREFIX + id))
        if record is not None and self._is_over(record):
            await self.forget(record)
            return None
        return record

    async def find_all(self, owner: str, ids: Iterable[str]) -> list[TaskRecord]:
        """Those of the ids that are tasks of this owner. However many are not known here, the store is read once."""
        ids = dict.fromkeys(ids)
        unknown = [id for id in ids.keys() - self._mine.get(owner, {}).keys() if _is_possible(id)]
        if unknown and self._store is not None:
            for data in (await self._store.get_all([_PREFIX + id for id in unknown])).values():
                self._restore(owner, data)
        mine = self._mine.get(owner, {})
        return [mine[id] for id in ids if id in mine and not self._is_over(mine[id])]

    def find_own(self, server: str, own: str) -> TaskRecord | None:
        record = self._by_own.get((server, own))
        return None if record is None or self._is_over(record) or self.handler(record) is None else record

    def of(self, owner: str, after: int = 0) -> Iterator[TaskRecord]:
        """All of that client's, oldest first, from behind a place in that order."""
        for record in tuple(self._mine.get(owner, {}).values()):
            if record.order > after and not self._is_over(record):
                yield record

    async def become(self, record: TaskRecord, other: TaskRecord) -> None:
        """Puts `other` under the id of `record`, which has ended."""
        self._drop(record)
        self._drop(other)
        await self._admit(replace(other, id=record.id))
        record.stir()
        if self._store is not None:
            await self._store.delete(_PREFIX + other.id)

    async def forget(self, record: TaskRecord) -> None:
        self._drop(record)
        if self._store is not None:
            await self._store.delete(_PREFIX + record.id)

    def _restore(self, owner: str, data: bytes | None) -> TaskRecord | None:
        """Loads a task from before a restart. The record itself names its owner."""
        record = None if data is None else _unpack(data, self._order + 1)
        if record is None or record.owner != owner:
            return None
        if (first := self._mine.get(owner, {}).get(record.id)) is not None:  # two looked for it at once
            return first
        self._order += 1
        self._keep(record)
        return record

    # ------------------------------------------------------------ how much

    def _is_over(self, record: TaskRecord) -> bool:
        return record.expires <= self._clock()

    def _drop(self, record: TaskRecord) -> None:
        mine = self._mine.get(record.owner, {})
        if mine.pop(record.id, None) is None:
            return
        self.count -= 1
        if not mine:
            del self._mine[record.owner]
        if self._by_own.get((record.target.server, record.own)) is record:
            del self._by_own[record.target.server, record.own]

    def _make_room(self, owner: str) -> list[TaskRecord]:
        """Drops what is over, else what has ended: of this owner, or where there are too many of all, of whoever has
        most."""
        some, rank = {owner: self._mine.get(owner, {})}, dict[str, int]()
        if self.count >= MAX_ALL:
            some, rank = self._mine, {owner: -len(mine) for owner, mine in self._mine.items()}
        many = [record for mine in some.values() for record in mine.values()]
        ended = sorted((one for one in many if one.has_ended), key=lambda one: (rank.get(one.owner, 0), one.order))
        gone = [record for record in many if self._is_over(record)] or ended[: 1 + len(ended) // 10]
        for record in gone:
            self._drop(record)
        return gone


# ---------------------------------------------------------------- what is kept


def _is_possible(id: str) -> bool:
    return _ID_CHARS <= len(id) <= _MAX_ID and id.isascii()


def _has_row(record: TaskRecord) -> bool:
    return record.holder is None and _is_free(record.own)


def _is_free(own: str) -> bool:
    """Whether the task is of a stateless server, which answers for it on every connection."""
    return own.startswith(":")


def _pack(record: TaskRecord) -> bytes:
    target = record.target
    return dump([record.id, record.owner, target.server, target.own, target.public, record.own, record.task,
                 record.expires, record.identity])  # fmt: skip


def _unpack(data: bytes, order: int) -> TaskRecord | None:
    """Another release may have stored the record, so this checks its shape."""
    try:
        match decode_fast(data):
            case [str(id), str(owner), str(server), str(tool), str(public), str(own), dict(task), float(expires),
                  str(identity)]:  # fmt: skip
                target = Target(server, "tool", tool, public)
                return TaskRecord(id, owner, None, target, own, task, expires, order, identity=identity)
    except Malformed:
        pass
    return None
