"""What part of everything this process has: all of it, or that of one of several workers. Values only."""

from dataclasses import dataclass
from typing import Final

from sluicegate.listen.worker_handoff import owner_of


@dataclass(frozen=True, slots=True)
class WorkerPartition:
    """The principals that worker `index`, from 0, of `count` serves."""

    index: int = 0
    count: int = 1
    switched_off: frozenset[str] = frozenset()
    """Servers that an operator had disabled when this process was started."""

    def has(self, principal: str) -> bool:
        return self.count == 1 or owner_of(principal, self.count) == self.index

    def of(self, amount: int) -> int:
        """Our part of what there is so many of: those of all together are the amount."""
        return amount // self.count + (self.index < amount % self.count)


WHOLE: Final = WorkerPartition()
