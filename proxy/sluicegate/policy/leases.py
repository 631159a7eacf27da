"""How often something may happen at all replicas of a fleet together: each leases a few hits of a key at a time.

Pure: what was let through and what is wanted is reported from time to time to a ledger that all replicas share, and
what it grants is told here. A hit asks nobody. Where the ledger does not answer, each replica has its part of the
amount.

In any window at most `amount` hits pass, and `replicas` times the `lease`: each may let through so many more than it
has leased, until its next report. One that dies takes with it what it has not reported, twice the `lease` at most.
"""

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from typing import Final, NamedTuple

from sluicegate.policy.rates import Windows, part_of

MAX_LEASES: Final = 10_000
"""Keys at once of which something is leased or owed; what comes after them shares one."""
DOWN_AFTER: Final = 2.0
"""Seconds after a report that was answered. What was leased then is void, for it may be another replica's soon."""
_MINUTE: Final = 60.0
_SHARED: Final = object()


class LeaseReport(NamedTuple):
    """What a replica tells the ledger of one key. Of the hits from `base` to `total`, which count all of the key since
    the replica's start, none was confirmed. It holds `held` unused ones, and wants up to `want` more."""

    key: bytes
    base: int
    total: int
    held: int
    want: int
    amount: int
    step: float
    """Seconds: hits count in the step of the ledger's clock in which they are reported."""
    steps: int
    """So many before the one of now count, too."""
    is_over: bool
    """Nothing is held or wanted: the ledger may forget the replica."""


class LeaseGrant(NamedTuple):
    key: bytes
    granted: int
    is_open: bool
    """Whether anything was free before that."""
    frees: float
    """The seconds until the oldest hits that count do not; 0.0 for none."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What follows from an amount, its seconds, and how many replicas live."""

    amount: int
    seconds: float
    replicas: int = 1
    index: int = 0
    """Of this replica among them, from 0."""

    @property
    def steps(self) -> int:
        return 60 if self.seconds >= _MINUTE else 10

    @property
    def step(self) -> float:
        return self.seconds / self.steps

    @property
    def every(self) -> float:
        """Seconds between two reports."""
        return 0.5 if self.seconds > 1 else 0.1

    @property
    def lease(self) -> int:
        """How many are leased at a time, and how many pass without."""
        return ceil(max(self.amount / (20 * self.replicas), self.amount * self.every / self.seconds))

    @property
    def part(self) -> int:
        """Of the amount, where every replica goes by itself."""
        return part_of(self.amount, self.index, self.replicas)


class RateLease:
    """What one replica may let through of one key, since its last report."""

    __slots__ = ("_base", "_debt", "_digest", "_free_at", "_fresh", "_held", "_idle", "_is_asked", "_is_open", "_sent",
                 "_skipped", "of")  # fmt: skip

    def __init__(self, of: Hashable, digest: bytes, base: int) -> None:
        """`digest`: its name in the ledger. `base`: no hit of an earlier lease of this key has a larger number."""
        self.of, self._digest, self._base = of, digest, base
        self._held = self._debt = self._fresh = self._idle = self._skipped = 0
        self._free_at = 0.0
        self._is_open, self._is_asked = True, False
        self._sent = 0, 0, False

    def take(self, lease: int) -> bool:
        """Lets one through that is leased, or one of `lease` that are reported afterwards."""
        if self._held:
            self._held -= 1
        elif self._is_open and self._debt < lease:
            self._debt += 1
        else:
            self._is_asked = True
            return False
        self._fresh += 1
        return True

    def has_one(self, lease: int) -> bool:
        """Whether `take` would. Where not, one is asked for."""
        has = self._held > 0 or (self._is_open and self._debt < lease)
        self._is_asked = self._is_asked or not has
        return has

    def count(self) -> None:
        """One has passed by other rules than these."""
        self._fresh += 1

    def void(self, most: int) -> None:
        """Nothing is leased any more. Of what has passed meanwhile `most` still count."""
        counted = min(self._fresh, most)
        self._base += self._fresh - counted  # a total never goes back: the engine counts what is more than the last
        self._held, self._fresh = 0, counted

    def wait(self, now: float, every: float) -> float:
        """Seconds until one more may be free."""
        return every if self._is_open else max(self._free_at - now, every)

    def report(self, terms: LeaseTerms) -> LeaseReport | None:
        """None where there is nothing to tell or to ask."""
        is_idle = not (self._fresh or self._is_asked)
        self._idle = self._idle + 1 if is_idle else 0
        if self._idle > 1:
            if not self._held and not self._is_open and (self._skipped + 1) * terms.every < terms.step:
                self._skipped += 1
                return None  # hits leave with their step
            self._held = 0
        is_over = is_idle and not self._held
        want = 0 if is_idle else max(terms.lease - self._held, 0)
        self._skipped, self._is_asked = 0, False
        self._sent = self._fresh, self._debt, is_over
        return LeaseReport(self._digest, self._base, self._base + self._fresh, self._held, want, terms.amount,
                           terms.step, terms.steps, is_over)  # fmt: skip

    def granted(self, grant: LeaseGrant, now: float) -> bool:
        """What the ledger said to the last report. Whether there is nothing left to remember."""
        fresh, debt, was_over = self._sent
        self._base += fresh
        self._fresh -= fresh
        self._debt -= debt
        self._held += grant.granted
        self._is_open, self._free_at = grant.is_open, now + grant.frees
        return was_over and grant.is_open and not (self._fresh or self._is_asked)


