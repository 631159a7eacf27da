"""Work that can be done in pieces, between which others have their turn: a generator that returns what it made.

Pure: how long a piece is, each such work knows; who goes on with it and when, `runtime/loop_budget.py`.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def in_one_step(work: Generator[None, None, T]) -> T:
    """What the work returns, without a turn for others."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            value: T = done.value
            return value
