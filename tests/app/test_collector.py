"""What dies in a cycle leaves the memory of a Sluice that serves, however old it became."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sluicegate.app import serve

ROUNDS = 1_500
"""In each the collector walks what is newest."""


class Ring:
    def __init__(self) -> None:
        self.me = self


def rounds(count: int) -> None:
    for _ in range(count):
        assert len([[] for _ in range(gc.get_threshold()[0] + 100)])


@asynccontextmanager
async def serving() -> AsyncIterator[list[Ring]]:
    """Objects that live when servers are up, and have grown old."""
    before = gc.get_threshold()
    task = asyncio.create_task(serve.collect_garbage())
    await asyncio.sleep(0)
    try:
        old = [Ring() for _ in range(10)]
        marks = [weakref.ref(one) for one in old]
        rounds(ROUNDS)
        yield old
        assert not any(mark() for mark in marks)
    finally:
        task.cancel()
        gc.unfreeze()
        gc.set_threshold(*before)


async def test_what_grew_old_and_died_in_a_cycle_does_not_stay() -> None:
    async with serving() as old:
        old.clear()
        rounds(ROUNDS)


async def test_nor_does_it_where_hardly_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "FULL_COLLECTION", 0.01)
    gone = asyncio.Event()
    async with serving() as old:
        weakref.finalize(old[0], gone.set)
        old.clear()
        await asyncio.wait_for(gone.wait(), 5)
