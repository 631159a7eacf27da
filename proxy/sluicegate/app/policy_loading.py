"""The config's policy as what decides: where its files are, which names exist besides, and the rulebook of both.

Used wherever a policy is read: at the start, at a reload, and by the commands that check and explain offline.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from sluicegate.config import AnyServer, Config
from sluicegate.config.models import ShapeSection
from sluicegate.config.policy import BUDGET
from sluicegate.policy import files
from sluicegate.policy.classes import Classes
from sluicegate.policy.files import LoadedPolicy, PolicySources
from sluicegate.policy.judge import PolicyInForce
from sluicegate.policy.lint import KnownNames
from sluicegate.policy.profiles import BUILT_IN, ApprovalProfile
from sluicegate.policy.rulebook import Rulebook, ToolRules, allowlist, nobody_accepted
from sluicegate.policy.toolsets import Search, Toolset, Toolsets
from sluicegate.protocol.model import Client, Kind, Target
from sluicegate.protocol.shape import Shape


def load(config: Config, tools: Mapping[str, frozenset[str]] = {}) -> LoadedPolicy:
    """The policy of a config, checked and tested. Raises `PolicyError`. Reads files: not for the event loop.
    `tools` has the own names of the tools of each server whose list is known."""
    # What comes with Sluice is for everybody: roles that are not given here, for one, are no mistake of this config.
    is_own = config.policy.use is None
    existing_names = replace(existing(config), tools=tools) if is_own else KnownNames()
    loaded = files.load(sources(config), profiles(config), existing_names, classes(config), shadow=_is_shadow(config))
    return loaded if is_own else replace(loaded, warnings=())


def sources(config: Config) -> PolicySources:
    policy = config.policy
    if policy.use is not None:
        return files.bundled(policy.use)
    return PolicySources(
        policy.model or files.bundled_model(), policy.files, config.base, policy.arguments, policy.tests
    )


def profiles(config: Config) -> dict[str, ApprovalProfile]:
    own = {
        name: ApprovalProfile(
            name, profile.tier, profile.quorum, profile.approvers, profile.channels, profile.expires, profile.remember,
            profile.require_reason,
        )
        for name, profile in config.approvals.profiles.items()
    }  # fmt: skip
    return {**BUILT_IN, **own}


def existing(config: Config) -> KnownNames:
    """Whom and what the policy can speak of, as far as the config says."""
    clients = config.clients
    given = [clients.local.roles, clients.anonymous.roles if clients.anonymous else ()]
    given += [key.roles for key in clients.keys.values()]
    return KnownNames(
        servers=frozenset(key for key, server in config.servers.items() if server.enabled or key in config.disabled),
        roles=frozenset(role for roles in given for role in roles),
        keys=frozenset(clients.keys),
        issuers=token_issuers(config),
        local=frozenset(clients.local.roles),
        clients=(
            Client("local", clients.local.roles),
            *(Client(f"key:{name}", key.roles, key.owner) for name, key in clients.keys.items()),
        ),
        forwarding=frozenset(key for key, server in config.servers.items() if server.unlisted == "forward"),
        prefixes={key: server.prefix for key, server in config.servers.items() if server.uris == "prefix"},
    )


def token_issuers(config: Config) -> frozenset[str]:
    """Of those who come in with a token."""
    ours = (config.clients.login.issuer,) if config.clients.login else ()
    return frozenset((*(one.issuer for one in config.clients.jwt.issuers), *ours))


def out_of_place(config: Config, principal: str) -> str:
    """Why nobody comes in under this name, as far as the config says; empty where somebody may."""
    kind, _, name = principal.partition(":")
    key = config.clients.keys.get(name) if kind == "key" else None
    issuer = name.partition("#")[0]
    if kind == "key" and key is None:
        return f"the config has no {principal}"
    if key is not None and key.expires is not None and key.expires <= datetime.now(UTC):
        return f"{principal} is refused: it expired at {key.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if kind == "jwt" and issuer not in token_issuers(config):
        return f"no token of {issuer} is taken, so nobody is {principal}"
    return ""


def classes(config: Config) -> Classes:
    return Classes({key: server.tools.classes for key, server in config.servers.items()})


def toolsets(config: Config) -> list[Toolset]:
    """Those of the config, and what there is without one."""
    found = [Toolset("", {}, search=Search(config.search, BUDGET))]
    for name, one in config.toolsets.items():
        globs = {"tool": one.tools, "prompt": one.of_servers(one.prompts), "res": one.of_servers(one.resources)}
        search = Search(one.search, one.budget)
        found.append(Toolset(name, globs, frozenset(one.roles), frozenset(one.default_for), search, one.pinned))
    return found


def shapes(server: AnyServer) -> dict[tuple[Kind, str], Shape]:
    """By kind and own name."""
    written: tuple[tuple[Kind, dict[str, ShapeSection]], ...] = (
        ("tool", server.tools.shape), ("prompt", server.prompts.shape)
    )  # fmt: skip
    found = {}
    for kind, sections in written:
        for name, one in sections.items():
            texts = {"title": one.title, "description": one.description}
            present = {key: text for key, text in texts.items() if text is not None}
            found[kind, name] = Shape(one.name, present, one.defaults, one.hidden)
    return found


def make(
    config: Config, loaded: LoadedPolicy, running: Iterable[str] | None = None,
    is_accepted: Callable[[Target], bool] = nobody_accepted,
) -> PolicyInForce:  # fmt: skip
    """`running` are the servers there are, all that are enabled unless said: one that the config no longer has is
    denied as a whole."""
    enabled = {key: server for key, server in config.servers.items() if server.enabled}
    there = enabled.keys() if running is None else enabled.keys() & set(running)
    lists = allowlist({key: ToolRules(enabled[key].tools.allow, enabled[key].tools.deny) for key in there})
    until = config.policy.until
    return PolicyInForce(
        Rulebook(
            loaded.policy, classes(config), lists, loaded.arguments, is_accepted,
            toolsets=Toolsets(toolsets(config), loaded.policy),
            shapes={(key, *what): shape for key in there for what, shape in shapes(enabled[key]).items()},
        ),
        explains=config.policy.on_deny == "explain",
        until=until.timestamp() if until else None,
    )


def _is_shadow(config: Config) -> bool:
    policy = config.policy
    return policy.mode == "shadow" and policy.until is not None and policy.until.timestamp() > time.time()
