"""What the lists must know of the config. Knows nothing of the file: the composition root fills this in."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluicegate.catalog.list_bounds import DEFAULT_BOUNDS, Bounds


@dataclass(frozen=True, slots=True)
class ListSettings:
    """`prefixes` has every server; in transparent mode there is one, with the prefix "". `for_starts`: a list waits for
    servers that are still starting."""

    prefixes: Mapping[str, str]
    plain: frozenset[str] = frozenset()
    transparent: bool = False
    forward_unlisted: bool = False
    names_max: int = 50
    page: int = 1000
    list_timeout: float = 10.0
    bounds: Bounds = DEFAULT_BOUNDS
    for_starts: bool = False
