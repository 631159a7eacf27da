"""The ledger of leased rates in a few lines, by a clock of the test: what `SETTLE` in `store/postgres_statements.py`
does in SQL. And three replicas that use it, with answers that take time or are lost."""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from sluicegate.policy.leases import LeasedWindows, LeaseGrant, LeaseReport, LeaseTerms

LASTS = 10.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ledger:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used: dict[bytes, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._leased: dict[tuple[bytes, str], tuple[int, int, float]] = {}

    def settle(self, holder: str, reports: Iterable[LeaseReport]) -> list[LeaseGrant]:
        return [self._settle(holder, report) for report in reports]

    def _settle(self, holder: str, one: LeaseReport) -> LeaseGrant:
        now = self._clock.now
        at = int(now // one.step)
        _, total, _ = self._leased.get((one.key, holder), (0, one.base, 0.0))
        fresh = max(one.total - max(one.base, total), 0)
        used = self._used[one.key]
        if fresh:
            used[at] += fresh
        counts = {step: number for step, number in used.items() if step >= at - one.steps}
        others = sum(held for (key, other), (held, _, until) in self._leased.items()
                     if key == one.key and other != holder and until > now)  # fmt: skip
        free = one.amount - sum(counts.values()) - one.held - others
        granted = min(one.want, max(free, 0))
        if one.is_over:
            self._leased.pop((one.key, holder), None)
        else:
            self._leased[one.key, holder] = one.held + granted, one.total, now + LASTS
        frees = (min(counts) + one.steps + 1) * one.step - now if counts else 0.0
        return LeaseGrant(one.key, granted, free > 0, frees)


class Fleet:
    """`replicas` that settle by themselves, each at moments of its own, with up to `delay` seconds each way. Of each
    replica every `lost`-th settlement is not answered, every other one of these after it was counted."""

    def __init__(
        self, amount: int, seconds: float, seed: int = 0, replicas: int = 3, lost: int = 0, delay: float = 0.05
    ) -> None:
        self.clock, self._random, self._lost, self._delay = Clock(), random.Random(seed), lost, delay
        self._settled = [0] * replicas
        self.is_down = False
        self.terms = LeaseTerms(amount, seconds, replicas)
        self.ledger = Ledger(self.clock)
        self.rates = [LeasedWindows("tool", amount, seconds, self.clock) for _ in range(replicas)]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.passed: list[float] = []
        self.asleep: set[int] = set()
        """Replicas that do nothing, as a machine that is paused."""
        for place, rate in enumerate(self.rates):
            rate.live(replicas, place)
            self._at(self._random.uniform(0, rate.every), lambda place=place: self._begin(place))  # type: ignore[misc]

    def _at(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.clock.now + seconds, next(self._order), what))

    def _begin(self, place: int) -> None:
        if place in self.asleep:
            self._at(0.05, lambda: self._begin(place))
            return
        reports = self.rates[place].report()
        if not reports:
            self._at(self.rates[place].every, lambda: self._begin(place))
            return
        self._settled[place] += 1
        is_lost = self._lost > 0 and self._settled[place] % self._lost == 0
        is_counted = not self.is_down and (not is_lost or self._settled[place] // self._lost % 2 == 0)
        self._way(lambda: self._settle(place, reports, is_lost or self.is_down, is_counted))

    def _way(self, what: Callable[[], None]) -> None:
        self._at(self._random.uniform(0, self._delay), what)

    def _settle(self, place: int, reports: Sequence[LeaseReport], is_lost: bool, is_counted: bool) -> None:
        grants = self.ledger.settle(f"r{place}", reports) if is_counted else []
        self._way(lambda: self._end(place, None if is_lost else grants))

    def _end(self, place: int, grants: list[LeaseGrant] | None) -> None:
        if grants is not None:
            self.rates[place].granted(grants)
        self._at(self.rates[place].every, lambda: self._begin(place))

    def go(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self._due and self._due[0][0] <= until:
            self.clock.now, _, what = heapq.heappop(self._due)
            what()
        self.clock.now = until

    def hit(self, place: int, key: str = "k") -> bool:
        has_passed = self.rates[place].hit(key) == 0.0
        if has_passed:
            self.passed.append(self.clock.now)
        return has_passed

    @property
    def bound(self) -> int:
        return self.terms.amount + self.terms.replicas * self.terms.lease

    @property
    def most(self) -> int:
        """Of those that passed in any window."""
        first = most = 0
        for number, moment in enumerate(self.passed):
            while self.passed[first] <= moment - self.terms.seconds:
                first += 1
            most = max(most, number - first + 1)
        return most
