"""What the audit log is told of approvals: each state before it takes effect, and which one did not take effect."""

from collections.abc import Awaitable, Callable

from sluicegate.approval.grants import Grant
from sluicegate.approval.record import Approval, CallBinding
from sluicegate.approval.states import State
from sluicegate.approval.vote_request import MAX_COMMENT
from sluicegate.protocol.jsonrpc import Json


class ApprovalRecords:
    """`tell` writes a record, and says whether it is kept; so does each method."""

    def __init__(self, tell: Callable[[Json], Awaitable[bool]]) -> None:
        self._tell = tell

    async def change(
        self, new: Approval, by: str = "", comment: str = "", grant: Grant | None = None, channel: str = ""
    ) -> bool:
        fields = _fields(new, new.state, by)
        fields |= {"channel": channel} if channel else {}
        fields |= {"comment": comment[:MAX_COMMENT]} if comment else {}
        fields |= {"grant": grant.id, "scope": grant.scope} if grant else {}
        return await self._put(fields, new.binding)

    async def void(
        self, approval: Approval, state: State, now: State, by: str = "", grant: Grant | None = None
    ) -> bool:
        """Says that the state which was recorded just now did not take effect, and which one did: another process was
        first. What is recorded before it takes effect cannot be taken back."""
        fields = _fields(approval, now, by) | {"void": state}
        fields |= {"grant": grant.id} if grant else {}
        return await self._put(fields, approval.binding)

    async def reveal(self, approval: Approval, by: str, channel: str) -> bool:
        fields: Json = {"id": approval.id, "state": "revealed", "digest": approval.binding.digest, "approver": by}
        return await self._put({**fields, "channel": channel}, approval.binding)

    async def _put(self, fields: Json, binding: CallBinding) -> bool:
        about = {"principal": binding.principal, "server": binding.server, "own": binding.own}
        return await self._tell({"approval": fields, **about})


def _fields(approval: Approval, state: State, by: str) -> Json:
    binding = approval.binding
    fields: Json = {"id": approval.id, "state": state, "digest": binding.digest, "profile": binding.terms.name}
    return fields | ({"approver": by} if by else {})
