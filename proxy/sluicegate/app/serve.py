"""Serving over HTTP: the port for clients, the admin port beside it, and the life from greeting to drain."""

import asyncio
import gc
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from starlette.types import ASGIApp

from sluicegate import __version__, telemetry
from sluicegate.admin.approval_page import link
from sluicegate.admin.peers import front
from sluicegate.app import settings
from sluicegate.app.admin_app import admin_application, note_in, with_console
from sluicegate.app.core import ME, Core, core
from sluicegate.app.instance_lock import WorkerSockets
from sluicegate.app.issuer_pages import IssuerPages, provider_of
from sluicegate.app.login_pages import LoginPages
from sluicegate.app.login_sign_in import SignIn
from sluicegate.app.partition import WHOLE, Partition
from sluicegate.app.reload import InForce, ToldReload, joining
from sluicegate.app.services import Services
from sluicegate.config import Address, Config
from sluicegate.config.fleet import FleetPeer, PeerTls
from sluicegate.downstream.accounts import AnyDownstream
from sluicegate.http.client.pool import HttpClient, Route
from sluicegate.http.fetch import Fetcher
from sluicegate.http.forwarded_headers import ForwardedHeaders
from sluicegate.issuer.clients import ClientDirectory
from sluicegate.issuer.grants import ACCESS, ClientGrants
from sluicegate.listen import settings as listening
from sluicegate.listen.asgi import asgi
from sluicegate.listen.auth import Principal
from sluicegate.listen.auth.issued import Issued
from sluicegate.listen.listener import Listener, Pages
from sluicegate.listen.owners import Owners, OwnersByClient, OwnersByMark
from sluicegate.listen.peer_forwarding import PeerForwarding
from sluicegate.listen.server import AddressServer as Port
from sluicegate.listen.server import on_unix_socket
from sluicegate.listen.tls import Tls
from sluicegate.listen.worker_handoff import PATIENCE, WorkerHandoff
from sluicegate.metrics import Sample
from sluicegate.policy.judge import PolicyEngine
from sluicegate.policy.memo import Memo
from sluicegate.protocol.model import Client
from sluicegate.runtime import process_limits
from sluicegate.store.keys import new_operator_token, publish_operator_token

MAX_ENTERED: Final = 10_000
FULL_COLLECTION: Final = 300.0  # seconds between two

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A Sluice that serves over HTTP. `endpoint` and `admin` are URLs."""

    endpoint: str
    admin: str
    core: Core
    ports: tuple[Port, ...]

    async def retire(self, delay: float) -> None:
        """Serves for so long yet, and says that it will stop."""
        if delay:
            async with anyio.create_task_group() as group:
                for port in self.ports:
                    group.start_soon(port.retire, delay)

    def stop(self) -> None:
        """Ends it at once. Leaving the context lets open calls end first, within the drain time."""
        for port in self.ports:
            port.stop(now=True)


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Where a worker is: `sockets` are those that all of them serve, and in `folder` each has its own. `admin` is the
    URL of the admin port, and `token` the operator's token there. `in_force` is what the others have."""

    partition: Partition
    sockets: Sequence[socket.socket]
    folder: WorkerSockets
    admin: str
    token: str = field(repr=False)
    in_force: InForce = field(repr=False)


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


