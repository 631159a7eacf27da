"""Moving windows for the library `limits`, whose strategy asks them, in a memory of our own.

The library's own starts a thread up to every ten milliseconds that walks all keys: at 80 hits a second that is 430 us
of CPU a hit with one key and 4,400 us with 2,000, and the event loop waits for it. With this one a hit takes 3 us,
however many keys there are. A file of its own, because the library takes 3 MiB: only who has a limit imports it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from limits import RateLimitItemPerSecond
from limits.storage import MovingWindowSupport, Storage
from limits.strategies import MovingWindowRateLimiter

__all__ = ["MovingWindowRateLimiter", "RateLimitItemPerSecond", "WindowStorage"]

MAX_STEPS: Final = 128
"""A window remembers about so many moments. Up to this amount every hit has its own; above it, hits that are close
together count as if they came at the end of their step: it may refuse a little too long, never let too many through."""
_SHARED: Final = ""
_FIXED: Final = "there are moving windows here, and no fixed ones"


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

    def add(self, moment: float, amount: int) -> None:
        moments = self.moments
        same = moments.pop()[1] if moments and moments[-1][0] == moment else 0
        moments.append((moment, same + amount))
        self.count += amount


class WindowStorage(Storage, MovingWindowSupport):
    """At most `most` windows of at most `seconds`. Those of keys that were silent for a whole period are dropped in one
    go, without a walk over the others."""

    STORAGE_SCHEME = None
    base_exceptions = ()

    def __init__(self, seconds: float, clock: Callable[[], float], most: int) -> None:
        super().__init__()
        self._period = seconds + seconds / MAX_STEPS
        self._clock = clock
        self._most = most
        self._now: dict[str, _Window] = {}
        self._before: dict[str, _Window] = {}
        self._turns_at = clock() + self._period

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        now = self._clock()
        if now >= self._turns_at:
            self._turn(now)
        window = self._now.get(key) or self._window(key)
        window.forget(now - expiry)
        if window.count + amount > limit:
            return False
        step = expiry / MAX_STEPS if limit > MAX_STEPS else 0.0
        window.add((now // step + 1) * step if step else now, amount)
        return True

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """The oldest moment that counts (now, if none does), by our clock, and how many hits do."""
        now = self._clock()
        window = self._now.get(key) or self._before.get(key) or self._now.get(_SHARED) or _Window()
        window.forget(now - expiry)
        return window.moments[0][0] if window.moments else now, window.count

    def _window(self, key: str) -> _Window:
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

    def clear(self, key: str) -> None:
        self._now.pop(key, None)
        self._before.pop(key, None)

    def reset(self) -> int:
        dropped = len(self)
        self._now, self._before = {}, {}
        return dropped

    def check(self) -> bool:
        return True

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        raise NotImplementedError(_FIXED)

    def get(self, key: str) -> int:
        raise NotImplementedError(_FIXED)

    def get_expiry(self, key: str) -> float:
        raise NotImplementedError(_FIXED)

    def __len__(self) -> int:
        return len(self._now) + len(self._before)
