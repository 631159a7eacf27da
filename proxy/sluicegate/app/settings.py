"""The settings that each room is given, cut from the config, and the clients that the config names.

Holds values only: nothing is made or started here.
"""

import hmac
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path

from sluicegate.app import policy_loading
from sluicegate.approval.queue import ApprovalSettings as Approvals
from sluicegate.approval.record import Approval
from sluicegate.approval.webhook import Receiver
from sluicegate.audit.settings import AuditSettings, Checkpointing, ConfirmSettings, Redaction, Rotation, SinkSettings
from sluicegate.catalog.list_bounds import Bounds
from sluicegate.catalog_cache import ListSettings
from sluicegate.catalog_cache.pin_store import Pinned
from sluicegate.config import SYSTEM, AnyServer, Config, HttpServer, ImageServer, Key, SandboxSection, StdioServer
from sluicegate.config.units import Expanded
from sluicegate.downstream.settings import Sandbox, ServerSettings
from sluicegate.guards.search import OWN_TOOLS
from sluicegate.hooks.settings import HookSettings
from sluicegate.http.hosts import ServedNames
from sluicegate.listen import settings as wire
from sluicegate.listen.auth import ClientKey, IdentitySettings, key_mark
from sluicegate.listen.auth.issuers import TokenIssuer
from sluicegate.listen.auth.tokens import TokenSettings
from sluicegate.policy.pins import Key as DefinitionKey
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.elicitation_urls import OwnUrls
from sluicegate.protocol.input_requests_server import NO_PAGES
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Target
from sluicegate.store.revoked import Revoked


def server(
    key: str, server: AnyServer, config: Config, share_of: Callable[[int], int], redact: Callable[[str], str],
    own_pages: OwnUrls = NO_PAGES,
) -> ServerSettings:  # fmt: skip
    """`share_of` gives our part of a number; `redact` takes out of free text what the audit log would not hold."""
    common = partial(
        ServerSettings, key, server.identity, era=server.era, sharing=server.sharing, lazy=server.lazy,
        idle=server.idle, timeout=server.timeout, max_time=server.max_time, concurrency=share_of(server.concurrency),
        max_result=config.limits.max_result, nodes=config.limits.result_nodes, is_mirrored=not server.prefix,
        redact=redact, bounds=bounds(config), start_timeout=server.start_timeout, own_pages=own_pages,
    )  # fmt: skip
    if isinstance(server, HttpServer):
        headers = {header: value.get_secret_value() for header, value in server.headers.items()}
        ca = str(server.ca) if server.ca else None
        return common(url=server.url, headers=headers, ca=ca, transport=server.transport,
                      is_sluice=server.is_sluice)  # fmt: skip
    env = {variable: value.get_secret_value() for variable, value in server.env.items()}
    expanded = tuple(part for argument in server.args if isinstance(argument, Expanded) for part in argument.parts)
    words = (server.command, *server.args) if server.command else server.args  # an image has a command of its own
    return common(
        command=words, env=env, cwd=str(server.cwd), expanded=expanded, sandbox=sandbox(server),
        processes=max(1, share_of(server.processes)),
    )  # fmt: skip


def sandbox(server: StdioServer) -> Sandbox | None:
    image = server.image if isinstance(server, ImageServer) else ""
    if server.sandbox is None and not image:
        return None
    section = server.sandbox or SandboxSection()
    read, write = (tuple(map(str, paths)) for paths in (section.read, section.write))
    return Sandbox(section.network == "all", read, write, image, SYSTEM)


def lists(config: Config, servers: Iterable[str], transport: str) -> ListSettings:
    """A client on stdio may keep its first list for ever, so that waits for servers to start."""
    enabled = {key: config.servers[key] for key in servers}
    transparent = any(not server.prefix for server in enabled.values())
    searches = config.search != "off" or any(toolset.search != "off" for toolset in config.toolsets.values())
    return ListSettings(
        prefixes={key: server.prefix for key, server in enabled.items()},
        plain=frozenset(key for key, server in enabled.items() if server.uris == "plain"), transparent=transparent,
        forward_unlisted=transparent and any(server.unlisted == "forward" for server in enabled.values()),
        names_max=config.names.max, page=config.limits.page, bounds=bounds(config), for_starts=transport == "stdio",
        reserved=OWN_TOOLS if searches else frozenset(),
        shapes={key: policy_loading.shapes(server) for key, server in enabled.items()},
    )  # fmt: skip


def bounds(config: Config) -> Bounds:
    return Bounds(config.limits.list_items, config.limits.list_bytes)


def approvals(config: Config) -> Approvals:
    section = config.approvals
    return Approvals(section.hold_for, policy_loading.profiles(config), config.limits.pending_approvals)


ClientOf = Callable[[str, tuple[str, ...], bool | None], Client | None]


