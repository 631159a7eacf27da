"""Which rights are asked for (2026-07-28 basic/authorization#scope-selection-strategy).

What a challenge names, else all that the server lists, else none. `max_scopes` bounds them; `offline_access` is the
authorization server's own, so it is asked for only where that lists it.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from sluicegate.oauth import Unfit

OFFLINE: Final = "offline_access"


def first(
    configured: tuple[str, ...] | None, challenged: tuple[str, ...], listed: tuple[str, ...],
    supported: tuple[str, ...] | None, bounds: tuple[str, ...],
) -> tuple[str, ...]:  # fmt: skip
    """Those of a first login. `listed` are the server's, `supported` the authorization server's. Raises `Unfit`."""
    if configured is not None:
        return configured
    found = tuple(one for one in challenged or listed if one != OFFLINE)
    wanted = within(found, bounds)
    if found and not wanted:  # none at all would mean those that the authorization server thinks fit
        raise Unfit("all scopes that it wants are beyond max_scopes")
    if wanted and OFFLINE in (supported or ()):
        wanted += within((OFFLINE,), bounds)
    return wanted


def offered(scopes: Iterable[str], supported: tuple[str, ...] | None) -> tuple[str, ...]:
    """Without `offline_access`, where the authorization server does not list it."""
    return tuple(one for one in scopes if one != OFFLINE or OFFLINE in (supported or ()))


def within(scopes: Iterable[str], bounds: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for one in scopes if any(fnmatchcase(one, bound) for bound in bounds))


def union(*lists: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for scopes in lists for one in scopes))
