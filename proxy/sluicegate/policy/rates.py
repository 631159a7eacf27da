"""How often something may happen: a moving window for each key, exact at the limit and small in memory.

Knows no client and no call. The strategy is that of the library `limits`; where its windows are is ours
(`window_storage.py`).
"""

import time
from collections.abc import Callable, Hashable
from importlib import import_module
from math import ceil
from typing import Final

MAX_WINDOWS: Final = 100_000
"""In memory at once; what comes after them shares one window, so that many keys never mean no limit."""

_SOON: Final = 0.001
_WORDS: Final = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}


class Windows:
    """At most `amount` hits of each key in any `seconds`, which are whole. Keys are told apart by their `repr`.
    `passed` and `limited` count hits since the start."""

    def __init__(
        self, amount: int, seconds: float, clock: Callable[[], float] = time.monotonic, most: int = MAX_WINDOWS
    ) -> None:
        # By name, and not before there is a limit: `limits` takes 3 MiB and 70 ms.
        storage = import_module("sluicegate.policy.window_storage")
        self._item = storage.RateLimitItemPerSecond(amount, int(seconds))
        self._clock = clock
        self._memory = storage.WindowStorage(seconds, clock, most)
        self._limiter = storage.MovingWindowRateLimiter(self._memory)
        self.passed = self.limited = 0

    def hit(self, key: Hashable) -> float:
        """Counts one for this key and gives 0.0, or counts nothing and gives the seconds until one more is free."""
        name = repr(key)  # `limits` joins several texts by "/", which principals and tools may have in their names
        if self._limiter.hit(self._item, name):
            self.passed += 1
            return 0.0
        self.limited += 1
        free_at = float(self._limiter.get_window_stats(self._item, name).reset_time)
        return max(free_at - self._clock(), _SOON)

    def until_free(self, key: Hashable) -> float:
        """The seconds until one more is free, 0.0 where it is. Counts what must wait as limited, and no hit."""
        left = self._limiter.get_window_stats(self._item, repr(key))
        if left.remaining > 0:
            return 0.0
        self.limited += 1
        return max(float(left.reset_time) - self._clock(), _SOON)

    def describe(self, wait: float) -> str:
        """The limit and when to try again, in whole seconds, for a person or a model."""
        seconds = self._item.get_expiry()
        return f"{self._item.amount} per {_WORDS.get(seconds, f'{seconds} s')} are allowed; try again in {ceil(wait)} s"

    def __len__(self) -> int:
        return len(self._memory)

    def __repr__(self) -> str:
        return f"Windows({self._item}, {len(self)} keys)"
