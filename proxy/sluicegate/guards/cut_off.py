"""cut_off: a replica that the database does not answer for long serves nothing. Keys and rights may be gone meanwhile.

Only in a fleet: elsewhere nobody else could have taken them.
"""

from collections.abc import Awaitable, Callable

from sluicegate.protocol.model import Call, Guard, Handler, Outcome
from sluicegate.store import StoreFailed


def cut_off(problem: Callable[[], str]) -> Guard:
    """`problem` says why nothing is served, empty where it is."""

    def guard(call: Call, inner: Handler) -> Awaitable[Outcome]:
        if why := problem():
            raise StoreFailed(why)
        return inner(call)

    return guard
