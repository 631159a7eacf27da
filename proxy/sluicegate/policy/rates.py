"""How often something may happen: a moving window for each key, exact at the limit and small in memory.

Knows no client and no call. A hit takes the same time however many keys there are, and no thread walks over them.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable
from math import ceil
from typing import Final

MAX_WINDOWS: Final = 100_000
"""In memory at once; what comes after them shares one window, so that many keys never mean no limit."""
MAX_STEPS: Final = 128
"""A window remembers about so many moments. Up to this amount every hit has its own. Above it, hits that are close
together count as if they came at the end of their step: a window may refuse a little too long, and never lets too many
through."""

_SHARED: Final = object()
_SOON: Final = 0.001
_WORDS: Final = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}


def part_of(amount: int, index: int, count: int) -> int:
    """Of one of `count`, from 0. The parts of all add up to the amount."""
    return amount // count + (index < amount % count)


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
    """At most `amount` hits of each key in any `seconds`, which are whole. `passed` and `limited` count hits since the
    start. Windows of keys that were silent for a whole period are dropped in one go."""

    def __init__(
        self, amount: int, seconds: float, clock: Callable[[], float] = time.monotonic, most: int = MAX_WINDOWS
    ) -> None:
        self._amount, self._seconds, self._clock, self._most = amount, int(seconds), clock, most
        self._step = self._seconds / MAX_STEPS if amount > MAX_STEPS else 0.0
        self._period = seconds + seconds / MAX_STEPS
        self._now: dict[object, _Window] = {}
        self._before: dict[object, _Window] = {}
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
            return self._refuse(window, now)
        window.add((now // self._step + 1) * self._step if self._step else now)
        self.passed += 1
        return 0.0

    def until_free(self, key: Hashable) -> float:
        """The seconds until one more is free, 0.0 where it is. Counts what must wait as limited, and no hit."""
        now = self._clock()
        window = self._now.get(key) or self._before.get(key) or self._now.get(_SHARED) or _Window()
        window.forget(now - self._seconds)
        return 0.0 if window.count < self._amount else self._refuse(window, now)

    def _refuse(self, window: _Window, now: float) -> float:
        self.limited += 1
        oldest = window.moments[0][0] if window.moments else now
        return max(oldest + self._seconds - now, _SOON)

    def _window(self, key: object) -> _Window:
        window = self._before.pop(key, None)
        if window is None and len(self._now) >= self._most:
            key = _SHARED
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
        period = _WORDS.get(self._seconds, f"{self._seconds} s")
        return f"{self._amount} per {period} are allowed; try again in {ceil(wait)} s"

    def __len__(self) -> int:
        return len(self._now) + len(self._before)
