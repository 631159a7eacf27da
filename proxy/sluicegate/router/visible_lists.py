"""What clients of equal rights see of one server's list: judged once for all of them, not again for each and each time.

Knows snapshots and rights as functions. As long as the `permission_key` is equal, so is each decision.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from sluicegate.catalog.snapshot import Entry, Snapshot, digest
from sluicegate.catalog_cache import MayList
from sluicegate.policy.memo import Memo
from sluicegate.protocol.model import Call

PermissionKey = Callable[[Call], Hashable | None]
"""What decisions for this client go by, as a whole; None where nothing may be remembered."""

MAX_VIEWS: Final = 5_000
STRIDE: Final = 8  # items that are judged in a row


@dataclass(frozen=True, slots=True, eq=False)
class VisibleList:
    """`shown` are places in the snapshot's list; `number` is another for another list. The same list to the same rights
    is the same object."""

    snapshot: Snapshot
    shown: tuple[int, ...]
    number: int


class VisibleLists:
    def __init__(self, may_list: MayList, permission_key: PermissionKey) -> None:
        self._may_list = may_list
        self._permission_key = permission_key
        self._known: Memo[tuple[Hashable, str, str], VisibleList] = Memo(MAX_VIEWS)

    async def view(
        self, call: Call, key: str, snapshot: Snapshot, method: str, breathe: Callable[[], Awaitable[None]]
    ) -> VisibleList:
        """Judging a long list for the first time takes a while: `breathe` lets others have their turn."""
        permission_key = self._permission_key(call)
        known = None if permission_key is None else self._known.get((permission_key, key, method))
        if known is not None and known.snapshot is snapshot:
            return known
        entries, shown = snapshot.entries(method), []
        for index, entry in enumerate(entries):
            if index % STRIDE == STRIDE - 1:
                await breathe()
            if self._may_list(call, key, entry.target):
                shown.append(index)
        view = VisibleList(snapshot, tuple(shown), number(entries[index] for index in shown))
        if permission_key is not None and permission_key == self._permission_key(call):  # equal after the others' turn
            self._known.keep((permission_key, key, method), view)
        return view


def no_permission_key(call: Call) -> None:
    """The key of whoever cannot tell when decisions change."""


def number(entries: Iterable[Entry]) -> int:
    return int.from_bytes(digest(entries)[:8])
