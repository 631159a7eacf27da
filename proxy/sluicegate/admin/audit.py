"""`/api/v1/audit/head`: the newest signed checkpoint, for whoever keeps it where this machine's owner cannot reach.

Pure but for the log itself, which is given.
"""

from typing import Protocol

from sluicegate.protocol.jsonrpc import Json


class Signed(Protocol):
    def to_json(self) -> Json: ...


class AuditHeads(Protocol):
    @property
    def problem(self) -> str | None: ...

    def head(self) -> Signed | None: ...


def show(log: AuditHeads | None) -> tuple[int, Json]:
    """A status and its body. What is told is a checkpoint as `audit verify --checkpoint` takes it; 404 where there is
    no log or nothing is signed yet."""
    if log is None:
        return 404, {"error": "no audit log is kept: see audit.enabled"}
    head = log.head()
    if head is None:
        return 404, {"error": f"nothing is signed yet: {log.problem or 'the first records are not ten seconds old'}"}
    return 200, head.to_json()
