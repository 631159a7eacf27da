"""The composition root: a Config becomes every object and the tasks that keep them alive.

The only file that knows all rooms. It cuts the config into slices, hands each room its own, and wires functions of
one room into another; it decides nothing about MCP.
"""

import gc
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from proxy import __version__, admin, telemetry
from proxy.call import Call, Client, Guard, Handler, Outcome, Publish, Result, Target, Verdict
from proxy.catalog import cursor
from proxy.catalog.uris import Rewriting
from proxy.config import Address, AnyServer, Config, HttpServer, Rate
from proxy.downstream.server import DownstreamServer
from proxy.downstream.settings import ServerSettings
from proxy.guards import chain
from proxy.guards.commit import commit
from proxy.guards.enforce import Decide, enforce
from proxy.guards.measure import measure
from proxy.guards.name import name
from proxy.guards.quota import quota
from proxy.guards.record import record
from proxy.guards.seal import seal
from proxy.guards.throttle import throttle
from proxy.hub import Hub
from proxy.listen import pipes, stdio
from proxy.listen import settings as listening
from proxy.listen.asgi import Listener
from proxy.listen.identity import Identity, IdentitySettings, Key
from proxy.listen.serve import HttpServer as Port
from proxy.lists import Lists, ListSettings, Resolver
from proxy.message import Json
from proxy.metrics import Metrics
from proxy.policy.allowlist import ToolRules, allowlist
from proxy.policy.rates import Windows
from proxy.router import Cursors, Router
from proxy.store.keys import KeyRing, Sealer, new_operator_token
from proxy.store.sqlite import SqliteStore

ME: Final[Json] = {"name": "sluice", "title": "Sluice", "version": __version__}
KEYS: Final = "keys"
DATABASE: Final = "sluice.db"
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Core:
    """What every way in shares: one handler, and what stands behind it."""

    handler: Handler
    servers: Mapping[str, DownstreamServer]
    lists: Lists
    router: Router
    metrics: Metrics

    def end_session(self, session: str) -> None:
        for server in self.servers.values():
            server.end_session(session)

    def describe(self) -> list[Json]:
        return [server.describe() for server in self.servers.values()]

    async def ready(self) -> None:
        """Every server has come up or has failed to for the first time."""
        for server in self.servers.values():
            await server.ready()

    async def tools(self, client: Client) -> list[Json]:
        """The merged catalog of tools as that client sees it, all pages."""
        found: list[Json] = []
        params: Json = {}
        while True:
            outcome = await self.router(Call(client, "tools/list", params))
            if not isinstance(outcome, Result):
                return found
            found += outcome.value["tools"]
            if "nextCursor" not in outcome.value:
                return found
            params = {"cursor": outcome.value["nextCursor"]}


@dataclass(frozen=True, slots=True)
class Running:
    """A Sluice that serves over HTTP. `endpoint` and `admin` are URLs."""

    endpoint: str
    admin: str
    core: Core
    drain: Callable[[], None]

    def servers(self) -> list[Json]:
        return self.core.describe()

    async def ready(self) -> None:
        await self.core.ready()


# ---------------------------------------------------------------- what every way in shares


@asynccontextmanager
async def core(config: Config) -> AsyncIterator[Core]:
    """Servers are dialled, everything is wired; closed in the opposite order."""
    async with AsyncExitStack() as stack:
        directory = Path(config.state.dir)
        ring = KeyRing.load(directory / KEYS, "seal")
        store = SqliteStore(directory / DATABASE)
        stack.push_async_callback(store.close)
        hub, sealer = Hub(), Sealer(ring)
        announce = _Later()
        servers = {
            key: DownstreamServer(_server(key, server, config), publish=announce, client_info=ME)
            for key, server in config.servers.items()
            if server.enabled
        }
        lists = Lists(_lists(config, servers), servers, hub, store)
        announce.publish = lists.publish
        stack.callback(lists.close)
        metrics = Metrics(
            version=__version__,
            servers=lambda: {key: server.status == "up" for key, server in servers.items()},
        )
        router, handler = _wire(config, servers, lists, hub, sealer, store, metrics)
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        for key, server in servers.items():
            group.start_soon(telemetry.supervise, f"server {key}", server.run)
            stack.push_async_callback(server.aclose)
        stack.callback(hub.close)
        yield Core(handler, servers, lists, router, metrics)


class _Later:
    """Servers publish to the lists, and the lists are made of the servers: the wire between them comes second."""

    publish: Publish

    def __call__(self, *args: object) -> None:
        self.publish(*args)  # type: ignore[arg-type]


