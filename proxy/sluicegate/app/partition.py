"""What part of everything this process has: all of it, or that of one of several workers or replicas. Values only."""

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sluicegate.policy.rates import part_of


@lru_cache(maxsize=4096)
def _owner_of(principal: str, workers: int) -> int:
    return zlib.crc32(principal.encode("utf-8", "surrogatepass")) % workers


@dataclass(frozen=True, slots=True)
class Partition:
    """The part of the worker or replica `index`, from 0, of `count`. Workers have principals, too."""

    index: int = 0
    count: int = 1
    switched_off: frozenset[str] = frozenset()
    """Servers that an operator had disabled when this process was started."""

    def has(self, principal: str) -> bool:
        return self.owner(principal) == self.index

    def owner(self, principal: str) -> int:
        """The number, from 0, of whom a principal belongs to: the same in every process and after each start."""
        return _owner_of(principal, self.count)

    def of(self, amount: int) -> int:
        """This process's part of `amount`."""
        return part_of(amount, self.index, self.count)


WHOLE: Final = Partition()
