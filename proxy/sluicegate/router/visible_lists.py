"""What clients of equal rights see of one server's list: judged once for all of them, not again for each and each time.

Knows snapshots and rights as functions. As long as the `permission_key` is equal, so is each decision.
"""

import asyncio
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import Final
from weakref import ReferenceType, WeakValueDictionary, ref

from anyio.lowlevel import checkpoint

from sluicegate.catalog.snapshot import KINDS, Snapshot
from sluicegate.catalog_cache import CatalogCache, MayList
from sluicegate.policy.memo import Memo
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, Client, McpServer, Target
from sluicegate.runtime.loop_budget import PeriodicYield, budget_of

PermissionKey = Callable[[Call], tuple[Hashable, Hashable] | None]
"""What decisions go by: what is another for all clients after each change of the policy, and the rights of this one;
None where nothing may be remembered."""

_Place = tuple[tuple[Hashable, Hashable], str, str]  # whose rights, of which server, which list
MAX_VIEWS: Final = 5_000
_PINNED: Final = " pinned"
STRIDE: Final = 8  # items that are judged in a row
LONG: Final = 256  # characters of a name or URI that is judged alone


@dataclass(frozen=True, slots=True, eq=False)
class VisibleList:
    """`shown` are indexes in the snapshot's list. Each list has its own `number`; `size` is its bytes. Clients with the
    same rights get the same object. `of` is a weak reference, because a server can cause many new snapshots."""

    server: str
    of: ReferenceType[Snapshot]
    shown: tuple[int, ...]
    number: int
    size: int


class VisibleLists:
    def __init__(
        self, may_list: MayList, permission_key: PermissionKey,
        is_pinned: Callable[[Client, Target], bool] = lambda client, target: False,
    ) -> None:  # fmt: skip
        self._may_list, self._is_pinned = may_list, is_pinned
        self._permission_key = permission_key
        self._views: Memo[_Place, VisibleList] = Memo(MAX_VIEWS)
        self._turns: WeakValueDictionary[tuple[_Place, bytes], asyncio.Lock] = WeakValueDictionary()
        self._changes: Hashable = None  # of the policy, up to these views

    async def view(
        self, call: Call, key: str, snapshot: Snapshot, method: str, only_pinned: bool = False
    ) -> VisibleList:
        """Judging a long list for the first time takes a while. Who wants to know the same meanwhile waits for it: a
        change of a list is looked at by all streams at once. `only_pinned` leaves out what a client that searches does
        not see in its list."""
        list_name = method + _PINNED if only_pinned else method
        while (permission_key := self._permission_key(call)) is not None:
            at = permission_key, key, list_name
            if (cached := self._cached(at, snapshot)) is not None:
                return cached
            async with self._turns.setdefault((at, snapshot.digest), asyncio.Lock()):
                if permission_key == self._permission_key(call) and self._cached(at, snapshot) is None:
                    return await self._judge(call, key, snapshot, method, only_pinned, at)
        return await self._judge(call, key, snapshot, method, only_pinned, None)

    def _cached(self, at: _Place, snapshot: Snapshot) -> VisibleList | None:
        cached = self._views.get(at)
        return cached if cached is not None and cached.of() is snapshot else None

    async def _judge(
        self, call: Call, key: str, snapshot: Snapshot, method: str, only_pinned: bool, at: _Place | None
    ) -> VisibleList:
        shown, size, state, turns = list[int](), 0, blake2b(digest_size=16), PeriodicYield(budget_of(key))
        for index, entry in enumerate(snapshot.entries(method)):
            if index % STRIDE == STRIDE - 1 or len(entry.target.own) > LONG:
                await turns.yield_if_due()
            if only_pinned and not self._is_pinned(call.client, entry.target):
                continue
            if self._may_list(call, key, entry.target):
                shown.append(index)
                size += entry.size
                state.update(entry.digest)
        view = VisibleList(key, ref(snapshot), tuple(shown), _number(state.digest()), size)
        if at is not None and at[0] == self._permission_key(call):  # equal after the others' turn
            changes = at[0][0]
            if changes != self._changes:  # nobody asks for what was seen before
                self._views.clear()
                self._changes = changes
            self._views.keep(at, view)
        return view


def no_permission_key(call: Call) -> None:
    """Stands in where the policy cannot report when its decisions change."""


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8])


NOTHING: Final = _number(blake2b(digest_size=16).digest())
"""The number of each list of which nothing is shown."""


# ---------------------------------------------------------------- versions

_WORD: Final = 2**64 - 1


class ListVersions:
    """`mark` identifies what a list would answer now."""

    def __init__(
        self,
        servers: Mapping[str, McpServer],
        lists: CatalogCache,
        views: VisibleLists,
        may_see: Callable[[Call, str], bool],
    ) -> None:
        self._servers = servers
        self._lists = lists
        self._views = views
        self._may_see = may_see
        self.positions = {one: at for at, one in enumerate((key, method) for key in servers for method in KINDS)}

    async def look(self, call: Call, notifications: Iterable[str]) -> "array[int]":
        """The marks of all lists that these notifications are about, in the order of `positions`."""
        held = lists_of(notifications)
        seen = array("Q", bytes(8 * len(self.positions)))
        for (key, method), at in tuple(self.positions.items()):
            if method in held:
                seen[at] = await self._mark(call, key, method)
        return seen

    async def look_again(self, call: Call, key: str, notification: str, seen: "array[int]") -> bool:
        """Whether a list of that server is another than it was; remembers what it is now. Of a server that took
        another's place that is known once it has listed."""
        changed = False
        for method in () if self._lists.is_awaited(key, call.client) else lists_of((notification,)):
            at = self.positions.setdefault((key, method), len(self.positions))
            if at >= len(seen):  # of a server that is new since the stream began, nothing was shown
                seen.extend(repeat(NOTHING, at + 1 - len(seen)))
            now = await self._mark(call, key, method)
            changed = changed or now != seen[at]
            seen[at] = now
        return changed

    async def _mark(self, call: Call, key: str, method: str) -> int:
        """Nothing is shown while the server is down."""
        await checkpoint()
        snapshot = self._lists.current(key, call.client)
        if snapshot is None or not self._servers[key].shows(call.client):
            return NOTHING
        view = await self._views.view(call, key, snapshot, method)
        if not self._counts_announcements(call, key, snapshot, method):
            return view.number
        return hash((view.number, self._lists.announced(key, call.client, method))) & _WORD

    def _counts_announcements(self, call: Call, key: str, snapshot: Snapshot, method: str) -> bool:
        """Resources are held by nobody, so that the server's word counts. One server behind us is relayed as it is."""
        if self._lists.settings.transparent:
            return True
        return KINDS[method] == "res" and snapshot.declares("resources") and self._may_see(call, key)


def lists_of(notifications: Iterable[str]) -> list[str]:
    return [method for method in KINDS if LISTS[method].changed in notifications]
