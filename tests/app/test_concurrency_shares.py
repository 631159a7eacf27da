"""A server's concurrency is shared by replicas: together never more, whoever comes, goes or is slow to hear of it."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluicegate.app.replicas import ConcurrencyShares

Rows = dict[str, dict[str, Any]]


class Gate:
    """A server of one replica, with calls that end when the test says so."""

    def __init__(self) -> None:
        self.limit, self.busy, self.is_settled = 0, 0, False

    @property
    def most_in_flight(self) -> int:
        return self.busy

    def set_limit(self, limit: int, is_settled: bool) -> None:
        self.limit, self.is_settled = limit, is_settled


class Member:
    def __init__(self, mark: str, rows: Rows, concurrency: int) -> None:
        self.mark, self._rows, self.gate = mark, rows, Gate()
        self.shares = ConcurrencyShares(mark)
        self.scanned: Rows | None = None
        self.tell()
        self.scan()
        self.take()  # as a replica does that starts: no server is made yet
        self.shares.attach(lambda: [("bank", concurrency, self.gate)])
        self.gate.set_limit(self.shares.of("bank", concurrency), False)

    def tell(self) -> None:
        self._rows[self.mark] = self.shares.row()

    def scan(self) -> None:
        self.scanned = dict(self._rows)

    def take(self) -> None:
        if self.scanned is not None:
            self.shares.see({mark: row for mark, row in self.scanned.items() if mark != self.mark})
        self.scanned = None


class Sharing(RuleBasedStateMachine):
    @initialize(concurrency=st.integers(1, 9))
    def begin(self, concurrency: int) -> None:
        self.concurrency, self.number = concurrency, 0
        self.rows: Rows = {}
        self.members: list[Member] = []
        self.join()

    @rule()
    def join(self) -> None:
        if len(self.members) < 5:
            self.number += 1
            mark = f"{self.number * 7 % 10}.{self.number}"  # new ones stand anywhere among those that are there
            self.members.append(Member(mark, self.rows, self.concurrency))

    def one(self, data: st.DataObject) -> Member | None:
        return data.draw(st.sampled_from(self.members)) if self.members else None

    @rule(data=st.data(), steps=st.sampled_from([("tell",), ("scan",), ("take",), ("tell", "scan"), ("scan", "take")]))
    def beat(self, data: st.DataObject, steps: tuple[str, ...]) -> None:
        member = self.one(data)
        for step in steps if member is not None else ():
            getattr(member, step)()

    @rule()
    def beat_all(self) -> None:
        for step in ("tell", "scan", "take"):
            for member in self.members:
                getattr(member, step)()

    @rule()
    def call(self) -> None:
        for member in self.members:
            member.gate.busy = max(member.gate.busy, member.gate.limit)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        member = self.one(data)
        if member is not None and member.gate.busy:
            member.gate.busy -= 1

    @rule(data=st.data(), is_noticed=st.booleans())
    def end(self, data: st.DataObject, is_noticed: bool) -> None:
        member = self.one(data)
        if member is not None:
            self.members.remove(member)
            if is_noticed:
                self.rows.pop(member.mark, None)

    @rule()
    def expire(self) -> None:
        there = {member.mark for member in self.members}
        for mark in self.rows.keys() - there:
            del self.rows[mark]

    @invariant()
    def never_more_together(self) -> None:
        together = sum(max(member.gate.limit, member.gate.busy) for member in getattr(self, "members", ()))
        assert together <= getattr(self, "concurrency", 0)

    def teardown(self) -> None:
        if not getattr(self, "members", None):
            return
        self.expire()
        for member in self.members:
            member.gate.busy = 0
        for _ in range(3):
            self.beat_all()
        limits = sorted(member.gate.limit for member in self.members)
        assert sum(limits) == self.concurrency and limits[-1] - limits[0] <= 1
        assert all(member.gate.is_settled for member in self.members)


def test_a_replica_of_the_version_before_holds_nobody_up() -> None:
    """Its row says nothing of shares, so it would never be seen to agree."""
    shares = ConcurrencyShares("a")
    shares.see({"b": {"policy": "one"}})
    assert shares.is_agreed
    shares.see({"b": {"policy": "one"}, "c": {"view": "another"}})
    assert not shares.is_agreed


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
