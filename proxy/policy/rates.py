"""How often something may happen: a moving window for each key, exact at the limit and small in memory.

Knows no client and no call. Why not the library `limits`: its memory storage starts a thread up to every ten
milliseconds that walks all keys. Measured at 80 hits a second that is 430 us of CPU a hit with one key and 4,400 us
with 2,000, and the event loop waits for it; this one takes less than 1 us. Its keys are texts joined by "/", which
principals and tool names may hold, so that two of them could share a window; ours are tuples.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable
from math import ceil
from typing import Final

MAX_STEPS: Final = 128
"""A window remembers about so many moments. Up to this amount every hit has its own; above it, hits that are close
together count as if they came at the end of their step: it may refuse a little too long, never let too many through."""
MAX_WINDOWS: Final = 100_000
"""In memory at once; what comes after them shares one window, so that many keys never mean no limit."""

_SOON: Final = 0.001
_WORDS: Final = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}


class _Window:
    """The moments of the hits that still count, oldest first, and how many happened at each."""

    __slots__ = ("count", "moments")

    def __init__(self) -> None:
        self.moments: deque[tuple[float, int]] = deque()
        self.count = 0

    def forget(self, until: float) -> None:
        moments = self.moments
        while moments and moments[0][0] <= until:
            self.count -= moments.popleft()[1]

    def add(self, moment: float) -> None:
        moments = self.moments
        same = moments.pop()[1] if moments and moments[-1][0] == moment else 0
        moments.append((moment, same + 1))
        self.count += 1


class Windows:
    """At most `amount` hits of each key in any `seconds`. `passed` and `limited` count them since the start. Windows of
    keys that were silent for a whole period are dropped in one go, without a walk over the others."""

    def __init__(
        self, amount: int, seconds: float, clock: Callable[[], float] = time.monotonic, most: int = MAX_WINDOWS
    ) -> None:
        self._amount = amount
        self._seconds = seconds
        self._step = seconds / MAX_STEPS if amount > MAX_STEPS else 0.0
        self._period = seconds + self._step
        self._clock = clock
        self._most = most
        self._now: dict[Hashable, _Window] = {}
        self._before: dict[Hashable, _Window] = {}
        self._turns_at = clock() + self._period
        self.passed = self.limited = 0

    def hit(self, key: Hashable) -> float:
        """Counts one for this key and gives 0.0, or counts nothing and gives the seconds until one more is free."""
        now = self._clock()
        if now >= self._turns_at:
            self._turn(now)
        window = self._now.get(key) or self._window(key)
        window.forget(now - self._seconds)
        if window.count >= self._amount:
            self.limited += 1
            return max(window.moments[0][0] + self._seconds - now, _SOON)
        self.passed += 1
        window.add((now // self._step + 1) * self._step if self._step else now)
        return 0.0

    def _window(self, key: Hashable) -> _Window:
        window = self._before.pop(key, None)
        if window is None and len(self._now) >= self._most:
            key = None
            window = self._now.get(key) or self._before.pop(key, None)
        window = self._now[key] = window or _Window()
        return window

    def _turn(self, now: float) -> None:
        """What was not asked for during a whole period holds nothing that still counts."""
        self._before = self._now if now < self._turns_at + self._period else {}
        self._now = {}
        self._turns_at = now + self._period

    def describe(self, wait: float) -> str:
        """The limit and when to try again, in whole seconds, for a person or a model."""
        per = _WORDS.get(self._seconds, f"{self._seconds:g} s")
        return f"{self._amount} per {per} are allowed; try again in {ceil(wait)} s"

    def __len__(self) -> int:
        return len(self._now) + len(self._before)

    def __repr__(self) -> str:
        return f"Windows({self._amount} in {self._seconds:g} s, {len(self)} keys)"
