"""Which toolset a path of the MCP endpoint names: `/mcp/NAME`. Whether the client has it, policy says."""

import re
from collections.abc import Collection
from typing import Final, Protocol

from sluicegate.listen.auth import Principal

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")


class ToolsetEntry(Protocol):
    """`is_used`: there are toolsets. `enter` gives the principal with the toolset that it has where it names that one,
    or none (""); None for one that is not there for it."""

    @property
    def is_used(self) -> bool: ...
    def enter(self, principal: Principal, name: str) -> Principal | None: ...


class _NoToolsets:
    is_used = False

    def enter(self, principal: Principal, name: str) -> Principal | None:
        return None if name else principal


NO_TOOLSETS: Final = _NoToolsets()


def named_by(path: str, endpoints: Collection[str]) -> str | None:
    """The name behind one of these paths; None for another path."""
    before, _, name = path.removesuffix("/").rpartition("/")
    is_there = before in endpoints and not before.endswith("/")  # `//` is another path to whoever routes by paths
    return name if is_there and _NAME.fullmatch(name) else None
