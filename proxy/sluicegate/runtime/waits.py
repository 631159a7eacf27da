"""How long a call waits for the store. The event loop does not work meanwhile, and the client does not pay for it."""

from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Final


class Waits:
    """Each wait is a `with` block. `seconds` counts waits that overlap once."""

    __slots__ = ("_open", "_since", "seconds")

    def __init__(self) -> None:
        self.seconds = self._since = 0.0
        self._open = 0

    def __enter__(self) -> None:
        if not self._open:
            self._since = perf_counter()
        self._open += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open -= 1
        if not self._open:
            self.seconds += perf_counter() - self._since


_of_call: Final = ContextVar[Waits | None]("waits of a call", default=None)


def begin() -> Waits:
    """Returns the waits of the call that begins in this task."""
    waits = Waits()
    _of_call.set(waits)
    return waits


def of_call() -> Waits:
    """Returns the waits of the call that this task works for. Outside of calls nobody reads them."""
    return _of_call.get() or Waits()