def receivers(
    config: Config, transport: str, client_of: ClientOf = lambda principal, roles, is_admin: None,
    roles_of: Callable[[Client], frozenset[str]] = lambda client: frozenset(),
) -> tuple[Receiver, ...]:
    """Those of `approvals.notify`, and the hooks that are told of approvals."""
    console = console_url(config) if transport == "http" else ""  # on stdio there is no admin port
    notified = (
        Receiver(
            webhook.url.get_secret_value(), webhook.secret.get_secret_value() if webhook.secret else "",
            frozenset(webhook.profiles), webhook.format, console,
        )
        for webhook in config.approvals.notify
    )  # fmt: skip
    hooked = (
        Receiver(one.url, one.secret, about=partial(told_of, one, client_of, roles_of))
        for one in hooks(config) if "approval" in one.on
    )  # fmt: skip
    return *notified, *hooked


def hooks(config: Config) -> tuple[HookSettings, ...]:
    return tuple(
        HookSettings(
            name, hook.url.get_secret_value(), frozenset(hook.on), hook.servers, hook.tools, hook.clients, hook.timeout,
            hook.on_failure == "allow", hook.sees == "whole",
            "" if hook.secret is None else hook.secret.get_secret_value(), hook.form,
        )
        for name, hook in config.hooks.items()
    )  # fmt: skip


def told_of(
    hook: HookSettings, client_of: ClientOf, roles_of: Callable[[Client], frozenset[str]], approval: Approval
) -> bool:
    """Whether a hook hears of such an approval."""
    binding = approval.binding
    client = client_of(binding.principal, binding.roles, False) or Client(binding.principal, binding.roles)
    target = Target(binding.server, binding.kind, binding.own, approval.public)
    return hook.is_about("approval", client, target, roles_of(client))


def console_url(config: Config) -> str:
    """Where people are sure to reach the console; empty where nobody can say."""
    admin, section = config.listen.admin, config.console
    here = f"http://{admin}/console" if admin.is_loopback and is_local_only(config) and admin.port else ""
    return (section.public_url or here) if section.enabled else ""


DATABASE = "sluice.db"  # in the state directory, as the next two
KEYS = "keys"
MAX_STEM = 36  # of the name of a log's file
AUDIT_STATE = "audit"  # public keys, published checkpoints, positions of sinks


def audit(config: Config, transport: str = "http") -> AuditSettings:
    """In a fleet each replica has a writer's name of its own, so that all logs can be proved together."""
    section, fleet = config.audit, config.fleet
    return AuditSettings(
        path=section.path if fleet is None else section.path.with_name(replica_log(section.path.name, fleet.name)),
        state=Path(config.state.dir) / AUDIT_STATE,
        durability=section.durability,
        on_failure=section.on_failure,
        arguments=section.arguments,
        results=section.results,
        transport=transport,
        redact=Redaction(section.redact.keys, section.redact.pointers),
        rotate=Rotation(section.rotate.size, section.rotate.age),
        retain=section.retain,
        checkpoints=Checkpointing(section.checkpoints.every, to=section.checkpoints.to, at_start=fleet is not None),
        sinks=tuple(
            SinkSettings(sink.name, sink.to, {name: value.get_secret_value() for name, value in sink.headers.items()})
            for sink in section.sinks
        ),
        confirm=None if section.confirm is None else ConfirmSettings(section.confirm.sink, section.confirm.classes),
        has_hooks=bool(config.hooks),
    )


