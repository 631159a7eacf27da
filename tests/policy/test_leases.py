"""Rates that replicas share: in no window more than the amount, and what each may let through without a lease."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rate_ledger import Clock, Fleet

from sluicegate.policy.leases import DOWN_AFTER, LeasedWindows, LeaseGrant, LeaseTerms


@given(
    st.sampled_from([(600, 60.0), (121, 60.0), (10, 60.0), (1, 60.0), (2, 1.0), (50, 1.0), (1000, 3600.0)]),
    st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(0, 3), st.sampled_from([0, 2, 5]), st.sampled_from([0.0, 0.05, 0.2]), st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
def test_never_more_than_the_bound_in_any_window(
    rate: tuple[int, float], bursts: list[tuple[float, int, int]], seed: int, lost: int, delay: float, again: int
) -> None:
    """`gap` is a part of the window, so that idle leases, steps that end and windows that end all come up."""
    fleet = Fleet(*rate, seed=seed, lost=lost, delay=min(delay, rate[1] / 20))
    for gap, place, burst in bursts * (again + 1):
        fleet.go(gap * rate[1] / 3)
        for _ in range(burst):
            fleet.hit(place)
    assert fleet.most <= fleet.bound


def evenly(fleet: Fleet, number: int) -> int:
    return number % 3


def at_one(fleet: Fleet, number: int) -> int:
    return 0


def wandering(fleet: Fleet, number: int) -> int:
    return number // (fleet.terms.amount // 5) % 3


@pytest.mark.parametrize("spread", [evenly, at_one, wandering])
@pytest.mark.parametrize(("rate", "least"), [((600, 60.0), 520), ((120, 60.0), 104), ((10, 60.0), 6), ((50, 1.0), 2)])
def test_three_times_too_much_gets_nearly_all_that_is_allowed(
    rate: tuple[int, float], least: int, spread: Callable[[Fleet, int], int]
) -> None:
    fleet = Fleet(*rate)
    amount, seconds = rate
    counts = []
    for _ in range(6):
        before = len(fleet.passed)
        for number in range(3 * amount):
            fleet.go(seconds / (3 * amount))
            fleet.hit(spread(fleet, number))
        counts.append(len(fleet.passed) - before)
    assert fleet.most <= fleet.bound
    assert min(counts[1:]) >= least, counts


def test_leases_that_are_not_used_are_another_replica_s() -> None:
    fleet = Fleet(120, 60.0)
    assert fleet.hit(0)
    fleet.go(0.6)  # one has leases now
    fleet.go(1.5)
    for _ in range(200):
        fleet.go(0.3)
        fleet.hit(1)
    assert len(fleet.passed) >= 119
    fleet.go(120)
    assert [rate.report() for rate in fleet.rates] == [[], [], []], "what is over is not remembered"


def test_leases_of_a_replica_that_died_are_free() -> None:
    fleet = Fleet(12, 3600.0)
    assert fleet.hit(0)
    fleet.go(0.6)
    fleet.asleep = {0}
    for _ in range(100):
        fleet.go(0.2)
        fleet.hit(1)
    assert len(fleet.passed) == 12, "of the twelve one passed at the dead one"


def test_a_replica_that_was_paused_uses_no_lease_that_is_another_s_by_now() -> None:
    fleet = Fleet(600, 3600.0)
    fleet.hit(0)
    fleet.go(0.7)
    fleet.asleep = {0}
    for _ in range(1000):
        fleet.go(0.1)
        fleet.hit(1)
    assert len(fleet.passed) >= 600
    fleet.asleep = set()
    assert fleet.hit(0), "it knows of nobody yet, and has its part"
    fleet.go(0.7)
    assert not any(fleet.hit(0) for _ in range(10))


def test_who_had_nothing_to_report_for_long_has_not_lost_the_ledger() -> None:
    fleet = Fleet(600, 60.0)
    fleet.go(100)
    assert sum(fleet.hit(0) for _ in range(200)) == fleet.terms.lease


def test_a_hit_while_a_lease_is_given_back_is_reported_by_a_number_of_its_own() -> None:
    rate = LeasedWindows("tool", 1, 60.0, Clock())
    rate.hit("a")
    (first,) = rate.report()
    rate.granted([LeaseGrant(first.key, 0, True, 0.0)])
    (over,) = rate.report()
    assert over.is_over and rate.hit("a") == 0.0
    rate.granted([LeaseGrant(first.key, 0, True, 0.0)])
    (second,) = rate.report()
    rate.granted([LeaseGrant(first.key, 0, True, 0.0)])
    assert (second.base, second.total) == (first.total, first.total + 1)
    while rate.report():
        rate.granted([LeaseGrant(first.key, 0, True, 0.0)])
    rate.hit("a")
    (third,) = rate.report()
    assert third.base >= second.total, "the ledger may have kept what it was told last"


def test_without_the_ledger_each_replica_has_its_part() -> None:
    fleet = Fleet(11, 60.0)
    fleet.is_down = True
    for _ in range(20):
        fleet.go(1.0)
        for place in range(3):
            fleet.hit(place)
    assert len(fleet.passed) == 11
    fleet.go(60)
    count = [sum(fleet.hit(place) for _ in range(10)) for place in range(3)]
    assert count == [4, 4, 3]
    fleet.is_down = False
    fleet.go(2)
    assert not any(fleet.hit(place) for place in range(3)), "what passed meanwhile counts"
    fleet.go(63)
    assert fleet.hit(0)


def test_what_passed_in_a_long_outage_counts_for_one_window_alone() -> None:
    fleet = Fleet(12, 60.0)
    fleet.is_down = True
    for _ in range(50):
        fleet.go(30)
        fleet.hit(0)
    fleet.is_down = False
    fleet.go(2)
    assert sum(fleet.hit(0) for _ in range(1)) == 1


def test_a_total_never_goes_back_after_an_outage() -> None:
    """The ledger may have had the report whose answer was lost, and counts what is more than that."""
    clock = Clock()
    rate = LeasedWindows("tool", 600, 60.0, clock)
    passed = sum(rate.hit("a") == 0.0 for _ in range(5))
    (lost,) = rate.report()
    assert lost.total - lost.base == passed == 5
    clock.now += DOWN_AFTER + 120
    assert rate.hit("a") == 0.0
    (report,) = rate.report()
    assert (report.base, report.total) == (lost.total, lost.total + 1), "one of this window is new"


def test_it_says_when_to_come_again() -> None:
    clock = Clock()
    rate = LeasedWindows("tool", 2, 60.0, clock)
    rate.live(3, 0)
    assert (rate.every, rate.hit("a")) == (0.5, 0.0)
    assert rate.hit("a") == 0.5, "there may be one after the next report"
    assert rate.until_free("a") == 0.5 and rate.until_free("b") == 0.0
    (report,) = [one for one in rate.report() if one.total > one.base]
    rate.granted([LeaseGrant(report.key, 0, False, 41.0)])
    assert rate.hit("a") == 41.0
    clock.now += 1
    assert rate.until_free("a") == 40.0
    assert (rate.passed, rate.limited) == (1, 4)
    assert rate.describe(40.0) == "2 per minute are allowed; try again in 40 s"
    clock.now += DOWN_AFTER
    rate.live(3, 2)
    assert rate.until_free("a") == 57.0, "its part of two is none; the oldest hit was three seconds ago"


def test_many_keys_share_one_lease_in_the_end() -> None:
    rate = LeasedWindows("client", 5, 60.0, Clock(), most=3)
    passed = [rate.hit(f"k{number}") == 0.0 for number in range(20)]
    assert passed == [True] * 4 + [False] * 16
    reports = rate.report()
    assert len({report.key for report in reports}) == 4
    assert {len(report.key) for report in reports} == {16}


def test_names_of_different_limits_do_not_meet() -> None:
    made = [LeasedWindows(scope, 5, seconds, Clock()) for scope in ("tool", "client") for seconds in (60.0, 1.0)]
    assert all(one.hit("a") == 0.0 for one in made)
    assert len({report.key for one in made for report in one.report()}) == 4


def test_the_last_report_gives_everything_back() -> None:
    rate = LeasedWindows("client", 600, 60.0, Clock())
    rate.hit("a")
    (report,) = rate.report()
    rate.granted([LeaseGrant(report.key, report.want, True, 0.0)])
    rate.hit("a")
    (last,) = rate.last()
    assert (last.total - last.base, last.held, last.want, last.is_over) == (1, 0, 0, True)


@pytest.mark.parametrize(("amount", "seconds", "lease"), [(600, 60, 10), (120, 60, 2), (10, 60, 1), (1000, 3600, 17)])
def test_a_lease_is_a_small_part(amount: int, seconds: float, lease: int) -> None:
    terms = LeaseTerms(amount, seconds, 3)
    assert terms.lease == lease
    assert sum(LeaseTerms(amount, seconds, 3, place).part for place in range(3)) == amount
