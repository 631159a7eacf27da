"""A dictionary that stays small: the oldest entry goes when a new one needs its place."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(OrderedDict[K, V], Generic[K, V]):
    """For answers that can always be found again. `keep` is the only way in that bounds it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        if len(self) >= self._most:
            self.popitem(last=False)
        self[key] = value
        return value
