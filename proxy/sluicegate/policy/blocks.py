"""What is blocked until somebody unblocks it: a client, a server, or tools of one. It is denied before a tool list or a
row is asked, in shadow mode, too.

Pure. Who blocks, and where it is kept, is a matter of `app.blocks`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluicegate.policy.globs import matches, matches_folded
from sluicegate.protocol.model import Client, Decision, Target, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Either of a `principal`, or of a `server`: of the tools whose own name matches the glob `tool`, or, where that is
    empty, of all it has. `at` and `until` are seconds since 1970; None: until somebody ends it."""

    id: str
    principal: str = ""
    server: str = ""
    tool: str = ""
    until: float | None = None
    at: float = 0.0
    by: str = ""
    reason: str = ""

    @property
    def what(self) -> str:
        """As people write it."""
        return self.principal or (f"{self.server}/{self.tool}" if self.tool else self.server)

    def matches(self, client: Client, target: Target) -> bool:
        if self.principal:
            return self.principal == client.principal
        if target.server != self.server or not self.tool:
            return target.server == self.server
        if target.kind != "tool":
            return False
        if target.own == self.tool or matches(target.own, self.tool):
            return True
        return target.is_unlisted and matches_folded(target.own, self.tool)


class Blocks:
    """Those in force."""

    __slots__ = ("_principals", "_servers", "rows")

    def __init__(self, rows: Iterable[Block] = ()) -> None:
        self.rows: Final = tuple(rows)
        self._principals = {row.principal: row for row in self.rows if row.principal}
        self._servers = dict[str, list[Block]]()
        for row in self.rows:  # a list of ten thousand tools is judged by all of a server's
            self._servers.setdefault(row.server, []).append(row)

    def deny(self, client: Client, target: Target) -> Decision | None:
        of_server = (row for row in self._servers.get(target.server, ()) if row.matches(client, target))
        found = self._principals.get(client.principal) or next(of_server, None)
        return None if found is None else Decision(Verdict.DENY, f"block: {found.what}", f"{found.what} is blocked")

    def has_principal(self, principal: str) -> bool:
        return principal in self._principals

    def has_server(self, server: str) -> bool:
        """Whether all that it has is blocked."""
        return any(not row.tool for row in self._servers.get(server, ()))

    def at(self, now: float) -> "Blocks":
        """Those that are not over by then."""
        return Blocks(row for row in self.rows if row.until is None or row.until > now)


NOTHING_BLOCKED: Final = Blocks()
