"""What a client can see of the lists, as one number a list: whatever differs from then on is news to it.

Knows lists as snapshots and views of them. There is one number for each list of each server and idle session,
so they are kept bare.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from anyio.lowlevel import checkpoint

from sluicegate.catalog.snapshot import KINDS, Snapshot
from sluicegate.catalog_cache import CatalogCache
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import Call, McpServer
from sluicegate.router.visible_lists import VisibleLists, number

_WORD: Final = 2**64 - 1


class ListVersions:
    """`mark` is of what a list would answer now."""

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
        for (key, method), at in self.positions.items():
            if method in held:
                seen[at] = await self._mark(call, key, method)
        return seen

    async def look_again(self, call: Call, key: str, notification: str, seen: "array[int]") -> bool:
        """Whether a list of that server is another than it was; remembers what it is now."""
        changed = False
        for method in lists_of((notification,)):
            at = self.positions[key, method]
            now = await self._mark(call, key, method)
            changed = changed or now != seen[at]
            seen[at] = now
        return changed

    async def _mark(self, call: Call, key: str, method: str) -> int:
        """Nothing is shown while the server is down."""
        await checkpoint()
        snapshot = self._lists.known(key, call.client)
        if snapshot is None or self._servers[key].status == "down":
            return number(())
        view = await self._views.view(call, key, snapshot, method, checkpoint)
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