def _wire(
    config: Config, servers: Mapping[str, DownstreamServer], lists: Lists, hub: Hub, sealer: Sealer,
    store: SqliteStore, metrics: Metrics,
) -> tuple[Router, Handler]:  # fmt: skip
    decide = _decide(config, servers)

    def may_list(call: Call, server: str, target: Target) -> bool:
        return decide(call.client, target).verdict is not Verdict.DENY

    rewriting = {
        key: Rewriting(server.prefix, server.uris == "plain") if server.prefix else None
        for key, server in config.servers.items()
    }
    resolver = Resolver(lists, may_list)
    cursors = Cursors(sealer.seal, sealer.unseal, cursor.generation(_generation(config)))
    router = Router(servers, lists, resolver, hub, cursors, may_list, lambda call, server: True)
    handler = chain(
        {
            "measure": measure(metrics.call) if config.telemetry.metrics else None,
            "record": record(),
            "throttle": _limited(throttle, config.limits.per_client),
            "name": name(resolver.resolve, rewriting.__getitem__),
            "seal": seal(sealer.seal, sealer.unseal),
            "enforce": enforce(decide, explain=config.policy.on_deny == "explain"),
            "quota": _limited(quota, config.limits.per_tool),
            "approve": None,  # no decision asks a human in this version
            "commit": commit(store.spend),
            "inspect": None,  # sizes are bounded where answers are read
        },
        _timed(router, metrics) if config.telemetry.metrics else router,
    )
    return router, handler


def _timed(router: Router, metrics: Metrics) -> Handler:
    """What servers take is measured inside all guards: the difference to `measure` is our own share."""
    guard = measure(metrics.server_call)

    async def handle(call: Call) -> Outcome:
        return await router(call) if call.target is None else await guard(call, router)

    return handle


def _limited(guard: Callable[[Windows], Guard], limit: Rate | None) -> Guard | None:
    return guard(Windows(limit.amount, limit.seconds)) if limit else None


def _decide(config: Config, servers: Mapping[str, DownstreamServer]) -> Decide:
    tools = {key: config.servers[key].tools for key in servers}
    return allowlist({key: ToolRules(rules.allow, rules.deny) for key, rules in tools.items()})


# ---------------------------------------------------------------- slices of the config


def _server(key: str, server: AnyServer, config: Config) -> ServerSettings:
    common = partial(
        ServerSettings, key, era=server.era, sharing=server.sharing, lazy=server.lazy, timeout=server.timeout,
        max_time=server.max_time, concurrency=server.concurrency, max_result=config.limits.max_result,
    )  # fmt: skip
    if isinstance(server, HttpServer):
        headers = {header: value.get_secret_value() for header, value in server.headers.items()}
        return common(url=server.url, headers=headers, ca=str(server.ca) if server.ca else None)
    env = {variable: value.get_secret_value() for variable, value in server.env.items()}
    return common(command=(server.command, *server.args), env=env, cwd=str(server.cwd))


def _lists(config: Config, servers: Mapping[str, DownstreamServer]) -> ListSettings:
    enabled = {key: config.servers[key] for key in servers}
    transparent = any(not server.prefix for server in enabled.values())
    return ListSettings(
        prefixes={key: server.prefix for key, server in enabled.items()},
        plain=frozenset(key for key, server in enabled.items() if server.uris == "plain"),
        transparent=transparent,
        forward_unlisted=transparent and any(server.unlisted == "forward" for server in enabled.values()),
        names_max=config.names.max,
        page=config.limits.page,
    )


def _generation(config: Config) -> Json:
    """What a cursor depends on: which servers there are, in which order, under which names. No secret is in it."""
    return {
        key: {
            "prefix": server.prefix, "uris": server.uris, "allow": server.tools.allow, "deny": server.tools.deny,
            "where": server.url if isinstance(server, HttpServer) else [server.command, *server.args],
        }
        for key, server in config.servers.items() if server.enabled
    }  # fmt: skip


def _identity(config: Config) -> IdentitySettings:
    keys = tuple(
        Key(
            name, key.hash.get_secret_value().removeprefix("sha256:"), key.roles, key.owner,
            key.expires.timestamp() if key.expires else None,
        )
        for name, key in config.clients.keys.items()
    )  # fmt: skip
    anonymous = config.clients.anonymous
    return IdentitySettings(keys, anonymous.roles if anonymous else None)


def _listening(config: Config) -> listening.Settings:
    limits, listen = config.limits, config.listen
    return listening.Settings(
        names=listening.Names(listen.allowed_hosts, listen.allowed_origins),
        limits=listening.Limits(limits.max_request, limits.max_depth, limits.max_batch, limits.streams),
    )


