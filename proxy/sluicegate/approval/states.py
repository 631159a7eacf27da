"""The states of an approval, and the ways between them, as data.

Every approval begins as `pending`. What has no way out is finished; nothing ever comes back from there.
"""

from collections.abc import Mapping
from typing import Final, Literal

State = Literal["pending", "partially_approved", "approved", "consumed", "denied", "expired", "cancelled", "superseded"]

_TO_BE_DECIDED: Final[tuple[State, ...]] = ("partially_approved", "approved", "denied")
_UNUSED: Final[tuple[State, ...]] = ("expired", "cancelled", "superseded")

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "pending": frozenset((*_TO_BE_DECIDED, *_UNUSED)),
    "partially_approved": frozenset((*_TO_BE_DECIDED, *_UNUSED)),
    "approved": frozenset(("consumed", *_UNUSED)),
    "consumed": frozenset(),  # by the one call that it was for
    "denied": frozenset(),
    "expired": frozenset(),  # silence is a no
    "cancelled": frozenset(),  # by whoever asked, or with whoever asked
    "superseded": frozenset(),  # decided again at its use, the call is another matter
}
WAITING: Final[frozenset[State]] = frozenset({"pending", "partially_approved"})
FINISHED: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)


def may_become(old: State, new: State) -> bool:
    return new in TRANSITIONS[old]
