"""What dies in a cycle leaves the memory of a Sluice that serves, however old it became."""

import gc
import weakref

from sluicegate.app.serve import calm_collector

ROUNDS = 1_500
"""In each the collector walks what is newest."""


class Ring:
    def __init__(self) -> None:
        self.me = self


def rounds(count: int) -> None:
    for _ in range(count):
        assert len([[] for _ in range(gc.get_threshold()[0] + 100)])


def test_what_grew_old_and_died_in_a_cycle_does_not_stay() -> None:
    before = gc.get_threshold()
    calm_collector()
    try:
        old = [Ring() for _ in range(10)]
        marks = [weakref.ref(one) for one in old]
        rounds(ROUNDS)
        assert all(mark() for mark in marks)
        old.clear()
        rounds(ROUNDS)
        assert not any(mark() for mark in marks)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
