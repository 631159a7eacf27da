"""Per-server tool lists: globs over own names, deny before allow. The same answer for list and call.

Names are compared as they are (`fnmatchcase`): no case folding, no normalisation. A name that its server has not listed
is also denied in other letters, which the server could still understand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from sluicegate.policy.globs import matches_folded
from sluicegate.protocol.model import Client, Decision, Target, Verdict

MAX_MEMO: Final = 20_000

_NOT_A_TOOL: Final = Decision(Verdict.ALLOW, "policy.use: open", "the open policy allows it")


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Globs over a server's own tool names."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()


def allowlist(servers: Mapping[str, ToolRules]) -> Callable[[Client, Target], Decision]:
    """`decide` for lists of tools; prompts and resources of a configured server are allowed. A server that is not
    configured is denied. Memoised for tools: the answer depends on server and own name alone, and there are as many
    of them as there are tools, where of resources there may be a million."""
    memo: dict[tuple[str, str], Decision] = {}

    def decide(client: Client, target: Target) -> Decision:
        if target.kind != "tool" and target.server in servers:
            return _NOT_A_TOOL
        key = (target.server, target.own)
        decision = None if target.is_unlisted else memo.get(key)
        if decision is None:
            if len(memo) >= MAX_MEMO:
                memo.clear()
            decision = _decide(servers.get(target.server), target)
            if not target.is_unlisted:
                memo[key] = decision
        return decision

    return decide


def _decide(rules: ToolRules | None, target: Target) -> Decision:
    if rules is None:
        return Decision(Verdict.DENY, "default", f"no server {target.server} is configured")
    where = f"servers.{target.server}.tools"
    for glob in rules.deny:
        if fnmatchcase(target.own, glob) or (target.is_unlisted and matches_folded(target.own, glob)):
            return Decision(Verdict.DENY, f"{where}.deny: {glob}", f"{target.own} is on the deny list")
    for glob in rules.allow:
        if fnmatchcase(target.own, glob):
            return Decision(Verdict.ALLOW, f"{where}.allow: {glob}", f"{target.own} is on the allow list")
    return Decision(Verdict.DENY, f"{where}.allow", f"{target.own} is not on the allow list")
