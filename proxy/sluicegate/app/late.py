"""The one link between two parts of which each needs the other: the first is given a `Late`, which the second fills.

Only this room uses it, while it wires parts. Everything else comes through constructors.
"""

from typing import Final, Generic, TypeVar

T = TypeVar("T")
_UNSET: Final = object()


class Late(Generic[T]):
    """Whoever needs the part calls this, and gets it. `set` fills it once; until then it gives `initial`."""

    def __init__(self, *initial: T) -> None:
        self._part: object = initial[0] if initial else _UNSET
        self._is_set = False

    def set(self, part: T) -> None:
        if self._is_set:
            raise RuntimeError("this part is wired already")
        self._part, self._is_set = part, True

    def __call__(self) -> T:
        if self._part is _UNSET:
            raise RuntimeError("a part is used before it is wired")
        return self._part  # type: ignore[return-value]  # not _UNSET, so a T