class LeasedWindows(Windows):
    """`Windows` of several replicas. `report` and `granted` are to be called every `every` seconds."""

    def __init__(
        self, scope: str, amount: int, seconds: float, clock: Callable[[], float] = time.monotonic,
        most: int = MAX_LEASES,
    ) -> None:  # fmt: skip
        """`scope`: whatever else is counted in the same ledger has another one."""
        super().__init__(amount, seconds, clock)
        self._scope, self._most_leases = scope, most
        self._leases: dict[Hashable, RateLease] = {}
        self._reported: dict[bytes, RateLease] = {}
        self._sent_at = 0.0
        self._good_until = clock() + DOWN_AFTER
        self.live(1, 0)

    def live(self, replicas: int, index: int) -> None:
        """So many replicas live, and this one is at that place among them."""
        self._terms = LeaseTerms(self._amount, self._seconds, replicas, index)
        self._lease, self._part = self._terms.lease, self._terms.part

    @property
    def every(self) -> float:
        return self._terms.every

    def hit(self, key: Hashable) -> float:
        now = self._clock()
        if now >= self._turns_at:
            self._turn(now)
        lease = self._leases.get(key) or self._lease_of(key)
        window = self._now.get(lease.of) or self._window(lease.of)
        window.forget(now - self._seconds)
        if now < self._good_until:
            if not lease.take(self._lease):
                self.limited += 1
                return lease.wait(now, self.every)
        elif window.count >= self._part:
            return self._refuse(window, now)
        else:
            lease.count()
        window.add((now // self._step + 1) * self._step if self._step else now)
        self.passed += 1
        return 0.0

    def until_free(self, key: Hashable) -> float:
        now = self._clock()
        lease = self._leases.get(key) or self._lease_of(key)
        if now >= self._good_until:
            window = self._now.get(lease.of) or self._window(lease.of)
            window.forget(now - self._seconds)
            return 0.0 if window.count < self._part else self._refuse(window, now)
        if lease.has_one(self._lease):
            return 0.0
        self.limited += 1
        return lease.wait(now, self.every)

    def _lease_of(self, key: Hashable) -> RateLease:
        if len(self._leases) >= self._most_leases:
            key = _SHARED
        if key not in self._leases:
            self._leases[key] = RateLease(key, self._digest(key), self.passed)
        return self._leases[key]

    def _digest(self, key: Hashable) -> bytes:
        """Of one size, and another one for windows of another length: their steps are not the same."""
        name = None if key is _SHARED else key
        return sha256(repr((self._scope, self._seconds, name)).encode()).digest()[:16]

    def report(self) -> list[LeaseReport]:
        """What to tell the ledger now. Where that is nothing, nobody needs to answer."""
        now = self._sent_at = self._clock()
        if now >= self._good_until:
            for lease in self._leases.values():
                window = self._now.get(lease.of) or self._window(lease.of)
                window.forget(now - self._seconds)
                lease.void(window.count)
        self._reported = {}
        reports = []
        for lease in self._leases.values():
            if (report := lease.report(self._terms)) is not None:
                self._reported[report.key] = lease
                reports.append(report)
        if not reports:
            self._good_until = now + DOWN_AFTER
        return reports

    def granted(self, grants: Iterable[LeaseGrant]) -> None:
        """What the ledger said to all that `report` gave last; of other keys nothing is known here."""
        now = self._clock()
        for grant in grants:
            lease = self._reported.get(grant.key)
            if lease is not None and lease.granted(grant, now):
                del self._leases[lease.of]
        self._good_until = self._sent_at + DOWN_AFTER

    def last(self) -> list[LeaseReport]:
        """What to tell the ledger at the end: nothing is held any more."""
        for lease in self._leases.values():
            lease.void(self._amount)
        return [report._replace(held=0, want=0, is_over=True) for report in self.report()]
