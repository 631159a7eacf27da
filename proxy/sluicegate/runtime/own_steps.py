"""How long a task works for one of its calls: not what others do between its steps, nor what it waits for."""

from collections.abc import Awaitable, Generator
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class OwnSteps(Generic[T]):
    """Awaits `work`, and gives what that gives. `seconds` is the time of all steps that it has taken, `longest` that of
    one of them."""

    __slots__ = ("_work", "longest", "seconds")

    def __init__(self, work: Awaitable[T]) -> None:
        self._work: Generator[Any, Any, T] = work.__await__()
        self.seconds = self.longest = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # type: ignore[return-value]  # it has all that a task asks of a generator

    def __iter__(self) -> "OwnSteps[T]":
        return self

    def __next__(self) -> Any:
        since = perf_counter()
        try:
            return self._work.send(None)
        finally:
            step = perf_counter() - since
            self.seconds += step
            if step > self.longest:
                self.longest = step

    def throw(self, error: BaseException) -> Any:
        """As a generator does: its task is cancelled, say."""
        since = perf_counter()
        try:
            return self._work.throw(error)
        finally:
            step = perf_counter() - since
            self.seconds += step
            self.longest = max(step, self.longest)

    def close(self) -> None:
        self._work.close()
