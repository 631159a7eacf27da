"""Moving windows: never more than the amount in any window, whatever the pattern; bounded memory."""

import threading
from collections.abc import Hashable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.policy.rates import MAX_STEPS, Windows


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def windows(amount: int, seconds: float = 60.0, **more: int) -> tuple[Windows, Clock]:
    clock = Clock()
    return Windows(amount, seconds, clock, **more), clock


def test_so_many_pass_and_the_next_waits_for_the_first_to_leave() -> None:
    rate, clock = windows(3)
    for _ in range(3):
        assert rate.hit("a") == 0.0
        clock.now += 10
    assert rate.hit("a") == pytest.approx(30)
    assert rate.hit("b") == 0.0
    clock.now += 30
    assert rate.hit("a") == 0.0
    assert rate.hit("a") == pytest.approx(10)


def test_what_is_refused_does_not_count() -> None:
    rate, clock = windows(1)
    assert rate.hit("a") == 0.0
    for _ in range(50):
        assert rate.hit("a") > 0
    clock.now += 60
    assert rate.hit("a") == 0.0


def test_there_is_no_moment_at_which_twice_as_many_pass() -> None:
    """As there would be where fixed windows meet."""
    rate, clock = windows(600)
    clock.now = 1019.9
    assert sum(rate.hit("a") == 0.0 for _ in range(1000)) == 600
    clock.now = 1020.1
    assert sum(rate.hit("a") == 0.0 for _ in range(1000)) == 0


@given(st.integers(1, 5 * MAX_STEPS), st.lists(st.floats(0, 20), min_size=1, max_size=40), st.integers(1, 400))
def test_never_more_than_the_amount_in_any_window(amount: int, gaps: list[float], burst: int) -> None:
    rate, clock = windows(amount)
    passed: list[float] = []
    for gap in gaps:
        clock.now += gap
        passed += [clock.now for _ in range(burst) if rate.hit("a") == 0.0]
    for at, moment in enumerate(passed):
        assert sum(1 for other in passed[: at + 1] if other > moment - 60.0) <= amount


@given(st.integers(1, 5 * MAX_STEPS), st.lists(st.floats(0, 40), min_size=1, max_size=40))
def test_after_the_wait_that_it_names_one_more_passes(amount: int, gaps: list[float]) -> None:
    rate, clock = windows(amount)
    for gap in gaps:
        clock.now += gap
        while not (wait := rate.hit("a")):
            pass
        assert 0 < wait <= 60.0 + 60.0 / MAX_STEPS + 0.001
        clock.now += wait + 1e-6
        assert rate.hit("a") == 0.0


def test_a_window_remembers_few_moments_however_many_hits_it_allows() -> None:
    rate, clock = windows(1_000_000)
    for _ in range(20_000):
        assert rate.hit("a") == 0.0
        clock.now += 0.003
    (window,) = rate._now.values()
    assert len(window.moments) <= MAX_STEPS + 2


def test_windows_that_hold_nothing_any_more_are_dropped() -> None:
    rate, clock = windows(5)
    for key in range(1000):
        rate.hit(key)
    assert len(rate) == 1000
    for _ in range(4):
        clock.now += 61
        rate.hit("a")
    assert len(rate) == 1


def test_a_key_that_is_used_all_the_time_is_never_forgotten() -> None:
    rate, clock = windows(10)
    passed = []
    for _ in range(600):
        clock.now += 1
        if not rate.hit("a"):
            passed.append(clock.now)
    assert all(later - earlier >= 60 for earlier, later in zip(passed, passed[10:], strict=False))
    assert all(later > earlier for earlier, later in pairwise(passed))


def test_more_keys_than_are_kept_share_one_window() -> None:
    rate, _ = windows(2, most=10)
    assert all(rate.hit(("client", key)) == 0.0 for key in range(12))
    assert rate.hit("one more") > 0
    assert rate.hit(("client", 3)) == 0.0
    assert len(rate) <= 11


@pytest.mark.parametrize("other", [("a/b", "c"), ("a", "b/c"), ("a/b/c",), "a/b/c", ("a", "b", "c"), ("a", "b", None)])
def test_keys_share_no_window_because_of_how_they_are_written(other: Hashable) -> None:
    rate, _ = windows(1)
    keys = [("a/b", "c"), ("a", "b/c"), ("a/b/c",), "a/b/c", ("a", "b", "c"), ("a", "b", None), ("a", "b", "None")]
    assert all(rate.hit(key) == 0.0 for key in keys)
    assert rate.hit(other) > 0 and len(rate) == len(keys)


def test_what_shares_a_window_is_told_when_that_one_is_free() -> None:
    rate, clock = windows(1, most=1)
    assert rate.hit("a") == 0.0
    clock.now += 20
    assert rate.hit("b") == 0.0
    clock.now += 10
    assert rate.hit("c") == pytest.approx(50) and rate.hit("a") == pytest.approx(30)


def test_no_thread_walks_over_the_windows() -> None:
    before = threading.active_count()
    rate, _ = windows(10)
    assert rate.hit("a") == 0.0 and threading.active_count() == before


def test_the_wait_is_told_in_words() -> None:
    rate, _ = windows(600)
    assert rate.describe(0.2) == "600 per minute are allowed; try again in 1 s"
    assert rate.describe(11.2) == "600 per minute are allowed; try again in 12 s"
    assert Windows(5, 90).describe(1) == "5 per 90 s are allowed; try again in 1 s"
