"""One hook, as the config has it, and which calls it is about. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from sluicegate.policy.globs import matcher, matches_folded
from sluicegate.policy.hooked import On
from sluicegate.protocol.model import Client, Target


@dataclass(frozen=True, slots=True)
class HookSettings:
    """`servers`, `tools` and `clients` are globs, empty for all; `tools` also keeps it from prompts and resources.
    `timeout` is in seconds. `secret` is whsec_ and base64, empty for none. `passes`: without a verdict the call goes
    on."""

    name: str
    url: str
    on: frozenset[On]
    servers: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    timeout: float = 0.5
    passes: bool = False
    sees_whole: bool = False
    secret: str = ""
    form: Literal["json", "opa"] = "json"

    def is_about(self, on: On, client: Client, target: Target, held: Collection[str] = ()) -> bool:
        """`held` are the roles that the policy gives the client, beside those that it came with."""
        if on not in self.on or not _matches(self.servers, target.server):
            return False
        if self.tools:
            is_named = _matches(self.tools, target.own)
            if target.is_unlisted:
                is_named = is_named or any(matches_folded(target.own, glob) for glob in self.tools)
            if target.kind != "tool" or not is_named:
                return False
        return not self.clients or any(_matches(self.clients, one) for one in (client.principal, *client.roles, *held))

    def __repr__(self) -> str:
        return f"HookSettings({self.name})"


def _matches(globs: Sequence[str], text: str) -> bool:
    return not globs or any(matcher(glob)(text) for glob in globs)
