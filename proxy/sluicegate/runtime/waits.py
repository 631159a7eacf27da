"""How long a call waits for the store. It is no work of the event loop, and its client is not charged for it."""

from contextvars import ContextVar
from time import perf_counter
from typing import Final


class Waits:
    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0


_of_call: Final = ContextVar[Waits | None]("waits of a call", default=None)


def begin() -> Waits:
    """Those of the call that begins in this task."""
    waits = Waits()
    _of_call.set(waits)
    return waits


def waited(since: float) -> None:
    """The call of this task, if there is one, waited since then, by `perf_counter`."""
    waits = _of_call.get()
    if waits is not None:
        waits.seconds += perf_counter() - since