@asynccontextmanager
async def running(
    config: Config, file: Path | None = None, placement: WorkerPlacement | None = None
) -> AsyncIterator[RunningServer]:
    """A Sluice that listens on both its ports, or a worker by its `placement`. Raises `OSError` where a port cannot be
    had, `PolicyError` where the policy cannot be used. What `file` says later on is taken into use; a worker takes what
    it is told."""
    process_limits.share_heaps()  # before there are threads
    async with AsyncExitStack() as stack:
        partition = WHOLE if placement is None else placement.partition
        token = new_operator_token() if placement is None else placement.token
        in_force = None if placement is None else placement.in_force
        if in_force is not None:
            config = joining(config, in_force.config)
        policy = None if in_force is None else in_force.loaded
        inner = await stack.enter_async_context(core(config, file=file, partition=partition, given_policy=policy))
        if in_force is not None:
            await _take(inner, in_force)
        identities = inner.services.identities
        pages = tuple(_pages(config, inner))
        peer = config.fleet.peer if config.fleet is not None else None
        peers = await stack.enter_async_context(_peers(peer, inner.services, placement))
        mark = "" if inner.services.replicas is None else inner.services.replicas.mark
        listener = Listener(inner.handler, ME, identities.clients, settings.listening(config, mark), inner.end_session,
                            inner.services.notes.refused, on_abandoned=inner.abandon, on_sweep=inner.keep,
                            until_free=inner.until_free, pages=pages, peers=peers,
                            toolsets=PolicyToolsets(inner.services.judging.judge))  # fmt: skip
        inner.behind.sessions.set(listener)
        inner.services.metrics.watch(partial(_open, listener))
        files = process_limits.raise_open_files()
        wire = listening.ConnectionLimits(
            headers=config.limits.headers, is_shared=placement is not None,
            connections=files * (3 if peer is None else 2) // 4,
        )  # fmt: skip
        bound = () if placement is None else placement.sockets
        port = Port(listener, config.listen.mcp.host, config.listen.mcp.port, wire, config.drain, bound=bound,
                    tls=_own_tls(config))  # fmt: skip
        application = admin_application(config, inner, identities.operators, token, lambda: port.is_retiring)
        ports: tuple[Port, ...] = (port,)
        if peer is not None:
            wire = replace(wire, connections=files // 4, is_for_peers=True)
            ports += (Port(listener, peer.listen.host, peer.listen.port, wire, config.drain, tls=_tls(peer.tls)),)
        for one in ports:
            one.bind()
        if placement is None:
            note = note_in(inner.services.audit)
            served = with_console(config, application, note, inner.services.store, token, inner.services.sealer)
            backstage = admin_port(config, served, files // 8)
            here = replace(config.listen.admin, port=backstage.bind())
            publish_operator_token(Path(config.state.dir), token, str(here), file)
        admin_url = url(config.listen.admin, backstage.port) if placement is None else placement.admin
        scheme = config.listen.scheme
        public = config.listen.public_url or "", config.console.public_url or ""
        for served_url in (url(config.listen.mcp, port.port, scheme), admin_url, *public):
            inner.services.own_pages.add(served_url)
        if settings.has_reachable_pages(config):
            inner.page_link.set(partial(link, inner.services.sealer.seal, admin_url))
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        group.start_soon(telemetry.supervise, "sessions", listener.run)
        group.start_soon(telemetry.supervise, "grants of clients", identities.clients.run)
        if placement is None:
            await group.start(backstage.run)
        else:
            behind = asgi(front(application, inner.behind.pins.books.refresh, note_in(inner.services.audit)))
            await stack.enter_async_context(on_unix_socket(behind, placement.folder.asked(partition.index)))
        if peers is not None and peers.handoff is not None:
            group.start_soon(telemetry.supervise, "connections of others", partial(peers.handoff.run, port.adopt))
        # Left, not cancelled: this group ends when the last open call has, or the drain time is over.
        calls = await stack.enter_async_context(anyio.create_task_group())
        for one in ports:
            await calls.start(one.run)
        for one in ports[1:]:
            stack.callback(one.stop)
        # The other way round: not ready, and nothing is accepted any more; then streams end, and who waits is answered.
        stack.callback(inner.queue.waiting.release)
        stack.callback(listener.close)
        stack.callback(port.stop)
        yield RunningServer(url(config.listen.mcp, port.port, scheme) + "/mcp", admin_url, inner, ports)


def _pages(config: Config, inner: Core) -> Iterator[Pages]:
    """What people see beside the public URL: where they log in to servers, and where their clients log in."""
    services, forwarded = inner.services, ForwardedHeaders(settings.names(config))
    base = config.listen.login_pages
    if not base:
        return

    audit, refused = services.audit, services.notes.refused

    def config_now() -> Config:
        return services.judging.config

    def within() -> float:
        return config_now().login.within

    def sign_in(callback: str) -> SignIn:
        fetcher = Fetcher(services.egress)
        return SignIn(fetcher, services.sealer, services.store, callback, within, services.clock)

    login_pages = LoginPages(
        base, config_now, services.logins, services.identities.clients, services.judging.judge,
        services.sealer, forwarded, sign_in(f"{base}idp/callback"), refused,
    )  # fmt: skip
    services.logins.page.set(login_pages.link)
    yield login_pages
    issuer = settings.issuer(config)
    grants = ClientGrants(services.store, services.sealer, config.listen.public_url or "",
                          lambda: _lasts(config_now()), lambda: _source(config_now()), services.clock)  # fmt: skip
    issued = Issued(ACCESS.encode(), partial(_issued, services, grants), grants.lives, services.clock)
    services.identities.clients.take_issued(issued)
    directory = ClientDirectory(services.sealer, Fetcher(services.egress), issuer)
    yield IssuerPages(
        issuer, config_now, directory, grants, sign_in(f"{issuer}/oauth/callback"),
        services.sealer, services.store, forwarded, audit.note if audit is not None else _to_nobody,
        refused,
    )  # fmt: skip


def _to_nobody(*words: object) -> None:
    """Without an audit log there is nothing to write."""


def _issued(services: Services, grants: ClientGrants, token: str) -> tuple[str, tuple[str, ...], str, float] | None:
    """Nobody's, where clients do not log in by themselves any more, or at another provider."""
    login, found = services.judging.config.clients.login, grants.read(token)
    if login is None or found is None or not found[0].principal.startswith(f"jwt:{login.issuer}#"):
        return None
    return found[0].principal, found[0].roles, found[1], found[2]


def _lasts(config: Config) -> float:
    login = config.clients.login
    return login.lasts if login is not None else 0.0


def _source(config: Config) -> str:
    provider = provider_of(config)
    return provider.mark if provider is not None else ""


@asynccontextmanager
async def _peers(
    peer: FleetPeer | None, services: Services, placement: WorkerPlacement | None
) -> AsyncIterator[PeerForwarding | None]:
    """The way to other workers or replicas; None without any. Raises `OSError` where a file of `tls` cannot be used."""
    replicas, handoff = services.replicas, None
    owners: Owners
    if placement is not None:
        partition = placement.partition
        handoff = WorkerHandoff(partition.index, [placement.folder.taking(at) for at in range(partition.count)])
        owners = OwnersByClient(partition.index, partition.count, partition.owner)
        client = HttpClient(connect_timeout=2 * PATIENCE, route=Route(dial=handoff.dial))
    elif replicas is not None and peer is not None:
        tls = _tls(peer.tls)
        owners = OwnersByMark(replicas.owner)
        client = HttpClient(ssl_context=tls.to_peers() if tls is not None else None)
    else:
        yield None
        return
    peers = PeerForwarding(owners, client, handoff)
    if replicas is not None:
        replicas.on_change.append(peers.keep)
    services.metrics.watch(lambda: (("sluice_forwarded", (result,), n) for result, n in peers.results.items()))
    try:
        yield peers
    finally:
        await client.aclose()


def _own_tls(config: Config) -> Tls | None:
    files = config.listen.tls
    return None if files is None else Tls(files.cert, files.key, files.client_ca)


def _tls(files: PeerTls | None) -> Tls | None:
    return None if files is None else Tls(files.cert, files.key, files.ca)


def _open(listener: Listener) -> Iterator[Sample]:
    yield "sluice_sessions", (), listener.open_sessions
    yield "sluice_streams_open", (), listener.open_streams
    yield "sluice_event_loop_tasks", (), len(asyncio.all_tasks())


async def _take(inner: Core, in_force: InForce) -> None:
    """A worker begins with what the others have in force, or not at all."""
    reload = inner.services.judging.reload
    assert isinstance(reload, ToldReload)
    reload.tell(in_force)
    await reload.looked.wait()


def url(address: Address, port: int, scheme: str = "http") -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{scheme}://{host}:{port}"


def admin_port(config: Config, application: ASGIApp, connections: int) -> Port:
    wire = listening.ConnectionLimits(connections=connections)
    return Port(asgi(application), config.listen.admin.host, config.listen.admin.port, wire, drain=5.0)


async def serve(config: Config, *, announce: Announce, file: Path | None = None) -> None:
    """Until SIGTERM or SIGINT; open calls may end then, and a second signal ends it at once. SIGHUP has `file` read
    again. Raises `KeyboardInterrupt` at the end if it was SIGINT."""
    telemetry.configure(config.log.level, config.log.format)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            async with running(config, file) as sluice:
                group.start_soon(_reload_at_hangup, sluice)
                judge = sluice.core.services.judging.judge
                policy = policy_line(config, judge.revision(), judge.in_force.is_shadow)
                for line in (*greeting(config, sluice.endpoint, sluice.admin), policy):
                    announce(line)
                group.start_soon(announce_servers, sluice, announce)
                received = await anext(signals)
                sluice.core.services.notes.act("drain", by=received.name)
                announce(stopping(config))
                group.start_soon(_stop_at_next, signals, sluice)
                await sluice.retire(config.drain_delay)
            group.cancel_scope.cancel()
    if received == signal.SIGINT:
        raise KeyboardInterrupt


async def _reload_at_hangup(sluice: RunningServer) -> None:
    if sys.platform == "win32":
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            sluice.core.services.notes.act("reload", by="SIGHUP")
            sluice.core.services.judging.reload.ask()


async def _stop_at_next(signals: AsyncIterator[signal.Signals], sluice: RunningServer) -> None:
    await anext(signals)
    sluice.stop()


def stopping(config: Config) -> str:
    first = f"serving for {config.drain_delay:g}s yet, then " if config.drain_delay else ""
    return f"stopping: {first}open calls have {config.drain:g}s to end; a second signal ends them now"


def greeting(config: Config, endpoint: str, admin: str) -> Iterable[str]:
    yield f"Sluice {__version__}"
    yield f"  endpoint  {endpoint}"
    yield f"  admin     {admin}  (/livez /readyz{' /metrics' if config.telemetry.metrics else ''})"


def policy_line(config: Config, revision: str, is_shadow: bool) -> str:
    if config.policy.use == "open":
        return "  POLICY    open: every client may use everything that is not on a deny list (development only)"
    if is_shadow:
        return f"  POLICY    shadow mode until {config.policy.until}: what it denies is let through and logged"
    return f"  policy    {config.policy.use or 'your own'}, revision {revision}"


async def announce_servers(sluice: RunningServer, announce: Announce) -> None:
    """One line per server, as each comes up or fails."""
    started = time.monotonic()

    async def one(server: AnyDownstream) -> None:
        await server.ready()
        described = server.describe()
        how = f"{'/'.join(described['eras']) or '-':<13} {time.monotonic() - started:4.1f}s"
        announce(f"  server    {server.key:<20} {server.status:<9} {how}  {described['last_error']}".rstrip())

    for key, why in sluice.core.services.config.disabled.items():
        announce(f"  server    {key:<20} disabled ({why})")
    async with anyio.create_task_group() as group:
        for server in sluice.core.behind.servers.values():
            group.start_soon(one, server)
    await collect_garbage()


async def collect_garbage() -> None:
    """Excludes what lives as long as the process from garbage collection, and collects the rest less often: most calls
    make no cycles. Young objects are collected in many short steps. Servers, clients and sessions that end leave cycles
    of older objects, which a full collection finds. Its time has come by the clock: a list of 10,000 tools is as many
    new objects as an hour of calls, and no garbage."""
    gc.collect()
    gc.freeze()
    gc.collect()  # resets the number of old objects, by which CPython defers the next full collection
    gc.set_threshold(2_000, 1, 659)
    while True:
        await anyio.sleep(FULL_COLLECTION)
        gc.collect()
