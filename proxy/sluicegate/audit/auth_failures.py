"""Who was not let in, summed up: one record a minute and address, a thousand addresses, then `other`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluicegate.protocol.jsonrpc import Json

WINDOW: Final = 60.0
MAX_ADDRESSES: Final = 1_000
MAX_REASONS: Final = 40
OTHER: Final = "other"


@dataclass(slots=True)
class _Sum:
    count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


class IdentityFailures:
    """`note` takes the fields of one record. Belongs to the event loop."""

    def __init__(self, note: Callable[[Json], None], window: float = WINDOW) -> None:
        self._note, self._window = note, window
        self._sums: dict[str, _Sum] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, address: str, reason: str) -> None:
        if address not in self._sums and len(self._sums) >= MAX_ADDRESSES:
            address = OTHER
        sum = self._sums.setdefault(address, _Sum())
        sum.count += 1
        reason = reason if reason in sum.reasons or len(sum.reasons) < MAX_REASONS else OTHER
        sum.reasons[reason] = sum.reasons.get(reason, 0) + 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._window, self.flush)

    def flush(self) -> None:
        """Writes what was summed up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums, self._sums = self._sums, {}
        for address, sum in sums.items():
            self._note({"address": address, "count": sum.count, "reasons": sum.reasons, "window": self._window})
