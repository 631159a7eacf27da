"""How clients get their toolset: by the path that they come in at, or by their roles."""

from dataclasses import replace
from typing import Final

from sluicegate.listen.auth import Principal
from sluicegate.policy.judge import PolicyEngine
from sluicegate.policy.memo import Memo
from sluicegate.protocol.model import Client

MAX_ENTERED: Final = 10_000


class PolicyToolsets:
    """A `ToolsetEntry` by the policy in force. A principal with a toolset is the same object each time."""

    def __init__(self, policy: PolicyEngine) -> None:
        self._policy = policy
        self._entered: Memo[tuple[Principal, str], Principal] = Memo(MAX_ENTERED)

    @property
    def is_used(self) -> bool:
        return self._policy.has_toolsets

    def enter(self, principal: Principal, name: str) -> Principal | None:
        if not self._policy.has_toolsets:
            return None if name else principal
        toolset = self._policy.enter(Client(principal.name, principal.roles, principal.owner), name)
        if not toolset:
            return None if toolset is None else principal
        key = principal, toolset
        found = self._entered.get(key)
        return found or self._entered.keep(key, replace(principal, toolset=toolset))
