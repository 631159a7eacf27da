"""What part of everything this process has: all of it, or that of one of several workers or replicas. Values only."""

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final


@lru_cache(maxsize=4096)
def owner_of(principal: str, workers: int) -> int:
    """The number, from 0, of the worker that a principal belongs to: the same in every process and after each start."""
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
        return owner_of(principal, self.count)

    def of(self, amount: int) -> int:
        """This process's part of `amount`. The parts of all processes add up to it."""
        return amount // self.count + (self.index < amount % self.count)


WHOLE: Final = Partition()