def replica_log(name: str, replica: str) -> str:
    """The log's file of a replica. What a writer's name cannot hold is replaced; a digest keeps such names apart."""
    stem, plain = name.removesuffix(".jsonl"), re.sub(r"[^a-z0-9]+", "-", replica.lower()).strip("-")
    if plain != replica or len(f"{stem}-{plain}") > MAX_STEM:
        mark = sha256(replica.encode()).hexdigest()[:8]
        stem, plain = stem[: MAX_STEM // 2], f"{plain[: MAX_STEM // 2 - 10]}-{mark}"
    return f"{stem}-{plain}.jsonl".replace("--", "-")


def pins(config: Config) -> dict[str, Pinned]:
    return {
        key: Pinned(server.pinning, server.identity, _shown_names(server))
        for key, server in config.servers.items() if server.enabled
    }  # fmt: skip


def _shown_names(server: AnyServer) -> dict[DefinitionKey, str]:
    """The names that clients see of what has another one at its server."""
    named: list[tuple[DefinitionKey, str]] = [
        *((("tool", own), shape.name) for own, shape in server.tools.shape.items()),
        *((("prompt", own), shape.name) for own, shape in server.prompts.shape.items()),
    ]
    return {key: name for key, name in named if name}


def generation(config: Config, running: Iterable[str]) -> Json:
    """What a cursor depends on: which servers run, in which order, under which names. No secret is in it."""
    return {
        key: {"prefix": server.prefix, "uris": server.uris, "identity": server.identity}
        for key in running if (server := config.servers[key])
    }  # fmt: skip


def identity(config: Config, *, admin: bool = False) -> IdentitySettings:
    """Who gets in at the port for clients, or at the admin port."""
    keys = tuple(
        ClientKey(name, _digest(key), key.roles, key.owner, key.expires.timestamp() if key.expires else None)
        for name, key in config.clients.keys.items()
    )  # fmt: skip
    tokens = TokenSettings(_issuers(config, admin), config.clients.jwt.scopes)
    anonymous = None if admin else config.clients.anonymous
    own = issuer(config) if config.clients.login and not admin else ""
    return IdentitySettings(keys, anonymous.roles if anonymous else None, tokens, own)


def issuer(config: Config) -> str:
    """Sluice's own name as an authorization server for its clients."""
    return config.listen.login_pages.removesuffix("/login/")


def _issuers(config: Config, admin: bool) -> tuple[TokenIssuer, ...]:
    return tuple(
        TokenIssuer(one.issuer, audience, one.jwks, one.roles_from, one.algorithms, one.typ)
        for one in config.clients.jwt.issuers
        if (audience := one.admin_audience if admin else one.audience) is not None
    )


def names(config: Config) -> ServedNames:
    """Those of both ports."""
    listen = config.listen
    return ServedNames(
        listen.allowed_hosts, listen.allowed_origins, listen.public_url, listen.trusted_proxies, listen.scheme
    )


def identity_of(config: Config, server: str) -> str:
    """Which program or address has a server's key; empty where none has."""
    section = config.servers.get(server)
    return "" if section is None else section.identity


def setups(config: Config, key: bytes) -> dict[str, str]:
    """With what each server is started or reached, beside what is its identity: a mark, for it holds secrets."""

    def of(section: AnyServer) -> str:
        given = section.headers if isinstance(section, HttpServer) else section.env
        path = section.ca if isinstance(section, HttpServer) else section.cwd
        boxed = None if isinstance(section, HttpServer) else sandbox(section)
        values = {name: value.get_secret_value() for name, value in given.items()}
        text = canonical([str(path), values, *([repr(boxed)] if boxed else [])])
        return hmac.new(key, text.encode(), "sha256").hexdigest()

    return {name: of(section) for name, section in config.servers.items()}


def listening(config: Config, mark: str = "") -> wire.ListenSettings:
    """`mark`: what the ids of sessions begin with."""
    limits = config.limits
    return wire.ListenSettings(
        names=names(config),
        limits=wire.RequestLimits(
            max_request=limits.max_request, max_depth=limits.max_depth, nodes=limits.nodes, max_batch=limits.max_batch,
            streams=limits.streams,
        ),
        sessions=wire.SessionLimits(mark=mark),
    )


def is_local_only(config: Config) -> bool:
    """Whether all clients are, as far as the config says."""
    listen = config.listen
    return listen.mcp.is_loopback and not (listen.public_url or listen.trusted_proxies)


def has_reachable_pages(config: Config) -> bool:
    """Whether a client's user is sure to reach the admin port at its own address."""
    listen = config.listen
    if listen.admin.is_loopback:
        return is_local_only(config)
    return listen.admin.host not in ("0.0.0.0", "::")


def client_of(config: Config, principal: str) -> Client | None:
    """Whoever may come in under that name, as the lists know a client; `ci-bot` means `key:ci-bot`."""
    if principal == "local":
        return Client("local", config.clients.local.roles)
    if principal == "anonymous" and config.clients.anonymous is not None:
        return Client("anonymous", config.clients.anonymous.roles)
    name = principal.removeprefix("key:")
    key = config.clients.keys.get(name)
    if key is None:
        return None
    return Client(f"key:{name}", key.roles, key.owner, credential=key_mark(_digest(key)))


def _digest(key: Key) -> str:
    return key.hash.get_secret_value().removeprefix("sha256:")


def without_revoked(config: Config, revoked: Revoked) -> Config:
    """The config without the keys that were taken back since it was written."""
    keys = config.clients.keys
    left = {name: key for name, key in keys.items() if not revoked.has(name, key.hash.get_secret_value())}
    if len(left) == len(keys):
        return config
    return config.model_copy(update={"clients": config.clients.model_copy(update={"keys": left})})


def is_gone(config: Config, principal: str) -> bool:
    """Whether nobody comes in under that name any more. Of tokens the config can tell their issuer alone: what they
    gave ends with the token."""
    if principal == "anonymous":
        return config.clients.anonymous is None
    if principal.startswith("jwt:"):
        issuers = {one.issuer for one in config.clients.jwt.issuers}
        if config.clients.login is not None:
            issuers.add(config.clients.login.issuer)
        return principal.removeprefix("jwt:").partition("#")[0] not in issuers
    if not principal.startswith("key:"):
        return False
    key = config.clients.keys.get(principal.removeprefix("key:"))
    return key is None or (key.expires is not None and key.expires.timestamp() <= time.time())