# ---------------------------------------------------------------- over HTTP


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Running]:
    """A Sluice that listens on both its ports. Raises `OSError` where a port cannot be had."""
    async with AsyncExitStack() as stack:
        token = new_operator_token(Path(config.state.dir))
        inner = await stack.enter_async_context(core(config))
        identity = Identity(_identity(config))
        listener = Listener(inner.handler, ME, identity, _listening(config), inner.end_session)
        inner.metrics.watch(sessions=lambda: len(listener.sessions))
        wire = listening.Wire(headers=config.limits.headers)
        port = Port(listener, config.listen.mcp.host, config.listen.mcp.port, wire, config.drain)
        backstage = _admin_port(config, inner, identity, token)
        port.bind()
        backstage.bind()
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        group.start_soon(telemetry.supervise, "sessions", listener.run)
        for one in (port, backstage):
            await group.start(one.run)

        def drain() -> None:
            listener.close()
            port.stop()

        stack.callback(drain)
        yield Running(
            _url(config.listen.mcp, port.port) + "/mcp", _url(config.listen.admin, backstage.port), inner, drain
        )


def _url(address: Address, port: int) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{port}"


def _admin_port(config: Config, inner: Core, identity: Identity, token: str) -> Port:
    async def list_tools(principal: str) -> list[Json] | None:
        client = _client(config, principal)
        return None if client is None else await inner.tools(client)

    application = admin.application(
        admin.Settings(token, frozenset(config.listen.allowed_hosts), frozenset(config.listen.allowed_origins)),
        admin.Sources(
            ready=partial(_unready, config, inner),
            metrics=inner.metrics.render if config.telemetry.metrics else None,
            describe_servers=inner.describe,
            list_tools=list_tools,
            is_key=lambda key: identity.identify(b"Bearer " + key.encode(), True, None) is not None,
        ),
    )
    return Port(application, config.listen.admin.host, config.listen.admin.port, drain=5.0)


def _unready(config: Config, inner: Core) -> list[str]:
    """Why Sluice is not ready: a server that is `required` is not up, or some have not been tried yet."""
    return [
        f"server {key} is {server.status}"
        for key, server in inner.servers.items()
        if (server.status == "starting" and not server.settings.lazy)
        or (config.servers[key].required and server.status != "up")
    ]  # fmt: skip


def _client(config: Config, principal: str) -> Client | None:
    """Whoever may come in under that name, as the lists know a client; `ci-bot` means `key:ci-bot`."""
    if principal == "local":
        return Client("local", config.clients.local.roles)
    if principal == "anonymous" and config.clients.anonymous is not None:
        return Client("anonymous", config.clients.anonymous.roles)
    key = config.clients.keys.get(principal.removeprefix("key:"))
    return None if key is None else Client(f"key:{principal.removeprefix('key:')}", key.roles, key.owner)


async def serve(config: Config, *, announce: Announce) -> None:
    """Until SIGTERM or SIGINT; the second one ends it at once."""
    telemetry.configure(config.log.level, config.log.format)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with running(config) as sluice, anyio.create_task_group() as group:
            for line in _greeting(config, sluice):
                announce(line)
            group.start_soon(_announce_servers, sluice, announce)
            await anext(aiter(signals))
            group.cancel_scope.cancel()
            announce("stopping: open calls may end")
            sluice.drain()


def _greeting(config: Config, sluice: Running) -> list[str]:
    lines = [
        f"Sluice {__version__}",
        f"  endpoint  {sluice.endpoint}",
        f"  admin     {sluice.admin}  (/livez /readyz{' /metrics' if config.telemetry.metrics else ''})",
    ]
    if config.policy.use == "open":
        lines.append("  POLICY    open: every client may use everything that is not on a deny list (development only)")
    return lines


async def _announce_servers(sluice: Running, announce: Announce) -> None:
    """One line per server, as each comes up or fails."""
    started = time.monotonic()

    async def one(server: DownstreamServer) -> None:
        await server.ready()
        told = server.describe()
        how = f"{'/'.join(told['eras']) or '-':<13} {time.monotonic() - started:4.1f}s"
        announce(f"  server    {server.key:<20} {server.status:<9} {how}  {told['last_error']}".rstrip())

    async with anyio.create_task_group() as group:
        for server in sluice.core.servers.values():
            group.start_soon(one, server)
    _calm_collector()


def _calm_collector() -> None:
    """What lives as long as the process is no longer walked, and the rest less often: a call makes no cycles. The
    defaults cost 15 us of CPU a call, of about 200."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


# ---------------------------------------------------------------- over stdin and stdout


async def serve_stdio(config: Config) -> None:
    """One client on stdin and stdout, until it closes stdin."""
    telemetry.configure(config.log.level, config.log.format)
    limits = config.limits
    # The streams first: from here on whatever is printed goes to stderr, and stdout carries MCP alone.
    async with pipes.standard_streams() as (reader, writer), core(config) as inner:
        await stdio.serve(
            inner.handler, reader=reader, writer=writer, client=Client("local", config.clients.local.roles),
            server_info=ME, on_session_end=inner.end_session, max_line=limits.max_request,
            max_depth=limits.max_depth, max_batch=limits.max_batch,
        )  # fmt: skip
